"""A burst of long prompts against budgets: none, one shared, one per class; refuse or wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from k3core.errors import require_choice, require_count
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.result import FleetResult
from k3core.fleet.workload import CLASS_NAMES, Workload
from k3core.studies.fleet.scenario import Scenario, page_scenario
from k3core.units import count_text

SETTINGS = ("none", "shared-reject", "separate-reject", "shared-queue", "separate-queue")
BURST_LEN = 100_000
BURST_SPAN_S = 20.0


@dataclass(frozen=True)
class AdmissionStudy:
    """Table ``classes``: one row per setting and class; ``budgets``: the rules in force.

    Attributes:
        num_short, num_long: requests that arrive, the burst included.
        burst_minute: when the burst comes.
        refused_short_shared, refused_short_separate: short requests refused in mode reject.
        p95_short_none, p95_short_separate: P95 of the served short ones, seconds.
        misleading: classes whose P95 turns infinite when refusals count as latencies.
    """

    burst: int
    router: str
    slo_s: float
    num_short: int
    num_long: int
    burst_minute: float
    refused_short_shared: int
    refused_short_separate: int
    p95_short_none: float
    p95_short_separate: float
    misleading: int
    tables: dict[str, pd.DataFrame]

    @property
    def words(self) -> dict[str, str]:
        """Its numbers as people read them."""
        return {
            "burst": count_text(self.burst),
            "separate": count_text(self.refused_short_separate),
            "shared": count_text(self.refused_short_shared),
            "slo": f"{self.slo_s:g}",
        }

    def value(self, setting: str, cls: str, column: str, missing: float = math.nan) -> float:
        """A cell of ``classes``; ``missing`` when that setting did not run."""
        rows = self.tables["classes"]
        row = rows[(rows["setting"] == setting) & (rows["cls"] == cls)]
        return float(row[column].iloc[0]) if len(row) else missing


def admission(burst: int = 40, **params: Any) -> AdmissionStudy:
    """Run the same requests and burst under every admission setting.

    Args:
        burst: prompts of 100,000 tokens that arrive within 20 s in the middle of the run.
        params: fields of ``Scenario``.

    Raises:
        BudgetError: a weight exceeds its budget.
    """
    runs = [admission_run(setting, burst, **params) for setting in SETTINGS]
    return gather_admission(runs, burst, **params)


def admission_run(
    setting: str = "none", burst: int = 40, **params: Any
) -> tuple[dict[str, Any], ...]:
    """One admission setting of the comparison, as rows of its table, one per class.

    Raises:
        BudgetError: a weight exceeds its budget.
    """
    lanes, _, mode = require_choice("setting", setting, SETTINGS).partition("-")
    rules = {"admission": mode, "lanes": lanes} if mode else {"admission": "none"}
    p = page_scenario(**{**params, **rules})
    workload, _ = with_burst(p.workload(), burst, p.seed)
    result = p.simulator().run(workload)
    return tuple(_row(setting, cls, result, p.slo_s) for cls in CLASS_NAMES)


def gather_admission(
    runs: Sequence[Sequence[dict[str, Any]]], burst: int = 40, **params: Any
) -> AdmissionStudy:
    """The comparison of the runs made so far; numbers of missing settings are NaN or 0."""
    p = page_scenario(**{**params, "admission": "none"})
    table = pd.DataFrame([row for run in runs for row in run])
    first = table[table["setting"] == table["setting"].iloc[0]].set_index("cls")["num_arrived"]
    study = AdmissionStudy(
        burst=burst,
        router=p.router,
        slo_s=p.slo_s,
        num_short=int(first["short"]),
        num_long=int(first["long"]),
        burst_minute=float(p.workload().arrival_s[-1]) / 2 / 60,
        refused_short_shared=0,
        refused_short_separate=0,
        p95_short_none=0.0,
        p95_short_separate=0.0,
        misleading=int(np.isinf(table["misleading_p95_s"]).sum()),
        tables={"classes": table, "budgets": _budget_table(p)},
    )
    return replace(
        study,
        refused_short_shared=int(study.value("shared-reject", "short", "num_refused", 0)),
        refused_short_separate=int(study.value("separate-reject", "short", "num_refused", 0)),
        p95_short_none=study.value("none", "short", "p95_s"),
        p95_short_separate=study.value("separate-reject", "short", "p95_s"),
    )


def with_burst(workload: Workload, burst: int, seed: int) -> tuple[Workload, float]:
    """Insert ``burst`` prompts of new sessions in the middle of a workload.

    Returns:
        the workload, and when the burst starts, in seconds.
    """
    require_count("burst", burst, 0, 100_000)
    middle_s = float(workload.arrival_s[-1]) / 2
    if burst == 0:
        return workload, middle_s
    drawn = np.random.default_rng(seed).uniform(middle_s, middle_s + BURST_SPAN_S, burst)
    num_blocks = -(-BURST_LEN // BLOCK_LEN)
    first_id = int(workload.block_ids.max()) + 1
    first_session = int(workload.sessions.max()) + 1
    arrival_s = np.concatenate((workload.arrival_s, drawn))
    order = np.argsort(arrival_s, kind="stable")
    own = np.diff(workload.block_offsets)
    sizes = np.concatenate((own, np.full(burst, num_blocks)))
    starts = np.concatenate(
        (workload.block_offsets[:-1], workload.num_blocks + num_blocks * np.arange(burst))
    )
    ids = np.concatenate((workload.block_ids, first_id + np.arange(burst * num_blocks)))
    offsets = np.concatenate(([0], np.cumsum(sizes[order])))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes[order])
    return (
        Workload(
            arrival_s=arrival_s[order],
            input_len=np.concatenate((workload.input_len, np.full(burst, BURST_LEN)))[order],
            output_len=np.concatenate((workload.output_len, np.ones(burst, np.int64)))[order],
            block_ids=ids[np.repeat(starts[order], sizes[order]) + within],
            block_offsets=offsets,
            sessions=np.concatenate(
                (workload.sessions, first_session + np.arange(burst).astype(np.uint64))
            )[order],
            long_threshold=workload.long_threshold,
        ),
        middle_s,
    )


def _row(setting: str, cls: str, result: FleetResult, slo_s: float) -> dict[str, Any]:
    budget, _, mode = setting.partition("-")
    return {
        "setting": setting,
        "budget": budget,
        "mode": mode or "none",
        "cls": cls,
        "p95_s": result.ttft_at(0.95, cls),
        "misleading_p95_s": result.ttft_counting_refusals(0.95, cls),
        "num_arrived": result.num_arrived(cls),
        "num_served": result.num_served(cls),
        "num_refused": result.num_rejected(cls),
        "refused_share": result.rejected_share(cls),
        "goodput": result.goodput(slo_s, cls),
    }


def _budget_table(p: Scenario) -> pd.DataFrame:
    """The rule of each class; ``held_at_once`` counts requests and is empty for token budgets."""
    by_class = p.admission_by == "class"
    total = sum(p.budgets)
    return pd.DataFrame(
        [
            {
                "cls": cls,
                "unit": "weight" if by_class else f"{p.admission_by}_tokens",
                "weight": weight if by_class else None,
                "budget": budget,
                "held_at_once": budget // weight if by_class else None,
                "held_at_once_shared": total // weight if by_class else None,
            }
            for cls, weight, budget in zip(CLASS_NAMES, p.class_weights, p.budgets, strict=True)
        ]
    )
