"""How many requests fit in one pool of equal blocks, as vLLM's hybrid cache manager cuts memory.

A block spans one group of layers: ``block_tokens`` tokens of every attention layer, or one state
of as many KDA layers. Every request takes a fixed number of blocks per state group, whatever its
length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from k3core.capacity import blocks
from k3core.capacity.blocks import LayerGroups
from k3core.capacity.memory import MAX_COUNT, RequestMemory
from k3core.capacity.pools import Verdict, capped, require_budget, require_tokens
from k3core.capacity.rollback import RollbackCost
from k3core.errors import CapacityError, require_count, require_type


@dataclass(frozen=True)
class BlockPool:
    """One pool of equal blocks.

    Args:
        cost: the request's constant memory with its rollback scheme.
        budget_bytes: cache memory of one rank.
        quantum: the block is a multiple of this many tokens (vLLM MLA backends, mid-2026: 128).
        fixed_block: tokens of a block where an engine fixes them; 0 follows the page rule.
        state_blocks: blocks per state group and request; 0 follows the scheme: 1 + ns or 2 + ns
            where whole states are kept, 2 (running and aligned) with records.
        max_running: the engine's own cap on running requests, 0 for none.

    Raises:
        CapacityError: budget or quantum is not positive, or another argument is negative.
    """

    cost: RollbackCost
    budget_bytes: int
    quantum: int = 128
    fixed_block: int = 0
    state_blocks: int = 0
    max_running: int = 0

    def __post_init__(self) -> None:
        require_type("cost", self.cost, RollbackCost, CapacityError)
        require_budget(self.budget_bytes)
        require_count("quantum", self.quantum, 1, MAX_COUNT, CapacityError)
        for name in ("fixed_block", "state_blocks", "max_running"):
            require_count(name, getattr(self, name), 0, MAX_COUNT, CapacityError)

    @classmethod
    def of_blocks(cls, cost: RollbackCost, num_blocks: int, **rule: int) -> BlockPool:
        """A pool of exactly ``num_blocks`` blocks; ``rule`` as in the constructor."""
        require_count("num_blocks", num_blocks, 1, None, CapacityError)
        one = cls(cost, 1, **rule)
        return cls(cost, num_blocks * one.block_bytes, **rule)

    @property
    def memory(self) -> RequestMemory:
        return self.cost.base

    @property
    def page_need_bytes(self) -> int:
        """One KDA layer of a request: state, window with draft rows, and records kept there."""
        need = self.cost.drafted.kda_bytes_per_layer
        if self.cost.scheme.record_in_page:
            need += self.cost.record_bytes_per_layer
        return need

    @cached_property
    def block_tokens(self) -> int:
        row = self.memory.mla_bytes_per_token_layer
        return self.fixed_block or blocks.aligned_block(self.page_need_bytes, row, self.quantum)

    @property
    def page_bytes(self) -> int:
        """One block of one attention layer."""
        return self.block_tokens * self.memory.mla_bytes_per_token_layer

    @property
    def page_padding(self) -> float:
        """Padding of the state page as vLLM logs it."""
        row = self.memory.mla_bytes_per_token_layer
        return blocks.page_padding(self.block_tokens, row, self.page_need_bytes)

    @cached_property
    def groups(self) -> LayerGroups:
        model = self.memory.model
        return LayerGroups(model.num_mla_layers + self.memory.drafter_layers, model.num_kda_layers)

    @property
    def layers_per_group(self) -> int:
        return self.groups.width

    @property
    def num_kda_groups(self) -> int:
        return self.groups.state_groups

    @cached_property
    def block_bytes(self) -> int:
        """All layers of a group; the drafter's planes may have another format."""
        extra = self.memory.drafter_bytes_per_token_layer - self.memory.mla_bytes_per_token_layer
        drafter = min(self.memory.drafter_layers, self.layers_per_group)
        return self.layers_per_group * self.page_bytes + drafter * self.block_tokens * extra

    @property
    def bytes_per_token(self) -> int:
        """One token in every layer of an attention group."""
        return self.block_bytes // self.block_tokens

    @cached_property
    def num_blocks(self) -> int:
        return self.budget_bytes // self.block_bytes

    @property
    def pool_rows(self) -> int:
        """Token rows of one layer's plane over the whole pool: its leading dimension."""
        return self.num_blocks * self.block_tokens

    @property
    def state_entry_bytes(self) -> int:
        """One state of all KDA layers, each padded to a page."""
        return self.memory.model.num_kda_layers * self.page_bytes

    @property
    def group_fill(self) -> float:
        """Share of a block that the states (with window, without drafts) of one group fill."""
        states = max(self.groups.sizes[self.groups.attention_groups :])
        return states * self.memory.kda_bytes_per_layer / self.block_bytes

    @property
    def state_blocks_per_group(self) -> int:
        if self.state_blocks:
            return self.state_blocks
        return self.cost.num_slots if self._slots_hold_live else 2 + self.cost.num_slots

    @property
    def _slots_hold_live(self) -> bool:
        return self.cost.scheme.state_slots > 0 and self.cost.scheme.slots_hold_live

    @property
    def state_blocks_per_request(self) -> int:
        return self.num_kda_groups * self.state_blocks_per_group

    def token_blocks(self, num_tokens: int) -> int:
        """Blocks of the tokens alone, over all attention groups."""
        require_tokens(num_tokens)
        return self.groups.attention_groups * -(-num_tokens // self.block_tokens)

    def blocks_per_request(self, num_tokens: int) -> int:
        return self.token_blocks(num_tokens) + self.state_blocks_per_request

    def request_bytes(self, num_tokens: int) -> int:
        """Blocks of a request, and records that lie beside the pool."""
        return self.blocks_per_request(num_tokens) * self.block_bytes + self.cost.beside_bytes

    @property
    def state_roof(self) -> int:
        """Requests whose state blocks alone would fill the pool; no limit of its own."""
        return self.num_blocks // self.state_blocks_per_request

    def mla_roof(self, mean_tokens: int) -> float:
        """Requests whose token blocks alone would fill the pool; no limit of its own."""
        return self.num_blocks / self.token_blocks(mean_tokens)

    @property
    def knee_tokens(self) -> float:
        """Length at which token blocks cost as much as state blocks."""
        per_block = self.block_tokens / self.groups.attention_groups
        return self.state_blocks_per_request * per_block

    def concurrency(self, num_tokens: int) -> float:
        """Requests of this length that the pool holds, as vLLM prints it (a quotient)."""
        return blocks.printed_concurrency(self.num_blocks, self.blocks_per_request(num_tokens))

    def printed_tokens(self, max_model_len: int) -> int:
        """ "GPU KV cache size" of vLLM since 2026; not a capacity."""
        each = self.blocks_per_request(max_model_len)
        return blocks.printed_tokens(self.num_blocks, each, max_model_len)

    @property
    def printed_tokens_2025(self) -> int:
        """ "GPU KV cache size" of vLLM in 2025; not a capacity either."""
        return blocks.printed_tokens_2025(
            self.num_blocks, self.groups.num_groups, self.block_tokens
        )

    def reusable_tokens(self, num_running: int, num_tokens: int) -> int:
        """Tokens of finished prefixes that stay reusable beside running requests.

        A cached segment takes a block in each attention group and one state per state group.
        """
        held = num_running * self.blocks_per_request(num_tokens)
        segment = self.groups.num_groups
        return blocks.reusable_tokens(self.num_blocks, held, segment, self.block_tokens)

    @property
    def longest_context(self) -> int:
        """Largest sequence limit with which the engine starts: one such request must fit.

        Records that lie beside the pool take their part of the memory first.
        """
        held = max(self.budget_bytes - self.cost.beside_bytes, 0) // self.block_bytes
        free = held - self.state_blocks_per_request
        return max(free, 0) // self.groups.attention_groups * self.block_tokens

    def roof(self, mean_tokens: int) -> float:
        """Requests of this length that the pool holds, as a quotient: all demands added up."""
        by_bytes = self.budget_bytes / self.request_bytes(mean_tokens)
        return min(by_bytes, self.num_blocks / self.blocks_per_request(mean_tokens))

    def _fitting(self, mean_tokens: int) -> int:
        return self.budget_bytes // self.request_bytes(mean_tokens)

    def max_requests(self, mean_tokens: int) -> int:
        return capped(self._fitting(mean_tokens), self.max_running)

    def verdict(self, mean_tokens: int) -> Verdict:
        """What is met first: states and tokens share the pool, so neither has a limit alone."""
        fitting = self._fitting(mean_tokens)
        if fitting == 0:
            return Verdict.NOTHING_FITS
        return Verdict.CAP if 0 < self.max_running < fitting else Verdict.POOL

    def idle_bytes(self, mean_tokens: int) -> int:
        """Bytes that no further request of this length can use."""
        return self.budget_bytes - self.max_requests(mean_tokens) * self.request_bytes(mean_tokens)

    @property
    def reserved_bytes(self) -> int:
        """The aligned state that a scheme of records keeps beside the running one."""
        return 0 if self._slots_hold_live else self.memory.state_bytes_per_request

    def padding_bytes(self, mean_tokens: int) -> int:
        """Bytes of one request's blocks that hold nothing of it."""
        used = self.cost.total_bytes + self.reserved_bytes + self.memory.kv_bytes(mean_tokens)
        return self.request_bytes(mean_tokens) - used


def concurrency_gain(before: BlockPool, after: BlockPool, num_tokens: int) -> float:
    """Relative change of the printed concurrency when one pool rule replaces another."""
    require_type("before", before, BlockPool, CapacityError)
    require_type("after", after, BlockPool, CapacityError)
    return after.concurrency(num_tokens) / before.concurrency(num_tokens) - 1
