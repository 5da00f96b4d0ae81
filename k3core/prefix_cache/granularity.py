"""Hit granularity: on which token positions prompts can resume, computed from a deployment.

Three units are kept apart, as Kimi K3 asks for (vLLM blog 2026-07-27): the physical block (a page
must hold one KDA layer's state), the match unit (a hash block, possibly finer than the page), and
the chunk ends of the scheduler (a state exists nowhere else).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from k3core.capacity.blocks import hit_tokens
from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.errors import CacheError, require, require_count, require_type
from k3core.prefix_cache.chunks import chunk_ends
from k3core.prefix_cache.retention import MAX_TOKENS, Retention


def common_block(*block_tokens: int) -> int:
    """Smallest block on which all of several block sizes have a boundary: 512 and 384 give 1,536.

    An engine that matches on it silently never hits a prompt that is shorter (vllm-ascend #16270);
    so a cache refuses such sizes and names this number.
    """
    for tokens in block_tokens:
        require_count("block_tokens", tokens, 1)
    return math.lcm(*block_tokens)


def require_multiple(physical_block_tokens: int, hash_block_tokens: int) -> int:
    """Hash blocks in a physical block.

    Raises:
        CacheError: the hash block does not divide the physical block; names the block that both
            have in common.
    """
    require_count("hash_block_tokens", hash_block_tokens, 1)
    require_count("physical_block_tokens", physical_block_tokens, 1)
    whole, rest = divmod(physical_block_tokens, hash_block_tokens)
    require(
        rest == 0,
        f"physical_block_tokens={physical_block_tokens} must be a multiple of hash_block_tokens="
        f"{hash_block_tokens}; both would agree only every "
        f"{common_block(physical_block_tokens, hash_block_tokens)} tokens",
        CacheError,
    )
    return whole


@dataclass(frozen=True)
class HitGranularity:
    """Where prompts resume on one deployment.

    Args:
        physical_block_tokens: tokens of a page of one MLA layer, context parallelism included.
        hash_block_tokens: tokens per hash block; 0 matches whole physical blocks only.
        dropped_blocks: matched blocks that a drafter gives up, in match units.
        max_batched_tokens: tokens of a prefill step; 0 is no limit.

    Raises:
        CacheError: the hash block does not divide the physical block.
        K3Error: a negative number.
    """

    physical_block_tokens: int
    hash_block_tokens: int = 0
    dropped_blocks: int = 0
    max_batched_tokens: int = 0

    def __post_init__(self) -> None:
        require_count("dropped_blocks", self.dropped_blocks)
        require_count("max_batched_tokens", self.max_batched_tokens)
        require_count("hash_block_tokens", self.hash_block_tokens)
        if self.hash_block_tokens:
            require_multiple(self.physical_block_tokens, self.hash_block_tokens)
        else:
            require_count("physical_block_tokens", self.physical_block_tokens, 1)

    @classmethod
    def of_model(
        cls,
        model: str = "kimi-k3",
        tp: int = 8,
        *,
        mla_dtype: str = "",
        state_dtype: str = "float32",
        draft_len: int = 0,
        context_parallel: int = 1,
        quantum: int = 128,
        hash_block_tokens: int = 0,
        drafter_drop: bool = False,
        max_batched_tokens: int = 0,
    ) -> HitGranularity:
        """The granularity of a published model.

        Args:
            model: a model's code, see ``k3core.capacity.presets``.
            tp: tensor-parallel degree; the state is divided by it, the MLA rows are not.
            mla_dtype: cache format; empty is the model's.
            state_dtype: format of the recurrent state.
            draft_len: drafts per step; each adds a row to the convolution window.
            context_parallel: ranks that share a request's MLA rows (DCP): a block of each.
            quantum: the page is a multiple of this: 128 in vLLM (MLA, mid-2026), 512 in the K3
                report (5.4.1).
            hash_block_tokens: match unit; 0 is the physical block.
            drafter_drop: a drafter drops the last matched block.
            max_batched_tokens: tokens of a prefill step; 0 is no limit.

        Raises:
            CapacityError: unknown model or impossible degree.
            CacheError: the hash block does not divide the physical block.
        """
        require_count("context_parallel", context_parallel, 1)
        require_type("drafter_drop", drafter_drop, bool)
        require_type("mla_dtype", mla_dtype, str)
        memory = RequestMemory(get_preset(model), tp, state_dtype, "bfloat16", mla_dtype, draft_len)
        return cls(
            memory.block_tokens(quantum) * context_parallel,
            hash_block_tokens,
            int(drafter_drop),
            max_batched_tokens,
        )

    @property
    def match_unit(self) -> int:
        """Tokens between the positions at which a prompt can resume."""
        return self.hash_block_tokens or self.physical_block_tokens

    @cached_property
    def units_per_page(self) -> int:
        return self.physical_block_tokens // self.match_unit

    def ceiling_tokens(self, num_tokens: int) -> int:
        """Deepest boundary that the last-token rule allows, ``(n - 1) // B * B``."""
        return hit_tokens(num_tokens, self.match_unit)

    def hit_tokens(self, num_tokens: int) -> int:
        """What a prompt, sent again, reuses when a state was kept at its replay boundary.

        ``max(0, ((n - 1) // B - d) * B)``: the rule behind the published hit lengths.
        """
        return hit_tokens(num_tokens, self.match_unit, self.dropped_blocks)

    def stop_boundaries(
        self, num_tokens: int, retention: Retention, junction_tokens: int = 0
    ) -> tuple[int, ...]:
        """Boundaries at which the rule wants a state."""
        require_type("retention", retention, Retention)
        return retention.stop_boundaries(
            num_tokens, self.match_unit, junction_tokens, self.dropped_blocks
        )

    def chunk_ends(
        self, num_tokens: int, retention: Retention, junction_tokens: int = 0, start: int = 0
    ) -> tuple[int, ...]:
        """Where the chunks of a prefill end."""
        require_type("retention", retention, Retention)
        require_count("num_tokens", num_tokens, 0, MAX_TOKENS)
        if require_count("start", start) >= num_tokens:
            return ()
        stops = self.stop_boundaries(num_tokens, retention, junction_tokens)
        if self.max_batched_tokens and retention.rule in ("dense", "interval"):
            # A budgeted scheduler writes a state per chunk, not per block: it stops only for the
            # replay boundary. What a chunk passes over leaves no state (vLLM, mode align).
            stops = Retention("replay").stop_boundaries(
                num_tokens, self.match_unit, 0, self.dropped_blocks
            )
        budget = self.max_batched_tokens or num_tokens
        if not retention.stops and not self.max_batched_tokens:
            return (num_tokens,)
        return chunk_ends(num_tokens, budget, self.physical_block_tokens, stops, start)

    def state_boundaries(
        self, num_tokens: int, retention: Retention, junction_tokens: int = 0, start: int = 0
    ) -> tuple[int, ...]:
        """Boundaries at which a served prompt leaves a state: kept by the rule, and a chunk end."""
        ends = self.chunk_ends(num_tokens, retention, junction_tokens, start)
        if retention.rule == "none":
            return ()
        stops = set(self.stop_boundaries(num_tokens, retention, junction_tokens))
        return tuple(at for at in ends if at % self.match_unit == 0 and retention.keeps(at, stops))
