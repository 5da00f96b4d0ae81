"""Pictures of the planner's other scenes: drafting, the token grid, published values."""

from __future__ import annotations

import altair as alt

from k3core.figures import style
from k3core.figures.capacity.common import Panels, Tables, layer, power_of_two_above

UNITS = ("hash", "physical", "context-parallel", "retention", "drafter-drop", "all")
VERDICTS = ("exact", "within-rounding", "not-unique", "published-wrong", "unexplained")
_VERDICT_COLOURS = (style.ACCEPTED, style.ACCEPTED, style.INPUTS, style.REJECTED, style.REJECTED)
_VERDICT_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross")


def fig_drafts(tables: Tables) -> Panels:
    """What drafts earn and take: gain of a full replica, requests in flight, gain under load.

    Tables: ``counts``, ``load`` and ``here`` of ``DraftStudy``.
    """
    counts = tables["counts"]
    x = alt.X("drafts:O").axis(title="capacity.axis.drafts", labelAngle=0)
    chosen = alt.Opacity("chosen:N").scale(domain=[True, False], range=[1.0, 0.5]).legend(None)
    tooltip = [
        alt.Tooltip("drafts:O", title="capacity.axis.drafts"),
        alt.Tooltip("tokens_per_step:Q", format=".2f", title="capacity.axis.tokens_per_step"),
        alt.Tooltip("added_bytes:Q", format=",", title="capacity.axis.extra_bytes"),
        alt.Tooltip("requests:Q", format=",", title="capacity.axis.requests"),
        alt.Tooltip("gain:Q", format=".2f", title="capacity.axis.gain"),
    ]
    most = max(float(counts["requests"].max()), 1.0) * 1.15
    in_flight = layer(
        alt.Chart(counts)
        .mark_bar(color=style.KDA)
        .encode(
            x,
            alt.Y("requests:Q")
            .scale(domain=[0, most], nice=False)
            .axis(title="capacity.axis.requests", format=",d", tickMinStep=1, grid=False),
            chosen,
            tooltip=tooltip,
        ),
        alt.Chart(counts)
        .mark_text(dy=-8)
        .encode(x, alt.Y("requests:Q").scale(domain=[0, most], nice=False), alt.Text("requests:Q")),
    ).properties(height=260, title="capacity.panel.draft_requests")
    tall = max(float(counts["gain"].max()), 1.0) * 1.15
    y = alt.Y("gain:Q").scale(domain=[0, tall], nice=False)
    gain = layer(
        alt.Chart(counts)
        .mark_line(
            color=style.ACCEPTED,
            strokeWidth=2.5,
            point=alt.OverlayMarkDef(size=60, color=style.ACCEPTED),
        )
        .encode(x, y.axis(title="capacity.axis.gain", grid=False), tooltip=tooltip),
        alt.Chart(counts)
        .transform_filter("datum.drafts == 0")
        .transform_calculate(one="1")
        .mark_rule(strokeDash=[4, 4], color=style.NEUTRAL)
        .encode(alt.Y("one:Q").scale(domain=[0, tall], nice=False)),
    ).properties(height=260, title="capacity.panel.draft_gain")
    load_x = (
        alt.X("concurrency:Q")
        .scale(type="log", base=2, domain=[4, 64], nice=False)
        .axis(title="capacity.axis.concurrency", values=[4, 8, 16, 32, 64], grid=False)
    )
    top = max(float(tables["load"]["gain"].max()), 1.0) * 1.1
    load_y = (
        alt.Y("gain:Q")
        .scale(domain=[0, top], nice=False)
        .axis(title="capacity.axis.gain", grid=False)
    )
    curves = style.labelled(alt.Chart(tables["load"]), "curve")
    dash = alt.StrokeDash("curve:N").scale(domain=["measured", "fitted"], range=[[1, 0], [5, 4]])
    load = layer(
        curves.mark_line(strokeWidth=2.5, color=style.ACCEPTED).encode(
            load_x,
            load_y,
            dash.legend(orient="top", labelExpr=style.label_expr()).title(None),
            tooltip=[
                alt.Tooltip("curve_text:N", title="capacity.axis.curve"),
                alt.Tooltip("concurrency:Q", title="capacity.axis.concurrency"),
                alt.Tooltip("gain:Q", format=".2f", title="capacity.axis.gain"),
            ],
        ),
        curves.transform_filter("datum.curve == 'measured'")
        .mark_point(filled=True, size=70, opacity=1, color=style.ACCEPTED)
        .encode(load_x, load_y),
        curves.transform_filter("datum.concurrency == 4 && datum.curve == 'measured'")
        .transform_calculate(one="1")
        .mark_rule(strokeDash=[4, 4], color=style.NEUTRAL)
        .encode(alt.Y("one:Q").scale(domain=[0, top], nice=False)),
        alt.Chart(tables["here"])
        .mark_point(filled=True, size=150, opacity=1, color=style.REJECTED)
        .encode(
            load_x,
            load_y,
            tooltip=[
                alt.Tooltip("concurrency:Q", title="capacity.axis.requests"),
                alt.Tooltip("gain:Q", format=".2f", title="capacity.axis.gain"),
            ],
        ),
    ).properties(height=260, title="capacity.panel.draft_load")
    return {"gain": gain, "in_flight": in_flight, "load": load}


