"""Pictures of capacity: the bill of a request, the roofs above it, schemes and degrees."""

from __future__ import annotations

import math
from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

PARTS = ("state", "conv_window", "reserved_slots", "rollback", "mla", "padding")
_PART_COLOURS = (style.KDA, "#B87A00", "#F3D291", style.INPUTS, style.MLA, style.NEUTRAL)
_DARK_TEXT = "#1F2328"
_TOKENS = alt.Scale(type="log", base=2, domain=[512, 2**20], nice=False)
_TOKEN_TICKS = [2**i for i in range(9, 21)]
_KEEPS = alt.Scale(domain=["states", "records"], range=[style.SNAPSHOT, style.INPUTS])


def _layer(*charts: alt.Chart) -> alt.LayerChart:
    return alt.LayerChart(layer=list(charts))


def _power_of_two_above(value: float) -> float:
    return 2.0 ** math.ceil(math.log2(max(value, 1.0)))


def _quarters(value: float) -> list[float]:
    """Ticks at quarters of the next power of two: whole numbers of binary units."""
    return [_power_of_two_above(value) * i / 4 for i in range(5)]


def _power_of_ten_above(value: float) -> float:
    return 10.0 ** max(1, math.ceil(math.log10(max(value, 1.0) * 1.2)))


def bill(tables: Tables) -> alt.LayerChart:
    """Memory of one request at the mean length, one bar from 0; the axis steps by powers of two.

    Tables: ``bill`` of ``CapacityStudy``.
    """
    table = tables["bill"]
    table = table[table["bytes"] > 0]
    limit = _power_of_two_above(float(table["end"].max()))
    x = alt.Scale(domain=[0, limit], nice=False)
    present = [part for part in PARTS if part in set(table["part"])]
    base = style.labelled(alt.Chart(table), "part")
    bars = base.mark_bar(height=34).encode(
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
        alt.Color("part:N")
        .scale(domain=list(PARTS), range=list(_PART_COLOURS))
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
        .encode(alt.X("middle:Q").scale(x), alt.Text("text:N"))
        for test, color in ((f"!({on_dark})", _DARK_TEXT), (on_dark, "white"))
    ]
    return _layer(bars, *numbers).properties(height=118, title="capacity.panel.bill")


