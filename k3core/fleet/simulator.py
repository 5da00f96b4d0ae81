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

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from k3core.errors import (
    K3Error,
    require,
    require_choice,
    require_count,
    require_number,
    require_type,
    shown,
)
from k3core.fleet.budget import BudgetController
from k3core.fleet.cache import check_cache, retention
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.fleet.decode_stage import DecodeStage
from k3core.fleet.event_loop import EventLoop
from k3core.fleet.failures import NEVER, Failure, checked_failures
from k3core.fleet.result import FleetResult
from k3core.fleet.ring import MAX_CLUSTERS, MAX_VNODES
from k3core.fleet.router import router_class
from k3core.fleet.router_base import RouterSettings
from k3core.fleet.workload import CLASS_NAMES, Workload
from k3core.prefix_cache.retention import Retention

DEFAULT_VNODES = 160
ADMISSION_BY = ("class", "total", "uncached")
CLASS_BY = ("total", "uncached")


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
        failures: Sequence[Failure | tuple[int, float, float]] = (),
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
        require_count("num_clusters", num_clusters, 1, MAX_CLUSTERS)
        require_count("vnodes", vnodes, 1, MAX_VNODES)
        require_count("servers", servers, 1)
        require_number("horizon_s", horizon_s, above=0, infinite=True)
        require_number("load_factor", load_factor, least=1)
        require_count("seed", seed)
        check_cache(capacity_blocks, checkpoint_blocks)
        require_choice("admission_by", admission_by, ADMISSION_BY)
        require_choice("class_by", class_by, CLASS_BY)
        if decode is not None:
            require_type("decode", decode, DecodeStage)
        if admission is not None:
            require_type("admission", admission, BudgetController)
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
        require_type("cost", self.cost, PrefillCost)
        self.rule = rule
        self.policy = retention(rule)
        self.checkpoint_blocks = checkpoint_blocks
        self.admission = admission
        self.admission_by = admission_by
        self.class_by = class_by
        self.failures = checked_failures(failures, num_clusters)
        self.vnodes = vnodes
        self.points = _points(vnodes, weights, num_clusters)
        self.servers = servers
        self.decode = decode
        routing = RouterSettings() if routing is None else routing
        require_type("routing", routing, RouterSettings)
        self.routing = replace(routing, load_factor=load_factor, seed=seed)
        self.window_s = _window(window_s)
        self.horizon_s = horizon_s
        self.seed = seed

    def run(self, workload: Workload) -> FleetResult:
        """Serve the workload from an empty fleet; the simulator itself keeps no state.

        Raises:
            K3Error: ``workload`` is no ``Workload``.
        """
        require_type("workload", workload, Workload)
        started = perf_counter()
        events = EventLoop(self, workload)
        events.loop()
        return events.result(perf_counter() - started)


def _points(vnodes: int, weights: Sequence[float] | None, num_clusters: int) -> tuple[int, ...]:
    if weights is None:
        return (vnodes,) * num_clusters
    if not isinstance(weights, Sequence) or isinstance(weights, (str, bytes)):
        raise K3Error(f"weights={shown(weights)} must be numbers, one per cluster")
    require(
        len(weights) == num_clusters,
        f"weights has {len(weights)} entries; num_clusters={num_clusters}",
    )
    most = MAX_VNODES / vnodes
    relative = [require_number("weights: each", w, above=0, most=most) for w in weights]
    return tuple(max(1, round(vnodes * weight)) for weight in relative)


def _window(window_s: tuple[float, float]) -> tuple[float, float]:
    if not isinstance(window_s, (tuple, list)) or len(window_s) != 2:
        raise K3Error(f"window_s={shown(window_s)} must be a start >= 0 and a later end")
    start = require_number("window_s: start", window_s[0], least=0)
    return start, require_number("window_s: end", window_s[1], above=start, infinite=True)
