"""The text cut into ranks, and what each of them sends, drawn to scale."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.parallel.shared import KINDS, Chart, Tables

# The main picture is laid out in pixels: squares keep their area on every screen width.
_HEIGHT, _AXIS_HEIGHT = 340, 68
_RULER_TOP, _RULER_BOTTOM = 4, 36
_KDA_CENTER, _MLA_CENTER, _KEY_CENTER = 80, 206, 326
_FULL_SIDE = 120.0
_RULER_WIDTH = 560  # of a desktop page; decides how many squares fit side by side
_FULL_BYTES = 160 * 2**20  # the largest square; more bytes keep this size and a dashed edge
_KEY_BYTES = 2**20


def main_picture(tables: Tables) -> Chart:
    """The text cut into ranks, and below each rank what it sends for one layer; area = bytes.

    Tables: ``ruler``, ``cuts`` and ``squares`` of ``ExchangeStudy``.
    """
    ruler, squares = tables["ruler"], tables["squares"]
    x_scale = alt.Scale(domain=[0, int(ruler["end"].max())], nice=False)
    y_scale = alt.Scale(domain=[0, _HEIGHT], reverse=True, nice=False)
    x_axis = alt.Axis(
        orient="top",
        title="parallel.axis.position",
        labelExpr=style.COUNT_LABELS,
        labelOverlap=True,
        values=[0, *(int(end) for end in ruler["end"])],
        grid=False,
    )
    rows = {"text": (_RULER_TOP + _RULER_BOTTOM) // 2, "kda": _KDA_CENTER, "mla": _MLA_CENTER}
    y_axis = style.row_axis({f"row_{row}": at for row, at in rows.items()})
    x_only = alt.X("center:Q").scale(x_scale)
    few = len(ruler) <= 8
    bars = ruler.assign(
        center=(ruler["start"] + ruler["end"]) / 2,
        top=_RULER_TOP,
        bottom=_RULER_BOTTOM,
        middle=rows["text"],
        rank_code="rank" if few else "",
    )
    tooltip = [
        alt.Tooltip("rank:O", title="parallel.axis.rank"),
        alt.Tooltip("num_tokens:Q", format=",", title="parallel.axis.rank_tokens"),
        alt.Tooltip("start:Q", format=",", title="parallel.axis.first_token"),
    ]
    bar_base = style.labelled(alt.Chart(bars), "rank_code")
    text_bars = bar_base.mark_rect(
        color=style.NEUTRAL, opacity=0.45, cornerRadius=2, stroke=style.NEUTRAL
    ).encode(
        alt.X("start:Q").scale(x_scale).axis(x_axis),
        alt.X2("end:Q"),
        alt.Y("top:Q").scale(y_scale).axis(y_axis),
        alt.Y2("bottom:Q"),
        tooltip=tooltip,
    )
    rank_names = (
        bar_base.transform_calculate(name="trim(datum.rank_code_text + ' ' + datum.rank)")
        .mark_text(fontWeight="bold", fontSize=12)
        .encode(x_only, alt.Y("middle:Q").scale(y_scale), alt.Text("name:N"))
    )
    borders = (
        alt.Chart(tables["cuts"].assign(top=_RULER_TOP - 4, bottom=_RULER_BOTTOM + 8))
        .mark_rule(color=style.REJECTED, strokeWidth=2.5)
        .encode(
            alt.X("position:Q").scale(x_scale),
            alt.Y("top:Q").scale(y_scale),
            alt.Y2("bottom:Q"),
            alt.Tooltip("position:Q", format=",", title="parallel.axis.document_border"),
        )
    )
    cells = _cells(squares, len(ruler))
    cell_base = style.labelled(alt.Chart(cells), "kind")
    size = alt.Size("area:Q").scale(None).legend(None)
    packets = cell_base.mark_square(opacity=1, strokeWidth=2.5).encode(
        x_only,
        alt.Y("row:Q").scale(y_scale),
        size,
        alt.Fill("kind:N").scale(KINDS).legend(None),
        alt.Stroke("kind:N").scale(KINDS).legend(None),
        alt.StrokeDash("edge:N")
        .scale(domain=["whole", "cut"], range=[[1, 0], [4, 5]])
        .legend(None),
        tooltip=[
            alt.Tooltip("rank:O", title="parallel.axis.rank"),
            alt.Tooltip("kind_text:N", title="parallel.axis.kind"),
            alt.Tooltip("bytes:Q", format=",", title="parallel.axis.sent_bytes"),
        ],
    )
    sizes = (
        cell_base.transform_filter("datum.has_text")
        .mark_text(fontSize=12)
        .encode(x_only, alt.Y("under:Q").scale(y_scale), alt.Text("text:N"))
    )
    key_base = style.labelled(
        alt.Chart(pd.DataFrame({"key": ["key_square"], "row": [_KEY_CENTER], "left": [0]})), "key"
    )
    key_square = key_base.mark_square(
        color=style.NEUTRAL, opacity=1, xOffset=8, size=_KEY_BYTES / _FULL_BYTES * _FULL_SIDE**2
    ).encode(alt.X("left:Q").scale(x_scale), alt.Y("row:Q").scale(y_scale))
    key_text = key_base.mark_text(align="left", dx=22, fontSize=11).encode(
        alt.X("left:Q").scale(x_scale), alt.Y("row:Q").scale(y_scale), alt.Text("key_text:N")
    )
    return alt.layer(
        text_bars, rank_names, borders, packets, sizes, key_square, key_text
    ).properties(height=_HEIGHT + _AXIS_HEIGHT)


def _cells(squares: pd.DataFrame, num_ranks: int) -> pd.DataFrame:
    """Place and size of each square; where they would meet, only every n-th is drawn."""
    center = squares["kind"].map({"kda": _KDA_CENTER, "mla": _MLA_CENTER})
    area = squares["bytes"].clip(upper=_FULL_BYTES) / _FULL_BYTES * _FULL_SIDE**2
    side = area**0.5
    cells = squares.assign(
        row=center,
        under=center + side / 2 + 13,
        area=area,
        edge=(squares["bytes"] > _FULL_BYTES).map({True: "cut", False: "whole"}),
        every=((side + 6) * num_ranks / _RULER_WIDTH).clip(lower=1).apply(math.ceil),
    )
    text_every = cells["every"] * (-(-num_ranks // (6 * cells["every"])))
    cells = cells.assign(has_text=cells["rank"] % text_every == cells["every"] // 2)
    return cells[cells["rank"] % cells["every"] == cells["every"] // 2]
