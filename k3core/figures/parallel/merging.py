"""Whose messages count, and how exact the merged states are."""

from __future__ import annotations

import math

import altair as alt

from k3core.figures import style
from k3core.figures.parallel.shared import Chart, Tables, kind_legend, line_legend


def partner_pictures(tables: Tables) -> dict[str, Chart]:
    """Whose message changes whose state, and how many merges wait for each other.

    Tables: ``pairs`` of ``ExchangeStudy`` and ``depth`` of ``MergeStudy``.
    """
    statuses = ["used", "later", "other_document", "own"]
    pairs = (
        style.labelled(alt.Chart(tables["pairs"]), "status")
        .mark_point(size=90, strokeWidth=2, opacity=1)
        .encode(
            alt.X("receiver:O").axis(title="parallel.axis.receiver", labelAngle=0, grid=True),
            alt.Y("sender:O").axis(title="parallel.axis.sender", grid=True),
            alt.Shape("status:N")
            .scale(domain=statuses, range=["circle", "circle", "cross", "square"])
            .legend(kind_legend(columns=2)),
            alt.Stroke("status:N").scale(
                domain=statuses, range=[style.KDA, style.NEUTRAL, style.REJECTED, style.FREE]
            ),
            alt.Fill("status:N").scale(
                domain=statuses, range=[style.KDA, "transparent", style.REJECTED, style.FREE]
            ),
            tooltip=[
                alt.Tooltip("sender:O", title="parallel.axis.sender"),
                alt.Tooltip("receiver:O", title="parallel.axis.receiver"),
                alt.Tooltip("status_text:N", title="parallel.axis.status"),
            ],
        )
        .properties(height=290, title="parallel.panel.pairs")
    )
    depth = (
        style.labelled(alt.Chart(tables["depth"]), "scan")
        .mark_line(point=True, interpolate="step-after")
        .encode(
            alt.X("ranks:Q").scale(domain=[1, 16]).axis(title="parallel.axis.ranks", format="d"),
            alt.Y("merges:Q").axis(title="parallel.axis.merges", format="d", tickMinStep=1),
            alt.StrokeDash("scan:N").legend(line_legend()),
            alt.Color("scan:N")
            .scale(domain=["chain", "tree"], range=[style.NEUTRAL, style.KDA])
            .legend(line_legend()),
            tooltip=[
                alt.Tooltip("scan_text:N", title="parallel.axis.scan"),
                alt.Tooltip("ranks:Q", title="parallel.axis.ranks"),
                alt.Tooltip("merges:Q", title="parallel.axis.merges"),
            ],
        )
        .properties(height=290, title="parallel.panel.depth")
    )
    return {"pairs": pairs, "depth": depth}


def merge_pictures(tables: Tables) -> dict[str, Chart]:
    """How exact the merged states are, and how many bytes the messages really had.

    Tables: ``error_by_rank`` and ``measured`` of ``MergeStudy``.
    """
    floor = 1e-18
    formats = ["float64", "float32", "bfloat16"]
    colour = (
        alt.Color("chain_dtype:N")
        .scale(domain=formats, range=[style.ACCEPTED, style.KDA, style.REJECTED])
        .legend(kind_legend())
    )
    errors = tables["error_by_rank"].assign(
        shown=tables["error_by_rank"]["error"].clip(lower=floor)
    )
    error = (
        style.labelled(alt.Chart(errors), "chain_dtype")
        .mark_line(point=alt.OverlayMarkDef(size=60, filled=True, opacity=1))
        .encode(
            alt.X("rank:O").axis(title="parallel.axis.rank", labelAngle=0),
            alt.Y("shown:Q")
            .scale(type="log", domain=[floor, 1], nice=False)
            .axis(
                title="parallel.axis.error",
                values=[1e-18, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1],
                labelExpr="datum.value < 2e-18 ? '0' : format(datum.value, '.0e')",
            ),
            colour,
            tooltip=[
                alt.Tooltip("rank:O", title="parallel.axis.rank"),
                alt.Tooltip("chain_dtype_text:N", title="parallel.axis.chain_dtype"),
                alt.Tooltip("error:Q", format=".2e", title="parallel.axis.error"),
            ],
        )
        .properties(height=250, title="parallel.panel.error")
    )
    sent = tables["measured"].assign(
        sent_kib=tables["measured"]["sent_bytes"] / 1024,
        formula_kib=tables["measured"]["formula_bytes"] / 1024,
    )
    x = alt.X("num_tokens:O").axis(title="parallel.axis.toy_tokens", labelAngle=0)
    measured = alt.layer(
        alt.Chart(sent)
        .mark_bar(color=style.KDA, opacity=0.9)
        .encode(
            x,
            alt.Y("sent_kib:Q")
            .scale(domain=[0, 2.0 ** math.ceil(math.log2(max(sent["sent_kib"].max(), 1)) + 0.1)])
            .axis(title="parallel.axis.measured_kib", tickCount=5),
            tooltip=[
                alt.Tooltip("num_tokens:O", title="parallel.axis.toy_tokens"),
                alt.Tooltip("sent_bytes:Q", format=",", title="parallel.axis.measured_bytes"),
                alt.Tooltip("formula_bytes:Q", format=",", title="parallel.axis.formula_bytes"),
            ],
        ),
        alt.Chart(sent)
        .mark_tick(color=style.NEUTRAL, thickness=3, bandSize=64)
        .encode(x, alt.Y("formula_kib:Q")),
    ).properties(height=250, title="parallel.panel.measured")
    return {"error": error, "measured": measured}
