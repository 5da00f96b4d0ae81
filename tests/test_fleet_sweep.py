"""Sweeps and replays: every combination once, the same table wherever it ran."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from k3core.__main__ import main
from k3core.errors import K3Error, TraceError
from k3core.studies import fleet

ROOT = Path(__file__).parent.parent
BASE = fleet.Scenario(generate="sessions", num_requests=150, clusters=3, capacity_blocks=300)


@pytest.fixture
def trace(tmp_path):
    """Twelve requests of four sessions on a 3 s clock."""
    rows = [
        {
            "timestamp": 3000 * (number // 4),
            "input_length": 1100,
            "output_length": 5,
            "hash_ids": [0, 1 + number % 4, 10 + number],
        }
        for number in range(12)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_grid_is_every_combination_once():
    scenarios = fleet.grid(
        fleet.Scenario(generate="hubs", admission="reject"),
        ("session", "dynamo"),
        (2, 4, 8),
        ((4, 4), (8, 8)),
        ("replay", "every-4"),
        (0, 1),
    )
    points = {(s.router, s.clusters, s.budgets, s.checkpoints, s.seed) for s in scenarios}
    assert len(points) == len(scenarios) == 48


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"routers": ["mod-n"]}, "router='mod-n'"),
        ({"clusters": [0]}, "num_clusters=0"),
        ({"checkpoints": ["never"]}, "checkpoints='never'"),
        ({"budgets": [(1, 1)]}, "admission mode"),
    ],
)
def test_an_impossible_point_raises_before_anything_runs(axes, words):
    with pytest.raises(K3Error, match=words):
        fleet.grid(BASE, **axes)


def test_a_sweep_is_a_row_per_run_and_does_not_depend_on_the_number_of_processes():
    scenarios = fleet.grid(BASE, ("session", "sglang"), (2, 3), seeds=(0, 1))
    seen = []
    one = fleet.sweep(scenarios, jobs=1, progress=lambda *state: seen.append(state))
    two = fleet.sweep(scenarios, jobs=2)
    assert seen == [(number, 8) for number in range(1, 9)]
    pd.testing.assert_frame_equal(one.tables["runs"], two.tables["runs"])
    rows = one.tables["runs"]
    assert rows["router"].tolist() == ["session"] * 4 + ["sglang"] * 4
    expected = scenarios[5].run()
    assert rows["p95_all_s"][5] == expected.ttft_at(0.95)
    assert rows["reuse_rate_tokens"][5] == expected.reuse_share


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_table_survives_its_file(tmp_path, ending):
    table = fleet.sweep(fleet.grid(BASE, clusters=(2, 3)), jobs=1).tables["runs"]
    path = tmp_path / f"runs.{ending}"
    fleet.write_table(table, path)
    read = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    assert read["clusters"].tolist() == [2, 3]
    assert read["p95_short_s"].tolist() == table["p95_short_s"].tolist()


def test_a_bad_trace_is_named_before_any_run():
    with pytest.raises(TraceError, match="line 1"):
        fleet.sweep([fleet.Scenario()], b"{broken\n")


def test_the_sweep_command_runs_on_a_dask_cluster_with_two_workers(
    trace, tmp_path, capsys, monkeypatch
):
    """The same table as on this machine alone."""
    from distributed import LocalCluster

    # A page under test leaves itself as the main module, which new processes would run again.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    args = ["sweep", str(trace), "--router", "session,least-loaded", "--clusters", "2,3", "--quiet"]
    env = {"PYTHONPATH": str(ROOT), **os.environ}
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, env=env
    ) as cluster:
        there = tmp_path / "there.csv"
        assert main([*args, "--dask", cluster.scheduler_address, "--out", str(there)]) == 0
    here = tmp_path / "here.csv"
    assert main([*args, "--jobs", "1", "--out", str(here)]) == 0
    assert there.read_bytes() == here.read_bytes()
    assert len(pd.read_csv(there)) == 4


def test_a_sweep_without_an_answering_scheduler_is_one_line_and_exit_2(trace, monkeypatch, capsys):
    import distributed

    def no_answer(*args, **kwargs):
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", no_answer)
    assert main(["sweep", str(trace), "--dask", "tcp://127.0.0.1:1", "--quiet"]) == 2
    assert "does not answer" in capsys.readouterr().err


def test_the_sweep_command_prints_progress_and_a_table(trace, capsys):
    assert main(["sweep", str(trace), "--clusters", "1,2", "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    assert "2 of 2 runs" in captured.err
    lines = captured.out.splitlines()
    assert len(lines) == 3
    assert {"router", "clusters", "reuse"} <= set(lines[0].split())


def test_the_sweep_command_prints_json(capsys):
    args = ["sweep", "--generate", "hubs", "--num-requests", "50", "--jobs", "1", "--json"]
    assert main([*args, "--seeds", "0,1", "--quiet"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in rows] == [0, 1]


@pytest.mark.parametrize(
    "args",
    [
        ["sweep"],
        ["sweep", "--generate", "storm"],
        ["sweep", "--generate", "hubs", "--router", "mod-n"],
        ["sweep", "--generate", "hubs", "--clusters", "two"],
        ["sweep", "--generate", "hubs", "--budgets", "1,1"],
        ["sweep", "--generate", "hubs", "--out", "table.xlsx"],
        ["replay", "--generate", "hubs", "--admission", "reject", "--budgets", "1,1"],
        ["replay", "--generate", "hubs", "--measured", "1,2"],
        ["replay", "--generate", "hubs", "--measured", "1000,0,1"],
        ["replay", "--generate", "hubs", "--fail", "9,5"],
        ["replay", "--generate", "hubs", "--checkpoints", "never"],
        ["replay", "--generate", "hubs", "--cached-price", "9"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(args, capsys):
    try:
        code = main(args)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1


HUBS = ["--generate", "hubs", "--num-requests", "30"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["sweep", "--jobs", "99999"], ("--jobs", "'99999'", "1 to ")),
        (["sweep", "--jobs", "0"], ("--jobs", "'0'", "1 to ")),
        (["sweep", "--jobs", "1", "--dask", "tcp://x:1"], ("--jobs", "without --dask")),
        (["sweep", "--seeds", "a"], ("--seeds", "'a'", "0 to ")),
        (["sweep", "--out", "/no/such/folder/x.csv"], ("--out", "/no/such/folder/x.csv")),
        (["replay", "--budgets", "3,4"], ("--budgets", "3,4", "--admission")),
        (["replay", "--budgets", "1"], ("--budgets", "'1'", "SHORT,LONG")),
        (["replay", "--admission", "reject"], ("--admission", "reject", "--budgets")),
        (["replay", "--lanes", "shared"], ("--lanes", "shared", "--admission")),
        (["replay", "--max-overtakes", "-1"], ("--max-overtakes", "'-1'", "at least 0")),
        (["replay", "--max-overtakes", "1"], ("--max-overtakes", "1", "--admission")),
        (
            ["replay", "--measured", "9,0,1", "--measured", "99,0,3", "--constants", "1,1,1"],
            ("--constants and --measured", "allowed: one of"),
        ),
        (
            ["replay", "--cost", "kimi-k3", "--constants", "1,1,1"],
            ("--cost and --constants", "allowed: one of"),
        ),
        (["replay", "--measured", "1,2"], ("--measured", "'1,2'", "PROMPT,CACHED,SECONDS")),
        (["replay", "--constants", "1e308,0,0"], ("--constants", "1e+308", "<= 1e+06")),
        (["replay", "--fail", "1,x"], ("--fail", "'1,x'", "CLUSTER,AT_S")),
        (["replay", "--decode-ms", "5"], ("--decode-ms", "5.0", "--decode-tokens")),
        (["replay", "--load-factor", "2"], ("--load-factor", "2.0", "session-bounded")),
        (["sweep", "--refresh-s", "2"], ("--refresh-s", "2.0", "least-loaded-stale")),
        (["replay", "--ticks", "spread"], ("--ticks", "spread", "with a trace")),
        (["replay", "--warmup-s", "1e9"], ("--warmup-s", "1e+09", "arrivals")),
        (["sweep", "--warmup-s", "1e9", "--jobs", "1"], ("--warmup-s", "1e+09", "arrivals")),
        (["replay", "--until-s", "-1"], ("--until-s", "-1.0", "> 0")),
        (["replay", "--horizon-s", "1e-9"], ("--horizon-s", "1e-09", "arrivals")),
        (["replay", "--rate-per-s", "1e-308"], ("--rate-per-s", "1e-308", ">= 1e-06")),
        (["replay", "--speed", "1e-308"], ("--speed", "1e-308", ">= 1e-06")),
        (["replay", "--price", "1e308", "--json"], ("--price", "1e+308", "<= 1e+12")),
        (["replay", "--vnodes", "1000000"], ("--vnodes", "vnodes=1000000", "4194304")),
        (["replay", "--generate", "x"], ("--generate", "'x'", "sessions, hubs, lognormal")),
        (["replay", "--num-requests", "9999999"], ("--num-requests", "9999999", "<= 1000000")),
        (["replay", "--fail", "99,1"], ("--fail", "cluster=99", "<= 7")),
        (["replay", "--checkpoints", "x"], ("--checkpoints", "checkpoints='x'", "junction")),
    ],
)
def test_an_option_that_cannot_be_obeyed_is_named_with_what_is_allowed(args, words, capsys):
    try:
        code = main([args[0], *HUBS, *args[1:]])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err.count("\n")) == (2, "", 1)
    for word in words:
        assert word in captured.err


@pytest.mark.parametrize("option", ["--rate-per-s", "--arrival-cv"])
def test_a_trace_has_arrivals_of_its_own(trace, option, capsys):
    assert main(["replay", str(trace), option, "2"]) == 2
    assert f"argument {option}: 2.0" in capsys.readouterr().err


def test_either_a_trace_or_a_generator_is_replayed(trace, capsys):
    assert main(["replay", str(trace), *HUBS]) == 2
    assert "only one of them" in capsys.readouterr().err


def replayed(capsys, *args):
    assert main(["replay", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_coarse_timestamps_are_replayed_raw_and_spread(trace, capsys):
    both = replayed(capsys, str(trace))
    assert both["tick_s"] == 3.0
    assert both["ticks"] == "raw"
    only = replayed(capsys, str(trace), "--ticks", "spread")
    assert only["spread"] is None
    for name in ("p95_ttft_s", "hit_blocks", "goodput"):
        assert both["spread"][name] == only[name]
    assert replayed(capsys, str(trace), "--ticks", "raw")["p95_ttft_s"] == both["p95_ttft_s"]
    assert both["p95_ttft_s"] != only["p95_ttft_s"]


EVERY_OPTION = """
    --generate sessions --num-requests 300 --rate-per-s 8 --arrival-cv 2 --speed 2 --clusters 3
    --servers 2 --weights 1,2,1 --vnodes 40 --router dynamo --checkpoints every-4+cap3
    --checkpoint-blocks 8 --capacity-blocks 900 --class-threshold 4000 --class-by uncached
    --admission queue --admission-by uncached --budgets 40000,300000 --lanes shared
    --max-overtakes 5 --measured 1000,0,0.1 --measured 50000,0,4 --decode-tokens 900000
    --decode-ms 5 --fail 1,5,9 --warmup-s 2 --until-s 60 --slo-s 3 --price 5 --cached-price 1
    --seed 4
