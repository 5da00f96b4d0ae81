"""The command line: thin over the studies, one line and exit 2 on bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3core.__main__ import build_parser, main
from k3core.errors import K3Error
from k3core.i18n import t

ROOT = Path(__file__).parent.parent
COMMANDS = (
    "verify",
    "engine",
    "export",
    "replay",
    "sweep",
    "capacity",
    "published",
    "ladder",
    "hit-rate",
    "bench-report",
)


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "k3core", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "random"},
    )


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 3, 4]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args([command, "--help"])
    assert stop.value.code == 0
    assert command in capsys.readouterr().out


def codes_of(option):
    if option == "--router":
        from k3core.fleet.router import ALL_ROUTERS as codes
    elif option == "--fault":
        from k3core.studies.verification import FAULT_CODES as codes
    else:
        from k3core.studies.prefix_cache.command import POLICY_NAMES

        return [POLICY_NAMES]
    return codes


@pytest.mark.parametrize(
    ("command", "option", "control"),
    [
        ("verify", "--fault", "verification.control.fault_help"),
        ("replay", "--router", "fleet.control.fleet_router_help"),
        ("sweep", "--router", None),
        ("ladder", "--policy", None),
        ("hit-rate", "--policy", None),
    ],
)
def test_help_lists_the_codes_of_an_option_and_the_app_says_them_too(
    command, option, control, capsys
):
    with pytest.raises(SystemExit):
        build_parser().parse_args([command, "--help"])
    listed = " ".join(capsys.readouterr().out.replace("-\n", "-").split()).replace("- ", "-")
    for code in codes_of(option):
        assert code in listed
        assert control is None or f"`{code}`" in t(control)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["nothing"],
        ["replay"],
        ["replay", "no/such/file.jsonl"],
        ["replay", "--clusters", "0", "x"],
        ["export"],
        ["export", "--out", "unused", "--figure", "fig_nothing"],
        ["replay", "--clusters", "1000000", "x"],
        ["export", "--out", "unused", "--lang", "xx", "--figure", "fig_mla_paging"],
        ["verify", "--fault", "nothing"],
        ["verify", "--seed", "99999999999999999999"],
        ["engine", "--seed", "-1"],
        ["engine", "--prompt-len", "many"],
        ["engine", "--prompt-len", "999999999"],
        ["engine", "--prompt-len", "30000000"],
        ["engine", "--shared-len", "2000"],
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_2(args, capsys):
    try:
        code = main(args)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_a_long_prompt_is_refused_with_what_is_allowed(capsys):
    assert main(["engine", "--prompt-len", "32769"]) == 2
    error = capsys.readouterr().err
    assert "--prompt-len: prompt_len=32769 must be an integer >= 1 and <= 32768" in error


@pytest.mark.parametrize(
    "sizes",
    [
        {"new_tokens": 10**9},
        {"layers": 10**6},
        {"heads": 10**9},
        {"dk": 256, "dv": 256, "heads": 256},
        {"block_tokens": 10**12},
        {"prompt_len": 32_768, "chunk_tokens": 10**9},
        {"draft_len": 10**9},
    ],
)
def test_an_engine_too_large_is_refused_before_it_is_built(sizes, monkeypatch):
    from k3core.engine import demo
    from k3core.studies.engine import before_after

    monkeypatch.setattr(demo, "HybridModel", lambda config: pytest.fail("built"))
    with pytest.raises(K3Error):
        before_after(**sizes)


def test_a_terminal_without_utf_8_gets_the_words_it_can_show(trace):
    done = subprocess.run(
        [sys.executable, "-m", "k3core", "replay", str(trace)],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"long ?" in done.stdout


def test_a_bad_trace_line_is_named(trace, capsys):
    trace.write_text(trace.read_text() + "{broken\n")
    assert main(["replay", str(trace)]) == 2
    assert "line 3" in capsys.readouterr().err


def test_replay_prints_the_promised_keys(trace, capsys):
    assert main(["replay", str(trace), "--clusters", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    promised = [
        "num_requests",
        "num_served",
        "num_rejected",
        "total_blocks",
        "hit_blocks",
        "total_tokens",
        "hit_tokens",
        "reused_tokens",
        "p95_ttft_s",
        "peak_to_mean_load",
        "requests_per_s",
    ]
    assert set(promised) <= set(report)
    assert (report["num_requests"], report["total_blocks"], report["hit_blocks"]) == (2, 7, 2)
    assert report["hit_tokens"] == 1024


@pytest.mark.parametrize("router", ["session", "round-robin", "least-loaded"])
def test_the_same_replay_prints_the_same_text_but_for_its_speed(trace, router):
    def lines():
        out = run("replay", str(trace), "--router", router, "--json").stdout
        report = json.loads(out)
        report.pop("requests_per_s")
        return report

    assert lines() == lines()


def test_engine_prints_before_and_after(capsys):
    assert main(["engine", "--prompt-len", "600", "--shared-len", "520"]) == 0
    assert "512" in capsys.readouterr().out


def test_export_writes_two_files_per_figure(tmp_path, capsys):
    assert main(["export", "--out", str(tmp_path), "--figure", "fig_mla_paging"]) == 0
    assert len(list(tmp_path.iterdir())) == len(capsys.readouterr().out.split()) == 2
