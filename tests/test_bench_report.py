"""`bench-report`: the newest results as Markdown, with the machine and every bound."""

import json
import os

import pytest

from k3core.__main__ import main
from k3core.errors import K3Error
from k3core.studies.bench_report import bench_report


def results(datetime: str = "2026-01-02T03:04:05.6", **extra) -> dict:
    stats = {"median": 0.02, "q1": 0.019, "q3": 0.025}
    return {
        "datetime": datetime,
        "machine_info": {
            "cpu": {"brand_raw": "Some CPU", "count": 2},
            "python_version": "3.11.2",
            "lab": {"torch": "2.13.0", "cores": 2, "load": [0.5, 1.0, 1.5], "system": "Linux"},
        },
        "benchmarks": [
            {
                "group": "KDA",
                "name": "test_chunk[a|b]",
                "fullname": "tests/benchmarks/bench_kda.py::test_chunk[a|b]",
                "stats": stats,
                "extra_info": extra,
            },
            {
                "group": None,
                "name": "test_loading",
                "fullname": "tests/benchmarks/bench_fleet.py::test_loading",
                "stats": stats,
                "extra_info": {},
            },
        ],
    }


def ratio(best: float, met: bool | None) -> dict:
    bound = None if met is None else "≥ 3"
    values = {"best": best, "low": 1.5, "high": 4.5}
    return {"name": "peer / ours", "bound": bound, "met": met, **values}


def write(path, data) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def test_report_describes_the_machine_and_every_benchmark(tmp_path):
    write(tmp_path / "run.json", results())
    report = bench_report(tmp_path / "run.json")
    assert report.machine["Processor"] == "Some CPU"
    assert report.machine["Cores"] == "2"
    assert report.machine["torch"] == "2.13.0"
    assert [(row.group, row.name) for row in report.rows] == [
        ("fleet", "loading"),
        ("KDA", "chunk[a|b]"),
    ]
    text = report.markdown()
    assert "- Processor: Some CPU" in text
    assert "20 ms (19 ms to 25 ms)" in text


def test_each_ratio_and_growth_is_a_row_with_its_bound(tmp_path):
    fit = {"against": "T", "sizes": [1, 2], "best": 1.02, "low": 0.9, "high": 1.1}
    measures = [ratio(4.0, True), ratio(2.0, False), ratio(1.0, None)]
    data = results(measures=measures, exponents=[fit])
    write(tmp_path / "run.json", data)
    report = bench_report(tmp_path / "run.json")
    rows = [row for row in report.rows if row.group == "KDA"]
    assert [(row.what, row.best, row.met) for row in rows] == [
        ("peer / ours", 4.0, True),
        ("peer / ours", 2.0, False),
        ("peer / ours", 1.0, None),
        ("exponent of T", 1.02, None),
    ]
    assert report.num_missed == 1
    text = report.markdown()
    assert "| 4 (1.5 to 4.5) | ≥ 3 | yes |" in text
    assert "| 2 (1.5 to 4.5) | ≥ 3 | **no** |" in text
    assert "| 1.02 (0.9 to 1.1) |  |  |" in text


def test_every_row_of_the_table_has_six_cells(tmp_path):
    write(tmp_path / "run.json", results(measures=[ratio(4.0, True)]))
    lines = bench_report(tmp_path / "run.json").markdown().splitlines()
    table = [line.replace("\\|", "") for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}


def test_the_newest_file_of_a_folder_is_read(tmp_path):
    for name, stamp, seconds in (("b/old.json", "2025-01-01", 1), ("a/new.json", "2026-01-01", 2)):
        write(tmp_path / name, results(datetime=stamp))
        os.utime(tmp_path / name, (seconds, seconds))
    assert bench_report(tmp_path).machine["Date"] == "2026-01-01"


def test_command_prints_or_writes_the_report(tmp_path, capsys):
    write(tmp_path / "run.json", results())
    assert main(["bench-report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("- Processor: Some CPU")
    assert main(["bench-report", str(tmp_path), "--out", str(tmp_path / "table.md")]) == 0
    assert (tmp_path / "table.md").read_text() == printed


@pytest.mark.parametrize("content", ["{}", "[]", "no json", '{"benchmarks": []}', "[" * 100_000])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, content, capsys):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(K3Error, match=r"results=.*other\.json"):
        bench_report(tmp_path / "other.json")
    assert main(["bench-report", str(tmp_path / "other.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_results_yet_says_what_to_run(tmp_path, capsys):
    assert main(["bench-report", str(tmp_path)]) == 2
    assert "pytest tests/benchmarks" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_by_its_option(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench-report", str(tmp_path), "--out", str(tmp_path / "no" / "table.md")])
    error = capsys.readouterr().err
    assert (stop.value.code, error.count("\n")) == (2, 1)
    assert "--out" in error
