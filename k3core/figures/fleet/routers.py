"""Reuse against waiting, one mark per router; and the load of the clusters through time."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.fleet.common import (
    SECONDS_LABELS,
    Tables,
    event_rules,
    layer,
    seconds_ticks,
)
from k3core.figures.fleet.labels import with_labels

_OFF_SCALE = 12.0  # times the median P95: beyond that a mark is drawn at the edge
_PHONE = "width < 480"


def _placed(routers: pd.DataFrame) -> tuple[pd.DataFrame, float, float]:
    """Rows with a P95, their places and their labels' on the scale, and the scale's ends."""
    table = routers[routers["p95_s"].notna()].copy()
    values = table["p95_s"].clip(lower=1e-3)
    median = float(values.median()) if len(values) else 1.0
    on_scale = values[values <= _OFF_SCALE * median]
    # Powers of two: the axis stands still while a slider moves a little.
    top = 2.0 ** math.ceil(math.log2(float(on_scale.max()) * 1.25)) if len(on_scale) else 1.0
    low = 2.0 ** math.floor(math.log2(float(values.min()) / 1.25)) if len(values) else 0.5
    table["off_scale"] = values > top
    table["shown_s"] = values.clip(upper=top)
    return with_labels(table, low, top, _high_reuse(table)), low, top


def _high_reuse(table: pd.DataFrame) -> float:
    """End of the reuse axis: a multiple of 20 % with room for a label."""
    if table.empty:
        return 1.0
    most = float(table[["reuse", "mla_match"]].max().max())
    return min(1.0, math.ceil(most * 5 + 0.5) / 5)


def main_picture(tables: Tables) -> alt.LayerChart:
    """One mark per router on the same requests.

    Tables: ``routers`` of ``RoutersStudy``. The filled mark stands at what was reused, the hollow
    blue one at what the router believes (MLA blocks seen); they part where a checkpoint is missing.
    Size is peak over mean load, a vermillion ring the refused share, a line leads to the small
    mark of the same router with the ticks of the trace spread out.
    """
    table, low, top = _placed(tables["routers"])
    base = style.labelled(alt.Chart(table), "router")
    raw = base.transform_filter("datum.ticks == 'raw'")
    spread = base.transform_filter("datum.ticks == 'spread'")
    high_reuse = _high_reuse(table)
    x, believed = _share_x("reuse", high_reuse), _share_x("mla_match", high_reuse)
    y = (
        alt.Y("shown_s:Q")
        .scale(type="log", domain=[low, top], nice=False)
        .axis(title="fleet.axis.p95", values=seconds_ticks(low, top), labelExpr=SECONDS_LABELS)
    )
    size = (
        alt.Size("peak_to_mean:Q")
        .scale(domain=[1, 8], range=[130, 700], clamp=True)
        .legend(
            orient="top", values=[1, 2, 4, 8], title="fleet.axis.peak_to_mean", symbolType="circle"
        )
    )
    tooltip = [
        alt.Tooltip("router_text:N", title="fleet.axis.router"),
        alt.Tooltip("reuse:Q", format=".1%", title="fleet.axis.reuse"),
        alt.Tooltip("mla_match:Q", format=".1%", title="fleet.axis.mla_match"),
        alt.Tooltip("p95_s:Q", format=",.2f", title="fleet.axis.p95"),
        alt.Tooltip("p95_short_s:Q", format=",.2f", title="fleet.axis.p95_short"),
        alt.Tooltip("p95_long_s:Q", format=",.2f", title="fleet.axis.p95_long"),
        alt.Tooltip("peak_to_mean:Q", format=".2f", title="fleet.axis.peak_to_mean"),
        alt.Tooltip("num_refused:Q", format=",", title="fleet.axis.num_refused"),
        alt.Tooltip("goodput:Q", format=".1%", title="fleet.axis.goodput"),
    ]
    wide = (
        "(datum.peak_to_mean > 4 && !datum.label_left ? '\u2003\u2002' : '')"
        " + (datum.peak_to_mean > 4 && datum.refused_share > 0 ? '\u2003' : '') + "
    )
    words = (
        "datum.router_text"
        " + (datum.off_scale ? ': ' + format(datum.p95_s, ',.0f') + ' s' : '')"
        " + (datum.refused_share > 0 ? ' (−' + datum.refused_text + ')' : '')"
    )
    named = raw.transform_calculate(words=wide + words, narrow_words=words)
    layers: list[alt.Chart] = []
    if (table["ticks"] == "spread").any():
        layers += [
            base.mark_line(color=style.NEUTRAL, strokeWidth=1.5).encode(
                x, y, alt.Detail("router:N"), alt.Order("ticks:N")
            ),
            spread.mark_point(
                color=style.NEUTRAL, size=70, filled=True, opacity=1, shape="diamond"
            ).encode(x, y, tooltip=tooltip),
        ]
    layers += [
        raw.transform_filter("datum.refused_share > 0")
        .mark_point(filled=False, color=style.REJECTED, opacity=1)
        .encode(
            x,
            y,
            alt.Size("peak_to_mean:Q")
            .scale(domain=[1, 8], range=[480, 1300], clamp=True)
            .legend(None),
            alt.StrokeWidth("refused_share:Q").scale(domain=[0, 1], range=[1.5, 14]).legend(None),
            tooltip=tooltip,
        ),
        raw.mark_point(filled=True, color=style.NEUTRAL, opacity=1, cursor="pointer")
        .encode(
            x,
            y,
            size,
            alt.Shape("off_scale:N")
            .scale(domain=[False, True], range=["circle", "triangle-up"])
            .legend(None),
            tooltip=tooltip,
        )
        .add_params(alt.selection_point(name="fleet_router", fields=["router"], nearest=False)),
        *_belief(raw, x, believed, y, tooltip),
        _leader(raw, "led", f"{_PHONE} ? 0 : 1").encode(
            _share_x("led_from", high_reuse), y, alt.X2("led_to:Q"), alt.Y2("label_s:Q")
        ),
        *_names(named, _share_x("label_reuse", high_reuse), alt.Y("label_s:Q")),
        _leader(raw, "narrow_led", f"{_PHONE} ? 1 : 0").encode(
            _share_x("narrow_from", high_reuse), y, alt.X2("narrow_to:Q"), alt.Y2("narrow_s:Q")
        ),
        *_narrow_names(named, _share_x("narrow_reuse", high_reuse), alt.Y("narrow_s:Q")),
    ]
    chart = layer(*layers).resolve_scale(size="independent")
    return chart.properties(height=420, title="fleet.panel.routers")


def _share_x(column: str, high: float) -> alt.X:
    return (
        alt.X(f"{column}:Q")
        .scale(domain=[0, high], nice=False)
        .axis(title="fleet.axis.reuse", format="%", tickCount=6)
    )


def _belief(
    raw: alt.Chart, x: alt.X, believed: alt.X, y: alt.Y, tooltip: list[alt.Tooltip]
) -> list[alt.Chart]:
    """What the router believes it will find, and how far that is from what could be used."""
    return [
        raw.mark_rule(color=style.MLA, strokeWidth=1.5).encode(x, alt.X2("mla_match:Q"), y),
        raw.mark_point(filled=False, color=style.MLA, opacity=1, strokeWidth=1.8).encode(
            believed,
            y,
            alt.Size("peak_to_mean:Q")
            .scale(domain=[1, 8], range=[130, 700], clamp=True)
            .legend(None),
            tooltip=tooltip,
        ),
    ]


def _leader(raw: alt.Chart, which: str, opacity: str) -> alt.Chart:
    """A thin line from a mark to its label, where that stands away from it."""
    return raw.transform_filter(f"datum.{which}").mark_rule(
        color=style.NEUTRAL, strokeWidth=0.7, strokeDash=[2, 2], opacity=alt.ExprRef(opacity)
    )


def _narrow_names(named: alt.Chart, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """The same names where a phone has room for them."""
    mark = alt.MarkDef("text", align="left", fontSize=11, opacity=alt.ExprRef(f"{_PHONE} ? 1 : 0"))
    return _bold_when_chosen(named.encode(x, y, alt.Text("narrow_words:N")), mark)


def _names(named: alt.Chart, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Text marks: left or right of the mark, the chosen router in bold."""
    opacity = alt.ExprRef(f"{_PHONE} ? 0 : 1")
    right = alt.MarkDef("text", align="left", dx=18, fontSize=12.5, opacity=opacity)
    left = alt.MarkDef("text", align="right", dx=-18, fontSize=12.5, opacity=opacity)
    return [
        chart
        for side, mark in (("!datum.label_left", right), ("datum.label_left", left))
        for chart in _bold_when_chosen(
            named.transform_filter(side).encode(x, y, alt.Text("words:N")), mark
        )
    ]


