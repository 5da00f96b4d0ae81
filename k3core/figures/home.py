"""The picture of the first screen: two memories of one request against its length."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

_TICKS = [2**i for i in range(6, 21, 2)]


def main_picture(tables: Mapping[str, pd.DataFrame]) -> alt.LayerChart:
    """Bytes of both memories against the tokens of the conversation, the crossing labelled.

    A pointer anywhere in the picture reads both lines at that length.

    Tables: ``lines``, ``growth``, ``crossing``, ``ends`` of ``HomeStudy``.
    """
    x = alt.X("tokens:Q").scale(type="log", base=2, domain=[64, 2**20], nice=False)
    x_axis = x.axis(
        labelExpr=style.COUNT_LABELS, values=_TICKS, title="home.axis.tokens", grid=False
    )
    y = (
        alt.Y("bytes:Q")
        .scale(type="log", base=2)
        .axis(labelExpr=style.BYTES_LABELS, title="home.axis.bytes", tickCount=7, grid=False)
    )
    memories = ["kda", "mla"]
    lines = (
        style.labelled(alt.Chart(tables["lines"]), "memory")
        .mark_line(strokeWidth=4)
        .encode(
            x_axis,
            y,
            alt.Color("memory:N").scale(domain=memories, range=[style.KDA, style.MLA]).legend(None),
            alt.StrokeDash("memory:N").scale(domain=memories, range=[[1, 0], [8, 3]]).legend(None),
        )
    )
    ends = alt.Chart(tables["ends"]).transform_calculate(
        memory_text="labels[datum.memory + (width < 420 ? '_short' : '')]"
    )
    kda_name = (
        ends.transform_filter("datum.memory == 'kda'")
        .transform_calculate(tokens="80")
        .mark_text(align="left", dy=-12, fontSize=14, fontWeight="bold", color=style.KDA)
        .encode(x, y, alt.Text("memory_text:N"))
    )
    mla_name = (
        ends.transform_filter("datum.memory == 'mla'")
        .mark_text(align="right", dx=-40, dy=6, fontSize=14, fontWeight="bold", color=style.MLA)
        .encode(x, y, alt.Text("memory_text:N"))
    )
    crossing = alt.Chart(tables["crossing"])
    drop = crossing.mark_rule(strokeDash=[3, 3], strokeWidth=1.5, color=style.NEUTRAL).encode(x, y)
    dot = crossing.mark_point(filled=True, size=160, opacity=1, color=style.REJECTED).encode(x, y)
    number = (
        crossing.transform_calculate(
            words="format(ceil(datum.tokens), ',') + ' '"
            " + (width < 420 ? labels['crossing_short'] : labels['crossing'])"
        )
        .mark_text(align="left", dx=12, dy=18, fontSize=15, fontWeight="bold")
        .encode(x, y, alt.Text("words:N"))
    )
    nearest = alt.selection_point(
        name="at",
        on="pointermove",
        clear="pointerout",
        nearest=True,
        fields=["tokens"],
        empty=False,
    )
    growth = alt.Chart(tables["growth"])
    reader = (
        growth.mark_rule(strokeWidth=12, opacity=0)
        .encode(
            x,
            [
                alt.Tooltip("tokens:Q", format=",", title="home.axis.tokens"),
                alt.Tooltip("kda_text:N", title="home.axis.kda"),
                alt.Tooltip("mla_text:N", title="home.axis.mla"),
            ],
        )
        .add_params(nearest)
    )
    shown = growth.mark_rule(color=style.NEUTRAL).encode(x).transform_filter(nearest)
    layers = [shown, drop, lines, kda_name, mla_name, dot, number, reader]
    return alt.LayerChart(layer=layers).properties(height=480)
