"""The main picture: requests as lanes on one clock, their tokens and their pages below.

Laid out in pixels from the top. A lane is, from top to bottom: the flag of the first token, the
tokens of each verify step, the passes through the model, the prompt as a strip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Chart = alt.Chart | alt.LayerChart | alt.FacetChart

LANES = ("first", "without_prefix", "with_prefix")
PAGE_LANES = ("first", "with_prefix")

_LANE_HEIGHT = 82
_FLAG, _SQUARES, _BAR, _STRIP = (2, 14), (20, 48), (50, 68), (70, 75)
_BANDS_TOP = len(LANES) * _LANE_HEIGHT + 8
_BAND_HEIGHT, _BAND_GAP = 38, 10
_HEIGHT = _BANDS_TOP + len(PAGE_LANES) * (_BAND_HEIGHT + _BAND_GAP)
_AXIS_AND_LEGEND = 82  # the page fits both into the height of the chart
_LARGEST_SQUARE = 8.0
_LABEL_HEIGHT = 11.0
_CLOCK_ENDS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)

_LANE_TOP = {lane: index * _LANE_HEIGHT for index, lane in enumerate(LANES)}
_BAND_BASE = {
    lane: _BANDS_TOP + (index + 1) * _BAND_HEIGHT + index * _BAND_GAP
    for index, lane in enumerate(PAGE_LANES)
}
_ROWS = {f"lane_{lane}": top + sum(_BAR) // 2 for lane, top in _LANE_TOP.items()} | {
    f"pages_{lane}": base - _BAND_HEIGHT // 2 for lane, base in _BAND_BASE.items()
}
_MARKS = {
    "prefill": style.NEUTRAL,
    "verify": style.INPUTS,
    "kept": style.ACCEPTED,
    "rejected": style.REJECTED,
    "kda": style.KDA,
    "mla": style.MLA,
}
_NARROW = "width < 480"  # the plot area on a phone
_MARK_SCALE = alt.Scale(domain=list(_MARKS), range=list(_MARKS.values()))


@dataclass(frozen=True)
class _Canvas:
    """Channels that all layers share."""

    clock_end: float

    def x(self, column: str = "begin") -> alt.X:
        scale = alt.Scale(domain=[0, self.clock_end], nice=False)
        return alt.X(f"{column}:Q").scale(scale).axis(title="engine.axis.clock", grid=False)

    def y(self, column: str = "top") -> alt.Y:
        names = " ".join(
            f"datum.value == {at} ? labels['{row}' + ({_NARROW} ? '_short' : '')] :"
            for row, at in _ROWS.items()
        )
        axis = alt.Axis(
            values=list(_ROWS.values()),
            labelExpr=f"{names} ''",
            title=None,
            grid=False,
            domain=False,
            ticks=False,
            labelFontSize=12,
            labelLimit=150,
        )
        scale = alt.Scale(domain=[0, _HEIGHT], reverse=True, nice=False)
        return alt.Y(f"{column}:Q").scale(scale).axis(axis)

    def fill(self) -> alt.Fill:
        legend = alt.Legend(
            orient="top",
            labelExpr=style.label_expr(),
            title=None,
            symbolType="square",
            columns=alt.expr(f"{_NARROW} ? 3 : 6"),
        )
        return alt.Fill("kind:N").scale(_MARK_SCALE).legend(legend)


def main_picture(tables: Tables) -> Chart:
    """Three lanes on one clock: chunks, verify steps, kept and rejected tokens, pages below.

    Tables: ``steps``, ``flags``, ``strip``, ``squares``, ``pages``, ``saving`` of ``EngineStudy``.
    """
    last = float(tables["steps"]["end"].max())
    canvas = _Canvas(next((end for end in _CLOCK_ENDS if end >= last), last))
    return alt.layer(
        *_pages(canvas, tables["pages"]),
        _prompts(canvas, tables["strip"]),
        *_passes(canvas, tables["steps"]),
        _tokens(canvas, tables["squares"]),
        *_saving(canvas, tables["saving"]),
        *_flags(canvas, tables["flags"], tables["saving"]),
    ).properties(height=_HEIGHT + _AXIS_AND_LEGEND)


def _passes(canvas: _Canvas, steps: pd.DataFrame) -> list[alt.Chart]:
    top = steps["lane"].map(_LANE_TOP)
    bars = steps.assign(
        top=top + _BAR[0],
        bottom=top + _BAR[1],
        middle=top + sum(_BAR) / 2,
        at=(steps["begin"] + steps["end"]) / 2,
    )
    tooltip = [
        alt.Tooltip("lane_text:N", title="engine.axis.lane"),
        alt.Tooltip("kind_text:N", title="engine.axis.pass"),
        alt.Tooltip("start_token:Q", format=",", title="engine.axis.start_token"),
        alt.Tooltip("num_tokens:Q", format=",", title="engine.axis.num_tokens"),
        alt.Tooltip("num_committed:Q", format=",", title="engine.axis.num_committed"),
        alt.Tooltip("mflops:Q", format=",.1f", title="engine.axis.mflops"),
        alt.Tooltip("cpu_ms:Q", format=",.1f", title="engine.axis.cpu_ms"),
    ]
    marks = (
        style.labelled(style.labelled(alt.Chart(bars), "lane"), "kind")
        .mark_rect(x2Offset=-1.5, cornerRadius=2)
        .encode(
            canvas.x(),
            alt.X2("end:Q"),
            canvas.y(),
            alt.Y2("bottom:Q"),
            canvas.fill(),
            tooltip=tooltip,
        )
    )
    chunks = bars[bars["kind"] == "prefill"].assign(
        share=(bars["end"] - bars["begin"]) / canvas.clock_end
    )
    counts = (
        alt.Chart(chunks)
        .transform_calculate(words="datum.share * width > 30 ? format(datum.num_tokens, ',') : ''")
        .mark_text(fontSize=11, color=style.INK)
        .encode(canvas.x("at"), canvas.y("middle"), alt.Text("words:N"))
    )
    return [marks, counts]


def _tokens(canvas: _Canvas, squares: pd.DataFrame) -> alt.Chart:
    """One square per token of a verify step, the current token at the bottom."""
    tallest = int(squares["slot"].max()) + 1 if len(squares) else 1
    side = min(_LARGEST_SQUARE, (_SQUARES[1] - _SQUARES[0]) / tallest)
    pad = (squares["end"] - squares["begin"]) * 0.14
    bottom = squares["lane"].map(_LANE_TOP) + _SQUARES[1] - squares["slot"] * side
    cells = squares.assign(
        kind=squares["status"],
        begin=squares["begin"] + pad,
        end=squares["end"] - pad,
        top=bottom - side + 2.2,
        bottom=bottom,
    )
    return (
        style.labelled(alt.Chart(cells), "kind")
        .mark_rect(strokeWidth=1)
        .encode(
            canvas.x(),
            alt.X2("end:Q"),
            canvas.y(),
            alt.Y2("bottom:Q"),
            canvas.fill(),
            alt.Stroke("kind:N").scale(_MARK_SCALE).legend(None),
            tooltip=[
                alt.Tooltip("slot:Q", title="engine.axis.slot"),
                alt.Tooltip("kind_text:N", title="engine.axis.status"),
            ],
        )
    )


def _prompts(canvas: _Canvas, strip: pd.DataFrame) -> alt.Chart:
    top = strip["lane"].map(_LANE_TOP)
    ruler = strip.assign(
        top=top + _STRIP[0],
        bottom=top + _STRIP[1],
        kind=strip["part"].map({"reused": "kept", "computed": "prefill"}),
        num_tokens=strip["end_token"] - strip["first_token"],
    )
    return (
        style.labelled(alt.Chart(ruler), "part")
        .mark_rect()
        .encode(
            canvas.x(),
            alt.X2("end:Q"),
            canvas.y(),
            alt.Y2("bottom:Q"),
            canvas.fill(),
            tooltip=[
                alt.Tooltip("part_text:N", title="engine.axis.part"),
                alt.Tooltip("num_tokens:Q", format=",", title="engine.axis.num_tokens"),
            ],
        )
    )


def _flags(canvas: _Canvas, flags: pd.DataFrame, saving: pd.DataFrame) -> list[alt.Chart]:
    """The first token of each lane; the last lane also says what it did not recompute."""
    top = flags["lane"].map(_LANE_TOP)
    reused, share = int(saving["reused"].iloc[0]), float(saving["share"].iloc[0])
    note = "not_recomputed" if reused else "nothing_reused"
    last = flags["lane"] == LANES[-1]
    rows = flags.assign(
        top=top + sum(_FLAG) / 2,
        bottom=top + _BAR[1],
        code="first_token_after",
        note=last.map({True: note, False: "no_note"}),
        count=f"{reused:,} " if reused else "",
        ratio=f" (× {share:.2f})" if reused else "",
    )
    base = alt.Chart(rows)
    pole = base.mark_rule(color=style.ACCEPTED, strokeWidth=1.5).encode(
        canvas.x("at"), canvas.y(), alt.Y2("bottom:Q")
    )
    head = base.mark_point(
        shape="triangle-down", size=110, filled=True, opacity=1, color=style.ACCEPTED
    ).encode(
        canvas.x("at"),
        canvas.y(),
        alt.Tooltip("cpu_ms:Q", format=",.1f", title="engine.axis.cpu_ms"),
    )
    words = (
        style.labelled(style.labelled(base, "code"), "note")
        .transform_calculate(
            first=f"({_NARROW} ? labels['first_token_after_short'] : datum.code_text) + ' '"
            " + format(datum.at, '.1f') + ' ' + labels['reads']",
            words=f"datum.note == 'no_note' || {_NARROW} ? datum.first : "
            "datum.first + ' · ' + datum.count + datum.note_text + datum.ratio",
        )
        .mark_text(align="left", dx=9, fontSize=12, fontWeight="bold")
        .encode(canvas.x("at"), canvas.y(), alt.Text("words:N"))
    )
    return [pole, head, words]


def _saving(canvas: _Canvas, saving: pd.DataFrame) -> list[alt.Chart]:
    """The line between both first tokens of the second request."""
    span = saving[saving["end"] > saving["begin"]].assign(
        top=_LANE_TOP["with_prefix"] + _FLAG[1] + 2,
        cold=_LANE_TOP["without_prefix"] + _BAR[1],
        above=_LANE_TOP["with_prefix"],
    )
    base = alt.Chart(span)
    distance = base.mark_rule(color=style.ACCEPTED, strokeWidth=2).encode(
        canvas.x(), alt.X2("end:Q"), canvas.y()
    )
    drop = base.mark_rule(color=style.ACCEPTED, strokeDash=[3, 3], strokeWidth=1.5).encode(
        canvas.x("end"), canvas.y("cold"), alt.Y2("above:Q")
    )
    return [distance, drop]


def _pages(canvas: _Canvas, pages: pd.DataFrame) -> list[alt.Chart]:
    """Pages by kind during each pass, stacked; cached ones pale."""
    unit = _BAND_HEIGHT / max(int(pages["upper"].max()), 1)
    base = pages["lane"].map(_BAND_BASE)
    stacks = pages.assign(
        top=base - pages["upper"] * unit,
        bottom=base - pages["lower"] * unit,
        filled=(pages["place"] == "owned").map({True: 1.0, False: style.PALE}),
        part=pages["kind"] + "_" + pages["place"],
    )
    areas = (
        style.labelled(alt.Chart(stacks), "part")
        .mark_rect()
        .encode(
            canvas.x(),
            alt.X2("end:Q"),
            canvas.y(),
            alt.Y2("bottom:Q"),
            canvas.fill(),
            alt.FillOpacity("filled:Q").scale(None).legend(None),
            tooltip=[
                alt.Tooltip("part_text:N", title="engine.axis.page_kind"),
                alt.Tooltip("pages:Q", title="engine.axis.pages"),
            ],
        )
    )
    ends = stacks.loc[stacks.groupby(["lane", "part"])["end"].idxmax()]
    ends = ends.assign(at=ends["end"], middle=(ends["top"] + ends["bottom"]) / 2)
    ends["middle"] = ends.groupby("lane")["middle"].transform(_apart)
    sums = (
        style.labelled(alt.Chart(ends), "part")
        .transform_calculate(
            words=f"datum.pages + ' ' + labels[datum.part + ({_NARROW} ? '_short' : '')]"
        )
        .mark_text(align="left", dx=5, fontSize=10)
        .encode(canvas.x("at"), canvas.y("middle"), alt.Text("words:N"))
    )
    return [areas, sums]


def _apart(positions: pd.Series) -> pd.Series:
    """Positions of labels, moved up where the one below is nearer than a line of text."""
    moved = positions.sort_values(ascending=False)
    below = float("inf")
    for index, position in moved.items():
        below = min(float(position), below - _LABEL_HEIGHT)
        moved[index] = below
    return moved
