"""A run through a failure beside the same requests without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from k3core.fleet.result import FleetResult
from k3core.fleet.stats import order_statistic
from k3core.studies.fleet.bins import bin_index, bin_size_s
from k3core.studies.fleet.scenario import Scenario, kept_run

_COLUMNS = ("group", "reuse", "p95_s", "num_requests")


def through_failure(
    p: Scenario, victim: int, home: NDArray[np.int32]
) -> tuple[FleetResult, dict[str, pd.DataFrame]]:
    """The run of ``p`` with its failures, told apart by where sessions live.

    Args:
        victim: cluster whose sessions are one group; the others are the second.
        home: (R,) cluster that owns each request's session on the ring.

    Returns:
        The run, and tables of reuse and P95 by group: ``timeline`` (by minute of arrival),
        ``calm`` (the same requests when nothing fails; empty without a failure), ``while_down``
        (arrivals while a cluster is down, in both runs: column ``run``), ``marks`` (events).
    """
    result = kept_run(p)
    arrival_s = result.workload.arrival_s
    last_s = float(arrival_s[-1])
    size_s = bin_size_s(last_s, max_bins=24)
    index = bin_index(arrival_s, size_s)

    def by_minute(run: FleetResult) -> pd.DataFrame:
        rows = [
            {"minute": number * size_s / 60, **row}
            for number in range(int(index.max()) + 1)
            for row in _by_home(run, victim, home, index == number)
        ]
        return pd.DataFrame(rows, columns=["minute", *_COLUMNS])

    down = np.zeros(len(arrival_s), dtype=bool)
    for _, fails_s, returns_s in p.failures:
        down |= (arrival_s >= fails_s) & (arrival_s < returns_s)
    calm = kept_run(replace(p, failures=())) if down.any() else None
    runs = {"failed": result, "calm": calm} if calm else {}
    while_down = [
        {"run": name, **row}
        for name, run in runs.items()
        for row in _by_home(run, victim, home, down)
    ]
    marks = [
        {"event": event, "minute": at_s / 60}
        for _, fails_s, returns_s in p.failures
        for event, at_s in (("fails", fails_s), ("returns", returns_s))
        if at_s <= last_s
    ]
    timeline = by_minute(result)
    return result, {
        "timeline": timeline,
        "calm": by_minute(calm) if calm else timeline.head(0),
        "while_down": pd.DataFrame(while_down, columns=["run", *_COLUMNS]),
        "marks": pd.DataFrame(marks, columns=["event", "minute"]),
    }


def _by_home(
    run: FleetResult, victim: int, home: NDArray[np.int32], counted: NDArray[np.bool_]
) -> Iterator[dict[str, Any]]:
    """Reuse and P95 of the counted requests that were served, the victim's sessions apart."""
    for group, members in (("victim", home == victim), ("others", home != victim)):
        chosen = run.is_served & members & counted
        num_tokens = int(run.workload.input_len[chosen].sum())
        if num_tokens:
            values = (
                group,
                int(run.reused_len[chosen].sum()) / num_tokens,
                order_statistic(run.all_ttft_s[chosen], 0.95),
                int(chosen.sum()),
            )
            yield dict(zip(_COLUMNS, values, strict=True))
