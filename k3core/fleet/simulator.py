"""The fleet as a discrete-event simulation: arrivals, admission, routing, prefill, failures.

Life of a request: it arrives; admission grants it a ticket, makes it wait or refuses it; a router
picks a cluster; it queues there, first in, first out; when its service starts its prefix is looked
up, which sets how many tokens are computed; when service ends (first token) its whole path is
touched once, deepest block first, and its ticket goes back. A cluster that fails loses its cache;
what waited or ran there moves, in order, to where its router now sends it, and starts over.

At one instant ends of service come first, then failures and returns, then arrivals (ties between
arrivals in workload order). The same arguments give byte-identical results.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from k3core.errors import require
from k3core.fleet.budget import BudgetController, Ticket
from k3core.fleet.cache import BlockCache
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.fleet.result import ABSENT, IN_FLIGHT, REJECTED, SERVED, FleetResult
from k3core.fleet.router import Fleet, router_class
from k3core.fleet.segments import SegmentCache
from k3core.fleet.workload import CLASS_NAMES, Workload

DEFAULT_VNODES = 160
NEVER = math.inf


class Failure(NamedTuple):
    """A cluster that goes down at ``at_s`` and comes back, cold, at ``return_s``."""

    cluster: int
    at_s: float
    return_s: float = NEVER


class FleetSimulator:
    """A fleet of clusters, each with one FIFO prefill server and its own prefix cache.

    Args:
        num_clusters: clusters ``c0``, ``c1``, ...
        router: a key of ``k3core.fleet.router.ROUTERS``.
        capacity_blocks: cache size of each cluster in MLA blocks of 512 tokens; None: unlimited.
        cost: prefill cost, or the code of a preset.
        rule: which boundaries keep a KDA checkpoint (``k3core.fleet.cache.CHECKPOINT_RULES``).
        admission: budgets for the whole fleet; None admits everything. A run uses a fresh copy.
        failures: at most one per cluster at a time.
        vnodes: ring points per cluster.
        load_factor: bound of ``session-bounded``, relative to the mean load.
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
        rule: str = "junction",
        admission: BudgetController | None = None,
        failures: Sequence[Failure] = (),
        vnodes: int = DEFAULT_VNODES,
        load_factor: float = 1.25,
        horizon_s: float = NEVER,
        seed: int = 0,
    ) -> None:
        require(num_clusters >= 1, f"num_clusters={num_clusters} must be >= 1")
        require(vnodes >= 1, f"vnodes={vnodes} must be >= 1")
        require(load_factor >= 1, f"load_factor={load_factor} must be >= 1")
        require(horizon_s > 0, f"horizon_s={horizon_s} must be > 0")
        BlockCache(capacity_blocks, rule)  # raises on a bad capacity or rule
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
        self.admission = admission
        self.failures = _checked(failures, num_clusters)
        self.vnodes = vnodes
        self.load_factor = load_factor
        self.horizon_s = horizon_s
        self.seed = seed

    def run(self, workload: Workload) -> FleetResult:
        """Serve the workload from an empty fleet; the simulator itself keeps no state."""
        started = perf_counter()
        run = _Run(self, workload)
        run.loop()
        return run.result(perf_counter() - started)


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


