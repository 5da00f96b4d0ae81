"""The cost model as numbers that a reader types: constants of a node, or measured prefills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from k3core.fleet.cost import LONG_PREFIX_LEN, LONG_PREFIX_NEW, PrefillCost, prefill_cost
from k3core.prefix_cache.retention import replay_boundary
from k3core.units import count_text, seconds_text


@dataclass(frozen=True)
class NodeConstants:
    """A cost model in the units of data sheets.

    Attributes:
        linear: GFLOP per computed token.
        quadratic: kFLOP per squared token of context.
        peak: TFLOP/s of a server.
        efficiency: share of the peak that prefill reaches.
        fixed_ms: of every request.
    """

    linear: float
    quadratic: float
    peak: float
    efficiency: float
    fixed_ms: float = 0.0

    @classmethod
    def of(cls, code: str) -> NodeConstants:
        """Those of a preset, rounded as a box shows them."""
        cost = prefill_cost(code)
        numbers = (
            cost.linear_flops / 1e9,
            cost.quadratic_flops / 1e3,
            cost.peak_flops_per_s / 1e12,
            cost.efficiency,
        )
        return cls(*(float(f"{number:.6g}") for number in numbers))

    def cost(self) -> PrefillCost:
        """The model as seconds.

        Raises:
            K3Error: a number out of range.
        """
        return PrefillCost.from_flops(
            "custom",
            self.linear * 1e9,
            self.quadratic * 1e3,
            self.peak * 1e12,
            self.efficiency,
            self.fixed_ms / 1e3,
        )


@dataclass(frozen=True)
class FittedCost:
    """A cost model fitted to measurements. Table ``calibration``: one row per measurement.

    Attributes:
        worst: largest relative error of the fit.
    """

    cost: PrefillCost
    worst: float
    tables: dict[str, pd.DataFrame]


def fitted_cost(measured: Sequence[tuple[int, int, float]]) -> FittedCost:
    """The cost model that fits (prompt tokens, cached tokens, seconds) best.

    Raises:
        K3Error: the measurements are impossible or say too little.
    """
    cost = PrefillCost.calibrated(measured)
    table = pd.DataFrame(measured, columns=["input_len", "cached_len", "measured_s"])
    table["fitted_s"] = [cost.seconds(length, cached) for length, cached, _ in measured]
    table["error"] = table["fitted_s"] / table["measured_s"] - 1
    return FittedCost(cost, float(table["error"].abs().max()), {"calibration": table})


def long_prefix_words(code: str = "kimi-k3", block_tokens: int = 512) -> dict[str, str]:
    """What a long prefix is worth in prefill time, reused up to its last whole block."""
    cost, total = prefill_cost(code), LONG_PREFIX_LEN + LONG_PREFIX_NEW
    hit_s = cost.seconds(total, replay_boundary(LONG_PREFIX_LEN + 1, block_tokens))
    miss_s = cost.seconds(total)
    return {
        "long_len": count_text(LONG_PREFIX_LEN),
        "new": count_text(LONG_PREFIX_NEW),
        "hit": seconds_text(hit_s),
        "miss": seconds_text(miss_s),
        "ratio": f"{miss_s / hit_s:.1f}",
    }
