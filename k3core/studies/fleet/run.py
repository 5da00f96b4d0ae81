"""One run of the fleet in full: load, times to first token, and the numbers that sum it up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from k3core.fleet.result import FleetResult
from k3core.fleet.workload import CLASS_NAMES
from k3core.studies.fleet.scenario import kept_run, page_scenario
from k3core.units import count_text, percent_text, seconds_text

_MAX_STEPS = 300  # of one curve
_BINS_PER_DECADE = 6


@dataclass(frozen=True)
class SimulationStudy:
    """Tables ``load``, ``ecdf``, ``histogram``, ``p95``, ``summary``.

    Attributes:
        reuse: share of the served prompt tokens that were not computed again.
        mla_match: share that the MLA blocks alone would have covered.
        total_s: prefill seconds of the whole run.
        p95_s: by class and ``all``; NaN where nobody was served.
    """

    router: str
    num_served: int
    num_refused: int
    num_in_flight: int
    reuse: float
    mla_match: float
    total_s: float
    p95_s: dict[str, float]
    num_failovers: int
    reprefilled_tokens: int
    load_std_s: float
    peak_to_mean: float
    utilisation: float
    tables: dict[str, pd.DataFrame]

    @property
    def words(self) -> dict[str, str]:
        """Its numbers as people read them."""
        return {
            "served": count_text(self.num_served),
            "reuse": percent_text(self.reuse),
            "refused": count_text(self.num_refused),
            "match": percent_text(self.mla_match),
            "utilisation": percent_text(self.utilisation, 0),
        }


def simulation(**params: Any) -> SimulationStudy:
    """Run the fleet once.

    Args:
        params: fields of ``Scenario``.
    """
    p = page_scenario(**params)
    result = kept_run(p)
    p95_s = {cls: result.ttft_at(0.95, cls) for cls in CLASS_NAMES} | {"all": result.ttft_at(0.95)}
    study = SimulationStudy(
        router=p.router,
        num_served=result.num_served(),
        num_refused=result.num_rejected(),
        num_in_flight=result.num_in_flight(),
        reuse=result.reuse_share,
        mla_match=result.num_hit_tokens / max(1, result.num_served_tokens),
        total_s=float(result.load_s.sum()),
        p95_s=p95_s,
        num_failovers=result.num_failovers,
        reprefilled_tokens=result.reprefilled_tokens,
        load_std_s=result.load_std_s,
        peak_to_mean=result.peak_to_mean_load,
        utilisation=result.utilisation,
        tables={},
    )
    study.tables.update(
        load=_load(result),
        ecdf=_ecdf(result),
        histogram=_histogram(result),
        p95=pd.DataFrame(
            [{"cls": cls, "p95_s": p95_s[cls]} for cls in CLASS_NAMES if math.isfinite(p95_s[cls])],
            columns=["cls", "p95_s"],
        ),
        summary=_summary(study),
    )
    return study


def _load(result: FleetResult) -> pd.DataFrame:
    served = result.is_served
    return pd.DataFrame(
        {
            "cluster": list(result.clusters),
            "load_s": result.load_s,
            "mean_s": result.load_s.mean(),
            "num_served": np.bincount(result.cluster[served], minlength=len(result.clusters)),
            "lost_s": result.lost_s,
            "cached_blocks": result.cached_blocks,
        }
    )


def _ecdf(result: FleetResult) -> pd.DataFrame:
    """Share of the served with a first token by then, thinned to a few hundred steps."""
    parts = []
    for cls in CLASS_NAMES:
        values = np.sort(result.ttft_s(cls))
        num = len(values)
        keep = np.unique(np.linspace(0, num - 1, min(num, _MAX_STEPS)).astype(int))[:num]
        parts.append(
            pd.DataFrame({"cls": cls, "ttft_s": values[keep], "share": (keep + 1) / max(1, num)})
        )
    return pd.concat(parts, ignore_index=True)


def _histogram(result: FleetResult) -> pd.DataFrame:
    """Times to first token in bins of equal width on a log scale, by class."""
    every = result.ttft_s()
    if not len(every):
        return pd.DataFrame(columns=["cls", "start_s", "end_s", "num_requests"])
    low = math.floor(math.log10(max(float(every.min()), 1e-3)) * _BINS_PER_DECADE)
    high = math.ceil(math.log10(max(float(every.max()), 2e-3)) * _BINS_PER_DECADE)
    edges = 10 ** (np.arange(low, max(high, low + 1) + 1) / _BINS_PER_DECADE)
    rows = []
    for cls in CLASS_NAMES:
        values = np.clip(result.ttft_s(cls), edges[0], edges[-1])
        counts, _ = np.histogram(values, edges)
        rows += [
            {"cls": cls, "start_s": start, "end_s": end, "num_requests": int(count)}
            for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    return pd.DataFrame(rows)


def _summary(study: SimulationStudy) -> pd.DataFrame:
    def seconds(value: float) -> str:
        return seconds_text(value) if math.isfinite(value) else "–"

    rows = {
        "reuse": percent_text(study.reuse),
        "total_cost": seconds(study.total_s),
        "p95_short": seconds(study.p95_s["short"]),
        "p95_long": seconds(study.p95_s["long"]),
        "refused": count_text(study.num_refused),
        "failovers": count_text(study.num_failovers),
        "reprefilled": count_text(study.reprefilled_tokens),
        "load_std": seconds(study.load_std_s),
    }
    return pd.DataFrame({"row": list(rows), "value": list(rows.values())})
