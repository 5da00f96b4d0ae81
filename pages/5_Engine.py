"""Page 5: two requests with a common prefix, before and after."""

import streamlit as st

from k3core import ui
from k3core.figures import engine as figures
from k3core.studies import engine as studies
from k3core.ui.tables import Wide
from k3core.units import count_text

page = ui.frame("engine")
v = page.controls(
    ui.Steps("engine_prompt", 1100, "request", options=(300, 600, 1100, 1600)),
    ui.Slider(
        "engine_shared", 1024, "request", low=0, high=lambda values: values["engine_prompt"], step=4
    ),
    ui.Steps("engine_new", 24, "request", options=(8, 16, 24)),
    ui.Toggle("engine_cache", True, "engine"),
    ui.Steps("engine_block", 512, "engine", options=(128, 256, 512)),
    ui.Steps("engine_chunk", 512, "engine", options=(128, 256, 512, 1024, 2048)),
    ui.Slider("engine_drafts", 4, "engine", low=0, high=7),
    ui.Slider("engine_quality", 0.75, "engine", low=0.25, high=1.0, step=0.05),
    ui.Steps("engine_layers", 4, "toy", options=(4, 8)),
    ui.Steps("engine_heads", 4, "toy", options=(1, 2, 4)),
    ui.Steps("engine_dk", 16, "toy", options=(8, 16, 32)),
    ui.Steps("engine_dv", 16, "toy", options=(8, 16, 32)),
    ui.Choice("engine_dtype", "float32", "toy", options=("float32", "float64")),
    ui.SEED,
    ui.MODEL,
    ui.TP,
    ui.MLA_DTYPE,
    ui.Steps("engine_world", 8, "model", options=(1, 2, 4, 8, 16)),
)
run = page.study(
    studies.before_after,
    prompt_len=v.engine_prompt,
    shared_len=v.engine_shared,
    new_tokens=v.engine_new,
    block_tokens=v.engine_block,
    chunk_tokens=v.engine_chunk,
    draft_len=v.engine_drafts,
    draft_quality=v.engine_quality,
    use_cache=v.engine_cache,
    layers=v.engine_layers,
    heads=v.engine_heads,
    dk=v.engine_dk,
    dv=v.engine_dv,
    dtype=v.engine_dtype,
    seed=v.seed,
)
growth = page.study(
    studies.growth, model=v.model, tp=v.tp, mla_dtype=v.mla_dtype, world=v.engine_world
)
tables = {**run.tables, **growth.tables}
page.metrics(
    ui.Metric(
        "reused",
        count_text(run.reused_tokens),
        "live",
        page.t("value.of_prompt", total=count_text(run.prompt_len)),
    ),
    ui.Metric("first_token", f"× {run.share:.2f}", "derived", page.t("value.of_cold")),
    ui.Metric(
        "per_step",
        f"{run.tokens_per_step:.2f}",
        "live",
        page.t("value.drafts", kept=run.num_kept_drafts, total=run.num_drafts),
    ),
    ui.Metric(
        "different",
        count_text(run.logits_different),
        "live",
        page.t("value.compared", total=count_text(tables["exact"]["logits"].sum())),
    ),
)
page.main(
    figures.main_picture(tables),
    Wide(tables["steps"], ("lane", "kind", "num_tokens", "end", "num_committed", "mflops")),
)
st.caption(
    page.t(
        "cpu.note",
        parameters=count_text(run.num_parameters),
        cold=f"{run.cpu_ms_without:.0f}",
        warm=f"{run.cpu_ms_with:.0f}",
    )
)

block, cap = v.engine_block, min(v.engine_shared, v.engine_prompt - 1)
page.section(
    "before_after",
    figures.fig_engine_before_after(tables),
    formula=[
        rf"\text{{reusable}} = \left\lfloor \frac{{\min(\text{{shared}},\ n - 1)}}{{B}}"
        rf"\right\rfloor B = \left\lfloor \frac{{{cap:,}}}{{{block}}} \right\rfloor \cdot {block}"
        rf" = {cap // block * block:,}\ \text{{tokens}}",
        r"\text{time of a pass} = \max\left(\frac{\text{bytes moved}}{\text{weight bytes}},\ "
        rf"\frac{{\text{{operations}}}}{{2 \cdot {run.num_parameters:,} \cdot "
        rf"{studies.KNEE_TOKENS}}}\right)",
        rf"\text{{MLA}} = {growth.mla_bytes_per_token:,}\ \text{{B/token}},\quad "
        rf"\text{{KDA}} = {growth.state_bytes_per_request:,}\ \text{{B}},\quad "
        rf"\text{{message}} = {growth.message_bytes:,}\ \text{{B}}",
    ],
    tables={name: tables[name] for name in ("compare", "flags", "bytes_by_length")},
    computed=count_text(run.prompt_len - run.reused_tokens),
    prompt=count_text(run.prompt_len),
    shared=count_text(v.engine_shared),
    block=block,
    reused=count_text(run.reused_tokens),
    reason=page.t(f"reason.{run.loss_reason}", mla=count_text(run.matched_mla_tokens)),
    model=page.t(f"option.{v.model}"),
    tp=v.tp,
    kda=growth.num_kda_layers,
    mla=growth.num_mla_layers,
    format=page.t(f"option.{v.mla_dtype}"),
    state_equal=count_text(growth.state_equal_tokens),
    message_equal=count_text(growth.message_equal_tokens),
)

marks = {"kept": ":green-background[{}]", "rejected": ":red-background[~~{}~~]", "model": "{}"}
page.section(
    "text",
    tables={"tokens": tables["tokens"]},
    strip=" ".join(
        marks[token.status].format(token.word) for token in tables["tokens"].itertuples()
    ),
)
rejected = tables["by_draft"].set_index("draft_len")["rejected_tokens"]
falls = ", ".join(str(k) for k in rejected.index[rejected.diff() < 0])
page.section(
    "drafts",
    figures.draft_pictures(tables),
    columns=3,
    formula=rf"\sum_{{i=0}}^{{{v.engine_drafts}}} {v.engine_quality:.2f}^i"
    rf" = {run.expected_tokens_per_step:.2f}\ \text{{tokens per step}}",
    tables={name: tables[name] for name in ("by_draft", "rollback")},
    drafts=v.engine_drafts,
    first=count_text(rejected.loc[1]),
    last=count_text(rejected.iloc[-1]),
    longest=rejected.index[-1],
    falls=page.t("drafts.falls", drafts=falls) if falls else "",
    measured=f"{run.tokens_per_step:.2f}",
    expected=f"{run.expected_tokens_per_step:.2f}",
)
page.section(
    "exact",
    figures.exact_picture(tables),
    columns=1,
    tables={"exact": tables["exact"]},
    digest=run.logits_digest[:16],
)
page.words(
    cold=count_text(run.flops_without / 1e6),
    warm=count_text(run.flops_with / 1e6),
)
