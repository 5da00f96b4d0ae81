"""Running the checks on one subject, and what their readings mean."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from k3core.errors import require, require_count
from k3core.i18n import DEFAULT_LANGUAGE, t
from k3core.studies.verification import (
    checks_engine,
    checks_fleet,
    checks_memory,
    checks_parallel,
    checks_recurrence,
    checks_rings,
)
from k3core.studies.verification.check import DTYPES, Case, Check, Reading
from k3core.studies.verification.expected import EXPECTED
from k3core.studies.verification.faults import HEALTHY, subject_with
from k3core.units import error_text

CHECKS = (
    *checks_recurrence.CHECKS,
    *checks_rings.CHECKS,
    *checks_memory.CHECKS,
    *checks_engine.CHECKS,
    *checks_parallel.CHECKS,
    *checks_fleet.CHECKS,
)
"""All rows, in the order of the pages that show them."""

MATRIX_CHECKS = tuple(check for check in CHECKS if check.in_matrix)
OTHER_CHECKS = tuple(check for check in CHECKS if not check.in_matrix)

USUAL_TOLERANCE = 5e-2
"""What kernel tests often allow (relative norm); many faults stay below it."""


@dataclass(frozen=True)
class Readings:
    """What some checks measured on one subject, by the id of the check; arguments as given."""

    rows: Mapping[str, Reading]
    fault: str
    seed: int
    correlated: bool
    dtype: str


@dataclass(frozen=True)
class VerificationResult:
    """All checks on one subject.

    Tables:
        checks: one row per check: ``id``, ``page``, ``kind``, ``deviation``, ``tolerance``,
            ``seen``, ``expected``, ``verdict`` (pass, fail), ``outcome``, ``usual`` (failed here,
            but 5e-2 would have passed it), ``source_text`` (one of the 20 rows), ``text``
            (catalogue key of the claim), ``error``.
        selected: the ``fault`` that was switched on.

    ``outcome`` says what the verdict means: ``pass`` or ``fail`` on a healthy subject; under a
    fault ``caught``, ``blind``, ``missed`` (had to catch it and did not), ``alarm`` (failed without
    being expected to), or ``pass`` for rows that the fault does not touch.
    """

    tables: dict[str, pd.DataFrame]
    fault: str
    seed: int
    correlated: bool
    dtype: str

    @property
    def num_checks(self) -> int:
        return len(self.tables["checks"])

    @property
    def num_pass(self) -> int:
        return self.num_checks - self.num_fail

    @property
    def num_fail(self) -> int:
        return int((self.tables["checks"]["verdict"] == "fail").sum())

    def ids(self, outcome: str) -> tuple[str, ...]:
        """Rows of one outcome."""
        table = self.tables["checks"]
        return tuple(table.loc[table["outcome"] == outcome, "id"])


def run_checks(
    fault: str = HEALTHY, seed: int = 0, correlated: bool = True, dtype: str = "float64"
) -> VerificationResult:
    """Run every check.

    Args:
        fault: ``healthy`` or one of ``FAULTS``.
        seed: of all random inputs.
        correlated: keys near one direction per head; False draws independent ones.
        dtype: ``float64`` or ``float32``.

    Raises:
        K3Error: unknown fault or dtype, or a negative seed.
    """
    return verdicts(read(CHECKS, fault, seed, correlated, dtype))


def read_other_checks(
    fault: str = HEALTHY, seed: int = 0, correlated: bool = True, dtype: str = "float64"
) -> Readings:
    """Run the checks that stand outside the matrix; arguments and errors of `run_checks`."""
    return read(OTHER_CHECKS, fault, seed, correlated, dtype)


def verdicts(*parts: Readings) -> VerificationResult:
    """The table of all checks from readings that together hold every one of them.

    Raises:
        K3Error: a check has no reading, or the parts come from different runs.
    """
    first = parts[0]
    rows = ChainMap(*(dict(part.rows) for part in parts))
    missing = [check.id for check in CHECKS if check.id not in rows]
    require(not missing, f"parts hold no reading of {', '.join(missing)}")
    require(
        all(replace(part, rows=first.rows) == first for part in parts),
        "parts come from runs with different fault, seed, correlated or dtype",
    )
    fault, dtype = first.fault, first.dtype
    table = pd.DataFrame([_verdict(check, rows[check.id], fault, dtype) for check in CHECKS])
    table = table.astype({"seen": "float64", "expected": "float64"})
    selected = pd.DataFrame({"fault": [fault]})
    tables = {"checks": table, "selected": selected}
    return VerificationResult(tables, fault, first.seed, first.correlated, dtype)


def _verdict(check: Check, reading: Reading, fault: str, dtype: str) -> dict[str, object]:
    tolerance = check.tolerance_for(dtype)
    passed = reading.deviation <= tolerance
    return {
        "id": check.id,
        "page": check.page,
        "kind": check.kind,
        "deviation": reading.deviation,
        "tolerance": tolerance,
        "seen": reading.seen,
        "expected": reading.expected,
        "verdict": "pass" if passed else "fail",
        "outcome": _outcome(check.id, fault, passed),
        "usual": tolerance < reading.deviation <= USUAL_TOLERANCE,
        "source_text": check.from_source_text,
        "text": f"verification.check.{check.id}",
        "error": reading.error,
    }


def render_text(result: VerificationResult, lang: str = DEFAULT_LANGUAGE) -> list[str]:
    """The checks as lines of text: one per row, each ending in PASS or FAIL, then the counts."""
    lines = []
    for row in result.tables["checks"].itertuples():
        if row.error:
            lines.append(f"  {row.id}: {row.error}")
        note = "" if row.outcome in ("pass", "fail") else row.outcome
        relation = "<=" if row.verdict == "pass" else "> "
        lines.append(
            f"{row.page:<13} {row.id:<57} {row.kind:<10} {error_text(row.deviation):>8} {relation} "
            f"{error_text(row.tolerance):<8} {counts_text(row.seen, row.expected):<20} "
            f"{note:<7} {row.verdict.upper()}"
        )
    lines += [
        "",
        t(
            "verification.cli.counts",
            lang,
            checks=result.num_checks,
            passed=result.num_pass,
            failed=result.num_fail,
            fault=result.fault,
            seed=result.seed,
        ),
    ]
    for outcome in ("caught", "blind", "missed", "alarm"):
        if ids := result.ids(outcome):
            names = ", ".join(ids)
            lines.append(t(f"verification.cli.{outcome}", lang, count=len(ids), names=names))
    return lines


def counts_text(seen: float, expected: float) -> str:
    """``512 / 512``; one number when nothing is expected (NaN), empty when nothing counted."""
    numbers = (f"{value:,.6g}" for value in (seen, expected) if not math.isnan(value))
    return " / ".join(numbers)


def read(checks: Sequence[Check], fault: str, seed: int, correlated: bool, dtype: str) -> Readings:
    """Run some checks; the other arguments and the errors are those of `run_checks`."""
    case = case_of(fault, seed, correlated, dtype)
    rows = {check.id: check.read(case) for check in checks}
    return Readings(rows, fault, seed, correlated, dtype)


def case_of(fault: str, seed: int, correlated: bool, dtype: str) -> Case:
    """The run that `run_checks` describes, for code that measures something of its own."""
    require_count("seed", seed)
    require(dtype in DTYPES, f"dtype={dtype!r} is unknown; allowed: {', '.join(DTYPES)}")
    return Case(subject_with(fault), seed, correlated, dtype)


def _outcome(check_id: str, fault: str, passed: bool) -> str:
    if fault == HEALTHY:
        return "pass" if passed else "fail"
    if check_id not in EXPECTED:
        return "pass" if passed else "alarm"
    must_catch = fault in EXPECTED[check_id]
    if passed:
        return "missed" if must_catch else "blind"
    return "caught" if must_catch else "alarm"
