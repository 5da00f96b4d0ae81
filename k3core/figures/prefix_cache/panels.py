"""Figures of a hit, a miss, the hash schemes, the ladder and the cost of a long prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.flow import flow_chart
from k3core.figures.prefix_cache.ruler import domain_end, ruler

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

_INK = "#202124"
_SCENARIOS = ("no_checkpoint", "partial")
_SCHEMES = ("chained", "independent")
_MATCHES = ["cached", "true_match", "false_match", "not_found"]
_MATCH_COLOURS = alt.Scale(
    domain=_MATCHES, range=[style.FREE, style.ACCEPTED, style.REJECTED, style.FREE]
)
_CHAIN_BOXES = [
    "parent",
    "block_reused",
    "block_lost",
    "block_pending",
    "block_evicted",
    "block_absent",
]
_CHAIN_COLOURS = alt.Scale(domain=_CHAIN_BOXES, range=[style.NEUTRAL, *[style.MLA] * 5])
_FLOPS = (
    "datum.value == 0 ? '0' : "
    "datum.value >= 1e18 ? format(datum.value / 1e18, ',~r') + ' EFLOP' : "
    "datum.value >= 1e15 ? format(datum.value / 1e15, ',~r') + ' PFLOP' : "
    "format(datum.value / 1e12, ',~r') + ' TFLOP'"
)


def fig_prefix_hit(tables: Tables) -> Panels:
    """Tab 8 of the source text: the two stages of this lookup, and the chain of its hashes.

    Tables: ``flow`` and ``chain`` of ``LookupStudy``.
    """
    return {
        "flow": flow_chart(tables["flow"]).properties(title="prefix_cache.panel.flow"),
        "chain": _chain(tables["chain"]),
    }


def fig_prefix_miss(tables: Tables) -> Panels:
    """Tab 9 of the source text: no checkpoint, and a checkpoint only at the first boundary.

    Tables: those of ``MissStudy``.
    """
    panels: Panels = {}
    for scenario in _SCENARIOS:
        part = {
            name: table[table["scenario"] == scenario].reset_index(drop=True)
            for name, table in tables.items()
        }
        panels[scenario] = ruler(part, part["verdicts"], f"prefix_cache.panel.{scenario}")
    return panels


def account_picture(tables: Tables) -> Panels:
    """Every token of the prompt under one reason.

    Tables: ``account`` of ``LookupStudy``.
    """
    codes = tables["account"]["code"]
    table = tables["account"].assign(
        kind=[c if c in ("reused", "new") else "lost" for c in codes],
        code=codes.replace("new", "new_or_partial"),
    )
    y = alt.Y("code:N").sort(list(table["code"]))
    x = alt.X("tokens:Q").scale(domain=[0, domain_end(int(table["tokens"].sum()))], nice=False)
    bars = (
        style.labelled(alt.Chart(table), "code")
        .mark_bar()
        .encode(
            x.axis(title="prefix_cache.axis.tokens", format=",d", tickCount=5),
            y.axis(labelExpr=style.label_expr(), title=None, ticks=False, labelLimit=170),
            alt.Color("kind:N")
            .scale(
                domain=["reused", "lost", "new"],
                range=[style.ACCEPTED, style.REJECTED, style.NEUTRAL],
            )
            .legend(None),
            tooltip=[
                alt.Tooltip("code_text:N", title="prefix_cache.axis.code"),
                alt.Tooltip("tokens:Q", format=",", title="prefix_cache.axis.tokens"),
                alt.Tooltip("share:Q", format=".1%", title="prefix_cache.axis.share"),
            ],
        )
    )
    texts = (
        alt.Chart(table)
        .mark_text(align="left", dx=4, fontSize=12)
        .encode(x, y, alt.Text("tokens:Q", format=","), tooltip=alt.value(None))
    )
    return {
        "account": alt.LayerChart(
            layer=[bars, texts], height=280, title="prefix_cache.panel.account"
        )
    }


def _chain(chain: pd.DataFrame) -> alt.LayerChart:
    """One row per block: parent hash, tokens, hash; each hash feeds the next row's parent."""
    last = max(len(chain) - 1, 0)
    x_scale = alt.Scale(domain=[0, 1], nice=False)
    y_scale = alt.Scale(domain=[-1.0, last + 0.4], reverse=True, nice=False)
    x, y = alt.X("x:Q").scale(x_scale).axis(None), alt.Y("y:Q").scale(y_scale).axis(None)
    spans = [f"{a:,}–{b - 1:,}" for a, b in zip(chain["start"], chain["end"], strict=True)]
    columns = ((0.17, chain["parent"], "parent"), (0.5, spans, "tokens"), (0.83, chain["hash"], ""))
    cells = pd.concat(
        chain.assign(
            x=at,
            y=chain["index"],
            text=text,
            box="parent" if kind == "parent" else chain["status"],
            left=at - 0.17,
            right=at + 0.17,
            top=chain["index"] - 0.3,
            bottom=chain["index"] + 0.3,
            boxed=kind != "tokens",
        )
        for at, text, kind in columns
    )
    boxes = (
        style.labelled(alt.Chart(cells[cells["boxed"]]), "status")
        .mark_rect(cornerRadius=4, stroke=style.NEUTRAL)
        .encode(
            alt.X("left:Q").scale(x_scale).axis(None),
            alt.X2("right:Q"),
            alt.Y("top:Q").scale(y_scale).axis(None),
            alt.Y2("bottom:Q"),
            alt.Fill("box:N").scale(_CHAIN_COLOURS).legend(None),
            alt.FillOpacity("box:N")
            .scale(type="ordinal", domain=_CHAIN_BOXES, range=[0.15, 0.3, 0.3, 0.12, 0.0, 0.0])
            .legend(None),
            tooltip=[
                alt.Tooltip("index:Q", title="prefix_cache.axis.block"),
                alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
                alt.Tooltip("hash:N", title="prefix_cache.axis.hash"),
                alt.Tooltip("parent:N", title="prefix_cache.axis.parent"),
            ],
        )
    )
    texts = (
        alt.Chart(cells)
        .mark_text(fontSize=11, font="monospace")
        .encode(x, y, alt.Text("text:N"), tooltip=alt.value(None))
    )
    feeds = pd.DataFrame({"x": 0.83, "y": chain["index"].iloc[:-1] + 0.3, "to": 0.17})
    feeds = feeds.assign(tip=feeds["y"] + 0.4)
    arrows = (
        alt.Chart(feeds)
        .mark_rule(color=style.NEUTRAL, strokeWidth=1.6)
        .encode(x, y, alt.X2("to:Q"), alt.Y2("tip:Q"))
    )
    tips = (
        alt.Chart(feeds)
        .mark_point(shape="triangle-down", size=50, filled=True, color=style.NEUTRAL, opacity=1)
        .encode(alt.X("to:Q").scale(x_scale).axis(None), alt.Y("tip:Q").scale(y_scale).axis(None))
    )
    names = ["chain_parent", "chain_tokens", "chain_hash"]
    head_rows = pd.DataFrame({"head": names, "x": [0.17, 0.5, 0.83], "y": -0.7})
    if not len(chain):
        head_rows.loc[3] = ["chain_empty", 0.5, 0.0]
    heads = (
        style.labelled(alt.Chart(head_rows), "head")
        .mark_text(fontSize=12, fontWeight="bold")
        .encode(x, y, alt.Text("head_text:N"))
    )
    return alt.LayerChart(
        layer=[arrows, boxes, tips, texts, heads],
        height=46 * (last + 2),
        title="prefix_cache.panel.chain",
    )


