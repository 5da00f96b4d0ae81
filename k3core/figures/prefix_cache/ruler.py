"""The token ruler: prompts as bars, MLA blocks, checkpoints per KDA group, and the three rules."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]

# Rows stand at fixed pixels, so that bars keep their height whatever the number of groups.
_FIRST, _PROMPT, _MLA, _GROUPS_FROM = 18, 62, 112, 156
_FIRST_HALF, _PROMPT_HALF, _MLA_HALF = 9, 19, 15
_GROUP_STEP, _GROUPS_HEIGHT = 40, 210
_RULE_TEXT_STEP = 16
_AXIS_HEIGHT = 58  # the dashboard counts the axis into the height of a chart
_DOMAINS = tuple(base * 2**power for power in range(7, 14) for base in (2, 3))
_PLOT_WIDTH = 1000  # of a desktop page; decides how large neighbouring diamonds may be
_LARGEST_DIAMOND, _SMALLEST_DIAMOND = 260.0, 14.0
_INK = "#202124"  # on top of the filled segments, in both themes

_SEGMENT_KINDS = ["reused", "lost", "new", "shared", "own"]
_SEGMENT_COLOURS = [style.ACCEPTED, style.REJECTED, style.FREE, style.NEUTRAL, style.FREE]
_BLOCK_LOOKS: dict[str, dict[str, Any]] = {  # constant looks: rectangles take no dash scale
    "block_reused": {"fillOpacity": 1.0},
    "block_lost": {"fillOpacity": 1.0},
    "block_pending": {"fillOpacity": style.PALE, "strokeWidth": 1.5, "strokeDash": [3, 3]},
    "block_absent": {"fillOpacity": 0.14, "strokeWidth": 0},
}
_STATE_LOOKS: dict[str, dict[str, Any]] = {
    "state_kept": {"fillOpacity": 1.0, "strokeWidth": 1.5},
    "state_missing": {"fillOpacity": 0.0, "strokeWidth": 2.4},
    "state_pending": {"fillOpacity": 0.0, "strokeWidth": 1.8, "strokeDash": [2, 2]},
}
_RULES = (  # colour, dash, width
    ("usable", style.ACCEPTED, [1, 0], 3.5),
    ("deepest", style.MLA, [6, 4], 3.0),
    ("cap", style.NEUTRAL, [1, 0], 1.3),
)


def main_picture(tables: Tables) -> alt.LayerChart:
    """What the second prompt reuses, loses and computes, above what the cache holds for it.

    Tables: ``segments``, ``first``, ``blocks``, ``checkpoints`` and ``rules`` of ``LookupStudy``.
    """
    return ruler(tables)


def ruler(tables: Tables, footer: pd.DataFrame | None = None) -> alt.LayerChart:
    """The picture itself, without title.

    Args:
        footer: one line of text below, as rows of ``code`` (a label) and ``number``.
    """
    end = max(int(tables[name]["end"].max()) for name in ("segments", "first") if len(tables[name]))
    x_scale = alt.Scale(domain=[0, domain_end(end)], nice=False)
    groups = _group_rows(tables)
    bottom = groups[max(groups)] + 24 if groups else _MLA + 40
    height = bottom + _RULE_TEXT_STEP * (3 if footer is None else 5)
    y_scale = alt.Scale(domain=[0, height], reverse=True, nice=False)
    x_axis = alt.Axis(
        title="prefix_cache.axis.position",
        values=_block_ends(tables),
        format=",d",
        grid=False,
        labelOverlap="greedy",
        labelSeparation=8,
    )
    y_axis = _row_axis(groups)
    layers = [
        _bars(tables["first"], _FIRST, _FIRST_HALF, x_scale, y_scale, x_axis, y_axis),
        *_bar_texts(tables["first"], _FIRST, x_scale, y_scale, 11),
        _bars(tables["segments"], _PROMPT, _PROMPT_HALF, x_scale, y_scale, x_axis, y_axis),
        *_bar_texts(tables["segments"], _PROMPT, x_scale, y_scale, 13),
    ]
    if len(tables["blocks"]):
        layers += _blocks(tables["blocks"], x_scale, y_scale)
    layers += _rules(tables["rules"], bottom, x_scale, y_scale)
    if len(tables["checkpoints"]):
        layers += _diamonds(tables["checkpoints"], groups, x_scale, y_scale)
    if footer is not None:
        layers.append(_footer(footer, height - _RULE_TEXT_STEP * 0.6, x_scale, y_scale))
    return alt.LayerChart(layer=layers).properties(height=height + _AXIS_HEIGHT)


def domain_end(num_tokens: int) -> int:
    """The smallest of a few round lengths that holds the prompt, so that the axis rarely jumps."""
    return next((end for end in sorted(_DOMAINS) if end >= num_tokens), num_tokens)


def _block_ends(tables: Tables) -> list[int]:
    blocks = tables["blocks"]
    return [0, *(int(end) for end in blocks["end"])] if len(blocks) else [0]


def _group_rows(tables: Tables) -> dict[int, int]:
    """Pixel of each group's row; groups without any checkpoint have a row too."""
    num_groups = int(tables["rules"]["num_groups"].iloc[0])
    step = min(_GROUP_STEP, _GROUPS_HEIGHT // num_groups)
    return {group: _GROUPS_FROM + step * group for group in range(num_groups)}


def _row_axis(groups: Mapping[int, int]) -> alt.Axis:
    rows = {"row_first": _FIRST, "row_prompt": _PROMPT, "row_mla": _MLA}
    rows |= {f"group_{group}": at for group, at in groups.items()}
    names = " ".join(f"datum.value == {at} ? labels['{row}'] :" for row, at in rows.items())
    return alt.Axis(
        values=list(rows.values()),
        labelExpr=f"{names} ''",
        title=None,
        grid=False,
        domain=False,
        ticks=False,
        labelFontSize=12,
        labelLimit=130,
    )


def _bars(
    table: pd.DataFrame,
    row: int,
    half: int,
    x_scale: alt.Scale,
    y_scale: alt.Scale,
    x_axis: alt.Axis,
    y_axis: alt.Axis,
) -> alt.Chart:
    bars = table.assign(top=row - half, bottom=row + half)
    return (
        style.labelled(alt.Chart(bars), "code")
        .mark_rect(opacity=1)
        .encode(
            alt.X("start:Q").scale(x_scale).axis(x_axis),
            alt.X2("end:Q"),
            alt.Y("top:Q").scale(y_scale).axis(y_axis),
            alt.Y2("bottom:Q"),
            alt.Color("kind:N").scale(domain=_SEGMENT_KINDS, range=_SEGMENT_COLOURS).legend(None),
            tooltip=[
                alt.Tooltip("code_text:N", title="prefix_cache.axis.code"),
                alt.Tooltip("tokens:Q", format=",", title="prefix_cache.axis.tokens"),
                alt.Tooltip("start:Q", format=",", title="prefix_cache.axis.start"),
                alt.Tooltip("end:Q", format=",", title="prefix_cache.axis.end"),
            ],
        )
    )


def _bar_texts(
    table: pd.DataFrame, row: int, x_scale: alt.Scale, y_scale: alt.Scale, size: int
) -> list[alt.Chart]:
    """Word and number inside each bar that has room for them; ink by the ground below."""
    texts = table.assign(middle=(table["start"] + table["end"]) / 2, row=row)
    room = domain_end(int(table["end"].max())) * 0.085 if len(table) else 0
    texts = texts[texts["tokens"] >= room]
    base = (
        style.labelled(alt.Chart(texts), "kind")
        .transform_calculate(text="datum.kind_text + ' ' + format(datum.tokens, ',')")
        .encode(
            alt.X("middle:Q").scale(x_scale),
            alt.Y("row:Q").scale(y_scale),
            alt.Text("text:N"),
            tooltip=alt.value(None),
        )
    )
    filled = "indexof(['reused', 'lost', 'shared'], datum.kind) >= 0"
    return [
        base.transform_filter(filled).mark_text(fontWeight="bold", fontSize=size, color=_INK),
        base.transform_filter(f"!({filled})").mark_text(fontWeight="bold", fontSize=size),
    ]


def _blocks(blocks: pd.DataFrame, x_scale: alt.Scale, y_scale: alt.Scale) -> list[alt.Chart]:
    """Solid: matches. Dashed: not ready. Pale: not in the cache."""
    gap = (blocks["end"] - blocks["start"]) * 0.02
    table = blocks.assign(
        left=blocks["start"] + gap,
        right=blocks["end"] - gap,
        top=_MLA - _MLA_HALF,
        bottom=_MLA + _MLA_HALF,
    )
    encoded = style.labelled(alt.Chart(table), "status").encode(
        alt.X("left:Q").scale(x_scale),
        alt.X2("right:Q"),
        alt.Y("top:Q").scale(y_scale),
        alt.Y2("bottom:Q"),
        tooltip=[
            alt.Tooltip("index:Q", title="prefix_cache.axis.block"),
            alt.Tooltip("start:Q", format=",", title="prefix_cache.axis.start"),
            alt.Tooltip("end:Q", format=",", title="prefix_cache.axis.end"),
            alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
            alt.Tooltip("hash:N", title="prefix_cache.axis.hash"),
            alt.Tooltip("parent:N", title="prefix_cache.axis.parent"),
        ],
    )
    return [
        encoded.transform_filter(f"datum.status == '{status}'").mark_rect(
            fill=style.MLA, stroke=style.MLA, **look
        )
        for status, look in _BLOCK_LOOKS.items()
    ]


def _diamonds(
    checkpoints: pd.DataFrame,
    groups: Mapping[int, int],
    x_scale: alt.Scale,
    y_scale: alt.Scale,
) -> list[alt.Chart]:
    """Filled: kept. Hollow: this group has none. Dotted: its block is not ready."""
    boundaries = sorted(set(checkpoints["boundary"]))
    nearest = min((b - a for a, b in pairwise(boundaries)), default=x_scale.domain[1])
    pixels = nearest / x_scale.domain[1] * _PLOT_WIDTH
    row_height = min(_GROUP_STEP, _GROUPS_HEIGHT / len(groups))
    side = min(0.8 * pixels, 0.42 * row_height)
    size = min(max(side**2, _SMALLEST_DIAMOND), _LARGEST_DIAMOND)
    table = checkpoints.assign(row_y=checkpoints["group"].map(groups))
    encoded = style.labelled(style.labelled(alt.Chart(table), "status"), "row").encode(
        alt.X("boundary:Q").scale(x_scale),
        alt.Y("row_y:Q").scale(y_scale),
        tooltip=[
            alt.Tooltip("row_text:N", title="prefix_cache.axis.group"),
            alt.Tooltip("boundary:Q", format=",", title="prefix_cache.axis.boundary"),
            alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
            alt.Tooltip("hash:N", title="prefix_cache.axis.hash"),
        ],
    )
    return [
        encoded.transform_filter(f"datum.status == '{status}'").mark_point(
            shape="diamond", size=size, opacity=1, fill=style.KDA, stroke=style.KDA, **look
        )
        for status, look in _STATE_LOOKS.items()
    ]


def _rules(
    rules: pd.DataFrame, bottom: int, x_scale: alt.Scale, y_scale: alt.Scale
) -> list[alt.Chart]:
    """Usable boundary, deepest match, last-token cap; each names itself in a row of its own."""
    end = x_scale.domain[1]
    table = rules.assign(
        row_y=bottom + _RULE_TEXT_STEP * (rules["order"] + 0.5),
        top=0,
        bottom=bottom,
    )
    layers = []
    for rule, colour, dash, width in _RULES:
        base = style.labelled(alt.Chart(table[table["rule"] == rule]), "rule").transform_calculate(
            text="datum.rule_text + ' ' + format(datum.tokens, ',')"
        )
        x = alt.X("tokens:Q").scale(x_scale)
        layers.append(
            base.mark_rule(color=colour, opacity=1, strokeDash=dash, strokeWidth=width).encode(
                x,
                alt.Y("top:Q").scale(y_scale),
                alt.Y2("bottom:Q"),
                tooltip=[
                    alt.Tooltip("rule_text:N", title="prefix_cache.axis.rule"),
                    alt.Tooltip("tokens:Q", format=",", title="prefix_cache.axis.boundary"),
                ],
            )
        )
        left = bool((rules[rules["rule"] == rule]["tokens"] < 0.5 * end).all())
        texts = (
            base.mark_text(align="left", dx=-2, fontSize=12, fontWeight="bold", color=colour)
            if left
            else base.mark_text(align="right", dx=2, fontSize=12, fontWeight="bold", color=colour)
        )
        layers.append(
            texts.encode(
                x,
                alt.Y("row_y:Q").scale(y_scale),
                alt.Text("text:N"),
                tooltip=alt.value(None),
            )
        )
    return layers


def _footer(footer: pd.DataFrame, row: float, x_scale: alt.Scale, y_scale: alt.Scale) -> alt.Chart:
    words = [
        f"labels['{code}'] + ' {number}'"
        for code, number in zip(footer["code"], footer["number"], strict=True)
    ]
    return (
        alt.Chart(pd.DataFrame({"row_y": [row], "left": [0]}))
        .transform_calculate(text=" + ' · ' + ".join(words))
        .mark_text(align="left", fontSize=13, fontWeight="bold")
        .encode(alt.X("left:Q").scale(x_scale), alt.Y("row_y:Q").scale(y_scale), alt.Text("text:N"))
    )
