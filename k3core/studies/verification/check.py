"""What a check is: a claim, a page that shows it, a tolerance, and a function that measures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from k3core.studies.verification.subject import Subject

SELF = "self"
ORACLE = "oracle"
ACCOUNTING = "accounting"
STATISTICS = "statistics"
KINDS = (SELF, ORACLE, ACCOUNTING, STATISTICS)
"""``self`` compares the code with itself, ``oracle`` with code that shares nothing with it,
``accounting`` counts, ``statistics`` holds a sample against a distribution."""

DTYPES = {"float64": torch.float64, "float32": torch.float32}

T = TypeVar("T")


class Reading(NamedTuple):
    """What a check measured.

    Attributes:
        deviation: how far the code is from what it should do; 0.0 means not by one bit.
        seen, expected: the counted number and what it should be, where something is counted.
        error: the message, when the code under test raised.
    """

    deviation: float
    seen: float | None = None
    expected: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Case:
    """One run of the checks.

    Attributes:
        subject: the mechanisms under test.
        seed: of all random inputs.
        correlated: keys near one direction per head, as in real text; False: independent keys.
        dtype: ``float64`` or ``float32``, format of inputs and states.
    """

    subject: Subject
    seed: int = 0
    correlated: bool = True
    dtype: str = "float64"
    _memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def once(self, make: Callable[[Case], T]) -> T:
        """``make(self)``, computed once for all checks of this run."""
        if make not in self._memo:
            self._memo[make] = make(self)
        result: T = self._memo[make]
        return result


@dataclass(frozen=True)
class Check:
    """One row.

    Attributes:
        id: name of the row; the rows of the source text keep the names of their test functions.
        page: catalogue of the page that shows the mechanism.
        kind: one of ``KINDS``.
        measure: runs the mechanism.
        tolerance: largest deviation that passes, float64.
        tolerance_fp32: the same for float32.
        in_matrix: whether it runs the steps that the faults touch.
    """

    id: str
    page: str
    kind: str
    measure: Callable[[Case], float | Reading]
    tolerance: float = 0.0
    tolerance_fp32: float = 0.0
    in_matrix: bool = False

    @property
    def from_source_text(self) -> bool:
        return self.id.startswith("test_")

    def tolerance_for(self, dtype: str) -> float:
        return self.tolerance_fp32 if dtype == "float32" else self.tolerance

    def read(self, case: Case) -> Reading:
        """Measure; code that raises has failed its check, it does not stop the others."""
        try:
            result = self.measure(case)
        except Exception as error:
            return Reading(math.inf, error=f"{type(error).__name__}: {error}")
        return result if isinstance(result, Reading) else Reading(result)


def check(
    page: str,
    kind: str,
    tolerance: float = 0.0,
    tolerance_fp32: float | None = None,
    *,
    in_matrix: bool = False,
) -> Callable[[Callable[[Case], float | Reading]], Check]:
    """Make a measuring function a ``Check`` of its own name."""

    def make(measure: Callable[[Case], float | Reading]) -> Check:
        fp32 = tolerance if tolerance_fp32 is None else tolerance_fp32
        return Check(measure.__name__, page, kind, measure, tolerance, fp32, in_matrix)

    return make


def counted(seen: float, expected: float) -> Reading:
    """A reading of something counted."""
    return Reading(float(abs(seen - expected)), float(seen), float(expected))


def difference(actual: torch.Tensor | ArrayLike, expected: torch.Tensor | ArrayLike) -> float:
    """Norm of the difference over the norm of what is expected; 0.0 means equal bits.

    This is the ratio that kernel tests usually bound. Another shape or a number that is not finite
    gives infinity.
    """
    least = 0.0
    if isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor):
        if same_bits(actual, expected):
            return 0.0
        if actual.dtype != expected.dtype:
            return math.inf
        least = math.ulp(0.0)  # +0 and -0 differ in bits, not in value
    left, right = _wide(actual), _wide(expected)
    if left.shape != right.shape or not (np.isfinite(left).all() and np.isfinite(right).all()):
        return math.inf
    if left.size == 0:
        return 0.0
    scale = float(np.linalg.norm(right)) or 1.0
    return max(float(np.linalg.norm(left - right)) / scale, least)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal dtype, shape and bytes."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return left.contiguous().view(torch.uint8).equal(right.contiguous().view(torch.uint8))


def _wide(x: torch.Tensor | ArrayLike) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        x = x.detach().to(torch.float64).numpy()
    return np.asarray(x, dtype=np.float64)
