"""Figures of a page's later life: who leaves next, who copies, where free pages are stranded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

_LINE = 16  # pages in a row of the eviction order
_CONTENT = ["mla", "kda", "free"]
_CONTENT_COLOURS = alt.Scale(domain=_CONTENT, range=[style.MLA, style.KDA, style.FREE])
_INK = "#202124"
_STAGES = ["alone", "forked", "fork_writes", "first_writes", "first_ends"]
_USES = ["private", "shared", "copied"]


def order_pictures(tables: Tables) -> Panels:
    """The free list at the play-head, next page first, and the evictions of the whole run.

    Tables: ``order`` of ``RunView``; ``evictions`` of ``PoolRun``.
    """
    return {"order": _order(tables["order"]), "evictions": _evictions(tables["evictions"])}


def _order(order: pd.DataFrame) -> alt.LayerChart:
    cells = order.assign(
        x=order["place_in_line"] % _LINE,
        y=order["place_in_line"] // _LINE,
        next=order["place_in_line"] + 1,
    )
    x_scale = alt.Scale(domain=[-0.5, _LINE - 0.5], nice=False)
    y_scale = alt.Scale(domain=[-0.5, 3.5], reverse=True, nice=False)
    tooltip = [
        alt.Tooltip("next:Q", title="paged_cache.axis.place_in_line"),
        alt.Tooltip("page:Q", title="paged_cache.axis.page"),
        alt.Tooltip("kind_text:N", title="paged_cache.axis.kind"),
        alt.Tooltip("owner:N", title="paged_cache.axis.owner"),
        alt.Tooltip("holds:N", title="paged_cache.axis.holds"),
    ]
    base = style.labelled(alt.Chart(cells), "kind")
    squares = (
        base.transform_calculate(
            left="datum.x - 0.46",
            right="datum.x + 0.46",
            top="datum.y - 0.44",
            bottom="datum.y + 0.44",
        )
        .mark_rect(cornerRadius=3)
        .encode(
            alt.X("left:Q").scale(x_scale).axis(None),
            alt.X2("right:Q"),
            alt.Y("top:Q")
            .scale(y_scale)
            .axis(
                title=None,
                values=[0, 1, 2, 3],
                labelExpr=f"datum.value * {_LINE} + 1",
                grid=False,
                ticks=False,
                domain=False,
            ),
            alt.Y2("bottom:Q"),
            alt.Fill("kind:N")
            .scale(_CONTENT_COLOURS)
            .legend(style.legend(symbolType="square"))
            .title(None),
            tooltip=tooltip,
        )
    )
    layers: list[alt.Chart] = [squares]
    for kind, ink in (("mla", "#FFFFFF"), ("kda", _INK)):
        part = cells[cells["kind"] == kind]
        if len(part):
            layers.append(
                alt.Chart(part)
                .mark_text(fontSize=11, fontWeight="bold", color=ink)
                .encode(
                    alt.X("x:Q").scale(x_scale),
                    alt.Y("y:Q").scale(y_scale),
                    alt.Text("part:N"),
                    tooltip=alt.value(None),
                )
            )
    return alt.LayerChart(layer=layers, height=250, title="paged_cache.panel.order")


def _evictions(evictions: pd.DataFrame) -> alt.LayerChart:
    base = style.labelled(alt.Chart(evictions), "kind")
    x = alt.X("number:Q").axis(
        title="paged_cache.axis.eviction", format="d", tickMinStep=1, grid=False
    )
    y = alt.Y("depth:Q").axis(title="paged_cache.axis.depth", format=",d")
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        x,
        y,
        alt.Color("kind:N")
        .scale(domain=["mla", "kda"], range=[style.MLA, style.KDA])
        .legend(style.legend())
        .title(None),
        alt.Shape("kind:N").scale(domain=["mla", "kda"], range=["circle", "diamond"]).legend(None),
        tooltip=[
            alt.Tooltip("number:Q", title="paged_cache.axis.eviction"),
            alt.Tooltip("part:N", title="paged_cache.axis.part"),
            alt.Tooltip("depth:Q", format=",", title="paged_cache.axis.depth"),
            alt.Tooltip("page:Q", title="paged_cache.axis.page"),
            alt.Tooltip("step:Q", title="paged_cache.axis.step"),
        ],
    )
    firsts = evictions.groupby("owner", sort=False).first().reset_index()
    names = (
        alt.Chart(firsts)
        .mark_text(dy=-11, fontSize=12, fontWeight="bold")
        .encode(x, y, alt.Text("owner:N"), tooltip=alt.value(None))
    )
    return alt.LayerChart(layer=[points, names], height=250, title="paged_cache.panel.evictions")


def fork_picture(tables: Tables) -> Panels:
    """Pages of a request and its fork, stage by stage; the number is the page id.

    Tables: ``pages`` of ``ForkStudy``.
    """
    pages = tables["pages"]
    first = int(pages["place"].min())
    columns = int(pages["place"].max()) - first + 1
    rows = {
        (stage, request): 3 * index + (request == "second")
        for index, stage in enumerate(_STAGES)
        for request in ("first", "second")
    }
    cells = pages.assign(
        y=[rows[key] for key in zip(pages["stage"], pages["request"], strict=True)],
        id=[
            f"{page} ({count})"
            for page, count in zip(pages["page"], pages["references"], strict=True)
        ],
    )
    x_scale = alt.Scale(domain=[first - 0.5, first + max(columns, 4) - 0.5], nice=False)
    y_scale = alt.Scale(domain=[-0.6, 13.6], reverse=True, nice=False)
    names = " ".join(
        f"datum.value == {3 * index + 0.5} ? labels['{stage}'] :"
        for index, stage in enumerate(_STAGES)
    )
    base = style.labelled(style.labelled(alt.Chart(cells), "use"), "request")
    boxes = (
        base.transform_calculate(
            left="datum.place - 0.46",
            right="datum.place + 0.46",
            top="datum.y - 0.44",
            bottom="datum.y + 0.44",
        )
        .mark_rect(cornerRadius=3)
        .encode(
            alt.X("left:Q")
            .scale(x_scale)
            .axis(title="paged_cache.axis.position", format="d", tickMinStep=1, grid=False),
            alt.X2("right:Q"),
            alt.Y("top:Q")
            .scale(y_scale)
            .axis(
                title=None,
                values=[3 * index + 0.5 for index in range(len(_STAGES))],
                labelExpr=f"{names} ''",
                labelLimit=150,
                labelFontSize=12,
                grid=False,
                ticks=False,
                domain=False,
            ),
            alt.Y2("bottom:Q"),
            alt.Fill("use:N")
            .scale(domain=_USES, range=[style.INPUTS, style.MLA, style.SNAPSHOT])
            .legend(style.legend(symbolType="square"))
            .title(None),
            tooltip=[
                alt.Tooltip("request_text:N", title="paged_cache.axis.owner"),
                alt.Tooltip("page:Q", title="paged_cache.axis.page"),
                alt.Tooltip("tokens:Q", format=",", title="paged_cache.axis.tokens"),
                alt.Tooltip("references:Q", title="paged_cache.axis.references"),
                alt.Tooltip("use_text:N", title="paged_cache.axis.use"),
            ],
        )
    )
    texts = [
        alt.Chart(part)
        .mark_text(fontSize=11, fontWeight="bold", color=ink)
        .encode(
            alt.X("place:Q").scale(x_scale),
            alt.Y("y:Q").scale(y_scale),
            alt.Text("id:N"),
            tooltip=alt.value(None),
        )
        for part, ink in (
            (cells[cells["use"] == "shared"], "#FFFFFF"),
            (cells[cells["use"] != "shared"], _INK),
        )
        if len(part)
    ]
    return {
        "fork": alt.LayerChart(layer=[boxes, *texts], height=340, title="paged_cache.panel.fork")
    }


def fragment_pictures(tables: Tables) -> Panels:
    """Free pages against the piece that a state can use, and both designs' pages at the worst step.

    Tables: ``by_step`` and ``map`` of ``FragmentStudy``.
    """
    lines = ["free", "usable"]
    table = tables["by_step"]
    base = style.labelled(style.labelled(alt.Chart(table), "line"), "reason")
    x = alt.X("step:Q").axis(title="paged_cache.axis.step", format="d", tickMinStep=1, grid=False)
    y = alt.Y("pages:Q").axis(title="paged_cache.axis.pages_linear", format=",d")
    drawn = base.mark_line(interpolate="step-after", strokeWidth=2.5).encode(
        x,
        y,
        alt.Color("line:N")
        .scale(domain=lines, range=[style.NEUTRAL, style.KDA])
        .legend(style.legend(symbolType="stroke", symbolSize=300))
        .title(None),
        alt.StrokeDash("line:N").scale(domain=lines, range=[[5, 3], [1, 0]]).legend(None),
        tooltip=[
            alt.Tooltip("line_text:N", title="paged_cache.axis.line"),
            alt.Tooltip("step:Q", title="paged_cache.axis.step"),
            alt.Tooltip("pages:Q", format=",", title="paged_cache.axis.pages_linear"),
            alt.Tooltip("waiting:Q", title="paged_cache.axis.waiting"),
            alt.Tooltip("waiting_pool:Q", title="paged_cache.axis.waiting_pool"),
        ],
    )
    need = (
        alt.Chart(table.head(1))
        .mark_rule(strokeWidth=1.5, color=style.NEUTRAL)
        .encode(alt.Y("need:Q"))
    )
    need_text = (
        style.labelled(alt.Chart(table.head(1).assign(word="need_state")), "word")
        .transform_calculate(words="datum.word_text + ' ' + datum.need")
        .mark_text(align="left", dx=4, dy=-8, fontSize=12)
        .encode(x, alt.Y("need:Q"), alt.Text("words:N"))
    )
    stuck = table[(table["waiting"] > 0) & (table["line"] == "usable")]
    layers: list[Any] = [need, drawn, need_text]
    if len(stuck):
        layers.append(
            style.labelled(alt.Chart(stuck), "reason")
            .mark_point(shape="cross", filled=True, size=90, color=style.REJECTED, opacity=1)
            .encode(
                x,
                y,
                tooltip=[
                    alt.Tooltip("reason_text:N", title="paged_cache.axis.refused"),
                    alt.Tooltip("waiting:Q", title="paged_cache.axis.waiting"),
                    alt.Tooltip("waiting_pool:Q", title="paged_cache.axis.waiting_pool"),
                ],
            )
        )
    gap = alt.LayerChart(layer=layers, height=270, title="paged_cache.panel.gap")
    designs = ["two_ends", "paged"]
    strip = (
        style.labelled(style.labelled(alt.Chart(tables["map"]), "kind"), "design")
        .mark_bar(height={"band": 0.7})
        .encode(
            alt.X("first_page:Q")
            .scale(domain=[0, int(tables["map"]["stop"].max())], nice=False)
            .axis(title="paged_cache.axis.page", format=",d", grid=False),
            alt.X2("stop:Q"),
            alt.Y("design:N")
            .sort(designs)
            .axis(
                labelExpr=style.label_expr(),
                title=None,
                ticks=False,
                domain=False,
                labelFontSize=12,
                labelLimit=110,
            ),
            alt.Color("kind:N")
            .scale(_CONTENT_COLOURS)
            .legend(style.legend(symbolType="square"))
            .title(None),
            tooltip=[
                alt.Tooltip("kind_text:N", title="paged_cache.axis.kind"),
                alt.Tooltip("owner:N", title="paged_cache.axis.owner"),
                alt.Tooltip("first_page:Q", format=",", title="paged_cache.axis.first_page"),
                alt.Tooltip("pages:Q", format=",", title="paged_cache.axis.run"),
            ],
        )
        .properties(height=270, title="paged_cache.panel.fragments")
    )
    return {"gap": gap, "fragments": strip}
