"""Replayed fleets against their size, and the engine before and after a prefix is cached."""

from __future__ import annotations

import pytest

from k3core.fleet import FleetSimulator, synthetic_workload
from k3core.studies import engine
from tests.benchmarks.ratios import note_exponent, seconds_of


@pytest.mark.benchmark(group="Fleet")
@pytest.mark.parametrize("against", ["requests", "capacity"])
def test_growth_of_a_replay(benchmark, against):
    if against == "requests":
        sizes = [5_000, 10_000, 20_000, 40_000]
        runs = [
            (FleetSimulator(8, capacity_blocks=5859), synthetic_workload(n, n // 2, 3.0))
            for n in sizes
        ]
    else:
        sizes = [500, 1_000, 2_000, 4_000, 8_000]
        workload = synthetic_workload(10_000, 5_000, 3.0)
        runs = [(FleetSimulator(8, capacity_blocks=size), workload) for size in sizes]
    rows = [[seconds_of(lambda r=r: r[0].run(r[1])) for r in runs] for _ in range(4)]
    benchmark.pedantic(runs[-1][0].run, args=(runs[-1][1],), rounds=2)
    note_exponent(benchmark, against, sizes, rows[1:])


@pytest.mark.benchmark(group="Engine")
def test_engine_before_and_after_its_prefix_is_cached(benchmark):
    result = benchmark.pedantic(engine.before_after, rounds=3, warmup_rounds=1)
    benchmark.extra_info["reused_tokens"] = result.reused_tokens
    assert result.reused_tokens > 0
