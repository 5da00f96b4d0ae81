"""The first screen: the bill of a request, and the roofs above it."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.capacity.common import (
    DARK_TEXT,
    PART_COLOURS,
    PARTS,
    TOKEN_TICKS,
    Tables,
    layer,
    power_of_ten_above,
    power_of_two_above,
)

_ROOFS = alt.Scale(
    domain=["state-slots", "mla-cache", "one-pool"], range=[style.KDA, style.MLA, style.ACCEPTED]
)


def bill(tables: Tables) -> alt.LayerChart:
    """Memory of one request at the mean length, a bar from 0; the axis steps by powers of two.

    Tables: ``bill`` of ``CapacityStudy``; ``bill_b`` of a second one adds a bar below.
    """
    second = tables.get("bill_b")
    parts = [tables["bill"].assign(config="A")]
    if second is not None:
        parts.append(second.assign(config="B"))
    table = pd.concat(parts)
    table = table[table["bytes"] > 0]
    limit = power_of_two_above(float(table["end"].max()))
    x = alt.Scale(domain=[0, limit], nice=False)
    present = [part for part in PARTS if part in set(table["part"])]
    base = style.labelled(alt.Chart(table), "part")
    y = alt.Y("config:N").axis(None if second is None else alt.Axis(title=None, ticks=False))
    marks = base.mark_bar(height=34) if second is None else base.mark_bar()
    bars = marks.encode(
        alt.X("start:Q")
        .scale(x)
        .axis(
            labelExpr=style.BYTES_LABELS,
            title=None,
            values=[limit * i / 8 for i in range(9)],
            grid=False,
            labelOverlap=True,
        ),
        alt.X2("end:Q"),
        y,
        alt.Color("part:N")
        .scale(domain=list(PARTS), range=list(PART_COLOURS))
        .legend(
            orient="top",
            labelExpr=style.label_expr(),
            values=present,
            offset=4,
            columns=alt.expr("width < 480 ? 3 : 6"),
            symbolType="square",
        )
        .title(None),
        [
            alt.Tooltip("config:N", title="capacity.axis.config"),
            alt.Tooltip("part_text:N", title="capacity.axis.part"),
            alt.Tooltip("bytes:Q", format=",", title="capacity.axis.bytes"),
            alt.Tooltip("share:Q", format=".1%", title="capacity.axis.share"),
        ],
    )
    inside = base.transform_filter(f"datum.bytes / {limit} * width > 56").transform_calculate(
        middle="(datum.start + datum.end) / 2"
    )
    on_dark = "datum.part == 'mla' || datum.part == 'conv_window'"
    numbers = [
        inside.transform_filter(test)
        .mark_text(color=color, fontWeight="bold", fontSize=12)
        .encode(alt.X("middle:Q").scale(x), y, alt.Text("text:N"))
        for test, color in ((f"!({on_dark})", DARK_TEXT), (on_dark, "white"))
    ]
    height = 118 if second is None else 175
    return layer(bars, *numbers).properties(height=height, title="capacity.panel.bill")


def main_picture(tables: Tables) -> alt.LayerChart:
    """Requests in flight against their mean length, under the roofs, with the deployment's point.

    Tables: ``roofs``, ``point``, ``marks`` of ``CapacityStudy``; ``roofs_b`` and ``point_b`` of a
    second one draw its roofs thin and its point as a triangle.
    """
    roofs, point, marks = tables["roofs"], tables["point"], tables["marks"]
    highest = max(
        float(tables[name]["requests"].max()) for name in ("roofs", "roofs_b") if name in tables
    )
    top = power_of_ten_above(highest)
    y_scale = alt.Scale(type="log", domain=[1, top], nice=False)
    end = float(roofs["mean_tokens"].max())
    x = alt.X("mean_tokens:Q").scale(type="log", base=2, domain=[512, end], nice=False)
    x_axis = x.axis(
        labelExpr=style.COUNT_LABELS,
        values=[tokens for tokens in TOKEN_TICKS if tokens <= end],
        title="capacity.axis.mean_tokens",
        grid=False,
        labelOverlap=True,
    )
    y = (
        alt.Y("requests:Q")
        .scale(y_scale)
        .axis(
            title="capacity.axis.requests",
            values=[10**i for i in range(int(math.log10(top)) + 1)],
            format=",",
        )
    )
    base = style.labelled(alt.Chart(roofs), "roof")
    area = (
        base.transform_filter("datum.roof == 'both' && datum.requests >= 1")
        .transform_calculate(floor="1")
        .mark_area(color=style.ACCEPTED, opacity=0.13, clip=True, interpolate="step-after")
        .encode(x_axis, y, alt.Y2("floor:Q"))
    )
    edge = (
        base.transform_filter("datum.roof == 'both' && datum.requests >= 1")
        .mark_line(color=style.ACCEPTED, strokeWidth=1.2, clip=True, interpolate="step-after")
        .encode(x, y)
    )
    lines = (
        base.transform_filter("datum.roof != 'both' && datum.requests > 0")
        .mark_line(strokeWidth=3, clip=True)
        .encode(
            x,
            y,
            alt.Color("roof:N").scale(_ROOFS).legend(None),
            alt.StrokeDash("roof:N")
            .scale(domain=_ROOFS.domain, range=[[1, 0], [7, 3], [1, 0]])
            .legend(None),
            [
                alt.Tooltip("roof_text:N", title="capacity.axis.roof"),
                alt.Tooltip("mean_tokens:Q", format=",", title="capacity.axis.mean_tokens"),
                alt.Tooltip("requests:Q", format=",.1f", title="capacity.axis.requests"),
            ],
        )
    )
    named = style.labelled(alt.Chart(marks), "mark").transform_calculate(
        requests=f"clamp(datum.requests, 1.25, {top / 2.5})"
    )
    state_names = [
        named.transform_filter(f"datum.mark == 'state-slots' && {test}")
        .mark_text(align=align, dy=dy, fontWeight="bold", color=style.KDA)
        .encode(x, y, alt.Text("mark_text:N"))
        for align, dy, test in (
            (alt.Align("left"), -9, "datum.mean_tokens < 32768"),
            (alt.Align("right"), 14, "datum.mean_tokens >= 32768"),
        )
    ]
    sloping_names = [
        named.transform_filter(f"datum.mark == '{code}'")
        .mark_text(align="left", dx=12, dy=-10, fontWeight="bold", color=colour)
        .encode(x, y, alt.Text("mark_text:N"))
        for code, colour in (("mla-cache", style.MLA), ("one-pool", style.ACCEPTED))
    ]
    knee = named.transform_filter("datum.mark == 'knee'")
    knee_mark = knee.mark_point(size=70, filled=False, strokeWidth=2, color=style.NEUTRAL).encode(
        x, y
    )
    knee_name = (
        knee.transform_calculate(words="datum.mark_text + ' ' + format(datum.mean_tokens, ',.0f')")
        .mark_text(align="left", dx=10, dy=-10)
        .encode(x, y, alt.Text("words:N"))
    )
    block = named.transform_filter("datum.mark == 'block'")
    block_rule = block.mark_rule(strokeDash=[3, 4], color=style.NEUTRAL).encode(x)
    block_name = (
        block.transform_calculate(
            words="datum.mark_text + ' ' + format(datum.mean_tokens, ',.0f')", requests="1.3"
        )
        .mark_text(align="left", dx=5)
        .encode(x, y, alt.Text("words:N"))
    )
    you = style.labelled(alt.Chart(point), "verdict").transform_calculate(
        shown="max(datum.requests, 1)",
        words="format(datum.requests, ',') + ' '"
        " + (width < 420 ? labels['in_flight'] : datum.verdict_text)",
        right="datum.mean_tokens >= 4096",
    )
    at = alt.Y("shown:Q").scale(y_scale)
    drop = (
        you.transform_calculate(floor="1")
        .mark_rule(color=style.REJECTED, strokeDash=[2, 3], strokeWidth=1.5)
        .encode(x, at, alt.Y2("floor:Q"))
    )
    dot = you.mark_point(filled=True, size=190, opacity=1, color=style.REJECTED).encode(
        x,
        at,
        [
            alt.Tooltip("mean_tokens:Q", format=",", title="capacity.axis.mean_tokens"),
            alt.Tooltip("requests:Q", format=",", title="capacity.axis.requests"),
            alt.Tooltip("verdict_text:N", title="capacity.axis.verdict"),
        ],
    )
    verdicts = [
        you.transform_filter(f"{side} && {height}")
        .mark_text(align=align, dx=dx, dy=dy, fontWeight="bold", fontSize=14)
        .encode(x, at, alt.Text("words:N"))
        for side, align, dx in (
            ("!datum.right", alt.Align("left"), 6),
            ("datum.right", alt.Align("right"), -6),
        )
        for height, dy in (("datum.requests >= 2", 18), ("datum.requests < 2", -18))
    ]
    return layer(
        area, edge, lines, *_second(tables, x, y, top), block_rule, block_name, *state_names,
        *sloping_names, knee_mark, knee_name, drop, dot, *verdicts,
    ).properties(height=330)  # fmt: skip


def _second(tables: Tables, x: alt.X, y: alt.Y, top: float) -> list[alt.Chart]:
    """Roofs and point of configuration B, thin and dotted; nothing without one."""
    if "roofs_b" not in tables:
        return []
    lines = (
        style.labelled(alt.Chart(tables["roofs_b"]), "roof")
        .transform_filter("datum.roof != 'both' && datum.requests > 0")
        .mark_line(strokeWidth=1.8, strokeDash=[2, 3], clip=True)
        .encode(
            x,
            y,
            alt.Color("roof:N").scale(_ROOFS).legend(None),
            tooltip=[
                alt.Tooltip("roof_text:N", title="capacity.axis.roof_b"),
                alt.Tooltip("requests:Q", format=",.1f", title="capacity.axis.requests"),
            ],
        )
    )
    point = alt.Chart(tables["point_b"]).transform_calculate(
        shown=f"clamp(datum.requests, 1, {top})", words="'B: ' + format(datum.requests, ',')"
    )
    at = alt.Y("shown:Q").scale(type="log", domain=[1, top], nice=False)
    mark = point.mark_point(
        shape="triangle-up", filled=True, size=190, opacity=1, color=style.SNAPSHOT
    ).encode(x, at)
    name = point.mark_text(align="left", dx=10, dy=-10, fontWeight="bold").encode(
        x, at, alt.Text("words:N")
    )
    return [lines, mark, name]
