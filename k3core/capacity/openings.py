"""What a published value is computed from: a plan, a prompt on the token grid, or a printed pool.

An opening holds the inputs; ``open`` computes what a scene of the planner shows for them, and a
record reads its value there. Page, command line and tests go through the same two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from k3core.capacity import blocks
from k3core.capacity.block_pool import BlockPool
from k3core.capacity.grid import TokenGrid, serving_grid
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import CapacityPlan, Deployment, Pool, plan
from k3core.capacity.printed import PrintedPool
from k3core.capacity.rollback import RollbackCost


class PlanView(NamedTuple):
    """A plan, a number of requests to count for, and the plan that it is compared with."""

    planned: CapacityPlan
    requests: int
    before: CapacityPlan | None = None

    @property
    def memory(self) -> RequestMemory:
        return self.planned.memory

    @property
    def cost(self) -> RollbackCost:
        return self.planned.cost

    @property
    def pool(self) -> Pool:
        return self.planned.pool

    @property
    def blocks(self) -> BlockPool:
        return self.planned.blocks


class GridView(NamedTuple):
    """A prompt on a token grid, sent again ``repeats`` times."""

    grid: TokenGrid
    prompt_tokens: int
    repeats: int = 1

    @property
    def hit(self) -> int:
        """Tokens that one repetition reuses."""
        return self.grid.hit(self.prompt_tokens)

    @property
    def spared(self) -> int:
        """Tokens that all repetitions reuse together."""
        return blocks.reused_tokens(self.repeats, self.hit)

    @property
    def whole_tokens(self) -> int:
        """Tokens up to the last boundary of the prompt: where a chunk of its prefill ends."""
        return blocks.aligned_tokens(self.prompt_tokens, self.grid.effective)

    @property
    def whole_blocks(self) -> int:
        return self.whole_tokens // self.grid.effective

    @property
    def rest_tokens(self) -> int:
        return self.prompt_tokens - self.whole_tokens


@dataclass(frozen=True)
class PlanOpening:
    """The planner with a deployment.

    Args:
        deployment: its inputs.
        requests: requests (or slots, or rows) that the value counts for.
        before: a second deployment that the first is compared with.
    """

    deployment: Deployment
    requests: int = 64
    before: Deployment | None = None

    def open(self) -> PlanView:
        before = None if self.before is None else plan(self.before)
        return PlanView(plan(self.deployment), self.requests, before)


@dataclass(frozen=True)
class GridOpening:
    """The token grid with a prompt.

    Args:
        deployment: whose block the grid takes where ``block_tokens`` is 0.
        prompt_tokens: tokens of the prompt.
        hash_tokens: hash block.
        block_tokens: physical block of the report, or 0.
        dropped_blocks: blocks that a drafter gives up.
        repeats: how often the prompt is sent again.
    """

    deployment: Deployment
    prompt_tokens: int
    hash_tokens: int = 16
    block_tokens: int = 0
    dropped_blocks: int = 0
    repeats: int = 1

    def open(self) -> GridView:
        block = self.block_tokens or plan(self.deployment).blocks.block_tokens
        grid = serving_grid(block, self.hash_tokens, dropped_blocks=self.dropped_blocks)
        return GridView(grid, self.prompt_tokens, self.repeats)


@dataclass(frozen=True)
class PrintedOpening:
    """The printed numbers of a pool whose counts a report states."""

    pool: PrintedPool

    def open(self) -> PrintedPool:
        return self.pool


Opening = PlanOpening | GridOpening | PrintedOpening
