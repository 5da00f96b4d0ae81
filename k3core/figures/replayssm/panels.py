"""The source text's tab 4 in panels, and what a ring without a count gets wrong."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Panel = alt.LayerChart | alt.FacetChart

_HEIGHT = 280
_KINDS = alt.Scale(domain=["snapshots", "inputs"], range=[style.SNAPSHOT, style.INPUTS])
_ENDS = ("popped", "overwritten")
_ROUTES = ("batch", "stream", "conv_window", "oracle")
_SCHEMES = ("snapshots", "every_commit", "deferred")
_SCHEME_COLOURS = (style.SNAPSHOT, style.INPUTS, style.INPUTS)
_RINGS = ("source_before", "source_after", "copy_after")


def fig_replayssm(tables: Tables) -> dict[str, Panel]:
    """Both rings: order, overwriting, layout, exactness and bytes.

    Tables: those of ``SnapshotStudy``, ``RawInputStudy`` and ``FlushStudy`` together.
    """
    num_ops = len(tables["ops"])
    return {
        "snapshots": gantt(tables["stays"], num_ops, "snapshots"),
        "cursor_only": gantt(tables["cursor_stays"], num_ops, "cursor_only"),
        "pops": pops(tables["pops"]),
        "copies": copies(tables["copies"]),
        "timing": timing(tables["timing"]),
        "layout": layout(tables["layout"]),
        "replay": replay(tables["replay"]),
        "ring_bytes": ring_bytes(tables["ring_bytes"]),
        "writes": bars(tables["writes"], "bytes", "writes"),
        "recomputed": bars(tables["writes"], "recomputed", "recomputed"),
    }


def gantt(stays: pd.DataFrame, num_ops: int, panel: str) -> Panel:
    """Slots over operations, one bar per stay of a snapshot."""
    table = stays.assign(
        name="S" + stays["snapshot"].astype(str),
        shown=("S" + stays["snapshot"].astype(str)).where(stays["stop"] - stays["start"] > 1, ""),
        right=stays["stop"] - 0.06,
    )
    x_scale = alt.Scale(domain=[-0.2, num_ops + 1.2], nice=False)  # room for the last name
    x_axis = alt.Axis(title="replayssm.axis.operation", format="d", tickMinStep=1, grid=False)
    y = alt.Y("slot:O", axis=alt.Axis(title="replayssm.axis.slot", grid=False))
    base = style.labelled(alt.Chart(table), "end")
    tooltip = [
        alt.Tooltip("name:N", title="replayssm.axis.snapshot"),
        alt.Tooltip("slot:O", title="replayssm.axis.slot"),
        alt.Tooltip("start:Q", title="replayssm.axis.pushed"),
        alt.Tooltip("stop:Q", title="replayssm.axis.left"),
        alt.Tooltip("end_text:N", title="replayssm.axis.end"),
        alt.Tooltip("bytes:Q", format=",", title="replayssm.axis.toy_bytes"),
    ]
    stay_bars = base.mark_bar(color=style.SNAPSHOT, cornerRadius=3).encode(
        alt.X("start:Q", scale=x_scale, axis=x_axis),
        alt.X2("right:Q"),
        y,
        tooltip=tooltip,
    )
    names = base.mark_text(
        align="left", dx=4, fontWeight="bold", fontSize=11, color=style.INK
    ).encode(alt.X("start:Q", scale=x_scale), y, alt.Text("shown:N"))
    last_names = (
        alt.Chart(table[(table["shown"] == "") & (table["end"] == "held")])
        .mark_text(align="left", dx=3, fontWeight="bold", fontSize=11)
        .encode(alt.X("right:Q", scale=x_scale), y, alt.Text("name:N"))
    )
    ends = (
        base.transform_filter("datum.end != 'held'")
        .mark_point(size=70, strokeWidth=2.5, filled=False, opacity=1)
        .encode(
            alt.X("right:Q", scale=x_scale),
            y,
            alt.Shape(
                "end:N",
                scale=alt.Scale(domain=list(_ENDS), range=["circle", "cross"]),
                legend=style.legend(),
                title=None,
            ),
            alt.Color(
                "end:N",
                scale=alt.Scale(domain=list(_ENDS), range=[style.ACCEPTED, style.REJECTED]),
                legend=style.legend(),
                title=None,
            ),
        )
    )
    layers = (stay_bars, names, last_names, ends)
    return alt.layer(*layers, title=f"replayssm.panel.{panel}", height=_HEIGHT)


def pops(table: pd.DataFrame) -> Panel:
    """The oldest snapshot at each pop, and what the ring without a count gave."""
    order = table.assign(number=range(1, len(table) + 1))
    order["given"] = order["cursor_only"].fillna(-1.0)
    rings = pd.concat(
        [
            order.assign(ring="with_count", snapshot=order["oldest"]),
            order.assign(ring="without_count", snapshot=order["given"]),
        ],
        ignore_index=True,
    )
    x = alt.X(
        "number:Q",
        axis=alt.Axis(title="replayssm.axis.pop", format="d", tickMinStep=1, grid=False),
        scale=alt.Scale(domain=[0.5, len(table) + 0.5], nice=False),
    )
    high = int(rings["snapshot"].max())
    names = "datum.value < 0 ? labels['empty_slot'] : 'S' + datum.value"
    y_axis = alt.Axis(
        title="replayssm.axis.given",
        labelExpr=names,
        values=[-1, *range(0, high + 1, 1 if high < 8 else 2)],
        labelOverlap=False,
    )
    y = alt.Y("snapshot:Q", scale=alt.Scale(domain=[-1.6, high + 0.6], nice=False), axis=y_axis)
    gaps = (
        alt.Chart(order[order["verdict"] != "right"])
        .mark_rule(color=style.REJECTED, strokeDash=[3, 3])
        .encode(x, alt.Y("oldest:Q"), alt.Y2("given:Q"))
    )
    domain, words = ["with_count", "without_count"], style.legend()
    points = (
        style.labelled(style.labelled(alt.Chart(rings), "ring"), "verdict")
        .mark_point(size=110, strokeWidth=2.5, filled=False, opacity=1)
        .encode(
            x,
            y,
            alt.Shape(
                "ring:N",
                scale=alt.Scale(domain=domain, range=["circle", "cross"]),
                legend=words,
                title=None,
            ),
            alt.Color(
                "ring:N",
                scale=alt.Scale(domain=domain, range=[style.ACCEPTED, style.REJECTED]),
                legend=words,
                title=None,
            ),
            tooltip=[
                alt.Tooltip("op:Q", title="replayssm.axis.operation"),
                alt.Tooltip("ring_text:N", title="replayssm.axis.ring"),
                alt.Tooltip("oldest:Q", title="replayssm.axis.oldest"),
                alt.Tooltip("cursor_only:Q", title="replayssm.axis.cursor_given"),
                alt.Tooltip("verdict_text:N", title="replayssm.axis.verdict"),
            ],
        )
    )
    return alt.layer(gaps, points, title="replayssm.panel.pops", height=_HEIGHT)


def copies(table: pd.DataFrame) -> Panel:
    """What a ring and its copy hold, oldest first."""
    named = table.assign(name="S" + table["snapshot"].astype(str))
    y = alt.Y(
        "ring:N",
        sort=list(_RINGS),
        scale=alt.Scale(domain=list(_RINGS)),
        axis=alt.Axis(
            labelExpr=style.label_expr(), title=None, labelLimit=170, ticks=False, domain=False
        ),
    )
    x = alt.X("position:O", axis=alt.Axis(title="replayssm.axis.position", labelAngle=0))
    base = style.labelled(alt.Chart(named), "ring")
    cells = base.mark_rect(color=style.SNAPSHOT, cornerRadius=3, stroke=style.GAP).encode(
        x,
        y,
        tooltip=[
            alt.Tooltip("ring_text:N", title="replayssm.axis.ring"),
            alt.Tooltip("name:N", title="replayssm.axis.snapshot"),
        ],
    )
    words = base.mark_text(fontWeight="bold", color=style.INK).encode(x, y, alt.Text("name:N"))
    return alt.layer(cells, words, title="replayssm.panel.copies", height=_HEIGHT)


def timing(table: pd.DataFrame) -> Panel:
    """Inputs in the window after each push; a cross where the oldest was overwritten."""
    x = alt.X("push:O", axis=alt.Axis(title="replayssm.axis.push", labelAngle=0, labelOverlap=True))
    y = alt.Y(
        "held:Q",
        scale=alt.Scale(domain=[0, 9]),
        axis=alt.Axis(
            title="replayssm.axis.inputs_held",
            values=list(range(0, 9, 2)),
            format="d",
            labelOverlap=False,
        ),
    )
    faded = table.assign(alpha=(table["status"] == "filling").map({True: 0.45, False: 1.0}))
    base = style.labelled(alt.Chart(faded), "status")
    held = base.mark_bar(color=style.INPUTS).encode(
        x,
        y,
        alt.Opacity("alpha:Q", scale=None, legend=None),
        tooltip=[
            alt.Tooltip("push:O", title="replayssm.axis.push"),
            alt.Tooltip("held:Q", title="replayssm.axis.inputs_held"),
            alt.Tooltip("lost:Q", title="replayssm.axis.lost"),
            alt.Tooltip("status_text:N", title="replayssm.axis.status"),
            alt.Tooltip("bytes:Q", format=",", title="replayssm.axis.toy_bytes"),
        ],
    )
    lost = (
        base.transform_filter("datum.status == 'overwriting'")
        .mark_point(size=55, strokeWidth=2, filled=False, opacity=1)
        .encode(
            x,
            alt.Y("held:Q"),
            alt.YOffset(value=-10),
            alt.Shape(
                "status:N",
                scale=alt.Scale(domain=["overwriting"], range=["cross"]),
                legend=style.legend(),
                title=None,
            ),
            alt.Color(
                "status:N",
                scale=alt.Scale(domain=["overwriting"], range=[style.REJECTED]),
                legend=style.legend(),
                title=None,
            ),
        )
    )
    return alt.layer(held, lost, title="replayssm.panel.timing", height=_HEIGHT)


def layout(table: pd.DataFrame) -> Panel:
    """``window().q`` of tagged inputs: rows are drafts, columns head times channel."""
    x = alt.X("column:O", axis=alt.Axis(title="replayssm.axis.column", labelAngle=0))
    y = alt.Y("draft:O", axis=alt.Axis(title="replayssm.axis.draft"))
    low, high = int(table["value"].min()), int(table["value"].max())
    strength = (table["value"] - low + 1) / (high - low + 1)
    base = alt.Chart(table.assign(strength=0.2 + 0.8 * strength))
    cells = base.mark_rect(color=style.INPUTS).encode(
        x,
        y,
        alt.Opacity("strength:Q", scale=None),
        tooltip=[
            alt.Tooltip("draft:O", title="replayssm.axis.draft"),
            alt.Tooltip("head:O", title="replayssm.axis.head"),
            alt.Tooltip("channel:O", title="replayssm.axis.channel"),
            alt.Tooltip("value:Q", title="replayssm.axis.value"),
        ],
    )
    words = [
        base.transform_filter(f"{test}(datum.strength > 0.6)")
        .mark_text(fontWeight="bold", color=ink)
        .encode(x, y, alt.Text("value:Q", format="d"))
        for test, ink in (("", style.INK), ("!", alt.Undefined))
    ]
    return alt.layer(cells, *words, title="replayssm.panel.layout", height=_HEIGHT)


def replay(table: pd.DataFrame) -> Panel:
    """Routes and accepted counts: elements that differ, for the oracle the largest difference."""
    words = table.assign(
        text=[
            f"{error:.0e}".replace("e-0", "e-") if route == "oracle" and error else str(count)
            for route, error, count in zip(
                table["route"], table["error"], table["elements_different"], strict=True
            )
        ],
        verdict=[
            "within" if route == "oracle" else "pass" if count == 0 else "fail"
            for route, count in zip(table["route"], table["elements_different"], strict=True)
        ],
    )
    x = alt.X("accepted:O", axis=alt.Axis(title="replayssm.axis.accepted", labelAngle=0))
    y = alt.Y(
        "route:N",
        sort=list(_ROUTES),
        axis=alt.Axis(
            labelExpr=style.label_expr(), title=None, labelLimit=190, ticks=False, domain=False
        ),
    )
    base = style.labelled(alt.Chart(words), "route")
    cells = base.mark_rect(stroke=style.GAP, opacity=0.35, cornerRadius=3).encode(
        x,
        y,
        alt.Color(
            "verdict:N",
            scale=alt.Scale(
                domain=["pass", "fail", "within"],
                range=[style.ACCEPTED, style.REJECTED, style.FREE],
            ),
            legend=None,
        ),
        tooltip=[
            alt.Tooltip("route_text:N", title="replayssm.axis.route"),
            alt.Tooltip("accepted:O", title="replayssm.axis.accepted"),
            alt.Tooltip("elements_different:Q", title="replayssm.axis.elements_different"),
            alt.Tooltip("error:Q", format=".2e", title="replayssm.axis.error"),
        ],
    )
    numbers = base.mark_text(fontWeight="bold", fontSize=11).encode(x, y, alt.Text("text:N"))
    return alt.layer(cells, numbers, title="replayssm.panel.replay", height=_HEIGHT)


def ring_bytes(table: pd.DataFrame) -> Panel:
    """Bytes that real rings hold against the draft length, with the area between them."""
    wide = table.pivot_table(index="draft_len", columns="kind", values="bytes").reset_index()
    x = alt.X(
        "draft_len:Q",
        axis=alt.Axis(title="replayssm.axis.draft_len", format="d", values=[1, 2, 4, 8, 16]),
    )
    y_axis = style.bytes_axis("replayssm.axis.toy_bytes", high=float(table["bytes"].max()))
    area = (
        alt.Chart(wide)
        .mark_area(color=style.NEUTRAL, opacity=0.15)
        .encode(x, alt.Y("inputs:Q", axis=y_axis), alt.Y2("snapshots:Q"))
    )
    lines = (
        style.labelled(alt.Chart(table), "kind")
        .mark_line(point=alt.OverlayMarkDef(size=55, opacity=1))
        .encode(
            x,
            alt.Y("bytes:Q", axis=y_axis),
            alt.Color("kind:N", scale=_KINDS, legend=style.legend(), title=None),
            tooltip=[
                alt.Tooltip("kind_text:N", title="replayssm.axis.kind"),
                alt.Tooltip("draft_len:Q", title="replayssm.axis.draft_len"),
                alt.Tooltip("bytes:Q", format=",", title="replayssm.axis.toy_bytes"),
            ],
        )
    )
    return alt.layer(area, lines, title="replayssm.panel.ring_bytes", height=_HEIGHT)


def bars(table: pd.DataFrame, column: str, panel: str) -> Panel:
    """One bar per way of rolling back: state bytes written, or tokens recomputed."""
    is_bytes = column == "bytes"
    axis = (
        style.bytes_axis("replayssm.axis.state_bytes", high=float(table[column].max()))
        if is_bytes
        else alt.Axis(title="replayssm.axis.recomputed", format="d", tickMinStep=1)
    )
    y = alt.Y(
        "scheme:N",
        sort=list(_SCHEMES),
        axis=alt.Axis(labelExpr=style.label_expr(), title=None, labelLimit=150, ticks=False),
    )
    base = style.labelled(alt.Chart(table), "scheme")
    domain = [0.0, 1.12 * max(float(table[column].max()), 1.0)]
    x = alt.X(f"{column}:Q", scale=alt.Scale(domain=domain, nice=False), axis=axis)
    count = alt.Text("writes:Q") if is_bytes else alt.Text("recomputed:Q")
    shapes = base.mark_bar().encode(
        x,
        y,
        alt.Color(
            "scheme:N",
            scale=alt.Scale(domain=list(_SCHEMES), range=list(_SCHEME_COLOURS)),
            legend=None,
        ),
        tooltip=[
            alt.Tooltip("scheme_text:N", title="replayssm.axis.scheme"),
            alt.Tooltip("writes:Q", title="replayssm.axis.writes"),
            alt.Tooltip("bytes:Q", format=",", title="replayssm.axis.state_bytes"),
            alt.Tooltip("recomputed:Q", title="replayssm.axis.recomputed"),
        ],
    )
    numbers = base.mark_text(align="left", dx=4, fontWeight="bold").encode(x, y, count)
    return alt.layer(shapes, numbers, title=f"replayssm.panel.{panel}", height=_HEIGHT - 70)
