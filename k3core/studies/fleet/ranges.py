"""Routers side by side over a range of one quantity: load, clusters, or cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from k3core.errors import require_choice
from k3core.studies.fleet.scenario import kept_run, page_scenario
from k3core.studies.fleet.sweep import run_row
from k3core.units import count_text

RANGES: dict[str, tuple[float, ...]] = {
    "speed": (0.5, 1.0, 1.5, 2.0, 3.0),
    "clusters": (2, 4, 8, 16, 32),
    "capacity_blocks": (250, 1000, 4000, 16_000),
}
"""Field of ``Scenario`` -> its values; speeds are relative to the scenario's own."""

REFERENCES = ("session", "session-bounded", "least-loaded", "prefix-load")


@dataclass(frozen=True)
class RangeStudy:
    """Table ``range``: one row per router and value, as ``sweep`` makes them.

    Attributes:
        over: field of ``Scenario`` that varies.
        num_requests: of one run, whatever became of them.
        low, high: smallest and largest value.
        low_router, high_router: who waits least (P95) there.
    """

    over: str
    num_requests: int
    low: float
    high: float
    low_router: str
    high_router: str
    tables: dict[str, pd.DataFrame]

    @property
    def words(self) -> dict[str, str]:
        """Its numbers as people read them."""
        return {
            "requests": count_text(self.num_requests),
            "low": f"{self.low:,g}",
            "high": f"{self.high:,g}",
        }

    def choose(self, router: str) -> dict[str, pd.DataFrame]:
        """The tables with one router marked as chosen."""
        rows = self.tables["range"]
        return {"range": rows.assign(chosen=rows["router"] == router)}


def range_points(over: str = "speed", router: str = "session") -> list[dict[str, Any]]:
    """The runs of a range: four routers to compare with, and ``router``.

    Raises:
        K3Error: ``over`` is no key of ``RANGES``.
    """
    require_choice("over", over, RANGES)
    routers = dict.fromkeys((*REFERENCES, router))
    return [{"value": value, "router": code} for value in RANGES[over] for code in routers]


def range_run(
    over: str = "speed", value: float = 1.0, speed: float = 1.0, **params: Any
) -> dict[str, Any]:
    """One point of a range, as a row of its table; nothing fails in it.

    Args:
        over: key of ``RANGES``.
        value: what that field stands at.
        speed: of the scenario, which a value of ``speed`` multiplies.
        params: other fields of ``Scenario``.
    """
    require_choice("over", over, RANGES)
    varied = {"speed": speed, over: value * speed if over == "speed" else value}
    scenario = page_scenario(**{**params, **varied, "failures": ()})
    return {"over": over, "value": value, **run_row(scenario, kept_run(scenario))}


def gather_range(rows: Sequence[dict[str, Any]]) -> RangeStudy:
    """The range of the runs made so far."""
    table = pd.DataFrame(list(rows))
    low, high = float(table["value"].min()), float(table["value"].max())
    return RangeStudy(
        over=str(table["over"].iloc[0]),
        num_requests=int(table["num_requests"].max()),
        low=low,
        high=high,
        low_router=_least_wait(table, low),
        high_router=_least_wait(table, high),
        tables={"range": table},
    )


def _least_wait(table: pd.DataFrame, value: float) -> str:
    served = table[(table["value"] == value) & table["p95_all_s"].notna()]
    return str(served.loc[served["p95_all_s"].idxmin(), "router"]) if len(served) else ""


def load_range(over: str = "speed", **params: Any) -> RangeStudy:
    """Every point of a range at once."""
    points = range_points(over, params.get("router", "session"))
    return gather_range([range_run(**{**params, "over": over, **point}) for point in points])
