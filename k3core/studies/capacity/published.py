"""Study of published values: the table, its verdicts, and how far each value is from its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from k3core.capacity.published import RECORDS, Agreement, subject


@dataclass(frozen=True)
class PublishedStudy:
    """Published values.

    Tables:
        records: one row per value, filtered: id, source, what, published, computed, verdict,
            reason, inputs, thread.
        ratios: published over computed per value, for the strip.
        counts: values per verdict, unfiltered.
    """

    tables: dict[str, pd.DataFrame]
    num_shown: int
    num_records: int


VERDICT_CODES = {
    Agreement.EXACT: "exact",
    Agreement.ROUNDED: "within-rounding",
    Agreement.NOT_UNIQUE: "not-unique",
    Agreement.PUBLISHED_WRONG: "published-wrong",
    Agreement.UNEXPLAINED: "unexplained",
}


def published(subject_code: str = "all", verdict: str = "all", words: str = "") -> PublishedStudy:
    """The table, filtered.

    Args:
        subject_code: a code of ``SUBJECTS``, or ``all``.
        verdict: ``exact``, ``within-rounding``, ``not-unique``, ``published-wrong``,
            ``unexplained`` or ``all``.
        words: text that source, quantity or inputs must hold, whatever the case.
    """
    wanted = words.casefold().strip()
    kept = tuple(
        record
        for record in RECORDS
        if subject_code in ("all", subject(record))
        and verdict in ("all", VERDICT_CODES[record.verdict])
        and wanted in f"{record.source} {record.what} {record.inputs_text}".casefold()
    )
    rows = [
        {
            "id": record.code,
            "source": record.source,
            "what": record.what,
            "published": record.published_text,
            "computed": record.computed_text,
            "verdict": VERDICT_CODES[record.verdict],
            "reason": record.reason,
            "inputs": record.inputs_text,
            "thread": record.link or None,
        }
        for record in kept
    ]
    ratios = [
        {
            "id": record.code,
            "subject": subject(record),
            "verdict": VERDICT_CODES[record.verdict],
            "ratio": record.published / record.computed,
            "published": record.published_text,
            "computed": record.computed_text,
            "source": record.source,
            "what": record.what,
        }
        for record in kept
        if record.computed and record.published and math.isfinite(record.computed)
    ]
    names = list(VERDICT_CODES.values())
    found = [VERDICT_CODES[record.verdict] for record in RECORDS]
    return PublishedStudy(
        tables={
            "records": pd.DataFrame(rows, columns=list(rows[0]) if rows else ["id"]),
            "ratios": pd.DataFrame(
                ratios,
                columns=[
                    "id", "subject", "verdict", "ratio", "published", "computed", "source", "what",
                ],
            ),
            "counts": pd.DataFrame({"verdict": names, "values": [found.count(n) for n in names]}),
        },
        num_shown=len(kept),
        num_records=len(RECORDS),
    )  # fmt: skip
