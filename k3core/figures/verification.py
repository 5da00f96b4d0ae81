"""Pictures of the verification: the matrix of checks and faults, and what it teaches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]

_USUAL = 5e-2
_EQUAL_BITS, _HUGE = 1e-18, 1e2  # on a log axis: where zero stands, and all that is beyond
_HEIGHT = 430
_INK = "#1f1f1f"  # text on a filled mark, in both themes
_NARROW = "width < 560"  # the plot area of a phone, or of half a page

_STATUS = ("healthy", "caught", "blind", "broken")
_STATUS_COLOURS = [style.ACCEPTED, style.ACCEPTED, style.REJECTED, style.REJECTED]
_STATUS_OPACITY = [style.PALE, 1.0, style.PALE, 1.0]
_SHAPES = alt.Scale(domain=["self", "oracle"], range=["circle", "diamond"])


def main_picture(tables: Tables) -> alt.LayerChart:
    """Checks by faults: caught (filled) or blind (pale), with the relative difference.

    Tables: ``cells`` of ``MatrixResult``; ``selected`` of ``VerificationResult``, when a column
    shall be framed.
    """
    cells = tables["cells"].assign(
        left=tables["cells"]["column"] - 0.47,
        right=tables["cells"]["column"] + 0.47,
        top=tables["cells"]["row"] - 0.44,
        bottom=tables["cells"]["row"] + 0.44,
        short=[_short(value) for value in tables["cells"]["value"]],
    )
    num_rows, num_columns = int(cells["row"].max()) + 1, int(cells["column"].max()) + 1
    x_scale = alt.Scale(
        domainMin=alt.ExprRef(f"{_NARROW} ? -1.15 : -0.75"),
        domainMax=alt.ExprRef(f"{num_columns} - ({_NARROW} ? 0.1 : 0.45)"),
        nice=False,
        zero=False,
    )
    y_scale = alt.Scale(
        domainMin=alt.ExprRef(f"{_NARROW} ? -5.2 : -1.5"),
        domainMax=num_rows - 0.4,
        reverse=True,
        nice=False,
        zero=False,
    )
    no_x = alt.X("column:Q").scale(x_scale).axis(None)
    axis = _row_axis(cells)  # on every layer: a default axis beside it would drop labels
    row = alt.Y("row:Q").scale(y_scale).axis(axis)
    base = alt.Chart(cells)
    for column in ("check", "page", "fault", "kind", "status"):
        base = style.labelled(base, column)
    base = base.transform_calculate(
        shown=f"datum.value == 0 ? ({_NARROW} ? '0' : labels['zero']) : "
        "width < 330 && datum.value < 1e-9 ? '≈0' : datum.short"
    )
    # One legend for colour and opacity: they are merged when everything about them is equal.
    fill = (
        alt.Fill("status:N")
        .scale(domain=list(_STATUS), range=_STATUS_COLOURS)
        .legend(_status_legend())
        .title(None)
    )
    opacity = (
        alt.Opacity("status:N")
        .scale(type="ordinal", domain=list(_STATUS), range=_STATUS_OPACITY)
        .legend(_status_legend())
        .title(None)
    )
    areas = base.mark_rect().encode(
        alt.X("left:Q").scale(x_scale).axis(None),
        alt.X2("right:Q"),
        alt.Y("top:Q").scale(y_scale).axis(axis),
        alt.Y2("bottom:Q"),
        fill,
        opacity,
        tooltip=_tooltip(),
    )
    frames = (
        base.transform_filter("datum.usual")
        .transform_calculate(
            inner_left="datum.column - 0.45",
            inner_right="datum.column + 0.45",
            inner_top="datum.row - 0.39",
            inner_bottom="datum.row + 0.39",
        )
        .mark_rect(
            fillOpacity=0,
            stroke="white",
            strokeWidth=alt.ExprRef("width < 300 ? 0.7 : 1.3"),
            strokeDash=[3, 2],
        )
        .encode(
            alt.X("inner_left:Q").axis(None),
            alt.X2("inner_right:Q"),
            alt.Y("inner_top:Q").axis(axis),
            alt.Y2("inner_bottom:Q"),
            tooltip=_tooltip(),
        )
    )
    font_size = alt.ExprRef("width < 300 ? 8 : 11")
    filled = (
        base.transform_filter("datum.status == 'caught' || datum.status == 'broken'")
        .mark_text(color=_INK, fontWeight="bold", fontSize=font_size)
        .encode(no_x, row, alt.Text("shown:N"))
    )
    pale = (
        base.transform_filter("datum.status == 'blind' || datum.status == 'healthy'")
        .mark_text(fontSize=font_size)
        .encode(no_x, row, alt.Text("shown:N"))
    )
    headers = (
        style.labelled(alt.Chart(cells.drop_duplicates("column")), "fault")
        .transform_calculate(head_x="datum.column", head_y=f"{_NARROW} ? -0.8 : -1.05")
        .mark_text(
            angle=alt.ExprRef(f"{_NARROW} ? 290 : 0"),
            align=alt.ExprRef(f"{_NARROW} ? 'left' : 'center'"),
            baseline="middle",
            fontSize=alt.ExprRef("width < 300 ? 10 : 11"),
        )
        .encode(
            alt.X("head_x:Q").axis(None), alt.Y("head_y:Q").axis(axis), alt.Text("fault_text:N")
        )
    )
    kinds = (
        style.labelled(alt.Chart(cells[cells["column"] == 0]), "kind")
        .transform_calculate(shape_x=f"{_NARROW} ? -0.85 : -0.62")
        .mark_point(size=45, opacity=1, filled=True, color=style.NEUTRAL)
        .encode(
            alt.X("shape_x:Q").axis(None),
            alt.Y("row:Q").axis(axis),
            alt.Shape("kind:N").scale(_SHAPES).legend(_legend()).title(None),
            alt.Tooltip("kind_text:N", title="verification.axis.kind"),
        )
    )
    layers = [areas, frames, filled, pale, headers, kinds, _page_rules(cells, axis)]
    if "selected" in tables:
        layers.append(_selected_column(cells, tables["selected"], num_rows, axis))
    return alt.LayerChart(layer=layers).properties(height=_HEIGHT)


def _short(value: float) -> str:
    """``6.1e-04`` -> ``6e-4``: a cell of a phone has room for five signs."""
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞"
    digit, exponent = f"{value:.0e}".split("e")
    return digit if int(exponent) == 0 else f"{digit}e{int(exponent)}"


def _row_axis(cells: pd.DataFrame) -> alt.Axis:
    rows = cells.drop_duplicates("row").sort_values("row")
    names = " ".join(
        f"datum.value == {row.row} ? substring(labels['{row.page}'], 0, 1) + '  ' + "
        f"labels['{row.check}'] :"
        for row in rows.itertuples()
    )
    return alt.Axis(
        values=list(range(len(rows))),
        labelExpr=f"{names} ''",
        title=None,
        grid=False,
        domain=False,
        ticks=False,
        labelLimit=190,
        labelFontSize=11,
        labelOverlap=False,
    )


def _legend(**options: Any) -> alt.Legend:
    """One column, so that two legends stand side by side on a phone."""
    return alt.Legend(
        orient="top",
        columns=1,
        labelExpr=style.label_expr(),
        labelLimit=150,
        labelFontSize=11,
        rowPadding=0,
        offset=4,
        **options,
    )


def _status_legend() -> alt.Legend:
    return _legend(values=["caught", "blind"], symbolType="square")


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("check_text:N", title="verification.axis.check"),
        alt.Tooltip("page_text:N", title="verification.axis.page"),
        alt.Tooltip("fault_text:N", title="verification.axis.fault"),
        alt.Tooltip("kind_text:N", title="verification.axis.kind"),
        alt.Tooltip("status_text:N", title="verification.axis.status"),
        alt.Tooltip("value:Q", format=".2e", title="verification.axis.value"),
        alt.Tooltip("tolerance:Q", format=".0e", title="verification.axis.tolerance"),
    ]


def _page_rules(cells: pd.DataFrame, axis: alt.Axis) -> alt.Chart:
    """A thin line between the checks of two pages."""
    last = cells.groupby("page", sort=False)["row"].max()
    edges = pd.DataFrame({"edge": [row + 0.5 for row in last.iloc[:-1]]})
    return (
        alt.Chart(edges)
        .mark_rule(color=style.NEUTRAL, strokeWidth=1, opacity=0.7)
        .encode(alt.Y("edge:Q").axis(axis))
    )


def _selected_column(
    cells: pd.DataFrame, selected: pd.DataFrame, num_rows: int, axis: alt.Axis
) -> alt.Chart:
    column = int(cells.loc[cells["fault"] == selected["fault"].iloc[0], "column"].iloc[0])
    frame = pd.DataFrame(
        {"x": [column - 0.5], "x2": [column + 0.5], "y": [-0.55], "y2": [num_rows - 0.45]}
    )
    return (
        alt.Chart(frame)
        .mark_rect(fillOpacity=0, stroke=style.NEUTRAL, strokeWidth=3)
        .encode(alt.X("x:Q").axis(None), alt.X2("x2:Q"), alt.Y("y:Q").axis(axis), alt.Y2("y2:Q"))
    )


def fig_break_it(tables: Tables) -> dict[str, alt.LayerChart]:
    """Healthy and broken value of each row of the matrix, with its tolerance.

    Tables: ``cells`` of ``MatrixResult``; ``selected`` of ``VerificationResult`` for the fault,
    without which the healthy values stand alone.
    """
    cells = tables["cells"]
    fault = "healthy" if "selected" not in tables else str(tables["selected"]["fault"].iloc[0])
    healthy = cells[cells["fault"] == "healthy"]
    broken = cells[cells["fault"] == fault].assign(at=lambda t: t["value"].map(_on_axis))
    pairs = healthy.assign(
        start=healthy["value"].map(_on_axis),
        end=broken["at"].to_numpy(),
        limit=healthy["tolerance"].map(_on_axis),
    )
    x_scale = alt.Scale(type="log", domain=[1e-19, _HUGE], nice=False, clamp=True)
    x_axis = alt.Axis(
        title="verification.axis.value_log",
        values=[1e-18, 1e-12, 1e-6, 1],
        labelExpr="datum.value < 1e-17 ? labels['zero'] : datum.value == 1 ? '1' : "
        "format(datum.value, '.0e')",
    )
    y_scale = alt.Scale(domain=[-0.6, len(healthy) - 0.4], reverse=True, nice=False, zero=False)
    row = alt.Y("row:Q").scale(y_scale).axis(_row_axis(cells))
    status = (
        alt.Fill("status:N")
        .scale(domain=list(_STATUS), range=_STATUS_COLOURS)
        .legend(_status_legend())
        .title(None)
    )
    shape = (
        alt.Shape("status:N")
        .scale(domain=list(_STATUS), range=["circle", "circle", "cross", "cross"])
        .legend(None)
    )
    named = alt.Chart(broken)
    for column in ("check", "page", "fault", "kind", "status"):
        named = style.labelled(named, column)
    layers = [
        _usual_rule(),
        alt.Chart(pairs)
        .mark_rule(color=style.NEUTRAL, strokeWidth=2)
        .encode(alt.X("start:Q"), alt.X2("end:Q"), row),
        alt.Chart(pairs)
        .mark_point(filled=False, size=40, opacity=1, color=style.NEUTRAL)
        .encode(alt.X("start:Q").scale(x_scale).axis(x_axis), row),
        alt.Chart(pairs)
        .mark_tick(thickness=3, size=13, opacity=1, color=style.NEUTRAL)
        .encode(alt.X("limit:Q"), row),
        named.mark_point(filled=True, size=75, opacity=1).encode(
            alt.X("at:Q").scale(x_scale).axis(x_axis),
            row,
            status,
            shape,
            tooltip=_tooltip(),
        ),
    ]
    chart = alt.LayerChart(layer=layers).resolve_scale(shape="independent")
    return {"dots": chart.properties(height=_HEIGHT, title="verification.panel.dots")}


def _on_axis(value: float) -> float:
    return min(max(value, _EQUAL_BITS), _HUGE)


def _usual_rule() -> alt.Chart:
    return (
        alt.Chart(pd.DataFrame({"usual": [_USUAL]}))
        .mark_rule(strokeDash=[5, 4], strokeWidth=2, color=style.REJECTED)
        .encode(alt.X("usual:Q"))
    )


def fig_blind_spots(tables: Tables) -> dict[str, alt.Chart | alt.LayerChart]:
    """Per fault: who catches it and who is blind, and which catches need a tight tolerance.

    Tables: ``faults`` and ``cells`` of ``MatrixResult``.
    """
    faults = tables["faults"]
    order = faults["fault"].tolist()
    parts = faults.rename(columns={"oracle": "caught_oracle", "self": "caught_self"}).melt(
        "fault", ["caught_oracle", "caught_self", "blind"], "part", "rows"
    )
    parts["place"] = parts["part"].map({"caught_oracle": 0, "caught_self": 1, "blind": 2})
    part_domain = ["caught_oracle", "caught_self", "blind"]
    fault = (
        alt.Y("fault:N")
        .sort(order)
        .axis(
            labelExpr=style.label_expr(),
            title=None,
            labelLimit=150,
            ticks=False,
            labelOverlap=False,
        )
    )
    named = style.labelled(style.labelled(alt.Chart(parts), "fault"), "part")
    bars = named.mark_bar().encode(
        alt.X("rows:Q").axis(title="verification.axis.rows", format="d", tickMinStep=1),
        fault,
        alt.Fill("part:N")
        .scale(domain=part_domain, range=[style.ACCEPTED, style.ACCEPTED, style.REJECTED])
        .legend(style.legend())
        .title(None),
        alt.Opacity("part:N")
        .scale(type="ordinal", domain=part_domain, range=[1.0, 0.55, style.PALE])
        .legend(style.legend())
        .title(None),
        alt.Order("place:Q"),
        tooltip=[
            alt.Tooltip("fault_text:N", title="verification.axis.fault"),
            alt.Tooltip("part_text:N", title="verification.axis.status"),
            alt.Tooltip("rows:Q", title="verification.axis.rows"),
        ],
    )
    numbers = style.layer(
        *(
            alt.Chart(parts)
            .transform_stack(
                stack="rows", groupby=["fault"], sort=[alt.SortField("place")], as_=["from", "to"]
            )
            .transform_filter(f"datum.rows > 0 && (datum.part == 'caught_oracle') == {solid}")
            .transform_calculate(middle="(datum.from + datum.to) / 2")
            .mark_text(fontWeight="bold", color=ink)
            .encode(alt.X("middle:Q"), fault, alt.Text("rows:Q"))
            for solid, ink in (("true", _INK), ("false", alt.Undefined))
        )
    )
    caught = tables["cells"][tables["cells"]["status"] == "caught"]
    caught = caught.assign(at=caught["value"].map(_on_axis))
    points = alt.Chart(caught)
    for column in ("check", "page", "fault", "kind", "status"):
        points = style.labelled(points, column)
    usual = alt.LayerChart(
        layer=[
            _usual_rule(),
            points.mark_point(filled=True, size=70, opacity=0.75, color=style.ACCEPTED).encode(
                alt.X("at:Q")
                .scale(type="log", domain=[1e-5, _HUGE], nice=False, clamp=True)
                .axis(
                    title="verification.axis.value_log",
                    values=[1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10, 100],
                    labelExpr="datum.value >= 1 ? format(datum.value, 'd') : "
                    "format(datum.value, '.0e')",
                ),
                fault,
                alt.Shape("kind:N").scale(_SHAPES).legend(style.legend()).title(None),
                tooltip=_tooltip(),
            ),
        ]
    )
    return {
        "by_fault": alt.LayerChart(layer=[bars, numbers]).properties(
            height=300, title="verification.panel.by_fault"
        ),
        "usual": usual.properties(height=300, title="verification.panel.usual"),
    }


def fig_keys(tables: Tables) -> dict[str, alt.LayerChart]:
    """Error of the undecayed delta against the likeness of neighbouring keys.

    Tables: ``keys`` of ``KeySweep``.
    """
    line = (
        alt.Chart(tables["keys"])
        .mark_line(point=alt.OverlayMarkDef(color=style.REJECTED), color=style.REJECTED)
        .encode(
            alt.X("cosine:Q")
            .scale(domain=[-0.05, 1.0], nice=False)
            .axis(title="verification.axis.cosine"),
            alt.Y("error:Q")
            .scale(domain=[0.0, 0.5])
            .axis(title="verification.axis.error", format=".0%"),
            tooltip=[
                alt.Tooltip("cosine:Q", format=".2f", title="verification.axis.cosine"),
                alt.Tooltip("error:Q", format=".1%", title="verification.axis.error"),
            ],
        )
    )
    rule = (
        alt.Chart(pd.DataFrame({"usual": [_USUAL]}))
        .mark_rule(strokeDash=[5, 4], strokeWidth=2, color=style.NEUTRAL)
        .encode(alt.Y("usual:Q"))
    )
    return {
        "keys": alt.LayerChart(layer=[rule, line]).properties(
            height=260, title="verification.panel.keys"
        )
    }
