"""The matrix: every check that a fault can touch, under every fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from k3core.studies.verification.faults import FAULT_CODES, FAULTS, HEALTHY
from k3core.studies.verification.run import (
    MATRIX_CHECKS,
    USUAL_TOLERANCE,
    Readings,
    read,
    read_other_checks,
    verdicts,
)


@dataclass(frozen=True)
class MatrixResult:
    """The rows that the faults can touch, under every fault.

    Tables:
        cells: one row per check and fault: ``check``, ``page``, ``kind``, ``fault``, ``value``,
            ``tolerance``, ``status`` (healthy, broken, caught, blind), ``usual`` (caught, but 5e-2
            would have passed it), ``row`` and ``column`` (positions).
        faults: per fault the rows that catch it (by kind), the blind ones, and the catches that
            need a tolerance below 5e-2.

    Attributes:
        columns: the readings behind ``cells``, by fault.
    """

    tables: dict[str, pd.DataFrame]
    columns: Mapping[str, Readings]
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
    columns = {fault: read(MATRIX_CHECKS, fault, seed, correlated, dtype) for fault in FAULT_CODES}
    rows = []
    for column, fault in enumerate(FAULT_CODES):
        for row, check in enumerate(MATRIX_CHECKS):
            value = columns[fault].rows[check.id].deviation
            tolerance = check.tolerance_for(dtype)
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
    tables = {"cells": cells, "faults": _by_fault(cells)}
    return MatrixResult(tables, columns, seed, correlated, dtype)


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
    matrix = fault_matrix(seed=seed)
    checks = verdicts(matrix.columns[HEALTHY], read_other_checks(seed=seed))
    return Summary(
        {"faults": matrix.tables["faults"]},
        checks.num_checks,
        checks.num_pass,
        checks.num_fail,
        matrix.num_faults,
        matrix.num_caught_faults,
        len(MATRIX_CHECKS),
    )