def fig_grid(tables: Tables) -> Panels:
    """One token axis, a row of ticks per unit; solid where all units agree.

    Tables: ``ticks``, ``marks`` and ``hits`` of ``GridStudy``.
    """
    ticks, marks = tables["ticks"], tables["marks"]
    limit = max(float(marks["position"].max()), float(ticks["position"].max()), 1.0) * 1.02
    scale = alt.Scale(domain=[0, limit], nice=False)
    present = [unit for unit in UNITS if unit in set(ticks["unit"])]
    x = alt.X("position:Q").scale(scale)
    y = (
        alt.Y("unit:N")
        .scale(domain=present)
        .sort(present)
        .axis(labelExpr=style.label_expr(), title=None, ticks=False, domain=False, labelLimit=150)
    )
    rows = style.labelled(alt.Chart(ticks), "unit")
    agrees = rows.transform_filter("datum.agrees")
    tooltip = [
        alt.Tooltip("unit_text:N", title="capacity.axis.unit"),
        alt.Tooltip("position:Q", format=",", title="capacity.axis.position"),
    ]
    ended = style.labelled(alt.Chart(marks), "mark")
    stack = layer(
        rows.transform_filter("!datum.agrees")
        .mark_tick(thickness=1.5, size=22, opacity=0.55, color=style.NEUTRAL)
        .encode(
            x.axis(
                labelExpr=style.COUNT_LABELS, title="capacity.axis.position", grid=False,
                labelOverlap=True,
            ),
            y,
            tooltip=tooltip,
        ),
        agrees.mark_tick(thickness=3, size=30, opacity=1, color=style.MLA).encode(
            x, y, tooltip=tooltip
        ),
        agrees.transform_filter("datum.hit")
        .mark_tick(thickness=5, size=34, opacity=1, color=style.ACCEPTED)
        .encode(x, y, tooltip=tooltip),
        ended.mark_rule(strokeWidth=2).encode(
            x,
            alt.Color("mark:N")
            .scale(domain=["prompt", "reused"], range=[style.REJECTED, style.ACCEPTED])
            .legend(orient="top", labelExpr=style.label_expr())
            .title(None),
            alt.StrokeDash("mark:N").scale(domain=["prompt", "reused"], range=[[4, 3], [1, 0]]),
            tooltip=[
                alt.Tooltip("mark_text:N", title="capacity.axis.mark"),
                alt.Tooltip("position:Q", format=",", title="capacity.axis.position"),
            ],
        ),
    ).properties(height=80 + 46 * len(present))  # fmt: skip
    high = power_of_two_above(max(float(tables["hits"]["hit"].max()), 1.0))
    steps = (
        alt.Chart(tables["hits"])
        .mark_line(color=style.ACCEPTED, strokeWidth=2.5, interpolate="step-before")
        .encode(
            alt.X("tokens:Q")
            .scale(scale)
            .axis(
                labelExpr=style.COUNT_LABELS, title="capacity.axis.prompt", grid=False,
                labelOverlap=True,
            ),
            alt.Y("hit:Q")
            .scale(domain=[0, high], nice=False)
            .axis(labelExpr=style.COUNT_LABELS, title="capacity.axis.reused", grid=False),
            tooltip=[
                alt.Tooltip("tokens:Q", format=",", title="capacity.axis.prompt"),
                alt.Tooltip("hit:Q", format=",", title="capacity.axis.reused"),
            ],
        )
        .properties(height=240, title="capacity.panel.hits")
    )  # fmt: skip
    return {"stack": stack, "hits": steps}


