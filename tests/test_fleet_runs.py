"""Runs of the fleet against queueing theory, and what holds in every run."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3core.fleet import (
    ROUTERS,
    BudgetController,
    Failure,
    FleetSimulator,
    Workload,
    synthetic_workload,
)
from k3core.fleet.result import IN_FLIGHT, SERVED
from k3core.fleet.stats import order_statistic
from tests.fleet_helpers import UNIT, requests

# ---- queueing oracles ------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5000)), min_size=1, max_size=60),
)
def test_one_fifo_server_is_the_lindley_recursion_bit_for_bit(jobs):
    arrivals = np.cumsum([gap for gap, _ in jobs])
    workload = requests(*((float(t), n, 0) for t, (_, n) in zip(arrivals, jobs, strict=True)))
    result = FleetSimulator(1, capacity_blocks=0, cost=UNIT).run(workload)
    departure = 0.0
    for index, (arrival, (_, num_tokens)) in enumerate(zip(arrivals, jobs, strict=True)):
        departure = max(float(arrival), departure) + UNIT.seconds(num_tokens)
        assert result.finish_s[index] == departure


def test_every_cluster_of_a_ring_is_a_lindley_recursion_with_its_own_hits():
    workload = synthetic_workload(1500, rate_per_s=20.0)
    sim = FleetSimulator(4, capacity_blocks=300)
    result = sim.run(workload)
    departure = [0.0] * 4
    for index in range(len(workload)):
        cluster = result.cluster[index]
        service = sim.cost.seconds(int(workload.input_len[index]), int(result.reused_len[index]))
        departure[cluster] = max(float(workload.arrival_s[index]), departure[cluster]) + service
        assert result.finish_s[index] == departure[cluster]


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_constant_service_waits_as_an_m_d_1_queue(load):
    num, service = 120_000, UNIT.seconds(500)
    arrival_s = np.cumsum(np.random.default_rng(3).exponential(service / load, num))
    workload = Workload(
        arrival_s, np.full(num, 500), np.zeros(num, np.int64), np.zeros(num, np.int64),
        np.arange(num + 1), np.zeros(num, np.uint64),
    )  # fmt: skip
    result = FleetSimulator(1, capacity_blocks=0, cost=UNIT).run(workload)
    waits = result.start_s - workload.arrival_s
    assert waits.mean() == pytest.approx(load * service / (2 * (1 - load)), rel=0.03)
    if load == 0.5:  # P95 of the wait: Erlang's formula gives 2.0506 service times
        assert order_statistic(waits, 0.95) == pytest.approx(2.0506 * service, rel=0.03)


def test_refusals_without_a_queue_follow_erlang_b():
    """Four servers' worth of budget, each request served at once: blocking is B(4, a)."""
    num, load = 60_000, 3.0
    rng = np.random.default_rng(5)
    arrival_s = np.cumsum(rng.exponential(1 / load, num))
    lengths = np.maximum(1, (rng.exponential(1000, num)).astype(np.int64))
    lengths = np.minimum(lengths, 16_000)
    workload = requests(*zip(arrival_s.tolist(), lengths.tolist(), range(num), strict=True))
    budget = BudgetController({"short": 4, "long": 1}, {"short": 1, "long": 1})
    # Four clusters and at most four admitted: least-loaded always finds an idle one.
    result = FleetSimulator(
        4, router="least-loaded", capacity_blocks=0, cost=UNIT, admission=budget
    ).run(workload)
    blocking, offered = 1.0, load * float(lengths.mean()) / 1000
    for servers in range(1, 5):
        blocking = offered * blocking / (servers + offered * blocking)
    assert (result.start_s == workload.arrival_s)[result.is_served].all()
    assert result.rejected_share("short") == pytest.approx(blocking, rel=0.03)


# ---- invariants of every run -------------------------------------------------------------------

ADMISSIONS = {
    "none": None,
    "reject": BudgetController({"short": 3, "long": 4}, {"short": 1, "long": 2}),
    "queue": BudgetController({"short": 3, "long": 4}, {"short": 1, "long": 2}, "queue"),
    "shared": BudgetController(
        {"all": 4}, {"short": 1, "long": 2}, "queue", {"short": "all", "long": "all"}
    ),
}
FAILURES = st.lists(
    st.tuples(st.integers(0, 4), st.floats(0, 30), st.one_of(st.just(math.inf), st.floats(1, 20))),
    max_size=4,
)


