"""Study of published values: the table, its verdicts, and how far each value is from its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from k3core.capacity.planner import Deployment
from k3core.capacity.published import RECORDS, Agreement, subject


@dataclass(frozen=True)
class PublishedStudy:
    """Published values; ``deployments`` are the planner's inputs by row, where there are any;
    ``prompts`` are prompt and dropped blocks of rows about hits.

    Tables:
        records: one row per value, filtered: id, source, what, published, computed, verdict,
            reason, inputs, thread.
        ratios: published over computed per value, for the strip.
        counts: values per verdict, unfiltered.
    """

    tables: dict[str, pd.DataFrame]
    deployments: dict[str, Deployment]
    prompts: dict[str, tuple[int, int]]
    num_shown: int
    num_records: int


_VERDICTS = {
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
        and verdict in ("all", _VERDICTS[record.verdict])
        and wanted in f"{record.source} {record.what} {record.inputs_text}".casefold()
    )
    rows = [
        {
            "id": record.code,
            "source": record.source,
            "what": record.what,
            "published": record.published_text,
            "computed": record.computed_text,
            "verdict": _VERDICTS[record.verdict],
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
            "verdict": _VERDICTS[record.verdict],
            "ratio": record.published / record.computed,
            "published": record.published_text,
            "computed": record.computed_text,
            "source": record.source,
            "what": record.what,
        }
        for record in kept
        if record.computed and record.published and math.isfinite(record.computed)
    ]
    names = list(_VERDICTS.values())
    found = [_VERDICTS[record.verdict] for record in RECORDS]
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
        deployments={r.code: r.deployment for r in kept if r.deployment is not None},
        prompts={r.code: (r.prompt_tokens, r.dropped_blocks) for r in kept if r.prompt_tokens},
        num_shown=len(kept),
        num_records=len(RECORDS),
    )  # fmt: skip
