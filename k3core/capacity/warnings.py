"""Faults that production teams have met and that a plan runs into, found from its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.blocks import LayerGroups
from k3core.capacity.planner import CapacityPlan
from k3core.capacity.pools import SplitPools
from k3core.capacity.profiles import STRATEGIES
from k3core.capacity.speculation import INFERA_74
from k3core.errors import CapacityError, require_type

_MUCH_PADDING = 0.05


@dataclass(frozen=True)
class PlanWarning:
    """One known fault.

    Attributes:
        code: ``mean-above-limit``, ``short-prompt``, ``drafter-pads``, ``page-padding``,
            ``reserved-slots``, ``latent-copies``, ``printed-tokens``, ``drafts-under-load``,
            ``rounded-records``, ``fixed-cost`` or ``checkpoint-per-block``.
        values: numbers of this plan that the words need.
        source: where the fault was reported.
    """

    code: str
    values: dict[str, float]
    source: str


def find_warnings(planned: CapacityPlan) -> tuple[PlanWarning, ...]:
    """Known faults of a plan, the ones that cost most first."""
    require_type("planned", planned, CapacityPlan, CapacityError)
    found: list[PlanWarning] = []
    blocks, memory, deployment = planned.blocks, planned.memory, planned.deployment
    if planned.mean_tokens > deployment.context:
        found.append(
            PlanWarning(
                "mean-above-limit",
                {"tokens": planned.mean_tokens, "limit": deployment.context},
                "vLLM max_model_len, SGLang context-length",
            )
        )
    if isinstance(planned.pool, BlockPool):
        found += _block_warnings(planned)
    else:
        found += _slot_warnings(planned.pool)
    if memory.model.is_mla and memory.tp > 1:
        found.append(
            PlanWarning(
                "latent-copies",
                {"tp": memory.tp, "bytes": memory.kv_bytes(planned.mean_tokens) * (memory.tp - 1)},
                "vLLM and SGLang: the latent has one head",
            )
        )
    if deployment.drafts and planned.max_requests >= INFERA_74.break_even:
        found.append(
            PlanWarning(
                "drafts-under-load",
                {"requests": planned.max_requests, "even": INFERA_74.break_even},
                "Infera #74; ATOM #2131 turns drafting off from 32 requests",
            )
        )
    if deployment.drafts and planned.cost.scheme.rounded:
        found.append(
            PlanWarning("rounded-records", {"rows": planned.cost.num_rows}, "FlashInfer #4864")
        )
    share = memory.checkpoint_share(blocks.block_tokens)
    if share > 0.5:
        found.append(
            PlanWarning(
                "checkpoint-per-block",
                {"share": share, "block": blocks.block_tokens},
                "K3 report 5.4.1: intermediate checkpoints are recycled",
            )
        )
    return tuple(found)


def _block_warnings(planned: CapacityPlan) -> list[PlanWarning]:
    pool, mean = planned.blocks, planned.mean_tokens
    found = []
    if mean <= pool.block_tokens:
        found.append(
            PlanWarning(
                "short-prompt", {"tokens": mean, "block": pool.block_tokens},
                "vLLM #54458: prompts below one block never hit",
            )
        )  # fmt: skip
    fixed = pool.state_blocks_per_request
    if fixed > pool.token_blocks(mean):
        found.append(
            PlanWarning(
                "fixed-cost",
                {"blocks": fixed, "tokens": fixed * pool.block_tokens, "mean": mean},
                "vLLM #54458; GLM-EXL3 #122",
            )
        )
    model, layers = planned.model, planned.memory.drafter_layers
    bare = LayerGroups(model.num_mla_layers, model.num_kda_layers)
    if layers and pool.groups.padding_share > bare.padding_share:
        found.append(
            PlanWarning(
                "drafter-pads",
                {
                    "layers": layers,
                    "before": bare.padding_share,
                    "after": pool.groups.padding_share,
                },
                "vLLM Ascend #14314, #14765",
            )
        )
    if pool.page_padding > _MUCH_PADDING:
        found.append(
            PlanWarning(
                "page-padding",
                {
                    "share": pool.page_padding,
                    "block": pool.block_tokens,
                    "need": pool.page_need_bytes,
                },
                "vLLM boot log of a GB300: 8.68 %",
            )
        )
    found.append(
        PlanWarning(
            "printed-tokens",
            {
                "printed": pool.printed_tokens(planned.deployment.context),
                "held": planned.max_requests * mean,
            },
            "vLLM #51041, #51163",
        )
    )
    return found


def _slot_warnings(pool: SplitPools) -> list[PlanWarning]:
    held = next((s for s in STRATEGIES.values() if s.reserved == pool.slots_per_request), None)
    if held is None or not held.unreachable_share:
        return []
    return [
        PlanWarning(
            "reserved-slots",
            {
                "reserved": held.reserved,
                "held": held.held,
                "bytes": pool.state_pool_bytes * held.unreachable_share,
            },
            held.source,
        )
    ]
