"""The running requests of a cache manager: their pages, their progress, and whether all agrees."""

from __future__ import annotations

from collections.abc import Hashable

from k3core.errors import CacheError, require, shown
from k3core.prefix_cache.host_link import HostLink
from k3core.prefix_cache.publisher import Publisher
from k3core.prefix_cache.residency import Residency
from k3core.prefix_cache.running import Running


class RunningRequests:
    """What is known of the running requests; ``HybridCacheManager`` moves them along."""

    def __init__(self, residency: Residency, publisher: Publisher, host: HostLink | None) -> None:
        self.pool = residency.pool
        self.cache = residency.cache
        self._residency = residency
        self._publisher = publisher
        self._host = host
        self._running: dict[Hashable, Running] = {}

    @property
    def num_state_pages(self) -> int:
        """Private KDA pages of one request."""
        return self._publisher.num_state_pages

    @property
    def running(self) -> tuple[Hashable, ...]:
        """Names of the running requests."""
        return tuple(self._running)

    def pages(self, request_id: Hashable) -> tuple[int, ...]:
        """MLA pages of a request in token order."""
        return tuple(self._get(request_id).pages)

    def state_pages(self, request_id: Hashable) -> tuple[int, ...]:
        """Private KDA pages of a request."""
        return self._get(request_id).state_pages

    def stops(self, request_id: Hashable) -> tuple[int, ...]:
        """Boundaries at which the rule wants a checkpoint of this request."""
        return self._get(request_id).stops

    def num_computed(self, request_id: Hashable) -> int:
        """Tokens written and verified."""
        return self._get(request_id).num_computed

    @property
    def num_skipped_checkpoints(self) -> int:
        """Boundaries whose states found no page."""
        return self._publisher.num_skipped_checkpoints

    @property
    def num_recycled_checkpoints(self) -> int:
        """Boundaries given up for a later one of the same request, or for the cap on a path."""
        return self._publisher.num_recycled_checkpoints

    @property
    def residency(self) -> Residency:
        """Which entries lie in which pages; its ``drop_block`` and ``drop_boundary`` evict."""
        return self._residency

    def check(self) -> None:
        """Verify pool, cache and host tier, that they name each other's entries, and that every
        reference belongs to a running request.

        Raises:
            K3Error: what disagrees.
        """
        self.pool.check()
        self.cache.check()
        self._residency.check()
        counts = [0] * self.pool.num_pages
        for one in self._running.values():
            for page in (*one.pages, *one.state_pages):
                counts[page] += 1
        for page, count in enumerate(counts):
            actual = self.pool.page_info(page).num_references
            require(
                actual == count,
                f"page {page} has {actual} references, running requests hold {count}",
                CacheError,
            )
        if self._host is not None:
            self._host.tier.check()

    def _get(self, request_id: Hashable) -> Running:
        require(self._runs(request_id), f"request {shown(request_id)} is not running", CacheError)
        return self._running[request_id]

    def _require_new(self, request_id: Hashable) -> None:
        require(not self._runs(request_id), f"request {shown(request_id)} is running", CacheError)

    def _runs(self, request_id: Hashable) -> bool:
        try:
            return request_id in self._running
        except TypeError:
            raise CacheError(f"request_id={shown(request_id)} must be hashable") from None
