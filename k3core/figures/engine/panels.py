"""What a cached prefix saves, what does not grow, and what drafts bring."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style

Tables = Mapping[str, pd.DataFrame]
Chart = alt.Chart | alt.LayerChart | alt.FacetChart

_SCHEMES = alt.Scale(domain=["snapshots", "inputs"], range=[style.SNAPSHOT, style.INPUTS])
_CACHES = alt.Scale(domain=["without_prefix", "with_prefix"], range=[style.NEUTRAL, style.ACCEPTED])
_LINES = alt.Legend(
    orient="top",
    columns=alt.expr("width < 300 ? 2 : 3"),
    labelExpr=style.label_expr(),
    symbolType="stroke",
    symbolSize=300,
)
_PAIR = alt.Legend(
    orient="top", columns=alt.expr("width < 240 ? 1 : 2"), labelExpr=style.label_expr()
)
_TOKENS = alt.Scale(type="log", base=2, domain=[512, 2**20], nice=False)
_TOKENS_AXIS = alt.Axis(
    title="engine.axis.text_len",
    labelExpr=style.COUNT_LABELS,
    values=[2**9, 2**12, 2**15, 2**18, 2**20],
)


def fig_engine_before_after(tables: Tables) -> dict[str, Chart]:
    """Tab 10 of the source text: what the second request saves, and what does not grow.

    Tables: ``compare``, ``flags``, ``bytes_by_length``, ``message_by_length`` of ``EngineStudy``.
    """
    flags = tables["flags"]
    reuse = style.labelled(alt.Chart(flags[flags["lane"] != "first"]), "lane")
    lane = (
        alt.X("lane:N")
        .sort(["without_prefix", "with_prefix"])
        .axis(labelExpr=style.label_expr(), labelAngle=0, title=None, labelLimit=160)
    )
    reused_axis = alt.Axis(title="engine.axis.reused", format=",d", tickMinStep=1)
    highest = max(int(flags["reused"].max()), 1)
    reused_y = (
        alt.Y("reused:Q").scale(domain=[0, 1 << highest.bit_length()], nice=False).axis(reused_axis)
    )
    reused = alt.layer(
        reuse.mark_bar(size=60).encode(
            lane,
            reused_y,
            alt.Color("lane:N").scale(_CACHES).legend(None),
            tooltip=[
                alt.Tooltip("lane_text:N", title="engine.axis.lane"),
                alt.Tooltip("reused:Q", format=",", title="engine.axis.reused"),
            ],
        ),
        reuse.mark_text(dy=-9, fontSize=13, fontWeight="bold").encode(
            lane, reused_y, alt.Text("reused:Q", format=",")
        ),
    ).properties(height=280, title="engine.panel.reused")

    table = tables["bytes_by_length"]
    kinds = ["mla", "kda", "kcp"]
    bytes_axis = style.bytes_axis(
        "engine.axis.bytes", high=float(table["bytes"].max()), low=float(2**20)
    )
    lengths = style.labelled(alt.Chart(table), "kind").transform_filter("datum.bytes > 0")
    kv = (
        lengths.mark_line(strokeWidth=2.5)
        .encode(
            alt.X("num_tokens:Q").scale(_TOKENS).axis(_TOKENS_AXIS),
            alt.Y("bytes:Q").scale(type="log", domainMin=2**20).axis(bytes_axis),
            alt.Color("kind:N")
            .scale(domain=kinds, range=[style.MLA, style.KDA, style.KDA])
            .legend(_LINES)
            .title(None),
            alt.StrokeDash("kind:N")
            .scale(domain=kinds, range=[[1, 0], [1, 0], [6, 4]])
            .legend(_LINES)
            .title(None),
            tooltip=[
                alt.Tooltip("kind_text:N", title="engine.axis.what"),
                alt.Tooltip("num_tokens:Q", format=",", title="engine.axis.text_len"),
                alt.Tooltip("bytes:Q", format=",", title="engine.axis.exact_bytes"),
            ],
        )
        .properties(height=280, title="engine.panel.kv_bytes")
    )

    message = tables["message_by_length"]
    named_at = message["way"].map({"sent": 2**12, "received": 2**17})
    message_base = style.labelled(alt.Chart(message), "way")
    way = (
        alt.Color("way:N")
        .scale(domain=["sent", "received"], range=[style.KDA, style.NEUTRAL])
        .legend(_LINES)
        .title(None)
    )
    high = max(float(tables["message_by_length"]["bytes"].max()), float(2**20))
    message_y = (
        alt.Y("bytes:Q")
        .scale(domain=[0, 2.0 ** (int(high).bit_length())], nice=False)
        .axis(style.bytes_axis("engine.axis.message_bytes", high=high))
    )
    message_x = alt.X("num_tokens:Q").scale(_TOKENS).axis(_TOKENS_AXIS)
    kcp = alt.layer(
        message_base.mark_line(strokeWidth=2.5, strokeDash=[6, 4]).encode(
            message_x,
            message_y,
            way,
            tooltip=[
                alt.Tooltip("way_text:N", title="engine.axis.what"),
                alt.Tooltip("num_tokens:Q", format=",", title="engine.axis.text_len"),
                alt.Tooltip("bytes:Q", format=",", title="engine.axis.exact_bytes"),
            ],
        ),
        style.labelled(alt.Chart(message[message["num_tokens"] == named_at]), "way")
        .transform_calculate(value="datum.bytes")
        .transform_calculate(words=f"datum.way_text + ': ' + ({style.BYTES_LABELS})")
        .mark_text(dy=-9, fontSize=12, fontWeight="bold")
        .encode(message_x, message_y, alt.Text("words:N")),
    ).properties(height=280, title="engine.panel.kcp")

    compare = tables["compare"].melt(
        id_vars="metric", value_vars=["without_prefix", "with_prefix"], var_name="lane"
    )
    full = tables["compare"].set_index("metric")["without_prefix"]
    compare["share"] = compare["value"] / compare["metric"].map(full)
    order = list(tables["compare"]["metric"])
    metric = (
        alt.Y("metric:N")
        .sort(order)
        .axis(labelExpr=style.label_expr(), title=None, labelLimit=190, ticks=False)
    )
    offset = alt.YOffset("lane:N").sort(["without_prefix", "with_prefix"])
    share = alt.X("share:Q").scale(domain=[0, 1.3], nice=False, clamp=True)
    base = style.labelled(style.labelled(alt.Chart(compare), "lane"), "metric")
    four = alt.layer(
        base.mark_bar().encode(
            share.axis(title="engine.axis.share", format="%", values=[0, 0.25, 0.5, 0.75, 1]),
            metric,
            offset,
            alt.Color("lane:N").scale(_CACHES).legend(_PAIR).title(None),
            tooltip=[
                alt.Tooltip("metric_text:N", title="engine.axis.metric"),
                alt.Tooltip("lane_text:N", title="engine.axis.lane"),
                alt.Tooltip("value:Q", format=",.2f", title="engine.axis.value"),
            ],
        ),
        base.mark_text(align="left", dx=4).encode(
            share, metric, offset, alt.Text("value:Q", format=",.4~r")
        ),
    ).properties(height=280, title="engine.panel.compare")
    return {"reused": reused, "kv_bytes": kv, "kcp": kcp, "compare": four}


def draft_pictures(tables: Tables) -> dict[str, Chart]:
    """What longer drafts bring and what they cost.

    Tables: ``by_draft`` and ``rollback`` of ``EngineStudy``.
    """
    k = alt.X("draft_len:Q").axis(title="engine.axis.draft_len", format="d", tickMinStep=1)
    by_draft = alt.Chart(tables["by_draft"])
    per_step = alt.Axis(title="engine.axis.per_step")
    tooltip = [
        alt.Tooltip("draft_len:Q", title="engine.axis.draft_len"),
        alt.Tooltip("tokens_per_step:Q", format=".2f", title="engine.axis.per_step"),
        alt.Tooltip("expected:Q", format=".2f", title="engine.axis.expected"),
        alt.Tooltip("rejected_tokens:Q", title="engine.axis.rejected"),
    ]
    size = alt.Size("now:N").scale(domain=[False, True], range=[60, 240]).legend(None)
    steps = alt.layer(
        by_draft.mark_line(color=style.NEUTRAL, strokeDash=[5, 4]).encode(
            k, alt.Y("expected:Q").axis(per_step)
        ),
        by_draft.mark_point(filled=True, opacity=1, color=style.ACCEPTED).encode(
            k, alt.Y("tokens_per_step:Q").axis(per_step), size, tooltip=tooltip
        ),
    ).properties(height=270, title="engine.panel.per_step")
    wasted = (
        by_draft.mark_bar(color=style.REJECTED)
        .encode(
            alt.X("draft_len:O").axis(title="engine.axis.draft_len", labelAngle=0),
            alt.Y("rejected_tokens:Q").axis(title="engine.axis.rejected", tickMinStep=1),
            alt.Opacity("now:N").scale(domain=[False, True], range=[0.45, 1.0]).legend(None),
            tooltip=tooltip,
        )
        .properties(height=270, title="engine.panel.rejected")
    )
    rollback = tables["rollback"]
    memory = (
        style.labelled(alt.Chart(rollback), "scheme")
        .mark_line(point=True)
        .encode(
            k,
            alt.Y("bytes:Q").axis(
                style.bytes_axis("engine.axis.toy_bytes", high=float(rollback["bytes"].max()))
            ),
            alt.Color("scheme:N").scale(_SCHEMES).legend(style.legend()).title(None),
            tooltip=[
                alt.Tooltip("scheme_text:N", title="engine.axis.what"),
                alt.Tooltip("draft_len:Q", title="engine.axis.draft_len"),
                alt.Tooltip("bytes:Q", format=",", title="engine.axis.exact_bytes"),
            ],
        )
        .properties(height=270, title="engine.panel.rollback")
    )
    return {"per_step": steps, "rejected": wasted, "rollback": memory}


def exact_picture(tables: Tables) -> dict[str, Chart]:
    """Both bit-for-bit comparisons with their verdict.

    Tables: ``exact`` of ``EngineStudy``.
    """
    verdicts = ["pass", "close", "fail"]
    colours = [style.ACCEPTED, style.KDA, style.REJECTED]
    base = style.labelled(style.labelled(alt.Chart(tables["exact"]), "check"), "verdict")
    y = (
        alt.Y("check:N")
        .sort(None)
        .axis(labelExpr=style.label_expr(), title=None, labelLimit=260, ticks=False, domain=False)
    )
    cards = alt.layer(
        base.transform_calculate(full="1")
        .mark_bar(height=34, cornerRadius=4, opacity=0.25, strokeWidth=2)
        .encode(
            alt.X("full:Q").axis(None),
            y,
            alt.Color("verdict:N").scale(domain=verdicts, range=colours).legend(None),
            alt.Stroke("verdict:N").scale(domain=verdicts, range=colours).legend(None),
        ),
        base.transform_calculate(
            middle="0.5",
            words="datum.verdict_text + ' · ' + format(datum.different, ',') + ' ' + labels['of']"
            " + ' ' + format(datum.logits, ',') + (datum.largest_difference == 0 ? ''"
            " : ' · Δ ≤ ' + format(datum.largest_difference, '.1e'))",
        )
        .mark_text(fontWeight="bold")
        .encode(alt.X("middle:Q").scale(domain=[0, 1]), y, alt.Text("words:N")),
    )
    return {"exact": cards.properties(height=120, title="engine.panel.exact")}
