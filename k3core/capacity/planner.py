"""The planner in one call: from a deployment to bytes, blocks, roofs, and back from a target.

`plan` costs well under a millisecond, so sweeps and sliders may call it freely. Everything it
returns is per rank of one tensor-parallel group and carries the defaults that made it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.memory import MAX_COUNT, RequestMemory
from k3core.capacity.pools import GIB, MAX_RATIO, SplitPools, Verdict
from k3core.capacity.presets import ModelPreset, get_preset
from k3core.capacity.profiles import EngineProfile, get_profile
from k3core.capacity.rollback import RollbackCost, rollback_cost
from k3core.errors import (
    CapacityError,
    require,
    require_count,
    require_number,
    require_type,
    shown,
)

Pool = SplitPools | BlockPool


MAX_BUDGET_GIB = 1_048_576  # 1 PiB on one rank
MAX_CONTEXT = 2**40


@dataclass(frozen=True)
class Deployment:
    """What a person decides; the defaults are a published way to serve Kimi K3.

    Args:
        model: code of a model, or ``custom`` with ``preset``.
        tp: tensor-parallel degree; 0 takes 8, or the largest common degree that fits.
        context: longest sequence in tokens.
        mean_tokens: mean length of a running request; 0 takes ``context``.
        drafts: drafted tokens per step.
        rollback: code of a scheme.
        budget_gib: cache memory of one rank in GiB.
        state_dtype, conv_dtype, mla_dtype: formats; an empty ``mla_dtype`` is the model's own.
        drafter_layers: attention layers of the drafter.
        drafter_dtype: format of its cache; an empty string is that of the model's cache.
        pool_rule: ``blocks`` (vLLM) or ``split`` (SGLang).
        quantum: block quantum of ``blocks``.
        state_blocks: blocks per state group and request of ``blocks``; 0 follows the scheme.
        state_pool_ratio, slots_per_request: of ``split``.
        max_running: cap of the engine on running requests, 0 for none.
        preset: a model of your own, for example from a ``config.json``.
    """

    model: str = "kimi-k3"
    tp: int = 0
    context: int = 131_072
    mean_tokens: int = 0
    drafts: int = 7
    rollback: str = "raw-inputs"
    budget_gib: float = 46.48
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    mla_dtype: str = ""
    drafter_layers: int = 0
    drafter_dtype: str = ""
    pool_rule: str = "blocks"
    quantum: int = 128
    state_blocks: int = 0
    state_pool_ratio: float = 0.9
    slots_per_request: int = 5
    max_running: int = 0
    preset: ModelPreset | None = None


_INPUTS = tuple(field.name for field in fields(Deployment) if field.name != "preset")


@dataclass(frozen=True)
class Roof:
    """One limit on the requests in flight.

    Attributes:
        code: ``state-slots`` or ``mla-cache`` of two pools, ``one-pool`` where the demands of
            states and tokens add up, or ``engine-cap``.
        requests: how many it admits at the mean length.
        slack: how many more it would admit than the lowest roof; 0 for the binding one.
    """

    code: str
    requests: float
    slack: float


@dataclass(frozen=True)
class CapacityPlan:
    """A deployment with everything that follows from it."""

    deployment: Deployment
    model: ModelPreset
    memory: RequestMemory
    cost: RollbackCost
    pool: Pool
    blocks: BlockPool
    profile: EngineProfile
    mean_tokens: int

    @property
    def max_requests(self) -> int:
        """Whole requests of the mean length that fit."""
        return self.pool.max_requests(self.mean_tokens)

    @property
    def max_concurrency(self) -> float:
        """Requests of the longest sequence, as a quotient: what the engine prints."""
        if isinstance(self.pool, BlockPool):
            return self.pool.concurrency(self.deployment.context)
        return float(self.pool.max_requests(self.deployment.context))

    @property
    def verdict(self) -> Verdict:
        return self.pool.verdict(self.mean_tokens)

    @property
    def roofs(self) -> tuple[Roof, ...]:
        """Every limit at the mean length, the binding one first."""
        if isinstance(self.pool, BlockPool):
            limits = {Verdict.POOL.value: self.pool.roof(self.mean_tokens)}
        else:
            limits = {
                Verdict.STATE.value: float(self.pool.state_roof),
                Verdict.MLA.value: self.pool.mla_roof(self.mean_tokens),
            }
        if self.deployment.max_running:
            limits[Verdict.CAP.value] = float(self.deployment.max_running)
        lowest = min(limits.values())
        found = [Roof(code, value, value - lowest) for code, value in limits.items()]
        return tuple(sorted(found, key=lambda roof: roof.requests))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON and the command line: results first, then what made them."""
        deployment, block = self.deployment, self.blocks
        context = deployment.context
        result: dict[str, Any] = {
            "state_bytes_per_layer": self.memory.state_bytes_per_layer,
            "conv_bytes_per_layer": self.memory.conv_bytes_per_layer,
            "state_bytes_per_request": self.memory.state_bytes_per_request,
            "mla_bytes_per_token": self.memory.mla_bytes_per_token,
            "drafter_bytes_per_token": self.memory.drafter_bytes_per_token,
            "indexer_bytes_per_token": round(self.memory.indexer_bytes_per_token, 2),
            "rollback_bytes_per_request": self.cost.scheme_bytes,
            "rollback_buffer_bytes_per_request": self.cost.buffer_bytes,
            "rollback_draft_rows_bytes_per_request": self.cost.scheme_bytes
            - self.cost.buffer_bytes,
            "rollback_added_bytes_per_request": self.cost.extra_bytes,
            "block_tokens": block.block_tokens,
            "block_bytes": block.block_bytes,
            "layer_groups": list(block.groups.sizes),
            "state_blocks_per_request": block.state_blocks_per_request,
            "blocks_per_request": block.blocks_per_request(context),
            "num_blocks": block.num_blocks,
            "max_concurrency": round(self.max_concurrency, 4),
            "max_requests": self.max_requests,
            "page_padding": round(block.page_padding, 6),
            "reusable_prefix_tokens": block.reusable_tokens(
                block.max_requests(self.mean_tokens), self.mean_tokens
            ),
            "longest_context": block.longest_context,
            "checkpoint_share_per_block": round(
                self.memory.checkpoint_share(block.block_tokens), 6
            ),
            "transfer_bytes_per_request": self.memory.transfer_bytes(self.mean_tokens),
            "context_parallel_bytes_per_layer": self.memory.context_parallel_bytes_per_layer,
            "rollback_step_bytes": round(self.cost.step_traffic(1 + deployment.drafts // 2).total),
            "printed_tokens": block.printed_tokens(context),
            "printed_tokens_2025": block.printed_tokens_2025,
            "break_even_tokens": self.memory.break_even_tokens,
            "verdict": self.verdict.value,
            "roofs": {roof.code: round(roof.requests, 2) for roof in self.roofs},
        }
        inputs = {name: getattr(deployment, name) for name in _INPUTS}
        inputs |= {
            "model": self.model.code,
            "tp": self.memory.tp,
            "mla_dtype": self.memory.mla_dtype,
            "drafter_dtype": self.memory.drafter_dtype,
            "mean_tokens": self.mean_tokens,
            "conv_rows": self.memory.conv_rows,
        }
        profile = {
            "engine": self.profile.engine,
            "version": self.profile.version,
            "date": self.profile.date,
            "source": self.profile.source,
        }
        return {**result, "per": "rank", "inputs": inputs, "engine_rule": profile}


def plan(deployment: Deployment) -> CapacityPlan:
    """Everything that follows from a deployment.

    Raises:
        CapacityError: heads not divisible, no budget, a context below one block, or another value
            out of range; the message names the remedy.
    """
    d = require_type("deployment", deployment, Deployment, CapacityError)
    preset = d.preset or get_preset(d.model)
    require_type("preset", preset, ModelPreset, CapacityError)
    profile = get_profile(d.pool_rule)
    _check_numbers(d)
    tp = preset.default_tp if d.tp == 0 else d.tp
    memory = RequestMemory(
        preset, tp, d.state_dtype, d.conv_dtype, d.mla_dtype,
        drafter_layers=d.drafter_layers, drafter_dtype=d.drafter_dtype,
    )  # fmt: skip
    cost = rollback_cost(memory, d.rollback, d.drafts)
    budget = math.floor(d.budget_gib * GIB)
    require(budget >= 1, f"budget_gib={d.budget_gib} is less than one byte", CapacityError)
    block_pool = BlockPool(
        cost, budget, d.quantum, state_blocks=d.state_blocks, max_running=d.max_running
    )
    require(
        d.pool_rule != "blocks" or d.context >= block_pool.block_tokens,
        f"context={d.context} is below one block of {block_pool.block_tokens} tokens: no prefix of "
        f"it could ever be reused; use a context of at least {block_pool.block_tokens}, more "
        "ranks, or a narrower state",
        CapacityError,
    )
    mean = d.mean_tokens or d.context
    pool: Pool = block_pool
    if d.pool_rule == "split":
        pool = SplitPools(cost, budget, d.state_pool_ratio, d.slots_per_request, d.max_running)
    return CapacityPlan(d, preset, memory, cost, pool, block_pool, profile, mean)


def _check_numbers(d: Deployment) -> None:
    """Refuse what is no size, before anything is computed of it."""
    number = d.budget_gib
    good = isinstance(number, int | float) and not isinstance(number, bool)
    require(
        good and 0 < number <= MAX_BUDGET_GIB,
        f"budget_gib={shown(number)} must be above 0 and at most {MAX_BUDGET_GIB:,}: give the rank "
        "its cache memory in GiB",
        CapacityError,
    )
    require_count("context", d.context, 1, MAX_CONTEXT, CapacityError)
    require_count("mean_tokens", d.mean_tokens, 0, MAX_CONTEXT, CapacityError)
    require_number(
        "state_pool_ratio", d.state_pool_ratio, above=0, most=MAX_RATIO, error=CapacityError
    )
    for name, least in (
        ("quantum", 1),
        ("slots_per_request", 1),
        ("state_blocks", 0),
        ("max_running", 0),
        ("drafts", 0),
    ):
        require_count(name, getattr(d, name), least, MAX_COUNT, CapacityError)


@dataclass(frozen=True)
class Target:
    """What a target concurrency needs of one rank: the inverse of a plan.

    Attributes:
        requests: requests in flight that were asked for.
        mean_tokens: their mean length.
        state_slots: slots of the state pool (``max_mamba_cache_size``).
        state_bytes: bytes that states, reserved slots and rollback need.
        mla_bytes: bytes that the growing caches need.
        pool_ratio: state pool over MLA pool that wastes neither.
        budget_bytes: cache memory needed with static pools of that ratio.
        num_blocks: blocks needed in one pool of equal blocks.
        block_budget_bytes: their bytes, with records beside the pool.
        longest_context: largest sequence limit with which such a pool starts.
        fits: whether the plan's own budget holds the target under its pool rule.
    """

    requests: int
    mean_tokens: int
    state_slots: int
    state_bytes: int
    mla_bytes: int
    pool_ratio: float
    budget_bytes: int
    num_blocks: int
    block_budget_bytes: int
    longest_context: int
    fits: bool


def inverse(planned: CapacityPlan, requests: int, mean_tokens: int = 0) -> Target:
    """What it takes to hold ``requests`` of the mean length at once.

    Raises:
        CapacityError: ``requests`` is below 1.
    """
    require_type("planned", planned, CapacityPlan, CapacityError)
    require_count("requests", requests, 1, MAX_COUNT, CapacityError)
    require_count("mean_tokens", mean_tokens, 0, MAX_CONTEXT, CapacityError)
    mean = mean_tokens or planned.mean_tokens
    slots = planned.deployment.slots_per_request
    constant = planned.cost.total_bytes + (slots - 1) * planned.memory.state_bytes_per_request
    state_bytes = requests * constant
    mla_bytes = requests * planned.memory.kv_bytes(mean)
    pool = planned.blocks
    num_blocks = requests * pool.blocks_per_request(mean)
    needed = num_blocks * pool.block_bytes + requests * planned.cost.beside_bytes
    return Target(
        requests=requests,
        mean_tokens=mean,
        state_slots=requests * slots,
        state_bytes=state_bytes,
        mla_bytes=mla_bytes,
        pool_ratio=state_bytes / mla_bytes,
        budget_bytes=state_bytes + mla_bytes,
        num_blocks=num_blocks,
        block_budget_bytes=needed,
        longest_context=pool.longest_context,
        fits=planned.pool.max_requests(mean) >= requests,
    )
