"""Page 1: what a rejected draft costs, and how the state comes back."""

from k3core import ui
from k3core.figures import decode as figures
from k3core.studies import decode as studies
from k3core.ui.tables import Wide
from k3core.units import bytes_text, count_text, error_text, percent_text

page = ui.frame("decode")
v = page.controls(
    ui.MODEL,
    ui.TP,
    ui.STATE_DTYPE,
    ui.MLA_DTYPE,
    ui.Choice("input_scheme", "raw-inputs", "step", options=studies.INPUT_SCHEMES),
    ui.DRAFT_LEN,
    ui.ACCEPTED,
    ui.Slider("heads", 2, "toy", low=1, high=16),
    ui.Steps("dk", 16, "toy", options=(4, 8, 16, 32, 64, 128)),
    ui.Steps("dv", 16, "toy", options=(4, 8, 16, 32, 64, 128)),
    ui.INPUT_DTYPE,
    ui.SEED,
)
step = page.study(
    studies.rollback,
    model=v.model,
    tp=v.tp,
    state_dtype=v.state_dtype,
    mla_dtype=v.mla_dtype,
    input_scheme=v.input_scheme,
    draft_len=v.draft_len,
    accepted=v.accepted,
    heads=v.heads,
    dk=v.dk,
    dv=v.dv,
    seed=v.seed,
)
scheme = page.t(f"label.{v.input_scheme}")
state_format = page.t(f"option.{v.state_dtype}")
page.metrics(
    ui.Metric(
        "snapshots",
        bytes_text(step.snapshot_total_bytes),
        "derived",
        page.t("value.state_format", state=state_format),
    ),
    ui.Metric("inputs", bytes_text(step.input_total_bytes), "derived", scheme),
    ui.Metric(
        "ratio",
        f"{step.ratio:.1f} ×",
        "derived",
        page.t("value.ratio_of", state=state_format, scheme=scheme),
    ),
    ui.Metric("bits", f"{step.bits_different}", "live"),
)
page.main(figures.main_picture(step.tables), step.tables["window"])

page.section(
    "principle",
    figures.fig_replay_principle(step.tables),
    formula=[
        rf"\text{{snapshot}} = {step.num_kda_layers} \cdot {step.state_bytes_per_layer:,}"
        rf" = {step.bytes_per_snapshot:,}\ \text{{B per token}}",
        rf"\text{{inputs}} = {step.num_kda_layers} \cdot {step.record_bytes_per_token_layer:,}"
        rf" = {step.bytes_per_input:,}\ \text{{B per token}}",
    ],
    tables={name: step.tables[name] for name in ("tensors", "sizes", "scenarios")},
    snapshots=bytes_text(step.bytes_per_snapshot),
    inputs=bytes_text(step.bytes_per_input),
    scheme=scheme,
    state=state_format,
    ratio=f"{step.element_ratio:.2f}",
    size=step.inputs_smaller_from,
)
page.section(
    "pollution",
    figures.state_pictures(step.tables),
    columns=4,
    tables={"state": step.tables["state"]},
    error=percent_text(step.polluted_error, 0),
    rejected=step.window_len - step.num_accepted,
)
checks = page.study(
    studies.consistency, draft_len=v.draft_len, heads=v.heads, dk=v.dk, dv=v.dv, seed=v.seed
)
page.section(
    "consistency",
    figures.fig_replay_consistency(checks.tables),
    columns=3,
    tables={
        name: Wide(table, (table.columns[0], "elements_different", "oracle_error", "verdict"))
        for name, table in checks.tables.items()
    },
    passed=checks.num_pass,
    cases=checks.num_cases,
    error=error_text(checks.worst_oracle_error),
)
cost = page.study(
    studies.snapshot_cost,
    heads=v.heads,
    dk=v.dk,
    dv=v.dv,
    state_dtype=v.state_dtype,
    input_dtype=v.input_dtype,
)
page.section(
    "cost",
    figures.fig_snapshot_cost(cost.tables),
    formula=rf"\frac{{d_k d_v}}{{3 d_k + d_v + 1}} = \frac{{{v.dk} \cdot {v.dv}}}"
    rf"{{3 \cdot {v.dk} + {v.dv} + 1}} = {cost.ratio:.2f}",
    tables=cost.tables,
    ratio=f"{cost.ratio:.2f}",
    byte_ratio=f"{cost.byte_ratio:.2f}",
    state=state_format,
    inputs=page.t(f"option.{v.input_dtype}"),
)
page.words(
    model=page.t(f"option.{v.model}"),
    tp=v.tp,
    snapshot=bytes_text(step.bytes_per_snapshot),
    tokens=count_text(step.snapshot_total_bytes / step.mla_bytes_per_token),
)
