"""The same requests under every router: how much is reused, how long the served wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from k3core.errors import require
from k3core.fleet.result import FleetResult
from k3core.fleet.router import ROUTERS
from k3core.fleet.stats import order_statistic
from k3core.studies.fleet.bins import bin_index, bin_size_s
from k3core.studies.fleet.params import CLASSES, FleetParams
from k3core.units import percent_text


@dataclass(frozen=True)
class RoutersStudy:
    """Table ``routers``: one row per router and tick treatment.

    Attributes:
        num_requests, num_sessions, minutes: of the workload.
        tick_s: grain of the timestamps; above 0 every router also ran with spread arrivals.
        most_reuse, least_wait: codes of the routers that win on one axis.
    """

    num_requests: int
    num_sessions: int
    minutes: float
    long_share: float
    tick_s: float
    most_reuse: str
    least_wait: str
    tables: dict[str, pd.DataFrame]

    def choose(self, router: str) -> dict[str, pd.DataFrame]:
        """The tables with one router marked as chosen."""
        rows = self.tables["routers"]
        return {**self.tables, "routers": rows.assign(chosen=rows["router"] == router)}

    def has(self, router: str) -> bool:
        """Whether that router ran with raw timestamps (a reader may stop a comparison early)."""
        rows = self.tables["routers"]
        return bool(((rows["router"] == router) & (rows["ticks"] == "raw")).any())

    def row(self, router: str) -> pd.Series:
        """The row of a router with raw timestamps."""
        rows = self.tables["routers"]
        return rows[(rows["router"] == router) & (rows["ticks"] == "raw")].iloc[0]


def routers(slo_s: float = 10.0, **params: Any) -> RoutersStudy:
    """Run every router on the same requests.

    Args:
        slo_s: a first token within it counts as good.
        params: fields of ``FleetParams``.
    """
    rows = [
        router_run(router, ticks, slo_s, **params)
        for ticks in tick_variants(**params)
        for router in ROUTERS
    ]
    return gather(rows, **params)


def tick_variants(**params: Any) -> tuple[str, ...]:
    """How the arrivals are taken: ``raw``, and ``spread`` when the timestamps are coarse."""
    return ("raw", "spread") if FleetParams(**params).workload().tick_s > 0 else ("raw",)


def router_run(
    router: str = "session", ticks: str = "raw", slo_s: float = 10.0, **params: Any
) -> dict[str, Any]:
    """One run of the comparison, as a row of its table: what a page computes one at a time."""
    require(ticks in ("raw", "spread"), f"ticks={ticks!r} must be 'raw' or 'spread'")
    require(slo_s > 0, f"slo_s={slo_s} must be > 0")
    p = FleetParams(**params)
    if ticks == "raw":
        result = p.run(router)
    else:
        result = p.simulator(router).run(p.workload().spread(p.seed))
    return _row(router, ticks, result, p, slo_s)


def gather(rows: Sequence[dict[str, Any]], **params: Any) -> RoutersStudy:
    """The comparison of the runs made so far."""
    workload = FleetParams(**params).workload()
    table = pd.DataFrame(list(rows))
    raw = table[(table["ticks"] == "raw") & table["p95_s"].notna()]
    return RoutersStudy(
        num_requests=len(workload),
        num_sessions=workload.num_sessions,
        minutes=float(workload.arrival_s[-1]) / 60,
        long_share=float(workload.is_long.mean()),
        tick_s=workload.tick_s,
        most_reuse=str(raw.loc[raw["reuse"].idxmax(), "router"]) if len(raw) else "",
        least_wait=str(raw.loc[raw["p95_s"].idxmin(), "router"]) if len(raw) else "",
        tables={"routers": table},
    )


def _row(
    router: str, ticks: str, result: FleetResult, p: FleetParams, slo_s: float
) -> dict[str, Any]:
    mean_load_s = float(result.load_s.mean())
    return {
        "router": router,
        "ticks": ticks,
        "chosen": False,
        "reuse": result.reuse_share,
        "mla_match": result.num_hit_tokens / max(1, result.num_served_tokens),
        "hit_blocks_share": result.num_hit_blocks / max(1, _served_blocks(result)),
        **_percentiles(result),
        "p95_done_s": order_statistic(
            (result.done_s - result.workload.arrival_s)[result.is_served], 0.95
        ),
        "peak_to_mean": result.peak_to_mean_load,
        "load_cv": result.load_std_s / mean_load_s if mean_load_s > 0 else math.nan,
        "refused_share": result.rejected_share(),
        "refused_text": percent_text(result.rejected_share(), 0),
        "num_arrived": result.num_arrived(),
        "num_served": result.num_served(),
        "num_refused": result.num_rejected(),
        "num_in_flight": result.num_in_flight(),
        "num_failovers": result.num_failovers,
        "reprefilled_tokens": result.reprefilled_tokens,
        "utilisation": result.utilisation,
        "slo_s": slo_s,
        "goodput": result.goodput(slo_s),
        "served_tokens": result.num_served_tokens,
        "reused_tokens": result.num_reused_tokens,
        "saved_s": _saved_s(result, p),
    }


def _served_blocks(result: FleetResult) -> int:
    return int(np.diff(result.workload.block_offsets)[result.is_served].sum())


def _percentiles(result: FleetResult) -> dict[str, float]:
    """``p95_s`` of all served requests, ``p95_short_s`` of a class, and so on."""
    return {
        f"p{percent}_{f'{cls}_' if cls else ''}s": result.ttft_at(percent / 100, cls)
        for percent in (50, 95, 99)
        for cls in (None, *CLASSES)
    }


def _saved_s(result: FleetResult, p: FleetParams) -> float:
    """Prefill seconds that reuse spared the served requests, by the cost model."""
    served = result.is_served
    skipped = result.reused_len[served].astype(np.float64)
    cost = p.prefill
    return float((cost.linear_s * skipped + cost.quadratic_s * skipped**2).sum())


@dataclass(frozen=True)
class StripStudy:
    """Tables ``strip`` (one row per cluster and bin), ``down`` and ``marks`` (the failure).

    Attributes:
        bin_s: seconds of one bin.
        peak_load: largest cell, in prefill seconds per second.
        num_failovers, num_moved, reprefilled_tokens: what the failure cost.
    """

    bin_s: float
    peak_load: float
    num_failovers: int
    num_moved: int
    reprefilled_tokens: int
    tables: dict[str, pd.DataFrame]


def load_strip(router: str = "session", **params: Any) -> StripStudy:
    """Work sent to each cluster through time under one router.

    Args:
        router: key of ``ROUTERS``.
        params: fields of ``FleetParams``.
    """
    p = FleetParams(**params)
    result = p.run(router)
    size_s = bin_size_s(float(result.workload.arrival_s[-1]))
    strip = _strip(result, size_s)
    end_minute = float(strip["end_minute"].max()) if len(strip) else 0.0
    failures = [failure for failure in p.failures if failure.at_s / 60 < end_minute]
    down = [
        {
            "cluster": result.clusters[failure.cluster],
            "minute": failure.at_s / 60,
            "end_minute": min(failure.return_s / 60, end_minute),
        }
        for failure in failures
    ]
    marks = [
        {"event": event, "minute": at_s / 60}
        for failure in failures
        for event, at_s in (("fails", failure.at_s), ("returns", failure.return_s))
        if at_s / 60 < end_minute
    ]
    return StripStudy(
        bin_s=size_s,
        peak_load=float(strip["load"].max()) if len(strip) else 0.0,
        num_failovers=result.num_failovers,
        num_moved=result.num_moved,
        reprefilled_tokens=result.reprefilled_tokens,
        tables={
            "strip": strip,
            "down": pd.DataFrame(down, columns=["cluster", "minute", "end_minute"]),
            "marks": pd.DataFrame(marks, columns=["event", "minute"]),
        },
    )


def _strip(result: FleetResult, size_s: float) -> pd.DataFrame:
    rows = result.is_served
    index = bin_index(result.workload.arrival_s[rows], size_s)
    num_bins = int(index.max()) + 1 if len(index) else 0
    num_clusters = len(result.clusters)
    cell = result.cluster[rows].astype(np.int64) * num_bins + index
    work_s = np.bincount(cell, weights=result.service_s[rows], minlength=num_clusters * num_bins)
    count = np.bincount(cell, minlength=num_clusters * num_bins)
    minute = np.tile(np.arange(num_bins), num_clusters) * size_s / 60
    return pd.DataFrame(
        {
            "cluster": np.repeat(np.array(result.clusters), num_bins),
            "minute": minute,
            "end_minute": minute + size_s / 60,
            "load": work_s / size_s,
            "num_requests": count,
        }
    )
