"""Arguments of a wrong type are bad input like any other: K3Error, whatever the argument."""

import math

import pytest

from k3core.capacity import blocks, printed, saved_plan, speculation
from k3core.capacity.block_pool import BlockPool, concurrency_gain
from k3core.capacity.blocks import LayerGroups
from k3core.capacity.bootlog import read_log
from k3core.capacity.configs import check_layers, parse_config
from k3core.capacity.grid import GridUnit, TokenGrid, serving_grid
from k3core.capacity.hybrids import layer_ids
from k3core.capacity.kda_models import KIMI_K3
from k3core.capacity.lab_stack import StackSizes
from k3core.capacity.logsolve import solve
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment, inverse, plan
from k3core.capacity.pools import SplitPools
from k3core.capacity.presets import get_preset
from k3core.capacity.profiles import get_profile
from k3core.capacity.rollback import rollback_cost
from k3core.capacity.schemes import get_scheme
from k3core.capacity.warnings import find_warnings
from k3core.errors import K3Error

MEMORY = RequestMemory(KIMI_K3)
COST = rollback_cost(MEMORY, "raw-inputs", 3)
PLANNED = plan(Deployment(drafts=0))
POOL = BlockPool(COST, 2**30)
WORDS = ("model", "rollback", "pool_rule", "state_dtype", "conv_dtype", "mla_dtype")


def deployment(**changes):
    return plan(Deployment(**({"tp": 8} | changes)))


def preset(**changes):
    return type(KIMI_K3)(
        **({f: getattr(KIMI_K3, f) for f in KIMI_K3.__dataclass_fields__} | changes)
    )


