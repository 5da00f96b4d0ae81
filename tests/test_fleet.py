"""The fleet: the claims of the source text, statistics, failures and routers."""

import math

import numpy as np
import pytest
from scipy.stats import beta

from k3core.errors import K3Error
from k3core.fleet import (
    BudgetController,
    ConsistentHashRing,
    Failure,
    FleetSimulator,
    PrefillCost,
    Request,
    Workload,
    synthetic_workload,
    theory,
)
from k3core.fleet.result import REJECTED
from k3core.fleet.stats import counting_refusals, order_statistic
from tests.fleet_helpers import UNIT, requests


def eight_clusters(vnodes=8):
    ring = ConsistentHashRing()
    for index in range(8):
        ring.add_cluster(f"c{index}", vnodes)
    return ring


# ---- claims of the source text ---------------------------------------------------------------


@pytest.mark.parametrize("vnodes", [8, 40, 160])
def test_ring_distributes_sessions_uniformly(vnodes):
    ring = eight_clusters(vnodes)
    shares = np.array(list(ring.shares().values()))
    # Eight shares, each in its Beta interval of total error 1e-3; the largest in its band.
    low, high = beta.ppf([0.5e-3 / 8, 1 - 0.5e-3 / 8], vnodes, 7 * vnodes)
    assert ((low < shares) & (shares < high)).all()
    band = theory.peak_band(8, vnodes, level=0.998)
    assert band.low < 8 * shares.max() < band.high
    # 600 sessions are a multinomial draw from these shares.
    index = {cluster: i for i, cluster in enumerate(ring.clusters)}
    owners = [index[ring.route(f"session-{i}").primary] for i in range(600)]
    counts = np.bincount(owners, minlength=8)
    chi2 = float(((counts - 600 * shares) ** 2 / (600 * shares)).sum())
    assert chi2 < 24.3  # 0.999 quantile at 7 degrees of freedom


def test_remove_cluster_only_affects_few_sessions():
    ring = eight_clusters(40)
    sessions = [f"session-{i}" for i in range(600)]
    before = {s: ring.route(s) for s in sessions}
    share = ring.shares()["c3"]
    ring.remove_cluster("c3")
    after = {s: ring.route(s) for s in sessions}
    moved = [s for s in sessions if after[s].primary != before[s].primary]
    assert all(before[s].primary == "c3" for s in moved)
    assert all(after[s].primary == before[s].secondary for s in moved)
    assert not any(after[s].primary == "c3" for s in sessions)
    low, high = beta.ppf([1e-4, 1 - 1e-4], 40, 280)
    assert low < share < high
    assert abs(len(moved) / 600 - share) < 4 * math.sqrt(share * (1 - share) / 600)


def test_budget_isolates_long_burst_from_short():
    budget = BudgetController({"short": 8, "long": 8}, {"short": 1, "long": 3})
    burst = [budget.admit("long") for _ in range(20)]
    assert sum(ticket is not None for ticket in burst) == 2
    assert all(budget.admit("short") is not None for _ in range(8))
    assert budget.num_rejected("short") == 0
    assert budget.admit("short") is None


def test_simulator_routes_to_primary_on_hit():
    first = tuple(range(4))
    workload = Workload.from_requests(
        [Request(0.0, 2000, 1, first, "s"), Request(9.0, 3000, 1, (*first[:3], 7, 8, 9), "s")]
    )
    result = FleetSimulator(8, cost=UNIT).run(workload)
    ring = eight_clusters(160)
    home = ring.route("s").primary
    assert [result.clusters[c] for c in result.cluster] == [home, home]
    assert result.hit_blocks.tolist() == [0, 3]
    assert result.reused_len.tolist() == [0, 1536]
    assert result.service_s[1] == pytest.approx(0.001 * (3000 - 1536))


# ---- statistics and refusals -------------------------------------------------------------------


