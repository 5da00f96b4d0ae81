"""Many runs of the fleet: every combination of router, clusters, budget, policy and seed.

The runs go through joblib: over the cores of this machine, or over a Dask cluster when the address
of its scheduler is given (its workers need this package). The table does not depend on where or
in which order they ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from k3core.errors import K3Error, require
from k3core.fleet.result import FleetResult
from k3core.fleet.workload import CLASS_NAMES
from k3core.studies.fleet.scenario import Scenario
from k3core.studies.fleet.traces import store_trace
from k3core.units import percent_text

AXES = ("router", "clusters", "budgets", "checkpoints", "seed")
Progress = Callable[[int, int], None]
"""(runs finished, runs in all)."""


@dataclass(frozen=True)
class SweepStudy:
    """Table ``runs``: one row per run, axes first.

    Attributes:
        num_runs: rows.
    """

    num_runs: int
    tables: dict[str, pd.DataFrame]


def grid(
    base: Scenario,
    routers: Sequence[str] = (),
    clusters: Sequence[int] = (),
    budgets: Sequence[tuple[int, int]] = (),
    checkpoints: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> list[Scenario]:
    """Every combination; an axis without values keeps that of ``base``.

    Raises:
        K3Error: a combination is impossible (nothing has run then).
    """
    require(
        not budgets or base.admission != "none",
        "budgets need an admission mode: 'reject' or 'queue'",
    )
    axes: tuple[Sequence[Any], ...] = (
        routers or (base.router,),
        clusters or (base.clusters,),
        budgets or (base.budgets,),
        checkpoints or (base.checkpoints,),
        seeds or (base.seed,),
    )
    scenarios = []
    for point in product(*axes):
        values: dict[str, Any] = dict(zip(AXES, point, strict=True))
        scenarios.append(replace(base, **values))
    for scenario in scenarios:
        scenario.simulator()
    return scenarios


def sweep(
    scenarios: Sequence[Scenario],
    trace: bytes | None = None,
    jobs: int = -1,
    dask: str | None = None,
    progress: Progress | None = None,
) -> SweepStudy:
    """Run the scenarios; the rows are in their order.

    Args:
        scenarios: of ``grid``.
        trace: bytes of the trace that they replay; None: they generate requests, or name one.
        jobs: processes of this machine; -1: one per core.
        dask: address of a Dask scheduler instead, such as ``tcp://127.0.0.1:8786``.
        progress: called after every run.

    Raises:
        K3Error: no scenario, ``dask`` without Dask installed or without an answer, or what a run
            raises.
    """
    require(bool(scenarios), "scenarios must not be empty")
    if trace is not None:  # a bad one is named here, not by a worker
        key = store_trace(trace).key
        scenarios = [replace(scenario, trace=key) for scenario in scenarios]
    seeds: set[int] = set()
    for scenario in scenarios:
        if not seeds or (scenario.has_window and scenario.seed not in seeds):
            scenario.require_counted(scenario.workload())
            seeds.add(scenario.seed)
    if dask is None:
        return _collect(scenarios, trace, progress, jobs)
    import joblib  # type: ignore[import-untyped]

    client = _client(dask)
    try:
        with joblib.parallel_config(backend="dask", client=client, scatter=[trace]):
            return _collect(scenarios, trace, progress, -1)
    finally:
        client.close()


def write_table(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table as ``.parquet``, or as ``.csv``.

    Raises:
        K3Error: another ending.
    """
    ending = Path(path).suffix.lower()
    if ending == ".parquet":
        table.to_parquet(path, index=False)
    elif ending == ".csv":
        table.to_csv(path, index=False)
    else:
        raise K3Error(f"out={str(path)!r} must end in .csv or .parquet")


def _collect(
    scenarios: Sequence[Scenario], trace: bytes | None, progress: Progress | None, jobs: int
) -> SweepStudy:
    import joblib

    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    numbered: Iterable[tuple[int, dict[str, Any]]] = parallel(
        joblib.delayed(_numbered_row)(number, scenario, trace)
        for number, scenario in enumerate(scenarios)
    )
    rows: dict[int, dict[str, Any]] = {}
    for number, row in numbered:
        rows[number] = row
        if progress is not None:
            progress(len(rows), len(scenarios))
    table = pd.DataFrame([rows[number] for number in range(len(scenarios))])
    return SweepStudy(len(table), {"runs": table})


