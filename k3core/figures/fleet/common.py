"""What the figures of the fleet share: layers, scales of seconds, rules at a failure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

SECONDS_LABELS = "format(datum.value, ',.3~r') + ' s'"
CLASSES = ["short", "long"]


def layer(*charts: alt.Chart) -> alt.LayerChart:
    """Charts on top of each other."""
    return alt.LayerChart(layer=list(charts))


def seconds_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten from ``low`` to ``high``; only powers when there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def seconds_ends(values: pd.Series) -> tuple[float, float]:
    """Powers of ten around the positive values: a log axis that stands still between runs."""
    positive = values[values > 0]
    low = max(float(positive.min()), 1e-3) if len(positive) else 0.1
    high = max(float(positive.max()), low) if len(positive) else 10.0
    return 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high * 1.001))


def seconds_axis(title: str, low: float, high: float) -> alt.Axis:
    return alt.Axis(title=title, values=seconds_ticks(low, high), labelExpr=SECONDS_LABELS)


def seconds_x(column: str, values: pd.Series) -> alt.X:
    """A log axis of seconds around ``values``."""
    low, high = seconds_ends(values)
    return (
        alt.X(f"{column}:Q")
        .scale(type="log", domain=[low, high], clamp=True)
        .axis(seconds_axis("fleet.axis.ttft", low, high))
    )


def cluster_axis(title: str | None = "fleet.axis.cluster") -> alt.Axis:
    return alt.Axis(title=title, labelAngle=0, ticks=False)


def event_rules(marks: pd.DataFrame, x: alt.X) -> list[alt.Chart]:
    """A dashed rule with its word where a cluster fails or returns."""
    base = style.labelled(alt.Chart(marks), "event")
    return [
        base.mark_rule(strokeDash=[5, 4], color=style.REJECTED, strokeWidth=1.5).encode(x),
        base.mark_text(align="left", baseline="bottom", dx=3, dy=-2, fontSize=11).encode(
            x, alt.Text("event_text:N"), y=alt.value(0)
        ),
    ]
