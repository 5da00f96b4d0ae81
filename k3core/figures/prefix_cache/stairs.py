"""Figures of the hit ladder: one deployment's stairs, the published points, a shared prefix."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

_SERIES = ["reused", "chunk_only", "ceiling"]
_HEIGHT = 340


def stairs_pictures(tables: Tables) -> Panels:
    """Reused tokens at every length, published points in blocks, and a prefix that many share.

    Tables: ``stairs``, ``published``, ``rule`` and ``sharing`` of ``StairsStudy``.
    """
    return {
        "stairs": _stairs(tables["stairs"]),
        "published": _published(tables["published"], tables["rule"]),
        "sharing": _sharing(tables["sharing"]),
    }


def _stairs(table: pd.DataFrame) -> alt.Chart:
    end = int(table["num_tokens"].max())
    x = alt.X("num_tokens:Q").scale(domain=[0, end], nice=False)
    return (
        style.labelled(alt.Chart(table), "series")
        .mark_line(interpolate="step-after")
        .encode(
            x.axis(title="prefix_cache.axis.prompt_len", format=",d", grid=False, tickCount=6),
            alt.Y("tokens:Q")
            .scale(domain=[0, end], nice=False)
            .axis(title="prefix_cache.axis.reused", format=",d"),
            alt.Color("series:N")
            .scale(domain=_SERIES, range=[style.ACCEPTED, style.REJECTED, style.NEUTRAL])
            .legend(style.legend(symbolType="stroke", symbolSize=300))
            .title(None),
            alt.StrokeDash("series:N")
            .scale(domain=_SERIES, range=[[1, 0], [6, 4], [2, 2]])
            .legend(None),
            alt.StrokeWidth("series:N").scale(domain=_SERIES, range=[4, 2.5, 2]).legend(None),
            alt.Order("series:N"),
            tooltip=[
                alt.Tooltip("series_text:N", title="prefix_cache.axis.series"),
                alt.Tooltip("num_tokens:Q", format=",", title="prefix_cache.axis.prompt_len"),
                alt.Tooltip("tokens:Q", format=",", title="prefix_cache.axis.reused"),
            ],
        )
        .properties(height=_HEIGHT, title="prefix_cache.panel.stairs")
    )


def _published(points: pd.DataFrame, rule: pd.DataFrame) -> alt.LayerChart:
    """Both axes are square roots: the first blocks have room, and zero is on them."""
    end = int(rule["blocks"].max())
    ticks = [value for value in (0, 1, 2, 4, 7, 14, 23, 40, 70, 100) if value <= end]
    scale = alt.Scale(type="sqrt", domain=[0, end], nice=False)
    x = alt.X("blocks:Q").scale(scale)
    y = alt.Y("hit_blocks:Q").scale(scale)
    lines = ["ceiling", "with_drafter"]
    stairs = (
        style.labelled(alt.Chart(rule), "series")
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x.axis(title="prefix_cache.axis.blocks", values=ticks, format="d", grid=False),
            y.axis(title="prefix_cache.axis.hit_blocks", values=ticks[::2], format="d"),
            alt.Color("series:N")
            .scale(domain=lines, range=[style.ACCEPTED, style.NEUTRAL])
            .legend(style.legend(symbolType="stroke", symbolSize=300))
            .title(None),
        )
    )
    verdicts = ["on_stairs", "off_stairs"]
    marks = (
        style.labelled(alt.Chart(points), "verdict")
        .mark_point(filled=True, size=110, opacity=1, stroke="white", strokeWidth=1)
        .encode(
            x,
            y,
            alt.Fill("verdict:N")
            .scale(domain=verdicts, range=[style.MLA, style.REJECTED])
            .legend(None),
            alt.Shape("verdict:N").scale(domain=verdicts, range=["circle", "cross"]).legend(None),
            tooltip=[
                alt.Tooltip("source:N", title="prefix_cache.axis.source"),
                alt.Tooltip("verdict_text:N", title="prefix_cache.axis.verdict"),
                alt.Tooltip("num_tokens:Q", format=",", title="prefix_cache.axis.prompt_len"),
                alt.Tooltip("block:Q", format=",", title="prefix_cache.axis.block_tokens"),
                alt.Tooltip("hit_tokens:Q", format=",", title="prefix_cache.axis.published"),
                alt.Tooltip("rule_tokens:Q", format=",", title="prefix_cache.axis.rule_tokens"),
                alt.Tooltip("found:Q", format=",", title="prefix_cache.axis.found"),
            ],
        )
    )
    off = points[points["verdict"] == "off_stairs"]
    name = (
        alt.Chart(off)
        .transform_calculate(
            words="datum.source + ': ' + format(datum.first_len, ',') + ' → '"
            " + format(datum.num_tokens, ',')"
        )
        .mark_text(align="left", dx=11, dy=-2, fontSize=12)
        .encode(x, y, alt.Text("words:N"), tooltip=alt.value(None))
    )
    return alt.LayerChart(
        layer=[stairs, marks, name], height=_HEIGHT, title="prefix_cache.panel.published"
    )


def _sharing(table: pd.DataFrame) -> alt.LayerChart:
    rules = ["chunk_end", "replay", "junction"]
    words = style.labelled(alt.Chart(table), "rule")
    y = (
        alt.Y("rule:N")
        .sort(rules)
        .scale(paddingInner=0.3)
        .axis(labelExpr=style.label_expr(), title=None, ticks=False, labelLimit=130)
    )
    offset = alt.YOffset("shared:O").sort([1600, 1500])
    x = alt.X("hits:Q").scale(domain=[0, int(table["prompts"].max())], nice=False)
    bars = words.mark_bar().encode(
        x.axis(title="prefix_cache.axis.hits", values=[0, 16, 32, 48, 64], format="d"),
        y,
        offset,
        alt.Color("shared:O")
        .scale(domain=[1600, 1500], range=[style.ACCEPTED, style.INPUTS])
        .legend(alt.Legend(orient="top", format=",d"))
        .title("prefix_cache.axis.shared"),
        tooltip=[
            alt.Tooltip("rule_text:N", title="prefix_cache.axis.keep"),
            alt.Tooltip("shared:Q", format=",", title="prefix_cache.axis.shared"),
            alt.Tooltip("hits:Q", title="prefix_cache.axis.hits"),
        ],
    )
    texts = (
        alt.Chart(table)
        .mark_text(align="left", dx=4, fontSize=11)
        .encode(x, y, offset, alt.Text("hits:Q"), tooltip=alt.value(None))
    )
    return alt.LayerChart(layer=[bars, texts], height=260, title="prefix_cache.panel.sharing")
