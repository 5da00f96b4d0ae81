"""The planner in one call, its inverse, comparison models, layer groups."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.blocks import LayerGroups
from k3core.capacity.lab_stack import StackSizes, stack_preset
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment, inverse, plan
from k3core.capacity.pools import Verdict
from k3core.capacity.presets import MODELS
from k3core.capacity.profiles import STRATEGIES
from k3core.capacity.rollback import rollback_cost
from k3core.errors import CapacityError
from k3core.model import ModelConfig
from tests.capacity_helpers import (
    MIB,
    deployments,
)


@given(deployments)
def test_plan_is_consistent_and_fits_its_budget(deployment):
    planned = plan(deployment)
    values = planned.as_dict()
    json.dumps(values, allow_nan=False)
    need = planned.cost.total_bytes + planned.memory.kv_bytes(planned.mean_tokens)
    assert planned.max_requests * need <= deployment.budget_gib * 2**30
    lowest = planned.roofs[0]
    assert planned.max_requests <= lowest.requests + 1e-9
    assert lowest.slack == 0
    assert (planned.verdict is Verdict.NOTHING_FITS) == (planned.max_requests == 0)


@given(deployments, st.sampled_from(["num_heads", "dk", "dv", "num_kda_layers"]))
def test_state_grows_with_every_size(deployment, size):
    memory = plan(deployment).memory
    model = memory.model
    grown = dataclasses.replace(
        model,
        **{size: 2 * getattr(model, size)},
        **({"num_key_heads": 2 * model.key_heads} if size == "num_heads" else {}),
    )
    larger = RequestMemory(grown, memory.tp, memory.state_dtype, mla_dtype=memory.mla_dtype)
    assert larger.state_bytes_per_request > memory.state_bytes_per_request
    assert larger.mla_bytes_per_token == memory.mla_bytes_per_token


@given(deployments, st.sampled_from(["conv_width", "mla_latent_dim", "hidden_size"]))
def test_window_and_cache_grow_with_their_own_size_alone(deployment, size):
    memory = plan(deployment).memory
    grown = dataclasses.replace(memory.model, **{size: 2 * getattr(memory.model, size)})
    larger = dataclasses.replace(memory, model=grown)
    assert larger.recurrent_bytes_per_request == memory.recurrent_bytes_per_request
    assert (larger.conv_bytes_per_request > memory.conv_bytes_per_request) == (size == "conv_width")
    assert (larger.mla_bytes_per_token > memory.mla_bytes_per_token) == (size == "mla_latent_dim")


@given(deployments)
def test_wider_formats_and_further_drafter_layers_never_cost_less(deployment):
    one = plan(deployment).memory
    for name, wide in (
        ("state_dtype", "float64"), ("conv_dtype", "float32"), ("mla_dtype", "float32"),
        ("drafter_dtype", "float32"), ("drafter_layers", one.drafter_layers + 1),
    ):  # fmt: skip
        other = dataclasses.replace(one, **{name: wide})
        assert other.total_bytes(1000) >= one.total_bytes(1000), name
        assert other.total_bytes(0) >= one.total_bytes(0), name


@given(deployments)
def test_more_memory_or_shorter_requests_never_admit_fewer(deployment):
    planned = plan(deployment)
    more = plan(dataclasses.replace(deployment, budget_gib=2 * deployment.budget_gib))
    shorter = dataclasses.replace(deployment, mean_tokens=max(planned.mean_tokens // 2, 1))
    assert more.max_requests >= planned.max_requests
    assert plan(shorter).max_requests >= planned.max_requests


@given(deployments)
def test_more_drafts_never_cost_less(deployment):
    if deployment.drafts == 15:
        return
    fewer = plan(deployment)
    more = plan(dataclasses.replace(deployment, drafts=deployment.drafts + 1))
    assert more.cost.scheme_bytes >= fewer.cost.scheme_bytes
    assert more.cost.total_bytes >= fewer.cost.total_bytes


@given(st.sampled_from(list(MODELS.values())), st.integers(1, 64), st.integers(0, 7))
def test_ranks_hold_the_whole_where_shards_are_exact(model, tp, drafts):
    if tp not in model.all_tps:
        with pytest.raises(CapacityError, match=f"tp={tp}"):
            RequestMemory(model, tp)
        return
    one, whole = (
        RequestMemory(model, tp, draft_len=drafts),
        RequestMemory(model, 1, draft_len=drafts),
    )
    assert tp * one.recurrent_bytes_per_request == whole.recurrent_bytes_per_request
    if model.key_heads % tp == 0:
        assert tp * one.conv_bytes_per_request == whole.conv_bytes_per_request
    else:
        assert tp * one.conv_bytes_per_request > whole.conv_bytes_per_request
    if model.is_mla:
        assert one.mla_bytes_per_token == whole.mla_bytes_per_token
    elif model.num_kv_heads % tp == 0:
        assert tp * one.mla_bytes_per_token == whole.mla_bytes_per_token
    else:
        assert tp * one.mla_bytes_per_token > whole.mla_bytes_per_token


def test_gdn_and_mamba2_records_agree_with_real_tensors():
    """Key heads carry k; the decay of both is one number per head."""
    for code, keys, heads, dk, dv in (
        ("qwen3-next", 16, 32, 128, 128), ("nemotron-3-super", 8, 128, 128, 64),
    ):  # fmt: skip
        cost = rollback_cost(RequestMemory(MODELS[code], 1), "raw-inputs", 7)
        bf16, fp32 = torch.bfloat16, torch.float32
        parts = [
            torch.empty((keys, dk), dtype=bf16), torch.empty((heads, dv), dtype=bf16),
            torch.empty(heads, dtype=fp32), torch.empty(heads, dtype=fp32),
        ]  # fmt: skip
        assert cost.record_bytes_per_token_layer == sum(part.nbytes for part in parts)


def test_comparison_models_have_their_published_states():
    """Qwen3.5: 183.2, 146.5, 146.8 and 61.4 MiB; Qwen3-Next 73.7; Nemotron 4.19 and 2.10 MB a
    layer (fp32 state, bf16 window, TP1)."""
    for code, mib in (
        ("qwen3.5-397b", 183.2), ("qwen3.5-122b", 146.5), ("qwen3.5-27b", 146.8),
        ("qwen3.5-35b", 61.4), ("qwen3-next", 73.7),
    ):  # fmt: skip
        size = RequestMemory(MODELS[code], 1).state_bytes_per_request / MIB
        assert size == pytest.approx(mib, abs=0.06), code
    for code, megabytes in (("nemotron-3-super", 4.19), ("nemotron-3-nano", 2.10)):
        memory = RequestMemory(MODELS[code], 1)
        assert memory.state_bytes_per_layer / 1e6 == pytest.approx(megabytes, abs=0.006)


def test_lab_stack_is_the_stack_that_the_engine_runs():
    config, preset = ModelConfig(), MODELS["lab-stack"]
    memory = RequestMemory(preset, 1, "float32", "float32", "float32")
    assert memory.kda_bytes_per_layer == config.kda_bytes
    assert memory.mla_bytes_per_token_layer == config.mla_row_bytes
    assert preset.kda_layer_ids == tuple(i + 1 for i in config.kda_layers)
    assert isinstance(config, StackSizes)
    wide = stack_preset(StackSizes(num_heads=8, num_layers=8), "x", "X", "a test", "")
    assert RequestMemory(wide, 2, conv_dtype="float32").num_heads == 4
    assert (wide.num_kda_layers, wide.mla_layer_ids) == (6, (4, 8))


@given(deployments, st.integers(1, 200))
def test_inverse_gives_a_budget_and_ratio_that_hold_the_target(deployment, requests):
    planned = plan(deployment)
    target = inverse(planned, requests)
    blocks = BlockPool(planned.cost, target.block_budget_bytes, planned.deployment.quantum)
    assert blocks.max_requests(target.mean_tokens) >= requests
    assert target.state_slots == requests * deployment.slots_per_request
    assert target.budget_bytes == target.state_bytes + target.mla_bytes
    assert target.fits == (planned.pool.max_requests(target.mean_tokens) >= requests)


def test_inverse_of_the_public_log():
    """51 requests of 22.6 K tokens fill both pools at a ratio of 0.9 with five slots each."""
    planned = plan(
        Deployment(
            tp=8, drafts=0, rollback="snapshots-state-only", budget_gib=28.53, pool_rule="split",
            mean_tokens=22_574,
        )
    )  # fmt: skip
    target = inverse(planned, 51)
    assert target.pool_ratio == pytest.approx(0.9, abs=0.001)
    assert target.state_slots == 255
    assert planned.pool.balance_tokens == pytest.approx(22_574, abs=1)


@given(deployments)
def test_longest_context_is_the_last_that_starts(deployment):
    pool = plan(deployment).blocks
    longest = pool.longest_context
    if longest:
        assert pool.request_bytes(longest) <= pool.budget_bytes
    assert pool.request_bytes(longest + 1) > pool.budget_bytes


def test_slot_strategies_are_the_public_ones():
    assert {s.reserved for s in STRATEGIES.values()} == {1, 3, 4, 5}
    assert STRATEGIES["extra-buffer"].unreachable_share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("attention", "state", "sizes", "share"),
    [
        (24, 69, (24, 23, 23, 23), 3 / 69),
        (29, 69, (29, 23, 23, 23), 18 / 69),
        (7, 20, (7, 7, 7, 6), 1 / 20),
        (8, 40, (8, 8, 8, 8, 8, 8), 0.0),
        (20, 24, (20, 24), 0.0),
    ],
)
def test_layers_form_equal_groups(attention, state, sizes, share):
    """vLLM #28228: 7/7/7/6 and 5.00 %; vLLM-Ascend #14314: 29 and 26.09 %."""
    groups = LayerGroups(attention, state)
    assert groups.sizes == sizes
    assert groups.padding_share == pytest.approx(share)


@given(st.integers(1, 120), st.integers(1, 120))
def test_groups_hold_every_layer_once(attention, state):
    groups = LayerGroups(attention, state)
    assert sum(groups.sizes) == attention + state
    assert max(groups.sizes) <= groups.width
    assert groups.num_groups == len(groups.sizes)
