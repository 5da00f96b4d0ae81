"""Routers: which cluster takes a request.

All see the same fleet: who is up, how many prompt tokens each cluster still has to finish, and (the
prefix routers) what its cache holds now. Loads are fresh unless a router says otherwise: a request
that was just routed counts, so simultaneous arrivals spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from k3core.errors import K3Error, require
from k3core.fleet.cost import PrefillCost
from k3core.fleet.ring import ConsistentHashRing
from k3core.fleet.segments import SegmentCache
from k3core.fleet.workload import Workload


@dataclass(frozen=True)
class RouterSettings:
    """Numbers of the routers; each router reads its own.

    Attributes:
        seed: of ``random``.
        load_factor: bound of ``session-bounded``, relative to the mean load.
        refresh_s: age of the loads that ``least-loaded-stale`` sees; 0: those of the last instant
            before (a tick, where timestamps have ticks).
        balancing_threshold: ``mooncake`` fetches a prefix from another cluster when that holds
            more than this many times what the chosen one does (Algorithm 1; the paper gives no
            value, 1 fetches whatever is longer).
        transfer_s_per_token: seconds to fetch one token of prefix; the default is LLaMA3-70B's
            320 KB over 100 GB/s (FAST'25: 8 x 100 Gbps).
        overlap_credit, prefill_scale, decode_weight: Dynamo's ``overlap_score_credit``,
            ``prefill_load_scale`` and the weight of active blocks, with its defaults.
        balance_abs, balance_rel, cache_threshold: SGLang gateway, with its defaults.
    """

    seed: int = 0
    load_factor: float = 1.25
    refresh_s: float = 0.0
    balancing_threshold: float = 1.0
    transfer_s_per_token: float = 3.2e-6
    overlap_credit: float = 1.0
    prefill_scale: float = 1.0
    decode_weight: float = 1.0
    balance_abs: int = 64
    balance_rel: float = 1.5
    cache_threshold: float = 0.3

    def __post_init__(self) -> None:
        require(self.load_factor >= 1, f"load_factor={self.load_factor} must be >= 1")
        require(
            self.balancing_threshold >= 1,
            f"balancing_threshold={self.balancing_threshold} must be >= 1",
        )
        require(
            0 <= self.cache_threshold <= 1,
            f"cache_threshold={self.cache_threshold} must be in [0, 1]",
        )
        for name in (
            "refresh_s",
            "transfer_s_per_token",
            "overlap_credit",
            "prefill_scale",
            "decode_weight",
            "balance_abs",
            "balance_rel",
        ):
            value = getattr(self, name)
            require(0 <= value < float("inf"), f"{name}={value} must be finite and >= 0")


@dataclass
class Fleet:
    """What a router may look at. Lists are indexed by cluster.

    Attributes:
        clusters: names.
        points: ring points of each.
        servers: prefill servers of each cluster.
        ring: the clusters that are up, on the hash ring.
        alive: indices of the clusters that are up, in order.
        pending_len: prompt tokens routed to a cluster whose prefill is not finished.
        routed_len: prompt tokens ever routed to a cluster; it breaks ties between equal loads.
        free_at_s: when the next prefill server becomes free; the past when one is idle.
        waiting_s: estimated prefill seconds of the requests that wait (cost-based routers only).
    """

    clusters: tuple[str, ...]
    points: tuple[int, ...]
    servers: int
    caches: list[SegmentCache]
    cost: PrefillCost
    ring: ConsistentHashRing = field(default_factory=ConsistentHashRing)
    alive: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        num = len(self.clusters)
        self.alive = list(range(num))
        self.pending_len = [0] * num
        self.routed_len = [0] * num
        self.free_at_s = [0.0] * num
        self.waiting_s = [0.0] * num
        for cluster, points in zip(self.clusters, self.points, strict=True):
            self.ring.add_cluster(cluster, points)

    def reuse(self, path: Sequence[int], input_len: int, cluster: int) -> tuple[int, int]:
        """(MLA blocks matched, tokens that checkpoints make reusable); touches nothing."""
        cache = self.caches[cluster]
        matched = cache.match(path)
        return matched, cache.usable(path, matched, input_len)

    def best_reuse(self, path: Sequence[int], input_len: int) -> tuple[int, int]:
        """The deepest reuse that any cluster offers."""
        found = (self.reuse(path, input_len, cluster) for cluster in self.alive)
        return max(found, key=lambda match: (match[1], match[0]), default=(0, 0))


class Router:
    """Base: one instance serves one run.

    Attributes:
        tracks: the event loop reports to ``routed``, ``prefilled`` and ``completed``.
        fetches: prefixes may come from another cluster, see ``fetch``.
    """

    tracks = False
    fetches = False

    def __init__(self, fleet: Fleet, workload: Workload, settings: RouterSettings) -> None:
        self.fleet = fleet
        self.workload = workload
        self.settings = settings
        self.membership_changed()

    def choose(self, request: int, now: float) -> int:
        """Index of a cluster that is up; at least one is."""
        raise NotImplementedError

    def estimate_s(self, request: int, cluster: int) -> float:
        """Prefill seconds that the router expects; 0 for routers that do not look."""
        return 0.0

    def membership_changed(self) -> None:
        """A cluster failed or came back."""

    def failed(self, cluster: int) -> None:
        """A cluster lost its cache and its requests."""

    def routed(self, request: int, cluster: int) -> None:
        """A request was sent to a cluster."""

    def prefilled(self, request: int, cluster: int) -> None:
        """Its first token is there."""

    def completed(self, request: int, cluster: int) -> None:
        """It left the cluster."""


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


class LongestPrefixRouter(Router):
    """Deepest MLA match, load ignored: a system prompt shared by all sends all to one cluster."""

    def choose(self, request: int, now: float) -> int:
        path = self.workload.segments.path(request)
        caches = self.fleet.caches
        return max(self.fleet.alive, key=lambda cluster: (caches[cluster].match(path), -cluster))


class PrefixLoadRouter(Router):
    """Least expected time to first token: work ahead plus own prefill (Mooncake, Algorithm 1).

    The prefill counts what the cluster's cache would really save: checkpoints, not only MLA
    blocks. No prefix is fetched from elsewhere. Of equals, the cluster that got the fewest tokens
    so far.
    """

    def choose(self, request: int, now: float) -> int:
        fleet = self.fleet
        path = self.workload.segments.path(request)
        best, best_s = -1, (float("inf"), 0)
        for cluster in fleet.alive:
            ahead = (
                max(0.0, fleet.free_at_s[cluster] - now) + fleet.waiting_s[cluster] / fleet.servers
            )
            if ahead <= best_s[0]:
                expected = ahead + self._prefill_s(request, path, cluster)
                if (expected, fleet.routed_len[cluster]) < best_s:
                    best, best_s = cluster, (expected, fleet.routed_len[cluster])
        return best

    def estimate_s(self, request: int, cluster: int) -> float:
        return self._prefill_s(request, self.workload.segments.path(request), cluster)

    def _prefill_s(self, request: int, path: Sequence[int], cluster: int) -> float:
        input_len = int(self.workload.input_len[request])
        _, reused = self.fleet.reuse(path, input_len, cluster)
        return self.fleet.cost.seconds(input_len, reused)


class MooncakeRouter(PrefixLoadRouter):
    """Mooncake's Algorithm 1 in full: a much longer prefix elsewhere is fetched and replicated."""

    fetches = True

    def choose(self, request: int, now: float) -> int:
        self._look(request, self.workload.segments.path(request))
        return super().choose(request, now)

    def estimate_s(self, request: int, cluster: int) -> float:
        # Called right after ``choose`` for the same request: what was seen there still holds.
        return self._prefill_s(request, (), cluster)

    def fetch(self, best: tuple[int, int], local: tuple[int, int]) -> bool:
        """Whether the best prefix of the fleet is worth a transfer: both (blocks, tokens)."""
        return best[1] > self.settings.balancing_threshold * local[1]

    def _look(self, request: int, path: Sequence[int]) -> None:
        input_len = int(self.workload.input_len[request])
        self.local = {c: self.fleet.reuse(path, input_len, c) for c in self.fleet.alive}
        self.best = max(self.local.values(), key=lambda match: (match[1], match[0]))

    def _prefill_s(self, request: int, path: Sequence[int], cluster: int) -> float:
        input_len = int(self.workload.input_len[request])
        local = self.local[cluster]
        if not self.fetch(self.best, local):
            return self.fleet.cost.seconds(input_len, local[1])
        fetched_s = (self.best[1] - local[1]) * self.settings.transfer_s_per_token
        return self.fleet.cost.seconds(input_len, self.best[1]) + fetched_s


class DynamoRouter(Router):
    """NVIDIA Dynamo's KV router at temperature 0: least ``scale * prefill + active`` blocks.

    ``prefill``: blocks that the cluster still has to compute, this prompt included, less the
    credit for its matched MLA blocks (checkpoints are not seen: dynamo #12169); ``active``: blocks
    of the requests that the cluster holds. Of equals, the cluster that got the fewest tokens.
    """

    tracks = True

    def __init__(self, fleet: Fleet, workload: Workload, settings: RouterSettings) -> None:
        super().__init__(fleet, workload, settings)
        num = len(fleet.clusters)
        self.prefill_blocks = [0.0] * num
        self.active_blocks = [0] * num
        self.charged: dict[int, float] = {}
        self.num_blocks: list[int] = np.diff(workload.block_offsets).tolist()

    def choose(self, request: int, now: float) -> int:
        path = self.workload.segments.path(request)
        caches, settings = self.fleet.caches, self.settings
        best, best_cost = -1, (float("inf"), 0)
        self.new_blocks = {}
        for cluster in self.fleet.alive:
            overlap = settings.overlap_credit * caches[cluster].match(path)
            new = self.num_blocks[request] - overlap
            self.new_blocks[cluster] = new
            cost = (
                settings.prefill_scale * (self.prefill_blocks[cluster] + new)
                + settings.decode_weight * self.active_blocks[cluster]
            )
            if (cost, self.fleet.routed_len[cluster]) < best_cost:
                best, best_cost = cluster, (cost, self.fleet.routed_len[cluster])
        return best

    def routed(self, request: int, cluster: int) -> None:
        self.charged[request] = self.new_blocks[cluster]
        self.prefill_blocks[cluster] += self.new_blocks[cluster]
        self.active_blocks[cluster] += self.num_blocks[request]

    def prefilled(self, request: int, cluster: int) -> None:
        self.prefill_blocks[cluster] -= self.charged.pop(request)

    def completed(self, request: int, cluster: int) -> None:
        self.active_blocks[cluster] -= self.num_blocks[request]

    def failed(self, cluster: int) -> None:
        self.prefill_blocks[cluster] = 0.0
        self.active_blocks[cluster] = 0


class SGLangRouter(Router):
    """SGLang's gateway, cache-aware: its own tree per cluster, request counts against imbalance.

    When the counts of requests in flight differ by more than ``balance_abs`` and by a factor of
    more than ``balance_rel``: the shortest queue. Otherwise the longest match in the trees if it
    covers ``cache_threshold`` of the prompt, else the smallest tree. The trees hold what was
    routed; evictions and missing checkpoints are not seen.
    """

    tracks = True

    def __init__(self, fleet: Fleet, workload: Workload, settings: RouterSettings) -> None:
        super().__init__(fleet, workload, settings)
        num = len(fleet.clusters)
        self.trees = [SegmentCache(workload.segments, None, "dense") for _ in range(num)]
        self.in_flight = [0] * num

    def choose(self, request: int, now: float) -> int:
        alive, settings = self.fleet.alive, self.settings
        counts = [self.in_flight[cluster] for cluster in alive]
        most, least = max(counts), min(counts)
        if most - least > settings.balance_abs and most > settings.balance_rel * least:
            return alive[counts.index(least)]
        path = self.workload.segments.path(request)
        matches = [self.trees[cluster].match(path) for cluster in alive]
        longest = max(matches)
        num_blocks = self.workload.block_offsets[request + 1] - self.workload.block_offsets[request]
        if longest >= settings.cache_threshold * num_blocks:
            ties = [c for c, match in zip(alive, matches, strict=True) if match == longest]
            return min(ties, key=lambda cluster: (self.in_flight[cluster], cluster))
        return min(alive, key=lambda cluster: (len(self.trees[cluster]), cluster))

    def routed(self, request: int, cluster: int) -> None:
        path = self.workload.segments.path(request)
        self.trees[cluster].store(path, 0, int(self.workload.input_len[request]))
        self.in_flight[cluster] += 1

    def completed(self, request: int, cluster: int) -> None:
        self.in_flight[cluster] -= 1

    def failed(self, cluster: int) -> None:
        self.trees[cluster].clear()
        self.in_flight[cluster] = 0


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
    if code not in ALL_ROUTERS:
        raise K3Error(f"router={code!r} is unknown; allowed: {', '.join(ALL_ROUTERS)}")
    return ALL_ROUTERS[code]
