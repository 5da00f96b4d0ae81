"""Checks of the fleet (page 7) and of the byte accounting (page 8)."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict

import numpy as np
import torch

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import PRESETS
from k3core.fleet import (
    BudgetController,
    ConsistentHashRing,
    FleetResult,
    FleetSimulator,
    Request,
    Workload,
    synthetic_workload,
)
from k3core.studies.verification.check import (
    ACCOUNTING,
    ORACLE,
    STATISTICS,
    Case,
    Reading,
    check,
    counted,
)

FLEET, CAPACITY = "fleet", "capacity"
NUM_CLUSTERS, VNODES = 8, 160
NUM_SESSIONS = 2000
MAX_SIGMA = 5.0  # of 16 near-normal numbers, one in 100,000 seeds goes beyond by chance


def _ring(case: Case) -> ConsistentHashRing:
    ring = ConsistentHashRing()
    for index in range(NUM_CLUSTERS):
        ring.add_cluster(f"s{case.seed}-c{index}", VNODES)
    return ring


def _full_ring(case: Case) -> tuple[ConsistentHashRing, dict[str, tuple[object, object]]]:
    """All clusters, and the owners of every session on them."""
    ring = _ring(case)
    return ring, _owners(ring)


def _owners(ring: ConsistentHashRing) -> dict[str, tuple[object, object]]:
    names = (f"session-{index}" for index in range(NUM_SESSIONS))
    return {name: tuple(ring.route(name)) for name in names}  # type: ignore[misc]


@check(FLEET, STATISTICS, MAX_SIGMA)
def test_ring_distributes_sessions_uniformly(case: Case) -> Reading:
    """Shares against Beta(V, (N-1)V), sessions against their cluster's share.

    The deviation is in standard deviations; the number seen is the largest cluster over the mean.
    """
    ring, owners = case.once(_full_ring)
    counts = Counter(primary for primary, _ in owners.values())
    mean = 1 / NUM_CLUSTERS
    share_sd = math.sqrt(mean * (1 - mean) / (NUM_CLUSTERS * VNODES + 1))
    worst = 0.0
    for cluster, share in ring.shares().items():
        count_sd = math.sqrt(NUM_SESSIONS * share * (1 - share))
        worst = max(
            worst,
            abs(share - mean) / share_sd,
            abs(counts[cluster] - NUM_SESSIONS * share) / count_sd,
        )
    return Reading(worst, max(counts.values()) / (NUM_SESSIONS * mean))


@check(FLEET, ACCOUNTING)
def test_remove_cluster_only_affects_few_sessions(case: Case) -> Reading:
    """Exactly the sessions of the removed cluster move, each to its secondary, nobody else."""
    _, before = case.once(_full_ring)
    ring = _ring(case)
    victim = ring.clusters[case.seed % NUM_CLUSTERS]
    ring.remove_cluster(victim)
    after = _owners(ring)
    moved = {name for name in before if before[name][0] != after[name][0]}
    own = {name for name in before if before[name][0] == victim}
    wrong = len(moved ^ own) + sum(after[name][0] != before[name][1] for name in own)
    return Reading(float(wrong), float(len(moved)), float(len(own)))


@check(FLEET, ACCOUNTING)
def test_budget_isolates_long_burst_from_short(case: Case) -> Reading:
    """20 long requests at once (weight 3, budget 8), then 4 short ones: all short ones enter."""
    controller = BudgetController({"short": 4, "long": 8}, {"short": 1, "long": 3})
    longs = [controller.admit("long") for _ in range(20)]
    shorts = [controller.admit("short") for _ in range(4)]
    held = sum(ticket is not None for ticket in longs)
    reading = counted(sum(ticket is not None for ticket in shorts), 4)
    return reading._replace(deviation=reading.deviation + abs(held - 8 // 3))


@check(FLEET, ACCOUNTING)
def test_simulator_routes_to_primary_on_hit(case: Case) -> Reading:
    """The second request of a session goes where the first one went and reuses its 1,024 tokens."""
    path = tuple(range(100, 104))
    turns = [
        Request(0.0, 1100, 10, path[:3], f"session-{case.seed}"),
        Request(1000.0, 1600, 10, (*path[:2], 7, 8), f"session-{case.seed}"),
    ]
    simulator = FleetSimulator(NUM_CLUSTERS, rule="dense")
    result = simulator.run(Workload.from_requests(turns))
    ring = ConsistentHashRing()
    for cluster in simulator.clusters:
        ring.add_cluster(cluster, simulator.vnodes)
    primary = simulator.clusters.index(str(ring.route(f"session-{case.seed}").primary))
    reading = counted(int(result.reused_len[1]), 1024)
    return reading._replace(deviation=reading.deviation + float((result.cluster != primary).sum()))


def _run(case: Case) -> FleetResult:
    """A loaded fleet with budgets, stopped before it drains."""
    return FleetSimulator(
        4,
        capacity_blocks=400,
        admission=BudgetController({"short": 30, "long": 12}, {"short": 1, "long": 3}),
        horizon_s=40.0,
        seed=case.seed,
    ).run(synthetic_workload(500, 120, 8.0, seed=case.seed))


@check(FLEET, ACCOUNTING)
def requests_are_conserved(case: Case) -> Reading:
    """Arrived = served + rejected + in flight, in each class."""
    result = case.once(_run)
    arrived = int((result.workload.arrival_s <= 40.0).sum())
    wrong = sum(
        abs(
            result.num_arrived(cls)
            - result.num_served(cls)
            - result.num_rejected(cls)
            - result.num_in_flight(cls)
        )
        for cls in ("short", "long")
    )
    reading = counted(result.num_arrived(), arrived)
    return reading._replace(deviation=reading.deviation + wrong)


@check(FLEET, ACCOUNTING, 1e-9)
def littles_law_holds(case: Case) -> Reading:
    """The event loop's integral of requests in the system equals the sum of their stays."""
    result = case.once(_run)
    entered = result.num_arrived() - result.num_rejected()
    in_system = (result.status == 1) | (result.status == 2)
    leaves = np.where(np.isnan(result.finish_s), result.end_s, result.finish_s)
    stays = float((leaves - result.workload.arrival_s)[in_system].sum())
    area = float(result.area_s.sum())
    wrong = abs(entered - int(in_system.sum()))
    return Reading(abs(area - stays) / stays + wrong, area, stays)


