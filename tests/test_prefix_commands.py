"""The commands ``ladder`` and ``hit-rate``."""

import gzip
import json
import os
from pathlib import Path

import pytest

from k3core.__main__ import main
from k3core.fleet import FleetSimulator, read_trace
from k3core.studies.prefix_cache.command import hit_rate, ladder_granularity, ladder_rows, policy_of

TRACE = Path(os.environ.get("K3_TRACES", "")) / "conversation_trace.jsonl.gz"


def run(capsys, *args):
    code = main(args)
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def trace(tmp_path):
    """A shared system prompt of two blocks, three conversations of three turns."""
    rows = []
    for turn in range(3):
        for user in range(3):
            ids = [1, 2, *(100 * (user + 1) + block for block in range(2 * turn + 2))]
            ids.append(1000 * (user + 1) + turn)
            rows.append(
                {
                    "timestamp": 1000 * len(rows),
                    "input_length": 512 * (len(ids) - 1) + 10,
                    "output_length": 5,
                    "hash_ids": ids,
                }
            )
    path = tmp_path / "trace.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


@pytest.mark.parametrize("policy", ["dense", "junction", "replay", "replay-boundary"])
def test_the_ladder_of_every_rule_with_stops_is_the_ceiling(capsys, policy):
    code, out, _ = run(
        capsys, "ladder", "--policy", policy, "--block", "512", "--groups", "3", "--json"
    )
    rows = json.loads(out)
    assert code == 0
    assert [row["prompt_len"] for row in rows] == list(range(512, 2050))
    for row in rows:
        assert row["ceiling_tokens"] == (row["prompt_len"] - 1) // 512 * 512
        assert row["hit_tokens"] == row["ceiling_tokens"]


def test_states_at_chunk_ends_alone_hit_almost_nothing(capsys):
    code, out, _ = run(capsys, "ladder", "--policy", "chunk_end", "--block", "512", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["hit_tokens"] for row in rows} == {0}


def test_a_drafter_costs_one_block_at_every_length(capsys):
    code, out, _ = run(capsys, "ladder", "--policy", "dense", "--drafter-drop", "--json")
    assert code == 0
    for row in json.loads(out):
        assert row["hit_tokens"] == max(row["ceiling_tokens"] - 512, 0)


def test_a_model_decides_the_block(capsys):
    args = ("ladder", "--policy", "replay", "--model", "kimi-k3", "--tp", "8", "--json")
    code, out, _ = run(capsys, *args, "--first", "3072", "--last", "3073")
    assert code == 0
    assert [(row["prompt_len"], row["hit_tokens"]) for row in json.loads(out)] == [
        (3072, 1536),
        (3073, 3072),
    ]
    code, out, _ = run(capsys, *args, "--block", "512", "--first", "3073", "--last", "3073")
    assert json.loads(out)[0]["hit_tokens"] == 3072
    code, out, _ = run(
        capsys, *args, "--context-parallel", "8", "--first", "20000", "--last", "20000"
    )
    assert json.loads(out)[0]["hit_tokens"] == 12_288


def test_a_token_budget_under_a_block_still_reaches_the_boundary():
    granularity = ladder_granularity(512, max_batched_tokens=100)
    rows = ladder_rows(granularity, policy_of("junction"))
    assert all(row.hit_tokens == row.ceiling_tokens for row in rows)


