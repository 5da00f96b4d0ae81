"""Figures of the page pool: pages by length, paging, storage, stale bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.flow import flow_chart

Tables = Mapping[str, pd.DataFrame]
Panels = dict[str, alt.Chart | alt.LayerChart]

_KINDS = alt.Scale(domain=["mla", "kda"], range=[style.MLA, style.KDA])


def _layer(*charts: alt.Chart, **options: Any) -> alt.LayerChart:
    return alt.LayerChart(layer=list(charts), **options)


def fig_page_pool(tables: Tables) -> Panels:
    """Tab 5 of the source text: pages against length, and the pool's three phases.

    Tables: ``by_length``, ``break_even``, ``you`` and ``phases`` of ``LengthStudy``.
    """
    order = ["initial", "allocated", "released"]
    phases = (
        style.labelled(alt.Chart(tables["phases"]), "kind")
        .mark_rect(cornerRadius=1)
        .transform_calculate(left="datum.page - 0.42", right="datum.page + 0.42")
        .encode(
            alt.X(
                "left:Q",
                scale=alt.Scale(domain=[-1, int(tables["phases"]["page"].max()) + 1], nice=False),
                axis=alt.Axis(title="paged_cache.axis.page", format="d", tickMinStep=1, grid=False),
            ),
            alt.X2("right:Q"),
            alt.Y(
                "phase:N",
                sort=order,
                scale=alt.Scale(padding=0.25),
                axis=alt.Axis(
                    labelExpr=style.label_expr(),
                    title=None,
                    ticks=False,
                    domain=False,
                    labelOverlap=False,
                ),
            ),
            alt.Color(
                "kind:N",
                scale=alt.Scale(
                    domain=["mla", "kda", "free"], range=[style.MLA, style.KDA, style.FREE]
                ),
                legend=style.legend(),
                title=None,
            ),
            tooltip=[
                alt.Tooltip("page:Q", title="paged_cache.axis.page"),
                alt.Tooltip("kind_text:N", title="paged_cache.axis.kind"),
            ],
        )
        .properties(height=280, title="paged_cache.panel.phases")
    )
    return {
        "request": _length_chart(tables, "request").properties(title="paged_cache.panel.request"),
        "layer": _length_chart(tables, "layer").properties(title="paged_cache.panel.layer"),
        "phases": phases,
    }


def _length_chart(tables: Tables, scope: str) -> alt.LayerChart:
    """Pages of both kinds against the length, both axes logarithmic and fixed."""
    x = alt.X("length:Q", scale=alt.Scale(type="log", base=2, domain=[128, 2**20], clamp=True))
    y = alt.Y("pages:Q", scale=alt.Scale(type="log", domain=[1, 65_536], clamp=True))
    x_axis = alt.Axis(
        title="paged_cache.axis.length",
        values=[4**power for power in range(4, 11)],
        labelExpr=style.COUNT_LABELS,
        grid=False,
    )
    y_axis = alt.Axis(
        title="paged_cache.axis.pages", values=[1, 10, 100, 1000, 10_000], format=",d"
    )
    tooltip = [
        alt.Tooltip("length:Q", format=",", title="paged_cache.axis.length"),
        alt.Tooltip("pages:Q", format=",", title="paged_cache.axis.pages"),
    ]
    lines = (
        alt.Chart(tables["by_length"][tables["by_length"]["scope"] == scope])
        .mark_line(strokeWidth=2.5)
        .encode(
            x.axis(x_axis),
            y.axis(y_axis),
            alt.Color("kind:N", scale=_KINDS, legend=style.legend(), title=None),
        )
    )
    chosen = (
        alt.Chart(tables["you"][tables["you"]["scope"] == scope])
        .mark_point(filled=True, size=90, opacity=1)
        .encode(x, y, alt.Color("kind:N", scale=_KINDS), tooltip=tooltip)
    )
    layers = [lines, chosen]
    if scope == "request":
        meeting = style.labelled(alt.Chart(tables["break_even"]), "measure")
        meeting = meeting.transform_filter("datum.measure == 'bytes'")
        layers += [
            meeting.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=style.NEUTRAL).encode(x),
            meeting.transform_calculate(words="datum.measure_text + ' ' + datum.text", low="1.6")
            .mark_text(align="left", dx=6, fontSize=12)
            .encode(x, alt.Y("low:Q", scale=alt.Scale(type="log")), alt.Text("words:N")),
        ]
    return _layer(*layers, height=280)


def fig_mla_paging(tables: Tables) -> Panels:
    """Tab 6 of the source text: rows fill pages; packing heads loses nothing.

    Tables: ``fill``, ``roundtrip`` and ``heads`` of ``PagingStudy``.
    """
    fill = alt.Chart(tables["fill"])
    x = alt.X(
        "page:O", axis=alt.Axis(title="paged_cache.axis.page", labelAngle=0, labelOverlap=True)
    )
    high = float(tables["fill"]["capacity"].max()) * 1.18
    bars = fill.mark_bar(color=style.MLA).encode(
        x,
        alt.Y(
            "tokens:Q",
            scale=alt.Scale(domain=[0, high], nice=False),
            axis=alt.Axis(title="paged_cache.axis.tokens"),
        ),
        tooltip=[
            alt.Tooltip("page:O", title="paged_cache.axis.page"),
            alt.Tooltip("tokens:Q", format=",", title="paged_cache.axis.tokens"),
        ],
    )
    capacity = (
        alt.Chart(tables["fill"].head(1))
        .mark_rule(strokeDash=[6, 4], strokeWidth=2, color=style.REJECTED)
        .encode(
            alt.Y("capacity:Q"),
            alt.Tooltip("capacity:Q", format=",", title="paged_cache.axis.capacity"),
        )
    )
    layers = [bars, capacity]
    named = tables["fill"] if len(tables["fill"]) <= 3 else tables["fill"].tail(1)
    layers.append(
        alt.Chart(named)
        .mark_text(dy=-8, fontSize=12)
        .encode(x, alt.Y("tokens:Q"), alt.Text("text:N"))
    )
    return {
        "fill": _layer(*layers, height=240, title="paged_cache.panel.fill"),
        "roundtrip": flow_chart(tables["roundtrip"]).properties(
            title="paged_cache.panel.roundtrip"
        ),
        "heads": _heads_chart(tables["heads"]),
    }


def _heads_chart(heads: pd.DataFrame) -> alt.LayerChart:
    """The stream of heads, cut by rank before and after."""
    last = int(heads["stop"].max())
    y = alt.Y(
        "side:N",
        sort=["from", "to"],
        scale=alt.Scale(padding=0.25),
        axis=alt.Axis(labelExpr=style.label_expr(), title=None, ticks=False, domain=False),
    )
    base = alt.Chart(heads)
    runs = base.mark_bar(
        color=style.KDA, opacity=0.75, stroke=style.GAP, strokeWidth=2, cornerRadius=3
    ).encode(
        alt.X(
            "first:Q",
            scale=alt.Scale(domain=[0, last], nice=False),
            axis=alt.Axis(title="paged_cache.axis.head", format="d", tickMinStep=1, grid=False),
        ),
        alt.X2("stop:Q"),
        y,
        tooltip=[
            alt.Tooltip("rank:Q", title="paged_cache.axis.rank"),
            alt.Tooltip("first:Q", title="paged_cache.axis.first_head"),
            alt.Tooltip("stop:Q", title="paged_cache.axis.stop_head"),
        ],
    )
    names = (
        base.transform_calculate(middle="(datum.first + datum.stop) / 2")
        .mark_text(color="#202124", fontWeight="bold")
        .encode(alt.X("middle:Q"), y, alt.Text("text:N"))
    )
    return _layer(runs, names, height=240, title="paged_cache.panel.heads")


def fig_kda_store(tables: Tables) -> Panels:
    """Tab 7 of the source text: a state goes into pages and comes back.

    Tables: ``pages``, ``flow_store``, ``flow_load`` and ``formats`` of ``StoreStudy``.
    """
    parts = ["state", "window", "padding"]
    base = style.labelled(alt.Chart(tables["pages"]), "part")
    pages = (
        base.mark_bar()
        .encode(
            alt.X(
                "first:Q",
                axis=style.bytes_axis(
                    "paged_cache.axis.page_bytes", high=tables["pages"]["stop"].max()
                ),
            ),
            alt.X2("stop:Q"),
            alt.Y(
                "page:O",
                axis=alt.Axis(
                    title="paged_cache.axis.page", labelOverlap=len(tables["pages"]) > 12
                ),
            ),
            alt.Color(
                "part:N",
                scale=alt.Scale(domain=parts, range=[style.KDA, style.INPUTS, style.FREE]),
                legend=style.legend(),
                title=None,
            ),
            tooltip=[
                alt.Tooltip("page:O", title="paged_cache.axis.page"),
                alt.Tooltip("part_text:N", title="paged_cache.axis.part"),
                alt.Tooltip("bytes:Q", format=",", title="paged_cache.axis.bytes"),
            ],
        )
        .properties(height=230, title="paged_cache.panel.pages")
    )
    cells = alt.Chart(tables["formats"])
    x = alt.X(
        "dtype:N",
        sort=None,
        axis=alt.Axis(labelExpr=style.label_expr(), title="paged_cache.axis.dtype", labelAngle=0),
    )
    formats = _layer(
        cells.mark_rect(cornerRadius=3, stroke=style.GAP, strokeWidth=2, opacity=0.85).encode(
            x,
            alt.Color(
                "verdict:N",
                scale=alt.Scale(domain=["pass", "fail"], range=[style.ACCEPTED, style.REJECTED]),
                legend=None,
            ),
            tooltip=[
                alt.Tooltip("different:Q", title="paged_cache.axis.different"),
                alt.Tooltip("pages:Q", title="paged_cache.axis.pages"),
                alt.Tooltip("bytes:Q", format=",", title="paged_cache.axis.bytes"),
            ],
        ),
        cells.mark_text(fontSize=14, fontWeight="bold", color="#202124").encode(
            x, alt.Text("different:Q")
        ),
        height=130,
        title="paged_cache.panel.formats",
    )
    return {
        "flow_store": flow_chart(tables["flow_store"]).properties(
            title="paged_cache.panel.flow_store"
        ),
        "flow_load": flow_chart(tables["flow_load"]).properties(
            title="paged_cache.panel.flow_load"
        ),
        "pages": pages,
        "formats": formats,
    }


def stale_pictures(tables: Tables) -> Panels:
    """What a page that changed kind shows its next owner, with and without scrubbing.

    Tables: ``rows`` and ``readers`` of ``StaleStudy``.
    """
    statuses = ["written", "clean", "stale"]
    rows = style.labelled(alt.Chart(tables["rows"]), "status")
    pools = alt.Y(
        "pool:N",
        sort=["scrubbed", "unscrubbed"],
        scale=alt.Scale(padding=0.25),
        axis=alt.Axis(
            labelExpr=style.label_expr(), title=None, ticks=False, domain=False, labelLimit=160
        ),
    )
    tooltip = [
        alt.Tooltip("row:Q", title="paged_cache.axis.row"),
        alt.Tooltip("status_text:N", title="paged_cache.axis.status"),
        alt.Tooltip("nan_values:Q", format=",", title="paged_cache.axis.nan_values"),
    ]
    last = int(tables["rows"]["row"].max())
    cells = rows.transform_calculate(left="datum.row - 0.42", right="datum.row + 0.42")
    content = _layer(
        cells.mark_bar(cornerRadius=1).encode(
            alt.X(
                "left:Q",
                scale=alt.Scale(domain=[-0.6, last + 0.6], nice=False),
                axis=alt.Axis(title="paged_cache.axis.row", format="d", tickMinStep=1, grid=False),
            ),
            alt.X2("right:Q"),
            pools,
            alt.Color(
                "status:N",
                scale=alt.Scale(domain=statuses, range=[style.MLA, style.FREE, style.REJECTED]),
                legend=style.legend(),
                title=None,
            ),
            tooltip=tooltip,
        ),
        rows.transform_filter("datum.nan_values > 0")
        .mark_point(shape="cross", filled=True, color="white", size=26, opacity=1)
        .encode(alt.X("row:Q"), pools, tooltip=tooltip),
        height=240,
        title="paged_cache.panel.stale_rows",
    )
    readers = style.labelled(style.labelled(alt.Chart(tables["readers"]), "direction"), "pool")
    share = readers.transform_calculate(share="datum.wrong_values / datum.read")
    y = alt.Y(
        "direction:N",
        sort=["state_to_rows", "rows_to_state"],
        scale=alt.Scale(padding=0.3),
        axis=alt.Axis(labelExpr=style.label_expr(), title=None, ticks=False, labelLimit=170),
    )
    offset = alt.YOffset("pool:N", sort=["scrubbed", "unscrubbed"])
    x = alt.X("share:Q", scale=alt.Scale(domain=[0, 1.6], nice=False))
    wrong = _layer(
        share.mark_bar().encode(
            x.axis(
                title="paged_cache.axis.wrong_share", format="%", values=[0, 0.25, 0.5, 0.75, 1]
            ),
            y,
            offset,
            alt.Color(
                "pool:N",
                scale=alt.Scale(
                    domain=["scrubbed", "unscrubbed"], range=[style.ACCEPTED, style.REJECTED]
                ),
                legend=style.legend(),
                title=None,
            ),
            tooltip=[
                alt.Tooltip("direction_text:N", title="paged_cache.axis.direction"),
                alt.Tooltip("pool_text:N", title="paged_cache.axis.scrubbing"),
                alt.Tooltip("stale_bytes:Q", format=",", title="paged_cache.axis.stale_bytes"),
                alt.Tooltip("nan_values:Q", format=",", title="paged_cache.axis.nan_values"),
                alt.Tooltip("wrong_values:Q", format=",", title="paged_cache.axis.wrong_values"),
                alt.Tooltip("read:Q", format=",", title="paged_cache.axis.read"),
            ],
        ),
        share.transform_calculate(
            words="format(datum.wrong_values, ',') + ' / ' + format(datum.read, ',')"
        )
        .mark_text(align="left", dx=4, fontSize=11)
        .encode(x, y, offset, alt.Text("words:N")),
        height=240,
        title="paged_cache.panel.stale_readers",
    )
    return {"stale_rows": content, "stale_readers": wrong}
