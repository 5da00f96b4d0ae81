"""One number that others have published, and the planner's own value beside it.

A record holds one published value, the inputs that open a scene of the planner, and where the
value stands in that scene. A difference that no reason explains makes ``python -m k3core
published`` fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from k3core.capacity.openings import Opening, PrintedOpening
from k3core.capacity.planner import Deployment

_REPOSITORIES = {
    "vLLM": "vllm-project/vllm",
    "SGLang": "sgl-project/sglang",
    "ATOM": "ROCm/ATOM",
    "TokenSpeed": "lightseekorg/tokenspeed",
    "Infera": "AMD-AGI/Infera",
    "inference-sim": "inference-sim/inference-sim",
    "vLLM Ascend": "vllm-project/vllm-ascend",
    "GLM-EXL3": "MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks",
    "FlashInfer": "flashinfer-ai/flashinfer",
    "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
}


class Agreement(StrEnum):
    """How a published value relates to the computed one."""

    EXACT = "exact"
    ROUNDED = "within rounding"
    NOT_UNIQUE = "consistent, not unique"
    PUBLISHED_WRONG = "published wrong"
    UNEXPLAINED = "UNEXPLAINED"


@dataclass(frozen=True)
class Input:
    """One input of a record; ``inferred`` where the source does not state it."""

    name: str
    value: str
    inferred: bool = False


@dataclass(frozen=True)
class Published:
    """One published value.

    Args:
        code: number of the row, with a letter where a source gives several values.
        source: engine or project and its thread, file or log.
        what: the quantity, in a few words.
        published: the value as printed, a number.
        unit: unit of both values.
        opening: inputs of the scene of the planner that computes it.
        read: where the value stands in what that scene computes.
        inputs: what the computation takes, as the source says it.
        digits: decimals that the source prints; the last one may be rounded or cut.
        approximate: relative width of a value printed with "~", 0 otherwise.
        not_unique: why the value fits but does not determine its inputs, or an empty string.
        wrong: why the published value is wrong, or an empty string.
        note: a slip of unit or another remark.
    """

    code: str
    source: str
    what: str
    published: float
    unit: str
    opening: Opening
    read: Callable[[Any], float]
    inputs: tuple[Input, ...] = ()
    digits: int = 0
    approximate: float = 0.0
    not_unique: str = ""
    wrong: str = ""
    note: str = ""

    @cached_property
    def computed(self) -> float:
        return self.read(self.opening.open())

    @property
    def deployment(self) -> Deployment | None:
        """What the planner opens with, or None for the printed numbers of a pool."""
        return None if isinstance(self.opening, PrintedOpening) else self.opening.deployment

    @property
    def difference(self) -> float:
        """Computed minus published, in ``unit``."""
        return self.computed - self.published

    @property
    def verdict(self) -> Agreement:
        """The kind of agreement; a value called wrong must really differ."""
        close = self._within_rounding
        if self.wrong:
            return Agreement.UNEXPLAINED if close else Agreement.PUBLISHED_WRONG
        if not close:
            return Agreement.UNEXPLAINED
        if self.not_unique:
            return Agreement.NOT_UNIQUE
        return Agreement.EXACT if self.computed == self.published else Agreement.ROUNDED

    @property
    def _within_rounding(self) -> bool:
        if self.approximate:
            return abs(self.difference) <= self.approximate * abs(self.published)
        last_digit = 10.0**-self.digits
        whole = self.digits == 0 and float(self.computed).is_integer()
        return self.computed == self.published or (
            not whole and abs(self.difference) < last_digit * (1 - 1e-9)
        )

    @property
    def unexplained(self) -> bool:
        return self.verdict is Agreement.UNEXPLAINED

    @property
    def inferred(self) -> bool:
        """Whether any input is not stated by the source."""
        return any(part.inferred for part in self.inputs)

    @property
    def reason(self) -> str:
        """Why the values differ or do not determine the inputs, or a remark."""
        return self.wrong or self.not_unique or self.note

    @property
    def inputs_text(self) -> str:
        return "; ".join(
            f"{i.name} {i.value}{' [inferred]' if i.inferred else ''}" for i in self.inputs
        )

    @property
    def published_text(self) -> str:
        mark = "~" if self.approximate else ""
        return f"{mark}{self.published:,.{self.digits}f} {self.unit}".strip()

    @property
    def computed_text(self) -> str:
        return self.text_of(self.computed)

    def text_of(self, value: float) -> str:
        """``value`` as this record prints a computed one: a digit more than the source."""
        if float(value).is_integer():
            return f"{value:,.0f} {self.unit}".strip()
        magnitude = math.floor(math.log10(abs(value)))
        digits = max(self.digits + 1, 3 - magnitude)
        return f"{value:,.{digits}f} {self.unit}".strip()

    @property
    def link(self) -> str:
        """Address of the thread, or an empty string when the source is a file or a log."""
        project, _, number = self.source.partition(" #")
        number = number.split(",")[0].split(" ")[0]
        if project in _REPOSITORIES and number.isdigit():
            return f"https://github.com/{_REPOSITORIES[project]}/issues/{number}"
        return ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.code,
            "source": self.source,
            "what": self.what,
            "unit": self.unit,
            "published": self.published,
            "computed": self.computed,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "inputs": [
                {"name": i.name, "value": i.value, "inferred": i.inferred} for i in self.inputs
            ],
        }


def stated(**values: object) -> tuple[Input, ...]:
    """Inputs that the source states; a name's underscores become spaces."""
    return tuple(Input(name.replace("_", " "), str(value)) for name, value in values.items())


def inferred(**values: object) -> tuple[Input, ...]:
    """Inputs that the source does not state but that reproduce its value."""
    return tuple(Input(name.replace("_", " "), str(value), True) for name, value in values.items())
