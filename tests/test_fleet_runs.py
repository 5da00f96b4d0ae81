"""Runs of the fleet: one FIFO server bit for bit, and what holds in every run."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3core.fleet import (
    ALL_ROUTERS,
    BudgetController,
    DecodeStage,
    Failure,
    FleetSimulator,
    Workload,
    synthetic_workload,
)
from k3core.fleet.result import IN_FLIGHT, SERVED
from tests.fleet_helpers import UNIT, requests

# ---- one server ------------------------------------------------------------------------


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


# ---- invariants of every run -------------------------------------------------------------------

ADMISSIONS = {
    "none": None,
    "reject": BudgetController({"short": 3, "long": 4}, {"short": 1, "long": 2}),
    "queue": BudgetController({"short": 3, "long": 4}, {"short": 1, "long": 2}, "queue"),
    "shared": BudgetController(
        {"all": 4}, {"short": 1, "long": 2}, "queue", {"short": "all", "long": "all"}
    ),
    "overtake": BudgetController(
        {"short": 20_000, "long": 150_000}, {"short": 1, "long": 1}, "queue", None, 4
    ),
    "tokens": BudgetController({"short": 9_000, "long": 150_000}, {"short": 1, "long": 1}),
}
BY_TOKENS = ("overtake", "tokens")
RULES = ["dense", "replay", "junction", "none", "every-3", "junction+cap2"]
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
    admission = draw(st.sampled_from(list(ADMISSIONS)))
    return workload, FleetSimulator(
        num_clusters,
        router=draw(st.sampled_from(list(ALL_ROUTERS))),
        capacity_blocks=draw(st.sampled_from([None, 0, 5, 60])),
        cost=draw(st.sampled_from(["kimi-k3", "mooncake-llama3-70b"])),
        rule=draw(st.sampled_from(RULES)),
        checkpoint_blocks=draw(st.sampled_from([0, 0, 8])),
        admission=ADMISSIONS[admission],
        admission_by=draw(st.sampled_from(["total", "uncached"]))
        if admission in BY_TOKENS
        else "class",
        class_by=draw(st.sampled_from(["total", "total", "uncached"])),
        servers=draw(st.sampled_from([1, 1, 2, 3])),
        decode=draw(st.sampled_from([None, None, DecodeStage(300_000), DecodeStage(40_000, 0.1)])),
        failures=failures,
        vnodes=draw(st.integers(1, 20)),
        horizon_s=draw(st.sampled_from([math.inf, 7.0, 25.0])),
        seed=draw(st.integers(0, 3)),
    )


@settings(max_examples=250)
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
    leaves = np.where(result.is_served, result.done_s, result.end_s)
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
    if sim.rule == "dense" and sim.router != "mooncake":
        np.testing.assert_array_equal(reused, np.minimum(hit, (num_tokens - 1) // 512) * 512)
    if sim.capacity_blocks is not None:
        assert (result.cached_blocks <= sim.capacity_blocks).all()


def assert_clusters_serve_in_order(sim, result):
    for cluster in range(len(sim.clusters)):
        rows = result.is_served & (result.cluster == cluster)
        start, finish, done = (c[rows] for c in (result.start_s, result.finish_s, result.done_s))
        events = sorted([(t, 1) for t in start] + [(t, 0) for t in finish])
        busy = np.cumsum([1 if begins else -1 for _, begins in events])
        if (finish > start).all():
            assert (busy <= sim.servers).all()
        for failure in sim.failures:
            if failure.cluster == cluster:
                assert ((done <= failure.at_s) | (start >= failure.return_s)).all()
    if sim.decode is not None:
        assert_decode_holds(sim, result)
    expected = [
        sim.cost.seconds(int(n), int(r)) + f * sim.routing.transfer_s_per_token
        for n, r, f in zip(
            result.workload.input_len, result.reused_len, result.fetched_len, strict=True
        )
    ]
    np.testing.assert_allclose(
        result.service_s[result.is_served], np.array(expected)[result.is_served], rtol=1e-9
    )


def assert_decode_holds(sim, result):
    """No cluster ever has more than its token budget in decode, by those who were served."""
    held = result.workload.input_len + result.workload.output_len
    for cluster in range(len(sim.clusters)):
        rows = result.is_served & (result.cluster == cluster)
        lasts = result.workload.output_len[rows] * sim.decode.seconds_per_token
        done = result.done_s[rows]
        assert (done - lasts >= result.finish_s[rows] - 1e-9).all()
        events = [
            (t - last + 1e-9, 1, n) for t, last, n in zip(done, lasts, held[rows], strict=True)
        ]
        events += [(t, 0, -n) for t, n in zip(done, held[rows], strict=True)]
        assert all(np.cumsum([n for _, _, n in sorted(events)]) <= sim.decode.token_budget)


def assert_budgets_hold(workload, sim, result):
    if sim.admission is None:
        assert result.num_refused_for("no_budget") == 0
        return
    if sim.admission.mode == "queue":
        assert result.num_refused_for("no_budget") == 0
    if sim.admission_by != "class":
        return
    lanes = {sim.admission.lanes[cls] for cls in ("short", "long")}
    admitted = np.isfinite(result.admit_s)
    leaves = np.where(result.is_served, result.done_s, math.inf)
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
