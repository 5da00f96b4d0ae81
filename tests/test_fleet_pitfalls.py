"""Mistakes that routers, rings and simulators made in public, each with its smallest input.

Not covered because the fleet has no such part: retries by clients and several router replicas.
"""

import math
import subprocess
import sys

import numpy as np
import pytest

from k3core.errors import BudgetError
from k3core.fleet import (
    ALL_ROUTERS,
    BudgetController,
    ConsistentHashRing,
    Failure,
    FleetSimulator,
    Request,
    RouterSettings,
    Workload,
    hub_workload,
    synthetic_workload,
)
from k3core.fleet.event_loop import EventLoop
from k3core.fleet.ring import mix64
from k3core.fleet.stats import counting_refusals, order_statistic
from tests.fleet_helpers import UNIT, requests

NAMES = [f"session-{index}" for index in range(3000)]


def ring_of(clusters, vnodes=40):
    ring = ConsistentHashRing()
    for cluster in clusters:
        ring.add_cluster(cluster, vnodes)
    return ring


def owners(ring):
    return [ring.route(name).primary for name in NAMES]


# ---- percentiles -------------------------------------------------------------------------------


def test_rejections_dropped_from_percentiles():
    """InferenceX #357: ten served in 1 s and ten refused look perfect in a percentile alone."""
    budget = BudgetController({"short": 10, "long": 1}, {"short": 1, "long": 1})
    workload = requests(*[(0.0, 1000, i) for i in range(20)])
    result = FleetSimulator(20, router="round-robin", cost=UNIT, admission=budget).run(workload)
    facts = result.as_dict(slo_s=1.0)
    assert facts["p95_ttft_s"]["all"] == 1.0
    assert facts["rejection_rate"]["all"] == 0.5  # never without these two
    assert facts["goodput"]["all"] == 0.5


def test_rejections_as_infinite_latencies():
    """aiperf #688: six refused of a hundred make a class that waits 1 s look infinitely slow."""
    served = np.ones(94)
    assert order_statistic(served, 0.95) == 1.0
    assert counting_refusals(served, 6, 0.95) == math.inf


def test_nan_from_interpolation_with_infinity():
    values = np.array([1.0] * 95 + [math.inf] * 5)
    assert not math.isfinite(np.percentile(values, 95))
    assert order_statistic(values, 0.95) == 1.0


def test_percentile_off_by_one():
    """vllm-sr-sim: int(n p / 100) - 1; of 10 values the P95 is the tenth, of 20 the nineteenth."""
    assert order_statistic(np.arange(1.0, 11), 0.95) == 10.0
    assert order_statistic(np.arange(1.0, 21), 0.95) == 19.0


def test_warm_up_is_part_of_the_result():
    """kvcache-simulator measures the second half: the window is printed with every number."""
    workload = synthetic_workload(300, 30, 3.0)
    late = FleetSimulator(2, window_s=(50.0, math.inf)).run(workload)
    whole = FleetSimulator(2).run(workload)
    assert late.reuse_share > whole.reuse_share
    assert whole.as_dict()["window"]["start_s"] == 0.0
    assert late.as_dict()["window"]["start_s"] == 50.0


# ---- prefixes and load -------------------------------------------------------------------------


@pytest.mark.parametrize("router", ["session", "prefix-load", "mooncake", "dynamo"])
def test_a_hub_prefix_does_not_send_everything_to_one_cluster(router):
    """vllm-router #179: three requests [0,1], [0,2], [0,3]; longest prefix alone stacks them."""
    rows = [Request(100.0, 1024, 1, (0, i), i) for i in range(1, 4)]
    rows.insert(0, Request(0.0, 1024, 1, (0, 9), 9))
    workload = Workload.from_requests(rows)
    stacked = FleetSimulator(3, router="longest-prefix", cost=UNIT).run(workload)
    assert len(set(stacked.cluster.tolist())) == 1
    spread = FleetSimulator(3, router=router, cost=UNIT).run(workload)
    assert len(set(spread.cluster.tolist())) > 1


