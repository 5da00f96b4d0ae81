"""What the matrix teaches: one fault row by row, blind spots, tolerances, likeness of keys."""

from __future__ import annotations

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.verification.common import (
    HEIGHT,
    KIND_SHAPES,
    STATUS,
    STATUS_COLOURS,
    USUAL,
    Tables,
    row_axis,
    status_legend,
    tooltip,
)

_EQUAL_BITS, _HUGE = 1e-18, 1e2  # on a log axis: where zero stands, and all that is beyond


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
    row = alt.Y("row:Q").scale(y_scale).axis(row_axis(cells))
    status = (
        alt.Fill("status:N")
        .scale(domain=list(STATUS), range=STATUS_COLOURS)
        .legend(status_legend())
        .title(None)
    )
    shape = (
        alt.Shape("status:N")
        .scale(domain=list(STATUS), range=["circle", "circle", "cross", "cross"])
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
            tooltip=tooltip(),
        ),
    ]
    chart = alt.LayerChart(layer=layers).resolve_scale(shape="independent")
    return {"dots": chart.properties(height=HEIGHT, title="verification.panel.dots")}


def _on_axis(value: float) -> float:
    return min(max(value, _EQUAL_BITS), _HUGE)


def _usual_rule() -> alt.Chart:
    return (
        alt.Chart(pd.DataFrame({"usual": [USUAL]}))
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
            for solid, ink in (("true", style.INK), ("false", alt.Undefined))
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
                    values=[1e-5, 1e-3, 1e-1, 10],
                    labelExpr="datum.value >= 1 ? format(datum.value, 'd') : "
                    "format(datum.value, '.0e')",
                ),
                fault,
                alt.Shape("kind:N").scale(KIND_SHAPES).legend(style.legend()).title(None),
                tooltip=tooltip(),
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
        alt.Chart(pd.DataFrame({"usual": [USUAL]}))
        .mark_rule(strokeDash=[5, 4], strokeWidth=2, color=style.NEUTRAL)
        .encode(alt.Y("usual:Q"))
    )
    return {
        "keys": alt.LayerChart(layer=[rule, line]).properties(
            height=260, title="verification.panel.keys"
        )
    }
