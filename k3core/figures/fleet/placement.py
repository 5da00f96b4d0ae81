"""The ring unrolled, the sessions on it, and who moves when a cluster leaves."""

from __future__ import annotations

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.fleet.common import (
    Panels,
    Tables,
    cluster_axis,
    event_rules,
    layer,
    seconds_axis,
    seconds_ends,
)

_POSITION_LABELS = "datum.value == 0 ? '0' : datum.value == 1 ? '2⁶⁴' : ''"


def _position(axis: alt.Axis | None = None) -> alt.X:
    return (
        alt.X("start:Q")
        .scale(domain=[0, 1], nice=False)
        .axis(
            axis
            or alt.Axis(
                title="fleet.axis.position",
                values=[0, 0.25, 0.5, 0.75, 1],
                labelExpr=_POSITION_LABELS,
                grid=False,
            )
        )
    )


def fig_fleet_hash_ring(tables: Tables) -> Panels:
    """Tab 11 of the source text: the ring, and 600 sessions on it.

    Tables: ``arcs``, ``shares``, ``imbalance``, ``sessions`` of ``RingStudy``.
    """
    rows = sorted(set(tables["arcs"]["vnodes"]))
    y = alt.Y("vnodes:O").sort(rows).axis(title="fleet.axis.vnodes", ticks=False, domain=False)
    whole = alt.Chart(pd.DataFrame({"vnodes": rows, "start": 0.0, "end": 1.0}))
    ring = layer(
        whole.mark_bar(color=style.FREE, size=26).encode(_position(), alt.X2("end:Q"), y),
        alt.Chart(tables["arcs"])
        .mark_bar(size=26, stroke=style.NEUTRAL, strokeWidth=0.4)
        .encode(
            _position(),
            alt.X2("end:Q"),
            y,
            alt.Color("role:N")
            .scale(
                domain=["largest", "smallest", "other"],
                range=[style.REJECTED, style.NEUTRAL, style.FREE],
            )
            .legend(style.legend(values=["largest", "smallest"], symbolStrokeWidth=0))
            .title(None),
            tooltip=[
                alt.Tooltip("cluster:N", title="fleet.axis.cluster"),
                alt.Tooltip("relative:Q", format=".2f", title="fleet.axis.relative"),
                alt.Tooltip("vnodes:O", title="fleet.axis.vnodes"),
            ],
        ),
    ).properties(height=70 + 44 * len(rows), title="fleet.panel.ring")

    relative = alt.X("relative:Q").scale(zero=True).axis(title="fleet.axis.relative")
    shares_base = alt.Chart(tables["shares"])
    bands = tables["shares"].drop_duplicates("vnodes")
    shares = layer(
        alt.Chart(bands)
        .mark_bar(color=style.NEUTRAL, opacity=style.PALE, size=22)
        .encode(alt.X("low:Q").axis(title="fleet.axis.relative"), alt.X2("high:Q"), y),
        _rule_at(1.0, "relative"),
        shares_base.mark_tick(color=style.REJECTED, thickness=2, size=20, opacity=0.9).encode(
            relative,
            y,
            tooltip=[
                alt.Tooltip("cluster:N", title="fleet.axis.cluster"),
                alt.Tooltip("relative:Q", format=".2f", title="fleet.axis.relative"),
                alt.Tooltip("low:Q", format=".2f", title="fleet.axis.band_low"),
                alt.Tooltip("high:Q", format=".2f", title="fleet.axis.band_high"),
            ],
        ),
    ).properties(height=70 + 44 * len(rows), title="fleet.panel.shares")

    imbalance_base = alt.Chart(tables["imbalance"])
    vnodes = (
        alt.X("vnodes:Q")
        .scale(type="log", base=2)
        .axis(title="fleet.axis.vnodes", values=rows, format="d")
    )
    peak_axis = alt.Axis(title="fleet.axis.peak_share")
    imbalance = layer(
        imbalance_base.mark_area(color=style.NEUTRAL, opacity=style.PALE).encode(
            vnodes, alt.Y("low:Q").axis(peak_axis), alt.Y2("high:Q")
        ),
        imbalance_base.mark_line(color=style.NEUTRAL, strokeDash=[5, 4]).encode(
            vnodes, alt.Y("mean:Q").scale(zero=False)
        ),
        imbalance_base.mark_point(filled=True, size=80, color=style.REJECTED, opacity=1).encode(
            vnodes,
            alt.Y("peak:Q").scale(zero=False).axis(peak_axis),
            tooltip=[
                alt.Tooltip("vnodes:Q", title="fleet.axis.vnodes"),
                alt.Tooltip("peak:Q", format=".3f", title="fleet.axis.peak_share"),
                alt.Tooltip("mean:Q", format=".3f", title="fleet.axis.band_mean"),
                alt.Tooltip("low:Q", format=".3f", title="fleet.axis.band_low"),
                alt.Tooltip("high:Q", format=".3f", title="fleet.axis.band_high"),
            ],
        ),
    ).properties(height=280, title="fleet.panel.imbalance")
    return {
        "ring": ring,
        "sessions": _sessions(tables["sessions"]),
        "shares": shares,
        "imbalance": imbalance,
    }