@check(FLEET, ACCOUNTING)
def same_seed_gives_same_bytes(case: Case) -> Reading:
    """Bytes that differ between two runs with one seed: reports and columns."""
    one, two = (
        json.dumps(run.as_dict()).encode() + run.finish_s.tobytes() + run.cluster.tobytes()
        for run in (case.once(_run), _run(case))
    )
    differing = sum(a != b for a, b in zip(one, two, strict=False)) + abs(len(one) - len(two))
    return counted(differing, 0)


@check(FLEET, ORACLE)
def cluster_cache_matches_plain_lru(case: Case) -> Reading:
    """Hits of 400 requests at one cluster against an ordered dictionary, leaf first."""
    workload = synthetic_workload(400, 60, 8.0, seed=case.seed)
    hits = FleetSimulator(1, capacity_blocks=300).run(workload).hit_blocks.tolist()
    plain = OrderedDict[int, None]()
    right = 0
    for index in range(len(workload)):
        path = workload.path(index)
        matched = next((i for i, block in enumerate(path) if block not in plain), len(path))
        right += hits[index] == matched
        for block in reversed(path):
            plain[block] = None
            plain.move_to_end(block)
        while len(plain) > 300:
            plain.popitem(last=False)
    return counted(right, len(workload))


# Bytes


@check(CAPACITY, ACCOUNTING)
def state_bytes_match_real_tensors(case: Case) -> Reading:
    """One layer of Kimi K3 on one of 8 ranks: state in fp32 and convolution window in bf16."""
    model = PRESETS["kimi-k3"]
    memory = RequestMemory(model, 8)
    heads = model.num_heads // 8
    state = torch.empty(1, heads, model.dk, model.dv, dtype=torch.float32)
    window = torch.empty(1, 3, heads * (2 * model.dk + model.dv), dtype=torch.bfloat16)
    return counted(memory.kda_bytes_per_layer, state.nbytes + window.nbytes)


@check(CAPACITY, ORACLE)
def break_even_matches_published_sizes(case: Case) -> Reading:
    """Tokens whose MLA rows weigh one request's states, against the published sizes of K3."""
    layers, layer_bytes, mla_layers, row_bytes = 69, 814_080, 24, 576
    published = layers * layer_bytes / (mla_layers * row_bytes)
    return counted(RequestMemory(PRESETS["kimi-k3"], 8).break_even_len, published)


CHECKS = (
    test_ring_distributes_sessions_uniformly,
    test_remove_cluster_only_affects_few_sessions,
    test_budget_isolates_long_burst_from_short,
    test_simulator_routes_to_primary_on_hit,
    requests_are_conserved,
    littles_law_holds,
    same_seed_gives_same_bytes,
    cluster_cache_matches_plain_lru,
    state_bytes_match_real_tensors,
    break_even_matches_published_sizes,
)
