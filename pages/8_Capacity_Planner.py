"""Page 8: which roof a deployment stands under, and what moves it."""

import streamlit as st

from k3core import ui
from k3core.capacity.profiles import PROFILES
from k3core.capacity.schemes import SCHEMES
from k3core.dtypes import dtype_bytes
from k3core.figures import capacity as figures
from k3core.studies import capacity as studies
from k3core.units import bytes_text, count_text

MEAN_TOKENS = tuple(2**i * k // 2 for i in range(9, 20) for k in (2, 3)) + (2**20,)


def num(value: float, digits: int = 0) -> str:
    """A number for a formula; the braces keep the separator from growing a space."""
    return f"{value:,.{digits}f}".replace(",", "{,}")


page = ui.frame("capacity")
v = page.controls(
    ui.MODEL,
    ui.TP,
    ui.STATE_DTYPE,
    ui.MLA_DTYPE,
    ui.Choice("conv_dtype", "bfloat16", "model", options=("bfloat16", "float32")),
    ui.Steps("mean_tokens", 8192, "deployment", options=MEAN_TOKENS),
    ui.Number("budget_gib", 28.5, "deployment", low=0.5, high=512.0, step=0.5),
    ui.DRAFT_LEN,
    ui.Choice("rollback_scheme", "raw-inputs", "step", options=tuple(SCHEMES)),
    ui.Choice("pool_rule", "split", "pool", options=tuple(PROFILES), style="segments"),
    ui.Slider(
        "state_pool_ratio",
        0.9,
        "pool",
        low=0.1,
        high=5.0,
        step=0.1,
        shown=lambda values: values["pool_rule"] == "split",
    ),
    ui.Slider(
        "slots_per_request",
        5,
        "pool",
        low=1,
        high=5,
        shown=lambda values: values["pool_rule"] == "split",
    ),
    ui.Steps(
        "block_quantum",
        128,
        "pool",
        options=(16, 64, 128, 512),
        shown=lambda values: values["pool_rule"] == "blocks",
    ),
)
r = page.study(studies.plan, **vars(v))
memory, cost, pool = r.memory, r.cost, r.pool
split = r.profile.code == "split"

page.metrics(
    ui.Metric("requests", count_text(r.max_requests), "derived", page.t(f"verdict.at-{r.verdict}")),
    ui.Metric("request_bytes", bytes_text(r.request_bytes), "derived"),
    ui.Metric("once", bytes_text(memory.state_bytes_per_request), "derived"),
    ui.Metric(
        "exchange", page.t("unit.tokens", count=count_text(memory.break_even_len)), "derived"
    ),
)
page.chart(figures.bill(r.tables), "bill")
page.main(
    figures.main_picture(r.tables),
    r.tables["roofs"],
    engine=r.profile.engine,
    version=r.profile.version,
    date=r.profile.date,
)
block = memory.block_tokens(v.block_quantum)
if v.mean_tokens < block:
    st.info(
        page.t("profile.short_prompt", tokens=count_text(v.mean_tokens), block=count_text(block))
    )

schemes = r.tables["schemes"].set_index("scheme")["extra_bytes"]
page.section(
    "schemes",
    figures.fig_schemes(r.tables),
    formula=(
        rf"R = {memory.model.num_kda_layers} \cdot {cost.num_rows} \cdot "
        rf"{num(cost.record_bytes_per_token_layer)} + {num(cost.conv_draft_bytes)}"
        rf" = {num(cost.extra_bytes)}\ \text{{B}}"
        if cost.scheme.record
        else rf"R = {cost.num_slots} \cdot {num(cost.slot_bytes)}"
        + ("" if cost.scheme.slots_hold_live else rf" + {num(cost.conv_draft_bytes)}")
        + (rf" - {num(memory.state_bytes_per_request)}" if cost.scheme.slots_hold_live else "")
        + rf" = {num(cost.extra_bytes)}\ \text{{B}}"
    ),
    tables={"schemes": r.tables["schemes"].drop(columns=["text", "chosen"])},
    drafts=v.draft_len,
    chosen=bytes_text(cost.extra_bytes),
    snapshots=bytes_text(schemes["snapshots"]),
    conv=bytes_text(cost.conv_draft_bytes),
)
if split:
    page.section(
        "pools",
        figures.fig_pools(r.tables),
        tables={"pools": r.tables["pools"], "ratios": r.tables["ratios"]},
        admitted=count_text(r.max_requests),
        idle=bytes_text(r.idle_bytes),
        tokens=count_text(v.mean_tokens),
        best=f"{r.best_ratio:.2f}",
        best_requests=count_text(r.best_ratio_requests),
    )
else:
    page.section(
        "pools_blocks",
        figures.fig_pools(r.tables),
        columns=1,
        tables={"pools": r.tables["pools"]},
        admitted=count_text(r.max_requests),
        idle=bytes_text(r.idle_bytes),
        block=count_text(pool.block_tokens),
        block_bytes=bytes_text(pool.block_bytes),
        state_blocks=pool.state_blocks_per_request,
        reuse=count_text(pool.block_tokens + 1),
    )
page.section(
    "degrees",
    figures.fig_break_even(r.tables),
    tables={"by_tp": r.tables["by_tp"].drop(columns="chosen")},
    tp=v.tp,
    tokens=count_text(memory.break_even_len),
)

model = memory.model
chain = [
    (r"h", rf"\tfrac{{{model.num_heads}}}{{{memory.tp}}} = {memory.num_heads}"),
    (
        r"s",
        r"h\,d_k\,d_v\,b",
        rf"{memory.num_heads} \cdot {model.dk} \cdot {model.dv} \cdot "
        rf"{dtype_bytes(memory.state_dtype)} = {num(memory.state_bytes_per_layer)}\ \text{{B}}",
    ),
    (
        r"c",
        r"(W - 1)\,h\,(2 d_k + d_v)\,b",
        rf"{memory.conv_rows} \cdot {num(memory.conv_channels)} \cdot "
        rf"{dtype_bytes(memory.conv_dtype)} = {num(memory.conv_bytes_per_layer)}\ \text{{B}}",
    ),
    (
        r"M",
        rf"{model.num_kda_layers}\,(s + c)",
        rf"{num(memory.state_bytes_per_request)}\ \text{{B}}",
    ),
    (
        r"m",
        rf"{model.num_mla_layers} \cdot {model.mla_latent_dim} \cdot "
        rf"{dtype_bytes(memory.mla_dtype)}",
        rf"{num(memory.mla_bytes_per_token)}\ \text{{B}}",
    ),
    (r"L^*", rf"M / m = {num(memory.break_even_len, 1)}"),
]
if split:
    share = f"{v.state_pool_ratio:.1f} / {1 + v.state_pool_ratio:.1f}"
    chain += [
        (
            r"N_s",
            rf"\left\lfloor {num(v.budget_gib, 1)}\ \text{{GiB}} \cdot {share} \,/\, "
            rf"({v.slots_per_request} M + R) \right\rfloor",
            rf"\left\lfloor \tfrac{{{num(pool.state_pool_bytes)}}}"
            rf"{{{num(pool.constant_bytes_per_request)}}} \right\rfloor = {num(pool.state_roof)}",
        ),
        (
            r"N_m",
            rf"\tfrac{{{num(pool.mla_pool_tokens)}}}{{{num(v.mean_tokens)}}} = "
            rf"{num(pool.mla_roof(v.mean_tokens), 1)}",
        ),
        (r"N", rf"\min(N_s, \lfloor N_m \rfloor) = {num(r.max_requests)}"),
    ]
else:
    chain += [
        (
            r"B",
            rf"{pool.quantum} \left\lceil \tfrac{{{num(pool.page_need_bytes)}}}"
            rf"{{{pool.quantum} \cdot {num(memory.mla_bytes_per_token_layer)}}} \right\rceil",
            rf"{num(pool.block_tokens)}",
        ),
        (
            r"n",
            rf"\lceil L / B \rceil + {pool.num_kda_groups} \cdot {pool.state_blocks_per_group}",
            rf"{num(pool.blocks_per_request(v.mean_tokens))}",
        ),
        (
            r"N",
            rf"\lfloor {num(pool.num_blocks)} / {num(pool.blocks_per_request(v.mean_tokens))} "
            rf"\rfloor = {num(r.max_requests)}",
        ),
    ]
page.section("chain")
cells = st.columns(3)
for index, (symbol, *steps) in enumerate(chain):
    lines = r" \\ ".join(f"&= {step}" for step in steps)
    cells[3 * index // len(chain)].latex(rf"\begin{{aligned}} {symbol} {lines} \end{{aligned}}")
page.data(r.tables["bill"].drop(columns=["start", "end", "text"]), "bill")
st.caption(page.t("profile.caption", source=model.source, note=page.t(f"note.{model.code}")))
page.words()
