"""The planner in one call, its inverse, the token grid, comparison models, the cost of drafts."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.__main__ import main
from k3core.capacity import speculation
from k3core.capacity.block_pool import BlockPool
from k3core.capacity.blocks import LayerGroups, hit_tokens
from k3core.capacity.grid import GridUnit, TokenGrid, serving_grid
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment, inverse, plan
from k3core.capacity.pools import Verdict
from k3core.capacity.presets import MODELS, PRESETS
from k3core.capacity.profiles import PROFILES, STRATEGIES
from k3core.capacity.rollback import rollback_cost
from k3core.capacity.schemes import SCHEMES, Commit
from k3core.errors import CapacityError, K3Error
from k3core.model import ModelConfig

MIB = 2**20
ISSUE = [
    "capacity", "--model", "kimi-k3", "--tp", "8", "--context", "131072", "--drafts", "7",
    "--rollback", "raw-inputs", "--budget-gib", "46.48", "--json",
]  # fmt: skip


def run_json(capsys, *arguments):
    assert main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out)


# The command


def test_command_prints_the_numbers_of_a_deployment_per_rank(capsys):
    values = run_json(capsys, *ISSUE)
    assert values["state_bytes_per_layer"] == 786_432
    assert values["conv_bytes_per_layer"] == 27_648
    assert values["state_bytes_per_request"] == 56_171_520
    assert values["mla_bytes_per_token"] == 13_824
    assert values["break_even_tokens"] == 4_064
    assert values["rollback_buffer_bytes_per_request"] == 6_809_472
    assert values["rollback_draft_rows_bytes_per_request"] == 69 * 7 * 4_608 * 2
    assert values["rollback_bytes_per_request"] == 6_809_472 + 4_451_328
    assert (values["block_tokens"], values["blocks_per_request"]) == (1536, 86 + 6)
    assert values["num_blocks"] == 2350
    assert values["max_concurrency"] == pytest.approx(2350 / 92, abs=1e-4)
    assert values["per"] == "rank"
    assert values["transfer_bytes_per_request"] == 8 * 56_171_520 + 131_072 * 13_824
    assert values["context_parallel_bytes_per_layer"] == 1_572_864
    assert values["reusable_prefix_tokens"] == (2350 - 25 * 92) // 4 * 1536


def test_command_shows_every_default(capsys):
    inputs = run_json(capsys, "capacity", "--json")["inputs"]
    assert inputs["state_dtype"] == "float32"
    assert inputs["conv_dtype"] == "bfloat16"
    assert inputs["mla_dtype"] == "float8"
    assert (inputs["conv_rows"], inputs["drafter_layers"]) == (3, 0)
    assert (inputs["pool_rule"], inputs["quantum"]) == ("blocks", 128)
    assert main(["capacity"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in inputs)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_command_takes_every_scheme(scheme, capsys):
    values = run_json(capsys, "capacity", "--rollback", scheme, "--drafts", "7", "--json")
    assert values["rollback_bytes_per_request"] > 0


@pytest.mark.parametrize("model", MODELS)
def test_command_takes_every_model(model, capsys):
    values = run_json(capsys, "capacity", "--model", model, "--json")
    assert values["inputs"]["mla_dtype"] == MODELS[model].mla_dtype
    assert values["state_bytes_per_request"] > 0


def test_every_default_can_be_overridden(capsys):
    values = run_json(
        capsys, "capacity", "--state-dtype", "bfloat16", "--conv-dtype", "float32", "--mla-dtype",
        "bfloat16", "--drafter-layers", "5", "--quantum", "64", "--mean-tokens", "9216", "--tp",
        "16", "--pool-rule", "split", "--slots-per-request", "4", "--max-running", "3", "--json",
    )  # fmt: skip
    assert values["state_bytes_per_layer"] == 6 * 128 * 128 * 2
    assert values["conv_bytes_per_layer"] == 3 * 6 * 384 * 4
    assert values["drafter_bytes_per_token"] == 5 * 1152
    assert values["max_requests"] == 3
    assert values["verdict"] == "engine-cap"


def test_command_reads_a_config_file(tmp_path, capsys):
    from tests.public_configs import KIMI_K3

    path = tmp_path / "config.json"
    path.write_text(json.dumps(KIMI_K3 | {"new_field": 1}))
    assert main(["capacity", "--config", str(path), "--mla-dtype", "float8", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["state_bytes_per_request"] == 56_171_520
    assert "new_field is unknown" in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tp", "5"], "tp=5 does not divide the 96 KDA heads"),
        (["--budget-gib", "0"], "budget_gib=0.0 must be above 0"),
        (["--budget-gib", "nan"], "must be above 0"),
        (["--context", "1000"], "below one block of 1536 tokens"),
        (["--drafts", "-1"], "draft_len=-1"),
        (["--rollback", "magic"], "magic"),
        (["--model", "kimi-k9"], "kimi-k9"),
        (["--mla-dtype", "int3"], "int3"),
        (["--config", "/no/such/file.json"], "no/such/file"),
    ],
)
def test_command_refuses_in_one_line_with_the_remedy(arguments, words, capsys):
    assert main(["capacity", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


# Properties of a plan

deployments = st.builds(
    Deployment,
    model=st.sampled_from(list(MODELS)),
    tp=st.sampled_from([0, 1, 2, 4]),
    context=st.sampled_from([65_536, 131_072, 1_048_576]),
    mean_tokens=st.integers(0, 1_000_000),
    drafts=st.integers(0, 15),
    rollback=st.sampled_from(list(SCHEMES)),
    budget_gib=st.floats(0.5, 500),
    state_dtype=st.sampled_from(["float32", "bfloat16"]),
    mla_dtype=st.sampled_from(["", "float8", "bfloat16"]),
    drafter_layers=st.integers(0, 5),
    pool_rule=st.sampled_from(list(PROFILES)),
    quantum=st.sampled_from([16, 64, 128, 512]),
    max_running=st.sampled_from([0, 1, 64]),
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


@pytest.mark.parametrize(
    "code", ["snapshots-state-only", "raw-inputs", "fp32-inputs", "corrections"]
)
def test_schemes_agree_with_real_tensors_at_toy_size(code):
    toy, drafts = PRESETS["toy"], 3
    cost = rollback_cost(RequestMemory(toy, 2), code, drafts)
    heads, rows = 8, cost.num_rows
    shapes = {
        "q": (rows, heads, 32), "k": (rows, heads, 32), "v": (rows, heads, 32),
        "g": (rows, heads, 32), "u": (rows, heads, 32), "beta": (rows, heads),
    }  # fmt: skip
    made = [
        torch.empty((toy.num_kda_layers, *shapes[p.name]), dtype=getattr(torch, p.dtype))
        for p in cost.scheme.record
    ]
    if not made:
        made = [torch.empty((toy.num_kda_layers, cost.num_slots, heads, 32, 32))]
    assert cost.buffer_bytes == sum(tensor.nbytes for tensor in made)


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


# Inverse, slots, groups


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
        assert pool.blocks_per_request(longest) <= pool.num_blocks
    assert pool.blocks_per_request(longest + 1) > pool.num_blocks


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


# Bytes that engines move or share


def test_checkpoint_shares_are_the_published_ones():
    """89 % at one per 512 tokens, 73, 50, 33 and 11 % at 1,536, 4,096, 8 K and 32 K."""
    memory = RequestMemory(PRESETS["kimi-k3"])
    shares = [round(100 * memory.checkpoint_share(n)) for n in (512, 1536, 4096, 8192, 32_768)]
    assert shares == [89, 73, 50, 33, 11]


def test_transfer_sends_every_shard_and_one_latent():
    memory = RequestMemory(PRESETS["kimi-k3"])
    assert memory.transfer_bytes(1000) == 8 * 56_171_520 + 1000 * 13_824
    assert memory.transfer_bytes(1000, latent_copies=8) == 8 * (56_171_520 + 1000 * 13_824)
    gqa = RequestMemory(MODELS["qwen3.5-27b"], 4)
    assert gqa.transfer_bytes(10) == 4 * gqa.total_bytes(10)


def test_context_parallel_volume_breaks_even_at_the_published_lengths():
    """10,923 tokens at TP1 and 1,365 at TP8 (bf16 rows)."""
    for tp, tokens in ((1, 10_923), (8, 1_365)):
        memory = RequestMemory(PRESETS["kimi-k3"], tp, mla_dtype="bfloat16")
        assert round(memory.context_parallel_even_tokens()) == tokens


@pytest.mark.parametrize("code", SCHEMES)
def test_traffic_of_a_step_follows_its_commit(code):
    cost = rollback_cost(RequestMemory(PRESETS["kimi-k3"]), code, 7)
    traffic = cost.step_traffic(3.84)
    state = 69 * 786_432
    written = {
        Commit.POINTER: 8, Commit.COPY: 9, Commit.EAGER: 1, Commit.LAZY: 1, Commit.FOLD: 1 / 3,
    }  # fmt: skip
    assert traffic.state_written == pytest.approx(written[cost.scheme.commit] * state)
    assert traffic.state_read in (state, 2 * state)
    assert (traffic.record_written > 0) == bool(cost.scheme.record)
    with pytest.raises(CapacityError, match="num_committed"):
        cost.step_traffic(9)


# The token grid


def test_decode_context_parallel_coarsens_the_grid():
    """DCP8 turns blocks of 1,536 into 12,288 tokens."""
    grid = serving_grid(1536, 512, context_parallel=8)
    assert grid.effective == 12_288
    assert grid.hit(12_288) == 0
    assert grid.hit(12_289) == 12_288


def test_drafter_drop_costs_one_block():
    """vLLM #53504: 4,481 tokens on blocks of 1,600 reuse 3,200, and 1,600 with a drafter."""
    assert serving_grid(1600, 1600).hit(4481) == 3200
    assert serving_grid(1600, 1600, dropped_blocks=1).hit(4481) == 1600


