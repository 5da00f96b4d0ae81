"""Page 6: a long prefill shared by several ranks, and what they must tell each other."""

import streamlit as st

from k3core import ui
from k3core.figures import parallel as figures
from k3core.studies import parallel as studies
from k3core.ui.tables import Wide
from k3core.units import bytes_text, count_text, error_text, seconds_text
from k3core.units import tex_number as num

page = ui.frame("parallel")
v = page.controls(
    ui.MODEL,
    ui.TP,
    ui.Choice("kcp_row_dtype", "bfloat16", "model", options=("float8", "bfloat16")),
    ui.Steps("kcp_len", 65_536, "text", options=tuple(2**i for i in range(12, 21))),
    ui.Slider("kcp_ranks", 4, "text", low=1, high=16),
    ui.Slider("kcp_documents", 1, "text", low=1, high=6),
    ui.Steps("kcp_bandwidth", 50, "network", options=(5, 10, 25, 50, 100, 200, 450, 900)),
    ui.Steps("kcp_latency", 10, "network", options=(1, 2, 5, 10, 20, 50, 100)),
    ui.Steps("kcp_toy_len", 64, "toy", options=(32, 48, 64, 96, 128, 192, 256)),
    ui.Slider("kcp_heads", 2, "toy", low=1, high=4),
    ui.Steps("kcp_dk", 16, "toy", options=(4, 8, 16, 32, 64)),
    ui.Steps("kcp_dv", 16, "toy", options=(4, 8, 16, 32, 64)),
    ui.SEED,
)
sent = page.study(
    studies.exchange,
    model=v.model,
    tp=v.tp,
    row_dtype=v.kcp_row_dtype,
    num_tokens=v.kcp_len,
    ranks=v.kcp_ranks,
    documents=v.kcp_documents,
    bandwidth_gb=float(v.kcp_bandwidth),
    latency_us=float(v.kcp_latency),
    seed=v.seed,
)
toy = page.study(
    studies.merge_check,
    ranks=v.kcp_ranks,
    documents=v.kcp_documents,
    heads=v.kcp_heads,
    dk=v.kcp_dk,
    dv=v.kcp_dv,
    toy_len=v.kcp_toy_len,
    seed=v.seed,
)
kda, mla = sent.num_kda_layers, sent.num_mla_layers
row_format = page.t(f"option.{v.kcp_row_dtype}")
page.metrics(
    ui.Metric(
        "message",
        bytes_text(sent.message_bytes),
        "derived",
        page.t("value.message", layers=kda, total=bytes_text(kda * sent.message_bytes)),
    ),
    ui.Metric(
        "rows",
        bytes_text(sent.rows_sent_bytes),
        "derived",
        page.t(
            "value.rows",
            layers=mla,
            total=bytes_text(mla * sent.rows_sent_bytes),
            format=row_format,
        ),
    ),
    ui.Metric(
        "equal",
        count_text(sent.equal_tokens),
        "derived",
        page.t("value.equal", total=count_text(sent.equal_tokens_of_model)),
    ),
    ui.Metric("error", error_text(toy.output_error), "live"),
)
ratio = sent.tokens_per_rank / sent.equal_tokens
wide, narrow = st.columns([2.1, 1], gap="medium")
with wide:
    page.main(
        figures.main_picture(sent.tables),
        Wide(sent.tables["squares"], ("rank", "kind", "bytes")),
        crossing=page.t(
            "main.alone" if v.kcp_ranks == 1 else "main.crossing",
            tokens=count_text(sent.tokens_per_rank),
            ratio=f"{ratio:.3g}",
            whole=f"{sent.tokens_per_rank / sent.equal_tokens_of_model:.3g}",
            kda=kda,
            mla=mla,
        ),
    )
with narrow:
    page.chart(figures.crossing_picture(sent.tables), "crossing")

page.section(
    "partners",
    figures.partner_pictures({**sent.tables, **toy.tables}),
    formula=[
        r"S_r = M_{r-1}\,S_{r-1} + S^{\text{ext}}_{r-1}",
        r"M = \prod_t (I - \beta_t k_t k_t^{\top})\,\mathrm{Diag}(e^{g_t})",
    ],
    tables={"pairs": sent.tables["pairs"], "depth": toy.tables["depth"]},
    used=sent.num_used,
    gathered=sent.num_gathered,
)
page.section(
    "merge",
    figures.merge_pictures(toy.tables),
    formula=[
        r"\text{message} = H\,d_k (d_k + d_v) \cdot \text{bytes}",
        rf"\text{{toy}} = {v.kcp_heads} \cdot {v.kcp_dk} \cdot {v.kcp_dk + v.kcp_dv} \cdot 8 = "
        rf"{num(toy.formula_bytes)}\ \text{{B}}"
        if v.kcp_ranks > 1
        else r"\text{toy} = 0\ \text{B}",
        rf"{sent.num_heads} \cdot {sent.dk} \cdot {sent.dk + sent.dv} \cdot 4 = "
        rf"{num(sent.one_message_bytes)}\ \text{{B}}",
        rf"\tfrac{{{num(sent.one_message_bytes)}}}{{{num(sent.row_bytes)}}} = "
        rf"{num(round(sent.equal_tokens, 1))}\ \text{{tokens}}",
        rf"\tfrac{{{kda} \cdot {num(sent.one_message_bytes)}}}{{{mla} \cdot {num(sent.row_bytes)}}}"
        rf" = {num(round(sent.equal_tokens_of_model, 1))}\ \text{{tokens, whole model}}",
    ],
    tables={
        "traffic": Wide(toy.tables["traffic"], ("rank", "sent_bytes", "received_bytes")),
        "error_by_rank": toy.tables["error_by_rank"],
        "measured": toy.tables["measured"],
    },
    error=error_text(toy.state_error),
    measured=bytes_text(toy.sent_bytes),
    halo=bytes_text(toy.halo_bytes),
    production_halo=bytes_text(sent.halo_bytes),
)
hops = v.kcp_ranks - 1
page.section(
    "time",
    figures.time_pictures(sent.tables),
    formula=[
        r"t = (P-1)\left(\lambda + \frac{\text{bytes}}{b}\right)",
        *(
            rf"{hops}\left({v.kcp_latency}\ \text{{µs}} + \tfrac{{{num(num_bytes)}}}"
            rf"{{{v.kcp_bandwidth} \cdot 10^9}}\ \text{{s}}\right)"
            rf" = \text{{{seconds_text(seconds)}}}"
            for num_bytes, seconds in (
                (sent.message_bytes, sent.kda_seconds),
                (sent.rows_sent_bytes, sent.mla_seconds),
            )
        ),
    ],
    tables={name: sent.tables[name] for name in ("time_by_len", "time_by_ranks")},
    bandwidth=v.kcp_bandwidth,
    latency=v.kcp_latency,
    kda=seconds_text(sent.kda_seconds),
    mla=seconds_text(sent.mla_seconds),
)
page.section(
    "length",
    figures.length_pictures(sent.tables),
    tables={"by_length": sent.tables["by_length"]},
    format=row_format,
)
page.words(
    rows=bytes_text(sent.rows_sent_bytes),
    message=bytes_text(sent.message_bytes),
)
