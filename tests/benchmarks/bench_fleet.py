"""Speed of the fleet.

The replay reads ``conversation_trace.jsonl.gz`` from ``K3_TRACES``. The clock is the process clock
(one thread: seconds of one core), so a busy machine disturbs it little; one replay is also timed by
the wall.
"""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pytest
from uhashring import HashRing

from k3core.fleet import (
    BudgetController,
    ConsistentHashRing,
    FleetSimulator,
    read_trace,
    synthetic_workload,
)
from tests.benchmarks.measures import at_least, at_most, note_ratio, note_value, race

TRACE = Path(os.environ.get("K3_TRACES", "")) / "conversation_trace.jsonl.gz"
pytestmark = pytest.mark.benchmark(group="Fleet", timer=process_time)
needs_trace = pytest.mark.skipif(not TRACE.is_file(), reason="K3_TRACES has no conversation trace")


@needs_trace
def test_loading_the_conversation_trace(benchmark):
    workload = benchmark.pedantic(read_trace, args=(TRACE,), rounds=7)
    assert len(workload) == 12_031
    note_value(benchmark, "s", benchmark.stats.stats.data, at_most(0.3))


@needs_trace
@pytest.mark.benchmark(group="Fleet", timer=perf_counter)
def test_replay_of_the_conversation_trace_by_the_wall(benchmark):
    workload = read_trace(TRACE)
    simulator = FleetSimulator(8, capacity_blocks=5859)
    benchmark.pedantic(simulator.run, args=(workload,), rounds=7, warmup_rounds=1)
    per_s = len(workload) / np.asarray(benchmark.stats.stats.data)
    note_value(benchmark, "requests per s of wall time", per_s, at_least(15_000))


@needs_trace
@pytest.mark.parametrize(
    ("router", "least_per_s"),
    [
        ("session", 40_000),
        ("round-robin", 40_000),
        ("least-loaded", 40_000),
        ("prefix-load", 20_000),
        ("dynamo", 20_000),
        ("mooncake", 20_000),
    ],
)
def test_replay_of_the_conversation_trace(benchmark, router, least_per_s):
    workload = read_trace(TRACE)
    simulator = FleetSimulator(8, router=router, capacity_blocks=5859)
    result = benchmark.pedantic(simulator.run, args=(workload,), rounds=5, warmup_rounds=1)
    assert result.num_served() == len(workload)
    per_s = len(workload) / np.asarray(benchmark.stats.stats.data)
    note_value(benchmark, "requests per CPU s", per_s, at_least(least_per_s))


@pytest.mark.parametrize("num_requests", [10_000, 100_000, 1_000_000])
def test_cost_per_request_stays_flat(benchmark, num_requests):
    workload = synthetic_workload(num_requests, num_requests // 2, 3.0, long_share=0.02)
    simulator = FleetSimulator(8, capacity_blocks=5859)
    benchmark.pedantic(simulator.run, args=(workload,), rounds=1)
    per_request = 1e6 * np.asarray(benchmark.stats.stats.data) / num_requests
    note_value(benchmark, "µs per request", per_request)


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
    assert len(np.unique(primary)) == num_clusters
    per_s = len(keys) / np.asarray(benchmark.stats.stats.data)
    note_value(benchmark, "routes per CPU s", per_s, at_least(5e6))


@pytest.mark.parametrize("num_clusters", [8, 64])
def test_vectorised_routes_against_uhashring_in_the_same_run(benchmark, num_clusters):
    """The same uint64 keys; uhashring takes them as strings, made before its clock starts."""
    ring = ConsistentHashRing()
    for index in range(num_clusters):
        ring.add_cluster(f"c{index}", 160)
    other = HashRing(nodes=[f"c{index}" for index in range(num_clusters)], vnodes=160)
    keys = np.random.default_rng(0).integers(0, 2**64, 1_000_000, dtype=np.uint64)
    names = [str(key) for key in keys[:50_000].tolist()]
    times = race(
        benchmark,
        lambda: ring.route_many(keys),
        {"uhashring": lambda: list(map(other.get_node, names))},
        rounds=7,
        clock=process_time,
    )
    share = len(keys) / len(names)
    note_ratio(
        benchmark, "uhashring / ours", times["uhashring"], times["ours"], at_least(10), share
    )


MEMORY = """
import numpy as np
from k3core.fleet import FleetSimulator, Workload
num = 1_000_000
start = np.repeat(np.arange(num) // 4 * 60, 24)
depth = np.tile(np.arange(24), num)
turn = np.repeat(np.arange(num) % 4, 24)
ids = start + depth + np.where(depth >= 20, 4 * turn, 0) + 1
ids[depth == 0] = 0
del start, depth, turn
workload = Workload(
    np.arange(num) / 4.0, np.full(num, 24 * 512), np.full(num, 300), ids,
    np.arange(0, 24 * num + 1, 24), (np.arange(num) // 4).astype(np.uint64),
)
del ids
before = int(open("/proc/self/statm").read().split()[1]) * 4096
open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
result = FleetSimulator(8, capacity_blocks=5859).run(workload)
status = open("/proc/self/status").read()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
held = sum(c.nbytes for c in vars(workload).values() if isinstance(c, np.ndarray))
print(held, before, peak, result.num_served())
"""


def test_memory_of_a_million_requests_of_24_blocks(benchmark):
    """The requests as columns, and the peak of a whole process that also runs them."""
    done = benchmark.pedantic(
        subprocess.run,
        args=([sys.executable, "-c", MEMORY],),
        kwargs={"capture_output": True, "text": True, "check": True, "timeout": 600},
        rounds=1,
    )
    columns, _, peak, served = map(int, done.stdout.split())
    assert served == 1_000_000
    note_value(benchmark, "MiB of columns", [columns / 2**20], at_most(256))
    note_value(benchmark, "MiB at the peak of the process", [peak / 2**20], at_most(1024))
