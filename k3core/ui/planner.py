"""Scenes of the capacity planner beside the plan: drafts, token grid, log or config, published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from k3core.capacity.configs import ParsedConfig
from k3core.capacity.logsolve import Solved
from k3core.capacity.planner import Deployment
from k3core.capacity.presets import MODELS
from k3core.capacity.published import SUBJECTS
from k3core.errors import CapacityError
from k3core.figures import capacity as figures
from k3core.studies import capacity as studies
from k3core.studies.capacity import formulas
from k3core.ui.controls import Choice, Number, Slider, Steps
from k3core.ui.navigation import link
from k3core.ui.page import Metric, Page
from k3core.units import bytes_text, count_text, percent_text

MEAN_TOKENS = tuple(2**i * k // 2 for i in range(9, 20) for k in (2, 3)) + (2**20,)
CONTEXTS = tuple(2**i for i in range(12, 21))
VERDICTS = ("exact", "within-rounding", "not-unique", "published-wrong", "unexplained")
MAX_UPLOAD_MB = 2
CONFIG_KEY = "_capacity_config"
EXAMPLE_LOG = """Setting attention block size to 1536 tokens to ensure that attention page size is \
>= mamba page size.
Padding mamba page size by 6.27% to ensure that mamba page size and attention page size are \
exactly equal.
Add 18 padding layers, may waste at most 26.09% KV cache memory
Available KV cache memory: 37.85 GiB
GPU KV cache size: 1,887,436 tokens
Maximum concurrency for 65,536 tokens per request: 28.80x
"""
EXAMPLE_CONFIG = json.dumps(
    {
        "model_type": "kimi_linear",
        "num_hidden_layers": 27,
        "hidden_size": 2304,
        "num_attention_heads": 32,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [i for i in range(1, 28) if i not in (4, 8, 12, 16, 20, 24, 27)],
        },
    },
    indent=1,
)


def query_of(wanted: Deployment) -> dict[str, str]:
    """The query that opens the planner with a deployment; lengths move to the nearest step."""
    mean = min(MEAN_TOKENS, key=lambda tokens: abs(tokens - (wanted.mean_tokens or wanted.context)))
    longest = min(CONTEXTS, key=lambda tokens: abs(tokens - wanted.context))
    model = MODELS.get(wanted.model)
    query = {
        "model": wanted.model,
        "tp": str(wanted.tp),
        "state_dtype": wanted.state_dtype,
        "conv_dtype": wanted.conv_dtype,
        "mla_dtype": wanted.mla_dtype or (model.mla_dtype if model else "bfloat16"),
        "mean_tokens": str(mean),
        "context_len": str(longest),
        "budget_gib": str(wanted.budget_gib),
        "draft_len": str(wanted.drafts),
        "rollback_scheme": wanted.rollback,
        "drafter_layers": str(wanted.drafter_layers),
        "pool_rule": wanted.pool_rule,
        "block_quantum": str(wanted.quantum),
        "state_pool_ratio": str(wanted.state_pool_ratio),
        "slots_per_request": str(wanted.slots_per_request),
    }
    return {key: value for key, value in query.items() if value != ""}


def open_with(page: Page, query: Mapping[str, str]) -> None:
    """Go to the plan scene with these controls; the URL decides on the next run."""
    lang = page.query.get("lang")
    st.query_params.from_dict({**query, **({"lang": lang} if lang else {})})
    st.rerun()


def drafts_scene(page: Page, inputs: Mapping[str, Any]) -> None:
    """What drafting earns and costs."""
    knob = page.body_controls(Slider("acceptance_len", 3.84, "", low=1.0, high=8.0, step=0.01))
    r = page.study(studies.drafts, acceptance_len=knob.acceptance_len, **inputs)
    found = r.balance
    page.metrics(
        Metric("tokens_per_step", f"{found.tokens_per_step:.2f}", "published"),
        Metric("verify_width", str(found.verify_width), "derived"),
        Metric("added", bytes_text(found.added_bytes), "derived"),
        Metric(
            "in_flight_change",
            page.t(
                "unit.instead",
                part=count_text(found.requests_drafted),
                whole=count_text(found.requests_plain),
            ),
            "derived",
        ),
    )
    page.section(
        "drafts",
        figures.fig_drafts(r.tables),
        columns=3,
        formula=rf"\text{{gain}}(c) = E\,\frac{{1 + x c}}{{1 + x T c}},\quad E = "
        rf"{knob.acceptance_len:.2f},\ T = 8,\ x = {r.fitted_row_cost:.4f}",
        tables={"counts": r.tables["counts"].drop(columns="chosen"), "load": r.tables["load"]},
        tokens=f"{found.tokens_per_step:.2f}",
        requests=count_text(found.requests_drafted),
        even=count_text(r.break_even),
        cost=percent_text(r.fitted_row_cost),
        plain=bytes_text(found.traffic_plain),
        drafted=bytes_text(found.traffic_drafted),
    )
    st.caption(f"{r.source} · {r.golden_source}")


def grid_scene(page: Page, inputs: Mapping[str, Any]) -> None:
    """Where a prefix may be cut."""
    cells = st.columns(5)
    specs = (
        Number("grid_prompt", 10_000, "", low=2, high=1_048_576),
        Steps("grid_hash", 512, "", options=(16, 64, 128, 256, 512, 1024)),
        Steps("grid_dcp", 1, "", options=(1, 2, 4, 8, 16)),
        Steps("grid_retention", 0, "", options=(0, 2048, 4096, 6144, 8192, 12_288, 32_768)),
        Slider("grid_drop", 0, "", low=0, high=2),
    )
    knobs: dict[str, Any] = {}
    for cell, spec in zip(cells, specs, strict=True):
        with cell:
            knobs |= vars(page.body_controls(spec))
    r = page.study(
        studies.grid,
        prompt_tokens=int(knobs["grid_prompt"]),
        hash_tokens=knobs["grid_hash"],
        context_parallel=knobs["grid_dcp"],
        retention_tokens=knobs["grid_retention"],
        dropped_blocks=knobs["grid_drop"],
        **inputs,
    )
    page.metrics(
        Metric("effective", count_text(r.grid.effective), "derived"),
        Metric("hit", count_text(r.hit_tokens), "derived"),
        Metric("shortest", count_text(r.grid.shortest_hit), "derived"),
    )
    terms = ",\\ ".join(formulas.num(unit.tokens) for unit in r.grid.units)
    page.section(
        "grid",
        figures.fig_grid(r.tables),
        columns=1,
        formula=rf"\mathrm{{lcm}}({terms}) = {formulas.num(r.grid.effective)},\quad "
        rf"\max\left(\left\lfloor \tfrac{{{formulas.num(r.prompt_tokens)} - 1}}"
        rf"{{{formulas.num(r.grid.effective)}}} \right\rfloor - {r.grid.dropped_blocks},\ 0\right) "
        rf"\cdot {formulas.num(r.grid.effective)} = {formulas.num(r.hit_tokens)}",
        tables={"units": r.tables["units"], "ticks": r.tables["ticks"]},
        effective=count_text(r.grid.effective),
        hit=count_text(r.hit_tokens),
    )


def paste_scene(page: Page, inputs: Mapping[str, Any]) -> None:
    """A boot log solved back, or a config.json that becomes a model."""
    st.subheader(page.t("paste.title"), anchor="paste")
    st.markdown(page.t("paste.about"))
    left, right, _ = st.columns([1, 1, 1])
    if left.button(page.t("paste.example_log"), key="_example_log"):
        st.session_state["capacity_text"] = EXAMPLE_LOG
    if right.button(page.t("paste.example_config"), key="_example_config"):
        st.session_state["capacity_text"] = EXAMPLE_CONFIG
    file = st.file_uploader(
        page.t("paste.upload"),
        key="capacity_file",
        help=page.t("paste.upload_help", limit=MAX_UPLOAD_MB),
        max_upload_size=MAX_UPLOAD_MB,
    )
    text = st.text_area(
        page.t("paste.label"), key="capacity_text", height=180,
        placeholder=page.t("paste.placeholder"),
    )  # fmt: skip
    if file is not None:
        text = file.getvalue().decode("utf-8", errors="replace")
    if not text.strip():
        return
    try:
        r = studies.read(
            text,
            inputs["model"],
            inputs["tp"],
            inputs["state_dtype"],
            inputs["mla_dtype"],
            config=inputs["config"],
        )
    except CapacityError as error:
        st.error(page.t("bad_input", error=str(error)), icon=":material/block:")
        return
    if r.parsed is not None:
        _config_result(page, r.parsed, text)
    elif r.solved is not None:
        _log_result(page, r.solved, inputs)
    else:
        st.info(page.t("paste.nothing"))
        return
    for name, table in r.tables.items():
        if "finding" in table:
            table = table.assign(finding=[page.t(f"finding.{code}") for code in table["finding"]])
        page.data(table, f"paste_{name}")


def _config_result(page: Page, parsed: ParsedConfig, text: str) -> None:
    """The sizes of a config, what was not understood, and the button that plans with it."""
    preset = parsed.preset
    st.success(
        page.t(
            "paste.config",
            family=parsed.family,
            base=page.t("paste.no_base") if parsed.index_base is None else parsed.index_base,
            kda=preset.num_kda_layers,
            mla=preset.num_mla_layers,
            heads=preset.num_heads,
            dk=preset.dk,
            dv=preset.dv,
        )
    )
    if parsed.unknown:
        st.warning(page.t("paste.unknown", fields=", ".join(parsed.unknown)))
    for note in parsed.notes:
        st.info(page.t(f"paste.note.{note}"))
    if st.button(page.t("paste.use_config"), icon=":material/check:", key="_use_config"):
        st.session_state[CONFIG_KEY] = text
        open_with(page, {"model": studies.CUSTOM})


def _log_result(page: Page, solved: Solved, inputs: Mapping[str, Any]) -> None:
    """What a log determines, and the button that fills the planner."""
    if solved.contradictions:
        codes = ", ".join(solved.contradictions)
        st.warning(
            page.t(
                "paste.contradiction",
                codes=codes,
                tp=inputs["tp"],
                model=page.t(f"option.{inputs['model']}"),
            )
        )
    if st.button(page.t("paste.fill"), icon=":material/input:", key="_fill"):
        open_with(page, query_of(solved.deployment))


def published_scene(page: Page) -> None:
    """The table of published values, filtered; each row opens the planner."""
    cells = st.columns(3)
    with cells[0]:
        chosen = page.body_controls(
            Choice("published_subject", "all", "", options=("all", *SUBJECTS))
        )
    with cells[1]:
        verdict = page.body_controls(
            Choice("published_verdict", "all", "", options=("all", *VERDICTS))
        )
    words = cells[2].text_input(page.t("published.search"), key="published_words")
    r = page.study(
        studies.published,
        subject_code=chosen.published_subject,
        verdict=verdict.published_verdict,
        words=words,
    )
    counts = r.tables["counts"].set_index("verdict")["values"]
    agree = int(counts[["exact", "within-rounding", "not-unique"]].sum())
    page.metrics(
        Metric("verdict", page.t("unit.of", part=agree, whole=r.num_records), "derived"),
        Metric("wrong", str(counts["published-wrong"]), "derived"),
        Metric("unexplained", str(counts["unexplained"]), "derived"),
    )
    page.section(
        "published",
        figures.fig_published(r.tables) if len(r.tables["ratios"]) else None,
        columns=1,
        shown=r.num_shown,
        total=r.num_records,
    )
    if not r.num_shown:
        st.info(page.t("published.none"))
        return
    opening = {code: query_of(wanted) for code, wanted in r.deployments.items()}
    for code, (prompt, dropped) in r.prompts.items():
        if code in opening:
            hashed = str(r.deployments[code].quantum)
            opening[code] |= {
                "capacity_scene": "grid",
                "grid_prompt": str(prompt),
                "grid_drop": str(dropped),
                "grid_hash": hashed,
            }
    links = [
        "?" + urlencode(opening[code]) if code in opening else None
        for code in r.tables["records"]["id"]
    ]
    table = r.tables["records"].copy()
    table.insert(1, "open", links)
    table["verdict"] = [page.t(f"option.{code}") for code in table["verdict"]]
    st.dataframe(
        table,
        hide_index=True,
        height=460,
        column_config={
            **{name: page.t(f"table.{name}") for name in table if name not in ("open", "thread")},
            "thread": st.column_config.LinkColumn(page.t("table.thread"), display_text=r"(\d+)$"),
            "open": st.column_config.LinkColumn(
                page.t("table.open"), display_text=":material/open_in_new:"
            ),
        },
    )
    st.download_button(
        page.t("download"),
        table.drop(columns="open").to_csv(index=False).encode(),
        file_name="published.csv",
        mime="text/csv",
        on_click="ignore",
    )
    if opening:
        rows = r.tables["records"].set_index("id")
        code = st.selectbox(
            page.t("published.open_row"),
            list(opening),
            format_func=lambda c: f"{c} · {rows.at[c, 'source']} · {rows.at[c, 'what']}",
            key="published_row",
        )
        link("capacity", page.lang, opening[code], page.t("table.open"))
