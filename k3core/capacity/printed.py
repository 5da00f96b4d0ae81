"""What an engine prints about its pool, from the pool's own counts; no model is needed.

`PrintedPool` takes the numbers that a log or a report states. None of its token counts is a
capacity: the newer one moves with the longest sequence although the memory stays, the older one
counts state groups as if they held tokens (vLLM #51041, #28228).
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.capacity import blocks
from k3core.capacity.block_pool import BlockPool
from k3core.errors import CapacityError, require, require_count


@dataclass(frozen=True)
class PrintedPool:
    """Counts of one pool of equal blocks.

    Args:
        num_blocks: blocks of the pool.
        limit: longest sequence in tokens (``max_model_len``).
        block_tokens: tokens of a block; 0 where all blocks of a request are in ``fixed_blocks``.
        fixed_blocks: blocks of a request beside those of its tokens: its states.
        groups: block groups, attention and states; a cached segment takes a block in each.
        running: requests in flight, each of the longest sequence.

    Raises:
        CapacityError: a count is no whole number in range, or a request takes no block.
    """

    num_blocks: int
    limit: int
    block_tokens: int = 0
    fixed_blocks: int = 0
    groups: int = 1
    running: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("num_blocks", 1), ("limit", 1), ("block_tokens", 0), ("fixed_blocks", 0),
            ("groups", 1), ("running", 0),
        ):  # fmt: skip
            require_count(name, getattr(self, name), least, 2**40, CapacityError)
        require(
            self.blocks_per_request >= 1,
            "block_tokens=0 and fixed_blocks=0: a request takes at least one block",
            CapacityError,
        )

    @classmethod
    def of(cls, pool: BlockPool, limit: int, running: int = 0) -> PrintedPool:
        """The counts of a planned pool for sequences of at most ``limit`` tokens."""
        plain = pool.groups.attention_groups == 1
        return cls(
            num_blocks=max(pool.num_blocks, 1),
            limit=limit,
            block_tokens=pool.block_tokens if plain else 0,
            fixed_blocks=pool.state_blocks_per_request if plain else pool.blocks_per_request(limit),
            groups=pool.groups.num_groups,
            running=running,
        )

    @property
    def blocks_per_request(self) -> int:
        """Blocks of a request of the longest sequence."""
        if not self.block_tokens:
            return self.fixed_blocks
        return blocks.request_blocks(self.limit, self.block_tokens, self.fixed_blocks)

    @property
    def concurrency(self) -> float:
        """ "Maximum concurrency" as vLLM prints it."""
        return blocks.printed_concurrency(self.num_blocks, self.blocks_per_request)

    @property
    def held_percent(self) -> float:
        """Share of the pool that one request of the longest sequence holds, in per cent."""
        return 100 / self.concurrency

    @property
    def tokens(self) -> int:
        """ "GPU KV cache size" of vLLM since 2026."""
        return blocks.printed_tokens(self.num_blocks, self.blocks_per_request, self.limit)

    @property
    def tokens_2025(self) -> int:
        """ "GPU KV cache size" of vLLM in 2025; 0 where the block is not given."""
        if not self.block_tokens:
            return 0
        return blocks.printed_tokens_2025(self.num_blocks, self.groups, self.block_tokens)

    @property
    def reusable_tokens(self) -> int:
        """Tokens of finished prefixes that stay beside the running requests; 0 as above."""
        if not self.block_tokens:
            return 0
        held = self.running * self.blocks_per_request
        return blocks.reusable_tokens(self.num_blocks, held, self.groups, self.block_tokens)
