"""Boxes of a prefill cost model: constants of a node, or measured prefills to fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import streamlit as st

from k3core.errors import K3Error
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.studies.fleet import NodeConstants, fitted_cost
from k3core.ui.controls import Control, Number, Values
from k3core.ui.page import Page
from k3core.units import percent_text

_BOXES = (  # box, field of NodeConstants, low, high, step
    ("cost_linear", "linear", 0.0, 1e5, 1.0),
    ("cost_quadratic", "quadratic", 0.0, 1e6, 1.0),
    ("cost_peak", "peak", 1.0, 1e6, 8.0),
    ("cost_efficiency", "efficiency", 0.01, 1.0, 0.01),
    ("cost_fixed", "fixed_ms", 0.0, 60_000.0, 1.0),
)
_MEASURED = ((8_192, 0), (65_536, 0), (65_536, 49_152))  # prompt and cached tokens, to type over


class ChosenCost(NamedTuple):
    """What a reader made of a preset.

    Attributes:
        cost: the model in force.
        constants: fixed, linear and quadratic seconds that replace the preset's; empty for none.
        words: where its seconds come from.
    """

    cost: PrefillCost
    constants: tuple[float, ...]
    words: str

    @property
    def formula(self) -> list[str]:
        """LaTeX of the model with its numbers, and what it says of one long prompt."""
        cost = self.cost
        fixed = rf"{_latex(cost.fixed_s)} + " if cost.fixed_s else ""
        return [
            rf"t(n, c) = {fixed}{_latex(cost.linear_s)}\,(n - c) + "
            rf"{_latex(cost.quadratic_s)}\,(n^2 - c^2)\ \text{{s}}",
            rf"t(10^5, 0) = {cost.seconds(100_000):.2f}\ \text{{s}},\quad "
            rf"t(10^5, 98{{,}}304) = {cost.seconds(100_000, 98_304):.2f}\ \text{{s}}",
        ]


def cost_form(page: Page, preset: str, preset_key: str) -> ChosenCost:
    """The boxes, the model that they say, and its formula.

    Impossible measurements leave the preset in force.

    Args:
        page: with the texts ``cost.about``, ``cost.declared`` ({source}), ``cost.custom``,
            ``cost.calibrated`` ({num}, {worst}) and ``cost.unfit`` ({error}).
        preset: code of the preset that the boxes start at.
        preset_key: control that chose it.
    """
    st.markdown(page.t("cost.about"))
    declared = prefill_cost(preset)
    chosen = ChosenCost(declared, (), page.t("cost.declared", source=declared.source))
    source = page.choice("cost_from", ("constants", "measured-2", "measured-3"))
    try:
        if source == "constants":
            cost, words = _typed(page, preset, preset_key), page.t("cost.custom")
        else:
            cost, words = _fitted(page, int(source.rpartition("-")[2]), preset_key)
        if cost:
            chosen = ChosenCost(cost, (cost.fixed_s, cost.linear_s, cost.quadratic_s), words)
    except K3Error as error:
        st.warning(page.t("cost.unfit", error=str(error)), icon=":material/block:")
    for line in chosen.formula:
        st.latex(line)
    return chosen


def price_boxes(page: Page, price: float, cached_price: float) -> SimpleNamespace:
    """Prices of a million prompt tokens, ``price_input`` and the lower ``price_cached``.

    Texts of the page: ``cost.prices``.
    """
    st.markdown(page.t("cost.prices"))
    return _in_a_row(
        page,
        Number("price_input", price, low=0.0, high=1000.0, step=0.1),
        Number("price_cached", cached_price, low=0.0, high=_full_price, step=0.1),
    )


def _full_price(values: Values) -> float:
    return float(values["price_input"])


def _in_a_row(page: Page, *specs: Control) -> SimpleNamespace:
    with st.container(horizontal=True):
        return page.body_controls(*specs)


def _typed(page: Page, preset: str, preset_key: str) -> PrefillCost | None:
    """The model of the boxes; None while they stand where the preset does."""
    boxes = [
        Number(key, _preset_number(preset_key, field), low=low, high=high, step=step)
        for key, field, low, high, step in _BOXES
    ]
    typed = NodeConstants(*vars(_in_a_row(page, *boxes)).values())
    return None if typed == NodeConstants.of(preset) else typed.cost()


def _fitted(page: Page, num: int, preset_key: str) -> tuple[PrefillCost, str]:
    """The model that fits the typed measurements, beside them."""
    rows = (_measured_row(number, preset_key) for number in range(1, num + 1))
    fitted = fitted_cost([tuple(vars(_in_a_row(page, *row)).values()) for row in rows])
    page.data(fitted.tables["calibration"], "calibration")
    worst = percent_text(fitted.worst, 1)
    return fitted.cost, page.t("cost.calibrated", num=num, worst=worst)


def _latex(value: float) -> str:
    mantissa, exponent = f"{value:.3e}".split("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


def _preset_number(preset_key: str, field: str) -> Callable[[Values], float]:
    """A default that follows the chosen preset."""
    return lambda values: float(getattr(NodeConstants.of(values[preset_key]), field))


def _measured_row(number: int, preset_key: str) -> tuple[Number, Number, Number]:
    """Boxes of one measurement; its seconds start at what the declared model says."""
    prompt, cached = (f"measured_{name}_{number}" for name in ("prompt", "cached"))

    def below_prompt(values: Mapping[str, Any]) -> int:
        return int(values[prompt]) - 1

    def declared_s(values: Mapping[str, Any]) -> float:
        seconds = prefill_cost(values[preset_key]).seconds(values[prompt], values[cached])
        return float(f"{seconds:.3g}")

    default_len, default_cached = _MEASURED[number - 1]
    return (
        Number(prompt, default_len, low=1, high=4_000_000, step=512),
        Number(cached, default_cached, low=0, high=below_prompt, step=512),
        Number(f"measured_s_{number}", declared_s, low=0.0001, high=100_000.0, step=0.001),
    )
