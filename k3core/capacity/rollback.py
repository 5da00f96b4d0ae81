"""What each speculative-decoding scheme costs: bytes per request and rank, and traffic per step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from k3core.capacity.memory import RequestMemory
from k3core.capacity.schemes import Commit, RecordPart, RollbackScheme, Width, get_scheme
from k3core.dtypes import dtype_bytes
from k3core.errors import (
    CapacityError,
    require,
    require_count,
    require_number,
    require_type,
)

MAX_DRAFTS = 4096


class StepTraffic(NamedTuple):
    """Bytes of one step, one request, one rank: passes over states and over records."""

    state_read: float
    state_written: float
    record_read: float
    record_written: float

    @property
    def total(self) -> float:
        return sum(self)


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
        require_type("scheme", self.scheme, RollbackScheme, CapacityError)
        require_type("memory", self.memory, RequestMemory, CapacityError)
        require_count("draft_len", self.draft_len, 0, MAX_DRAFTS, CapacityError)
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
        return sum(self.part_numbers(part) * dtype_bytes(part.dtype) for part in self.scheme.record)

    def part_numbers(self, part: RecordPart) -> int:
        """Numbers of one part per token and layer on this rank.

        q and k have the key heads. The decay of GDN and Mamba-2 is one number per head, so there
        g and the input of its gate are as wide as beta.
        """
        model, heads = self.memory.model, self.memory.num_heads
        if part.name in ("q", "k"):
            return model.key_heads_per_rank(self.memory.tp) * model.dk
        if part.name in ("g", "gate_input") and model.kind != "kda":
            return heads
        if part.width is Width.GATE_LOW_RANK:
            return model.gate_low_rank_dim
        return heads * {Width.DK: model.dk, Width.DV: model.dv, Width.SCALAR: 1}[part.width]

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

    @property
    def scheme_bytes(self) -> int:
        """Buffers, and the draft rows of the running window where no slot holds it already."""
        holds_window = self.num_slots > 0 and self.scheme.slots_hold_live
        return self.buffer_bytes + (0 if holds_window else self.conv_draft_bytes)

    @property
    def beside_bytes(self) -> int:
        """Bytes of the record that lie outside the state's page."""
        return 0 if self.scheme.record_in_page else self.record_bytes

    @property
    def record_bytes_per_head(self) -> float:
        """Record of one token, layer and head."""
        return self.record_bytes_per_token_layer / self.memory.num_heads

    @property
    def state_to_record(self) -> float:
        """How many times smaller one token's record is than a state with its window."""
        require(
            self.record_bytes_per_token_layer > 0,
            f"rollback={self.scheme.code} keeps states, not records",
            CapacityError,
        )
        return self.memory.kda_bytes_per_layer / self.record_bytes_per_token_layer

    def step_traffic(self, num_committed: float) -> StepTraffic:
        """Bytes that one step moves for rollback and state, all KDA layers of one rank.

        A model of passes, not a measurement: every pass over the state reads or writes it once,
        whatever a kernel keeps in registers or caches. Verification reads the committed state once
        under every scheme.

        Args:
            num_committed: tokens that the step commits, 1 to ``draft_len + 1``; a mean will do.
        """
        width = 1 + self.draft_len
        require_number("num_committed", num_committed, least=1, most=width, error=CapacityError)
        layers = self.memory.model.num_kda_layers
        state = layers * self.memory.state_bytes_per_layer
        row = layers * self.record_bytes_per_token_layer
        if self.draft_len == 0:
            return StepTraffic(state, state, 0, 0)
        match self.scheme.commit:
            case Commit.POINTER:
                return StepTraffic(state, width * state, 0, 0)
            case Commit.COPY:
                return StepTraffic(2 * state, (width + 1) * state, 0, 0)
            case Commit.EAGER:
                return StepTraffic(2 * state, state, num_committed * row, width * row)
            case Commit.LAZY:
                return StepTraffic(state, state, num_committed * row, width * row)
            case Commit.FOLD:
                return self._ring_traffic(state, row, num_committed)

    def _ring_traffic(self, state: int, row: int, num_committed: float) -> StepTraffic:
        """The ring folds once its history reaches window - T + 1 rows (FlashInfer #4864)."""
        width = 1 + self.draft_len
        flush_min = self.scheme.ring_window - width + 1
        steps = math.ceil(flush_min / num_committed)
        history = num_committed * (steps - 1) / 2
        return StepTraffic(state, state / steps, history * row, width * row)


def rollback_cost(memory: RequestMemory, code: str, draft_len: int) -> RollbackCost:
    """Cost of the scheme ``code`` when each step drafts ``draft_len`` tokens.

    ``memory.draft_len`` is not used: the two draft lengths cannot disagree.

    Raises:
        CapacityError: unknown scheme, negative ``draft_len``, or a step longer than a ring allows.
    """
    return RollbackCost(get_scheme(code), memory, draft_len)
