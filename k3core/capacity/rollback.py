"""What each speculative-decoding scheme keeps so that rejected drafts can be undone.

A step verifies ``T = 1 + draft_len`` tokens. A scheme keeps either whole states (slots) or a
record per token from which the accepted prefix is replayed. Bytes are per request and rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from k3core.capacity.memory import RequestMemory
from k3core.dtypes import dtype_bytes
from k3core.errors import CapacityError, require


class Width(StrEnum):
    """How many numbers a part of a record holds."""

    DK = "dk"
    DV = "dv"
    SCALAR = "scalar"
    GATE_LOW_RANK = "gate-low-rank"


class Numerics(StrEnum):
    """What the state after a rollback is, compared with plain decoding."""

    BIT_EQUAL = "bit-equal"
    REORDERED = "reordered"
    ROUNDED = "rounded"
    NOT_STATED = "not-stated"


@dataclass(frozen=True)
class RecordPart:
    """One array of a record.

    Attributes:
        name: q, k, v, g (log-decay), beta, u (correction), gate_input or vector_n (not stated).
        width: numbers per head, or per rank where ``per_head`` is False.
        dtype: format in which it is kept.
        per_head: False for the gate's low-rank input, which all heads share.
    """

    name: str
    width: Width
    dtype: str
    per_head: bool = True


@dataclass(frozen=True)
class RollbackScheme:
    """A published way to undo drafts, as data.

    Attributes:
        code: stable name, used in URLs and on the command line.
        engine: who uses it.
        source: public thread or report section.
        numerics: how its result compares with plain decoding.
        record: what is kept per verified token; empty when whole states are kept.
        extra_rows: rows beside the drafts: 1 keeps T rows, 0 keeps one per draft.
        ring_rows: fixed number of rows when the record is a ring, else 0.
        ring_window: most tokens that one step may verify with that ring, else 0.
        state_slots: whole states beside the drafts' (1 in "1 + ns"), or 0 when none are kept.
        slots_hold_conv: a slot carries the convolution window too.
        slots_hold_live: the running state is one of the slots.
    """

    code: str
    engine: str
    source: str
    numerics: Numerics
    record: tuple[RecordPart, ...] = ()
    extra_rows: int = 1
    ring_rows: int = 0
    ring_window: int = 0
    state_slots: int = 0
    slots_hold_conv: bool = True
    slots_hold_live: bool = True

    def num_slots(self, draft_len: int) -> int:
        """Whole states held, the running one included where it is one of the slots."""
        if not self.state_slots:
            return 0
        if draft_len == 0 and not self.slots_hold_live:
            return 0
        return self.state_slots + draft_len

    def num_rows(self, draft_len: int) -> int:
        """Records held; plain decoding (no drafts) needs none except in a ring.

        Raises:
            CapacityError: a ring's window is shorter than the step.
        """
        if not self.record:
            return 0
        if self.ring_rows:
            require(
                1 + draft_len <= self.ring_window,
                f"draft_len={draft_len} verifies {1 + draft_len} tokens at once, the window of "
                f"{self.code} holds {self.ring_window}; use at most {self.ring_window - 1} drafts",
                CapacityError,
            )
            return self.ring_rows
        return self.extra_rows + draft_len if draft_len else 0


def _inputs(dtype: str, *names: str) -> tuple[RecordPart, ...]:
    widths = {"v": Width.DV, "u": Width.DV, "beta": Width.SCALAR}
    return tuple(RecordPart(name, widths.get(name, Width.DK), dtype) for name in names)


SCHEMES: dict[str, RollbackScheme] = {
    scheme.code: scheme
    for scheme in (
        RollbackScheme(
            "snapshots",
            "vLLM, mamba cache mode none",
            "vLLM block tables 1+ns; ATOM #1883 quotes 8 x 57.81 MiB",
            Numerics.BIT_EQUAL,
            state_slots=1,
        ),
        RollbackScheme(
            "snapshots-align",
            "vLLM, mamba cache mode align",
            "vLLM block tables 2+ns; ATOM recipe Kimi-K3-LMCache-Byte-Offload",
            Numerics.BIT_EQUAL,
            state_slots=2,
        ),
        RollbackScheme(
            "snapshots-state-only",
            "SGLang",
            "SGLang #26888 (per-step intermediate states)",
            Numerics.BIT_EQUAL,
            state_slots=1,
            slots_hold_conv=False,
            slots_hold_live=False,
        ),
        RollbackScheme(
            "raw-inputs",
            "SGLang KDA ring",
            "SGLang #36821",
            Numerics.BIT_EQUAL,
            record=_inputs("bfloat16", "k", "v") + _inputs("float32", "g", "beta"),
        ),
        RollbackScheme(
            "fp32-inputs",
            "TensorRT-LLM",
            "TensorRT-LLM #18294",
            Numerics.BIT_EQUAL,
            record=_inputs("float32", "q", "k", "v", "g", "beta"),
            extra_rows=0,
        ),
        RollbackScheme(
            "low-rank-inputs",
            "TokenSpeed",
            "TokenSpeed #1058, #1156",
            Numerics.BIT_EQUAL,
            record=(
                *_inputs("bfloat16", "q", "k", "v"),
                RecordPart("gate_input", Width.GATE_LOW_RANK, "bfloat16", per_head=False),
                *_inputs("bfloat16", "beta"),
            ),
        ),
        RollbackScheme(
            "corrections",
            "vLLM RecoverSSM",
            "vLLM #51855, #52993",
            Numerics.REORDERED,
            record=_inputs("bfloat16", "k", "g") + _inputs("float32", "u"),
        ),
        RollbackScheme(
            "flush-ring",
            "FlashInfer",
            "FlashInfer #4864, #4709",
            Numerics.ROUNDED,
            record=_inputs("bfloat16", "k", "u") + _inputs("float32", "g"),
            ring_rows=32,
            ring_window=16,
        ),
        RollbackScheme(
            "compact",
            "SGLang compact cache",
            "SGLang #27658 (three fp32 vectors per head; which three is not stated)",
            Numerics.NOT_STATED,
            record=_inputs("float32", "vector_1", "vector_2", "vector_3"),
        ),
    )
}


def get_scheme(code: str) -> RollbackScheme:
    """The scheme with this code.

    Raises:
        CapacityError: the code is unknown; the message lists the known ones.
    """
    if code not in SCHEMES:
        raise CapacityError(f"rollback={code!r} is unknown; allowed: {', '.join(SCHEMES)}")
    return SCHEMES[code]


@dataclass(frozen=True)
class RollbackCost:
    """Bytes of one scheme for one request on one rank.

    ``buffer_bytes`` is what engines quote: the records alone, or all state slots. It is not the
    price of drafting: slots may contain the running state, and the running convolution window
    grows by a row per draft. ``extra_bytes`` is that price: everything the request holds above
    its memory without drafts.
    """

    scheme: RollbackScheme
    memory: RequestMemory
    draft_len: int

    def __post_init__(self) -> None:
        require(
            self.draft_len >= 0, f"draft_len={self.draft_len} must be at least 0", CapacityError
        )
        self.scheme.num_rows(self.draft_len)

    @property
    def base(self) -> RequestMemory:
        """The request without drafts."""
        return replace(self.memory, draft_len=0)

    @property
    def drafted(self) -> RequestMemory:
        """The request whose convolution window has a row per draft."""
        return replace(self.memory, draft_len=self.draft_len)

    @property
    def record_bytes_per_token_layer(self) -> int:
        model, heads = self.memory.model, self.memory.num_heads
        width = {
            Width.DK: model.dk,
            Width.DV: model.dv,
            Width.SCALAR: 1,
            Width.GATE_LOW_RANK: model.gate_low_rank_dim,
        }
        return sum(
            (heads if part.per_head else 1) * width[part.width] * dtype_bytes(part.dtype)
            for part in self.scheme.record
        )

    @property
    def num_rows(self) -> int:
        return self.scheme.num_rows(self.draft_len)

    @property
    def num_slots(self) -> int:
        return self.scheme.num_slots(self.draft_len)

    @property
    def record_bytes_per_layer(self) -> int:
        return self.num_rows * self.record_bytes_per_token_layer

    @property
    def record_bytes(self) -> int:
        return self.memory.model.num_kda_layers * self.record_bytes_per_layer

    @property
    def slot_bytes(self) -> int:
        """One kept state over all KDA layers, with its convolution window where it has one."""
        if self.scheme.slots_hold_conv:
            return self.drafted.state_bytes_per_request
        return self.memory.model.num_kda_layers * self.memory.state_bytes_per_layer

    @property
    def buffer_bytes(self) -> int:
        return self.record_bytes + self.num_slots * self.slot_bytes

    @property
    def conv_draft_bytes(self) -> int:
        """Rows that drafts add to the running convolution window, all KDA layers."""
        return self.drafted.state_bytes_per_request - self.base.state_bytes_per_request

    @property
    def total_bytes(self) -> int:
        """Constant memory of the request: running state and window, and the scheme's buffers."""
        holds_live = self.num_slots > 0 and self.scheme.slots_hold_live
        live = 0 if holds_live else self.drafted.state_bytes_per_request
        return live + self.buffer_bytes

    @property
    def extra_bytes(self) -> int:
        return self.total_bytes - self.base.state_bytes_per_request


def rollback_cost(memory: RequestMemory, code: str, draft_len: int) -> RollbackCost:
    """Cost of the scheme ``code`` when each step drafts ``draft_len`` tokens.

    ``memory.draft_len`` is not used: the two draft lengths cannot disagree.

    Raises:
        CapacityError: unknown scheme, negative ``draft_len``, or a step longer than a ring allows.
    """
    return RollbackCost(get_scheme(code), memory, draft_len)
