"""Budgets: what the served wait, how many are refused, and the percentile that misleads."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from k3core.figures import style
from k3core.figures.fleet.common import (
    CLASSES,
    Panels,
    Tables,
    layer,
    seconds_axis,
    seconds_ends,
)

_SETTINGS = ["none", "shared-reject", "separate-reject", "shared-queue", "separate-queue"]


def _row(settings: list[str]) -> alt.Y:
    return (
        alt.Y("setting:N")
        .sort(settings)
        .scale(paddingInner=0.25)
        .axis(title=None, labelExpr=style.label_expr(), labelLimit=130, ticks=False)
    )


def _by_class() -> tuple[alt.YOffset, alt.Color]:
    offset = alt.YOffset("cls:N").sort(CLASSES)
    color = (
        alt.Color("cls:N")
        .scale(domain=CLASSES, range=[style.NEUTRAL, style.FREE])
        .legend(style.legend(symbolStrokeWidth=0.8))
        .title(None)
    )
    return offset, color


def _rows(
    table: pd.DataFrame, column: str, axis: alt.Axis, number: str, scale: alt.Scale
) -> alt.LayerChart:
    """One bar per setting and class with its number behind it; a point on a log axis."""
    base = style.labelled(style.labelled(alt.Chart(table), "setting"), "cls")
    offset, color = _by_class()
    x = alt.X(f"{column}:Q").scale(scale).axis(axis)
    y = _row(_SETTINGS)
    edge: dict[str, Any] = {"stroke": style.NEUTRAL, "strokeWidth": 0.8}
    is_log = scale.type == "log"  # where the length of a bar means nothing
    mark = base.mark_point(filled=True, size=110, opacity=1, **edge) if is_log else None
    return layer(
        (mark or base.mark_bar(**edge)).encode(
            x,
            y,
            offset,
            color,
            tooltip=[
                alt.Tooltip("setting_text:N", title="fleet.axis.setting"),
                alt.Tooltip("cls_text:N", title="fleet.axis.cls"),
                alt.Tooltip("p95_s:Q", format=",.2f", title="fleet.axis.p95"),
                alt.Tooltip("num_refused:Q", format=",", title="fleet.axis.num_refused"),
                alt.Tooltip("num_arrived:Q", format=",", title="fleet.axis.num_arrived"),
                alt.Tooltip("goodput:Q", format=".1%", title="fleet.axis.goodput"),
            ],
        ),
        base.transform_calculate(words=number)
        .mark_text(align="left", dx=9 if is_log else 4, fontSize=11)
        .encode(x, y, offset, alt.Text("words:N")),
    )


def fig_fleet_budget(tables: Tables) -> Panels:
    """Tab 13 of the source text: with and without isolation, refuse or wait.

    Table: ``classes`` of ``AdmissionStudy``.
    """
    table = tables["classes"]
    served = table[table["p95_s"].notna()]
    low, high = seconds_ends(served["p95_s"])
    high *= 4  # room for the number behind a point, and for what is off the scale
    most = float(table["num_refused"].max())
    return {
        "p95": _rows(
            served,
            "p95_s",
            seconds_axis("fleet.axis.p95", low, high),
            "format(datum.p95_s, ',.3~r') + ' s'",
            alt.Scale(type="log", domain=[low, high], nice=False),
        ).properties(height=350, title="fleet.panel.p95"),
        "refused": _rows(
            table,
            "num_refused",
            alt.Axis(title="fleet.axis.num_refused", format="d", tickMinStep=1),
            "format(datum.num_refused, ',') + ' / ' + format(datum.num_arrived, ',')",
            alt.Scale(domain=[0, max(4.0, most * 1.35)]),
        ).properties(height=350, title="fleet.panel.refused"),
        "goodput": _rows(
            table,
            "goodput",
            alt.Axis(title="fleet.axis.goodput", format="%", values=[0, 0.25, 0.5, 0.75, 1]),
            "format(datum.goodput, '.1%')",
            alt.Scale(domain=[0, 1.2]),
        ).properties(height=350, title="fleet.panel.goodput"),
        "misleading": _misleading(table, low, high),
    }


def _misleading(table: pd.DataFrame, low: float, high: float) -> alt.LayerChart:
    """P95 of the served beside the one that counts a refusal as an infinite latency."""
    rows = table[table["mode"] != "queue"]
    rows = rows.assign(case=rows["budget"] + "-" + rows["cls"])
    cases = [f"{budget}-{cls}" for budget in ("none", "shared", "separate") for cls in CLASSES]
    folded = pd.concat(
        [
            rows.assign(how="served_only", value=rows["p95_s"]),
            rows.assign(how="with_refusals", value=rows["misleading_p95_s"]),
        ]
    )
    folded = folded[folded["value"].notna()]
    infinite = np.isinf(folded["value"])
    folded = folded.assign(
        shown=folded["value"].clip(upper=high),
        infinite=infinite,
        value=folded["value"].where(~infinite),
    )
    base = style.labelled(style.labelled(alt.Chart(folded), "case"), "how")
    hows = ["served_only", "with_refusals"]
    x = (
        alt.X("shown:Q")
        .scale(type="log", domain=[low, high], nice=False)
        .axis(seconds_axis("fleet.axis.p95", low, high))
    )
    y = (
        alt.Y("case:N")
        .sort(cases)
        .scale(paddingInner=0.25)
        .axis(title=None, labelExpr=style.label_expr(), labelLimit=130, ticks=False)
    )
    color = (
        alt.Color("how:N")
        .scale(domain=hows, range=[style.NEUTRAL, style.REJECTED])
        .legend(style.legend(symbolStrokeWidth=2))
        .title(None)
    )
    tooltip = [
        alt.Tooltip("case_text:N", title="fleet.axis.setting"),
        alt.Tooltip("how_text:N", title="fleet.axis.how"),
        alt.Tooltip("value:Q", format=",.2f", title="fleet.axis.p95"),
        alt.Tooltip("num_refused:Q", format=",", title="fleet.axis.num_refused"),
    ]
    wrong = base.transform_filter("datum.how == 'with_refusals'")
    return layer(
        base.transform_filter("datum.how == 'served_only'")
        .mark_point(filled=True, size=110, opacity=1, yOffset=-7)
        .encode(x, y, color, tooltip=tooltip),
        wrong.mark_point(
            filled=False, shape="diamond", size=130, opacity=1, strokeWidth=2, yOffset=7
        ).encode(x, y, color, tooltip=tooltip),
        wrong.transform_filter("datum.infinite")
        .transform_calculate(beyond="'∞ →'")
        .mark_text(align="right", dx=-10, dy=7, fontSize=13, color=style.REJECTED)
        .encode(x, y, alt.Text("beyond:N"), tooltip=tooltip),
    ).properties(height=350, title="fleet.panel.misleading")
