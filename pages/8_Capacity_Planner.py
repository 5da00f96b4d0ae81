"""Page 8: which roof a deployment stands under, what moves it, and who has measured it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pandas as pd
import streamlit as st

from k3core import ui
from k3core.capacity.configs import parse_config
from k3core.capacity.model import ModelPreset
from k3core.capacity.presets import MODELS
from k3core.capacity.profiles import PROFILES
from k3core.capacity.schemes import SCHEMES
from k3core.errors import CapacityError
from k3core.figures import capacity as figures
from k3core.studies import capacity as studies
from k3core.studies.capacity import formulas
from k3core.ui import planner
from k3core.ui.controls import Values, resolve
from k3core.ui.planner import CONTEXTS, MEAN_TOKENS
from k3core.units import bytes_text, count_text, percent_text

SCENES = ("plan", "drafts", "grid", "paste", "published")

page = ui.frame("capacity")
config = str(st.session_state.get(planner.CONFIG_KEY, ""))
models = (*MODELS, *((studies.CUSTOM,) if config else ()))


def model_of(values: Values) -> ModelPreset:
    return (
        parse_config(config).preset
        if values["model"] == studies.CUSTOM
        else MODELS[values["model"]]
    )


def is_split(values: Values) -> bool:
    return bool(values["pool_rule"] == "split")


SPECS = (
    ui.Choice("model", "kimi-k3", "model", options=models),
    ui.Steps(
        "tp",
        lambda values: 8 if 8 in model_of(values).valid_tps else max(model_of(values).valid_tps),
        "model",
        options=lambda values: model_of(values).valid_tps,
    ),
    ui.STATE_DTYPE,
    ui.Choice(
        "mla_dtype",
        lambda values: model_of(values).mla_dtype,
        "model",
        options=("float8", "bfloat16", "float32"),
    ),
    ui.Choice("conv_dtype", "bfloat16", "model", options=("bfloat16", "float32")),
    ui.Steps("mean_tokens", 8192, "deployment", options=MEAN_TOKENS),
    ui.Steps("context_len", 131_072, "deployment", options=CONTEXTS),
    ui.Number("budget_gib", 28.5, "deployment", low=0.5, high=512.0, step=0.5),
    ui.Number("max_running", 0, "deployment", low=0, high=4096),
    ui.Number("target_requests", 64, "deployment", low=1, high=4096),
    ui.DRAFT_LEN,
    ui.Choice("rollback_scheme", "raw-inputs", "step", options=tuple(SCHEMES)),
    ui.Slider("drafter_layers", 0, "step", low=0, high=8),
    ui.Choice("pool_rule", "split", "pool", options=tuple(PROFILES), style="segments"),
    ui.Slider("state_pool_ratio", 0.9, "pool", low=0.1, high=5.0, step=0.1, shown=is_split),
    ui.Slider("slots_per_request", 5, "pool", low=1, high=5, shown=is_split),
    ui.Steps(
        "block_quantum", 128, "pool", options=(16, 64, 128, 512), shown=lambda v: not is_split(v)
    ),
)


def values_of(query: Mapping[str, str]) -> dict[str, Any]:
    """What the controls would say for a query: a pinned configuration, or a published row."""
    values: dict[str, Any] = {}
    for spec in SPECS:
        fallback = spec.fit(resolve(spec.default, values), values)
        raw = query.get(spec.key)
        try:
            values[spec.key] = fallback if raw is None else spec.parse(raw, values)
        except ValueError:
            values[spec.key] = fallback
    return values


def plan_scene() -> None:
    """The bill over the roofs, then what moves them."""
    r = page.study(studies.plan, config=config_of(v.model), **vars(v))
    tables, second = dict(r.tables), pinned_study()
    if second is not None:
        tables |= {f"{name}_b": second.tables[name] for name in ("bill", "roofs", "point")}
    memory, cost = r.memory, r.cost
    block = r.planned.blocks.block_tokens
    page.metrics(
        ui.Metric(
            "requests", count_text(r.max_requests), "derived", page.t(f"verdict.at-{r.verdict}")
        ),
        ui.Metric("request_bytes", bytes_text(r.request_bytes), "derived"),
        ui.Metric("once", bytes_text(memory.state_bytes_per_request), "derived"),
        ui.Metric(
            "exchange", page.t("unit.tokens", count=count_text(memory.break_even_len)), "derived"
        ),
    )
    page.chart(figures.bill(tables), "bill")
    page.main(
        figures.main_picture(tables),
        r.tables["roofs"],
        engine=r.profile.engine,
        version=r.profile.version,
        date=r.profile.date,
    )
    pin_row(r, second)
    if v.mean_tokens < block:
        st.info(
            page.t(
                "profile.short_prompt", tokens=count_text(v.mean_tokens), block=count_text(block)
            )
        )
    warnings_section(r)
    roof_sections(r)
    schemes = r.tables["schemes"].set_index("scheme")["extra_bytes"]
    page.section(
        "schemes",
        figures.fig_schemes(r.tables),
        formula=formulas.rollback_formula(cost),
        tables={"schemes": r.tables["schemes"].drop(columns=["text", "chosen"])},
        drafts=v.draft_len,
        chosen=bytes_text(cost.extra_bytes),
        snapshots=bytes_text(schemes["snapshots"]),
        conv=bytes_text(cost.conv_draft_bytes),
    )
    pool_section(r)
    page.section(
        "degrees",
        figures.fig_break_even(r.tables),
        tables={"every_tp": r.tables["every_tp"].drop(columns="chosen")},
        tp=v.tp,
        tokens=count_text(memory.break_even_len),
    )
    page.section("chain")
    cells, lines = st.columns(3), formulas.chain(r.planned)
    for index, line in enumerate(lines):
        cells[3 * index // len(lines)].latex(line)
    page.data(r.tables["bill"].drop(columns=["start", "end", "text"]), "bill")
    page.data(r.tables["numbers"], "plan")
    page.data(r.tables["profile"], "profile")
    st.download_button(
        page.t("download.json"),
        json.dumps(r.planned.as_dict(), indent=2),
        file_name="capacity_plan.json",
        mime="application/json",
        on_click="ignore",
    )
    note = page.t(f"note.{memory.model.code}")
    st.caption(page.t("profile.caption", source=memory.model.source, note=note))


def config_of(model: str) -> str:
    """The config text where it is used, so that cached results do not depend on it elsewhere."""
    return config if model == studies.CUSTOM else ""


def pinned_study() -> Any:
    """The plan of configuration B, or None; one that cannot be planned says why."""
    pinned = page.query.get("pin", "")
    if not pinned:
        return None
    values = values_of(dict(parse_qsl(pinned)))
    try:
        return studies.plan(config=config_of(values["model"]), **values)
    except CapacityError as error:
        st.warning(page.t("pin.unusable", error=str(error)))
        return None


def pin_row(r: Any, second: Any) -> None:
    """Pin this configuration, or compare with the pinned one and let it go."""
    left, right = st.columns([1, 3], vertical_alignment="center")
    if second is None:
        if left.button(page.t("pin.button"), icon=":material/push_pin:", key="_pin"):
            own = {k: text for k, text in page.query.items() if k not in ("lang", "pin")}
            st.query_params["pin"] = urlencode(own) or "model=kimi-k3"
            st.rerun()
        return
    if left.button(page.t("pin.remove"), icon=":material/close:", key="_unpin"):
        st.query_params.from_dict({k: x for k, x in page.query.items() if k != "pin"})
        st.rerun()
    other = values_of(dict(parse_qsl(page.query["pin"])))
    names = [
        f"{page.t(f'control.{key}')} {option_text(value)}"
        for key, value in other.items()
        if value != vars(v)[key]
    ]
    text = page.t(
        "pin.compare",
        a=count_text(r.max_requests),
        b=count_text(second.max_requests),
        a_bytes=bytes_text(r.request_bytes),
        b_bytes=bytes_text(second.request_bytes),
    )
    if names:
        text += " " + page.t("pin.changed", names="; ".join(names))
    right.markdown(f"{text} {page.t('main_b.look')}")


def option_text(value: Any) -> str:
    """The word of a code; a number as it is."""
    text = page.t(f"option.{value}")
    return str(value) if text.startswith("⟦") else text


def warnings_section(r: Any) -> None:
    """Known production faults that this plan runs into."""
    found = r.warnings
    title = "warnings.title" if found else "warnings.none"
    with st.expander(page.t(title, count=len(found)), icon=":material/warning:"):
        for warning in found:
            words = {name: _warning_text(name, value) for name, value in warning.values.items()}
            st.markdown(f"{page.t(f'warnings.{warning.code}', **words)} :gray[{warning.source}]")


def _warning_text(name: str, value: float) -> str:
    if name in ("bytes", "need"):
        return bytes_text(value)
    if name in ("share", "before", "after"):
        return percent_text(value)
    return count_text(value)


def roof_sections(r: Any) -> None:
    """The roofs in words, and the inverse: what a target needs."""
    target, deployment = r.target, r.planned.deployment
    roofs = ", ".join(
        page.t(f"roof.{roof.code}", count=count_text(roof.requests)) for roof in r.planned.roofs
    )
    page.section(
        "limits",
        tables={"limits": r.tables["limits"]},
        verdict=page.t(f"verdict.at-{r.verdict}"),
        tokens=count_text(r.mean_tokens),
        roofs=roofs,
        exchange=count_text(r.memory.break_even_len),
    )
    page.section(
        "target",
        tables={"target": pd.DataFrame([asdict(target)])},
        requests=count_text(target.requests),
        tokens=count_text(target.mean_tokens),
        budget=bytes_text(target.budget_bytes),
        slots=count_text(target.state_slots),
        ratio=f"{target.pool_ratio:.2f}",
        blocks=count_text(target.num_blocks),
        block=count_text(r.planned.blocks.block_tokens),
        block_budget=bytes_text(target.block_budget_bytes),
        longest=count_text(target.longest_context),
        fits=page.t("target.fits" if target.fits else "target.misses"),
        gib=deployment.budget_gib,
    )


def pool_section(r: Any) -> None:
    """What fills each pool."""
    pool, words = r.pool, {"admitted": count_text(r.max_requests), "idle": bytes_text(r.idle_bytes)}
    if is_split(vars(v)):
        page.section(
            "pools",
            figures.fig_pools(r.tables),
            tables={"pools": r.tables["pools"], "ratios": r.tables["ratios"]},
            tokens=count_text(v.mean_tokens),
            best=f"{r.best_ratio:.2f}",
            best_requests=count_text(r.best_ratio_requests),
            **words,
        )
        return
    page.section(
        "pools_blocks",
        figures.fig_pools(r.tables),
        columns=1,
        tables={"pools": r.tables["pools"]},
        block=count_text(pool.block_tokens),
        block_bytes=bytes_text(pool.block_bytes),
        state_blocks=pool.state_blocks_per_request,
        reuse=count_text(pool.block_tokens + 1),
        **words,
    )


scene = page.choice("capacity_scene", SCENES)
v = page.controls(*SPECS)
if v.model == studies.CUSTOM:
    st.caption(page.t("paste.applied"))
inputs = {key: value for key, value in vars(v).items() if key != "target_requests"}
inputs["config"] = config_of(v.model)
if scene == "plan":
    plan_scene()
elif scene == "drafts":
    planner.drafts_scene(page, inputs)
elif scene == "grid":
    planner.grid_scene(page, inputs)
elif scene == "paste":
    planner.paste_scene(page, inputs)
else:
    planner.published_scene(page)
page.words()
