"""Pictures of speculative rollback."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from k3core.figures import style
from k3core.figures.flow import flow_chart

Tables = Mapping[str, pd.DataFrame]

LANES = ("tokens", "mla_rows", "snapshots", "inputs", "replayed")
_LANE_COLOURS = (style.ACCEPTED, style.MLA, style.SNAPSHOT, style.INPUTS, style.KDA)
_LANE_HEIGHT = 84
_REFERENCE_BYTES = 96 * 2**20  # fills a cell; larger squares stop there
_SMALLEST_SIDE = 0.05
_ZERO = 1e-18  # where a log axis shows an exact 0
_SQUARE_HEIGHT = 0.72  # the rest of a row is for its total

_KINDS = alt.Scale(domain=["snapshots", "inputs"], range=[style.SNAPSHOT, style.INPUTS])
_KIND_LEGEND = style.legend()


def main_picture(tables: Tables) -> alt.LayerChart:
    """One verify step: what each memory keeps per token, area = bytes, dashed cut after the kept.

    Tables: ``window`` and ``totals`` of ``RollbackStudy``.
    """
    lane_index = {lane: index for index, lane in enumerate(LANES)}
    cells = tables["window"].assign(row=tables["window"]["lane"].map(lane_index))
    side = (cells["bytes"] / _REFERENCE_BYTES).clip(upper=1.0) ** 0.5 * 0.92
    side = side.clip(lower=_SMALLEST_SIDE) / 2
    centre = cells["row"] + 0.1
    cells = cells.assign(
        left=cells["position"] - side,
        right=cells["position"] + side,
        top=centre - side * _SQUARE_HEIGHT,
        bottom=centre + side * _SQUARE_HEIGHT,
        opacity=cells["status"].isin(["kept", "rejected"]).map({True: 1.0, False: style.PALE}),
    )
    totals = tables["totals"].assign(row=tables["totals"]["lane"].map(lane_index))
    window_len = int(cells["position"].max()) + 1
    kept = int((cells[cells["lane"] == "tokens"]["status"] == "kept").sum())
    x_scale = alt.Scale(domain=[-0.6, window_len - 0.4], nice=False)
    y_scale = alt.Scale(domain=[-0.6, len(LANES) - 0.4], reverse=True, nice=False)
    names = " ".join(f"datum.value == {i} ? labels['{lane}'] :" for lane, i in lane_index.items())
    y_axis = alt.Axis(
        values=list(range(len(LANES))),
        labelExpr=f"{names} ''",
        title=None,
        grid=False,
        domain=False,
        ticks=False,
        labelLimit=190,
        labelFontSize=12,
    )
    x_axis = alt.Axis(
        values=list(range(window_len)), format="d", grid=False, title="decode.axis.position"
    )
    opacity = alt.Opacity("opacity:Q", scale=None)
    colour = alt.Color("lane:N").scale(domain=list(LANES), range=list(_LANE_COLOURS)).legend(None)
    tooltip = [
        alt.Tooltip("position:Q", title="decode.axis.position"),
        alt.Tooltip("lane_text:N", title="decode.axis.lane"),
        alt.Tooltip("status_text:N", title="decode.axis.status"),
        alt.Tooltip("bytes:Q", format=",", title="decode.axis.bytes"),
    ]
    base = style.labelled(style.labelled(alt.Chart(cells), "lane"), "status")
    squares = (
        base.transform_filter("datum.lane != 'tokens'")
        .mark_rect()
        .encode(
            alt.X("left:Q").scale(x_scale).axis(x_axis),
            alt.X2("right:Q"),
            alt.Y("top:Q").scale(y_scale).axis(y_axis),
            alt.Y2("bottom:Q"),
            colour,
            opacity,
            tooltip=tooltip,
        )
    )
    tokens = (
        base.transform_filter("datum.lane == 'tokens'")
        .mark_point(filled=True, size=170, opacity=1)
        .encode(
            alt.X("position:Q").scale(x_scale),
            alt.Y("row:Q").scale(y_scale),
            alt.Shape("status:N")
            .scale(domain=["kept", "rejected"], range=["circle", "cross"])
            .legend(None),
            alt.Fill("status:N")
            .scale(domain=["kept", "rejected"], range=[style.ACCEPTED, style.REJECTED])
            .legend(None),
            tooltip=tooltip,
        )
    )
    cut = (
        alt.Chart(pd.DataFrame({"cut": [kept - 0.5]}))
        .mark_rule(strokeDash=[6, 4], strokeWidth=2, color=style.REJECTED)
        .encode(alt.X("cut:Q").scale(x_scale))
    )
    sums = (
        style.labelled(alt.Chart(totals), "word")
        .transform_calculate(
            left="-0.5",
            above="datum.row - 0.42",
            words="datum.text + (datum.word_text ? ' · ' + datum.word_text : '')",
        )
        .mark_text(align="left", fontWeight="bold", fontSize=13)
        .encode(
            alt.X("left:Q").scale(x_scale),
            alt.Y("above:Q").scale(y_scale),
            alt.Text("words:N"),
        )
    )
    layers = style.layer(squares, tokens, cut, sums).resolve_scale(shape="independent")
    return layers.properties(height=_LANE_HEIGHT * len(LANES))


def fig_replay_principle(tables: Tables) -> dict[str, alt.Chart | alt.LayerChart]:
    """Tab 1 of the source text: why inputs are kept instead of states.

    Tables: ``tensors``, ``sizes``, ``flow``, ``scenarios``, ``formula`` of ``RollbackStudy``.
    """
    tensors = (
        style.labelled(alt.Chart(tables["tensors"]), "tensor")
        .mark_bar()
        .encode(
            alt.X("kind:N").axis(
                labelExpr=style.label_expr(), labelAngle=0, title=None, labelLimit=150
            ),
            alt.Y("bytes:Q").axis(
                style.bytes_axis("decode.axis.toy_bytes", high=tables["tensors"]["bytes"].max())
            ),
            alt.Color("kind:N").scale(_KINDS).legend(None),
            alt.Detail("tensor:N"),
            tooltip=[
                alt.Tooltip("tensor:N", title="decode.axis.tensor"),
                alt.Tooltip("bytes:Q", format=",", title="decode.axis.bytes"),
            ],
        )
        .properties(height=280, title="decode.panel.tensors")
    )
    sizes = (
        alt.Chart(tables["sizes"])
        .mark_line(point=True)
        .encode(
            alt.X("dk:Q").scale(type="log", base=2).axis(title="decode.axis.dk", format="d"),
            alt.Y("bytes:Q")
            .scale(type="log")
            .axis(
                style.bytes_axis(
                    "decode.axis.step_bytes",
                    high=tables["sizes"]["bytes"].max(),
                    low=tables["sizes"]["bytes"].min(),
                )
            ),
            alt.Color("kind:N").scale(_KINDS).legend(_KIND_LEGEND).title(None),
            tooltip=[
                alt.Tooltip("dk:Q", title="decode.axis.dk"),
                alt.Tooltip("bytes:Q", format=",", title="decode.axis.bytes"),
            ],
        )
        .properties(height=280, title="decode.panel.sizes")
    )
    order = ["all", "partial", "none"]
    scenario_base = style.labelled(alt.Chart(tables["scenarios"]), "scenario")
    y = alt.Y("scenario:N").sort(order).axis(labelExpr=style.label_expr(), title=None)
    scenarios = style.layer(
        scenario_base.mark_bar().encode(
            alt.X("output_steps:Q").axis(
                title="decode.axis.output_steps", format="d", tickMinStep=1
            ),
            y,
            alt.Color("scenario:N")
            .scale(domain=order, range=[style.ACCEPTED, style.KDA, style.REJECTED])
            .legend(None),
            alt.Tooltip("output_steps:Q", title="decode.axis.output_steps"),
        ),
        scenario_base.mark_text(align="left", dx=5).encode(
            alt.X("output_steps:Q"), y, alt.Text("output_steps:Q")
        ),
    ).properties(height=280, title="decode.panel.scenarios")
    formula_base = style.labelled(alt.Chart(tables["formula"]), "row")
    formula_y = (
        alt.Y("row:N")
        .sort(None)
        .axis(labelExpr=style.label_expr(), title=None, labelLimit=220, ticks=False, domain=False)
    )
    formula = (
        formula_base.transform_calculate(left="0")
        .mark_text(align="left", dx=8, fontSize=13, fontWeight="bold")
        .encode(alt.X("left:Q").scale(domain=[0, 1]).axis(None), formula_y, alt.Text("value:N"))
        .properties(height=150, title="decode.panel.formula")
    )
    return {
        "tensors": tensors,
        "sizes": sizes,
        "flow": flow_chart(tables["flow"]).properties(title="decode.panel.flow"),
        "scenarios": scenarios,
        "formula": formula,
    }


def fig_snapshot_cost(tables: Tables) -> dict[str, alt.Chart | alt.LayerChart]:
    """Tab 2 of the source text: ratio and gap of snapshots against inputs.

    Tables: ``by_draft`` and ``by_dk`` of ``CostStudy``.
    """
    by_draft = alt.Chart(tables["by_draft"])
    x = alt.X("draft_len:Q").axis(title="decode.axis.draft_len", format="d")
    by_dk = alt.Chart(tables["by_dk"])
    dk = alt.X("dk:Q").scale(type="log", base=2).axis(title="decode.axis.dk_alone", format="d")
    ratio_axis = alt.Axis(title="decode.axis.ratio")
    flat = (
        by_draft.transform_fold(["ratio", "byte_ratio"], as_=["unit", "value"])
        .mark_line(point=True)
        .encode(
            x,
            alt.Y("value:Q").scale(zero=True).axis(ratio_axis),
            alt.Color("unit:N")
            .scale(domain=["ratio", "byte_ratio"], range=[style.SNAPSHOT, style.KDA])
            .legend(_KIND_LEGEND)
            .title(None),
            tooltip=[
                alt.Tooltip("draft_len:Q", title="decode.axis.draft_len"),
                alt.Tooltip("value:Q", format=".3f", title="decode.axis.ratio"),
            ],
        )
        .properties(height=280, title="decode.panel.ratio_by_draft")
    )
    border = (
        alt.Chart(pd.DataFrame({"one": [1.0]}))
        .mark_rule(strokeDash=[5, 4], color=style.NEUTRAL)
        .encode(alt.Y("one:Q"))
    )
    grows = style.layer(
        border,
        by_dk.mark_line(color=style.SNAPSHOT).encode(dk, alt.Y("ratio:Q").axis(ratio_axis)),
        by_dk.mark_point(filled=True, size=70, opacity=1).encode(
            dk,
            alt.Y("ratio:Q"),
            alt.Color("cheaper:N").scale(_KINDS).legend(_KIND_LEGEND).title("decode.axis.cheaper"),
            tooltip=[
                alt.Tooltip("dk:Q", title="decode.axis.dk_alone"),
                alt.Tooltip("ratio:Q", format=".3f", title="decode.axis.ratio"),
            ],
        ),
    ).properties(height=280, title="decode.panel.ratio_by_dk")
    folded = by_draft.transform_fold(["snapshots", "inputs"], as_=["kind", "bytes"])
    gap = (
        folded.mark_line(strokeWidth=2.5)
        .encode(
            x,
            alt.Y("bytes:Q").axis(
                style.bytes_axis(
                    "decode.axis.kept_bytes", high=tables["by_draft"]["snapshots"].max()
                )
            ),
            alt.Color("kind:N").scale(_KINDS).legend(_KIND_LEGEND).title(None),
            tooltip=[
                alt.Tooltip("draft_len:Q", title="decode.axis.draft_len"),
                alt.Tooltip("bytes:Q", format=",", title="decode.axis.bytes"),
            ],
        )
        .properties(height=280, title="decode.panel.bytes_by_draft")
    )
    difference = (
        by_draft.mark_bar(color=style.SNAPSHOT, opacity=0.7)
        .encode(
            x,
            alt.Y("gap:Q").axis(
                style.bytes_axis("decode.axis.gap", high=tables["by_draft"]["gap"].max())
            ),
            tooltip=[
                alt.Tooltip("draft_len:Q", title="decode.axis.draft_len"),
                alt.Tooltip("gap:Q", format=",", title="decode.axis.gap"),
            ],
        )
        .properties(height=280, title="decode.panel.gap_by_draft")
    )
    return {
        "ratio_by_draft": flat,
        "ratio_by_dk": grows,
        "bytes_by_draft": gap,
        "gap_by_draft": difference,
    }


def fig_replay_consistency(tables: Tables) -> dict[str, alt.Chart | alt.LayerChart]:
    """Tab 3 of the source text: the replay is exact for every accepted count.

    Tables: ``by_accepted`` and ``scenarios`` of ``ConsistencyStudy``.
    """
    verdict = (
        alt.Color("verdict:N")
        .scale(domain=["pass", "fail"], range=[style.ACCEPTED, style.REJECTED])
        .legend(None)
    )
    cells = alt.Chart(tables["by_accepted"])
    x = alt.X("accepted:O").axis(title="decode.axis.accepted", labelAngle=0)
    strip = style.layer(
        cells.mark_rect(cornerRadius=3, stroke=style.GAP, strokeWidth=2, opacity=0.85).encode(
            x,
            verdict,
            tooltip=[
                alt.Tooltip("elements_different:Q", title="decode.axis.elements_different"),
                alt.Tooltip("state_error:Q", format=".1e", title="decode.axis.state_error"),
            ],
        ),
        cells.mark_text(fontSize=14, fontWeight="bold", color=style.INK).encode(
            x, alt.Text("elements_different:Q")
        ),
    ).properties(height=130, title="decode.panel.bit_equal")
    oracle = style.layer(
        alt.Chart(pd.DataFrame({"tolerance": [1e-12]}))
        .mark_rule(strokeDash=[5, 4], color=style.REJECTED)
        .encode(alt.Y("tolerance:Q")),
        cells.transform_calculate(shown=f"max(datum.oracle_error, {_ZERO})")
        .mark_point(filled=True, size=90, opacity=1, color=style.KDA)
        .encode(
            x,
            alt.Y("shown:Q")
            .scale(type="log", domain=[_ZERO, 1e-10])
            .axis(
                title="decode.axis.oracle_error",
                values=[_ZERO, 1e-16, 1e-14, 1e-12, 1e-10],
                labelExpr=f"datum.value < {2 * _ZERO} ? '0' : format(datum.value, '.0e')",
            ),
            alt.Tooltip("oracle_error:Q", format=".2e", title="decode.axis.oracle_error"),
        ),
    ).properties(height=280, title="decode.panel.oracle")
    base = style.labelled(style.labelled(alt.Chart(tables["scenarios"]), "scenario"), "verdict")
    y = (
        alt.Y("scenario:N")
        .sort(["none", "partial", "all"])
        .axis(labelExpr=style.label_expr(), title=None)
    )
    cards = style.layer(
        base.mark_bar(height=34, cornerRadius=4, opacity=0.25, strokeWidth=2)
        .transform_calculate(full="1")
        .encode(
            alt.X("full:Q").axis(None),
            y,
            verdict,
            alt.Stroke("verdict:N")
            .scale(domain=["pass", "fail"], range=[style.ACCEPTED, style.REJECTED])
            .legend(None),
        ),
        base.transform_calculate(
            middle="0.5",
            words="datum.verdict_text + ' · ' + datum.output_steps + ' ' + labels['steps_word']"
            " + ' · Δ = ' + (datum.state_error == 0 ? '0' : format(datum.state_error, '.1e'))",
        )
        .mark_text(fontWeight="bold")
        .encode(alt.X("middle:Q").scale(domain=[0, 1]), y, alt.Text("words:N")),
    ).properties(height=150, title="decode.panel.scenario_verdicts")
    return {"bit_equal": strip, "oracle": oracle, "scenario_verdicts": cards}


def state_pictures(tables: Tables) -> dict[str, alt.Chart]:
    """The state before, after rejected drafts, after the replay, and replay minus truth."""
    table = tables["state"]
    limit = float(table["value"].abs().max()) or 1.0
    pictures = {}
    for name in ("committed", "polluted", "replayed", "difference"):
        pictures[name] = (
            alt.Chart(table[table["picture"] == name])
            .mark_rect()
            .encode(
                alt.X("column:O").axis(labels=False, ticks=False, title="decode.axis.column"),
                alt.Y("row:O").axis(labels=False, ticks=False, title="decode.axis.row"),
                alt.Color("value:Q")
                .scale(domain=[-limit, 0, limit], range=[style.MLA, style.MIDDLE, style.KDA])
                .legend(None),
                alt.Tooltip("value:Q", format=".4f", title="decode.axis.value"),
            )
            .properties(height=230, title=f"decode.panel.state_{name}")
        )
    return pictures
