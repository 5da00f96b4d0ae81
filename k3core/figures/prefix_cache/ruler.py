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
_TEXT_ROOM = 0.11  # share of the axis that a word and a number need
_LONG_WORD_WIDTH = 145  # pixels that the longest word needs
_INK = "#202124"  # on top of the filled segments, in both themes

_SEGMENT_KINDS = ["reused", "lost", "new", "shared", "own"]
_SEGMENT_COLOURS = [style.ACCEPTED, style.REJECTED, style.FREE, style.NEUTRAL, style.FREE]
_DARK_INK_KINDS = ["reused", "lost", "shared"]
_BLOCKS = ["block_reused", "block_lost", "block_pending", "block_evicted", "block_absent"]
_STATES = ["state_kept", "state_missing", "state_pending", "state_evicted"]
_RULES = ["usable", "deepest", "cap"]
_RULE_COLOURS = [style.ACCEPTED, style.MLA, style.NEUTRAL]
_SOLID = [1, 0]
_OWN_SCALES = ("fillOpacity", "strokeDash", "strokeWidth", "strokeOpacity")


def main_picture(tables: Tables) -> alt.LayerChart:
    """What the second prompt reuses, loses and computes, above what the cache holds for it.

    Tables: ``segments``, ``first``, ``kept``, ``blocks``, ``checkpoints`` and ``rules`` of
    ``LookupStudy``.
    """
    return ruler(tables)


def ruler(
    tables: Tables, footer: pd.DataFrame | None = None, title: str | None = None
) -> alt.LayerChart:
    """The picture itself.

    Args:
        footer: lines of text below, as rows of ``code`` (a label) and ``number``.
        title: catalogue key.
    """
    bars = pd.concat(
        [
            tables["first"].assign(middle=_FIRST, half=_FIRST_HALF),
            tables["segments"].assign(middle=_PROMPT, half=_PROMPT_HALF),
        ],
        ignore_index=True,
    )
    groups = _group_rows(tables)
    bottom = max(groups.values()) + 24
    height = bottom + _RULE_TEXT_STEP * (3 if footer is None else 4 + len(footer))
    x_scale = alt.Scale(domain=[0, domain_end(int(bars["end"].max()))], nice=False)
    y_scale = alt.Scale(domain=[0, height], reverse=True, nice=False)
    layers = [
        _bars(bars, x_scale, y_scale, _block_axis(tables["blocks"]), _row_axis(groups)),
        *_bar_texts(bars, x_scale, y_scale),
    ]
    if len(tables["blocks"]):
        layers.append(_blocks(tables["blocks"], x_scale, y_scale))
    layers += _rules(tables["rules"], bottom, x_scale, y_scale)
    if len(tables["checkpoints"]):
        layers.append(_diamonds(tables["checkpoints"], groups, x_scale, y_scale))
    if len(tables["kept"]):
        layers.append(_kept(tables["kept"], x_scale, y_scale))
    if footer is not None:
        row = height - _RULE_TEXT_STEP * (len(footer) - 0.2)
        layers.append(_footer(footer, row, x_scale, y_scale))
    own: dict[str, Any] = dict.fromkeys(_OWN_SCALES, "independent")
    return alt.LayerChart(
        layer=layers,
        height=height + _AXIS_HEIGHT,
        title=title or alt.Undefined,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(**own)),
    )


def domain_end(num_tokens: int) -> int:
    """The smallest of a few round lengths that holds the prompt, so that the axis rarely jumps."""
    return next((end for end in sorted(_DOMAINS) if end >= num_tokens), num_tokens)


