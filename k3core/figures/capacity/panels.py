"""Panels below the main picture: rollback schemes, parallel degrees, pools."""

from __future__ import annotations

import altair as alt

from k3core.figures import style
from k3core.figures.capacity.common import (
    KEEPS,
    WINDOW_COLOUR,
    Panels,
    Tables,
    layer,
    power_of_two_above,
    quarters,
)


def fig_schemes(tables: Tables) -> Panels:
    """Every rollback scheme at the chosen draft length: bytes, and the requests that then fit.

    Tables: ``schemes`` of ``CapacityStudy``.
    """
    table = tables["schemes"]
    order = list(table.sort_values("extra_bytes")["scheme"])
    limit = power_of_two_above(float(table["extra_bytes"].max()) * 1.15)
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
    colour = alt.Color("keeps:N").scale(KEEPS)
    tooltip = [
        alt.Tooltip("scheme_text:N", title="capacity.axis.scheme"),
        alt.Tooltip("engine:N", title="capacity.axis.engine"),
        alt.Tooltip("buffer_bytes:Q", format=",", title="capacity.axis.buffer_bytes"),
        alt.Tooltip("extra_bytes:Q", format=",", title="capacity.axis.extra_bytes"),
        alt.Tooltip("request_bytes:Q", format=",", title="capacity.axis.request_bytes"),
        alt.Tooltip("numerics_text:N", title="capacity.axis.numerics"),
    ]

    def bars(value: str, limit: float, axis: alt.Axis, text: str, legend: bool) -> alt.LayerChart:
        scale = alt.Scale(domain=[0, limit], nice=False)
        shown = colour.legend(
            orient="top", labelExpr=style.label_expr(), symbolStrokeWidth=0
        ).title(None)
        return layer(
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
        values=quarters(limit),
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
            words="'TP' + datum.tp + ': ' + format(ceil(datum.tokens), ',')", edge=str(2**20)
        )
        .mark_text(align="right", dy=-7, fontSize=11)
        .encode(alt.X("edge:Q").scale(x_scale), y, alt.Text("words:N"))
    )
    lines = layer(flat, rising, dots, names).properties(
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
                values=quarters(largest),
            ),
            alt.Color("part:N")
            .scale(
                domain=["state_bytes_per_layer", "conv_bytes_per_layer"],
                range=[style.KDA, WINDOW_COLOUR],
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
                values=quarters(fullest),
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
        panels["ratios"] = layer(
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
