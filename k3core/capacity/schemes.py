"""Public ways to undo rejected drafts, as data: what is kept, when it is applied, what is rounded.

A step verifies ``T = 1 + draft_len`` tokens. A scheme keeps either whole states (slots) or a
record per token from which the accepted prefix is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k3core.errors import CapacityError, require, shown


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


class Commit(StrEnum):
    """When the accepted prefix reaches the state, which decides the traffic of a step."""

    POINTER = "pointer"  # the state of the last accepted token becomes the running one
    COPY = "copy"  # that state is copied into the running one
    EAGER = "eager"  # a second pass after verification reads state and records, writes the state
    LAZY = "lazy"  # the next step replays the records before it verifies, in one pass
    FOLD = "fold"  # records stay in the ring; the state is written when the ring fills


@dataclass(frozen=True)
class RecordPart:
    """One array of a record.

    Attributes:
        name: q, k, v, g (log-decay), beta, u (correction), gate_input or vector_n (not stated).
        width: numbers per head; the gate's low-rank input is one for all heads of a rank.
        dtype: format in which it is kept.
    """

    name: str
    width: Width
    dtype: str


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
        commit: how accepted tokens reach the state.
        rounded: parts of the record that are narrower than what the recurrence computes with.
        record_in_page: the record lies in the state's page, as in vLLM, and so sizes the block;
            otherwise it has a buffer beside the pool.
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
    commit: Commit = Commit.EAGER
    rounded: tuple[str, ...] = ()
    record_in_page: bool = False

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
            commit=Commit.POINTER,
        ),
        RollbackScheme(
            "snapshots-align",
            "vLLM, mamba cache mode align",
            "vLLM block tables 2+ns; ATOM recipe Kimi-K3-LMCache-Byte-Offload",
            Numerics.BIT_EQUAL,
            state_slots=2,
            commit=Commit.POINTER,
        ),
        RollbackScheme(
            "snapshots-state-only",
            "SGLang",
            "SGLang #26888 (per-step intermediate states)",
            Numerics.BIT_EQUAL,
            state_slots=1,
            slots_hold_conv=False,
            slots_hold_live=False,
            commit=Commit.COPY,
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
            commit=Commit.LAZY,
        ),
        RollbackScheme(
            "low-rank-inputs",
            "TokenSpeed",
            "TokenSpeed #1058, #1156",
            Numerics.BIT_EQUAL,
            record=(
                *_inputs("bfloat16", "q", "k", "v"),
                RecordPart("gate_input", Width.GATE_LOW_RANK, "bfloat16"),
                *_inputs("bfloat16", "beta"),
            ),
        ),
        RollbackScheme(
            "corrections",
            "vLLM RecoverSSM",
            "vLLM #51855, #52993",
            Numerics.REORDERED,
            record=_inputs("bfloat16", "k", "g") + _inputs("float32", "u"),
            record_in_page=True,
        ),
        RollbackScheme(
            "flush-ring",
            "FlashInfer",
            "FlashInfer #4864, #4709",
            Numerics.ROUNDED,
            record=_inputs("bfloat16", "k", "u") + _inputs("float32", "g"),
            ring_rows=32,
            ring_window=16,
            commit=Commit.FOLD,
            rounded=("k", "u"),
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
    if not isinstance(code, str) or code not in SCHEMES:
        raise CapacityError(f"rollback={shown(code)} is unknown; allowed: {', '.join(SCHEMES)}")
    return SCHEMES[code]
