"""Every claim of the lab as a check that runs now, and the faults that the checks must catch."""

from k3core.studies.verification.check import KINDS, Case, Check, Reading
from k3core.studies.verification.expected import EXPECTED
from k3core.studies.verification.faults import FAULT_CODES, FAULTS, HEALTHY, subject_with
from k3core.studies.verification.keys import KeySweep, key_sweep
from k3core.studies.verification.matrix import MatrixResult, Summary, fault_matrix, summary
from k3core.studies.verification.run import (
    CHECKS,
    MATRIX_CHECKS,
    USUAL_TOLERANCE,
    Readings,
    VerificationResult,
    counts_text,
    read_other_checks,
    render_text,
    run_checks,
    verdicts,
)

__all__ = [
    "CHECKS",
    "EXPECTED",
    "FAULTS",
    "FAULT_CODES",
    "HEALTHY",
    "KINDS",
    "MATRIX_CHECKS",
    "USUAL_TOLERANCE",
    "Case",
    "Check",
    "KeySweep",
    "MatrixResult",
    "Reading",
    "Readings",
    "Summary",
    "VerificationResult",
    "counts_text",
    "fault_matrix",
    "key_sweep",
    "read_other_checks",
    "render_text",
    "run_checks",
    "subject_with",
    "summary",
    "verdicts",
]
