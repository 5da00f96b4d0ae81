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

_CHAR_WIDTH, _LABEL_GAP = 0.0105, 0.022  # of the reuse axis
_LABEL_HEIGHT = 0.055  # of the height
_LABEL_STEPS = tuple(0.055 * step for step in range(9))
_OFF_SCALE = 12.0  # times the median P95: beyond that a mark is drawn at the edge


def _placed(routers: pd.DataFrame) -> tuple[pd.DataFrame, float, float]:
    """Rows with a P95, their place on the scale, and the scale's ends."""
    table = routers[routers["p95_s"].notna()].copy()
    values = table["p95_s"].clip(lower=1e-3)
    median = float(values.median()) if len(values) else 1.0
    on_scale = values[values <= _OFF_SCALE * median]
    # Powers of two: the axis stands still while a slider moves a little.
    top = 2.0 ** math.ceil(math.log2(float(on_scale.max()) * 1.25)) if len(on_scale) else 1.0
    low = 2.0 ** math.floor(math.log2(float(values.min()) / 1.25)) if len(values) else 0.5
    table["off_scale"] = values > top
    table["shown_s"] = values.clip(upper=top)
    places = _label_places(table, low, top)
    names = ("label_left", "label_reuse", "label_s", "led")
    for name, column in zip(names, zip(*places, strict=True), strict=True):
        table[name] = column
    gap = 0.6 * _LABEL_GAP * _high_reuse(table)
    table["led_from"] = table["mla_match"].where(~table["label_left"], table["reuse"])
    table["led_to"] = table["label_reuse"] + gap * (1 - 2 * table["label_left"])
    return table, low, top


def _high_reuse(table: pd.DataFrame) -> float:
    """End of the reuse axis: a multiple of 20 % with room for a label."""
    if table.empty:
        return 1.0
    most = float(table[["reuse", "mla_match"]].max().max())
    return min(1.0, math.ceil(most * 5 + 0.5) / 5)


def _label_places(
    table: pd.DataFrame, low: float, top: float
) -> list[tuple[bool, float, float, bool]]:
    """Per row: label left of its mark, where it starts, its height, and whether a line leads to it.

    Beside the mark, else the nearest place that is free of marks and of the labels placed before.
    """
    span, high = math.log(top / low), _high_reuse(table)
    heights = [math.log(float(value) / low) / span for value in table["shown_s"]]
    ends = [
        (float(row["reuse"]) / high, float(max(row["reuse"], row["mla_match"])) / high)
        if row["ticks"] == "raw"
        else (float(row["reuse"]) / high,) * 2
        for _, row in table.iterrows()
    ]
    taken: list[tuple[float, float, float]] = []  # labels: from, to, height
    places = [(False, 0.0, 1.0, False)] * len(table)

    def is_free(own: int, start: float, end: float, height: float) -> bool:
        on_mark = any(
            other != own
            and abs(y - height) < _LABEL_HEIGHT
            and start < right + _LABEL_GAP / 2
            and left - _LABEL_GAP / 2 < end
            for other, ((left, right), y) in enumerate(zip(ends, heights, strict=True))
        )
        on_label = any(
            abs(y - height) < _LABEL_HEIGHT
            and start < right + 2 * _LABEL_GAP
            and left - 2 * _LABEL_GAP < end
            for left, right, y in taken
        )
        return 0.01 <= height <= 1.0 and start >= 0 and end <= 1.02 and not on_mark and not on_label

    raw = [at for at, ticks in enumerate(table["ticks"]) if ticks == "raw"]
    for at in sorted(raw, key=lambda at: -heights[at]):
        width = _CHAR_WIDTH * (len(table["router"].iloc[at]) + 2)
        if table["off_scale"].iloc[at]:
            width += 9 * _CHAR_WIDTH
        if table["refused_share"].iloc[at] > 0:
            width += 8 * _CHAR_WIDTH
        left, right = ends[at]
        sides = [(False, right + _LABEL_GAP), (True, left - _LABEL_GAP - width)]
        if left > 0.55:
            sides.reverse()
        choices = [
            (side, start, heights[at] + step * sign)
            for step in _LABEL_STEPS
            for sign in (-1, 1)
            for side, start in sides
        ]
        side, start, height = next(
            (choice for choice in choices if is_free(at, choice[1], choice[1] + width, choice[2])),
            (*sides[0], heights[at]),
        )
        taken.append((start, start + width, height))
        anchor = left if side else right
        led = abs(height - heights[at]) > 1.5 * _LABEL_HEIGHT
        places[at] = (side, anchor * high, low * math.exp(height * span), led)
    return places


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
    words = (
        "(datum.peak_to_mean > 4 && !datum.label_left ? '\u2003\u2002' : '') + datum.router_text"
        " + (datum.off_scale ? ': ' + format(datum.p95_s, ',.0f') + ' s' : '')"
        " + (datum.refused_share > 0 ? ' (−' + datum.refused_text + ')' : '')"
    )
    named = raw.transform_calculate(words=words)
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
        raw.transform_filter("datum.led")
        .mark_rule(color=style.NEUTRAL, strokeWidth=0.7, strokeDash=[2, 2])
        .encode(_share_x("led_from", high_reuse), y, alt.X2("led_to:Q"), alt.Y2("label_s:Q")),
        *_names(named, _share_x("label_reuse", high_reuse), alt.Y("label_s:Q")),
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


def _names(named: alt.Chart, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Text marks: left or right of the mark, the chosen router in bold."""
    right, left = (
        alt.MarkDef("text", align="left", dx=18, fontSize=12.5),
        alt.MarkDef("text", align="right", dx=-18, fontSize=12.5),
    )
    charts = []
    for side, mark in (("!datum.label_left", right), ("datum.label_left", left)):
        for which, bold in (("datum.chosen", True), ("!datum.chosen", False)):
            chart = named.transform_filter(f"{side} && {which}").encode(x, y, alt.Text("words:N"))
            chart.mark = mark.copy()
            if bold:
                chart.mark.fontWeight = "bold"
            charts.append(chart)
    return charts


def load_strip(tables: Tables) -> alt.LayerChart:
    """Clusters by time: prefill seconds sent to a cluster per second; vermillion above one.

    Tables: ``strip``, ``down``, ``marks`` of ``StripStudy``.
    """
    strip = tables["strip"]
    order = list(dict.fromkeys(strip["cluster"]))
    y = alt.Y("cluster:N").sort(order).axis(title=None, ticks=False, domain=False)
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
            alt.Opacity("load:Q").scale(type="sqrt", domain=[0, 1], range=[0.04, 1]).legend(None),
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
    return layer(*layers).properties(
        height=90 + len(order) * (22 if len(order) <= 12 else 14), title="fleet.panel.strip"
    )
