"""Routers: which cluster takes a request.

All see the same fleet: who is up, how many prompt tokens each cluster still has to finish, and (the
prefix routers) what its cache holds now. Loads are fresh: a request that was just routed counts,
so simultaneous arrivals spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from k3core.errors import K3Error
from k3core.fleet.cost import PrefillCost
from k3core.fleet.ring import ConsistentHashRing
from k3core.fleet.segments import SegmentCache
from k3core.fleet.workload import Workload

Choose = Callable[[int, float], int]
"""(request, now in seconds) -> cluster."""


@dataclass
class Fleet:
    """What a router may look at. Lists are indexed by cluster.

    Attributes:
        clusters: names.
        ring: the clusters that are up, on the hash ring.
        alive: indices of the clusters that are up, in order.
        pending_len: prompt tokens routed to a cluster and not finished.
        routed_len: prompt tokens ever routed to a cluster; it breaks ties between equal loads.
        busy_until_s: when the request in service ends.
        waiting_s: estimated prefill seconds of the requests that wait (prefix-load only).
    """

    clusters: tuple[str, ...]
    vnodes: int
    caches: list[SegmentCache]
    cost: PrefillCost
    ring: ConsistentHashRing = field(default_factory=ConsistentHashRing)
    alive: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        num = len(self.clusters)
        self.alive = list(range(num))
        self.pending_len = [0] * num
        self.routed_len = [0] * num
        self.busy_until_s = [0.0] * num
        self.waiting_s = [0.0] * num
        for cluster in self.clusters:
            self.ring.add_cluster(cluster, self.vnodes)


class Router:
    """Base: one instance serves one run."""

    def __init__(self, fleet: Fleet, workload: Workload, seed: int, load_factor: float) -> None:
        self.fleet = fleet
        self.workload = workload
        self.seed = seed
        self.load_factor = load_factor
        self.membership_changed()

    def choose(self, request: int, now: float) -> int:
        """Index of a cluster that is up; at least one is."""
        raise NotImplementedError

    def estimate_s(self, request: int, cluster: int) -> float:
        """Prefill seconds that the router expects; 0 for routers that do not look."""
        return 0.0

    def membership_changed(self) -> None:
        """A cluster failed or came back."""


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

    Takes the first cluster clockwise whose pending tokens are at most ``load_factor`` times the
    mean; there always is one.
    """

    def membership_changed(self) -> None:
        super().membership_changed()
        self.index = {name: i for i, name in enumerate(self.fleet.clusters)}
        self.fallbacks: dict[int, list[int]] = {}

    def choose(self, request: int, now: float) -> int:
        fleet = self.fleet
        pending = fleet.pending_len
        bound = self.load_factor * sum(pending) / len(fleet.alive)
        first = self.primary[request]
        if pending[first] <= bound:
            return first
        session = int(self.workload.sessions[request])
        order = self.fallbacks.get(session)
        if order is None:
            order = [self.index[str(name)] for name in fleet.ring.successors(session)]
            self.fallbacks[session] = order
        for cluster in order:
            if pending[cluster] <= bound:
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

    def __init__(self, fleet: Fleet, workload: Workload, seed: int, load_factor: float) -> None:
        super().__init__(fleet, workload, seed, load_factor)
        self.draws = np.random.default_rng(seed).random(len(workload)).tolist()

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


class LongestPrefixRouter(Router):
    """Deepest MLA match, load ignored: a system prompt shared by all sends all to one cluster."""

    def choose(self, request: int, now: float) -> int:
        path = self.workload.segments.path(request)
        caches = self.fleet.caches
        return max(self.fleet.alive, key=lambda cluster: (caches[cluster].match(path), -cluster))


class PrefixLoadRouter(Router):
    """Least expected time to first token: work ahead plus own prefill (Mooncake, Algorithm 1).

    The prefill counts what the cluster's cache would really save: checkpoints, not only MLA
    blocks. Of equals, the cluster that got the fewest tokens so far.
    """

    def choose(self, request: int, now: float) -> int:
        fleet = self.fleet
        path = self.workload.segments.path(request)
        best, best_s = -1, (float("inf"), 0)
        for cluster in fleet.alive:
            ahead = max(0.0, fleet.busy_until_s[cluster] - now) + fleet.waiting_s[cluster]
            if ahead <= best_s[0]:
                expected = ahead + self._prefill_s(request, path, cluster)
                if (expected, fleet.routed_len[cluster]) < best_s:
                    best, best_s = cluster, (expected, fleet.routed_len[cluster])
        return best

    def estimate_s(self, request: int, cluster: int) -> float:
        return self._prefill_s(request, self.workload.segments.path(request), cluster)

    def _prefill_s(self, request: int, path: Sequence[int], cluster: int) -> float:
        cache = self.fleet.caches[cluster]
        input_len = int(self.workload.input_len[request])
        reused = cache.usable(path, cache.match(path), input_len)
        return self.fleet.cost.seconds(input_len, reused)


ROUTERS: dict[str, type[Router]] = {
    "session": SessionRouter,
    "session-bounded": BoundedSessionRouter,
    "round-robin": RoundRobinRouter,
    "random": RandomRouter,
    "least-loaded": LeastLoadedRouter,
    "longest-prefix": LongestPrefixRouter,
    "prefix-load": PrefixLoadRouter,
}


def router_class(code: str) -> type[Router]:
    """The router of that name.

    Raises:
        K3Error: unknown name.
    """
    if code not in ROUTERS:
        raise K3Error(f"router={code!r} is unknown; allowed: {', '.join(ROUTERS)}")
    return ROUTERS[code]