"""


def test_every_option_of_replay_reaches_the_run(capsys):
    report = replayed(capsys, *EVERY_OPTION.split())
    assert report["cost"]["calibrated"]
    assert report["admission"]["lanes"] == "shared"
    assert report["failures"] == [[1, 5.0, 9.0]]
    assert report["window"]["start_s"] == 2.0
    assert report["slo_s"] == 3.0
    assert report["checkpoints"] == "every-4+cap3"
    assert report["saved_money"] == pytest.approx(report["reused_tokens"] * 4 / 1e6)
    assert report["num_moved"] > 0
    assert report["num_served"] + report["num_rejected"] == report["num_requests"]


def test_the_text_of_a_replay_names_the_window_and_the_origin_of_its_seconds(trace, capsys):
    assert main(["replay", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "declared model" in text
    assert "12 requests that arrived from 0" in text
    assert "3 s ticks spread" in text
    measured = ["--measured", "1000,0,0.1", "--measured", "50000,0,4"]
    assert main(["replay", str(trace), *measured]) == 0
    assert "measured: fitted to 2" in capsys.readouterr().out


def test_json_of_a_replay_is_the_same_in_every_process(trace):
    def text():
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "k3core",
                "replay",
                str(trace),
                "--router",
                "mooncake",
                "--json",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "random"},
        )
        return {**json.loads(done.stdout), "requests_per_s": None}

    assert text() == text()
