"""The main picture of the page pool: every page, every step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]

_MAIN_HEIGHT = 430
_PLOT_HEIGHT = 340  # what legend and axis leave of it
_SMALLEST_TEXT = 8
_LARGEST_TEXT = 12
_KINDS = alt.Scale(domain=["mla", "kda"], range=[style.MLA, style.KDA])
_PLACES = alt.Scale(domain=["owned", "cached"], range=[1.0, style.PALE])
_CROSS = "M-0.7,-0.7L0.7,0.7M-0.7,0.7L0.7,-0.7"
_MARKS = ("evicted", "retyped", "leaked")


def main_picture(tables: Tables) -> alt.LayerChart:
    """Pages x steps: one bar per stay of a page, solid while owned, pale while cached.

    Tables: ``stays``, ``marks`` and ``pool`` of ``PoolRun``; ``playhead`` of ``RunView``.
    """
    num_pages = int(tables["pool"]["pages"].iloc[0])
    num_steps = int(tables["pool"]["steps"].iloc[0])
    row_height = _PLOT_HEIGHT / (num_pages + 0.4)
    last_step = 8 * math.ceil(num_steps / 8)
    x_scale = alt.Scale(domain=[0, last_step], nice=False)
    y_scale = alt.Scale(domain=[-0.7, num_pages - 0.3], reverse=True, nice=False)
    x_axis = alt.Axis(title="paged_cache.axis.step", format="d", tickMinStep=1, grid=False)
    y_axis = alt.Axis(title="paged_cache.axis.page", format="d", tickMinStep=1, grid=False)
    tooltip = [
        alt.Tooltip("page:Q", title="paged_cache.axis.page"),
        alt.Tooltip("kind_text:N", title="paged_cache.axis.kind"),
        alt.Tooltip("place_text:N", title="paged_cache.axis.place"),
        alt.Tooltip("owner:N", title="paged_cache.axis.owner"),
        alt.Tooltip("holds:N", title="paged_cache.axis.holds"),
        alt.Tooltip("bytes:Q", format=",", title="paged_cache.axis.bytes"),
        alt.Tooltip("start:Q", title="paged_cache.axis.start"),
        alt.Tooltip("stop:Q", title="paged_cache.axis.stop"),
    ]
    stays = style.labelled(style.labelled(alt.Chart(tables["stays"]), "kind"), "place")
    bars = (
        stays.transform_calculate(top="datum.page - 0.42", bottom="datum.page + 0.42")
        .mark_rect()
        .encode(
            alt.X("start:Q", scale=x_scale, axis=x_axis),
            alt.X2("stop:Q"),
            alt.Y("top:Q", scale=y_scale, axis=y_axis),
            alt.Y2("bottom:Q"),
            alt.Color("kind:N", scale=_KINDS, legend=style.legend(), title=None),
            alt.Opacity("place:N", scale=_PLACES, legend=None),
            tooltip=tooltip,
        )
    )
    owners = tables["owners"]
    owners = owners.assign(
        size=(owners["rows"] * row_height * 0.95).clip(upper=_LARGEST_TEXT)
    ).query(f"size >= {_SMALLEST_TEXT}")
    layers = [bars]
    layers += [
        alt.Chart(owners[owners["kind"] == kind])
        .mark_text(align="left", dx=7, fontWeight="bold", color=ink)
        .encode(
            alt.X("start:Q", scale=x_scale),
            alt.Y("page:Q", scale=y_scale),
            alt.Text("owner:N"),
            alt.Size("size:Q", scale=None, legend=None),
        )
        for kind, ink in (("mla", "#FFFFFF"), ("kda", "#202124"))
    ]
    layers += [*_mark_layers(tables["marks"], x_scale, y_scale, row_height)]
    head = (
        alt.Chart(tables["playhead"])
        .mark_rule(strokeWidth=3, color=style.NEUTRAL)
        .encode(
            alt.X("step:Q", scale=x_scale),
            alt.Tooltip("shown:Q", title="paged_cache.axis.playhead"),
        )
    )
    return alt.LayerChart(layer=[*layers, head], height=_MAIN_HEIGHT)


def _mark_layers(
    marks: pd.DataFrame, x_scale: alt.Scale, y_scale: alt.Scale, row_height: float
) -> list[alt.Chart]:
    """Crosses where a cached page is evicted, rings where a page changes kind."""
    size = min(max(row_height, 4.0), 9.0) ** 2
    shape = alt.Shape(
        "mark:N",
        scale=alt.Scale(domain=list(_MARKS), range=[_CROSS, "circle", "triangle-up"]),
        legend=None,
    )
    colour = alt.Stroke(
        "mark:N",
        scale=alt.Scale(
            domain=list(_MARKS), range=[style.REJECTED, style.SNAPSHOT, style.REJECTED]
        ),
        legend=None,
    )
    tooltip = [
        alt.Tooltip("mark_text:N", title="paged_cache.axis.mark"),
        alt.Tooltip("page:Q", title="paged_cache.axis.page"),
        alt.Tooltip("step:Q", title="paged_cache.axis.step"),
        alt.Tooltip("stale_bytes:Q", format=",", title="paged_cache.axis.stale_bytes"),
        alt.Tooltip("nan_values:Q", format=",", title="paged_cache.axis.nan_values"),
    ]
    base = style.labelled(alt.Chart(marks), "mark")
    points = base.mark_point(filled=False, strokeWidth=1.6, size=size, opacity=1).encode(
        alt.X("step:Q", scale=x_scale),
        alt.Y("page:Q", scale=y_scale),
        shape,
        colour,
        tooltip=tooltip,
    )
    badges = (
        base.transform_filter("datum.nan_values > 0")
        .transform_calculate(badge="'NaN'")
        .mark_text(
            align="left",
            dx=19,
            fontSize=max(min(row_height, 10), 7),
            fontWeight="bold",
            color="#FFFFFF",
        )
        .encode(
            alt.X("step:Q", scale=x_scale),
            alt.Y("page:Q", scale=y_scale),
            alt.Text("badge:N"),
            tooltip=tooltip,
        )
    )
    return [points, badges]
