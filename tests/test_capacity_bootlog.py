"""Boot logs solved back: public vLLM and SGLang lines, and what they do not determine."""

import re

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


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("to 1536 tokens", "to 0 tokens", "block_tokens"),
        ("to 1536 tokens", "to 1536.7 tokens", "block_tokens"),
        ("size: 1,887,436", "size: " + "9" * 400, "printed_tokens"),
        ("for 65,536 tokens", "for 0 tokens", "max_model_len"),
        ("28.80x", "9" * 400 + "x", "concurrency"),
        ("37.85 GiB", "0 GiB", "cache_gib"),
        ("37.85 GiB", "-1.50 GiB", "cache_gib"),
        ("tensor_parallel_size=8", "tensor_parallel_size=8.5", "tp"),
        ("tensor_parallel_size=8", "tensor_parallel_size=0", "tp"),
        ("'num_speculative_tokens': 2", "'num_speculative_tokens': 3.9", "drafts"),
        ("set to 'align'", "set to 'weird'", "cache_mode"),
        ("Add 18 ", "Add 1.5 ", "padding_layers"),
    ],
)
def test_a_value_that_cannot_be_is_set_aside_with_its_line(old, new, code):
    log = read_log(ATOM_RECIPE.replace(old, new))
    assert [line.code for line in log.impossible] == [code]
    assert log.get(code) is None
    solved = solve(log, K3, 8)
    assert solved.impossible == log.impossible
    assert code not in solved.values or code == "drafts"  # the padding still tells the drafts


@given(
    st.sampled_from([ATOM_RECIPE, SGLANG_K3, SGLANG_LING, VLLM_28228]),
    st.lists(st.sampled_from(["0", "1", "-1", "0.5", "1e9", "9" * 20, "9" * 400, "x"]), min_size=9),
)
def test_any_numbers_in_known_lines_are_solved_without_a_crash(text, numbers):
    chosen = iter(numbers * 20)
    solve(read_log(re.sub(r"\d[\d,.]*(?=[\s%GxM,])", lambda _: next(chosen), text)), K3, 8)


def test_colours_inside_of_lines_are_no_part_of_a_number():
    for code in ("\x1b[1m", "\x1b[38;5;2m", "[1m", "\ufffd[1m"):
        assert read_log(f"num_gpu_blocks: {code}1584\x1b[0m").get("num_blocks") == 1584


def test_memory_is_read_in_any_unit():
    sizes = {"1.2 TiB": 1228.8, "512 MiB": 0.5, "37.85 GiB": 37.85, "12 GB": 12}
    for text, gib in sizes.items():
        assert read_log(f"Available KV cache memory: {text}").get("cache_gib") == gib


def test_lines_of_two_engines_are_a_contradiction_that_names_both():
    assert "also-sglang" in solve(read_log(ATOM_RECIPE + SGLANG_LING), K3, 8).contradictions
    assert "also-vllm" in solve(read_log(ATOM_RECIPE[:150] + SGLANG_K3), K3, 8).contradictions


def test_only_what_a_log_determines_is_known():
    solved = solve(read_log(ATOM_RECIPE), K3, 8)
    assert set(solved.known) == {
        "tp", "pool_rule", "context", "budget_gib", "drafts", "drafter_layers", "rollback",
    }  # fmt: skip
    lines = ATOM_RECIPE.splitlines()
    for word, names in (
        ("Available", {"budget_gib"}),
        ("Maximum", {"context"}),
        ("mamba_cache_mode", set()),  # the state blocks tell the scheme
        ("tensor_parallel", {"tp"}),
    ):
        rest = "\n".join(line for line in lines if word not in line)
        assert {*solved.known} - {*solve(read_log(rest), K3, 8).known} == names, word
    bare = solve(read_log("Setting attention block size to 1536 tokens"), K3, 8)
    assert bare.known == ("pool_rule",)
    assert bare.missing["cache_gib"] == "Available KV cache memory: X GiB"


def test_a_value_that_repeats_differently_is_not_known():
    text = ATOM_RECIPE + "Available KV cache memory: 30.00 GiB\ntensor_parallel_size=4"
    assert not {"budget_gib", "tp"} & {*solve(read_log(text), K3, 8).known}


def test_a_pool_of_sglang_is_known_without_what_it_does_not_print():
    solved = solve(read_log(SGLANG_LING), LING_TINY, 1)
    assert set(solved.known) == {"pool_rule", "budget_gib", "state_pool_ratio"}
    assert "slots_per_request" in solve(read_log(SGLANG_K3), K3, 8).known


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("max_total_num_tokens=1167552", "max_total_num_tokens=5", "max_total_tokens"),
        ("torch.float8_e4m3fn", "torch.bfloat16", "kv_dtype"),
    ],
)
def test_lines_of_sglang_that_do_not_fit_each_other_are_reported(old, new, code):
    assert solve(read_log(SGLANG_K3.replace(old, new)), K3, 8).contradictions == (code,)


def test_padding_layers_that_the_model_does_not_need_are_reported():
    text = ATOM_RECIPE.replace("Add 18 ", "Add 999 ")
    assert solve(read_log(text), K3, 8).contradictions == ("padding_layers",)


def test_each_cache_mode_is_taken_as_it_is():
    for mode, rollback in (("align", True), ("none", True), ("all", False)):
        solved = solve(read_log(ATOM_RECIPE.replace("'align'", f"'{mode}'")), K3, 8)
        assert solved.values["cache_mode"] == mode
        assert ("rollback" in solved.known) is rollback
    every = f"{43 * 3 + 43}"  # a state of each of three groups at every block of 65,536 tokens
    text = ATOM_RECIPE.replace("'align'", "'all'").replace("28.80x", f"{1584 / int(every):.2f}x")
    text = text.replace("1,887,436", str(int(1584 / int(every) * 65_536)))
    solved = solve(read_log(text), K3, 8)
    assert solved.values["state_blocks"] == 43 * 3
    assert solved.values["num_blocks"] == 1584
