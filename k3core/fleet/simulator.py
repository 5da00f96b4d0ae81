"""The fleet as a discrete-event simulation: arrivals, admission, routing, prefill, failures.

Life of a request: it arrives; admission grants it a ticket, makes it wait or refuses it; a router
picks a cluster; it queues there, first in, first out, for one of the prefill servers; when its
service starts its prefix is looked up, which sets how many tokens are computed; when service ends
(first token) its whole path is touched once, deepest block first. It is complete then, or after the
optional decode stage, and its ticket goes back. A cluster that fails loses its cache; what waited
or ran there moves, in order, to where its router now sends it, and starts over (a request in decode
too: its state is gone, and its first token counts again).

At one instant ends of service come first, then failures and returns, then arrivals (ties between
arrivals in workload order). The same arguments give byte-identical results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from k3core.errors import require, require_count
from k3core.fleet.budget import BudgetController
from k3core.fleet.cache import check_cache, retention
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.fleet.decode_stage import DecodeStage
from k3core.fleet.event_loop import EventLoop
from k3core.fleet.result import FleetResult
from k3core.fleet.router import router_class
from k3core.fleet.router_base import RouterSettings
from k3core.fleet.workload import CLASS_NAMES, Workload
from k3core.prefix_cache.retention import Retention

DEFAULT_VNODES = 160
NEVER = math.inf
ADMISSION_BY = ("class", "total", "uncached")
CLASS_BY = ("total", "uncached")


class Failure(NamedTuple):
    """A cluster that goes down at ``at_s`` and comes back, cold, at ``return_s``."""

    cluster: int
    at_s: float
    return_s: float = NEVER


class FleetSimulator:
    """A fleet of clusters, each with FIFO prefill servers and its own prefix cache.

    Args:
        num_clusters: clusters ``c0``, ``c1``, ...
        router: a key of ``k3core.fleet.router.ALL_ROUTERS``.
        capacity_blocks: cache size of each cluster in MLA blocks of 512 tokens; None: unlimited.
        cost: prefill cost, or the code of a preset.
        rule: which boundaries keep a KDA checkpoint: a policy, or a code that
            ``k3core.fleet.cache.retention`` reads.
        checkpoint_blocks: MLA blocks that a checkpoint takes of the cache (0: it is free; K3 at
            TP8: 8 of fp8, 4 of bf16).
        admission: budgets for the whole fleet; None admits everything. A run uses a fresh copy.
        admission_by: weight of a request: ``class`` (the weight of its class), ``total`` (its
            prompt tokens) or ``uncached`` (those that a read-only look at arrival expects to be
            computed: at its home on the ring, else where the most is cached).
        class_by: what is compared with the workload's threshold: ``total`` or ``uncached`` tokens.
        failures: at most one per cluster at a time.
        vnodes: ring points per cluster.
        weights: of the clusters on the ring: a cluster has ``vnodes`` times its weight in points.
        servers: prefill servers of each cluster.
        decode: decode stage of each cluster; None: a request ends with its first token.
        load_factor: bound of ``session-bounded``, relative to the mean load.
        routing: numbers of the routers; ``load_factor`` and ``seed`` replace its own.
        window_s: only arrivals inside it are counted, all are simulated (caches warm up before).
        horizon_s: stop the clock here; without it the run drains.
        seed: of the ``random`` router.

    Raises:
        K3Error: a value out of range, an unknown code, or overlapping failures of a cluster.
    """

    def __init__(
        self,
        num_clusters: int = 8,
        *,
        router: str = "session",
        capacity_blocks: int | None = None,
        cost: PrefillCost | str = "kimi-k3",
        rule: str | Retention = "junction",
        checkpoint_blocks: int = 0,
        admission: BudgetController | None = None,
        admission_by: str = "class",
        class_by: str = "total",
        failures: Sequence[Failure] = (),
        vnodes: int = DEFAULT_VNODES,
        weights: Sequence[float] | None = None,
        servers: int = 1,
        decode: DecodeStage | None = None,
        load_factor: float = 1.25,
        routing: RouterSettings | None = None,
        window_s: tuple[float, float] = (0.0, NEVER),
        horizon_s: float = NEVER,
        seed: int = 0,
    ) -> None:
        require_count("num_clusters", num_clusters, 1)
        require_count("vnodes", vnodes, 1)
        require_count("servers", servers, 1)
        require(horizon_s > 0, f"horizon_s={horizon_s} must be > 0")
        require(
            0 <= window_s[0] < window_s[1],
            f"window_s={window_s} must be a start >= 0 and a later end",
        )
        check_cache(capacity_blocks, checkpoint_blocks)
        for name, value, allowed in (
            ("admission_by", admission_by, ADMISSION_BY),
            ("class_by", class_by, CLASS_BY),
        ):
            require(value in allowed, f"{name}={value!r} is unknown; allowed: {', '.join(allowed)}")
        if admission is not None:
            require(
                set(CLASS_NAMES) <= set(admission.weights),
                f"admission knows the classes {sorted(admission.weights)}; "
                f"requests are {', '.join(CLASS_NAMES)}",
            )
        self.clusters = tuple(f"c{index}" for index in range(num_clusters))
        self.router = router
        self.router_class = router_class(router)
        self.capacity_blocks = capacity_blocks
        self.cost = prefill_cost(cost) if isinstance(cost, str) else cost
        self.rule = rule
        self.policy = retention(rule)
        self.checkpoint_blocks = checkpoint_blocks
        self.admission = admission
        self.admission_by = admission_by
        self.class_by = class_by
        self.failures = _checked(failures, num_clusters)
        self.vnodes = vnodes
        self.points = _points(vnodes, weights, num_clusters)
        self.servers = servers
        self.decode = decode
        self.routing = replace(routing or RouterSettings(), load_factor=load_factor, seed=seed)
        self.window_s = window_s
        self.horizon_s = horizon_s
        self.seed = seed

    def run(self, workload: Workload) -> FleetResult:
        """Serve the workload from an empty fleet; the simulator itself keeps no state."""
        started = perf_counter()
        events = EventLoop(self, workload)
        events.loop()
        return events.result(perf_counter() - started)


def _points(vnodes: int, weights: Sequence[float] | None, num_clusters: int) -> tuple[int, ...]:
    if weights is None:
        return (vnodes,) * num_clusters
    require(
        len(weights) == num_clusters,
        f"weights has {len(weights)} entries; num_clusters={num_clusters}",
    )
    require(
        all(0 < weight < math.inf for weight in weights),
        f"weights={list(weights)} must be positive and finite",
    )
    return tuple(max(1, round(vnodes * weight)) for weight in weights)


def _checked(failures: Sequence[Failure], num_clusters: int) -> tuple[Failure, ...]:
    back_s = dict.fromkeys(range(num_clusters), -1.0)
    ordered = sorted((Failure(*failure) for failure in failures), key=lambda f: (f.at_s, f.cluster))
    for failure in ordered:
        cluster, at_s, return_s = failure
        require(
            cluster in back_s,
            f"failures: cluster={cluster} must be in 0..{num_clusters - 1}",
        )
        require(0 <= at_s < NEVER, f"failures: at_s={at_s} must be finite and >= 0")
        require(return_s > at_s, f"failures: return_s={return_s} must be after at_s={at_s}")
        require(
            at_s >= back_s[cluster],
            f"failures: cluster {cluster} fails at {at_s} s while it is still down",
        )
        back_s[cluster] = return_s
    return tuple(ordered)