@pytest.mark.parametrize("router", list(ALL_ROUTERS))
def test_the_load_signal_returns_to_zero_on_every_path(router):
    """sglang #15473: load not reported on a path. Service, failure, return and refusal report."""
    budget = BudgetController({"short": 9, "long": 9}, {"short": 1, "long": 3})
    simulator = FleetSimulator(
        3, router=router, cost=UNIT, admission=budget, failures=[Failure(0, 5.0, 9.0)]
    )
    events = EventLoop(simulator, synthetic_workload(120, 20, 4.0))
    events.loop()
    assert events.fleet.pending_len == [0, 0, 0]
    assert events.fleet.waiting_s == [0.0, 0.0, 0.0]
    assert events.in_system == [0, 0]
    for name in ("in_flight", "active_blocks", "prefill_blocks"):
        assert not any(getattr(events.router, name, ()))


def test_a_sticky_overload_mark_is_cleared():
    """dynamo #12138: once the home has room again the session comes home."""
    burst = [(0.0, 60_000, 5)] * 3
    workload = requests(*burst, (1e6, 1000, 5))
    result = FleetSimulator(4, router="session-bounded", cost=UNIT).run(workload)
    home = FleetSimulator(4, router="session", cost=UNIT).run(workload).cluster[0]
    assert len(set(result.cluster[:3].tolist())) > 1
    assert result.cluster[3] == home


def test_a_miss_to_the_smallest_tree_ignores_load():
    """sglang #14532: the copied router does it; the cost-based ones look at the queue."""
    workload = requests((0.0, 1000, 0), (0.0, 90_000, 1), (1.0, 500, 2))
    sglang = FleetSimulator(2, router="sglang", cost=UNIT).run(workload)
    ours = FleetSimulator(2, router="prefix-load", cost=UNIT).run(workload)
    assert ours.cluster[2] == ours.cluster[0]
    assert sglang.cluster[2] == sglang.cluster[0]  # here the small tree is the idle one
    after = requests((0.0, 90_000, 0), (500.0, 45_000, 1), (500.0, 30_000, 2), (500.1, 500, 3))
    stuck = FleetSimulator(2, router="sglang", cost=UNIT).run(after)
    free = FleetSimulator(2, router="prefix-load", cost=UNIT).run(after)
    assert stuck.all_ttft_s[3] > 40 > free.all_ttft_s[3]


def test_request_counts_are_blind_to_long_contexts():
    """smg #1621: one prompt of 128K against three of 1K."""
    workload = requests((0.0, 131_072, 0), *[(1.0, 1024, i) for i in range(1, 4)])
    result = FleetSimulator(2, router="least-loaded", cost=UNIT).run(workload)
    assert (result.cluster[1:] != result.cluster[0]).all()


def test_a_hot_session_overloads_its_cluster_unless_the_load_is_bounded():
    """sglang #33625: strict affinity queues four at one cluster while others idle."""
    workload = requests(*[(0.0, 4000, 7)] * 4)
    strict = FleetSimulator(4, router="session", cost=UNIT).run(workload)
    bounded = FleetSimulator(4, router="session-bounded", cost=UNIT).run(workload)
    assert strict.ttft_at(0.95) == 16.0
    assert bounded.ttft_at(0.95) <= 8.0


def test_affinity_survives_an_imbalance():
    """sglang #32195: among the idle clusters the warm one is taken, not just the shortest queue."""
    path = tuple(range(20))
    rows = [
        Request(0.0, 10_240, 1, path, 1),
        Request(100.0, 200_000, 1, tuple(range(1000, 1391)), 2),  # one cluster is very busy
        Request(101.0, 10_240, 1, (*path[:19], 90), 1),
    ]
    for router in ("prefix-load", "dynamo"):
        result = FleetSimulator(4, router=router, cost=UNIT, rule="dense").run(
            Workload.from_requests(rows)
        )
        assert result.reused_len[2] == 19 * 512


