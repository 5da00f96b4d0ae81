"""One run: load of the clusters, times to first token, and the numbers that sum it up."""

from __future__ import annotations

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.fleet.common import CLASSES, Panels, Tables, cluster_axis, layer, seconds_x


def fig_fleet_simulation(tables: Tables) -> Panels:
    """Tab 14 of the source text: load, times to first token, summary.

    Tables: ``load``, ``ecdf``, ``histogram``, ``p95``, ``summary`` of ``SimulationStudy``.
    """
    return {
        "load": _load(tables["load"]),
        "ecdf": _ecdf(tables["ecdf"]),
        "histogram": _histogram(tables),
        "summary": _summary(tables["summary"]),
    }


def _load(table: pd.DataFrame) -> alt.LayerChart:
    base = alt.Chart(table)
    x = alt.X("cluster:N").sort(list(table["cluster"])).axis(cluster_axis())
    return layer(
        base.mark_bar(color=style.NEUTRAL).encode(
            x,
            alt.Y("load_s:Q").axis(title="fleet.axis.load_s"),
            tooltip=[
                alt.Tooltip("cluster:N", title="fleet.axis.cluster"),
                alt.Tooltip("load_s:Q", format=",.1f", title="fleet.axis.load_s"),
                alt.Tooltip("num_served:Q", format=",", title="fleet.axis.num_requests"),
                alt.Tooltip("lost_s:Q", format=",.1f", title="fleet.axis.lost_s"),
                alt.Tooltip("cached_blocks:Q", format=",", title="fleet.axis.cached_blocks"),
            ],
        ),
        base.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=style.REJECTED).encode(
            alt.Y("mean_s:Q", aggregate="mean")
        ),
    ).properties(height=280, title="fleet.panel.load")


def _ecdf(table: pd.DataFrame) -> alt.LayerChart:
    base = style.labelled(alt.Chart(table), "cls")
    rule = alt.Chart(pd.DataFrame({"share": [0.95]}))
    y = (
        alt.Y("share:Q")
        .scale(domain=[0, 1.02], nice=False)
        .axis(title="fleet.axis.share_served", format="%", values=[0, 0.25, 0.5, 0.75, 0.95])
    )
    return layer(
        rule.mark_rule(strokeDash=[5, 4], color=style.REJECTED).encode(y),
        base.mark_line(interpolate="step-after", strokeWidth=2, color=style.NEUTRAL).encode(
            seconds_x("ttft_s", table["ttft_s"]),
            y,
            alt.StrokeDash("cls:N")
            .scale(domain=CLASSES, range=[[1, 0], [6, 4]])
            .legend(style.legend(symbolStrokeColor=style.NEUTRAL))
            .title(None),
            tooltip=[
                alt.Tooltip("cls_text:N", title="fleet.axis.cls"),
                alt.Tooltip("ttft_s:Q", format=",.3f", title="fleet.axis.ttft"),
                alt.Tooltip("share:Q", format=".1%", title="fleet.axis.share_served"),
            ],
        ),
    ).properties(height=280, title="fleet.panel.ecdf")


def _histogram(tables: Tables) -> alt.LayerChart:
    """The short class, as the source text asks, with its P95 as a rule."""
    table = tables["histogram"]
    short = table[table["cls"] == "short"]
    filled = short[short["num_requests"] > 0]
    x = seconds_x("start_s", pd.concat([filled["start_s"], filled["end_s"]]))
    p95 = tables["p95"][tables["p95"]["cls"] == "short"]
    rule = alt.Chart(p95)
    return layer(
        alt.Chart(filled)
        .mark_bar(color=style.NEUTRAL, stroke=style.FREE, strokeWidth=0.5)
        .encode(
            x,
            alt.X2("end_s:Q"),
            alt.Y("num_requests:Q").axis(title="fleet.axis.num_requests", format="d"),
            alt.Y2(datum=0),
            tooltip=[
                alt.Tooltip("start_s:Q", format=",.3f", title="fleet.axis.from_s"),
                alt.Tooltip("end_s:Q", format=",.3f", title="fleet.axis.to_s"),
                alt.Tooltip("num_requests:Q", title="fleet.axis.num_requests"),
            ],
        ),
        rule.mark_rule(color=style.REJECTED, strokeDash=[5, 4], strokeWidth=2).encode(
            alt.X("p95_s:Q")
        ),
        rule.transform_calculate(words="'P95 = ' + format(datum.p95_s, ',.3~r') + ' s'")
        .mark_text(align="right", dx=-6, dy=8, fontWeight="bold")
        .encode(alt.X("p95_s:Q"), alt.Text("words:N"), y=alt.value(0)),
    ).properties(height=280, title="fleet.panel.histogram")


def _summary(table: pd.DataFrame) -> alt.Chart:
    base = style.labelled(alt.Chart(table), "row")
    return (
        base.transform_calculate(left="0")
        .mark_text(align="left", dx=8, fontSize=13, fontWeight="bold")
        .encode(
            alt.X("left:Q").scale(domain=[0, 1]).axis(None),
            alt.Y("row:N")
            .sort(None)
            .axis(
                title=None, labelExpr=style.label_expr(), labelLimit=220, ticks=False, domain=False
            ),
            alt.Text("value:N"),
        )
        .properties(height=280, title="fleet.panel.summary")
    )
