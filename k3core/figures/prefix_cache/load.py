"""Figures of whole workloads: retention policies, and a working set that does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

_POLICIES = ["chunk_end", "replay", "interval", "junction", "capped", "dense"]
_POOL_COLOURS = [style.REJECTED, style.KDA, style.ACCEPTED]
_POOL_DASHES = [[1, 0], [6, 3], [2, 2]]
_HEIGHT = 330


def policy_pictures(tables: Tables) -> Panels:
    """Hit rate against the weight of the checkpoints, and pages by kind, for each workload.

    Tables: ``policies`` of ``PolicyStudy``.
    """
    table = tables["policies"]
    panels: Panels = {}
    for workload in dict.fromkeys(table["workload"]):
        part = table[table["workload"] == workload].reset_index(drop=True)
        panels[workload] = _trade(part, f"prefix_cache.panel.{workload}")
        panels[f"{workload}_pages"] = _pages(part, f"prefix_cache.panel.{workload}_pages")
    return panels


def _trade(part: pd.DataFrame, title: str) -> alt.Chart:
    high = float(part["checkpoint_bytes"].max())
    base = style.labelled(alt.Chart(part), "policy")
    x = alt.X("checkpoint_bytes:Q").scale(domain=[0, max(high * 1.25, 1)], nice=False)
    y = alt.Y("hit_rate:Q").scale(domain=[0, 1], nice=False)
    points = base.mark_point(filled=True, size=110, opacity=1)
    points = points.encode(
        x.axis(style.bytes_axis("prefix_cache.axis.checkpoint_bytes", high=high)),
        y.axis(title="prefix_cache.axis.hit_rate", format=".0%", values=[0, 0.25, 0.5, 0.75, 1]),
        alt.Color("policy:N")
        .scale(
            domain=_POLICIES,
            range=[
                style.REJECTED,
                style.NEUTRAL,
                style.INPUTS,
                style.ACCEPTED,
                style.SNAPSHOT,
                style.KDA,
            ],
        )
        .legend(style.legend())
        .title(None),
        alt.Shape("policy:N")
        .scale(
            domain=_POLICIES,
            range=["cross", "circle", "triangle-up", "square", "triangle-down", "diamond"],
        )
        .legend(style.legend())
        .title(None),
        tooltip=[
            alt.Tooltip("policy_text:N", title="prefix_cache.axis.keep"),
            alt.Tooltip("hit_rate:Q", format=".1%", title="prefix_cache.axis.hit_rate"),
            alt.Tooltip("reused_tokens:Q", format=",", title="prefix_cache.axis.reused"),
            alt.Tooltip(
                "checkpoint_bytes:Q", format=",", title="prefix_cache.axis.checkpoint_bytes"
            ),
            alt.Tooltip("refused:Q", title="prefix_cache.axis.refused"),
        ],
    )
    return points.properties(height=_HEIGHT, title=title)


def _pages(part: pd.DataFrame, title: str) -> alt.Chart:
    table = part.melt(["policy"], ["mla", "kda"], var_name="kind", value_name="pages")
    return (
        style.labelled(style.labelled(alt.Chart(table), "policy"), "kind")
        .mark_bar()
        .encode(
            alt.X("pages:Q")
            .scale(nice=5)
            .axis(title="prefix_cache.axis.peak_pages", format=",d", tickCount=5),
            alt.Y("policy:N")
            .sort(_POLICIES)
            .axis(labelExpr=style.label_expr(), title=None, ticks=False, labelLimit=130),
            alt.Color("kind:N")
            .scale(domain=["mla", "kda"], range=[style.MLA, style.KDA])
            .legend(style.legend())
            .title(None),
            alt.Order("kind:N").sort("descending"),
            tooltip=[
                alt.Tooltip("policy_text:N", title="prefix_cache.axis.keep"),
                alt.Tooltip("kind_text:N", title="prefix_cache.axis.kind"),
                alt.Tooltip("pages:Q", format=",", title="prefix_cache.axis.peak_pages"),
            ],
        )
        .properties(height=_HEIGHT, title=title)
    )


def cliff_pictures(tables: Tables) -> Panels:
    """Tokens reused after the first turn: against the interval, and against conversations alive.

    Tables: ``interval`` and ``alive`` of ``CliffStudy``.
    """
    interval, alive = tables["interval"], tables["alive"]
    first, last = int(interval["interval"].min()), int(interval["interval"].max())
    ticks = [first * 2**power for power in range(6) if first * 2**power <= last]
    x_interval = (
        alt.X("interval:Q")
        .scale(type="log", base=2, domain=[first, last], nice=False)
        .axis(title="prefix_cache.axis.interval", values=ticks, format=",d", grid=False)
    )
    most = int(alive["alive"].max())
    x_alive = (
        alt.X("alive:Q")
        .scale(domain=[0, most], nice=False)
        .axis(title="prefix_cache.axis.alive", format="d", tickMinStep=1, grid=False)
    )
    return {
        "interval": _lines(interval, x_interval, "prefix_cache.panel.interval", "interval"),
        "alive": _lines(alive, x_alive, "prefix_cache.panel.alive", "alive"),
    }


def _lines(table: pd.DataFrame, x: alt.X, title: str, what: str) -> alt.LayerChart:
    pools = sorted(int(pages) for pages in set(table["pages"]))
    y = alt.Y("share:Q").scale(domain=[0, 1], nice=False)
    colour = alt.Color("pages:O").scale(domain=pools, range=_POOL_COLOURS)
    base = alt.Chart(table)
    lines = base.mark_line(strokeWidth=2.5).encode(
        x,
        y.axis(title="prefix_cache.axis.later_share", format=".0%"),
        colour.legend(
            alt.Legend(orient="top", format=",d", symbolType="stroke", symbolSize=300)
        ).title("prefix_cache.axis.pool"),
        alt.StrokeDash("pages:O").scale(domain=pools, range=_POOL_DASHES).legend(None),
    )
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        x,
        y,
        colour,
        tooltip=[
            alt.Tooltip("pages:Q", format=",", title="prefix_cache.axis.pool"),
            alt.Tooltip(f"{what}:Q", format=",", title=f"prefix_cache.axis.{what}"),
            alt.Tooltip("share:Q", format=".1%", title="prefix_cache.axis.later_share"),
            alt.Tooltip("refused:Q", title="prefix_cache.axis.refused"),
        ],
    )
    return alt.LayerChart(layer=[lines, points], height=340, title=title)