units = st.lists(
    st.builds(GridUnit, st.sampled_from(["hash", "block", "retention"]), st.integers(1, 64)),
    min_size=1, max_size=4,
)  # fmt: skip


@given(units, st.integers(0, 2), st.integers(1, 4000))
def test_every_unit_has_a_boundary_where_a_hit_ends(parts, dropped, tokens):
    grid = TokenGrid(tuple(parts), dropped)
    hit = grid.hit(tokens)
    assert hit <= max(tokens - 1, 0)
    assert all(hit % unit.tokens == 0 for unit in parts)
    assert grid.hit(grid.shortest_hit) > 0
    assert grid.hit(grid.shortest_hit - 1) == 0
    assert all(
        grid.agrees(t) == all(t in grid.ticks(u, t) for u in parts)
        for t in (tokens, grid.effective)
    )


@given(st.integers(1, 100_000), st.integers(1, 5000), st.integers(0, 3))
def test_hits_never_reach_the_last_token_and_grow_with_the_prompt(tokens, block, dropped):
    assert hit_tokens(tokens, block, dropped) < tokens
    assert hit_tokens(tokens + 1, block, dropped) >= hit_tokens(tokens, block, dropped)
    assert hit_tokens(tokens, block, dropped) == max(hit_tokens(tokens, block) - dropped * block, 0)