def _numbered_row(
    number: int, scenario: Scenario, trace: bytes | None
) -> tuple[int, dict[str, Any]]:
    if trace is not None:
        store_trace(trace)  # parsed once per process
    return number, run_row(scenario, scenario.run())


def run_row(scenario: Scenario, result: FleetResult) -> dict[str, Any]:
    """One run as a row: what was asked for, then all the numbers that belong together."""
    facts = scenario.facts(result)
    row: dict[str, Any] = {
        "router": scenario.router,
        "clusters": scenario.clusters,
        "servers": scenario.servers,
        "admission": scenario.admission,
        "budget_short": scenario.budgets[0] if scenario.admission != "none" else None,
        "budget_long": scenario.budgets[1] if scenario.admission != "none" else None,
        "checkpoints": scenario.checkpoints,
        "capacity_blocks": scenario.capacity_blocks,
        "ticks": scenario.ticks,
        "seed": scenario.seed,
    }
    for cls in (*CLASS_NAMES, "all"):
        for q in ("p50", "p95", "p99"):
            row[f"{q}_{cls}_s"] = facts[f"{q}_ttft_s"][cls]
        row[f"rejected_{cls}"] = facts["rejection_rate"][cls]
        row[f"goodput_{cls}"] = facts["goodput"][cls]
    for name in (
        "slo_s",
        "num_requests",
        "num_served",
        "num_rejected",
        "num_in_flight",
        "hit_rate_blocks",
        "hit_rate_tokens",
        "reuse_rate_tokens",
        "peak_to_mean_load",
        "load_cv",
        "utilisation",
        "num_failovers",
        "reprefilled_tokens",
        "saved_money",
    ):
        row[name] = facts[name]
    row["window_start_s"] = facts["window"]["start_s"]
    row["window_end_s"] = facts["window"]["end_s"]
    return row


def _client(address: str) -> Any:
    try:
        from distributed import Client  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise K3Error("dask: the packages dask and distributed are not installed") from error
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise K3Error(f"dask={address!r} does not answer: {error}") from error
    return client


_PRINTED = {
    "router": "router",
    "clusters": "clusters",
    "budget_short": "budget S",
    "budget_long": "budget L",
    "checkpoints": "checkpoints",
    "seed": "seed",
    "p95_short_s": "P95 short",
    "p95_long_s": "P95 long",
    "rejected_all": "rejected",
    "goodput_all": "goodput",
    "reuse_rate_tokens": "reuse",
    "peak_to_mean_load": "peak/mean",
    "utilisation": "busy",
}
_SHARES = ("rejected_all", "goodput_all", "reuse_rate_tokens", "utilisation")
_SECONDS = ("p95_short_s", "p95_long_s")


def sweep_lines(table: pd.DataFrame) -> list[str]:
    """The table as lines for a terminal: the axes, and the numbers of one decision."""
    shown = pd.DataFrame({name: [_cell(name, value) for value in table[name]] for name in _PRINTED})
    for name in ("budget_short", "budget_long"):
        if (shown[name] == "").all():
            del shown[name]
    widths = {name: max(len(_PRINTED[name]), *map(len, shown[name])) for name in shown}
    lines = ["  ".join(f"{_PRINTED[name]:>{widths[name]}}" for name in shown)]
    lines += [
        "  ".join(f"{cell:>{widths[name]}}" for name, cell in zip(shown, row, strict=True))
        for row in shown.itertuples(index=False)
    ]
    return lines


def _cell(name: str, value: Any) -> str:
    if value is None or value != value:
        return "" if name.startswith("budget") else "–"
    if name in _SHARES:
        return percent_text(value)
    if name in _SECONDS:
        return f"{value:.2f} s"
    if name == "peak_to_mean_load":
        return f"{value:.2f}"
    return value if isinstance(value, str) else f"{value:.0f}"
