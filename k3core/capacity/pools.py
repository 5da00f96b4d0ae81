"""How many requests fit when a rank's cache memory is cut into two static pools (SGLang).

`BlockPool` in `k3core.capacity.block_pool` is the other way: one pool of equal blocks (vLLM).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import floor

from k3core.capacity.memory import MAX_COUNT, RequestMemory
from k3core.capacity.rollback import RollbackCost
from k3core.errors import CapacityError, require_count, require_number, require_type

GIB = 2**30
MAX_RATIO = 1e6


class Verdict(StrEnum):
    """Which limit a deployment meets first."""

    STATE = "state-slots"
    MLA = "mla-cache"
    POOL = "one-pool"
    CAP = "engine-cap"
    BALANCED = "balanced"
    NOTHING_FITS = "nothing-fits"


def require_budget(budget_bytes: int) -> None:
    require_count("budget_bytes", budget_bytes, 1, None, CapacityError)


def require_tokens(num_tokens: int) -> None:
    require_count("num_tokens", num_tokens, 1, None, CapacityError)


def capped(requests: int, max_running: int) -> int:
    """``requests``, or the engine's cap where that is lower; a cap of 0 is none."""
    return min(requests, max_running) if max_running else requests


@dataclass(frozen=True)
class SplitPools:
    """A static ratio of state pool to MLA pool, as SGLang's ``--mamba-full-memory-ratio``.

    Args:
        cost: the request's constant memory with its rollback scheme.
        budget_bytes: cache memory of one rank.
        ratio: state pool divided by MLA pool (SGLang default for K3: 0.9).
        slots_per_request: state slots reserved for each running request: 1 without prefix
            cache, 3 with it, 4 or 5 with extra buffers (SGLang K3 cookbook, mid-2026).
        max_running: the engine's own cap on running requests, 0 for none.

    Raises:
        CapacityError: budget, ratio or slots are not positive.
    """

    cost: RollbackCost
    budget_bytes: int
    ratio: float = 0.9
    slots_per_request: int = 5
    max_running: int = 0

    def __post_init__(self) -> None:
        require_type("cost", self.cost, RollbackCost, CapacityError)
        require_budget(self.budget_bytes)
        require_number("ratio", self.ratio, above=0, most=MAX_RATIO, error=CapacityError)
        require_count("slots_per_request", self.slots_per_request, 1, MAX_COUNT, CapacityError)
        require_count("max_running", self.max_running, 0, MAX_COUNT, CapacityError)

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
    def num_slots(self) -> int:
        """State slots of the pool, as the boot log's ``max_mamba_cache_size``."""
        return self.state_pool_bytes // self.cost.base.state_bytes_per_request

    @property
    def mla_pool_tokens(self) -> int:
        return self.mla_pool_bytes // self.memory.cache_bytes_per_token

    @property
    def balance_tokens(self) -> float:
        """Mean length at which both pools would run out together with slots counted in parts."""
        per_token = self.ratio * self.memory.cache_bytes_per_token
        return self.constant_bytes_per_request / per_token

    def best_ratio(self, mean_tokens: int) -> float:
        """State pool over MLA pool at which requests of this mean length fill both alike."""
        require_tokens(mean_tokens)
        ratio = self.constant_bytes_per_request / self.memory.kv_bytes(mean_tokens)
        return min(ratio, MAX_RATIO)

    def mla_roof(self, mean_tokens: int) -> float:
        """Requests of this mean length whose MLA rows fit together."""
        require_tokens(mean_tokens)
        return self.mla_pool_tokens / mean_tokens

    @property
    def knee_tokens(self) -> float:
        """Mean length at which both pools run out together; infinite when no state fits."""
        return self.mla_pool_tokens / self.state_roof if self.state_roof else float("inf")

    def max_requests(self, mean_tokens: int) -> int:
        return capped(min(self.state_roof, floor(self.mla_roof(mean_tokens))), self.max_running)

    def verdict(self, mean_tokens: int) -> Verdict:
        mla = floor(self.mla_roof(mean_tokens))
        if min(self.state_roof, mla) == 0:
            return Verdict.NOTHING_FITS
        if 0 < self.max_running < min(self.state_roof, mla):
            return Verdict.CAP
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
        require_tokens(mean_tokens)
        return 0