def _sessions(table: pd.DataFrame) -> alt.LayerChart:
    base = alt.Chart(table)
    x = alt.X("cluster:N").sort(list(table["cluster"])).axis(cluster_axis())
    y = alt.Y("num_sessions:Q").axis(title="fleet.axis.num_sessions", format="d")
    layers = [
        base.mark_bar(color=style.NEUTRAL).encode(
            x,
            y,
            tooltip=[
                alt.Tooltip("cluster:N", title="fleet.axis.cluster"),
                alt.Tooltip("num_sessions:Q", title="fleet.axis.num_sessions"),
                alt.Tooltip("uniform:Q", format=".1f", title="fleet.axis.uniform"),
                alt.Tooltip("share:Q", format=".2%", title="fleet.axis.ring_share"),
            ],
        ),
        base.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=style.REJECTED).encode(
            alt.Y("uniform:Q", aggregate="mean")
        ),
    ]
    if len(table) <= 16:
        layers.append(base.mark_text(dy=-7).encode(x, y, alt.Text("num_sessions:Q")))
    return layer(*layers).properties(height=290, title="fleet.panel.sessions")


def _rule_at(value: float, column: str) -> alt.Chart:
    return (
        alt.Chart(pd.DataFrame({column: [value]}))
        .mark_rule(strokeDash=[5, 4], color=style.NEUTRAL, strokeWidth=1.5)
        .encode(alt.X(f"{column}:Q"))
    )


def fig_fleet_minimal_perturbation(tables: Tables) -> Panels:
    """Tab 12 of the source text: what moves when one cluster leaves.

    Tables: ``moved``, ``after``, ``share``, ``arcs``, ``timeline``, ``calm``, ``marks`` of
    ``FailoverStudy``.
    """
    moved_base = style.labelled(alt.Chart(tables["moved"]), "what")
    what = (
        alt.Y("what:N")
        .sort(["stays", "moved", "collateral"])
        .axis(title=None, labelExpr=style.label_expr(), labelLimit=150)
    )
    room = 1.3 * float(tables["moved"]["num_sessions"].sum())  # for the number behind a bar
    count = (
        alt.X("num_sessions:Q")
        .scale(domain=[0, room], nice=False)
        .axis(title="fleet.axis.num_sessions", format="d", tickCount=4)
    )
    moved = layer(
        moved_base.mark_bar().encode(
            count,
            what,
            alt.Color("what:N")
            .scale(
                domain=["stays", "moved", "collateral"],
                range=[style.ACCEPTED, style.REJECTED, style.REJECTED],
            )
            .legend(None),
            tooltip=[
                alt.Tooltip("what_text:N", title="fleet.axis.what"),
                alt.Tooltip("num_sessions:Q", title="fleet.axis.num_sessions"),
            ],
        ),
        moved_base.mark_text(align="left", dx=5, fontWeight="bold").encode(
            count, what, alt.Text("num_sessions:Q")
        ),
    ).properties(height=260, title="fleet.panel.moved")
    return {
        "moved": moved,
        "share": _moved_share(tables),
        "after": _after(tables["after"]),
        "reuse_through_failure": _timeline(tables, "reuse"),
        "p95_through_failure": _timeline(tables, "p95_s"),
    }


def _after(table: pd.DataFrame) -> alt.LayerChart:
    base = style.labelled(alt.Chart(table), "part")
    order = list(dict.fromkeys(table["cluster"]))
    x = alt.X("cluster:N").sort(order).axis(cluster_axis())
    y = alt.Y("num_sessions:Q").axis(title="fleet.axis.num_sessions", format="d")
    tooltip = [
        alt.Tooltip("cluster:N", title="fleet.axis.cluster"),
        alt.Tooltip("part_text:N", title="fleet.axis.what"),
        alt.Tooltip("num_sessions:Q", title="fleet.axis.num_sessions"),
    ]
    color = (
        alt.Color("part:N")
        .scale(domain=["kept", "inherited"], range=[style.NEUTRAL, style.REJECTED])
        .legend(style.legend())
        .title(None)
    )
    return layer(
        base.transform_filter("datum.part != 'gone'")
        .mark_bar()
        .encode(x, y, color, alt.Order("part:N", sort="descending"), tooltip=tooltip),
        base.transform_filter("datum.part == 'gone' && datum.num_sessions > 0")
        .mark_bar(filled=False, stroke=style.REJECTED, strokeDash=[4, 3], strokeWidth=1.5)
        .encode(x, y, tooltip=tooltip),
        base.transform_filter("datum.part == 'gone' && datum.num_sessions > 0")
        .mark_text(dy=-8, fontWeight="bold")
        .encode(x, y, alt.TextValue("0")),
    ).properties(height=260, title="fleet.panel.after")


