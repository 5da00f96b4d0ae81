"""Flow diagram: a chain of boxes from top to bottom, each with the number of the current run."""

from __future__ import annotations

import altair as alt
import pandas as pd

from k3core.figures import style

KIND_COLOURS = {
    "mla": style.MLA,
    "kda": style.KDA,
    "accepted": style.ACCEPTED,
    "rejected": style.REJECTED,
    "snapshot": style.SNAPSHOT,
    "inputs": style.INPUTS,
    "neutral": style.NEUTRAL,
}
_ROW_HEIGHT = 46


def flow_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Boxes in the order of ``step``, joined by arrows.

    Args:
        table: ``step`` (order), ``box`` (label code), ``number`` (text of this run), ``kind`` (a
            key of ``KIND_COLOURS``).
    """
    rows = table.assign(top=table["step"] - 0.36, bottom=table["step"] + 0.36)
    arrows = rows.iloc[1:].assign(tip=rows["step"].iloc[1:] - 0.5)
    last = float(rows["step"].max())
    y_scale = alt.Scale(domain=[-0.5, last + 0.5], reverse=True, nice=False)
    y = alt.Y("top:Q").scale(y_scale).axis(None)
    x_scale = alt.Scale(domain=[0, 1], nice=False)
    base = alt.Chart(rows)
    boxes = base.mark_rect(opacity=0.22, cornerRadius=4, strokeWidth=1.5).encode(
        alt.X("left:Q").scale(x_scale).axis(None),
        alt.X2("right:Q"),
        y,
        alt.Y2("bottom:Q"),
        alt.Color("kind:N")
        .scale(domain=list(KIND_COLOURS), range=list(KIND_COLOURS.values()))
        .legend(None),
        alt.Stroke("kind:N")
        .scale(domain=list(KIND_COLOURS), range=list(KIND_COLOURS.values()))
        .legend(None),
    )
    boxes = boxes.transform_calculate(left="0.02", right="0.98")
    names = (
        style.labelled(base, "box")
        .transform_calculate(left="0.05")
        .mark_text(align="left", fontSize=12)
        .encode(
            alt.X("left:Q").scale(x_scale), alt.Y("step:Q").scale(y_scale), alt.Text("box_text:N")
        )
    )
    numbers = (
        base.transform_calculate(right="0.95")
        .mark_text(align="right", fontSize=12, fontWeight="bold")
        .encode(
            alt.X("right:Q").scale(x_scale), alt.Y("step:Q").scale(y_scale), alt.Text("number:N")
        )
    )
    tips = (
        alt.Chart(arrows)
        .transform_calculate(middle="0.5")
        .mark_point(shape="triangle-down", size=60, filled=True, color=style.NEUTRAL)
        .encode(alt.X("middle:Q").scale(x_scale), alt.Y("tip:Q").scale(y_scale))
    )
    return style.layer(boxes, tips, names, numbers).properties(height=_ROW_HEIGHT * (int(last) + 1))
