"""Page 2: a ring of snapshots beside a ring of raw inputs."""

import pandas as pd

from k3core import ui
from k3core.figures import replayssm as figures
from k3core.studies import replayssm as studies
from k3core.units import bytes_text, error_text

SIZES = (4, 8, 16, 32, 64, 128)

page = ui.frame("replayssm")
v = page.controls(
    ui.MODEL,
    ui.TP,
    ui.STATE_DTYPE,
    ui.INPUT_DTYPE,
    ui.Slider("ring_capacity", 4, "ring", low=1, high=8),
    ui.Slider("ring_pushes", 11, "ring", low=2, high=16),
    ui.Choice("ring_ops", "refill", "ring", options=studies.OPERATION_LISTS),
    ui.Slider(
        "ring_head",
        12,
        "ring",
        low=0,
        high=lambda values: len(
            studies.operations(values["ring_ops"], values["ring_capacity"], values["ring_pushes"])
        ),
    ),
    ui.Slider("draft_len", 7, "flush", low=0, high=15),
    ui.Slider("flush_window", 16, "flush", low=lambda values: 1 + values["draft_len"], high=24),
    ui.Choice("flush_pattern", "chance", "flush", options=studies.PATTERNS),
    ui.Slider(
        "accepted",
        3,
        "flush",
        low=0,
        high=lambda values: 1 + values["draft_len"],
        shown=lambda values: values["flush_pattern"] == "constant",
    ),
    ui.Slider("heads", 2, "toy", low=1, high=16),
    ui.Steps("dk", 16, "toy", options=SIZES),
    ui.Steps("dv", 16, "toy", options=SIZES),
    ui.SEED,
)
toy = {"heads": v.heads, "dk": v.dk, "dv": v.dv, "state_dtype": v.state_dtype, "seed": v.seed}
results = page.study(
    studies.snapshots,
    capacity=v.ring_capacity,
    num_pushes=v.ring_pushes,
    ops=v.ring_ops,
    **toy,
)
causes = page.study(
    studies.raw_inputs,
    capacity=v.ring_capacity,
    num_pushes=v.ring_pushes,
    input_dtype=v.input_dtype,
    **toy,
)
deferred = page.study(
    studies.flush,
    draft_len=v.draft_len,
    window_len=v.flush_window,
    pattern=v.flush_pattern,
    accepted=v.accepted if v.flush_pattern == "constant" else 0,
    num_steps=results.num_ops,
    model=v.model,
    tp=v.tp,
    input_dtype=v.input_dtype,
    **toy,
)
tables = {**results.tables, **causes.tables, **deferred.tables}
different = causes.elements_different + deferred.elements_different

formats = {
    "state_format": page.t(f"option.{v.state_dtype}"),
    "input_format": page.t(f"option.{v.input_dtype}"),
}
page.metrics(
    ui.Metric(
        "snapshot_ring",
        bytes_text(v.ring_capacity * deferred.state_bytes),
        "derived",
        page.t("value.states", **formats),
    ),
    ui.Metric(
        "input_ring",
        bytes_text(deferred.ring_bytes),
        "derived",
        page.t("value.raw_inputs", **formats),
    ),
    ui.Metric("writes", f"{deferred.num_folds} / {deferred.num_steps}", "live"),
    ui.Metric("bits", f"{different}", "live"),
)
held = ", ".join(f"S{snapshot}" for snapshot in results.held_at(v.ring_head))
page.main(
    figures.main_picture({**tables, "head": pd.DataFrame({"head": [v.ring_head]})}),
    deferred.tables["steps"],
    held=held or "∅",
    fold=deferred.flush_min,
)

panels = figures.fig_replayssm(tables)


def chosen(*names: str) -> dict[str, object]:
    """Panels of the figure, by name."""
    return {name: panels[name] for name in names}


page.section(
    "order",
    chosen("snapshots", "cursor_only", "pops", "copies"),
    tables={name: tables[name] for name in ("ops", "stays", "cursor_stays", "pops")},
    wrong=results.num_wrong_pops,
    pops=results.num_pops,
)
page.section(
    "window",
    chosen("timing", "layout"),
    tables={name: tables[name] for name in ("timing", "shapes")},
    held=causes.num_held,
    lost=causes.num_lost,
)
page.section(
    "replay",
    chosen("replay"),
    columns=1,
    formula=r"S_0 \xrightarrow{\ n\ \text{accepted inputs}\ } S_n,\qquad"
    rf"\max|S_n - S_n^{{\text{{oracle}}}}| = {causes.oracle_error:.2g}",
    tables={"replay": tables["replay"]},
    different=causes.elements_different,
    oracle=error_text(causes.oracle_error),
)
page.section(
    "flush",
    chosen("writes", "recomputed"),
    formula=rf"\text{{fold when}}\ h \ge W - T + 1 = {deferred.window_len} - "
    rf"{deferred.verify_len} + 1 = {deferred.flush_min},\qquad h + T \le W",
    tables={name: tables[name] for name in ("steps", "writes")},
    folds=deferred.num_folds,
    steps=deferred.num_steps,
    recomputed=deferred.num_recomputed,
    fill=deferred.largest_fill,
    window=deferred.window_len,
)
production = f"{deferred.state_bytes / deferred.record_bytes:.1f}"
page.section(
    "bytes",
    chosen("ring_bytes"),
    columns=1,
    formula=rf"\frac{{d_k d_v}}{{3 d_k + d_v + 1}} = \frac{{{v.dk} \cdot {v.dv}}}"
    rf"{{3 \cdot {v.dk} + {v.dv} + 1}} = {causes.element_ratio:.2f},\qquad"
    rf"\frac{{{causes.snapshot_bytes:,}\ \text{{B}}}}{{{causes.input_bytes:,}\ \text{{B}}}}"
    rf" = {causes.byte_ratio:.2f}",
    tables={"ring_bytes": tables["ring_bytes"]},
    ratio=f"{causes.byte_ratio:.2f}",
    elements=f"{causes.element_ratio:.2f}",
    row=bytes_text(deferred.record_bytes),
    state=bytes_text(deferred.state_bytes),
    production=production,
    **formats,
)
page.words(
    model=page.t(f"option.{v.model}"),
    tp=v.tp,
    state=bytes_text(deferred.state_bytes),
    ratio=production,
    **formats,
)
