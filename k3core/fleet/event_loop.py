"""The event loop of one run; ``k3core.fleet.simulator`` says what happens to a request."""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from k3core.fleet.budget import Ticket
from k3core.fleet.failures import NEVER, changes
from k3core.fleet.result import (
    ABSENT,
    ADMITTED,
    IN_FLIGHT,
    NO_BUDGET,
    REJECTED,
    SERVED,
    TOO_LARGE,
    FleetResult,
)
from k3core.fleet.router_base import Fleet
from k3core.fleet.segments import SegmentCache
from k3core.fleet.workload import CLASS_NAMES, Workload

if TYPE_CHECKING:
    from k3core.fleet.simulator import FleetSimulator

_DECODE, _PREFILL = range(2)  # at one instant decode ends first


class EventLoop:
    """State of one run. Requests are indices into the workload, clusters indices of the fleet."""

    def __init__(self, sim: FleetSimulator, workload: Workload) -> None:
        num_requests, num_clusters = len(workload), len(sim.clusters)
        self.sim = sim
        self.workload = workload
        self.fleet = Fleet(
            sim.clusters,
            sim.points,
            sim.servers,
            [
                SegmentCache(
                    workload.segments, sim.capacity_blocks, sim.policy, sim.checkpoint_blocks
                )
                for _ in sim.clusters
            ],
            sim.cost,
        )
        self.router = sim.router_class(self.fleet, workload, sim.routing)
        self.tracker = self.router if self.router.tracks else None
        self.admission = None if sim.admission is None else sim.admission.fresh()
        self.looks = "uncached" in (sim.admission_by, sim.class_by)
        self.tickets: dict[int, Ticket] = {}
        # Arrays, not lists: a float or int object per entry would weigh three times as much.
        self.arrival_s = array("d", workload.arrival_s.astype(np.float64).tobytes())
        self.input_len = array("q", workload.input_len.astype(np.int64).tobytes())
        self.service_s = None if workload.service_s is None else workload.service_s.tolist()
        self.segments = workload.segments
        self.cls = bytearray(workload.is_long.tobytes())
        self.held_len: list[int] = []  # tokens in decode
        if sim.decode is not None:
            self.held_len = (workload.input_len + workload.output_len).tolist()
            self.decode_s: list[float] = (
                workload.output_len * sim.decode.seconds_per_token
            ).tolist()

        self.queues: list[deque[int]] = [deque() for _ in range(num_clusters)]
        self.serving: list[dict[int, list[int]]] = [{} for _ in range(num_clusters)]  # its path
        self.decoding: list[dict[int, None]] = [{} for _ in range(num_clusters)]
        self.decode_queues: list[deque[int]] = [deque() for _ in range(num_clusters)]
        self.decode_len = [0] * num_clusters
        # heap of (end, decode or prefill, cluster, request)
        self.ends: list[tuple[float, int, int, int]] = []
        self.changes = changes(sim.failures)
        self.at_door: deque[int] = deque()  # admitted while no cluster was up
        self.home: list[int] | None = getattr(self.router, "primary", None)

        self.status = bytearray([ABSENT]) * num_requests
        self.reason = bytearray([ADMITTED]) * num_requests
        never = array("d", [math.nan])
        self.cluster = array("i", [-1]) * num_requests
        self.admit_s = never * num_requests
        self.start_s = never * num_requests
        self.finish_s = never * num_requests
        self.done_s = self.finish_s if sim.decode is None else never * num_requests
        self.hit_blocks = array("i", [0]) * num_requests
        self.reused_len = array("q", [0]) * num_requests
        self.fetched_len: dict[int, int] = {}
        self.estimate_s: dict[int, float] = {}
        self.moved = bytearray(num_requests)
        self.failed_over = bytearray(num_requests)
        self.lost_s = [0.0] * num_clusters
        self.in_system = [0] * len(CLASS_NAMES)
        self.changed_s = [0.0] * len(CLASS_NAMES)
        self.area_s = [0.0] * len(CLASS_NAMES)
        self.now = 0.0

    def loop(self) -> None:
        """Run until everyone is served, or to the horizon."""
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
                _, stage, cluster, request = heapq.heappop(ends)
                if stage == _PREFILL:
                    self.end_service(cluster, request)
                else:
                    self.end_decode(cluster, request)
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
        uncached = self.input_len[request]
        if self.looks:
            uncached -= self.expected_reuse(request)
            if self.sim.class_by == "uncached":
                self.cls[request] = int(uncached >= self.workload.long_threshold)
        if self.held_len:
            limit = self.sim.decode.token_budget  # type: ignore[union-attr]
            if self.held_len[request] > limit:
                self.refuse(request, TOO_LARGE)
                return
        if self.admission is not None:
            cls = CLASS_NAMES[self.cls[request]]
            weight = None
            if self.sim.admission_by != "class":
                by_total = self.sim.admission_by == "total"
                weight = self.input_len[request] if by_total else uncached
                if weight > self.admission.budgets[self.admission.lanes[cls]]:
                    self.refuse(request, TOO_LARGE)
                    return
            ticket = self.admission.admit(cls, weight, item=request)
            if ticket is None:
                if self.admission.mode == "reject":
                    self.refuse(request, NO_BUDGET)
                else:
                    self.enter_system(request)
                return
            self.tickets[request] = ticket
        self.enter_system(request)
        self.admit_s[request] = self.now
        self.dispatch(request)

    def refuse(self, request: int, reason: int) -> None:
        self.status[request] = REJECTED
        self.reason[request] = reason

    def expected_reuse(self, request: int) -> int:
        """Tokens that the request would reuse if it were served now; touches nothing."""
        path, input_len = self.segments.path(request), self.input_len[request]
        home = getattr(self.router, "primary", None)
        if home is None or not self.fleet.alive:
            return self.fleet.best_reuse(path, input_len)[1]
        return self.fleet.reuse(path, input_len, home[request])[1]

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
        if self.tracker is not None:
            self.tracker.routed(request, cluster)
        if len(self.serving[cluster]) < self.sim.servers:
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
        fetch_s = 0.0
        if self.router.fetches:
            hit_blocks, fetched_len, fetch_s = self.router.fetched(
                request, path, hit_blocks, reused_len
            )
            if fetched_len:
                self.fetched_len[request] = fetched_len
                reused_len += fetched_len
        self.hit_blocks[request] = hit_blocks
        self.reused_len[request] = reused_len
        self.start_s[request] = self.now
        self.serving[cluster][request] = path
        if self.service_s is None:
            end_s = self.now + (self.sim.cost.seconds(input_len, reused_len) + fetch_s)
        else:
            end_s = self.now + (self.service_s[request] + fetch_s)
        heapq.heappush(self.ends, (end_s, _PREFILL, cluster, request))
        if self.sim.servers == 1:
            self.fleet.free_at_s[cluster] = end_s
        else:
            self.next_free(cluster)

    def next_free(self, cluster: int) -> None:
        """When a cluster of several servers can take another request."""
        if len(self.serving[cluster]) < self.sim.servers:
            self.fleet.free_at_s[cluster] = self.now
        else:
            self.fleet.free_at_s[cluster] = min(
                end[0] for end in self.ends if end[1] == _PREFILL and end[2] == cluster
            )

    def end_service(self, cluster: int, request: int) -> None:
        """First token; the server takes the next request."""
        input_len = self.input_len[request]
        serving = self.serving[cluster]
        path = serving.pop(request)
        self.fleet.caches[cluster].store(path, self.hit_blocks[request], input_len)
        self.finish_s[request] = self.now
        self.fleet.pending_len[cluster] -= input_len
        if self.tracker is not None:
            self.tracker.prefilled(request, cluster)
        in_decode = bool(self.held_len)
        if in_decode:
            self.decode_queues[cluster].append(request)
            self.start_decodes(cluster)
        else:
            self.leave_system(request, cluster)
        queue = self.queues[cluster]
        if queue:
            following = queue.popleft()
            if self.estimate_s:
                self.fleet.waiting_s[cluster] -= self.estimate_s.pop(following)
            if not queue:
                self.fleet.waiting_s[cluster] = 0.0  # no rounding errors left behind
            self.start_service(cluster, following)
        elif self.sim.servers > 1:
            self.next_free(cluster)
        if not in_decode and self.admission is not None:
            self.give_back(request)

    def start_decodes(self, cluster: int) -> None:
        """Decode the requests at the head of the line that fit the token budget."""
        queue, limit = self.decode_queues[cluster], self.sim.decode.token_budget  # type: ignore[union-attr]
        while queue and self.decode_len[cluster] + self.held_len[queue[0]] <= limit:
            request = queue.popleft()
            self.decode_len[cluster] += self.held_len[request]
            self.decoding[cluster][request] = None
            end_s = self.now + self.decode_s[request]
            heapq.heappush(self.ends, (end_s, _DECODE, cluster, request))

    def end_decode(self, cluster: int, request: int) -> None:
        del self.decoding[cluster][request]
        self.decode_len[cluster] -= self.held_len[request]
        self.done_s[request] = self.now
        self.leave_system(request, cluster)
        self.start_decodes(cluster)
        if self.admission is not None:
            self.give_back(request)

    def give_back(self, request: int) -> None:
        """Return a ticket; those that it lets in are routed."""
        if self.admission is None:
            return
        for ticket in self.admission.release(self.tickets.pop(request)):
            admitted: int = ticket.item  # type: ignore[assignment]
            self.tickets[admitted] = ticket
            self.admit_s[admitted] = self.now
            self.dispatch(admitted)

    def fail(self, cluster: int) -> None:
        """A cluster goes down: its cache is lost, its requests move in the order they held."""
        fleet = self.fleet
        running = list(self.serving[cluster])
        stranded = [
            *self.decoding[cluster],
            *self.decode_queues[cluster],
            *running,
            *self.queues[cluster],
        ]
        for request in running:
            self.lost_s[cluster] += self.now - self.start_s[request]
        for request in stranded[: len(stranded) - len(running) - len(self.queues[cluster])]:
            self.lost_s[cluster] += self.finish_s[request] - self.start_s[request]
        if running or self.decoding[cluster]:
            self.ends[:] = [end for end in self.ends if end[2] != cluster]
            heapq.heapify(self.ends)
        self.queues[cluster].clear()
        self.serving[cluster].clear()
        self.decoding[cluster].clear()
        self.decode_queues[cluster].clear()
        self.decode_len[cluster] = 0
        fleet.caches[cluster].clear()
        fleet.pending_len[cluster] = 0
        fleet.waiting_s[cluster] = 0.0
        fleet.free_at_s[cluster] = self.now
        fleet.alive.remove(cluster)
        fleet.ring.remove_cluster(fleet.clusters[cluster])
        self.router.failed(cluster)
        self.router.membership_changed()
        for request in stranded:
            self.estimate_s.pop(request, None)
            self.fetched_len.pop(request, None)
            self.moved[request] = 1
            self.cluster[request] = -1
            self.start_s[request] = self.finish_s[request] = math.nan
            self.hit_blocks[request] = self.reused_len[request] = 0
            self.dispatch(request)

    def bring_back(self, cluster: int) -> None:
        """A cluster returns with a cold cache and takes its place on the ring again."""
        fleet = self.fleet
        fleet.alive = sorted([*fleet.alive, cluster])
        fleet.ring.add_cluster(fleet.clusters[cluster], fleet.points[cluster])
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

    def leave_system(self, request: int, cluster: int) -> None:
        cls = self.cls[request]
        self.status[request] = SERVED
        self.area_s[cls] += self.in_system[cls] * (self.now - self.changed_s[cls])
        self.changed_s[cls] = self.now
        self.in_system[cls] -= 1
        if self.tracker is not None:
            self.tracker.completed(request, cluster)

    def result(self, loop_s: float) -> FleetResult:
        """The columns, after ``loop``."""
        for cls, num in enumerate(self.in_system):
            self.area_s[cls] += num * (self.now - self.changed_s[cls])
        sim = self.sim
        status = np.frombuffer(bytes(self.status), np.uint8)
        finish_s = np.array(self.finish_s)
        if self.held_len:
            finish_s[status != SERVED] = math.nan
        fetched_len = np.zeros(len(status), np.int64)
        fetched_len[list(self.fetched_len)] = list(self.fetched_len.values())
        return FleetResult(
            workload=self.workload,
            clusters=sim.clusters,
            router=sim.router,
            status=status,
            cluster=np.array(self.cluster, np.int32),
            is_long=np.frombuffer(bytes(self.cls), np.bool_),
            reason=np.frombuffer(bytes(self.reason), np.uint8),
            admit_s=np.array(self.admit_s),
            start_s=np.array(self.start_s),
            finish_s=finish_s,
            done_s=np.array(self.done_s) if self.held_len else finish_s,
            hit_blocks=np.array(self.hit_blocks, np.int32),
            reused_len=np.array(self.reused_len, np.int64),
            fetched_len=fetched_len,
            moved=np.frombuffer(bytes(self.moved), np.bool_),
            failed_over=np.frombuffer(bytes(self.failed_over), np.bool_),
            lost_s=np.array(self.lost_s),
            area_s=np.array(self.area_s),
            cached_blocks=np.array([len(cache) for cache in self.fleet.caches]),
            end_s=self.now,
            num_servers=sim.servers,
            window_s=sim.window_s,
            loop_s=loop_s,
        )
