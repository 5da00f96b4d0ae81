"""The last results of the benchmarks as a Markdown table, with the machine they came from.

Reads what ``python -m pytest tests/benchmarks --benchmark-autosave`` leaves in `.benchmarks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3core.errors import require
from k3core.units import seconds_text

RESULTS_DIR = Path(".benchmarks")


@dataclass(frozen=True)
class BenchRow:
    """One line of the report.

    Attributes:
        group, name: of the benchmark.
        median_s, low_s, high_s: seconds per call with the quartiles.
        what: the ratio, value or growth that was measured, empty without one.
        best, low, high: its value from the best times, and its quartiles over the rounds.
        bound: such as ``≥ 3``, empty without one.
        met: whether the best times meet the bound, None without one.
    """

    group: str
    name: str
    median_s: float
    low_s: float
    high_s: float
    what: str = ""
    best: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class BenchReport:
    """All rows of one run and the machine, described by name and value."""

    machine: dict[str, str]
    rows: tuple[BenchRow, ...]

    @property
    def num_missed(self) -> int:
        """Bounds that were not met."""
        return sum(row.met is False for row in self.rows)

    def markdown(self) -> str:
        """The machine as one line per fact, then the table."""
        lines = [f"- {name}: {value}" for name, value in self.machine.items()]
        lines += [
            "",
            "| Benchmark | Time (quartiles) | Measure | Value (quartiles) | Bound | Met |",
            "|---|---|---|---|---|---|",
        ]
        group = None
        for row in self.rows:
            if row.group != group:
                group = row.group
                lines.append(f"| **{_cell(group)}** | | | | | |")
            lines.append(f"| {' | '.join(_cells(row))} |")
        return "\n".join(lines)


def bench_report(results: Path | None = None) -> BenchReport:
    """Read one results file.

    Args:
        results: a JSON file of pytest-benchmark, or a folder whose newest one is read; None means
            `RESULTS_DIR` in the current folder.

    Raises:
        K3Error: there is no results file, or it is not one of pytest-benchmark.
    """
    path = _newest(RESULTS_DIR if results is None else results)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(_rows(data["benchmarks"]))
        machine = _machine(data)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        require(False, f"results={path} is not a file of pytest-benchmark: {error!r}")
        raise
    return BenchReport(machine, rows)


def _newest(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(path.rglob("*.json"), key=lambda x: (x.stat().st_mtime, x.name))
    require(
        bool(found),
        f"results={path} holds no results; "
        "run python -m pytest tests/benchmarks --benchmark-autosave first",
    )
    return found[-1]


def _machine(data: Mapping[str, Any]) -> dict[str, str]:
    info = data["machine_info"]
    cpu, lab = info.get("cpu", {}), info.get("lab", {})
    load = lab.get("load", [])
    named = {
        "Processor": cpu.get("brand_raw", info.get("processor", "")),
        "Cores": str(lab.get("cores") or cpu.get("count", "")),
        "System": lab.get("system") or f"{info.get('system', '')} {info.get('release', '')}",
        "Python": info["python_version"],
        "torch": lab.get("torch", ""),
        "k3core": lab.get("k3core", ""),
        "Load when it began or ended": ", ".join(f"{x:.1f}" for x in load),
        "Date": str(data["datetime"])[:19],
    }
    return {name: value for name, value in named.items() if value.strip()}


def _rows(benchmarks: list[Mapping[str, Any]]) -> Iterator[BenchRow]:
    in_groups = sorted(benchmarks, key=lambda b: b.get("group") or "")
    for bench in in_groups:
        stats, extra = bench["stats"], bench.get("extra_info", {})
        base = {
            "group": bench.get("group") or _module(bench["fullname"]),
            "name": bench["name"].removeprefix("test_"),
            "median_s": float(stats["median"]),
            "low_s": float(stats["q1"]),
            "high_s": float(stats["q3"]),
        }
        measures = [
            {
                "what": measure["name"],
                "best": float(measure["best"]),
                "low": float(measure["low"]),
                "high": float(measure["high"]),
                "bound": measure["bound"] or "",
                "met": measure["met"],
            }
            for measure in extra.get("measures", ())
        ]
        measures += [
            {
                "what": f"exponent of {fit['against']}",
                "best": float(fit["best"]),
                "low": float(fit["low"]),
                "high": float(fit["high"]),
            }
            for fit in extra.get("exponents", ())
        ]
        for measure in measures or [{}]:
            yield BenchRow(**base, **measure)


def _module(fullname: str) -> str:
    return Path(fullname.partition("::")[0]).stem.removeprefix("bench_")


def _cells(row: BenchRow) -> tuple[str, ...]:
    low, high = seconds_text(row.low_s), seconds_text(row.high_s)
    time = f"{seconds_text(row.median_s)} ({low} to {high})"
    value = ""
    if row.best is not None and row.low is not None and row.high is not None:
        value = f"{_number(row.best)} ({_number(row.low)} to {_number(row.high)})"
    met = {None: "", True: "yes", False: "**no**"}[row.met]
    return _cell(row.name), time, _cell(row.what), value, row.bound, met


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
