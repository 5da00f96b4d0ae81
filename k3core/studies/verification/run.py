"""Running the checks: all of them on one subject, or the matrix of checks and faults."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import torch

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
from k3core.studies.verification.check import DTYPES, Case, difference
from k3core.studies.verification.expected import EXPECTED
from k3core.studies.verification.faults import FAULT_CODES, FAULTS, HEALTHY, subject_with
from k3core.studies.verification.inputs import sequences
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

USUAL_TOLERANCE = 5e-2
"""What kernel tests often allow (relative norm); many faults stay below it."""

KEY_MIX = tuple(step / 10 for step in range(11))


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
    case = _case(fault, seed, correlated, dtype)
    rows = []
    for check in CHECKS:
        reading, tolerance = check.read(case), check.tolerance_for(dtype)
        passed = reading.deviation <= tolerance
        rows.append(
            {
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
        )
    table = pd.DataFrame(rows).astype({"seen": "float64", "expected": "float64"})
    selected = pd.DataFrame({"fault": [fault]})
    tables = {"checks": table, "selected": selected}
    return VerificationResult(tables, fault, seed, correlated, dtype)


@dataclass(frozen=True)
class MatrixResult:
    """The rows that the faults can touch, under every fault.

    Tables:
        cells: one row per check and fault: ``check``, ``page``, ``kind``, ``fault``, ``value``,
            ``tolerance``, ``status`` (healthy, broken, caught, blind), ``usual`` (caught, but 5e-2
            would have passed it), ``row`` and ``column`` (positions).
        faults: per fault the rows that catch it (by kind), the blind ones, and the catches that
            need a tolerance below 5e-2.
    """

    tables: dict[str, pd.DataFrame]
    seed: int
    correlated: bool
    dtype: str

    @property
    def num_caught_faults(self) -> int:
        """Faults that at least one row catches."""
        table = self.tables["faults"]
        return int((table["oracle"] + table["self"] > 0).sum())

    @property
    def num_faults(self) -> int:
        return len(FAULTS)

    def count(self, status: str) -> int:
        """Cells of one status."""
        return int((self.tables["cells"]["status"] == status).sum())

    @property
    def num_rows(self) -> int:
        return int(self.tables["cells"]["row"].max()) + 1

    @property
    def num_self_rows(self) -> int:
        """Rows that compare the code with itself."""
        cells = self.tables["cells"]
        return int(((cells["kind"] == "self") & (cells["fault"] == HEALTHY)).sum())

    @property
    def num_all_seeing(self) -> int:
        """Rows that catch every fault."""
        cells = self.tables["cells"]
        caught = cells[cells["status"] == "caught"].groupby("check").size()
        return int((caught == self.num_faults).sum())

    def num_self_blind(self, fault: str) -> int:
        """Rows among ``num_self_rows`` that are blind to ``fault``."""
        cells = self.tables["cells"]
        at = (cells["kind"] == "self") & (cells["fault"] == fault) & (cells["status"] == "blind")
        return int(at.sum())

    @property
    def num_usual(self) -> int:
        """Catches that a tolerance of 5e-2 would have let through."""
        return int(self.tables["cells"]["usual"].sum())


def fault_matrix(seed: int = 0, correlated: bool = True, dtype: str = "float64") -> MatrixResult:
    """Measure the rows of the matrix on the healthy subject and under each fault.

    Raises:
        K3Error: unknown dtype or a negative seed.
    """
    rows = []
    for column, fault in enumerate(FAULT_CODES):
        case = _case(fault, seed, correlated, dtype)
        for row, check in enumerate(MATRIX_CHECKS):
            value, tolerance = check.read(case).deviation, check.tolerance_for(dtype)
            passed = value <= tolerance
            if fault == HEALTHY:
                status = "healthy" if passed else "broken"
            else:
                status = "blind" if passed else "caught"
            rows.append(
                {
                    "check": check.id,
                    "page": check.page,
                    "kind": check.kind,
                    "fault": fault,
                    "value": value,
                    "tolerance": tolerance,
                    "status": status,
                    "usual": status == "caught" and value <= USUAL_TOLERANCE,
                    "row": row,
                    "column": column,
                }
            )
    cells = pd.DataFrame(rows)
    return MatrixResult({"cells": cells, "faults": _by_fault(cells)}, seed, correlated, dtype)


def _by_fault(cells: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for fault in FAULTS:
        column = cells[cells["fault"] == fault]
        caught = column[column["status"] == "caught"]
        rows.append(
            {
                "fault": fault,
                "oracle": int((caught["kind"] == "oracle").sum()),
                "self": int((caught["kind"] == "self").sum()),
                "blind": len(column) - len(caught),
                "usual": int(caught["usual"].sum()),
            }
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class KeySweep:
    """Error of the undecayed delta against how alike the keys are.

    Tables:
        keys: ``cosine`` (mean cosine of two neighbouring keys, measured), ``error`` (outputs,
            relative norm against the real recurrence).
    """

    tables: dict[str, pd.DataFrame]

    @property
    def error_random(self) -> float:
        return float(self.tables["keys"]["error"].iloc[0])

    @property
    def error_repeated(self) -> float:
        return float(self.tables["keys"]["error"].iloc[-1])


def key_sweep(seed: int = 0, num_tokens: int = 33) -> KeySweep:
    """Run the faulty recurrence on keys from independent to one key repeated, K = 128, fp64.

    Raises:
        K3Error: a negative seed, or fewer than two tokens.
    """
    require_count("num_tokens", num_tokens, least=2)
    real, faulty = (
        _case(fault, seed, True, "float64").subject.kda for fault in (HEALTHY, "undecayed_delta")
    )
    rows = []
    for mix in KEY_MIX:
        inputs = sequences(num_tokens, seed, mix, torch.float64, num_heads=1, dk=128)
        cosine = float((inputs.k[:, :, 1:] * inputs.k[:, :, :-1]).sum(-1).mean())
        expected, _ = real.kda_recurrent(*inputs)
        rows.append((cosine, difference(faulty.kda_recurrent(*inputs)[0], expected)))
    return KeySweep({"keys": pd.DataFrame(rows, columns=["cosine", "error"])})


@dataclass(frozen=True)
class Summary:
    """Counts for the first screen.

    Attributes:
        blind: blind rows of the matrix by fault.
        num_matrix_rows: rows of the matrix.
    """

    tables: dict[str, pd.DataFrame]
    num_checks: int
    num_pass: int
    num_fail: int
    num_faults: int
    num_caught_faults: int
    num_matrix_rows: int

    @property
    def blind(self) -> dict[str, int]:
        table = self.tables["faults"]
        return dict(zip(table["fault"], table["blind"].astype(int), strict=True))


def summary(seed: int = 0) -> Summary:
    """Run all checks and the matrix once, and count.

    Raises:
        K3Error: a negative seed.
    """
    checks, matrix = run_checks(seed=seed), fault_matrix(seed=seed)
    return Summary(
        {"faults": matrix.tables["faults"]},
        checks.num_checks,
        checks.num_pass,
        checks.num_fail,
        matrix.num_faults,
        matrix.num_caught_faults,
        len(MATRIX_CHECKS),
    )


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


def _case(fault: str, seed: int, correlated: bool, dtype: str) -> Case:
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
