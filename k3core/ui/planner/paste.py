"""Scene that reads a text of the reader's own: a boot log, a config.json, or a downloaded plan."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from k3core.capacity.configs import ParsedConfig
from k3core.capacity.logsolve import Solved
from k3core.capacity.memory import RequestMemory
from k3core.studies import capacity as studies
from k3core.ui.page import Page
from k3core.ui.planner.controls import CONFIG_KEY, config_text
from k3core.ui.planner.links import open_with, part_of, query_of
from k3core.ui.tables import Wide
from k3core.ui.url import quoted
from k3core.units import count_text

MAX_UPLOAD_MB = 2
MAX_ERROR, MAX_NAMES = 400, 12
LOG_COLUMNS = ("finding", "line", "meaning", "value", "text")
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
        text = file.getvalue().decode("utf-8-sig", errors="replace")
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
    except ValueError as error:
        words = f"`{quoted(str(error), MAX_ERROR)}`"
        st.error(page.t("paste.refused", error=words), icon=":material/block:")
        return
    if r.parsed is not None:
        _config_result(page, r.parsed, text)
    elif r.saved is not None:
        _plan_result(page, r.saved)
    elif r.solved is not None:
        _log_result(page, r.solved, inputs)
    else:
        st.info(page.t("paste.nothing"))
        return
    for name, table in r.tables.items():
        if "finding" in table:
            table = table.assign(finding=[page.t(f"finding.{code}") for code in table["finding"]])
        if r.kind == "log":
            table = table.assign(meaning=[page.t(f"found.{code}") for code in table["code"]])
        first = LOG_COLUMNS if r.kind == "log" else table.columns
        page.data(Wide(table, [c for c in first if c in table]), f"paste_{name}")


def listed(page: Page, names: Sequence[str], most: int = 40) -> str:
    """Foreign names as code, cut where they would fill the page."""
    text = ", ".join(f"`{quoted(name, most) or ' '}`" for name in names[:MAX_NAMES])
    left = len(names) - MAX_NAMES
    return text if left <= 0 else page.t("paste.more", names=text, count=count_text(left))


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
        st.warning(page.t("paste.unknown", fields=listed(page, parsed.unknown)))
    indexer = RequestMemory(preset, 1).indexer_bytes_per_token
    for note in parsed.notes:
        st.info(page.t(f"paste.note.{note}", count=count_text(indexer)))
    if st.button(page.t("paste.use_config"), icon=":material/check:", key="_use_config"):
        st.session_state[CONFIG_KEY] = text
        open_with(page, {"model": studies.CUSTOM})


def _log_result(page: Page, solved: Solved, inputs: Mapping[str, Any]) -> None:
    """What a log determines, and the button that fills the planner with it and nothing else."""
    if solved.impossible:
        lines = [f"{line.number}: {line.text}" for line in solved.impossible]
        st.warning(page.t("paste.impossible", lines=listed(page, lines, 80)))
    if solved.contradictions:
        codes = ", ".join(page.t(f"found.{code}") for code in solved.contradictions)
        st.warning(
            page.t(
                "paste.contradiction",
                codes=codes,
                tp=solved.deployment.tp,
                model=page.t(f"option.{inputs['model']}"),
            )
        )
    if st.button(page.t("paste.fill"), icon=":material/input:", key="_fill"):
        kept = {k: x for k, x in page.query.items() if k not in ("capacity_scene", "row", "lang")}
        open_with(page, kept | part_of(solved.deployment, solved.known))


def _plan_result(page: Page, saved: studies.SavedPlan) -> None:
    """A plan that was downloaded here before, with its model where that was a reader's own."""
    plain = re.fullmatch(r"[^\W_](?:[\w. -]*[^\W_])?", saved.model)
    model = saved.model if plain else f"`{quoted(saved.model)}`"
    st.success(page.t("paste.plan", model=model))
    if st.button(page.t("paste.open_plan"), icon=":material/input:", key="_open_plan"):
        if saved.config:
            st.session_state[CONFIG_KEY] = saved.config
        open_with(page, query_of(saved.deployment))


def share_own_model(page: Page) -> None:
    """What a link does not carry: the reader's own model, and the file that does."""
    st.caption(page.t("paste.applied"))
    st.download_button(
        page.t("paste.download_config"),
        config_text(),
        file_name="config.json",
        mime="application/json",
        on_click="ignore",
    )
