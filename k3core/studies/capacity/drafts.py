"""Study of drafting: what each number of drafts earns and takes, and a published load curve."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from k3core.capacity import speculation
from k3core.capacity.planner import plan
from k3core.capacity.speculation import DraftBalance, LoadCurve
from k3core.studies.capacity.plan import deployment

MAX_DRAFTS = 7


@dataclass(frozen=True)
class DraftStudy:
    """Drafting of one deployment.

    Tables:
        counts: one row per number of drafts: tokens per step, added bytes, requests in flight, the
            gain of a full replica whose steps take equally long, bytes moved per token.
        load: gain against concurrency: measured (published) and with the fitted constant.
        positions: acceptance per position that gives the acceptance length.
        here: the requests in flight with their measured gain; empty outside the measured points.

    ``measured_gain`` is that gain, of ``curve``, or None; ``is_published`` says whether the tokens
    per step are a published value as it stands, neither moved nor interpolated.
    """

    tables: dict[str, pd.DataFrame]
    balance: DraftBalance
    break_even: float
    curve: LoadCurve
    measured_gain: float | None
    is_published: bool
    fitted_row_cost: float
    source: str
    golden_source: str


def drafts(acceptance_len: float = 3.84, **inputs: object) -> DraftStudy:
    """Drafting at the deployment of ``inputs`` (as in `deployment`).

    The acceptance length is that of seven drafts; fewer drafts follow the published lengths in
    proportion. A scheme whose ring is too short for a count leaves that row out.

    Raises:
        CapacityError: a value is impossible; the message names the remedy.
    """
    chosen = deployment(**inputs)  # type: ignore[arg-type]
    plain = plan(replace(chosen, drafts=0))
    scale = (acceptance_len - 1) / (speculation.golden_length(MAX_DRAFTS) - 1)
    rows = []
    for count in range(MAX_DRAFTS + 1):
        length = min(1 + scale * (speculation.golden_length(count) - 1), 1.0 + count)
        found = speculation.balance(plain, plan(replace(chosen, drafts=count)), length)
        rows.append(
            {
                "drafts": count,
                "tokens_per_step": length,
                "added_bytes": found.added_bytes,
                "requests": found.requests_drafted,
                "gain": found.memory_bound_gain,
                "bytes_per_token": found.traffic_drafted,
                "chosen": count == chosen.drafts,
            }
        )
    count = min(chosen.drafts, MAX_DRAFTS)
    length = float(rows[count]["tokens_per_step"])
    curve = speculation.INFERA_74
    width = 1 + curve.drafts
    fitted = curve.fitted_row_cost(acceptance_len)
    load = [("measured", p.concurrency, p.gain) for p in curve.points]
    load += [
        ("fitted", c, speculation.load_gain(acceptance_len, width, c, fitted))
        for c in (4, 6, 8, 12, 16, 24, 32, 48, 64)
    ]
    found = speculation.balance(plain, plan(replace(chosen, drafts=count)), length)
    measured = curve.gain_at(found.requests_drafted) if count else None
    here = [] if measured is None else [(found.requests_drafted, measured)]
    schedule = speculation.golden_schedule(max(length, 1.0), count) if count else ()
    return DraftStudy(
        tables={
            "counts": pd.DataFrame(rows),
            "load": pd.DataFrame(load, columns=["curve", "concurrency", "gain"]),
            "here": pd.DataFrame(here, columns=["concurrency", "gain"]),
            "positions": pd.DataFrame(
                {"position": range(1, count + 1), "acceptance": list(schedule)}
            ),
        },
        balance=found,
        break_even=curve.break_even,
        curve=curve,
        measured_gain=measured,
        is_published=scale == 1 and count in speculation.GOLDEN_LENGTHS,
        fitted_row_cost=fitted,
        source=curve.source,
        golden_source=speculation.GOLDEN_SOURCE,
    )
