"""What benchmarks note beside their times: ratios, values with a unit, growth; with their bounds.

Times of a ratio are measured in turn, so that a busy moment of the machine meets both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Bound(NamedTuple):
    """What a measure is to be: at least or at most `value`."""

    least: bool
    value: float

    def met(self, measured: float) -> bool:
        return measured >= self.value if self.least else measured <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.value:g}"


def at_least(value: float) -> Bound:
    return Bound(True, value)


def at_most(value: float) -> Bound:
    return Bound(False, value)


def seconds_of(
    function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> float:
    start = clock()
    function()
    return clock() - start


def race(
    benchmark: Any,
    ours: Callable[[], Any],
    peers: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """Seconds of `ours` and of each peer, one of each per round; `ours` is the benchmark.

    `clock` times the peers; it must be the timer of the benchmark.
    """
    taken: dict[str, list[float]] = {name: [] for name in peers}

    def run_peers() -> None:
        for name, peer in peers.items():
            taken[name].append(seconds_of(peer, clock))

    benchmark.pedantic(ours, setup=run_peers, rounds=rounds, warmup_rounds=1)
    times = {name: np.asarray(seconds[-rounds:]) for name, seconds in taken.items()}
    return {"ours": np.asarray(benchmark.stats.stats.data), **times}


def note_ratio(
    benchmark: Any,
    name: str,
    over: Sequence[float] | np.ndarray,
    under: Sequence[float] | np.ndarray,
    bound: Bound | None = None,
    scale: float = 1.0,
) -> None:
    """Keep ``scale * over / under``: best time over best time, and the quartiles over the rounds.

    The best times judge the bound: everything else that runs only ever adds time.
    """
    over, under = np.asarray(over), np.asarray(under)
    best = scale * float(over.min() / under.min())
    _note(benchmark, name, best, scale * over / under, bound)


def note_value(
    benchmark: Any, name: str, values: Sequence[float] | np.ndarray, bound: Bound | None = None
) -> None:
    """Keep a value in the unit that `name` tells: the best over the rounds, and the quartiles.

    Rates (a bound from below) are best at their largest, all others at their smallest.
    """
    values = np.asarray(values, dtype=float)
    best = values.max() if bound is not None and bound.least else values.min()
    _note(benchmark, name, float(best), values, bound)


def _note(benchmark: Any, name: str, best: float, values: np.ndarray, bound: Bound | None) -> None:
    low, high = (float(x) for x in np.quantile(values, [0.25, 0.75]))
    benchmark.extra_info.setdefault("measures", []).append(
        {
            "name": name,
            "best": best,
            "low": low,
            "high": high,
            "bound": None if bound is None else str(bound),
            "met": None if bound is None else bound.met(best),
        }
    )


def note_exponent(
    benchmark: Any, against: str, sizes: Iterable[int], rows: Sequence[Sequence[float]]
) -> None:
    """Keep the exponent e of ``time ~ size^e``: fitted to the best times, and its spread.

    Args:
        sizes: of the sweep.
        rows: one row of seconds per round, one entry per size.
    """
    x = np.log(np.asarray(list(sizes), dtype=float))
    times = np.log(np.asarray(rows))
    slopes = [float(np.polyfit(x, row, 1)[0]) for row in times]
    low, high = np.quantile(slopes, [0.25, 0.75])
    benchmark.extra_info.setdefault("exponents", []).append(
        {
            "against": against,
            "sizes": [int(size) for size in sizes],
            "best": float(np.polyfit(x, times.min(0), 1)[0]),
            "low": float(low),
            "high": float(high),
        }
    )