def test_percentiles_are_order_statistics():
    values = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert [order_statistic(values, q) for q in (0.2, 0.21, 0.5, 0.95, 1.0)] == [1, 2, 3, 5, 5]
    for percent in range(1, 101):  # 0.55 * 100 is 55.00000000000001 in floating point
        for num in (20, 40, 100, 300):
            rank = order_statistic(np.arange(1.0, num + 1), percent / 100)
            assert rank == -(-percent * num // 100)


def test_infinite_values_cannot_make_a_percentile_nan():
    values = np.array([1.0] * 94 + [math.inf] * 6)
    with pytest.warns(RuntimeWarning):
        assert math.isnan(np.percentile(values, 95))
    assert order_statistic(values[:94], 0.95) == 1.0
    assert order_statistic(np.array([1.0, math.inf]), 0.5) == 1.0
    assert order_statistic(np.array([1.0] * 95 + [math.inf] * 5), 0.95) == 1.0


def test_no_value_has_no_percentile():
    assert math.isnan(order_statistic(np.array([]), 0.95))
    with pytest.raises(K3Error, match="q=95"):
        order_statistic(np.array([1.0]), 95)


def test_refusals_are_counted_beside_the_percentile_and_only_warn_inside_it():
    served = np.ones(10)
    assert order_statistic(served, 0.95) == 1.0
    assert counting_refusals(served, 10, 0.95) == math.inf
    assert counting_refusals(served, 0, 0.95) == 1.0


def test_a_refused_request_changes_no_percentile_of_the_served():
    budget = BudgetController({"short": 1, "long": 1}, {"short": 1, "long": 1})
    burst = requests(*[(0.0, 1000, i) for i in range(10)])
    result = FleetSimulator(1, cost=UNIT, admission=budget).run(burst)
    assert (result.num_served(), result.num_rejected()) == (1, 9)
    assert result.ttft_at(0.95) == 1.0
    assert result.ttft_counting_refusals(0.95) == math.inf
    assert result.goodput(5.0) == 0.1
    assert result.as_dict()["p95_ttft_s"] == {"short": 1.0, "long": None, "all": 1.0}


def test_a_ticket_given_back_at_an_instant_admits_an_arrival_of_that_instant():
    budget = BudgetController({"short": 1, "long": 1}, {"short": 1, "long": 1})
    result = FleetSimulator(1, cost=UNIT, admission=budget).run(
        requests((0.0, 1000, 1), (1.0, 1000, 2))
    )
    assert result.num_served() == 2


def test_the_queue_serves_everyone_that_reject_would_refuse():
    workload = synthetic_workload(400, rate_per_s=60.0)
    args = ({"short": 8, "long": 6}, {"short": 1, "long": 3})
    refusing = FleetSimulator(4, admission=BudgetController(*args)).run(workload)
    waiting = FleetSimulator(4, admission=BudgetController(*args, "queue")).run(workload)
    assert refusing.num_rejected() > 0
    assert (waiting.num_rejected(), waiting.num_served()) == (0, 400)
    assert waiting.ttft_at(0.95) > refusing.ttft_at(0.95)


def test_isolation_protects_the_short_class_from_a_burst_of_long_ones():
    burst = [(0.0, 20_000, i) for i in range(40)]
    shorts = [(0.05 * i, 600, 1000 + i) for i in range(100)]
    workload = requests(*burst, *shorts)
    weights, lanes = {"short": 1, "long": 3}, {"short": "all", "long": "all"}
    runs = {
        "separate": BudgetController({"short": 8, "long": 8}, weights),
        "shared": BudgetController({"all": 16}, weights, lanes=lanes),
        "none": None,
    }
    refused, p95 = {}, {}
    for name, admission in runs.items():
        result = FleetSimulator(8, router="least-loaded", cost=UNIT, admission=admission).run(
            workload
        )
        refused[name], p95[name] = result.num_rejected("short"), result.ttft_at(0.95, "short")
    assert refused["separate"] < refused["shared"]
    assert p95["separate"] < p95["none"]


# ---- failures ----------------------------------------------------------------------------------


def session_of(cluster, vnodes=160, num_clusters=8):
    ring = ConsistentHashRing()
    for index in range(num_clusters):
        ring.add_cluster(f"c{index}", vnodes)
    return next(s for s in range(1000) if ring.route(s).primary == f"c{cluster}"), ring


def test_a_failed_clusters_session_prefills_again_at_its_secondary_and_comes_home():
    session, ring = session_of(3)
    path = tuple(range(4))
    workload = Workload.from_requests(
        Request(t, 2000, 1, path, session) for t in (0.0, 10.0, 20.0, 30.0, 40.0)
    )
    result = FleetSimulator(8, cost=UNIT, failures=[Failure(3, 15.0, 35.0)]).run(workload)
    home, secondary = ring.route(session)
    assert [result.clusters[c] for c in result.cluster] == [
        home, home, secondary, secondary, home,
    ]  # fmt: skip
    assert result.reused_len.tolist() == [0, 1536, 0, 1536, 0]
    assert result.failed_over.tolist() == [False, False, True, True, False]
    assert (result.num_failovers, result.reprefilled_tokens) == (2, 2000 + 464)


def test_a_failure_moves_no_session_of_another_cluster():
    workload = synthetic_workload(1500, rate_per_s=12.0)
    calm = FleetSimulator(8).run(workload)
    failed = FleetSimulator(8, failures=[Failure(2, 40.0)]).run(workload)
    changed = calm.cluster != failed.cluster
    assert changed.sum() > 20
    assert (calm.cluster[changed] == 2).all()
    late = workload.arrival_s >= 40.0
    assert (failed.cluster[late] != 2).all()


def test_waiting_and_running_requests_move_in_order_and_start_over():
    session, ring = session_of(3)
    rows = [(0.0, 1000, session), (0.1, 1000, session), (0.2, 1000, session)]
    result = FleetSimulator(8, cost=UNIT, failures=[Failure(3, 0.5)]).run(requests(*rows))
    secondary = ring.route(session).secondary
    assert {result.clusters[c] for c in result.cluster} == {secondary}
    assert result.start_s.tolist() == [0.5, 1.5, 2.5]
    assert result.moved.all()
    assert result.lost_s[3] == 0.5


def test_with_no_cluster_up_requests_wait_at_the_door():
    rows = [(0.0, 1000, 1), (2.0, 1000, 2)]
    down = Failure(0, 0.5, 10.0)
    result = FleetSimulator(1, cost=UNIT, failures=[down]).run(requests(*rows))
    assert result.start_s.tolist() == [10.0, 11.0]
    never = FleetSimulator(1, cost=UNIT, failures=[Failure(0, 0.5)]).run(requests(*rows))
    assert (never.num_served(), never.num_in_flight()) == (0, 2)


def test_a_cluster_that_returns_is_seen_as_empty():
    rows = [(0.0, 9000, 0), (0.1, 9000, 1), (5.0, 1000, 2)]
    result = FleetSimulator(
        2, router="least-loaded", cost=UNIT, failures=[Failure(0, 1.0, 2.0)]
    ).run(requests(*rows))  # fmt: skip
    assert result.cluster.tolist() == [1, 1, 0]


def test_service_that_ends_at_the_instant_of_the_failure_counts():
    result = FleetSimulator(1, cost=UNIT, failures=[Failure(0, 1.0)]).run(requests((0.0, 1000, 1)))
    assert result.num_served() == 1


def test_an_admitted_request_keeps_its_ticket_through_a_failure():
    session, _ = session_of(3)
    budget = BudgetController({"short": 1, "long": 1}, {"short": 1, "long": 1}, "queue")
    rows = [(0.0, 1000, session), (0.1, 1000, session)]
    result = FleetSimulator(
        8, cost=UNIT, admission=budget, failures=[Failure(3, 0.5)]
    ).run(requests(*rows))  # fmt: skip
    assert result.finish_s.tolist() == [1.5, 2.5]
    assert result.admit_s.tolist() == [0.0, 1.5]


# ---- routers -------------------------------------------------------------------------------------


def test_simultaneous_arrivals_spread_over_idle_clusters():
    burst = requests(*[(0.0, 1000, i) for i in range(8)])
    for router in ("least-loaded", "prefix-load", "round-robin"):
        result = FleetSimulator(8, router=router).run(burst)
        assert sorted(result.cluster.tolist()) == list(range(8))


def test_load_is_counted_in_tokens_not_requests():
    rows = [(0.0, 128_000, 0), *((0.1, 1000, i) for i in (1, 2, 3))]
    result = FleetSimulator(2, router="least-loaded").run(requests(*rows))
    assert result.cluster.tolist() == [0, 1, 1, 1]


def test_a_hub_prefix_sends_all_to_one_cluster_under_longest_prefix_only():
    rows = [Request(float(i), 1000, 1, (0, 1 + i), i) for i in range(40)]
    workload = Workload.from_requests(rows)
    assert set(FleetSimulator(8, router="longest-prefix").run(workload).cluster) == {0}
    assert len(set(FleetSimulator(8, router="session").run(workload).cluster)) > 4


def test_prefix_load_stays_with_a_warm_cluster_until_its_queue_costs_more():
    path = tuple(range(20))
    warm = [Request(0.0, 10_000, 1, path, 1), Request(20.0, 10_000, 1, path, 1)]
    cluster = FleetSimulator(4, router="prefix-load", cost=UNIT).run(Workload.from_requests(warm))
    assert cluster.cluster[0] == cluster.cluster[1]
    crowd = [Request(20.0, 30_000, 1, tuple(range(100 * i, 100 * i + 59)), 9) for i in (1, 2, 3)]
    block = Request(19.9, 15_000, 1, (*path[:19], *range(900, 911)), 5)
    busy = Workload.from_requests([warm[0], block, *crowd[:1], warm[1]])
    result = FleetSimulator(4, router="prefix-load", cost=UNIT).run(busy)
    assert result.cluster[1] == result.cluster[0]  # waits for nothing, reuses most
    assert result.cluster[3] == result.cluster[0]  # 5 s behind it, against 10 s cold


def test_a_bounded_ring_never_adds_to_a_cluster_above_the_bound():
    hot = requests(*[(0.0, 1000, 7) for _ in range(40)])
    result = FleetSimulator(8, router="session-bounded", load_factor=1.25).run(hot)
    counts = np.bincount(result.cluster, minlength=8)
    assert counts.max() <= math.ceil(1.25 * 40 / 8) + 1
    plain = FleetSimulator(8, router="session").run(hot)
    assert np.bincount(plain.cluster).max() == 40


def test_a_bounded_ring_is_the_plain_ring_when_the_fleet_is_idle():
    workload = requests(*[(100.0 * i, 1000, i) for i in range(50)])
    plain = FleetSimulator(8, router="session").run(workload)
    bounded = FleetSimulator(8, router="session-bounded").run(workload)
    np.testing.assert_array_equal(plain.cluster, bounded.cluster)


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"num_clusters": 0}, "num_clusters=0"),
        ({"router": "mod-n"}, "router='mod-n'"),
        ({"capacity_blocks": -1}, "capacity_blocks=-1"),
        ({"cost": "free"}, "cost='free'"),
        ({"rule": "never"}, "rule='never'"),
        ({"vnodes": 0}, "vnodes=0"),
        ({"load_factor": 0.9}, "load_factor=0.9"),
        ({"horizon_s": 0}, "horizon_s=0"),
        ({"failures": [Failure(8, 1.0)]}, "cluster=8"),
        ({"failures": [Failure(1, -1.0)]}, "at_s=-1"),
        ({"failures": [Failure(1, 5.0, 5.0)]}, "return_s=5"),
        ({"failures": [Failure(1, 5.0, 9.0), Failure(1, 8.0)]}, "still down"),
        ({"admission": BudgetController({"a": 1}, {"a": 1})}, "admission knows"),
    ],
)
def test_impossible_fleets_raise_before_anything_runs(kwargs, words):
    with pytest.raises(ValueError, match=words):
        FleetSimulator(**kwargs)


def test_a_cost_must_be_finite_and_not_negative():
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(K3Error, match="linear_s"):
            PrefillCost("bad", linear_s=bad)


def test_only_computed_tokens_cost_and_they_attend_to_the_rest():
    cost = PrefillCost("x", linear_s=2.0, quadratic_s=3.0, fixed_s=1.0)
    assert cost.seconds(10) == 1 + 20 + 300
    assert cost.seconds(10, 4) == 1 + 12 + 3 * (100 - 16)
    assert cost.seconds(10) - 1 == cost.seconds(4) - 1 + cost.seconds(10, 4) - 1


def test_an_empty_workload_is_an_empty_result():
    result = FleetSimulator(2).run(synthetic_workload(3).head(0))
    assert result.as_dict()["num_requests"] == 0
    assert REJECTED not in result.status