# Drafting


def test_golden_schedule_is_the_one_that_engines_use():
    """ATOM #1948: 3.78 over seven drafts is 1, 1, 0.78, 0, 0, 0, 0."""
    assert speculation.golden_schedule(3.78, 7) == (1.0, 1.0, 0.78, 0.0, 0.0, 0.0, 0.0)


@given(st.integers(1, 15), st.floats(0, 1))
def test_golden_schedule_has_the_length_that_it_was_made_for(drafts, part):
    length = 1 + part * drafts
    schedule = speculation.golden_schedule(length, drafts)
    assert speculation.expected_tokens(schedule) == pytest.approx(length, abs=1e-6)


def test_golden_lengths_are_interpolated_between_published_ones():
    assert [speculation.golden_length(k) for k in (0, 2, 7)] == [1.0, 2.51, 3.84]
    assert 3.36 < speculation.golden_length(5) < 3.75
    with pytest.raises(CapacityError, match="beyond the published 7"):
        speculation.golden_length(8)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_expected_tokens_lie_between_one_and_the_width(acceptance):
    tokens = speculation.expected_tokens(acceptance)
    assert 1 <= tokens <= 1 + len(acceptance) + 1e-9


def test_published_curve_says_when_drafting_loses():
    """Infera #74: 2.60x at 4 requests, 0.99x at 32, 0.90x at 64."""
    curve = speculation.INFERA_74
    assert [round(p.gain, 2) for p in curve.points] == [2.60, 1.36, 1.10, 0.99, 0.90]
    assert 16 < curve.break_even < 32
    cost = curve.fitted_row_cost(3.84)
    assert speculation.load_gain(3.84, 8, 4, cost) > 1 > speculation.load_gain(3.84, 8, 64, cost)


def test_balance_names_what_drafting_takes():
    drafted = plan(Deployment(tp=8, pool_rule="split", mean_tokens=8192, budget_gib=28.5))
    plain = plan(dataclasses.replace(drafted.deployment, drafts=0))
    found = speculation.balance(plain, drafted, 3.84)
    assert found.verify_width == 8
    assert found.added_bytes == 11_260_800
    assert found.reuse_lost_tokens == 1536
    assert found.requests_plain == 51
    assert found.requests_drafted < 51
    assert found.memory_bound_gain == pytest.approx(
        3.84 * found.requests_drafted / found.requests_plain
    )
    assert found.traffic_drafted < found.traffic_plain
    with pytest.raises(CapacityError, match="tokens_per_step=9"):
        speculation.balance(plain, drafted, 9)


def test_sizes_that_are_no_dtype_are_refused():
    with pytest.raises(K3Error):
        plan(Deployment(state_dtype="int4"))
    assert math.isfinite(plan(Deployment()).max_concurrency)