def _bold_when_chosen(names: alt.Chart, mark: alt.MarkDef) -> list[alt.Chart]:
    charts = []
    for which, weight in (("datum.chosen", "bold"), ("!datum.chosen", "normal")):
        chart = names.transform_filter(which)
        chart.mark = mark.copy()
        chart.mark.fontWeight = weight
        charts.append(chart)
    return charts


def load_strip(tables: Tables) -> alt.LayerChart:
    """Clusters by time: prefill seconds sent to a cluster per second; vermillion above one.

    Tables: ``strip``, ``down``, ``marks`` of ``StripStudy``.
    """
    strip = tables["strip"]
    order = list(dict.fromkeys(strip["cluster"]))
    y = (
        alt.Y("cluster:N")
        .sort(order)
        .axis(title=None, ticks=False, domain=False, labelOverlap=len(order) > 12)
    )
    x = (
        alt.X("minute:Q")
        .scale(nice=False, zero=True)
        .axis(title="fleet.axis.minute", format="~r", grid=False, tickCount=8, tickMinStep=1)
    )
    tooltip = [
        alt.Tooltip("cluster:N", title="fleet.axis.cluster"),
        alt.Tooltip("minute:Q", format=".2~f", title="fleet.axis.minute"),
        alt.Tooltip("load:Q", format=".2f", title="fleet.axis.load"),
        alt.Tooltip("num_requests:Q", format=",", title="fleet.axis.num_requests"),
    ]
    cells = alt.Chart(strip)
    layers = [
        cells.transform_filter("datum.load <= 1")
        .mark_rect(color=style.NEUTRAL)
        .encode(
            x,
            alt.X2("end_minute:Q"),
            y,
            alt.Opacity("load:Q")
            .scale(type="sqrt", domain=[0, 1], range=[0.04, 1])
            .legend(
                orient="top",
                values=[0.1, 0.25, 0.5, 1],
                format="%",
                title="fleet.axis.busy",
                symbolType="square",
                symbolFillColor=style.NEUTRAL,
                symbolStrokeWidth=0,
            ),
            tooltip=tooltip,
        ),
        cells.transform_filter("datum.load > 1")
        .transform_calculate(over="min(datum.load, 3)")
        .mark_rect(color=style.REJECTED)
        .encode(
            x,
            alt.X2("end_minute:Q"),
            y,
            alt.Opacity("over:Q").scale(domain=[1, 3], range=[0.45, 1]).legend(None),
            tooltip=tooltip,
        ),
        alt.Chart(tables["down"])
        .mark_bar(filled=False, stroke=style.REJECTED, strokeDash=[4, 3], strokeWidth=1.5)
        .encode(x, alt.X2("end_minute:Q"), y),
        *event_rules(tables["marks"], x),
    ]
    return (
        layer(*layers)
        .resolve_scale(opacity="independent")
        .properties(
            height=140 + len(order) * (22 if len(order) <= 12 else 14), title="fleet.panel.strip"
        )
    )
