"""Speed of the fleet: ``pytest tests/benchmarks/bench_fleet.py`` (not part of the test suite).

The replay reads ``conversation_trace.jsonl.gz`` from ``K3_TRACES``. The bounds are those of the
project on two idle cores; a busy machine may miss them.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from k3core.fleet import (
    BudgetController,
    ConsistentHashRing,
    FleetSimulator,
    read_trace,
    synthetic_workload,
)

TRACE = Path(os.environ.get("K3_TRACES", "")) / "conversation_trace.jsonl.gz"
needs_trace = pytest.mark.skipif(not TRACE.is_file(), reason="K3_TRACES has no conversation trace")


@needs_trace
def test_loading_the_conversation_trace(benchmark):
    workload = benchmark(read_trace, TRACE)
    assert len(workload) == 12_031


@needs_trace
@pytest.mark.parametrize(
    ("router", "least_per_s"),
    [
        ("session", 15_000),
        ("round-robin", 15_000),
        ("least-loaded", 15_000),
        ("prefix-load", 8_000),
    ],
)
def test_replay_of_the_conversation_trace(benchmark, router, least_per_s):
    workload = read_trace(TRACE)
    simulator = FleetSimulator(8, router=router, capacity_blocks=5859)
    result = benchmark.pedantic(simulator.run, args=(workload,), rounds=5, warmup_rounds=1)
    per_s = len(workload) / benchmark.stats.stats.min
    benchmark.extra_info["requests_per_s"] = round(per_s)
    assert result.num_served() == len(workload)
    assert per_s >= least_per_s


@pytest.mark.parametrize("num_requests", [10_000, 40_000, 160_000])
def test_cost_per_request_stays_flat(benchmark, num_requests):
    workload = synthetic_workload(num_requests, num_requests // 2, 3.0, long_share=0.02)
    simulator = FleetSimulator(8, capacity_blocks=5859)
    benchmark.pedantic(simulator.run, args=(workload,), rounds=2)
    benchmark.extra_info["us_per_request"] = 1e6 * benchmark.stats.stats.min / num_requests


def test_admission_in_the_loop(benchmark):
    workload = synthetic_workload(20_000, 10_000, 8.0, long_share=0.05)
    budget = BudgetController({"short": 16, "long": 24}, {"short": 1, "long": 3}, "queue")
    simulator = FleetSimulator(8, capacity_blocks=5859, admission=budget)
    benchmark.pedantic(simulator.run, args=(workload,), rounds=3)


@pytest.mark.parametrize("num_clusters", [8, 64])
def test_vectorised_routes(benchmark, num_clusters):
    ring = ConsistentHashRing()
    for index in range(num_clusters):
        ring.add_cluster(f"c{index}", 160)
    keys = np.random.default_rng(0).integers(0, 2**64, 1_000_000, dtype=np.uint64)
    primary, _ = benchmark(ring.route_many, keys)
    benchmark.extra_info["routes_per_s"] = round(len(keys) / benchmark.stats.stats.min)
    assert len(np.unique(primary)) == num_clusters
