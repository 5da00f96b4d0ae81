"""The same requests under every router: how much is reused, how long the served wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from k3core.fleet.failures import Failure
from k3core.fleet.result import FleetResult
from k3core.fleet.router import ROUTERS
from k3core.fleet.stats import order_statistic
from k3core.fleet.workload import CLASS_NAMES
from k3core.studies.fleet.bins import bin_index, bin_size_s
from k3core.studies.fleet.scenario import Scenario, kept_run, page_scenario
from k3core.units import count_text, percent_text, seconds_text


@dataclass(frozen=True)
class RoutersStudy:
    """Table ``routers``: one row per router and tick treatment.

    Attributes:
        num_requests, num_sessions, minutes: of the workload.
        tick_s: grain of the timestamps; above 0 every router also ran with spread arrivals.
        most_reuse, least_wait: codes of the routers that win on one axis; the first one while
            nobody was served.
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

    @property
    def shown(self) -> pd.DataFrame:
        """The table without the columns that only the pictures need."""
        return self.tables["routers"].drop(columns=["chosen", "refused_text"])

    @property
    def any_refused(self) -> bool:
        return bool((self.tables["routers"]["num_refused"] > 0).any())

    def has(self, router: str) -> bool:
        """Whether that router ran with raw timestamps (a reader may stop a comparison early)."""
        rows = self.tables["routers"]
        return bool(((rows["router"] == router) & (rows["ticks"] == "raw")).any())

    def row(self, router: str) -> pd.Series:
        """The row of a router with raw timestamps; the first row while it has not run."""
        rows = self.tables["routers"]
        if self.has(router):
            rows = rows[(rows["router"] == router) & (rows["ticks"] == "raw")]
        return rows.iloc[0]

    def csv(self, **settings: Any) -> bytes:
        """The table with what it was computed for in columns of their own."""
        columns = {f"set_{name}": str(value) for name, value in settings.items()}
        return self.shown.assign(**columns).to_csv(index=False).encode()

    def headline(self, router: str) -> dict[str, tuple[str, dict[str, str]]]:
        """The numbers of one router and, each in words, what to hold it against."""
        row, most, least = self.row(router), self.row(self.most_reuse), self.row(self.least_wait)
        return {
            "reuse": (
                percent_text(row["reuse"]),
                {"value": percent_text(most["reuse"]), "router": self.most_reuse},
            ),
            "p95": (
                seconds_text(row["p95_s"]),
                {"value": seconds_text(least["p95_s"]), "router": self.least_wait},
            ),
            "refused": (
                f"{count_text(row['num_refused'])} / {count_text(row['num_arrived'])}",
                {"share": percent_text(row["goodput"]), "slo": f"{row['slo_s']:g}"},
            ),
            "balance": (f"{row['peak_to_mean']:.2f}", {"spread": percent_text(row["load_cv"], 0)}),
            "saved": (f"${row['saved_money']:,.2f}", {"full": f"${row['full_money']:,.2f}"}),
        }


def routers(**params: Any) -> RoutersStudy:
    """Run every router on the same requests.

    Args:
        params: fields of ``Scenario``, all but the router.
    """
    rows = [
        router_run(**{**params, "router": router, "ticks": ticks})
        for ticks in tick_variants(**params)
        for router in ROUTERS
    ]
    return gather(rows, **params)


def tick_variants(**params: Any) -> tuple[str, ...]:
    """How the arrivals are taken: ``raw``, and ``spread`` when the timestamps are coarse."""
    return ("raw", "spread") if page_scenario(**params).workload().tick_s > 0 else ("raw",)


def router_run(**params: Any) -> dict[str, Any]:
    """One run of the comparison, as a row of its table: what a page computes one at a time."""
    p = page_scenario(**params)
    return _row(kept_run(p), p)


def gather(rows: Sequence[dict[str, Any]], **params: Any) -> RoutersStudy:
    """The comparison of the runs made so far."""
    workload = page_scenario(**params).workload()
    table = pd.DataFrame(list(rows))
    raw, first = table[(table["ticks"] == "raw") & table["p95_s"].notna()], table["router"].iloc[0]
    return RoutersStudy(
        num_requests=len(workload),
        num_sessions=workload.num_sessions,
        minutes=float(workload.arrival_s[-1]) / 60,
        long_share=float(workload.is_long.mean()),
        tick_s=workload.tick_s,
        most_reuse=str(raw.loc[raw["reuse"].idxmax(), "router"]) if len(raw) else first,
        least_wait=str(raw.loc[raw["p95_s"].idxmin(), "router"]) if len(raw) else first,
        tables={"routers": table},
    )


def _row(result: FleetResult, p: Scenario) -> dict[str, Any]:
    mean_load_s = float(result.load_s.mean())
    return {
        "router": p.router,
        "ticks": p.ticks,
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
        "slo_s": p.slo_s,
        "goodput": result.goodput(p.slo_s),
        "served_tokens": result.num_served_tokens,
        "reused_tokens": result.num_reused_tokens,
        "saved_s": _saved_s(result, p),
        "saved_money": result.saved_money(p.price, p.cached_price),
        "full_money": result.num_served_tokens * p.price / 1e6,
    }


def _served_blocks(result: FleetResult) -> int:
    return int(np.diff(result.workload.block_offsets)[result.is_served].sum())


def _percentiles(result: FleetResult) -> dict[str, float]:
    """``p95_s`` of all served requests, ``p95_short_s`` of a class, and so on."""
    return {
        f"p{percent}_{f'{cls}_' if cls else ''}s": result.ttft_at(percent / 100, cls)
        for percent in (50, 95, 99)
        for cls in (None, *CLASS_NAMES)
    }


def _saved_s(result: FleetResult, p: Scenario) -> float:
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

    @property
    def words(self) -> dict[str, str]:
        """Its numbers as people read them."""
        return {
            "failovers": count_text(self.num_failovers),
            "moved": count_text(self.num_moved),
            "tokens": count_text(self.reprefilled_tokens),
        }


def load_strip(**params: Any) -> StripStudy:
    """Work sent to each cluster through time under one router.

    Args:
        params: fields of ``Scenario``.
    """
    p = page_scenario(**params)
    result = kept_run(p)
    size_s = bin_size_s(float(result.workload.arrival_s[-1]))
    strip = _strip(result, size_s)
    end_minute = float(strip["end_minute"].max()) if len(strip) else 0.0
    failures = [
        failure for failure in map(Failure._make, p.failures) if failure.at_s / 60 < end_minute
    ]
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
