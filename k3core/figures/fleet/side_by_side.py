"""Every router on the same requests, one panel per question that a decision needs."""

from __future__ import annotations

import altair as alt
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

_OUTCOMES = ["in_time", "late", "refused", "unserved"]


def fig_fleet_routers(tables: Tables) -> Panels:
    """Waiting by class, what became of the requests, reuse, and balance, router by router.

    Table: ``routers`` of ``RoutersStudy``; only runs with the timestamps as recorded.
    """
    table = tables["routers"]
    raw = table[table["ticks"] == "raw"]
    return {
        "waits": _waits(raw),
        "outcomes": _outcomes(raw),
        "reuse": _reuse(raw),
        "balance": _balance(raw),
    }


def _row(table: pd.DataFrame) -> alt.Y:
    return (
        alt.Y("router:N")
        .sort(list(dict.fromkeys(table["router"])))
        .scale(paddingInner=0.3)
        .axis(title=None, labelExpr=style.label_expr(), labelLimit=110, ticks=False)
    )


def _waits(table: pd.DataFrame) -> alt.LayerChart:
    """A line from P50 to P99 with its mark at P95, per router and class."""
    rows = pd.concat(
        [
            table[["router"]].assign(
                cls=cls, **{p: table[f"{p}_{cls}_s"] for p in ("p50", "p95", "p99")}
            )
            for cls in CLASSES
        ]
    ).dropna()
    low, high = seconds_ends(pd.concat([rows["p50"], rows["p99"]]))
    base = style.labelled(style.labelled(alt.Chart(rows), "router"), "cls")
    x = (
        alt.X("p50:Q")
        .scale(type="log", domain=[low, high], clamp=True)
        .axis(seconds_axis("fleet.axis.p50_to_p99", low, high))
    )
    y, offset = _row(table), alt.YOffset("cls:N").sort(CLASSES)
    tooltip = [
        alt.Tooltip("router_text:N", title="fleet.axis.router"),
        alt.Tooltip("cls_text:N", title="fleet.axis.cls"),
        alt.Tooltip("p50:Q", format=",.3~f", title="fleet.axis.p50"),
        alt.Tooltip("p95:Q", format=",.3~f", title="fleet.axis.p95"),
        alt.Tooltip("p99:Q", format=",.3~f", title="fleet.axis.p99"),
    ]
    return layer(
        base.mark_rule(strokeWidth=3, color=style.FREE).encode(
            x, alt.X2("p99:Q"), y, offset, tooltip=tooltip
        ),
        base.mark_point(size=70, opacity=1, color=style.NEUTRAL, strokeWidth=1.8).encode(
            alt.X("p95:Q"),
            y,
            offset,
            alt.Fill("cls:N")
            .scale(domain=CLASSES, range=[style.NEUTRAL, "transparent"])
            .legend(style.legend())
            .title(None),
            tooltip=tooltip,
        ),
    ).properties(height=300, title="fleet.panel.waits")


def _outcomes(table: pd.DataFrame) -> alt.LayerChart:
    """All requests that arrived: first token in time, later, refused, still inside at the end."""
    arrived = table["num_arrived"].clip(lower=1)
    shares = {
        "in_time": table["goodput"],
        "late": table["num_served"] / arrived - table["goodput"],
        "refused": table["refused_share"],
        "unserved": table["num_in_flight"] / arrived,
    }
    rows = pd.concat(
        [
            table[["router", "goodput"]].assign(outcome=outcome, share=share, order=order)
            for order, (outcome, share) in enumerate(shares.items())
        ]
    )
    base = style.labelled(style.labelled(alt.Chart(rows), "router"), "outcome")
    y = _row(table)
    return layer(
        base.mark_bar().encode(
            alt.X("share:Q")
            .scale(domain=[0, 1], nice=False)
            .axis(title="fleet.axis.share_arrived", format="%", tickCount=5),
            y,
            alt.Color("outcome:N")
            .scale(
                domain=_OUTCOMES, range=[style.ACCEPTED, style.FREE, style.REJECTED, style.NEUTRAL]
            )
            .legend(style.legend(values=_OUTCOMES[:3], symbolStrokeWidth=0))
            .title(None),
            alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("router_text:N", title="fleet.axis.router"),
                alt.Tooltip("outcome_text:N", title="fleet.axis.what"),
                alt.Tooltip("share:Q", format=".2%", title="fleet.axis.share_arrived"),
            ],
        ),
        base.transform_filter("datum.outcome == 'in_time'")
        .transform_calculate(words="format(datum.goodput, '.1%')")
        .mark_text(align="left", dx=5, fontWeight="bold", color="#FFFFFF")
        .encode(y, alt.Text("words:N"), x=alt.value(0)),
    ).properties(height=300, title="fleet.panel.outcomes")


def _reuse(table: pd.DataFrame) -> alt.LayerChart:
    """Filled: tokens reused. Hollow: what the MLA blocks alone promised."""
    base = style.labelled(alt.Chart(table), "router")
    y = _row(table)
    high = min(1.0, float(table[["reuse", "mla_match"]].max().max()) * 1.3 + 0.02)
    tooltip = [
        alt.Tooltip("router_text:N", title="fleet.axis.router"),
        alt.Tooltip("reuse:Q", format=".2%", title="fleet.axis.reuse"),
        alt.Tooltip("mla_match:Q", format=".2%", title="fleet.axis.mla_match"),
        alt.Tooltip("hit_blocks_share:Q", format=".2%", title="fleet.axis.hit_blocks"),
    ]
    return layer(
        base.mark_bar(color=style.NEUTRAL).encode(
            alt.X("reuse:Q")
            .scale(domain=[0, high], nice=False)
            .axis(title="fleet.axis.reuse", format="%", tickCount=5),
            y,
            tooltip=tooltip,
        ),
        base.mark_bar(filled=False, stroke=style.MLA, strokeWidth=1.5).encode(
            alt.X("mla_match:Q").title("fleet.axis.reuse"), y, tooltip=tooltip
        ),
        base.transform_calculate(
            words="format(datum.reuse, '.1%')", end="max(datum.reuse, datum.mla_match)"
        )
        .mark_text(align="left", dx=6)
        .encode(alt.X("end:Q").title("fleet.axis.reuse"), y, alt.Text("words:N")),
    ).properties(height=300, title="fleet.panel.reuse")


def _balance(table: pd.DataFrame) -> alt.LayerChart:
    """Load of the fullest cluster over the mean, with the coefficient of variation as text."""
    base = style.labelled(alt.Chart(table), "router")
    y = _row(table)
    high = float(table["peak_to_mean"].max()) * 1.45
    x = (
        alt.X("peak_to_mean:Q")
        .scale(domain=[0, high], nice=False)
        .axis(title="fleet.axis.peak_to_mean", tickCount=5)
    )
    return layer(
        base.mark_bar(color=style.NEUTRAL).encode(
            x,
            y,
            tooltip=[
                alt.Tooltip("router_text:N", title="fleet.axis.router"),
                alt.Tooltip("peak_to_mean:Q", format=".3f", title="fleet.axis.peak_to_mean"),
                alt.Tooltip("load_cv:Q", format=".1%", title="fleet.axis.load_cv"),
                alt.Tooltip("utilisation:Q", format=".1%", title="fleet.axis.utilisation"),
            ],
        ),
        base.transform_calculate(
            words="format(datum.peak_to_mean, '.2f') + ' (±' + format(datum.load_cv, '.0%') + ')'"
        )
        .mark_text(align="left", dx=5)
        .encode(x, y, alt.Text("words:N")),
    ).properties(height=300, title="fleet.panel.balance")