def test_the_ladder_as_text_names_the_granularity(capsys):
    code, out, _ = run(capsys, "ladder", "--model", "kimi-k3", "--policy", "replay")
    assert code == 0
    assert out.splitlines()[0] == "physical block 1,536, match unit 1,536, dropped blocks 0"
    assert out.splitlines()[-1] == "0 of 4,610 lengths below the ceiling"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--block", "500", "--model", "kimi-k3"), "every 192000 tokens"),
        (("--policy", "sometimes"), "policy='sometimes' is unknown"),
        (("--policy", "interval"), "interval_tokens=0"),
        (("--interval", "512"), "belongs to the policy interval"),
        (("--model", "nobody"), "model='nobody' is unknown"),
        (("--first", "9", "--last", "3"), "0 rows"),
        (("--model", "kimi-k3", "--tp", "7"), "tp"),
        (("--block", "9" * 25), "--block: block=9"),
        (("--first", "9" * 25), "--first: first=9"),
        (("--last", "9" * 25), "--last: last=9"),
        (("--last", "999999999", "--first", "1", "--step", "99999999"), "<= 2097152"),
        (("--block", "1", "--last", "200000"), "allowed: 10000000"),
        (("--model", "kimi-k3", "--quantum", "9" * 25), "<= 2097152"),
        (("--groups", "65"), "--groups: groups=65"),
        (("--tp", "7"), "--tp 7 has no effect here; allowed: with --model"),
        (("--mla-dtype", "float8"), "--mla-dtype float8"),
        (("--state-dtype", "float32"), "--state-dtype float32"),
        (("--drafts", "0"), "--drafts 0"),
        (("--quantum", "128"), "--quantum 128"),
        (("--context-parallel", "1"), "--context-parallel 1"),
    ],
)
def test_bad_ladders_are_one_line_and_exit_2(capsys, args, message):
    code, out, err = run(capsys, "ladder", *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--mla-dtype", "--state-dtype"])
def test_an_unknown_format_is_refused_by_its_option(capsys, option):
    with pytest.raises(SystemExit) as stop:
        main(["ladder", "--model", "kimi-k3", option, "nonsense"])
    error = capsys.readouterr().err
    assert (stop.value.code, error.count("\n")) == (2, 1)
    assert option in error


def test_hit_rate_counts_blocks_raw_and_tokens_under_the_policy(capsys, trace):
    results = {}
    for policy in ("dense", "junction", "replay", "none"):
        args = ("hit-rate", str(trace), "--policy", policy, "--capacity-blocks", "500", "--json")
        code, out, _ = run(capsys, *args)
        assert code == 0
        results[policy] = json.loads(out)
    one = results["dense"]
    assert (one["total_blocks"], one["num_requests"]) == (63, 9)
    simulated = FleetSimulator(1, capacity_blocks=500).run(read_trace(trace))
    for result in results.values():
        assert (result["hit_blocks"], result["hit_tokens"]) == (
            simulated.num_hit_blocks,
            simulated.num_hit_tokens,
        )
        assert result["checkpoint_bytes"] == result["num_checkpoints"] * 56_171_520
    reused = {policy: result["reused_tokens"] for policy, result in results.items()}
    assert reused["dense"] > reused["junction"] > reused["replay"] > reused["none"] == 0
    assert reused["junction"] == simulated.num_reused_tokens
    kept = {policy: result["num_checkpoints"] for policy, result in results.items()}
    assert kept["dense"] > kept["junction"] > kept["replay"] > kept["none"] == 0


def test_checkpoints_that_weigh_push_blocks_out(trace):
    light, heavy = (hit_rate(trace, policy_of("dense"), 40, weight) for weight in (0, 8))
    assert heavy.reused_tokens < light.reused_tokens


def test_hit_rate_as_text(capsys, trace):
    code, out, _ = run(capsys, "hit-rate", str(trace), "--policy", "interval", "--interval", "1024")
    assert code == 0
    assert out.startswith("policy        interval-1024, 5,859 blocks\n")
    assert "tokens reused" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("/does/not/exist",), "cannot read"),
        (("TRACE", "--policy", "chunk_end"), "chunk_end"),
        (("TRACE", "--model", "nobody"), "unknown"),
    ],
)
def test_bad_hit_rates_are_one_line_and_exit_2(capsys, trace, args, message):
    args = [str(trace) if arg == "TRACE" else arg for arg in args]
    code, out, err = run(capsys, "hit-rate", *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.skipif(not TRACE.is_file(), reason="K3_TRACES has no conversation trace")
def test_the_conversation_trace_gives_the_golden_integers():
    report = hit_rate(TRACE, policy_of("junction"), 10_000)
    assert (report.hit_blocks, report.hit_tokens) == (61_046, 31_238_981)
    assert (report.total_blocks, report.total_tokens) == (288_500, 144_793_823)
    assert 0 < report.reused_tokens < report.hit_tokens