def hash_pictures(tables: Tables) -> Panels:
    """Two cached prompts and the asked one, block by block, under each hash scheme.

    Tables: ``blocks`` of ``HashStudy``.
    """
    panels: Panels = {}
    x_scale = alt.Scale(domain=[0, 2], nice=False)
    y = (
        alt.Y("code:N")
        .sort([f"prompt_{name}" for name in ("first", "second", "asked")])
        .scale(paddingInner=0.3)
        .axis(
            labelExpr=style.label_expr(),
            title=None,
            ticks=False,
            domain=False,
            labelLimit=120,
            labelFontSize=12,
        )
    )
    for scheme in _SCHEMES:
        table = tables["blocks"]
        table = table[table["scheme"] == scheme].assign(
            left=lambda t: t["index"] + 0.03,
            right=lambda t: t["index"] + 0.97,
            middle=lambda t: t["index"] + 0.5,
            code=lambda t: "prompt_" + t["prompt"],
        )
        rects = (
            style.labelled(style.labelled(alt.Chart(table), "status"), "code")
            .mark_rect(cornerRadius=4, strokeWidth=2, stroke=style.NEUTRAL)
            .encode(
                alt.X("left:Q").scale(x_scale).axis(None),
                alt.X2("right:Q"),
                y,
                alt.Fill("status:N").scale(_MATCH_COLOURS).legend(None),
                alt.FillOpacity("status:N")
                .scale(type="ordinal", domain=_MATCHES, range=[1.0, 1.0, 1.0, 0.2])
                .legend(None),
                tooltip=[
                    alt.Tooltip("code_text:N", title="prefix_cache.axis.prompt"),
                    alt.Tooltip("content:N", title="prefix_cache.axis.content"),
                    alt.Tooltip("hash:N", title="prefix_cache.axis.hash"),
                    alt.Tooltip("status_text:N", title="prefix_cache.axis.status"),
                ],
            )
        )
        filled = table["status"].isin(("true_match", "false_match"))
        inks: list[tuple[pd.DataFrame, dict[str, Any]]] = [
            (table[filled], {"color": _INK, "fontWeight": "bold"}),
            (table[~filled], {}),
        ]
        texts = [
            style.labelled(alt.Chart(part), "status")
            .transform_calculate(
                first="datum.content + '  ' + datum.hash",
                text="datum.prompt == 'asked' ? [datum.first, datum.status_text] : datum.first",
            )
            .mark_text(
                fontSize=12,
                lineHeight=16,
                dy=alt.ExprRef(expr="datum.prompt == 'asked' ? -8 : 0"),
                **ink,
            )
            .encode(
                alt.X("middle:Q").scale(x_scale), y, alt.Text("text:N"), tooltip=alt.value(None)
            )
            for part, ink in inks
        ]
        panels[scheme] = alt.LayerChart(
            layer=[rects, *texts], height=230, title=f"prefix_cache.panel.{scheme}"
        )
    return panels