class _Run:
    """State of one run. Requests are indices into the workload, clusters indices of the fleet."""

    def __init__(self, sim: FleetSimulator, workload: Workload) -> None:
        num_requests, num_clusters = len(workload), len(sim.clusters)
        self.sim = sim
        self.workload = workload
        self.fleet = Fleet(
            sim.clusters,
            sim.vnodes,
            [SegmentCache(workload.segments, sim.capacity_blocks, sim.rule) for _ in sim.clusters],
            sim.cost,
        )
        self.router = sim.router_class(self.fleet, workload, sim.seed, sim.load_factor)
        self.admission = None if sim.admission is None else sim.admission.fresh()
        self.tickets: dict[int, Ticket] = {}
        self.arrival_s: list[float] = workload.arrival_s.tolist()
        self.input_len: list[int] = workload.input_len.tolist()
        self.segments = workload.segments
        self.cls: list[int] = workload.is_long.astype(int).tolist()

        self.queues: list[deque[int]] = [deque() for _ in range(num_clusters)]
        self.serving: list[int] = [-1] * num_clusters
        self.paths: list[list[int]] = [[] for _ in range(num_clusters)]
        self.ends: list[tuple[float, int]] = []  # heap of (end of service, cluster)
        self.changes = sorted(
            change
            for failure in sim.failures
            for change in (
                (failure.at_s, 0, failure.cluster),
                (failure.return_s, 1, failure.cluster),
            )
            if change[0] < NEVER
        )
        self.at_door: deque[int] = deque()  # admitted while no cluster was up
        self.home: list[int] | None = getattr(self.router, "primary", None)

        self.status = bytearray([ABSENT]) * num_requests
        self.cluster = [-1] * num_requests
        self.admit_s = [math.nan] * num_requests
        self.start_s = [math.nan] * num_requests
        self.finish_s = [math.nan] * num_requests
        self.hit_blocks = [0] * num_requests
        self.reused_len = [0] * num_requests
        self.estimate_s: dict[int, float] = {}
        self.moved = bytearray(num_requests)
        self.failed_over = bytearray(num_requests)
        self.lost_s = [0.0] * num_clusters
        self.in_system = [0] * len(CLASS_NAMES)
        self.changed_s = [0.0] * len(CLASS_NAMES)
        self.area_s = [0.0] * len(CLASS_NAMES)
        self.now = 0.0

    def loop(self) -> None:
        arrival_s, ends, changes = self.arrival_s, self.ends, self.changes
        horizon_s = self.sim.horizon_s
        num_requests, next_request, next_change = len(arrival_s), 0, 0
        while True:
            end_s = ends[0][0] if ends else NEVER
            change_s = changes[next_change][0] if next_change < len(changes) else NEVER
            arrive_s = arrival_s[next_request] if next_request < num_requests else NEVER
            now = min(end_s, change_s, arrive_s)
            if now > horizon_s or now == NEVER:
                break
            self.now = now
            if end_s == now:
                self.end_service(heapq.heappop(ends)[1])
            elif change_s == now:
                _, returns, cluster = changes[next_change]
                next_change += 1
                self.bring_back(cluster) if returns else self.fail(cluster)
            else:
                self.arrive(next_request)
                next_request += 1
        if horizon_s < NEVER:
            self.now = horizon_s

    def arrive(self, request: int) -> None:
        if self.admission is not None:
            cls = CLASS_NAMES[self.cls[request]]
            ticket = self.admission.admit(cls, item=request)
            if ticket is None:
                if self.admission.mode == "reject":
                    self.status[request] = REJECTED
                else:
                    self.enter_system(request)
                return
            self.tickets[request] = ticket
        self.enter_system(request)
        self.admit_s[request] = self.now
        self.dispatch(request)

    def dispatch(self, request: int) -> None:
        """Send an admitted request to the cluster that the router names."""
        alive = self.fleet.alive
        if not alive:
            self.at_door.append(request)
            return
        cluster = self.router.choose(request, self.now)
        self.cluster[request] = cluster
        if len(alive) < len(self.serving):
            away = self.home is not None and self.home[request] not in alive
            self.failed_over[request] = away or self.moved[request]
        self.fleet.pending_len[cluster] += self.input_len[request]
        self.fleet.routed_len[cluster] += self.input_len[request]
        if self.serving[cluster] < 0:
            self.start_service(cluster, request)
        else:
            self.queues[cluster].append(request)
            if estimate := self.router.estimate_s(request, cluster):
                self.estimate_s[request] = estimate
                self.fleet.waiting_s[cluster] += estimate

    def start_service(self, cluster: int, request: int) -> None:
        path = self.segments.path(request)
        input_len = self.input_len[request]
        cache = self.fleet.caches[cluster]
        hit_blocks = cache.match(path)
        reused_len = cache.usable(path, hit_blocks, input_len)
        self.hit_blocks[request] = hit_blocks
        self.reused_len[request] = reused_len
        self.start_s[request] = self.now
        self.serving[cluster] = request
        self.paths[cluster] = path
        end_s = self.now + self.sim.cost.seconds(input_len, reused_len)
        self.fleet.busy_until_s[cluster] = end_s
        heapq.heappush(self.ends, (end_s, cluster))

    def end_service(self, cluster: int) -> None:
        request = self.serving[cluster]
        input_len = self.input_len[request]
        self.fleet.caches[cluster].store(self.paths[cluster], self.hit_blocks[request], input_len)
        self.finish_s[request] = self.now
        self.status[request] = SERVED
        self.fleet.pending_len[cluster] -= input_len
        self.leave_system(request)
        queue = self.queues[cluster]
        if queue:
            following = queue.popleft()
            if self.estimate_s:
                self.fleet.waiting_s[cluster] -= self.estimate_s.pop(following)
            if not queue:
                self.fleet.waiting_s[cluster] = 0.0  # no rounding errors left behind
            self.start_service(cluster, following)
        else:
            self.serving[cluster] = -1
        if self.admission is not None:
            for ticket in self.admission.release(self.tickets.pop(request)):
                admitted: int = ticket.item  # type: ignore[assignment]
                self.tickets[admitted] = ticket
                self.admit_s[admitted] = self.now
                self.dispatch(admitted)

    def fail(self, cluster: int) -> None:
        """A cluster goes down: its cache is lost, its requests move in the order they held."""
        fleet = self.fleet
        stranded = list(self.queues[cluster])
        running = self.serving[cluster]
        if running >= 0:
            stranded.insert(0, running)
            self.lost_s[cluster] += self.now - self.start_s[running]
            self.ends[:] = [end for end in self.ends if end[1] != cluster]
            heapq.heapify(self.ends)
        self.queues[cluster].clear()
        self.serving[cluster] = -1
        fleet.caches[cluster].clear()
        fleet.pending_len[cluster] = 0
        fleet.waiting_s[cluster] = 0.0
        fleet.busy_until_s[cluster] = self.now
        fleet.alive.remove(cluster)
        fleet.ring.remove_cluster(fleet.clusters[cluster])
        self.router.membership_changed()
        for request in stranded:
            self.estimate_s.pop(request, None)
            self.moved[request] = 1
            self.cluster[request] = -1
            self.start_s[request] = math.nan
            self.hit_blocks[request] = self.reused_len[request] = 0
            self.dispatch(request)

    def bring_back(self, cluster: int) -> None:
        """A cluster returns with a cold cache and takes its place on the ring again."""
        fleet = self.fleet
        fleet.alive = sorted([*fleet.alive, cluster])
        fleet.ring.add_cluster(fleet.clusters[cluster], self.sim.vnodes)
        self.router.membership_changed()
        waiting, self.at_door = self.at_door, deque()
        for request in waiting:
            self.dispatch(request)

    def enter_system(self, request: int) -> None:
        cls = self.cls[request]
        self.status[request] = IN_FLIGHT
        self.area_s[cls] += self.in_system[cls] * (self.now - self.changed_s[cls])
        self.changed_s[cls] = self.now
        self.in_system[cls] += 1

    def leave_system(self, request: int) -> None:
        cls = self.cls[request]
        self.area_s[cls] += self.in_system[cls] * (self.now - self.changed_s[cls])
        self.changed_s[cls] = self.now
        self.in_system[cls] -= 1

    def result(self, loop_s: float) -> FleetResult:
        for cls, num in enumerate(self.in_system):
            self.area_s[cls] += num * (self.now - self.changed_s[cls])
        sim = self.sim
        return FleetResult(
            workload=self.workload,
            clusters=sim.clusters,
            router=sim.router,
            status=np.frombuffer(bytes(self.status), np.uint8),
            cluster=np.array(self.cluster, np.int32),
            admit_s=np.array(self.admit_s),
            start_s=np.array(self.start_s),
            finish_s=np.array(self.finish_s),
            hit_blocks=np.array(self.hit_blocks, np.int32),
            reused_len=np.array(self.reused_len, np.int64),
            moved=np.frombuffer(bytes(self.moved), np.bool_),
            failed_over=np.frombuffer(bytes(self.failed_over), np.bool_),
            lost_s=np.array(self.lost_s),
            area_s=np.array(self.area_s),
            cached_blocks=np.array([len(cache) for cache in self.fleet.caches]),
            end_s=self.now,
            loop_s=loop_s,
        )
