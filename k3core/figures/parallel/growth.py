"""Bytes and time against length and ranks."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.parallel.shared import KINDS, Chart, Tables, kind_legend

_TOKENS_SCALE = alt.Scale(type="log", base=2, domain=[64, 2**20], nice=False)
_TOKENS_TICKS = [2**6, 2**10, 2**14, 2**18]
_MICROSECONDS = (
    "datum.value >= 1e6 ? format(datum.value / 1e6, ',~r') + ' s' : "
    "datum.value >= 1000 ? format(datum.value / 1000, ',~r') + ' ms' : "
    "format(datum.value, ',~r') + ' µs'"
)
_HEIGHT = 340


def crossing_picture(tables: Tables) -> Chart:
    """Bytes that one rank sends per layer against its tokens: a flat line and a rising one.

    Tables: ``sweep`` and ``marks`` of ``ExchangeStudy``.
    """
    x = alt.X("tokens:Q").scale(_TOKENS_SCALE)
    lines = (
        style.labelled(alt.Chart(tables["sweep"]), "kind")
        .mark_line(strokeWidth=3, clip=True)
        .encode(
            x.axis(
                title="parallel.axis.tokens",
                labelExpr=style.COUNT_LABELS,
                values=_TOKENS_TICKS,
            ),
            alt.Y("bytes:Q")
            .scale(type="log", base=2, domain=[2**11, 2**30], nice=False)
            .axis(
                title="parallel.axis.layer_bytes",
                labelExpr=style.BYTES_LABELS,
                values=[2**12, 2**16, 2**20, 2**24, 2**28],
            ),
            alt.Color("kind:N").scale(KINDS).legend(kind_legend()),
            tooltip=[
                alt.Tooltip("kind_text:N", title="parallel.axis.kind"),
                alt.Tooltip("tokens:Q", format=",", title="parallel.axis.tokens"),
                alt.Tooltip("bytes:Q", format=",", title="parallel.axis.layer_bytes"),
            ],
        )
    )
    return alt.layer(lines, *_token_marks(tables["marks"])).properties(
        height=_HEIGHT, title="parallel.panel.crossing"
    )


def _token_marks(marks: pd.DataFrame) -> list[alt.Chart]:
    """Dashed rules at token counts; ``equal`` is named at the top, ``you`` at the bottom."""
    base = style.labelled(alt.Chart(marks), "mark").transform_calculate(
        name="trim(datum.mark_text + '\\n' + datum.number)"
    )
    x = alt.X("tokens:Q").scale(_TOKENS_SCALE)
    rules = base.mark_rule(strokeDash=[5, 4], color=style.NEUTRAL, strokeWidth=1.5).encode(
        x, alt.Tooltip("tokens:Q", format=",.1f", title="parallel.axis.tokens")
    )
    equal = base.transform_filter("datum.mark == 'equal'")
    at_top: dict[str, Any] = {"fontSize": 12, "fontWeight": "bold", "lineBreak": "\n"}
    left, right = (equal.transform_filter(f"datum.tokens {side} 700") for side in (">=", "<"))
    top = [
        text.encode(x, alt.Text("name:N"), alt.Y(value=10))
        for text in (
            left.mark_text(align="right", dx=-5, **at_top),
            right.mark_text(align="left", dx=5, **at_top),
        )
    ]
    bottom = (
        base.transform_filter("datum.mark == 'you'")
        .mark_text(align="left", dx=5, fontSize=12, fontWeight="bold")
        .encode(x, alt.Text("name:N"), alt.Y(value=alt.expr("height - 10")))
    )
    return [rules, *top, bottom]


def time_pictures(tables: Tables) -> dict[str, Chart]:
    """Time of one layer's exchange against tokens per rank and against ranks.

    Tables: ``time_by_len``, ``time_by_ranks`` and ``marks`` of ``ExchangeStudy``.
    """

    def micros(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(micros=table["seconds"] * 1e6)

    def y(table: pd.DataFrame) -> alt.Y:
        """From 0 to the power of ten above the longest time."""
        last = max(math.ceil(math.log10(max(table["seconds"].max() * 1e6, 1))), 2)
        return (
            alt.Y("micros:Q")
            .scale(type="symlog", constant=10, domain=[0, 10**last], nice=False)
            .axis(
                title="parallel.axis.time",
                values=[0, *(10**power for power in range(min(2, last), last + 1))],
                labelExpr=_MICROSECONDS,
                labelOverlap=False,
            )
        )

    colour = alt.Color("kind:N").scale(KINDS).legend(kind_legend())
    tip = [
        alt.Tooltip("kind_text:N", title="parallel.axis.kind"),
        alt.Tooltip("micros:Q", format=",.1f", title="parallel.axis.micros"),
    ]
    by_len = (
        style.labelled(alt.Chart(micros(tables["time_by_len"])), "kind")
        .mark_line(strokeWidth=3)
        .encode(
            alt.X("tokens:Q")
            .scale(_TOKENS_SCALE)
            .axis(title="parallel.axis.tokens", labelExpr=style.COUNT_LABELS, values=_TOKENS_TICKS),
            y(tables["time_by_len"]),
            colour,
            tooltip=[alt.Tooltip("tokens:Q", format=",", title="parallel.axis.tokens"), *tip],
        )
    )
    by_ranks = (
        style.labelled(alt.Chart(micros(tables["time_by_ranks"])), "kind")
        .mark_line(strokeWidth=3, point=True)
        .encode(
            alt.X("ranks:Q").scale(domain=[1, 16]).axis(title="parallel.axis.ranks", format="d"),
            y(tables["time_by_ranks"]),
            colour,
            tooltip=[alt.Tooltip("ranks:Q", title="parallel.axis.ranks"), *tip],
        )
        .properties(height=260, title="parallel.panel.time_by_ranks")
    )
    return {
        "by_len": alt.layer(by_len, *_token_marks(tables["marks"])).properties(
            height=260, title="parallel.panel.time_by_len"
        ),
        "by_ranks": by_ranks,
    }


def length_pictures(tables: Tables) -> dict[str, Chart]:
    """Tab 10 (b) and (c) of the source text: cache against message, and the message alone.

    Tables: ``by_length`` of ``ExchangeStudy``.
    """
    x = (
        alt.X("num_tokens:Q")
        .scale(_TOKENS_SCALE)
        .axis(title="parallel.axis.num_tokens", labelExpr=style.COUNT_LABELS, values=_TOKENS_TICKS)
    )
    tooltip = [
        alt.Tooltip("num_tokens:Q", format=",", title="parallel.axis.num_tokens"),
        alt.Tooltip("bytes:Q", format=",", title="parallel.axis.layer_bytes"),
    ]
    table = tables["by_length"]

    def y(rows: pd.DataFrame) -> alt.Y:
        high = float(rows["bytes"].max())
        top = 2 ** math.ceil(math.log2(max(high, 1)) + 0.1)
        return (
            alt.Y("bytes:Q")
            .scale(domain=[0, top], nice=False)
            .axis(style.bytes_axis("parallel.axis.layer_bytes", high=high))
        )

    base = style.labelled(alt.Chart(table), "kind")
    both = (
        base.mark_line(strokeWidth=3)
        .encode(
            x, y(table), alt.Color("kind:N").scale(KINDS).legend(kind_legend()), tooltip=tooltip
        )
        .properties(height=250, title="parallel.panel.kv_and_message")
    )
    message = (
        base.transform_filter("datum.kind == 'kda'")
        .mark_line(strokeWidth=3, color=style.KDA)
        .encode(x, y(table[table["kind"] == "kda"]), tooltip=tooltip)
        .properties(height=250, title="parallel.panel.message")
    )
    return {"kv_and_message": both, "message": message}