def _moved_share(tables: Tables) -> alt.LayerChart:
    """The removed cluster's arcs on the unrolled ring, and their share against the theory."""
    share = tables["share"].assign(row="share")
    arcs = tables["arcs"].assign(row="arcs")
    y = (
        alt.Y("row:N")
        .sort(["arcs", "share"])
        .axis(title=None, labelExpr=style.label_expr(), ticks=False, domain=False, labelLimit=150)
    )
    axis = alt.Axis(title="fleet.axis.moved_share", format="%", grid=False)
    x = _position(axis)
    whole = alt.Chart(pd.DataFrame({"row": ["arcs"], "start": [0.0], "end": [1.0]}))
    band = alt.Chart(share)
    return layer(
        whole.mark_bar(color=style.FREE, size=26).encode(x, alt.X2("end:Q"), y),
        alt.Chart(arcs)
        .mark_bar(color=style.REJECTED, size=26)
        .encode(
            x, alt.X2("end:Q"), y, tooltip=[alt.Tooltip("cluster:N", title="fleet.axis.cluster")]
        ),
        band.mark_bar(color=style.NEUTRAL, opacity=style.PALE, size=26).encode(
            alt.X("low:Q"), alt.X2("high:Q"), y
        ),
        band.mark_tick(color=style.NEUTRAL, thickness=2, size=30).encode(alt.X("mean:Q"), y),
        band.mark_point(filled=True, size=90, color=style.REJECTED, opacity=1).encode(
            alt.X("measured:Q"),
            y,
            tooltip=[
                alt.Tooltip("measured:Q", format=".2%", title="fleet.axis.moved_share"),
                alt.Tooltip("mean:Q", format=".2%", title="fleet.axis.band_mean"),
                alt.Tooltip("low:Q", format=".2%", title="fleet.axis.band_low"),
                alt.Tooltip("high:Q", format=".2%", title="fleet.axis.band_high"),
            ],
        ),
    ).properties(height=260, title="fleet.panel.moved_share")


def _timeline(tables: Tables, column: str) -> alt.LayerChart:
    table = tables["timeline"]
    x = alt.X("minute:Q").scale(nice=False).axis(title="fleet.axis.minute", format="~r")
    if column == "reuse":
        y = (
            alt.Y("reuse:Q")
            .scale(domain=[0, 1])
            .axis(title="fleet.axis.reuse", format="%", tickCount=5)
        )
    else:
        low, high = seconds_ends(pd.concat([table["p95_s"], tables["calm"]["p95_s"]]))
        y = (
            alt.Y("p95_s:Q")
            .scale(type="log", domain=[low, high], clamp=True)
            .axis(seconds_axis("fleet.axis.p95", low, high))
        )
    color = (
        alt.Color("group:N")
        .scale(domain=["victim", "others"], range=[style.REJECTED, style.NEUTRAL])
        .legend(style.legend())
        .title(None)
    )
    shape = alt.Shape("group:N").scale(
        domain=["victim", "others"], range=["circle", "square"]
    )  # told apart without colour
    base = style.labelled(alt.Chart(table), "group")
    calm = alt.Chart(tables["calm"])
    return layer(
        *event_rules(tables["marks"], x),
        calm.mark_line(strokeWidth=1.5, strokeDash=[4, 3]).encode(x, y, color),
        base.mark_line(strokeWidth=2).encode(x, y, color),
        base.mark_point(filled=True, size=45, opacity=1).encode(
            x,
            y,
            color,
            shape.legend(style.legend()).title(None),
            tooltip=[
                alt.Tooltip("group_text:N", title="fleet.axis.group"),
                alt.Tooltip("minute:Q", format=".2~f", title="fleet.axis.minute"),
                alt.Tooltip("reuse:Q", format=".1%", title="fleet.axis.reuse"),
                alt.Tooltip("p95_s:Q", format=",.2f", title="fleet.axis.p95"),
                alt.Tooltip("num_requests:Q", title="fleet.axis.num_requests"),
            ],
        ),
    ).properties(height=280, title=f"fleet.panel.timeline_{column}")