def ladder_picture(tables: Tables) -> Panels:
    """Reused tokens against prompt length, below the deepest MLA match and the ceiling.

    Tables: ``ladder`` of ``LadderStudy``.
    """
    series = ["reused", "deepest_match", "ceiling"]
    table = tables["ladder"]
    end = domain_end(int(table["num_tokens"].max()))
    base = style.labelled(alt.Chart(table), "series")
    x = (
        alt.X("num_tokens:Q")
        .scale(domain=[0, end], nice=False)
        .axis(title="prefix_cache.axis.prompt_len", format=",d", grid=False)
    )
    lines = base.mark_line(interpolate="step-after").encode(
        x,
        alt.Y("tokens:Q")
        .scale(domain=[0, end], nice=False)
        .axis(title="prefix_cache.axis.ladder", format=",d"),
        alt.Color("series:N")
        .scale(domain=series, range=[style.ACCEPTED, style.MLA, style.NEUTRAL])
        .legend(style.legend(symbolType="stroke", symbolSize=300))
        .title(None),
        alt.StrokeDash("series:N")
        .scale(domain=series, range=[[1, 0], [6, 4], [2, 2]])
        .legend(None),
        alt.StrokeWidth("series:N").scale(domain=series, range=[3, 2, 1.5]).legend(None),
        tooltip=[
            alt.Tooltip("series_text:N", title="prefix_cache.axis.series"),
            alt.Tooltip("num_tokens:Q", format=",", title="prefix_cache.axis.prompt_len"),
            alt.Tooltip("tokens:Q", format=",", title="prefix_cache.axis.ladder"),
        ],
    )
    return {"ladder": lines.properties(height=340, title="prefix_cache.panel.ladder")}


def cost_pictures(tables: Tables) -> Panels:
    """FLOPs of a miss and of a hit for one prompt, and against the prefix length.

    Tables: ``parts`` and ``sweep`` of ``CostStudy``.
    """
    parts, cases = ["parameters", "attention", "scan"], ["missed", "hit"]
    bars = (
        style.labelled(style.labelled(alt.Chart(tables["parts"]), "part"), "case")
        .mark_bar()
        .encode(
            alt.X("flops:Q").axis(title="prefix_cache.axis.flops", labelExpr=_FLOPS, tickCount=5),
            alt.Y("case:N")
            .sort(cases)
            .axis(labelExpr=style.label_expr(), title=None, labelFontSize=12),
            alt.Color("part:N")
            .scale(domain=parts, range=[style.NEUTRAL, style.MLA, style.KDA])
            .legend(style.legend())
            .title(None),
            alt.Order("part:N").sort("descending"),
            tooltip=[
                alt.Tooltip("case_text:N", title="prefix_cache.axis.case"),
                alt.Tooltip("part_text:N", title="prefix_cache.axis.part"),
                alt.Tooltip("flops:Q", format=".4s", title="prefix_cache.axis.flops"),
            ],
        )
        .properties(height=300, title="prefix_cache.panel.parts")
    )
    sweep = (
        style.labelled(alt.Chart(tables["sweep"]), "case")
        .mark_line(strokeWidth=3, point=True)
        .encode(
            alt.X("prefix_len:Q")
            .scale(type="log", base=2)
            .axis(
                title="prefix_cache.axis.prefix_len",
                labelExpr=style.COUNT_LABELS,
                values=[2**power for power in range(10, 21, 2)],
            ),
            alt.Y("flops:Q")
            .scale(type="log", base=10)
            .axis(title="prefix_cache.axis.flops", labelExpr=_FLOPS, tickCount=5),
            alt.Color("case:N")
            .scale(domain=cases, range=[style.REJECTED, style.ACCEPTED])
            .legend(style.legend())
            .title(None),
            alt.Shape("case:N").scale(domain=cases, range=["cross", "circle"]).legend(None),
            tooltip=[
                alt.Tooltip("case_text:N", title="prefix_cache.axis.case"),
                alt.Tooltip("prefix_len:Q", format=",", title="prefix_cache.axis.prefix_len"),
                alt.Tooltip("flops:Q", format=".4s", title="prefix_cache.axis.flops"),
            ],
        )
        .properties(height=300, title="prefix_cache.panel.sweep")
    )
    return {"parts": bars, "sweep": sweep}
