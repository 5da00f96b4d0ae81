"""Controls of the capacity planner.

Where a list of steps is offered, a link may name any value between the bounds: a published row or a
boot log has the length that it has. Such a value joins the list until the reader moves away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from k3core.capacity.configs import parse_config
from k3core.capacity.model import ModelPreset
from k3core.capacity.planner import CapacityPlan, plan
from k3core.capacity.presets import MODELS, REPORTED, get_preset
from k3core.capacity.profiles import PROFILES
from k3core.capacity.schemes import SCHEMES
from k3core.studies.capacity import CUSTOM, deployment
from k3core.ui.controls import Choice, Control, Number, Slider, Steps, Text, Values, resolve
from k3core.ui.shared import DRAFT_LEN, STATE_DTYPE

CONFIG_KEY = "_capacity_config"
MEAN_TOKENS = tuple(2**i * k // 2 for i in range(9, 20) for k in (2, 3)) + (2**20,)
CONTEXTS = tuple(2**i for i in range(12, 21))
MAX_LENGTH = 2**24
FORMATS = ("float8", "bfloat16", "float32")


def config_text() -> str:
    """The ``config.json`` that this session plans with, or an empty string."""
    return str(st.session_state.get(CONFIG_KEY, ""))


def model_of(values: Values) -> ModelPreset:
    """The model that the controls name."""
    if values["model"] == CUSTOM:
        return parse_config(config_text()).preset
    return get_preset(values["model"])


def is_split(values: Values) -> bool:
    return bool(values["pool_rule"] == "split")


@dataclass(frozen=True)
class OpenSteps(Steps):
    """Steps, and any other whole number that ``allowed`` lets in from a link."""

    allowed: Callable[[int, Values], bool] = lambda value, values: 1 <= value <= MAX_LENGTH

    def parse(self, raw: str, values: Values) -> Any:
        number = int(raw)
        if number in resolve(self.options, values) or self.allowed(number, values):
            return number
        raise ValueError(raw)

    def fit(self, value: Any, values: Values) -> Any:
        return value if self.allowed(value, values) else super().fit(value, values)

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        options = sorted({*resolve(self.options, values), st.session_state[self.key]})
        return Steps(self.key, options=tuple(options)).draw(label, help_text, option_text, values)


@dataclass(frozen=True)
class Models(Choice):
    """The models of the planner, the reader's own, and what a link to a published row names."""

    def parse(self, raw: str, values: Values) -> Any:
        if raw in REPORTED:
            return raw
        return super().parse(raw, values)

    def fit(self, value: Any, values: Values) -> Any:
        return value if value in REPORTED else super().fit(value, values)

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        chosen = st.session_state[self.key]
        options = (*resolve(self.options, values), *((chosen,) if chosen in REPORTED else ()))
        return Choice(self.key, options=options).draw(label, help_text, option_text, values)


SPECS: tuple[Control, ...] = (
    Models(
        "model",
        "kimi-k3",
        "model",
        options=lambda values: (*MODELS, *((CUSTOM,) if config_text() else ())),
    ),
    OpenSteps(
        "tp",
        lambda values: model_of(values).default_tp,
        "model",
        options=lambda values: model_of(values).valid_tps,
        allowed=lambda tp, values: tp in model_of(values).all_tps,
    ),
    STATE_DTYPE,
    Choice("mla_dtype", lambda values: model_of(values).mla_dtype, "model", options=FORMATS),
    Choice("conv_dtype", "bfloat16", "model", options=("bfloat16", "float32")),
    OpenSteps("mean_tokens", 8192, "deployment", options=MEAN_TOKENS),
    OpenSteps("context_len", 131_072, "deployment", options=CONTEXTS),
    Number("budget_gib", 28.5, "deployment", low=0.5, high=4096.0, step=0.5),
    Number("max_running", 0, "deployment", low=0, high=4096),
    Number("target_requests", 64, "deployment", low=1, high=4096),
    DRAFT_LEN,
    Choice("rollback_scheme", "raw-inputs", "step", options=tuple(SCHEMES)),
    Slider("drafter_layers", 0, "step", low=0, high=8),
    Choice(
        "drafter_dtype",
        lambda values: values["mla_dtype"],
        "step",
        options=FORMATS,
        shown=lambda values: values["drafter_layers"] > 0,
    ),
    Choice("pool_rule", "split", "pool", options=tuple(PROFILES), style="segments"),
    Slider("state_pool_ratio", 0.9, "pool", low=0.1, high=5.0, step=0.1, shown=is_split),
    Slider("slots_per_request", 5, "pool", low=1, high=5, shown=is_split),
    OpenSteps(
        "block_quantum",
        128,
        "pool",
        options=(16, 64, 128, 512),
        allowed=lambda value, values: 1 <= value <= 4096,
        shown=lambda values: not is_split(values),
    ),
    Number("state_blocks", 0, "pool", low=0, high=64, shown=lambda values: not is_split(values)),
)


def values_of(
    query: Mapping[str, str],
    strict: bool = False,
    complain: Callable[[str, str, Any], None] | None = None,
) -> dict[str, Any]:
    """What the controls would say for a query: a pinned configuration, or a published row.

    Args:
        strict: raise ValueError where a control does not take its value, instead of its default.
        complain: called with the key, its value and the default that takes its place.
    """
    values: dict[str, Any] = {}
    for spec in SPECS:
        fallback = spec.fit(resolve(spec.default, values), values)
        raw = query.get(spec.key)
        try:
            values[spec.key] = fallback if raw is None else spec.parse(raw, values)
        except ValueError:
            if strict:
                raise
            if complain is not None:
                complain(spec.key, str(raw), fallback)
            values[spec.key] = fallback
    return values


def planned_of(query: Mapping[str, str]) -> CapacityPlan:
    """The plan that the page opens with for a query.

    Raises:
        CapacityError: it cannot be planned.
    """
    values = values_of(query)
    values.pop("target_requests")
    config = config_text() if values["model"] == CUSTOM else ""
    return plan(deployment(config=config, **values))