def _group_rows(tables: Tables) -> dict[int, int]:
    """Pixel of each group's row; groups without any checkpoint have a row too."""
    num_groups = int(tables["rules"]["num_groups"].iloc[0])
    step = min(_GROUP_STEP, _GROUPS_HEIGHT // num_groups)
    return {group: _GROUPS_FROM + step * group for group in range(num_groups)}


def _block_axis(blocks: pd.DataFrame) -> alt.Axis:
    return alt.Axis(
        title="prefix_cache.axis.position",
        values=[0, *(int(end) for end in blocks["end"])],
        format=",d",
        grid=False,
        labelOverlap="greedy",
        labelSeparation=8,
    )


def _row_axis(groups: Mapping[int, int]) -> alt.Axis:
    rows = {"row_first": _FIRST, "row_prompt": _PROMPT, "row_mla": _MLA}
    rows |= {f"group_{group}": at for group, at in groups.items()}
    return style.row_axis(rows)


def _bars(
    bars: pd.DataFrame,
    x_scale: alt.Scale,
    y_scale: alt.Scale,
    x_axis: alt.Axis,
    y_axis: alt.Axis,
) -> alt.Chart:
    table = bars.assign(top=bars["middle"] - bars["half"], bottom=bars["middle"] + bars["half"])
    return (
        style.labelled(alt.Chart(table), "code")
        .mark_rect(opacity=1)
        .encode(
            alt.X("start:Q").scale(x_scale).axis(x_axis),
            alt.X2("end:Q"),
            alt.Y("top:Q").scale(y_scale).axis(y_axis),
            alt.Y2("bottom:Q"),
            alt.Fill("kind:N").scale(domain=_SEGMENT_KINDS, range=_SEGMENT_COLOURS).legend(None),
            tooltip=[
                alt.Tooltip("code_text:N", title="prefix_cache.axis.code"),
                alt.Tooltip("tokens:Q", format=",", title="prefix_cache.axis.tokens"),
                alt.Tooltip("start:Q", format=",", title="prefix_cache.axis.start"),
                alt.Tooltip("end:Q", format=",", title="prefix_cache.axis.end"),
            ],
        )
    )


def _bar_texts(bars: pd.DataFrame, x_scale: alt.Scale, y_scale: alt.Scale) -> list[alt.Chart]:
    """Word and number inside each bar that has room for them; ink by the ground below."""
    room = x_scale.domain[1] * _TEXT_ROOM
    texts = bars[bars["tokens"] >= room].assign(centre=(bars["start"] + bars["end"]) / 2)
    dark = texts["kind"].isin(_DARK_INK_KINDS)
    inks: list[tuple[pd.DataFrame, dict[str, Any]]]
    inks = [(texts[dark], {"color": _INK}), (texts[~dark], {})]
    return [
        style.labelled(alt.Chart(part), "kind")
        .transform_calculate(
            number="format(datum.tokens, ',')",
            word="datum.kind == 'new' && datum.tokens * width > "
            f"{_LONG_WORD_WIDTH * x_scale.domain[1]} ? "
            "labels['new_or_partial'] : datum.kind_text",
            text=f"datum.half < {_PROMPT_HALF} ? datum.word + ' ' + datum.number"
            " : [datum.word, datum.number]",
        )
        .mark_text(
            fontWeight="bold",
            fontSize=12,
            lineHeight=15,
            dy=alt.ExprRef(expr=f"datum.half < {_PROMPT_HALF} ? 0 : -7"),
            **ink,
        )
        .encode(
            alt.X("centre:Q").scale(x_scale),
            alt.Y("middle:Q").scale(y_scale),
            alt.Text("text:N"),
            tooltip=alt.value(None),
        )
        for part, ink in inks
        if len(part)
    ]


def _blocks(blocks: pd.DataFrame, x_scale: alt.Scale, y_scale: alt.Scale) -> alt.Chart:
    """Solid: matches. Outlined: not ready, or hollow: evicted. Pale: not in the cache."""
    gap = (blocks["end"] - blocks["start"]) * 0.02
    table = blocks.assign(
        left=blocks["start"] + gap,
        right=blocks["end"] - gap,
        top=_MLA - _MLA_HALF,
        bottom=_MLA + _MLA_HALF,
    )
    return (
        style.labelled(alt.Chart(table), "status")
        .mark_rect(fill=style.MLA, stroke=style.MLA, strokeWidth=1.5)
        .encode(
            alt.X("left:Q").scale(x_scale),
            alt.X2("right:Q"),
            alt.Y("top:Q").scale(y_scale),
            alt.Y2("bottom:Q"),
            alt.FillOpacity("status:N")
            .scale(type="ordinal", domain=_BLOCKS, range=[1.0, 1.0, style.PALE, 0.0, 0.2])
            .legend(None),
            alt.StrokeOpacity("status:N")
            .scale(type="ordinal", domain=_BLOCKS, range=[0.0, 0.0, 1.0, 1.0, 0.0])
            .legend(None),
            tooltip=[
                alt.Tooltip("index:Q", title="prefix_cache.axis.block"),
                alt.Tooltip("start:Q", format=",", title="prefix_cache.axis.start"),
                alt.Tooltip("end:Q", format=",", title="prefix_cache.axis.end"),
                alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
                alt.Tooltip("hash:N", title="prefix_cache.axis.hash"),
                alt.Tooltip("parent:N", title="prefix_cache.axis.parent"),
            ],
        )
    )


def _diamonds(
    checkpoints: pd.DataFrame,
    groups: Mapping[int, int],
    x_scale: alt.Scale,
    y_scale: alt.Scale,
) -> alt.Chart:
    """Filled: kept. Hollow: this group has none. Dotted: its block is not ready. Pale: evicted."""
    boundaries = sorted(set(checkpoints["boundary"]))
    nearest = min((b - a for a, b in pairwise(boundaries)), default=x_scale.domain[1])
    pixels = nearest / x_scale.domain[1] * _PLOT_WIDTH
    row_height = min(_GROUP_STEP, _GROUPS_HEIGHT / len(groups))
    side = min(0.8 * pixels, 0.42 * row_height)
    size = min(max(side**2, _SMALLEST_DIAMOND), _LARGEST_DIAMOND)
    table = checkpoints.assign(row_y=checkpoints["group"].map(groups))
    return (
        style.labelled(style.labelled(alt.Chart(table), "status"), "row")
        .mark_point(shape="diamond", size=size, opacity=1, fill=style.KDA, stroke=style.KDA)
        .encode(
            alt.X("boundary:Q").scale(x_scale),
            alt.Y("row_y:Q").scale(y_scale),
            alt.FillOpacity("status:N")
            .scale(type="ordinal", domain=_STATES, range=[1.0, 0.0, 0.0, style.PALE])
            .legend(None),
            alt.StrokeDash("status:N")
            .scale(type="ordinal", domain=_STATES, range=[_SOLID, _SOLID, [2, 2], [1, 3]])
            .legend(None),
            alt.StrokeWidth("status:N")
            .scale(type="ordinal", domain=_STATES, range=[1.5, 2.4, 1.8, 1.8])
            .legend(None),
            tooltip=[
                alt.Tooltip("row_text:N", title="prefix_cache.axis.group"),
                alt.Tooltip("boundary:Q", format=",", title="prefix_cache.axis.boundary"),
                alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
                alt.Tooltip("hash:N", title="prefix_cache.axis.hash"),
            ],
        )
    )


def _kept(kept: pd.DataFrame, x_scale: alt.Scale, y_scale: alt.Scale) -> alt.Chart:
    """Where the first prompt left states, below its bar: also beyond the shared part."""
    return (
        alt.Chart(kept.assign(row_y=_FIRST + _FIRST_HALF + 7))
        .mark_point(shape="diamond", size=50, opacity=1, filled=True, color=style.KDA)
        .encode(
            alt.X("boundary:Q").scale(x_scale),
            alt.Y("row_y:Q").scale(y_scale),
            tooltip=[
                alt.Tooltip("boundary:Q", format=",", title="prefix_cache.axis.kept"),
                alt.Tooltip("states:Q", title="prefix_cache.axis.states"),
            ],
        )
    )


def _rules(
    rules: pd.DataFrame, bottom: int, x_scale: alt.Scale, y_scale: alt.Scale
) -> list[alt.Chart]:
    """Usable boundary, deepest match, last-token cap; each names itself in a row of its own."""
    middle = 0.5 * x_scale.domain[1]
    table = rules.assign(
        row_y=bottom + _RULE_TEXT_STEP * (rules["order"] + 0.5),
        top=0,
        bottom=bottom,
        side=["left" if tokens < middle else "right" for tokens in rules["tokens"]],
    )
    base = style.labelled(alt.Chart(table), "rule").transform_calculate(
        text="datum.rule_text + ' ' + format(datum.tokens, ',')"
    )
    x = alt.X("tokens:Q").scale(x_scale)
    lines = base.mark_rule(opacity=1).encode(
        x,
        alt.Y("top:Q").scale(y_scale),
        alt.Y2("bottom:Q"),
        alt.Stroke("rule:N").scale(domain=_RULES, range=_RULE_COLOURS).legend(None),
        alt.StrokeDash("rule:N")
        .scale(type="ordinal", domain=_RULES, range=[_SOLID, [6, 4], _SOLID])
        .legend(None),
        alt.StrokeWidth("rule:N")
        .scale(type="ordinal", domain=_RULES, range=[3.5, 3.0, 1.3])
        .legend(None),
        tooltip=[
            alt.Tooltip("rule_text:N", title="prefix_cache.axis.rule"),
            alt.Tooltip("tokens:Q", format=",", title="prefix_cache.axis.boundary"),
        ],
    )
    texts = base.mark_text(
        align=alt.ExprRef(expr="datum.side"), fontSize=12, fontWeight="bold"
    ).encode(
        x,
        alt.Y("row_y:Q").scale(y_scale),
        alt.Text("text:N"),
        alt.Color("rule:N").scale(domain=_RULES, range=_RULE_COLOURS).legend(None),
        tooltip=alt.value(None),
    )
    return [lines, texts]


def _footer(footer: pd.DataFrame, row: float, x_scale: alt.Scale, y_scale: alt.Scale) -> alt.Chart:
    words = [
        f"labels['{code}'] + ' {number}'"
        for code, number in zip(footer["code"], footer["number"], strict=True)
    ]
    return (
        alt.Chart(pd.DataFrame({"row_y": [row], "left": [0]}))
        .transform_calculate(text=f"[{', '.join(words)}]")
        .mark_text(align="left", fontSize=12, fontWeight="bold", lineHeight=_RULE_TEXT_STEP)
        .encode(alt.X("left:Q").scale(x_scale), alt.Y("row_y:Q").scale(y_scale), alt.Text("text:N"))
    )
