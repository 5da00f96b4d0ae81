"""The main picture: both rings over the same steps, results above, causes below."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]

_HEIGHT = 430
_MAX_ROWS = 24  # of the raw-input lane: its scale never follows the data
_LOW_TITLE, _SLOTS_LOW, _SLOTS_HIGH, _STRIP, _HIGH_TITLE = 1.13, 1.32, 2.36, 2.47, 2.64
_NOW = 1.245
_TOP = 2.74
_SOLID = 0.95
_STACK_HALF, _FOLD_HALF = 0.31, 0.12  # half widths of a stack and of a folded history
_NAME_WIDTH = 34  # pixels that the name of a snapshot needs, margins of the picture included

_KINDS = ("snapshot", "history", "in_flight")
_KIND_COLOURS = (style.SNAPSHOT, style.KDA, style.INPUTS)
_EVENTS = ("popped", "overwritten", "folded")
_EVENT_SHAPES = ("circle", "cross", "triangle-down")
_EVENT_COLOURS = (style.ACCEPTED, style.REJECTED, style.KDA)


def main_picture(tables: Tables) -> alt.LayerChart | alt.FacetChart:
    """Snapshots per slot above, rows of the raw-input ring below, one operation and step per x.

    Tables: ``ops`` and ``stays`` of ``SnapshotStudy``, ``steps`` and ``limits`` of ``FlushStudy``,
    ``head`` with one row: the number of operations that have happened.
    """
    ops, head = tables["ops"], float(tables["head"]["head"].iloc[0]) - 0.5
    num_ops = len(ops)
    slots = _slots(tables["stays"], head)
    saw = _saw(tables["steps"], head)
    x_scale = alt.Scale(domain=[_left(num_ops), num_ops + 0.09 * num_ops], nice=False)
    y_scale = alt.Scale(domain=[-0.04, _TOP], nice=False)
    x_axis = alt.Axis(
        title="replayssm.axis.step",
        values=list(range(0, num_ops, 2 if num_ops > 20 else 1)),
        format="d",
        grid=False,
        labelOverlap=True,
    )

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=x_scale, axis=x_axis)

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", scale=y_scale, axis=None)

    kinds = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=list(_KINDS), range=list(_KIND_COLOURS)),
        title=None,
        legend=None,
    )
    opacity = alt.Opacity("alpha:Q", scale=None, legend=None)
    bars = (
        style.labelled(style.labelled(alt.Chart(slots), "end"), "kind")
        .mark_rect(cornerRadius=3)
        .encode(
            x("left"),
            alt.X2("right:Q"),
            y("low"),
            alt.Y2("high:Q"),
            kinds,
            opacity,
            tooltip=[
                alt.Tooltip("name:N", title="replayssm.axis.snapshot"),
                alt.Tooltip("slot:Q", title="replayssm.axis.slot"),
                alt.Tooltip("start:Q", title="replayssm.axis.pushed"),
                alt.Tooltip("stop:Q", title="replayssm.axis.left"),
                alt.Tooltip("end_text:N", title="replayssm.axis.end"),
                alt.Tooltip("bytes:Q", format=",", title="replayssm.axis.toy_bytes"),
            ],
        )
    )
    names = [
        alt.Chart(slots[where])
        .transform_calculate(said=f"datum.room * width > {_NAME_WIDTH * num_ops} ? datum.name : ''")
        .mark_text(align="left", dx=6, fontWeight="bold", fontSize=11, color=ink)
        .encode(x("left"), y("middle"), alt.Text("said:N"))
        for where, ink in (
            (slots["named"] & (slots["alpha"] == _SOLID), style.INK),
            (slots["named"] & (slots["alpha"] == style.PALE), alt.Undefined),
        )
    ]
    last_names = (
        alt.Chart(slots[slots["named"] & (slots["end"] == "held")])
        .transform_calculate(said=f"datum.room * width > {_NAME_WIDTH * num_ops} ? '' : datum.name")
        .mark_text(align="left", dx=3, fontWeight="bold", fontSize=11)
        .encode(x("right"), y("middle"), alt.Text("said:N"))
    )
    stack = (
        style.labelled(alt.Chart(saw), "kind")
        .mark_rect()
        .encode(
            x("left"),
            alt.X2("right:Q"),
            y("low"),
            alt.Y2("high:Q"),
            kinds,
            opacity,
            tooltip=[
                alt.Tooltip("step:Q", title="replayssm.axis.step"),
                alt.Tooltip("kind_text:N", title="replayssm.axis.kind"),
                alt.Tooltip("rows:Q", title="replayssm.axis.rows"),
                alt.Tooltip("kept:Q", title="replayssm.axis.kept"),
                alt.Tooltip("folded:Q", title="replayssm.axis.folded"),
            ],
        )
    )
    events = _events(slots, tables["steps"], head)
    shape = alt.Shape(
        "event:N",
        scale=alt.Scale(domain=list(_EVENTS), range=list(_EVENT_SHAPES)),
        legend=_legend(),
        title=None,
    )
    stroke = alt.Stroke(
        "event:N",
        scale=alt.Scale(domain=list(_EVENTS), range=list(_EVENT_COLOURS)),
        legend=_legend(),
        title=None,
    )
    marks = (
        style.labelled(alt.Chart(events), "event")
        .mark_point(size=75, strokeWidth=2.5, filled=False)
        .encode(
            x("x"),
            y("y"),
            shape,
            stroke,
            opacity,
            tooltip=[
                alt.Tooltip("event_text:N", title="replayssm.axis.event"),
                alt.Tooltip("what:N", title="replayssm.axis.what"),
            ],
        )
    )
    limits = tables["limits"].assign(
        y=tables["limits"]["rows"] / _MAX_ROWS, left=-0.45, right=num_ops - 0.4
    )
    rules = (
        style.labelled(alt.Chart(limits), "limit")
        .mark_rule(strokeDash=[5, 4], strokeWidth=1.5)
        .encode(
            x("left"),
            alt.X2("right:Q"),
            y("y"),
            _limit_colour(),
            tooltip=[
                alt.Tooltip("limit_text:N", title="replayssm.axis.limit"),
                alt.Tooltip("rows:Q", title="replayssm.axis.rows"),
            ],
        )
    )
    now_table = pd.DataFrame(
        {"word": ["now"], "x": [head], "low": [0.0], "high": [_STRIP + 0.06], "y": [_NOW]}
    )
    now = (
        alt.Chart(now_table)
        .mark_rule(strokeWidth=2, color=style.NEUTRAL)
        .encode(x("x"), y("low"), alt.Y2("high:Q"))
    )
    now_word = (
        style.labelled(alt.Chart(now_table), "word")
        .mark_text(align="left", dx=4, fontSize=11, fontWeight="bold")
        .encode(x("x"), y("y"), alt.Text("word_text:N"))
    )
    words = _words(tables, num_ops, x, y)
    texts = [now_word, *names, last_names]
    layers = alt.layer(bars, stack, rules, now, *texts, marks, *words, height=_HEIGHT)
    layers.resolve = alt.Resolve(scale={"color": "independent"})
    return layers


def _left(num_ops: int) -> float:
    """Left edge of the picture: room for the row numbers."""
    return -0.5 - 0.06 * num_ops


def _limit_colour() -> alt.Color:
    """The fold rule has the colour of what it measures, the history; W bounds the whole stack."""
    scale = alt.Scale(domain=["window", "flush_min"], range=[style.REJECTED, style.KDA])
    return alt.Color("limit:N", scale=scale, legend=None)


def _legend() -> alt.Legend:
    return alt.Legend(
        orient="top",
        columns=3,
        columnPadding=10,
        labelExpr=style.label_expr(),
        labelLimit=150,
        offset=0,
        symbolOpacity=1,
    )


def _slots(stays: pd.DataFrame, head: float) -> pd.DataFrame:
    """Bars of the snapshot lane; what lies after the play-head is pale."""
    num_slots = max(int(stays["slot"].max()) + 1, 4)
    step = (_SLOTS_HIGH - _SLOTS_LOW) / num_slots
    middle = _SLOTS_HIGH - (stays["slot"] + 0.5) * step
    name = "S" + stays["snapshot"].astype(str)
    whole = stays.assign(
        kind="snapshot",
        name=name,
        left=stays["start"].astype(float),
        right=stays["stop"] - 0.06 - 0.5 * (stays["end"] == "held"),
        middle=middle,
        low=middle - 0.4 * step,
        high=middle + 0.4 * step,
    )
    past = whole[whole["left"] < head].assign(alpha=_SOLID)
    past["right"] = past["right"].clip(upper=head)
    future = whole[whole["right"] > head].assign(alpha=style.PALE)
    future["left"] = future["left"].clip(lower=head)
    both = pd.concat([past, future], ignore_index=True)
    both["room"] = both["right"] - both["left"]
    longest = both.groupby("snapshot")["room"].idxmax()  # the name stands on one side of the head
    return both.assign(named=both.index.isin(longest))


def _saw(steps: pd.DataFrame, head: float) -> pd.DataFrame:
    """Stacked rows of the raw-input ring: history, then inputs in flight.

    Between two stacks stands, as a narrow bar, the history that was folded before the second.
    """
    base = steps.assign(
        left=steps["step"] - _STACK_HALF,
        right=steps["step"] + _STACK_HALF,
        alpha=(steps["step"] < head).map({True: _SOLID, False: style.PALE}),
    )
    history = base.assign(kind="history", rows=base["history"], bottom=0)
    flight = base.assign(kind="in_flight", rows=base["in_flight"], bottom=base["history"])
    folded = history[history["folded"] > 0].assign(
        rows=base["folded"],
        left=base["step"] - 0.5 - _FOLD_HALF,
        right=base["step"] - 0.5 + _FOLD_HALF,
    )
    both = pd.concat([folded, history[history["rows"] > 0], flight], ignore_index=True)
    return both.assign(
        low=both["bottom"] / _MAX_ROWS, high=(both["bottom"] + both["rows"]) / _MAX_ROWS
    )


def _events(slots: pd.DataFrame, steps: pd.DataFrame, head: float) -> pd.DataFrame:
    """Ends of snapshots and folds of history."""
    ended = slots[slots["end"] != "held"].drop_duplicates("snapshot")
    folds = steps[steps["folded"] > 0]
    events = pd.concat(
        [
            pd.DataFrame(
                {
                    "event": ended["end"],
                    "x": ended["stop"] - 0.06,
                    "y": ended["middle"],
                    "what": ended["name"],
                }
            ),
            pd.DataFrame(
                {
                    "event": "folded",
                    "x": folds["step"] - 0.5,
                    "y": folds["folded"] / _MAX_ROWS + 0.045,
                    "what": folds["folded"].astype(str),
                }
            ),
        ],
        ignore_index=True,
    )
    return events.assign(alpha=(events["x"] < head).map({True: 1.0, False: 0.45}))


def _words(
    tables: Tables, num_ops: int, x: Callable[[str], alt.X], y: Callable[[str], alt.Y]
) -> list[alt.Chart]:
    """Lane titles, slot and row numbers, the operation strip, the names of the two rules."""
    titles = pd.DataFrame(
        {
            "word": ["lane_snapshots", "lane_inputs"],
            "x": _left(num_ops) + 0.005 * num_ops,
            "y": [_HIGH_TITLE, _LOW_TITLE],
        }
    )
    kinds = pd.DataFrame(
        {"word": ["history", "in_flight"], "x": [0.52 * num_ops, 0.77 * num_ops], "y": _LOW_TITLE}
    )
    stays = _slots(tables["stays"], 0.0).drop_duplicates("slot")
    window_len = int(tables["limits"]["rows"].max())
    marked = [rows for rows in (0, 8, 16, 24) if rows <= max(window_len, 16)]
    ticks = pd.concat(
        [
            pd.DataFrame(
                {
                    "text": stays["slot"].astype(str),
                    "x": -0.45 - 0.015 * num_ops,
                    "y": stays["middle"],
                }
            ),
            pd.DataFrame(
                {
                    "text": [str(rows) for rows in marked],
                    "x": -0.45 - 0.015 * num_ops,
                    "y": [rows / _MAX_ROWS for rows in marked],
                }
            ),
        ],
        ignore_index=True,
    )
    ops = tables["ops"].assign(x=tables["ops"]["op"], y=_STRIP)
    apart = 0.04 if tables["limits"]["rows"].diff().abs().max() < 3 else 0.0
    limits = tables["limits"].assign(
        x=num_ops - 0.3,
        y=tables["limits"]["rows"] / _MAX_ROWS
        + tables["limits"]["limit"].map({"window": apart, "flush_min": -apart}),
        short=tables["limits"]["limit"].map({"window": "W", "flush_min": "≥"})
        + " "
        + tables["limits"]["rows"].astype(str),
    )
    return [
        style.labelled(alt.Chart(titles), "word")
        .mark_text(align="left", fontWeight="bold", fontSize=12.5)
        .encode(x("x"), y("y"), alt.Text("word_text:N")),
        style.labelled(alt.Chart(kinds), "word")
        .transform_calculate(said="'■ ' + datum.word_text")
        .mark_text(align="left", fontWeight="bold", fontSize=11.5)
        .encode(
            x("x"),
            y("y"),
            alt.Text("said:N"),
            alt.Color(
                "word:N",
                scale=alt.Scale(domain=list(_KINDS[1:]), range=list(_KIND_COLOURS[1:])),
                legend=None,
            ),
        ),
        alt.Chart(ticks)
        .mark_text(align="right", fontSize=10.5, opacity=0.75)
        .encode(x("x"), y("y"), alt.Text("text:N")),
        style.labelled(alt.Chart(ops), "word")
        .transform_calculate(
            said=f"width > {40 * num_ops} ? datum.word_text : datum.word == 'push' ? '+' : '\u2212'"
        )
        .mark_text(fontSize=10.5, fontWeight="bold")
        .encode(
            x("x"),
            y("y"),
            alt.Text("said:N"),
            alt.Color(
                "word:N",
                scale=alt.Scale(domain=["push", "pop"], range=[style.NEUTRAL, style.ACCEPTED]),
                legend=None,
            ),
        ),
        style.labelled(alt.Chart(limits), "limit")
        .transform_calculate(said="width > 700 ? datum.limit_text + ' ' + datum.rows : datum.short")
        .mark_text(align="left", fontSize=10.5)
        .encode(x("x"), y("y"), alt.Text("said:N"), _limit_colour()),
    ]
