"""Routers that know what the clusters have cached: our two, and the published formulas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k3core.fleet.router_base import Fleet, Router, RouterSettings
from k3core.fleet.segments import SegmentCache
from k3core.fleet.workload import Workload


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

    def fetched(
        self, request: int, path: Sequence[int], hit_blocks: int, reused_len: int
    ) -> tuple[int, int, float]:
        best = self.fleet.best_reuse(path, int(self.workload.input_len[request]))
        if not self.fetch(best, (hit_blocks, reused_len)):
            return hit_blocks, 0, 0.0
        fetched_len = best[1] - reused_len
        return best[0], fetched_len, fetched_len * self.settings.transfer_s_per_token

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
