"""Controls as data: what a widget offers, how its value stands in the URL, what it defaults to.

A control's words are catalogue texts: ``<slug>.control.<key>`` (label) and
``<slug>.control.<key>_help``; shared controls take theirs from ``common.control``. An option code
has the text ``<slug>.option.<code>`` or ``common.option.<code>`` (the code itself when absent).

A bound or default may be a function of the values of the controls before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

Values = Mapping[str, Any]
Text = Callable[[str], str]


def resolve(value: Any, values: Values) -> Any:
    """``value``, or its result for ``values`` when it is a function of them."""
    return value(values) if callable(value) else value


@dataclass(frozen=True)
class Control(ABC):
    """What all controls have: a key (its name in the URL), a default and a group heading."""

    key: str
    default: Any = None
    group: str = ""
    shown: Callable[[Values], bool] = field(default=lambda values: True, kw_only=True)

    @abstractmethod
    def parse(self, raw: str, values: Values) -> Any:
        """The value that ``raw`` stands for; raises ValueError when it stands for none."""

    def fit(self, value: Any, values: Values) -> Any:
        """``value`` moved into what is allowed now."""
        return value

    def to_url(self, value: Any) -> str:
        """How the value stands in the URL: language-neutral."""
        return str(value)

    @abstractmethod
    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        """Draw the widget; its value is already in ``st.session_state[self.key]``."""


@dataclass(frozen=True)
class Slider(Control):
    """Whole or decimal numbers from ``low`` to ``high``."""

    low: Any = 0
    high: Any = 1
    step: Any = 1

    def parse(self, raw: str, values: Values) -> Any:
        low = resolve(self.low, values)
        number = type(low)(raw) if isinstance(low, int) else float(raw)
        if number != self.fit(number, values):
            raise ValueError(raw)
        return number

    def fit(self, value: Any, values: Values) -> Any:
        low, high = resolve(self.low, values), resolve(self.high, values)
        return min(max(value, low), high)

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        low, high = resolve(self.low, values), resolve(self.high, values)
        if low >= high:  # a slider needs two positions
            st.caption(f"{label}: {low}")
            return low
        return st.slider(label, low, high, step=self.step, key=self.key, help=help_text)


@dataclass(frozen=True)
class Steps(Control):
    """One of an ordered list of numbers (powers of two, log-spaced sizes)."""

    options: Any = ()

    def parse(self, raw: str, values: Values) -> Any:
        for option in resolve(self.options, values):
            if str(option) == raw:
                return option
        raise ValueError(raw)

    def fit(self, value: Any, values: Values) -> Any:
        options = resolve(self.options, values)
        if value in options:
            return value
        return min(options, key=lambda option: abs(option - value))

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        options: Sequence[Any] = resolve(self.options, values)
        if len(options) == 1:
            st.caption(f"{label}: {options[0]}")
            return options[0]
        return st.select_slider(
            label,
            options,
            key=self.key,
            help=help_text,
            format_func=lambda v: f"{v:,}" if isinstance(v, int) else str(v),
        )


@dataclass(frozen=True)
class Choice(Control):
    """One of a few codes; ``style`` is ``select``, ``segments`` or ``radio``."""

    options: Any = ()
    style: str = "select"

    def parse(self, raw: str, values: Values) -> Any:
        for option in resolve(self.options, values):
            if str(option) == raw:
                return option
        raise ValueError(raw)

    def fit(self, value: Any, values: Values) -> Any:
        options = resolve(self.options, values)
        return value if value in options else options[0]

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        options = list(resolve(self.options, values))

        def text(code: Any) -> str:
            return option_text(str(code))

        if self.style == "segments":
            return st.segmented_control(
                label, options, key=self.key, help=help_text, format_func=text, required=True
            )
        if self.style == "radio":
            return st.radio(label, options, key=self.key, help=help_text, format_func=text)
        return st.selectbox(label, options, key=self.key, help=help_text, format_func=text)


@dataclass(frozen=True)
class Toggle(Control):
    """On or off; ``1`` or ``0`` in the URL."""

    def parse(self, raw: str, values: Values) -> Any:
        if raw not in ("0", "1"):
            raise ValueError(raw)
        return raw == "1"

    def to_url(self, value: Any) -> str:
        return "1" if value else "0"

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        return st.toggle(label, key=self.key, help=help_text)


@dataclass(frozen=True)
class Number(Control):
    """A typed number from ``low`` to ``high``, for ranges too wide for a slider."""

    low: Any = 0
    high: Any = 1
    step: Any = 1

    def parse(self, raw: str, values: Values) -> Any:
        low = resolve(self.low, values)
        number = int(raw) if isinstance(low, int) else float(raw)
        if number != self.fit(number, values):
            raise ValueError(raw)
        return number

    def fit(self, value: Any, values: Values) -> Any:
        return min(max(value, resolve(self.low, values)), resolve(self.high, values))

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        return st.number_input(
            label,
            min_value=resolve(self.low, values),
            max_value=resolve(self.high, values),
            step=self.step,
            key=self.key,
            help=help_text,
        )


@dataclass(frozen=True)
class TextBox(Control):
    """A short text that the reader types, such as a list of operations; empty, it shows another."""

    example: str = ""
    max_chars: int = 400

    def parse(self, raw: str, values: Values) -> Any:
        if len(raw) > self.max_chars:
            raise ValueError(raw)
        return raw

    def draw(self, label: str, help_text: str | None, option_text: Text, values: Values) -> Any:
        return st.text_area(
            label,
            key=self.key,
            help=help_text,
            placeholder=self.example,
            max_chars=self.max_chars,
            height="content",
        )
