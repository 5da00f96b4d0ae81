"""Routers by session and by load, and the registry of all: which cluster takes a request."""

from __future__ import annotations

import numpy as np

from k3core.errors import require_choice
from k3core.fleet.prefix_routers import (
    DynamoRouter,
    LongestPrefixRouter,
    MooncakeRouter,
    PrefixLoadRouter,
    SGLangRouter,
)
from k3core.fleet.router_base import Fleet, Router, RouterSettings
from k3core.fleet.workload import Workload


class SessionRouter(Router):
    """Session affinity: the ring's primary; after a failure that is the old secondary."""

    def membership_changed(self) -> None:
        if not self.fleet.alive:
            return
        index = {name: i for i, name in enumerate(self.fleet.clusters)}
        of_ring = np.array([index[str(name)] for name in self.fleet.ring.clusters])
        primary, _ = self.fleet.ring.route_many(self.workload.sessions)
        self.primary: list[int] = of_ring[primary].tolist()

    def choose(self, request: int, now: float) -> int:
        return self.primary[request]


class BoundedSessionRouter(SessionRouter):
    """Session ring with bounded load (Mirrokni et al.; HAProxy hash-balance-factor).

    Takes the first cluster clockwise whose pending tokens are at most ``load_factor`` times its
    part of the sum, by its weight on the ring; there always is one.
    """

    def membership_changed(self) -> None:
        super().membership_changed()
        self.index = {name: i for i, name in enumerate(self.fleet.clusters)}
        self.num_points = max(1, sum(self.fleet.points[c] for c in self.fleet.alive))
        self.fallbacks: dict[int, list[int]] = {}

    def choose(self, request: int, now: float) -> int:
        fleet = self.fleet
        pending = fleet.pending_len
        per_point = self.settings.load_factor * sum(pending) / self.num_points
        points = fleet.points
        first = self.primary[request]
        if pending[first] <= per_point * points[first]:
            return first
        session = int(self.workload.sessions[request])
        order = self.fallbacks.get(session)
        if order is None:
            order = [self.index[str(name)] for name in fleet.ring.successors(session)]
            self.fallbacks[session] = order
        for cluster in order:
            if pending[cluster] <= per_point * points[cluster]:
                return cluster
        return first


class RoundRobinRouter(Router):
    """Each cluster in turn."""

    turn = -1

    def choose(self, request: int, now: float) -> int:
        self.turn += 1
        alive = self.fleet.alive
        return alive[self.turn % len(alive)]


class RandomRouter(Router):
    """A cluster drawn at random, from the run's seed."""

    def __init__(self, fleet: Fleet, workload: Workload, settings: RouterSettings) -> None:
        super().__init__(fleet, workload, settings)
        self.draws = np.random.default_rng(settings.seed).random(len(workload)).tolist()

    def choose(self, request: int, now: float) -> int:
        alive = self.fleet.alive
        return alive[int(self.draws[request] * len(alive))]


class LeastLoadedRouter(Router):
    """Fewest pending prompt tokens; of equals the one that got the fewest so far.

    Tokens, not requests: one prompt of 128K outweighs three of 1K (smg #1621).
    """

    def choose(self, request: int, now: float) -> int:
        pending, routed = self.fleet.pending_len, self.fleet.routed_len
        return min(self.fleet.alive, key=lambda cluster: (pending[cluster], routed[cluster]))


class StaleLeastLoadedRouter(Router):
    """Least loaded by a view that lags: simultaneous arrivals all see the same loads and herd."""

    def __init__(self, fleet: Fleet, workload: Workload, settings: RouterSettings) -> None:
        super().__init__(fleet, workload, settings)
        self.seen_s = -1.0
        self.seen: list[tuple[int, int]] = []

    def membership_changed(self) -> None:
        self.seen_s = -1.0

    def choose(self, request: int, now: float) -> int:
        fleet = self.fleet
        if self.seen_s < 0 or (now > self.seen_s and now >= self.seen_s + self.settings.refresh_s):
            self.seen_s = now
            self.seen = list(zip(fleet.pending_len, fleet.routed_len, strict=True))
        return min(fleet.alive, key=self.seen.__getitem__)


ROUTERS: dict[str, type[Router]] = {
    "session": SessionRouter,
    "session-bounded": BoundedSessionRouter,
    "round-robin": RoundRobinRouter,
    "random": RandomRouter,
    "least-loaded": LeastLoadedRouter,
    "longest-prefix": LongestPrefixRouter,
    "prefix-load": PrefixLoadRouter,
}
"""Compared on the page."""

MORE_ROUTERS: dict[str, type[Router]] = {
    "least-loaded-stale": StaleLeastLoadedRouter,
    "mooncake": MooncakeRouter,
    "dynamo": DynamoRouter,
    "sglang": SGLangRouter,
}
"""Published formulas, and a view that lags."""

ALL_ROUTERS: dict[str, type[Router]] = ROUTERS | MORE_ROUTERS


def router_class(code: str) -> type[Router]:
    """The router of that name.

    Raises:
        K3Error: unknown name.
    """
    return ALL_ROUTERS[require_choice("router", code, ALL_ROUTERS)]
