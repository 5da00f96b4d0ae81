"""Figures of the scenario player: what the cache says, and what stands in the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

_INK = "#202124"
_BLOCKS = ["block_ready", "block_pending", "block_evicted", "block_new"]
_COLUMNS = 5  # blocks of the longest prompt
_PAGES_PER_ROW = 7
_KINDS = ["mla", "kda", "free"]


def player_pictures(tables: Tables) -> Panels:
    """The prompts with their blocks and states, and the pool page by page.

    Tables: ``blocks``, ``states`` and ``pages`` of ``PlayerStudy``.
    """
    return {
        "player_cache": _cache(tables["blocks"], tables["states"]),
        "player_pool": _pool(tables["pages"]),
    }


def _cache(blocks: pd.DataFrame, states: pd.DataFrame) -> alt.LayerChart:
    """A row per prompt; the states of a boundary stand on the right edge of its block."""
    names = list(dict.fromkeys(blocks["name"])) or [""]
    row = {name: index for index, name in enumerate(names)}
    cells = blocks.assign(
        y=blocks["name"].map(row),
        text=blocks["letter"] + "  " + blocks["hash"],
        middle=blocks["index"] + 0.5,
    )
    x_scale = alt.Scale(domain=[0, _COLUMNS + 0.2], nice=False)
    y_scale = alt.Scale(domain=[-0.5, max(len(names), 2) - 0.4], reverse=True, nice=False)
    salts = {
        name: f" ({salt})" if salt else ""
        for name, salt in zip(blocks["name"], blocks["salt"], strict=True)
    }
    labels = " ".join(
        f"datum.value == {index} ? '{name}{salts.get(name, '')}' :" for name, index in row.items()
    )
    y_axis = alt.Axis(
        values=list(row.values()),
        labelExpr=f"{labels} ''",
        title=None,
        grid=False,
        ticks=False,
        domain=False,
        labelFontSize=13,
    )
    x_axis = alt.Axis(
        title="prefix_cache.axis.block_end",
        values=list(range(1, _COLUMNS + 1)),
        labelExpr="format(datum.value * 512, ',')",
        grid=False,
    )
    rects = (
        style.labelled(alt.Chart(cells), "status")
        .transform_calculate(
            left="datum.index + 0.03",
            right="datum.index + 0.97",
            top="datum.y - 0.3",
            bottom="datum.y + 0.12",
        )
        .mark_rect(cornerRadius=3, fill=style.MLA, strokeWidth=1.8)
        .encode(
            alt.X("left:Q").scale(x_scale).axis(x_axis),
            alt.X2("right:Q"),
            alt.Y("top:Q").scale(y_scale).axis(y_axis),
            alt.Y2("bottom:Q"),
            alt.FillOpacity("status:N")
            .scale(type="ordinal", domain=_BLOCKS, range=[1.0, style.PALE, 0.0, 0.0])
            .legend(None),
            alt.Stroke("status:N")
            .scale(domain=_BLOCKS, range=[style.MLA, style.MLA, style.REJECTED, style.NEUTRAL])
            .legend(None),
            tooltip=[
                alt.Tooltip("name:N", title="prefix_cache.axis.prompt"),
                alt.Tooltip("letter:N", title="prefix_cache.axis.content"),
                alt.Tooltip("hash:N", title="prefix_cache.axis.hash"),
                alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
                alt.Tooltip("page:N", title="prefix_cache.axis.page"),
            ],
        )
    )
    ready = cells["status"] == "block_ready"
    inks: list[tuple[pd.DataFrame, dict[str, Any]]]
    inks = [(cells[ready], {"color": "#FFFFFF"}), (cells[~ready], {})]
    texts = [
        alt.Chart(part)
        .transform_calculate(high="datum.y - 0.09")
        .mark_text(fontSize=11, font="monospace", fontWeight="bold", **ink)
        .encode(
            alt.X("middle:Q").scale(x_scale),
            alt.Y("high:Q").scale(y_scale),
            alt.Text("text:N"),
            tooltip=alt.value(None),
        )
        for part, ink in inks
        if len(part)
    ]
    marks = states.assign(
        x=states["index"] + 0.9 - 0.16 * states["group"], y=states["name"].map(row) + 0.28
    )
    diamonds = (
        style.labelled(alt.Chart(marks), "status")
        .mark_point(
            shape="diamond", size=130, fill=style.KDA, stroke=style.KDA, strokeWidth=1.6, opacity=1
        )
        .encode(
            alt.X("x:Q").scale(x_scale),
            alt.Y("y:Q").scale(y_scale),
            alt.FillOpacity("status:N")
            .scale(type="ordinal", domain=["state_kept", "state_evicted"], range=[1.0, 0.0])
            .legend(None),
            tooltip=[
                alt.Tooltip("name:N", title="prefix_cache.axis.prompt"),
                alt.Tooltip("group:Q", title="prefix_cache.axis.group_number"),
                alt.Tooltip("boundary:Q", format=",", title="prefix_cache.axis.boundary"),
                alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
            ],
        )
    )
    layers = [rects, *texts, diamonds] if len(marks) else [rects, *texts]
    own = alt.ScaleResolveMap(fillOpacity="independent", stroke="independent")
    return alt.LayerChart(
        layer=layers,
        height=80 + 75 * max(len(names), 2),
        title="prefix_cache.panel.player_cache",
        resolve=alt.Resolve(scale=own),
    )


def _pool(pages: pd.DataFrame) -> alt.LayerChart:
    """A cell per page: id and content, below its references or its place in the free list."""
    cells = pages.assign(
        x=pages["page"] % _PAGES_PER_ROW,
        y=pages["page"] // _PAGES_PER_ROW,
        head=pages["page"].astype(str)
        + pages["content"].map(lambda content: f": {content}" if content else ""),
        foot=[
            f"×{count}" if count else f"→{place}"
            for count, place in zip(pages["references"], pages["order"], strict=True)
        ],
    )
    rows = int(cells["y"].max()) + 1
    x_scale = alt.Scale(domain=[-0.5, _PAGES_PER_ROW - 0.5], nice=False)
    y_scale = alt.Scale(domain=[-0.5, rows - 0.5], reverse=True, nice=False)
    base = style.labelled(style.labelled(alt.Chart(cells), "kind"), "place")
    rects = (
        base.transform_calculate(
            left="datum.x - 0.46",
            right="datum.x + 0.46",
            top="datum.y - 0.44",
            bottom="datum.y + 0.44",
        )
        .mark_rect(cornerRadius=4)
        .encode(
            alt.X("left:Q").scale(x_scale).axis(None),
            alt.X2("right:Q"),
            alt.Y("top:Q").scale(y_scale).axis(None),
            alt.Y2("bottom:Q"),
            alt.Fill("kind:N")
            .scale(domain=_KINDS, range=[style.MLA, style.KDA, style.FREE])
            .legend(style.legend(symbolType="square"))
            .title(None),
            alt.FillOpacity("place:N")
            .scale(type="ordinal", domain=["owned", "cached", "free"], range=[1.0, style.PALE, 0.5])
            .legend(None),
            tooltip=[
                alt.Tooltip("page:Q", title="prefix_cache.axis.page"),
                alt.Tooltip("kind_text:N", title="prefix_cache.axis.kind"),
                alt.Tooltip("place_text:N", title="prefix_cache.axis.place"),
                alt.Tooltip("content:N", title="prefix_cache.axis.holds"),
                alt.Tooltip("references:Q", title="prefix_cache.axis.references"),
                alt.Tooltip("order:Q", title="prefix_cache.axis.free_place"),
            ],
        )
    )
    texts = []
    inks: list[tuple[str, dict[str, Any]]]
    inks = [("mla", {"color": "#FFFFFF"}), ("kda", {"color": _INK}), ("", {})]
    for owned, ink in inks:
        part = cells[
            (cells["place"] == "owned") & (cells["kind"] == owned)
            if owned
            else cells["place"] != "owned"
        ]
        if not len(part):
            continue
        for field, dy in (("head", -8), ("foot", 9)):
            texts.append(
                alt.Chart(part)
                .mark_text(fontSize=11, dy=dy, fontWeight="bold", **ink)
                .encode(
                    alt.X("x:Q").scale(x_scale),
                    alt.Y("y:Q").scale(y_scale),
                    alt.Text(f"{field}:N"),
                    tooltip=alt.value(None),
                )
            )
    return alt.LayerChart(
        layer=[rects, *texts], height=50 + 60 * rows, title="prefix_cache.panel.player_pool"
    )
