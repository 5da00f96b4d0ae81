"""The main picture: the matrix of checks and faults."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.verification.common import (
    HEIGHT,
    KIND_SHAPES,
    STATUS,
    STATUS_COLOURS,
    Tables,
    legend,
    row_axis,
    status_legend,
    tooltip,
)

_NARROW = "width < 560"  # the plot area of a phone, or of half a page
_STATUS_OPACITY = [style.PALE, 1.0, style.PALE, 1.0]


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
    axis = row_axis(cells)  # on every layer: a default axis beside it would drop labels
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
        .scale(domain=list(STATUS), range=STATUS_COLOURS)
        .legend(status_legend())
        .title(None)
    )
    opacity = (
        alt.Opacity("status:N")
        .scale(type="ordinal", domain=list(STATUS), range=_STATUS_OPACITY)
        .legend(status_legend())
        .title(None)
    )
    areas = base.mark_rect().encode(
        alt.X("left:Q").scale(x_scale).axis(None),
        alt.X2("right:Q"),
        alt.Y("top:Q").scale(y_scale).axis(axis),
        alt.Y2("bottom:Q"),
        fill,
        opacity,
        tooltip=tooltip(),
    )
    edges = (
        base.transform_filter("datum.usual")
        .transform_calculate(edge="datum.left + 0.1")
        .mark_rect(color=style.REJECTED)
        .encode(
            alt.X("left:Q").scale(x_scale).axis(None),
            alt.X2("edge:Q"),
            alt.Y("top:Q").scale(y_scale).axis(axis),
            alt.Y2("bottom:Q"),
            tooltip=tooltip(),
        )
    )
    font_size = alt.ExprRef("width < 300 ? 10 : 11")
    filled = (
        base.transform_filter("datum.status == 'caught' || datum.status == 'broken'")
        .mark_text(color=style.INK, fontWeight="bold", fontSize=font_size)
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
            alt.Shape("kind:N").scale(KIND_SHAPES).legend(legend()).title(None),
            alt.Tooltip("kind_text:N", title="verification.axis.kind"),
        )
    )
    layers = [areas, edges, filled, pale, headers, kinds, _page_rules(cells, axis)]
    if "selected" in tables:
        layers.append(_selected_column(cells, tables["selected"], num_rows, axis))
    return alt.LayerChart(layer=layers).properties(height=HEIGHT)


def _short(value: float) -> str:
    """``6.1e-04`` -> ``6e-4``: a cell of a phone has room for five signs."""
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞"
    digit, exponent = f"{value:.0e}".split("e")
    return digit if int(exponent) == 0 else f"{digit}e{int(exponent)}"


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
