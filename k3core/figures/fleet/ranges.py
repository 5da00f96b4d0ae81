"""Routers over a range of one quantity, a line each: waiting, reuse, balance, first tokens in time.

The four panels share their marks: a shape and a dash per router, the chosen one thick.
"""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.fleet.common import Panels, Tables, layer, seconds_axis

_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross"]
_DASHES = [[1, 0], [9, 3], [2, 3], [9, 3, 2, 3], [5, 5]]


def fig_fleet_range(tables: Tables) -> Panels:
    """What more load, more clusters or more cache do to each router.

    Table: ``range`` of ``RangeStudy``, with a column ``chosen``.
    """
    table = tables["range"]
    low, high = _powers_of_two(table["p95_all_s"])
    waits = (
        alt.Y("p95_all_s:Q")
        .scale(type="log", domain=[low, high], clamp=True)
        .axis(seconds_axis("fleet.axis.p95", low, high))
    )
    balance = alt.Y("peak_to_mean_load:Q").scale(zero=False).axis(title="fleet.axis.peak_to_mean")
    panels = {
        "p95": waits,
        "reuse": _share("reuse_rate_tokens", "fleet.axis.reuse"),
        "goodput": _share("goodput_all", "fleet.axis.goodput"),
        "balance": balance,
    }
    return {
        name: _lines(table, y).properties(height=320, title=f"fleet.panel.range_{name}")
        for name, y in panels.items()
    }


def _powers_of_two(values: pd.Series) -> tuple[float, float]:
    """Ends of a log axis that stands still while the values move a little."""
    positive = values[values > 0]
    if positive.empty:
        return 1.0, 2.0
    low, high = math.floor(math.log2(positive.min())), math.ceil(math.log2(positive.max()))
    return 2.0**low, 2.0 ** max(high, low + 1)


def _share(column: str, title: str) -> alt.Y:
    axis = alt.Axis(title=title, format="%", values=[0, 0.25, 0.5, 0.75, 1])
    return alt.Y(f"{column}:Q").scale(domain=[0, 1], nice=False).axis(axis)


def _lines(table: pd.DataFrame, y: alt.Y) -> alt.LayerChart:
    routers = list(dict.fromkeys(table["router"]))
    over = str(table["over"].iloc[0])
    x = (
        alt.X("value:Q")
        .scale(type="log", base=2, nice=False)
        .axis(
            title=f"fleet.axis.over_{over}",
            values=sorted(set(table["value"])),
            format="~s" if over == "capacity_blocks" else "~g",
        )
    )
    base = style.labelled(alt.Chart(table), "router")
    tooltip = [
        alt.Tooltip("router_text:N", title="fleet.axis.router"),
        alt.Tooltip("value:Q", format=",~g", title=f"fleet.axis.over_{over}"),
        alt.Tooltip("p95_all_s:Q", format=",.2f", title="fleet.axis.p95"),
        alt.Tooltip("reuse_rate_tokens:Q", format=".1%", title="fleet.axis.reuse"),
        alt.Tooltip("goodput_all:Q", format=".1%", title="fleet.axis.goodput"),
        alt.Tooltip("peak_to_mean_load:Q", format=".2f", title="fleet.axis.peak_to_mean"),
    ]
    shape = (
        alt.Shape("router:N")
        .scale(domain=routers, range=_SHAPES[: len(routers)])
        .legend(style.legend())
        .title(None)
    )
    chosen = set(table.loc[table["chosen"], "router"])
    layers = [
        base.transform_filter(f"datum.router == '{router}'")
        .mark_line(color=style.NEUTRAL, strokeWidth=4 if router in chosen else 1.8, strokeDash=dash)
        .encode(x, y)
        for router, dash in zip(routers, _DASHES, strict=False)
    ]
    layers += [
        base.transform_filter(which)
        .mark_point(filled=True, color=style.NEUTRAL, size=size, opacity=1)
        .encode(x, y, shape, tooltip=tooltip)
        for which, size in (("!datum.chosen", 75), ("datum.chosen", 170))
    ]
    return layer(*layers)
