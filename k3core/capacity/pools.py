"""How many requests fit: two ways in which engines cut a rank's cache memory.

`SplitPools` fixes a pool of state slots and a pool of MLA rows at start. `BlockPool` has one pool
of equal pages; a page holds either MLA rows or a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import floor

from k3core.capacity.memory import RequestMemory
from k3core.capacity.rollback import RollbackCost
from k3core.errors import CapacityError, require

GIB = 2**30


class Verdict(StrEnum):
    """Which limit a deployment meets first."""

    STATE = "state-slots"
    MLA = "mla-cache"
    BALANCED = "balanced"
    NOTHING_FITS = "nothing-fits"


def _require_budget(budget_bytes: int) -> None:
    require(budget_bytes > 0, f"budget_bytes={budget_bytes} must be positive", CapacityError)


def _require_tokens(num_tokens: int) -> None:
    require(num_tokens >= 1, f"num_tokens={num_tokens} must be at least 1", CapacityError)


@dataclass(frozen=True)
class SplitPools:
    """A static ratio of state pool to MLA pool, as SGLang's ``--mamba-full-memory-ratio``.

    Args:
        cost: the request's constant memory with its rollback scheme.
        budget_bytes: cache memory of one rank.
        ratio: state pool divided by MLA pool (SGLang default for K3: 0.9).
        slots_per_request: state slots reserved for each running request: 1 without prefix
            cache, 3 with it, 4 or 5 with extra buffers (SGLang K3 cookbook, mid-2026).

    Raises:
        CapacityError: budget, ratio or slots are not positive.
    """

    cost: RollbackCost
    budget_bytes: int
    ratio: float = 0.9
    slots_per_request: int = 5

    def __post_init__(self) -> None:
        _require_budget(self.budget_bytes)
        require(self.ratio > 0, f"ratio={self.ratio} must be positive", CapacityError)
        require(
            self.slots_per_request >= 1,
            f"slots_per_request={self.slots_per_request} must be at least 1",
            CapacityError,
        )

    @property
    def memory(self) -> RequestMemory:
        return self.cost.base

    @property
    def state_pool_bytes(self) -> int:
        return floor(self.budget_bytes * self.ratio / (1 + self.ratio))

    @property
    def mla_pool_bytes(self) -> int:
        return self.budget_bytes - self.state_pool_bytes

    @property
    def reserved_bytes(self) -> int:
        """Slots of a request beyond its running one: checkpoints and copy targets."""
        return (self.slots_per_request - 1) * self.cost.base.state_bytes_per_request

    @property
    def constant_bytes_per_request(self) -> int:
        """What a running request takes from the state pool."""
        return self.cost.total_bytes + self.reserved_bytes

    @property
    def state_roof(self) -> int:
        """Requests that the state pool admits, whatever their length."""
        return self.state_pool_bytes // self.constant_bytes_per_request

    @property
    def mla_pool_tokens(self) -> int:
        return self.mla_pool_bytes // self.memory.mla_bytes_per_token

    def mla_roof(self, mean_tokens: int) -> float:
        """Requests of this mean length whose MLA rows fit together."""
        _require_tokens(mean_tokens)
        return self.mla_pool_tokens / mean_tokens

    @property
    def knee_tokens(self) -> float:
        """Mean length at which both pools run out together; infinite when no state fits."""
        return self.mla_pool_tokens / self.state_roof if self.state_roof else float("inf")

    def max_requests(self, mean_tokens: int) -> int:
        return min(self.state_roof, floor(self.mla_roof(mean_tokens)))

    def verdict(self, mean_tokens: int) -> Verdict:
        mla = floor(self.mla_roof(mean_tokens))
        if min(self.state_roof, mla) == 0:
            return Verdict.NOTHING_FITS
        if self.state_roof == mla:
            return Verdict.BALANCED
        return Verdict.STATE if self.state_roof < mla else Verdict.MLA

    def idle_bytes(self, mean_tokens: int) -> int:
        """Bytes of both pools that stay empty when no further request is admitted."""
        used = self.max_requests(mean_tokens) * (
            self.constant_bytes_per_request + self.memory.kv_bytes(mean_tokens)
        )
        return self.budget_bytes - used

    def padding_bytes(self, mean_tokens: int) -> int:
        """Bytes that page rounding adds to one request: none, rows are counted singly."""
        _require_tokens(mean_tokens)
        return 0


@dataclass(frozen=True)
class BlockPool:
    """One pool of equal blocks, as vLLM's hybrid cache manager.

    A block spans one group of layers: ``block_tokens`` tokens of every MLA layer, or one state of
    as many KDA layers. The block is sized so that a page holds one KDA layer with its rollback
    record. Every request takes a fixed number of blocks per KDA group, whatever its length.

    Args:
        cost: the request's constant memory with its rollback scheme.
        budget_bytes: cache memory of one rank.
        quantum: the block is a multiple of this many tokens (vLLM MLA backends, mid-2026: 128).

    Raises:
        CapacityError: budget or quantum is not positive.
    """

    cost: RollbackCost
    budget_bytes: int
    quantum: int = 128

    def __post_init__(self) -> None:
        _require_budget(self.budget_bytes)
        require(self.quantum >= 1, f"quantum={self.quantum} must be at least 1", CapacityError)

    @property
    def memory(self) -> RequestMemory:
        return self.cost.base

    @property
    def page_need_bytes(self) -> int:
        """One KDA layer of a request: state, window with draft rows, and records."""
        return self.cost.drafted.kda_bytes_per_layer + self.cost.record_bytes_per_layer

    @property
    def block_tokens(self) -> int:
        row = self.memory.mla_bytes_per_token_layer
        return self.quantum * -(-self.page_need_bytes // (self.quantum * row))

    @property
    def layers_per_group(self) -> int:
        return self.memory.model.num_mla_layers

    @property
    def num_kda_groups(self) -> int:
        return -(-self.memory.model.num_kda_layers // self.layers_per_group)

    @property
    def block_bytes(self) -> int:
        return self.layers_per_group * self.block_tokens * self.memory.mla_bytes_per_token_layer

    @property
    def num_blocks(self) -> int:
        return self.budget_bytes // self.block_bytes

    @property
    def state_blocks_per_group(self) -> int:
        """1 + ns or 2 + ns where whole states are kept; 2 (running and aligned) with records."""
        return self.cost.num_slots if self._slots_hold_live else 2 + self.cost.num_slots

    @property
    def _slots_hold_live(self) -> bool:
        return self.cost.scheme.state_slots > 0 and self.cost.scheme.slots_hold_live

    @property
    def state_blocks_per_request(self) -> int:
        return self.num_kda_groups * self.state_blocks_per_group

    def blocks_per_request(self, num_tokens: int) -> int:
        _require_tokens(num_tokens)
        return -(-num_tokens // self.block_tokens) + self.state_blocks_per_request

    @property
    def state_roof(self) -> int:
        """Requests whose state blocks alone would fill the pool."""
        return self.num_blocks // self.state_blocks_per_request

    def mla_roof(self, mean_tokens: int) -> float:
        """Requests whose MLA blocks alone would fill the pool."""
        _require_tokens(mean_tokens)
        return self.num_blocks / -(-mean_tokens // self.block_tokens)

    @property
    def knee_tokens(self) -> float:
        """Length at which MLA blocks cost as much as state blocks."""
        return float(self.state_blocks_per_request * self.block_tokens)

    def concurrency(self, num_tokens: int) -> float:
        """Requests of this length that the pool holds, as vLLM prints it (a quotient)."""
        return self.num_blocks / self.blocks_per_request(num_tokens)

    def max_requests(self, mean_tokens: int) -> int:
        return self.num_blocks // self.blocks_per_request(mean_tokens)

    def verdict(self, mean_tokens: int) -> Verdict:
        if self.max_requests(mean_tokens) == 0:
            return Verdict.NOTHING_FITS
        mla = -(-mean_tokens // self.block_tokens)
        if mla == self.state_blocks_per_request:
            return Verdict.BALANCED
        return Verdict.STATE if self.state_blocks_per_request > mla else Verdict.MLA

    def idle_bytes(self, mean_tokens: int) -> int:
        """Bytes of blocks that no further request of this length can use."""
        used = self.max_requests(mean_tokens) * self.blocks_per_request(mean_tokens)
        return self.budget_bytes - used * self.block_bytes

    @property
    def reserved_bytes(self) -> int:
        """The aligned state that a scheme of records keeps beside the running one."""
        return 0 if self._slots_hold_live else self.memory.state_bytes_per_request

    def padding_bytes(self, mean_tokens: int) -> int:
        """Block bytes of one request that hold nothing of it."""
        held = self.blocks_per_request(mean_tokens) * self.block_bytes
        used = self.cost.total_bytes + self.reserved_bytes + self.memory.kv_bytes(mean_tokens)
        return held - used