def main_picture(tables: Tables) -> alt.LayerChart:
    """Requests in flight against their mean length, under both roofs, with the deployment's point.

    Tables: ``roofs``, ``point``, ``marks`` of ``CapacityStudy``.
    """
    roofs, point, marks = tables["roofs"], tables["point"], tables["marks"]
    top = _power_of_ten_above(float(roofs["requests"].max()))
    y_scale = alt.Scale(type="log", domain=[1, top], nice=False)
    x = alt.X("mean_tokens:Q").scale(_TOKENS)
    x_axis = x.axis(
        labelExpr=style.COUNT_LABELS,
        values=_TOKEN_TICKS,
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
            alt.Color("roof:N")
            .scale(domain=["state-slots", "mla-cache"], range=[style.KDA, style.MLA])
            .legend(None),
            alt.StrokeDash("roof:N")
            .scale(domain=["state-slots", "mla-cache"], range=[[1, 0], [7, 3]])
            .legend(None),
            [
                alt.Tooltip("roof_text:N", title="capacity.axis.roof"),
                alt.Tooltip("mean_tokens:Q", format=",", title="capacity.axis.mean_tokens"),
                alt.Tooltip("requests:Q", format=",.1f", title="capacity.axis.requests"),
            ],
        )
    )
    named = style.labelled(alt.Chart(marks), "mark").transform_calculate(
        requests=f"clamp(datum.requests, 1.25, {top / 1.6})"
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
    mla_name = (
        named.transform_filter("datum.mark == 'mla-cache'")
        .mark_text(align="left", dx=12, dy=-10, fontWeight="bold", color=style.MLA)
        .encode(x, y, alt.Text("mark_text:N"))
    )
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
    return _layer(
        area, edge, lines, block_rule, block_name, *state_names, mla_name,
        knee_mark, knee_name, drop, dot, *verdicts,
    ).properties(height=330)  # fmt: skip


def fig_schemes(tables: Tables) -> Panels:
    """Every rollback scheme at the chosen draft length: bytes, and the requests that then fit.

    Tables: ``schemes`` of ``CapacityStudy``.
    """
    table = tables["schemes"]
    order = list(table.sort_values("extra_bytes")["scheme"])
    limit = _power_of_two_above(float(table["extra_bytes"].max()) * 1.15)
    most = max(float(table["requests"].max()), 1.0) * 1.12
    base = style.labelled(style.labelled(alt.Chart(table), "scheme"), "numerics")
    y = (
        alt.Y("scheme:N")
        .sort(order)
        .axis(
            labelExpr=style.label_expr(),
            title=None,
            labelLimit=190,
            ticks=False,
            domain=False,
            labelOverlap=False,
        )
    )
    chosen = alt.Opacity("chosen:N").scale(domain=[True, False], range=[1.0, 0.5]).legend(None)
    stroke = alt.StrokeWidth("chosen:N").scale(domain=[True, False], range=[2.0, 0.0]).legend(None)
    colour = alt.Color("keeps:N").scale(_KEEPS)
    tooltip = [
        alt.Tooltip("scheme_text:N", title="capacity.axis.scheme"),
        alt.Tooltip("engine:N", title="capacity.axis.engine"),
        alt.Tooltip("buffer_bytes:Q", format=",", title="capacity.axis.buffer_bytes"),
        alt.Tooltip("extra_bytes:Q", format=",", title="capacity.axis.extra_bytes"),
        alt.Tooltip("numerics_text:N", title="capacity.axis.numerics"),
    ]

    def bars(value: str, limit: float, axis: alt.Axis, text: str, legend: bool) -> alt.LayerChart:
        scale = alt.Scale(domain=[0, limit], nice=False)
        shown = colour.legend(
            orient="top", labelExpr=style.label_expr(), symbolStrokeWidth=0
        ).title(None)
        return _layer(
            base.mark_bar(stroke=style.KDA).encode(
                alt.X(f"{value}:Q").scale(scale).axis(axis),
                y,
                shown if legend else colour.legend(None),
                chosen,
                stroke,
                tooltip,
            ),
            base.mark_text(align="left", dx=5).encode(
                alt.X(f"{value}:Q").scale(scale), y, alt.Text(text)
            ),
        )

    bytes_axis = alt.Axis(
        labelExpr=style.BYTES_LABELS, title="capacity.axis.extra_bytes", tickCount=5, grid=False,
        values=_quarters(limit),
    )  # fmt: skip
    count_axis = alt.Axis(
        title="capacity.axis.requests", format=",d", tickCount=5, grid=False, tickMinStep=1
    )
    return {
        "bytes": bars("extra_bytes", limit, bytes_axis, "text:N", True).properties(
            height=320, title="capacity.panel.scheme_bytes"
        ),
        "requests": bars("requests", most, count_axis, "requests:Q", True).properties(
            height=320, title="capacity.panel.scheme_requests"
        ),
    }


def fig_break_even(tables: Tables) -> Panels:
    """Memory against length for each degree: flat lines of state, one rising line of MLA.

    Tables: ``growth`` and ``by_tp`` of ``CapacityStudy``.
    """
    growth = tables["growth"]
    base = alt.Chart(growth)
    x_scale = alt.Scale(type="log", base=2, domain=[64, 2**20], nice=False)
    x = alt.X("tokens:Q").scale(x_scale)
    x_axis = x.axis(
        labelExpr=style.COUNT_LABELS,
        values=[2**i for i in range(6, 21, 2)],
        title="capacity.axis.tokens",
        grid=False,
    )
    y = (
        alt.Y("bytes:Q")
        .scale(type="log", base=2)
        .axis(
            labelExpr=style.BYTES_LABELS,
            title="capacity.axis.rank_bytes",
            grid=False,
            tickCount=7,
        )
    )
    strength = alt.Opacity("chosen:N").scale(domain=[True, False], range=[1.0, 0.45]).legend(None)
    tooltip = [
        alt.Tooltip("tp:Q", title="capacity.axis.tp"),
        alt.Tooltip("tokens:Q", format=",.0f", title="capacity.axis.tokens"),
        alt.Tooltip("bytes:Q", format=",", title="capacity.axis.bytes"),
    ]
    flat = (
        base.transform_filter("datum.memory == 'kda'")
        .mark_line(color=style.KDA, strokeWidth=2.5)
        .encode(x_axis, y, alt.Detail("tp:N"), strength, tooltip)
    )
    rising = (
        base.transform_filter("datum.memory == 'mla'")
        .mark_line(color=style.MLA, strokeWidth=2.5, strokeDash=[7, 3])
        .encode(x, y, tooltip)
    )
    crossing = base.transform_filter("datum.memory == 'crossing'")
    dots = crossing.mark_point(filled=True, size=70, opacity=1, color=style.MLA).encode(
        x, y, tooltip
    )
    names = (
        crossing.transform_calculate(
            words="'TP' + datum.tp + ': ' + format(datum.tokens, ',.0f')", edge=str(2**20)
        )
        .mark_text(align="right", dy=-7, fontSize=11)
        .encode(alt.X("edge:Q").scale(x_scale), y, alt.Text("words:N"))
    )
    lines = _layer(flat, rising, dots, names).properties(
        height=330, title="capacity.panel.break_even"
    )
    largest = float(tables["by_tp"]["state_bytes_per_layer"].max()) * 1.05
    split = (
        alt.Chart(tables["by_tp"])
        .transform_fold(["state_bytes_per_layer", "conv_bytes_per_layer"], as_=["part", "value"])
        .transform_calculate(
            part_text=style.label_expr("datum.part"), order="datum.part == 'conv_bytes_per_layer'"
        )
        .mark_bar()
        .encode(
            alt.X("tp:O").axis(title="capacity.axis.tp", labelAngle=0),
            alt.Y("value:Q").axis(
                labelExpr=style.BYTES_LABELS,
                title="capacity.axis.layer_bytes",
                values=_quarters(largest),
            ),
            alt.Color("part:N")
            .scale(
                domain=["state_bytes_per_layer", "conv_bytes_per_layer"],
                range=[style.KDA, "#B87A00"],
            )
            .legend(orient="top", labelExpr=style.label_expr())
            .title(None),
            alt.Order("order:N"),
            [
                alt.Tooltip("part_text:N", title="capacity.axis.part"),
                alt.Tooltip("value:Q", format=",", title="capacity.axis.bytes"),
            ],
        )
        .properties(height=330, title="capacity.panel.layer_by_tp")
    )
    return {"break_even": lines, "layer_by_tp": split}


def fig_pools(tables: Tables) -> Panels:
    """What fills each pool at the operating point, and the pool ratio that would admit most.

    Tables: ``pools``, ``ratios``, ``ratio_point`` of ``CapacityStudy``.
    """
    parts = ["states", "mla_rows", "padding", "idle"]
    present = [part for part in parts if part in set(tables["pools"]["part"])]
    fullest = float(tables["pools"].groupby("pool")["bytes"].sum().max())
    pools = (
        style.labelled(alt.Chart(tables["pools"]), "part")
        .transform_calculate(order=f"indexof({parts}, datum.part)")
        .mark_bar(height=44)
        .encode(
            alt.X("bytes:Q").axis(
                labelExpr=style.BYTES_LABELS, title="capacity.axis.pool_bytes", grid=False,
                values=_quarters(fullest),
            ),
            alt.Y("pool:N").axis(
                labelExpr=style.label_expr(), title=None, ticks=False, domain=False
            ).sort(None),
            alt.Color("part:N")
            .scale(domain=parts, range=[style.KDA, style.MLA, style.NEUTRAL, style.FREE])
            .legend(orient="top", labelExpr=style.label_expr(), values=present)
            .title(None),
            alt.Order("order:Q"),
            [
                alt.Tooltip("part_text:N", title="capacity.axis.part"),
                alt.Tooltip("bytes:Q", format=",", title="capacity.axis.bytes"),
            ],
        )
        .properties(height=240, title="capacity.panel.pools")
    )  # fmt: skip
    panels: Panels = {"pools": pools}
    if len(tables["ratios"]):
        x = (
            alt.X("ratio:Q")
            .scale(type="log", domain=[0.1, 10])
            .axis(title="capacity.axis.ratio", values=[0.1, 0.2, 0.5, 1, 2, 5, 10], grid=False)
        )
        most = max(float(tables["ratios"]["requests"].max()), 1.0)
        y = (
            alt.Y("requests:Q")
            .scale(domain=[0, most * 1.1])
            .axis(title="capacity.axis.requests", tickMinStep=1, format=",d")
        )
        panels["ratios"] = _layer(
            alt.Chart(tables["ratios"])
            .mark_line(color=style.ACCEPTED, strokeWidth=2.5)
            .encode(
                x,
                y,
                [
                    alt.Tooltip("ratio:Q", format=".2f", title="capacity.axis.ratio"),
                    alt.Tooltip("requests:Q", title="capacity.axis.requests"),
                ],
            ),
            alt.Chart(tables["ratio_point"])
            .mark_point(filled=True, size=150, opacity=1, color=style.REJECTED)
            .encode(x, y),
        ).properties(height=240, title="capacity.panel.ratios")
    return panels
