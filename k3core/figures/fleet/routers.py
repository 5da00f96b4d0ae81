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
    table["label_s"] = _label_heights(table, low, top)
    return table, low, top


def _label_heights(table: pd.DataFrame, low: float, top: float) -> list[float]:
    """Heights of the labels, moved apart where two marks stand close together."""
    span = math.log(top / low)
    heights = {}
    taken: list[tuple[float, float]] = []
    raw = table[table["ticks"] == "raw"].sort_values("shown_s")
    for index, row in raw.iterrows():
        height = math.log(float(row["shown_s"]) / low) / span
        while any(
            abs(height - other) < 0.055 and abs(float(row["reuse"]) - reuse) < 0.2
            for reuse, other in taken
        ):
            height += 0.02
        taken.append((float(row["reuse"]), height))
        heights[index] = low * math.exp(height * span)
    return [heights.get(index, float(table.loc[index, "shown_s"])) for index in table.index]


def main_picture(tables: Tables) -> alt.LayerChart:
    """One mark per router on the same requests.

    Tables: ``routers`` of ``RoutersStudy``. Size is peak over mean load, a vermillion ring the
    refused share, a line leads to the same router with the ticks of the trace spread out.
    """
    table, low, top = _placed(tables["routers"])
    base = style.labelled(alt.Chart(table), "router")
    raw = base.transform_filter("datum.ticks == 'raw'")
    spread = base.transform_filter("datum.ticks == 'spread'")
    high_reuse = min(1.0, math.ceil(float(table["reuse"].max()) * 5 + 0.5) / 5) if len(table) else 1
    x = (
        alt.X("reuse:Q")
        .scale(domain=[0, high_reuse], nice=False)
        .axis(title="fleet.axis.reuse", format="%", tickCount=6)
    )
    y = (
        alt.Y("shown_s:Q")
        .scale(type="log", domain=[low, top], nice=False)
        .axis(title="fleet.axis.p95", values=seconds_ticks(low, top), labelExpr=SECONDS_LABELS)
    )
    size = (
        alt.Size("peak_to_mean:Q")
        .scale(domain=[1, 8], range=[90, 900], clamp=True)
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
    ]
    words = (
        "datum.router_text"
        " + (datum.off_scale ? ': ' + format(datum.p95_s, ',.0f') + ' s' : '')"
        " + (datum.refused_share > 0 ? ' (−' + datum.refused_text + ')' : '')"
    )
    named = raw.transform_calculate(words=words)
    edge = 0.62 * high_reuse
    label_y = alt.Y("label_s:Q")
    layers: list[alt.Chart] = []
    if (table["ticks"] == "spread").any():
        layers += [
            base.mark_line(color=style.NEUTRAL, strokeWidth=1.5).encode(
                x, y, alt.Detail("router:N"), alt.Order("ticks:N")
            ),
            spread.mark_point(color=style.NEUTRAL, size=45, filled=False, opacity=1).encode(
                x, y, tooltip=tooltip
            ),
        ]
    layers += [
        raw.transform_filter("datum.refused_share > 0")
        .transform_calculate(ring="2.4 * sqrt(datum.peak_to_mean)")
        .mark_point(filled=False, color=style.REJECTED, opacity=1, size=520)
        .encode(
            x,
            y,
            alt.StrokeWidth("refused_share:Q").scale(domain=[0, 1], range=[1, 14]).legend(None),
            tooltip=tooltip,
        ),
        raw.transform_filter("!datum.off_scale")
        .mark_circle(color=style.NEUTRAL, opacity=1)
        .encode(x, y, size, tooltip=tooltip),
        raw.transform_filter("datum.off_scale")
        .mark_point(shape="triangle-up", filled=True, color=style.NEUTRAL, opacity=1)
        .encode(x, y, size, tooltip=tooltip),
        named.transform_filter(f"datum.reuse <= {edge}")
        .mark_text(align="left", dx=17, fontSize=12)
        .encode(x, label_y, alt.Text("words:N")),
        named.transform_filter(f"datum.reuse > {edge}")
        .mark_text(align="right", dx=-17, fontSize=12)
        .encode(x, label_y, alt.Text("words:N")),
    ]
    return layer(*layers).properties(height=380, title="fleet.panel.routers")


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
        .axis(title="fleet.axis.minute", format="~r", grid=False)
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
            alt.Opacity("load:Q").scale(domain=[0, 1], range=[0.06, 0.95]).legend(None),
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
        height=max(120, 60 + 17 * len(order)), title="fleet.panel.strip"
    )