@pytest.mark.parametrize("router", ["least-loaded", "prefix-load", "mooncake", "dynamo"])
def test_simultaneous_arrivals_do_not_herd(router):
    """llm-d-router #298: eight arrivals and eight idle clusters: one each."""
    workload = requests(*[(0.0, 1000, i) for i in range(8)])
    result = FleetSimulator(8, router=router, cost=UNIT).run(workload)
    assert sorted(result.cluster.tolist()) == list(range(8))


def test_a_stale_view_herds():
    workload = requests(*[(0.0, 1000, i) for i in range(8)])
    result = FleetSimulator(8, router="least-loaded-stale", cost=UNIT).run(workload)
    assert len(set(result.cluster.tolist())) == 1
    settings = RouterSettings(refresh_s=10.0)
    later = requests((0.0, 1000, 0), (5.0, 1000, 1), (20.0, 1000, 2))
    seen = FleetSimulator(2, router="least-loaded-stale", cost=UNIT, routing=settings).run(later)
    assert seen.cluster.tolist() == [0, 0, 1]


def test_a_trace_dispatched_in_ticks_bends_the_waits():
    """Coarse clocks make bursts that never happened; spread arrivals are a second result."""
    workload = requests(*[(3.0 * (i // 10), 600, i) for i in range(200)])
    raw = FleetSimulator(4, router="least-loaded", cost=UNIT).run(workload)
    spread = FleetSimulator(4, router="least-loaded", cost=UNIT).run(workload.spread())
    assert workload.tick_s == 3.0
    assert raw.mean_ttft_s() > 1.3 * spread.mean_ttft_s()


# ---- admission ---------------------------------------------------------------------------------


def test_a_weight_above_its_budget_never_waits_forever():
    """LMCache #2957: budget 2, weight 3."""
    with pytest.raises(BudgetError, match="never be admitted"):
        BudgetController({"long": 2}, {"long": 3}, "queue")
    budget = BudgetController({"short": 2000, "long": 2000}, {"short": 1, "long": 1}, "queue")
    simulator = FleetSimulator(1, admission=budget, admission_by="total")
    result = simulator.run(requests((0.0, 3000, 0), (1.0, 1000, 1)))
    assert (result.num_refused_for("too_large"), result.num_served()) == (1, 1)


def test_classes_by_total_length_call_cheap_requests_long():
    """llm-d-router #2540: 30,720 tokens of which 600 are new."""
    path = tuple(range(60))
    rows = [
        Request(0.0, 60 * 512, 1, path, 7),
        Request(1e4, 61 * 512 + 88, 1, (*path, 100, 101), 7),
    ]
    workload = Workload.from_requests(rows)
    total = FleetSimulator(2, rule="dense").run(workload)
    uncached = FleetSimulator(2, rule="dense", class_by="uncached").run(workload)
    assert total.is_long.tolist() == [True, True]
    assert uncached.is_long.tolist() == [True, False]


def test_admission_does_not_free_a_server_that_a_long_prefill_holds():
    """sglang #8211: budgets let the short one in, the one FIFO server still makes it wait."""
    workload = requests((0.0, 100_000, 0), (1.0, 500, 1))
    budget = BudgetController({"short": 5, "long": 5}, {"short": 1, "long": 1})
    one = FleetSimulator(1, cost=UNIT, admission=budget).run(workload)
    two = FleetSimulator(1, cost=UNIT, admission=budget, servers=2).run(workload)
    assert one.all_ttft_s[1] > 99
    assert two.all_ttft_s[1] == 0.5


# ---- rings -------------------------------------------------------------------------------------


def test_routes_do_not_depend_on_the_hash_seed_of_the_process():
    """LMCache #1139, vllm #51875: hash() differs from process to process."""
    code = (
        "from k3core.fleet import ConsistentHashRing as R; r = R()\n"
        "for i in range(8): r.add_cluster(f'c{i}', 40)\n"
        "print([str(r.route(f'session-{i}').primary) for i in range(20)])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(seen) == 1


def test_modulo_moves_nearly_everything_and_the_ring_its_share():
    """production-stack #8: from 8 to 7."""
    before, after = ring_of(range(8)), ring_of(range(7))
    moved = np.mean([a != b for a, b in zip(owners(before), owners(after), strict=True)])
    modulo = np.mean(np.arange(3000) % 8 != np.arange(3000) % 7)
    assert modulo > 0.8 > 0.25 > moved


def test_numbering_clusters_by_position_moves_others_too():
    """A ring rebuilt with list indexes moved 61%; names move only the removed one's sessions."""
    names = [f"c{i}" for i in range(8) if i != 3]
    before, by_name = owners(ring_of([f"c{i}" for i in range(8)])), owners(ring_of(names))
    assert all(was == now or was == "c3" for was, now in zip(before, by_name, strict=True))
    by_index = [names[owner] for owner in owners(ring_of(range(7)))]
    before_index = [f"c{owner}" for owner in owners(ring_of(range(8)))]
    assert np.mean([a != b for a, b in zip(before_index, by_index, strict=True)]) > 0.4


def test_too_few_points_are_uneven():
    """skipper #1796, groupcache #29: three points against 160."""
    peaks = {
        v: 8 * max(ring_of([f"c{i}" for i in range(8)], v).shares().values()) for v in (3, 160)
    }
    assert peaks[3] > 1.4 > 1.25 > peaks[160]


def test_points_of_a_removed_cluster_do_not_stay():
    """uhashring PR #36: stale points after an update."""
    ring = ring_of(["a", "b", "c"])
    ring.remove_cluster("b")
    ring.add_cluster("b", 10)
    assert ring.num_points == 90
    assert "b" not in {arc.cluster for arc in ring_of(["a", "c"]).arcs()}


def test_a_key_past_the_last_point_wraps_around():
    """lua-resty-checkups #3."""
    ring = ring_of(["a", "b", "c"], 3)
    arcs = ring.arcs()
    assert sum((arc.end - arc.start) % 2**64 for arc in arcs) == 2**64
    key = next(key for key in range(10**6) if mix64(key) > arcs[-1].end)
    assert ring.route(key).primary == arcs[0].cluster


def test_points_of_a_cluster_do_not_depend_on_how_many_there_are():
    """envoy #22558, istio #41814: adding one moved sessions between the others."""
    before, after = owners(ring_of(range(8))), owners(ring_of(range(9)))
    assert all(was == now or now == 8 for was, now in zip(before, after, strict=True))


def test_flapping_restores_every_route():
    """twemproxy #14, envoy #45212: out, in, out, in."""
    ring = ring_of([f"c{i}" for i in range(8)])
    before = owners(ring)
    for _ in range(3):
        ring.remove_cluster("c2")
        ring.route(1)
        ring.add_cluster("c2", 40)
    assert owners(ring) == before


def test_failures_do_not_cascade():
    """thanos-receive-controller #75: the victim's sessions spread over all that are left."""
    ring = ring_of([f"c{i}" for i in range(8)], 160)
    heirs = [ring.route(name).secondary for name in NAMES if ring.route(name).primary == "c3"]
    assert len(set(heirs)) == 7
    assert max(heirs.count(heir) for heir in set(heirs)) < 0.4 * len(heirs)


def test_a_smallest_tree_fills_evenly_under_hubs():
    """The copied SGLang router keeps request counts inside its window."""
    workload = hub_workload(400, rate_per_s=50.0, num_hubs=8)
    result = FleetSimulator(4, router="sglang").run(workload)
    assert np.bincount(result.cluster, minlength=4).min() > 0