@st.composite
def runs(draw):
    num_clusters = draw(st.integers(1, 4))
    failures, free_from = [], dict.fromkeys(range(num_clusters), 0.0)
    for cluster, at_s, lasts_s in sorted(draw(FAILURES), key=lambda f: f[1]):
        if cluster < num_clusters and at_s >= free_from[cluster]:
            failures.append(Failure(cluster, at_s, at_s + lasts_s))
            free_from[cluster] = at_s + lasts_s
    workload = synthetic_workload(
        draw(st.integers(1, 80)),
        draw(st.integers(1, 12)),
        draw(st.sampled_from([0.5, 4.0, 40.0])),
        draw(st.sampled_from([0.0, 0.3, 1.0])),
        draw(st.sampled_from([0, 512, 1100])),
        seed=draw(st.integers(0, 1000)),
    )
    if draw(st.booleans()):  # simultaneous arrivals
        ticks = np.floor(workload.arrival_s / 2) * 2
        workload = Workload(
            ticks, workload.input_len, workload.output_len, workload.block_ids,
            workload.block_offsets, workload.sessions, workload.long_threshold,
        )  # fmt: skip
    return workload, FleetSimulator(
        num_clusters,
        router=draw(st.sampled_from(list(ROUTERS))),
        capacity_blocks=draw(st.sampled_from([None, 0, 5, 60])),
        cost=draw(st.sampled_from(["kimi-k3", "mooncake-llama3-70b"])),
        rule=draw(st.sampled_from(["dense", "replay", "junction"])),
        admission=ADMISSIONS[draw(st.sampled_from(list(ADMISSIONS)))],
        failures=failures,
        vnodes=draw(st.integers(1, 20)),
        horizon_s=draw(st.sampled_from([math.inf, 7.0, 25.0])),
        seed=draw(st.integers(0, 3)),
    )


@settings(max_examples=150)
@given(runs())
def test_every_run_conserves_requests_time_and_order(case):
    workload, sim = case
    result = sim.run(workload)
    served = result.is_served
    for cls in ("short", "long", None):
        arrived = int((result.of_class(cls) & (workload.arrival_s <= sim.horizon_s)).sum())
        parts = result.num_served(cls) + result.num_rejected(cls) + result.num_in_flight(cls)
        assert result.num_arrived(cls) == arrived == parts
    if sim.horizon_s == math.inf and not sim.failures:
        assert result.num_in_flight() == 0
    assert_little(workload, result)
    assert_prefix_rules(workload, sim, result)
    assert_clusters_serve_in_order(sim, result)
    assert_budgets_hold(workload, sim, result)
    assert np.isnan(result.finish_s[~served]).all()
    assert 0 <= result.utilisation <= 1 + 1e-9


def assert_little(workload, result):
    """L = lambda W: the loop's own count of who is inside equals the time that they spent."""
    leaves = np.where(result.is_served, result.finish_s, result.end_s)
    inside = (result.status == SERVED) | (result.status == IN_FLIGHT)
    for index, cls in enumerate(("short", "long")):
        rows = inside & result.of_class(cls)
        spent = float((leaves - workload.arrival_s)[rows].sum())
        assert result.area_s[index] == pytest.approx(spent, rel=1e-9, abs=1e-9)


def assert_prefix_rules(workload, sim, result):
    rows = result.is_served
    hit, reused = result.hit_blocks[rows], result.reused_len[rows]
    num_tokens = workload.input_len[rows]
    assert (reused <= np.minimum(hit * 512, num_tokens - 1)).all()
    assert (reused % 512 == 0).all()
    if sim.rule == "dense":
        np.testing.assert_array_equal(reused, np.minimum(hit, (num_tokens - 1) // 512) * 512)
    if sim.capacity_blocks is not None:
        assert (result.cached_blocks <= sim.capacity_blocks).all()


def assert_clusters_serve_in_order(sim, result):
    for cluster in range(len(sim.clusters)):
        rows = result.is_served & (result.cluster == cluster)
        start, finish = result.start_s[rows], result.finish_s[rows]
        order = np.argsort(start, kind="stable")
        assert (start[order][1:] >= finish[order][:-1]).all()
        for failure in sim.failures:
            if failure.cluster == cluster:
                assert ((finish <= failure.at_s) | (start >= failure.return_s)).all()
    expected = [
        sim.cost.seconds(int(n), int(r))
        for n, r in zip(result.workload.input_len, result.reused_len, strict=True)
    ]
    np.testing.assert_allclose(
        result.service_s[result.is_served], np.array(expected)[result.is_served], rtol=1e-9
    )


def assert_budgets_hold(workload, sim, result):
    if sim.admission is None:
        assert result.num_rejected() == 0
        return
    if sim.admission.mode == "queue":
        assert result.num_rejected() == 0
    lanes = {sim.admission.lanes[cls] for cls in ("short", "long")}
    admitted = np.isfinite(result.admit_s)
    leaves = np.where(result.is_served, result.finish_s, math.inf)
    for lane in lanes:
        events = []
        for cls in ("short", "long"):
            if sim.admission.lanes[cls] == lane:
                rows = admitted & result.of_class(cls)
                weight = sim.admission.weights[cls]
                events += [(t, 1, weight) for t in result.admit_s[rows]]
                events += [(t, 0, -weight) for t in leaves[rows]]
        held = 0
        for _, _, weight in sorted(events):
            held += weight
            assert held <= sim.admission.budgets[lane]
    if sim.admission.mode == "queue":
        for cls in ("short", "long"):
            admit = result.admit_s[admitted & result.of_class(cls)]
            assert (np.diff(admit) >= 0).all()


@settings(max_examples=30)
@given(runs())
def test_the_same_run_gives_the_same_bytes(case):
    workload, sim = case
    first, second = sim.run(workload), sim.run(workload)
    for name in ("status", "cluster", "admit_s", "start_s", "finish_s", "hit_blocks", "reused_len"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    text = json.dumps(first.as_dict(), allow_nan=False)
    assert text == json.dumps(second.as_dict(), allow_nan=False)
