"""Pictures of context parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Chart = alt.Chart | alt.LayerChart | alt.FacetChart

# The main picture is laid out in pixels: squares keep their area on every screen width.
_HEIGHT, _AXIS_HEIGHT = 340, 68
_RULER_TOP, _RULER_BOTTOM = 4, 36
_KDA_CENTER, _MLA_CENTER, _KEY_CENTER = 80, 206, 326
_FULL_SIDE = 120.0
_RULER_WIDTH = 560  # of a desktop page; decides how many squares fit side by side
_FULL_BYTES = 160 * 2**20  # the largest square; more bytes keep this size and a dashed edge
_KEY_BYTES = 2**20

_KIND_DOMAIN, _KIND_COLOURS = ["kda", "mla"], [style.KDA, style.MLA]
_KINDS = alt.Scale(domain=_KIND_DOMAIN, range=_KIND_COLOURS)
_TOKENS_SCALE = alt.Scale(type="log", base=2, domain=[64, 2**20], nice=False)
_TOKENS_TICKS = [2**6, 2**10, 2**14, 2**18]
_MICROSECONDS = (
    "datum.value >= 1e6 ? format(datum.value / 1e6, ',~r') + ' s' : "
    "datum.value >= 1000 ? format(datum.value / 1000, ',~r') + ' ms' : "
    "format(datum.value, ',~r') + ' µs'"
)


def _kind_legend(**options: Any) -> alt.Legend:
    return alt.Legend(orient="top", labelExpr=style.label_expr(), title=None, **options)


def _line_legend() -> alt.Legend:
    return _kind_legend(symbolType="stroke", symbolSize=400)


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
    names = " ".join(f"datum.value == {at} ? labels['row_{row}'] :" for row, at in rows.items())
    y_axis = alt.Axis(
        values=list(rows.values()),
        labelExpr=f"{names} ''",
        title=None,
        grid=False,
        domain=False,
        ticks=False,
        labelFontSize=12,
        labelLimit=130,
    )
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
        alt.Fill("kind:N").scale(_KINDS).legend(None),
        alt.Stroke("kind:N").scale(_KINDS).legend(None),
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
            alt.Color("kind:N").scale(_KINDS).legend(_kind_legend()),
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


def partner_pictures(tables: Tables) -> dict[str, Chart]:
    """Whose message changes whose state, and how many merges wait for each other.

    Tables: ``pairs`` of ``ExchangeStudy`` and ``depth`` of ``MergeStudy``.
    """
    statuses = ["used", "later", "other_document", "own"]
    pairs = (
        style.labelled(alt.Chart(tables["pairs"]), "status")
        .mark_point(size=90, strokeWidth=2, opacity=1)
        .encode(
            alt.X("receiver:O").axis(title="parallel.axis.receiver", labelAngle=0, grid=True),
            alt.Y("sender:O").axis(title="parallel.axis.sender", grid=True),
            alt.Shape("status:N")
            .scale(domain=statuses, range=["circle", "circle", "cross", "square"])
            .legend(_kind_legend(columns=2)),
            alt.Stroke("status:N").scale(
                domain=statuses, range=[style.KDA, style.NEUTRAL, style.REJECTED, style.FREE]
            ),
            alt.Fill("status:N").scale(
                domain=statuses, range=[style.KDA, "transparent", style.REJECTED, style.FREE]
            ),
            tooltip=[
                alt.Tooltip("sender:O", title="parallel.axis.sender"),
                alt.Tooltip("receiver:O", title="parallel.axis.receiver"),
                alt.Tooltip("status_text:N", title="parallel.axis.status"),
            ],
        )
        .properties(height=290, title="parallel.panel.pairs")
    )
    depth = (
        style.labelled(alt.Chart(tables["depth"]), "scan")
        .mark_line(point=True, interpolate="step-after")
        .encode(
            alt.X("ranks:Q").scale(domain=[1, 16]).axis(title="parallel.axis.ranks", format="d"),
            alt.Y("merges:Q").axis(title="parallel.axis.merges", format="d", tickMinStep=1),
            alt.StrokeDash("scan:N").legend(_line_legend()),
            alt.Color("scan:N")
            .scale(domain=["chain", "tree"], range=[style.NEUTRAL, style.KDA])
            .legend(_line_legend()),
            tooltip=[
                alt.Tooltip("scan_text:N", title="parallel.axis.scan"),
                alt.Tooltip("ranks:Q", title="parallel.axis.ranks"),
                alt.Tooltip("merges:Q", title="parallel.axis.merges"),
            ],
        )
        .properties(height=290, title="parallel.panel.depth")
    )
    return {"pairs": pairs, "depth": depth}


def merge_pictures(tables: Tables) -> dict[str, Chart]:
    """How exact the merged states are, and how many bytes the messages really had.

    Tables: ``error_by_rank`` and ``measured`` of ``MergeStudy``.
    """
    floor = 1e-18
    formats = ["float64", "float32", "bfloat16"]
    colour = (
        alt.Color("chain_dtype:N")
        .scale(domain=formats, range=[style.ACCEPTED, style.KDA, style.REJECTED])
        .legend(_kind_legend())
    )
    errors = tables["error_by_rank"].assign(
        shown=tables["error_by_rank"]["error"].clip(lower=floor)
    )
    error = (
        style.labelled(alt.Chart(errors), "chain_dtype")
        .mark_line(point=alt.OverlayMarkDef(size=60, filled=True, opacity=1))
        .encode(
            alt.X("rank:O").axis(title="parallel.axis.rank", labelAngle=0),
            alt.Y("shown:Q")
            .scale(type="log", domain=[floor, 1], nice=False)
            .axis(
                title="parallel.axis.error",
                values=[1e-18, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1],
                labelExpr="datum.value < 2e-18 ? '0' : format(datum.value, '.0e')",
            ),
            colour,
            tooltip=[
                alt.Tooltip("rank:O", title="parallel.axis.rank"),
                alt.Tooltip("chain_dtype_text:N", title="parallel.axis.chain_dtype"),
                alt.Tooltip("error:Q", format=".2e", title="parallel.axis.error"),
            ],
        )
        .properties(height=250, title="parallel.panel.error")
    )
    sent = tables["measured"].assign(
        sent_kib=tables["measured"]["sent_bytes"] / 1024,
        formula_kib=tables["measured"]["formula_bytes"] / 1024,
    )
    x = alt.X("num_tokens:O").axis(title="parallel.axis.toy_tokens", labelAngle=0)
    measured = alt.layer(
        alt.Chart(sent)
        .mark_bar(color=style.KDA, opacity=0.9)
        .encode(
            x,
            alt.Y("sent_kib:Q")
            .scale(domain=[0, 2.0 ** math.ceil(math.log2(max(sent["sent_kib"].max(), 1)) + 0.1)])
            .axis(title="parallel.axis.measured_kib", tickCount=5),
            tooltip=[
                alt.Tooltip("num_tokens:O", title="parallel.axis.toy_tokens"),
                alt.Tooltip("sent_bytes:Q", format=",", title="parallel.axis.measured_bytes"),
                alt.Tooltip("formula_bytes:Q", format=",", title="parallel.axis.formula_bytes"),
            ],
        ),
        alt.Chart(sent)
        .mark_tick(color=style.NEUTRAL, thickness=3, bandSize=64)
        .encode(x, alt.Y("formula_kib:Q")),
    ).properties(height=250, title="parallel.panel.measured")
    return {"error": error, "measured": measured}


def time_pictures(tables: Tables) -> dict[str, Chart]:
    """Time of one layer's exchange against tokens per rank and against ranks.

    Tables: ``time_by_len``, ``time_by_ranks`` and ``marks`` of ``ExchangeStudy``.
    """

    def micros(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(micros=table["seconds"] * 1e6)

    y = (
        alt.Y("micros:Q")
        .scale(type="symlog", constant=10, domain=[0, 1e7], nice=False, clamp=True)
        .axis(
            title="parallel.axis.time",
            values=[0, 100, 1000, 1e4, 1e5, 1e6, 1e7],
            labelExpr=_MICROSECONDS,
            labelOverlap=False,
        )
    )
    colour = alt.Color("kind:N").scale(_KINDS).legend(_kind_legend())
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
            y,
            colour,
            tooltip=[alt.Tooltip("tokens:Q", format=",", title="parallel.axis.tokens"), *tip],
        )
    )
    by_ranks = (
        style.labelled(alt.Chart(micros(tables["time_by_ranks"])), "kind")
        .mark_line(strokeWidth=3, point=True)
        .encode(
            alt.X("ranks:Q").scale(domain=[1, 16]).axis(title="parallel.axis.ranks", format="d"),
            y,
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
    y = alt.Y("bytes:Q").axis(title="parallel.axis.layer_bytes", labelExpr=style.BYTES_LABELS)
    base = style.labelled(alt.Chart(tables["by_length"]), "kind")
    both = (
        base.mark_line(strokeWidth=3)
        .encode(x, y, alt.Color("kind:N").scale(_KINDS).legend(_kind_legend()), tooltip=tooltip)
        .properties(height=250, title="parallel.panel.kv_and_message")
    )
    message = (
        base.transform_filter("datum.kind == 'kda'")
        .mark_line(strokeWidth=3, color=style.KDA)
        .encode(x, y, tooltip=tooltip)
        .properties(height=250, title="parallel.panel.message")
    )
    return {"kv_and_message": both, "message": message}
