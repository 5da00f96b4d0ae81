"""What consistent hashing promises, as numbers to hold a real ring against.

With V points on each of N clusters the shares of the ring follow Dirichlet(V, ..., V); one share
follows Beta(V, (N-1)V). Removing a cluster moves its share and nothing else.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from k3core.errors import require_count, require_number
from k3core.fleet.ring import MAX_CLUSTERS, MAX_VNODES

NUM_DRAWS = 20_000
_SEED = 5430  # of the draws behind the bands: they are the same in every run


class Band(NamedTuple):
    """Mean of a quantity, and the range that holds it with the probability asked for."""

    low: float
    mean: float
    high: float


def share_cv(num_clusters: int, vnodes: int) -> float:
    """Standard deviation of one cluster's share over its mean: sqrt((N-1) / (N V + 1))."""
    _check(num_clusters, vnodes)
    return math.sqrt((num_clusters - 1) / (num_clusters * vnodes + 1))


def share_band(num_clusters: int, vnodes: int, level: float = 0.9) -> Band:
    """Share of one given cluster: Beta(V, (N-1)V), from seeded draws.

    Args:
        level: probability of the band, for example 0.9 for p5 to p95.
    """
    return _share_band(*_check(num_clusters, vnodes), _level(level))


@lru_cache(maxsize=256)
def _share_band(num_clusters: int, vnodes: int, level: float) -> Band:
    if num_clusters == 1:
        return Band(1.0, 1.0, 1.0)
    rng = np.random.default_rng(_SEED)
    draws = rng.beta(vnodes, (num_clusters - 1) * vnodes, NUM_DRAWS)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Band(float(low), 1 / num_clusters, float(high))


def peak_band(num_clusters: int, vnodes: int, level: float = 0.9) -> Band:
    """Largest share over the mean share: Dirichlet(V, ..., V), from seeded draws."""
    return _peak_band(*_check(num_clusters, vnodes), _level(level))


@lru_cache(maxsize=256)
def _peak_band(num_clusters: int, vnodes: int, level: float) -> Band:
    rng = np.random.default_rng(_SEED)
    widths = rng.standard_gamma(vnodes, (NUM_DRAWS, num_clusters))
    peaks = widths.max(axis=1) / widths.mean(axis=1)
    low, high = np.quantile(peaks, [(1 - level) / 2, (1 + level) / 2])
    return Band(float(low), float(peaks.mean()), float(high))


def _check(num_clusters: int, vnodes: int) -> tuple[int, int]:
    return (
        require_count("num_clusters", num_clusters, 1, MAX_CLUSTERS),
        require_count("vnodes", vnodes, 1, MAX_VNODES),
    )


def _level(level: float) -> float:
    return require_number("level", level, above=0, most=1)
