"""What every router is and sees: the fleet, and the router's own numbers.

All see the same fleet: who is up, how many prompt tokens each cluster still has to finish, and (the
prefix routers) what its cache holds now. Loads are fresh unless a router says otherwise: a request
that was just routed counts, so simultaneous arrivals spread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from k3core.errors import require_count, require_number
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
        require_count("seed", self.seed)
        require_count("balance_abs", self.balance_abs)
        require_number("load_factor", self.load_factor, least=1)
        require_number("balancing_threshold", self.balancing_threshold, least=1)
        require_number("cache_threshold", self.cache_threshold, least=0, most=1)
        for name in (
            "refresh_s",
            "transfer_s_per_token",
            "overlap_credit",
            "prefill_scale",
            "decode_weight",
            "balance_rel",
        ):
            require_number(name, getattr(self, name), least=0)


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


class Router(ABC):
    """Base: one instance serves one run.

    Attributes:
        tracks: the event loop reports to ``routed``, ``prefilled`` and ``completed``.
        fetches: prefixes may come from another cluster, see ``fetched``.
    """

    tracks = False
    fetches = False

    def __init__(self, fleet: Fleet, workload: Workload, settings: RouterSettings) -> None:
        self.fleet = fleet
        self.workload = workload
        self.settings = settings
        self.membership_changed()

    @abstractmethod
    def choose(self, request: int, now: float) -> int:
        """Index of a cluster that is up; at least one is."""

    def estimate_s(self, request: int, cluster: int) -> float:
        """Prefill seconds that the router expects; 0 for routers that do not look."""
        return 0.0

    def fetched(
        self, request: int, path: Sequence[int], hit_blocks: int, reused_len: int
    ) -> tuple[int, int, float]:
        """What a request finds that could reuse that much where it is about to be served.

        Returns:
            matched blocks, tokens that come from another cluster, and seconds of their transfer.
        """
        return hit_blocks, 0, 0.0

    def membership_changed(self) -> None:  # noqa: B027
        """A cluster failed or came back."""

    def failed(self, cluster: int) -> None:  # noqa: B027
        """A cluster lost its cache and its requests."""

    def routed(self, request: int, cluster: int) -> None:  # noqa: B027
        """A request was sent to a cluster."""

    def prefilled(self, request: int, cluster: int) -> None:  # noqa: B027
        """Its first token is there."""

    def completed(self, request: int, cluster: int) -> None:  # noqa: B027
        """It left the cluster."""