def fig_published(tables: Tables) -> Panels:
    """Published over computed for every value, on a log axis with 1 in the middle.

    Tables: ``ratios`` of ``PublishedStudy``.
    """
    table = tables["ratios"]
    subjects = list(dict.fromkeys(table["subject"]))
    x = (
        alt.X("ratio:Q")
        .scale(type="log", domain=[0.2, 5], clamp=True)
        .axis(title="capacity.axis.agreement", values=[0.2, 0.5, 1, 2, 5], grid=True)
    )
    y = (
        alt.Y("subject:N")
        .sort(subjects)
        .axis(labelExpr=style.label_expr(), title=None, ticks=False, domain=False)
    )
    strip = (
        style.labelled(alt.Chart(table), "verdict")
        .transform_window(place="row_number()", groupby=["subject"])
        .transform_calculate(offset="(datum.place * 7) % 11")
        .mark_point(filled=True, size=70, opacity=0.8)
        .encode(
            x,
            y,
            alt.YOffset("offset:Q").scale(domain=[-2, 13]),
            alt.Color("verdict:N")
            .scale(domain=list(VERDICTS), range=list(_VERDICT_COLOURS))
            .legend(style.legend())
            .title(None),
            alt.Shape("verdict:N")
            .scale(domain=list(VERDICTS), range=list(_VERDICT_SHAPES))
            .legend(style.legend())
            .title(None),
            tooltip=[
                alt.Tooltip("id:N", title="capacity.axis.id"),
                alt.Tooltip("source:N", title="capacity.axis.source"),
                alt.Tooltip("what:N", title="capacity.axis.what"),
                alt.Tooltip("published:N", title="capacity.axis.published"),
                alt.Tooltip("computed:N", title="capacity.axis.computed"),
                alt.Tooltip("verdict_text:N", title="capacity.axis.verdict"),
            ],
        )
        .properties(height=110 + 40 * max(len(subjects), 1))
    )
    return {"strip": strip}


def fig_printed(tables: Tables) -> Panels:
    """Printed tokens of one pool against the sequence limit: the memory stays, the number moves.

    Tables: ``lengths`` and ``point`` of ``PrintedStudy``.
    """
    table = tables["lengths"]
    low, high = float(table["limit"].min()), float(table["limit"].max())
    x_scale = alt.Scale(type="log", base=2, domain=[low, high], nice=False)
    top = power_of_two_above(float(table["tokens"].max()))
    x, y = alt.X("limit:Q").scale(x_scale), alt.Y("tokens:Q").scale(domain=[0, top], nice=False)
    tooltip = [
        alt.Tooltip("rule_text:N", title="capacity.axis.rule"),
        alt.Tooltip("limit:Q", format=",", title="capacity.axis.limit"),
        alt.Tooltip("tokens:Q", format=",", title="capacity.axis.printed_tokens"),
    ]
    codes = ["printed_2026", "printed_2025"]
    lines = (
        style.labelled(alt.Chart(table), "rule")
        .mark_line(strokeWidth=2.5)
        .encode(
            x.axis(
                labelExpr=style.COUNT_LABELS,
                title="capacity.axis.limit",
                values=[2.0**i for i in range(25) if low <= 2**i <= high],
                grid=False,
                labelOverlap=True,
            ),
            y.axis(labelExpr=style.COUNT_LABELS, title="capacity.axis.printed_tokens", grid=False),
            alt.Color("rule:N")
            .scale(domain=codes, range=[style.MLA, style.NEUTRAL])
            .legend(style.legend())
            .title(None),
            alt.StrokeDash("rule:N").scale(domain=codes, range=[[1, 0], [7, 3]]).legend(None),
            tooltip=tooltip,
        )
    )
    here = (
        alt.Chart(tables["point"])
        .mark_point(filled=True, size=150, opacity=1, color=style.REJECTED)
        .encode(x, y)
    )
    return {"lengths": layer(lines, here).properties(height=280, title="capacity.panel.printed")}
