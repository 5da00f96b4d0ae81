"""Boot logs solved back: public vLLM and SGLang lines, and what they do not determine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.bootlog import MAX_LOG_CHARS, read_log
from k3core.capacity.logsolve import solve
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import plan
from k3core.capacity.pools import GIB
from k3core.capacity.presets import MODELS
from k3core.capacity.rollback import rollback_cost
from k3core.errors import CapacityError

K3 = MODELS["kimi-k3"]
LINEAR = MODELS["kimi-linear-48b"]
LING_TINY = MODELS["ling-3.0-tiny"]
QWEN_35B = MODELS["qwen3.5-35b"]

# vLLM #28228: Kimi-Linear at TP2.
VLLM_28228 = """
(EngineCore_DP0 pid=1) INFO [config.py:1] Setting attention block size to 960 tokens to ensure \
that attention page size is >= mamba page size.
(Worker_TP0 pid=26347) INFO 11-06 10:51:48 [gpu_worker.py:349] Available KV cache memory: 2.30 GiB
(EngineCore_DP0 pid=26283) WARNING 11-06 10:51:48 [kv_cache_utils.py:979] Add 1 padding layers, \
may waste at most 5.00% KV cache memory
(EngineCore_DP0 pid=26283) INFO 11-06 10:51:48 [kv_cache_utils.py:1229] GPU KV cache size: \
75,840 tokens
(EngineCore_DP0 pid=26283) INFO 11-06 10:51:48 [kv_cache_utils.py:1234] Maximum concurrency for \
120,000 tokens per request: 2.48x
"""

# ATOM recipe Kimi-K3-LMCache-Byte-Offload: K3 with DSpark(2) at TP8, as vLLM prints it.
ATOM_RECIPE = """
INFO [interface.py:915] Setting attention block size to 1536 tokens to ensure that attention page \
size is >= mamba page size.
INFO [interface.py:939] Padding mamba page size by 6.27% to ensure that mamba page size and \
attention page size are exactly equal.
INFO [kv_cache_utils.py:979] Add 18 padding layers, may waste at most 26.09% KV cache memory
INFO [gpu_worker.py:349] Available KV cache memory: 37.85 GiB
INFO [kv_cache_utils.py:1229] GPU KV cache size: 1,887,436 tokens
INFO [kv_cache_utils.py:1234] Maximum concurrency for 65,536 tokens per request: 28.80x
speculative_config={'method': 'dspark', 'num_speculative_tokens': 2}, tensor_parallel_size=8
INFO mamba_cache_mode is set to 'align'
"""

# A public SGLang log of Ling-3.0-tiny, and one of Kimi K3 at TP8.
SGLANG_LING = """
[2026-08-17 16:52:12] Mamba Cache is allocated. max_mamba_cache_size: 614, conv_state size: \
0.38GB, ssm_state size: 10.81GB
[2026-08-17 16:52:13] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1933682, KV size: \
12.45 GB
"""
SGLANG_K3 = """
[TP0] Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state \
size: 13.04GB
[TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1167552, KV size: 15.03 GB
[TP0] max_total_num_tokens=1167552, chunked_prefill_size=4096, max_running_requests=51
"""


def test_the_recognised_lines_of_vllm():
    log = read_log(ATOM_RECIPE)
    assert log.engine == "vllm"
    assert log.get("block_tokens") == 1536
    assert log.get("page_padding") == 6.27
    assert log.get("layer_padding") == 26.09
    assert log.get("cache_gib") == 37.85
    assert log.get("printed_tokens") == 1_887_436
    assert (log.get("max_model_len"), log.get("concurrency")) == (65_536, 28.80)
    assert (log.get("drafts"), log.get("tp")) == (2, 8)
    assert log.word("cache_mode") == "align"


def test_the_recognised_lines_of_sglang():
    log = read_log(SGLANG_K3)
    assert log.engine == "sglang"
    assert [log.get(c) for c in ("slots", "conv_gib", "ssm_gib")] == [257, 0.46, 13.04]
    assert [log.get(c) for c in ("pool_tokens", "kv_gib", "max_running")] == [1_167_552, 15.03, 51]


def test_capped_running_requests_are_read():
    assert read_log("max_running_requests is capped from 64 to 51").get("max_running") == 51


def test_recipe_log_solves_back_to_blocks_drafts_and_groups():
    solved = solve(read_log(ATOM_RECIPE), K3, 8)
    assert solved.contradictions == ()
    assert solved.values["num_blocks"] == 1584
    assert solved.values["blocks_per_request"] == 55
    assert solved.values["state_blocks"] == 12
    assert solved.values["drafts"] == 2
    assert solved.values["drafter_layers"] == 5
    assert solved.values["num_groups"] == 4
    assert solved.values["print_rule"] == "2026"


def test_drafts_follow_from_the_padding_alone():
    quiet = "\n".join(line for line in ATOM_RECIPE.splitlines() if "speculative" not in line)
    assert solve(read_log(quiet), K3, 8).values["drafts"] == 2


def test_a_log_of_2025_is_told_from_its_print_rule():
    solved = solve(read_log(VLLM_28228), LINEAR, 2)
    assert solved.contradictions == ()
    assert solved.values["print_rule"] == "2025"
    assert solved.values["blocks_per_request"] == 128
    assert solved.values["state_blocks"] == 3
    assert solved.values["num_blocks"] == 318


def test_the_planner_filled_from_the_recipe_prints_the_same_numbers():
    solved = solve(read_log(ATOM_RECIPE), K3, 8)
    values = plan(solved.deployment).as_dict()
    assert values["block_tokens"] == 1536
    assert values["blocks_per_request"] == 55
    assert values["printed_tokens"] == pytest.approx(1_887_436, rel=1e-3)


def test_sglang_logs_give_rows_ratio_and_slots():
    solved = solve(read_log(SGLANG_K3), K3, 8)
    assert solved.contradictions == ()
    assert solved.values["rows"] == 258
    assert solved.values["slots_per_request"] == 5
    assert solved.values["bytes_per_token"] == pytest.approx(13_824, abs=6)
    assert solved.values["state_pool_ratio"] == pytest.approx(0.9, abs=0.005)
    assert plan(solved.deployment).pool.state_roof == 51
    ling = solve(read_log(SGLANG_LING), LING_TINY, 1)
    assert ling.contradictions == ()
    assert ling.values["state_pool_ratio"] == pytest.approx(0.9, abs=0.005)
    assert "slots_per_request" in ling.missing


def test_the_wrong_model_contradicts_the_log():
    """The slip of a public estimate: Kimi-Linear's heads for Kimi K3 (SGLang #34059)."""
    assert set(solve(read_log(SGLANG_K3), LINEAR, 8).contradictions) == {
        "ssm_gib", "conv_gib", "kv_gib",
    }  # fmt: skip
    wrong = solve(read_log(ATOM_RECIPE), LINEAR, 2)
    assert {"drafts", "layer_padding"} <= set(wrong.contradictions)


def test_the_wrong_state_format_contradicts_the_log():
    assert "ssm_gib" in solve(read_log(SGLANG_K3), K3, 8, "bfloat16").contradictions


def test_what_is_not_printed_is_named_with_the_line_that_would_tell():
    solved = solve(read_log("INFO Setting attention block size to 1536 tokens to ensure"), K3, 8)
    assert solved.missing["printed_tokens"] == "GPU KV cache size: N tokens"
    assert solved.candidates["drafts"] == tuple(range(8))
    assert "Padding mamba page size" in solved.missing["drafts"]


def test_blocks_stay_a_set_of_candidates_without_memory():
    text = "\n".join(
        line for line in ATOM_RECIPE.splitlines()
        if "Available" not in line and "speculative" not in line and "Padding mamba" not in line
    )  # fmt: skip
    solved = solve(read_log(text), K3, 8)
    assert 1584 in solved.candidates["num_blocks"]
    assert solved.missing["num_blocks"] == "Available KV cache memory"


def test_a_line_that_repeats_with_another_value_is_a_contradiction():
    text = "Available KV cache memory: 37.85 GiB\nAvailable KV cache memory: 30.00 GiB"
    log = read_log(text)
    assert log.conflicts == ("cache_gib",)
    assert log.get("cache_gib") == 37.85


def test_tokens_that_no_rule_prints_are_a_contradiction():
    text = ATOM_RECIPE.replace("1,887,436", "1,900,001")
    assert "printed_tokens" in solve(read_log(text), K3, 8).contradictions


def test_a_text_without_known_lines_determines_nothing():
    solved = solve(read_log("hello\nworld"), K3, 8)
    assert solved.values == {}
    assert "engine" in solved.missing


def test_a_huge_text_is_refused():
    with pytest.raises(CapacityError, match="at most"):
        read_log("x" * (MAX_LOG_CHARS + 1))


@given(st.text(max_size=300))
def test_any_text_is_read_and_solved_without_a_crash(text):
    solve(read_log(text), K3, 8)
    solve(read_log("Mamba Cache is allocated. " + text + SGLANG_K3), K3, 8)


@given(
    st.sampled_from([K3, LINEAR, QWEN_35B]),
    st.integers(0, 7),
    st.integers(200, 4000),
    st.sampled_from([32_768, 65_536, 131_072, 262_144]),
)
def test_a_printed_log_is_solved_back_to_the_pool_that_printed_it(model, drafts, blocks, limit):
    quantum = 128 if model.is_mla else 16
    memory = RequestMemory(model, 2)
    pool = BlockPool.of_blocks(
        rollback_cost(memory, "snapshots-align", drafts), blocks, quantum=quantum
    )
    text = (
        f"Setting attention block size to {pool.block_tokens} tokens\n"
        f"Available KV cache memory: {pool.budget_bytes / GIB:.2f} GiB\n"
        f"GPU KV cache size: {pool.printed_tokens(limit):,} tokens\n"
        f"Maximum concurrency for {limit:,} tokens per request: {pool.concurrency(limit):.2f}x\n"
        f"num_speculative_tokens={drafts}\n"
    )
    solved = solve(read_log(text), model, 2)
    assert solved.contradictions == ()
    found = solved.values.get("num_blocks")
    assert found == blocks or blocks in solved.candidates["num_blocks"]


def test_a_parallel_degree_in_the_log_takes_the_place_of_the_given_one():
    found = solve(read_log("tensor_parallel_size=16\n" + ATOM_RECIPE), K3, 8)
    assert found.values["tp"] == found.deployment.tp == 16
    with pytest.raises(CapacityError, match="tp=7"):
        solve(read_log("tensor_parallel_size=7\n" + ATOM_RECIPE), K3, 8)