CALLS = {
    "plan": (deployment, {
        "tp": 8, "context": 4096, "mean_tokens": 4096, "drafts": 1, "budget_gib": 1.0,
        "drafter_layers": 1, "drafter_dtype": "float8", "quantum": 128, "state_blocks": 1,
        "state_pool_ratio": 1.0, "slots_per_request": 1, "max_running": 1,
        **{name: getattr(Deployment(), name) for name in WORDS},
    }),
    "plan of": (plan, {"deployment": Deployment()}),
    "inverse": (inverse, {"planned": PLANNED, "requests": 3, "mean_tokens": 100}),
    "preset": (preset, {
        "num_kda_layers": 69, "num_heads": 96, "dk": 128, "conv_width": 4, "num_key_heads": 96,
        "indexer_dim": 1, "indexer_pool": 1, "mla_layer_ids": KIMI_K3.mla_layer_ids, "kind": "kda",
    }),
    "memory": (RequestMemory, {
        "model": KIMI_K3, "tp": 8, "state_dtype": "float32", "draft_len": 1, "drafter_layers": 1,
    }),
    "kv_bytes": (MEMORY.kv_bytes, {"num_tokens": 1}),
    "slot_bytes": (MEMORY.slot_bytes, {"num_slots": 1}),
    "transfer": (MEMORY.transfer_bytes, {"num_tokens": 1, "latent_copies": 1}),
    "share": (MEMORY.checkpoint_share, {"interval": 1}),
    "rollback": (rollback_cost, {"memory": MEMORY, "code": "raw-inputs", "draft_len": 1}),
    "traffic": (COST.step_traffic, {"num_committed": 1.5}),
    "split": (SplitPools, {
        "cost": COST, "budget_bytes": 2**30, "ratio": 0.9, "slots_per_request": 1, "max_running": 1,
    }),
    "blocks": (BlockPool, {
        "cost": COST, "budget_bytes": 2**30, "quantum": 1, "fixed_block": 1, "state_blocks": 1,
    }),
    "of blocks": (BlockPool.of_blocks, {"cost": COST, "num_blocks": 3, "quantum": 16}),
    "requests": (POOL.max_requests, {"mean_tokens": 5}),
    "gain": (concurrency_gain, {"before": POOL, "after": POOL, "num_tokens": 9}),
    "aligned": (blocks.aligned_block, {"page_bytes": 9, "row_bytes": 1, "quantum": 1}),
    "padding": (blocks.page_padding, {"block_tokens": 9, "row_bytes": 1, "page_bytes": 1}),
    "each": (blocks.request_blocks, {"num_tokens": 9, "block_tokens": 1, "state_blocks": 1}),
    "times": (blocks.printed_concurrency, {"num_blocks": 9, "blocks_per_request": 1}),
    "tokens": (blocks.printed_tokens, {
        "num_blocks": 9, "blocks_per_request": 1, "max_model_len": 1,
    }),
    "tokens 2025": (blocks.printed_tokens_2025, {
        "num_blocks": 9, "num_groups": 1, "block_tokens": 1,
    }),
    "reusable": (blocks.reusable_tokens, {
        "num_blocks": 9, "running_blocks": 1, "segment_blocks": 1, "block": 1,
    }),
    "hit": (blocks.hit_tokens, {"num_tokens": 9, "block_tokens": 1, "dropped_blocks": 1}),
    "aligned tokens": (blocks.aligned_tokens, {"num_tokens": 9, "block_tokens": 1}),
    "reused": (blocks.reused_tokens, {"num_hits": 9, "tokens_per_hit": 1}),
    "groups": (LayerGroups, {"num_attention": 1, "num_state": 1}),
    "unit": (GridUnit, {"code": "hash", "tokens": 1}),
    "token grid": (TokenGrid, {"units": (GridUnit("hash", 4),), "dropped_blocks": 1}),
    "serving grid": (serving_grid, {
        "block_tokens": 4, "hash_tokens": 2, "context_parallel": 1, "retention_tokens": 4,
    }),
    "printed": (printed.PrintedPool, {
        "num_blocks": 9, "limit": 9, "block_tokens": 1, "fixed_blocks": 1, "groups": 1,
        "running": 1,
    }),
    "acceptance": (speculation.expected_tokens, {"acceptance": (0.5,)}),
    "golden": (speculation.golden_schedule, {"acceptance_len": 1.5, "drafts": 3}),
    "length": (speculation.golden_length, {"drafts": 3}),
    "load": (speculation.load_gain, {
        "tokens_per_step": 1.5, "width": 3, "concurrency": 1.5, "row_cost": 1.5,
    }),
    "balance": (speculation.balance, {
        "plain": PLANNED, "drafted": deployment(drafts=3), "tokens_per_step": 1.5,
        "dropped_blocks": 1,
    }),
    "warnings": (find_warnings, {"planned": PLANNED}),
    "log": (read_log, {"text": "log"}),
    "solve": (solve, {"log": read_log("Setting attention block size to 1536 tokens"),
                      "model": KIMI_K3, "tp": 8, "state_dtype": "float32"}),
    "layers": (check_layers, {"lists": {"a": [1]}, "num_layers": 1}),
    "pattern": (layer_ids, {"pattern": "M", "marks": "M"}),
    "get preset": (get_preset, {"code": "toy"}),
    "get profile": (get_profile, {"code": "split"}),
    "get scheme": (get_scheme, {"code": "compact"}),
    "stack": (StackSizes, {"num_layers": 4, "dk": 1, "lower_bound": -1.5, "dtype": "float32"}),
    "save": (saved_plan.save_plan, {"planned": PLANNED, "config": ""}),
    "load plan": (saved_plan.load_plan, {"text": saved_plan.save_plan(PLANNED)}),
}  # fmt: skip


def wrong_values(good):
    """Values of other types than ``good``; a whole number is a number too."""
    odd = [None, object(), [None], {"a": 1}, b"1"]
    if isinstance(good, str):
        return [*odd, 3, 1.5, math.nan, True]
    if isinstance(good, float):
        return [*odd, "1.5", "", math.nan, math.inf, True, 1j]
    if isinstance(good, int):
        return [*odd, "3", 1.5, math.nan, math.inf, True]
    return [None, object(), 3, 1.5, "x", math.nan, True]


@pytest.mark.parametrize("name", CALLS)
def test_the_good_arguments_are_taken(name):
    call, good = CALLS[name]
    call(**good)


@pytest.mark.parametrize(
    ("name", "argument"), [(name, a) for name, (_, good) in CALLS.items() for a in good]
)
def test_every_wrong_type_is_refused_as_bad_input(name, argument):
    call, good = CALLS[name]
    for wrong in wrong_values(good[argument]):
        with pytest.raises(K3Error):
            pytest.fail(f"{call(**(good | {argument: wrong}))} of {argument}={wrong!r}")


@pytest.mark.parametrize("wrong", [None, 3, 1.5, [1], b"{}"])
def test_a_config_of_a_wrong_type_is_refused(wrong):
    with pytest.raises(K3Error):
        parse_config(wrong)
