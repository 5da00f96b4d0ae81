"""What a running request leaves for others: blocks as they fill, states at boundaries."""

from __future__ import annotations

from k3core.errors import PoolExhausted
from k3core.paged_cache.stats import PageKind
from k3core.prefix_cache.entries import Registration
from k3core.prefix_cache.host_link import HostLink
from k3core.prefix_cache.residency import CachedState, Residency
from k3core.prefix_cache.retention import Retention, surplus_boundaries
from k3core.prefix_cache.running import Running


class Publisher:
    """Publishes after the bytes are written, never before.

    Attributes:
        num_skipped_checkpoints: boundaries whose states found no page.
        num_recycled_checkpoints: boundaries given up for a later one of the same request, or for
            the cap on its path.
    """

    def __init__(
        self,
        residency: Residency,
        retention: Retention,
        physical_block_tokens: int,
        pages_per_state: int,
    ) -> None:
        self.residency = residency
        self.pool = residency.pool
        self.cache = residency.cache
        self.retention = retention
        self.physical_block_tokens = physical_block_tokens
        self.pages_per_state = pages_per_state
        self.num_skipped_checkpoints = 0
        self.num_recycled_checkpoints = 0
        self.host: HostLink | None = None

    @property
    def num_state_pages(self) -> int:
        """Pages of the states of all groups."""
        return self.cache.num_kda_groups * self.pages_per_state

    def announce(self, one: Running) -> Registration:
        """Register every full block; a block that is visible stays."""
        if one.ticket is not None:
            self.cache.abort(one.ticket)
        one.ticket = self.cache.register(one.prompt, one.units)
        return one.ticket

    def publish(self, one: Running) -> None:
        """Make visible what the request has written and verified."""
        block = self.cache.hash_block_tokens
        whole = min(one.num_computed, one.prompt.num_tokens) // block
        if whole == one.num_published:
            return
        one.num_published = whole
        states = self._copy_states(one, whole) if whole * block == one.num_computed else ()
        self._publish_blocks(one, whole)
        if states:
            self._publish_states(one, whole, states)

    def _copy_states(self, one: Running, whole: int) -> tuple[CachedState, ...]:
        """New pages with the live states; none when a checkpoint stands there or no page is left.

        Comes before the publication: taking pages may evict.
        """
        block_hash = one.prompt.block_hashes[whole - 1]
        if (
            self.retention.rule == "none"
            or not self.num_state_pages
            or self.cache.has_checkpoint(block_hash)
        ):
            return ()
        try:
            pages = self.pool.alloc(PageKind.KDA_STATE, self.num_state_pages)
        except PoolExhausted:
            one.num_skipped_checkpoints += 1
            self.num_skipped_checkpoints += 1
            return ()
        for source, target in zip(one.state_pages, pages, strict=True):
            self.pool.copy_page(source, target)
        each = self.pages_per_state
        return tuple(
            CachedState(block_hash, group, pages[group * each : (group + 1) * each])
            for group in range(self.cache.num_kda_groups)
        )

    def _publish_blocks(self, one: Running, whole: int) -> None:
        hashes, units = one.prompt.block_hashes, one.units
        ticket = one.ticket
        if ticket is None:
            return
        if any(
            self.cache.block_state(one_hash) != "ready" and not self.cache.holds(ticket, one_hash)
            for one_hash in hashes[:whole]
        ):
            # A block that others had published, and that this request wrote too, was evicted.
            ticket = self.announce(one)
        position = {block_hash: index for index, block_hash in enumerate(hashes[:whole])}
        published = self.cache.mark_ready(ticket, whole * self.cache.hash_block_tokens)
        step = self.physical_block_tokens // self.cache.hash_block_tokens
        for block_hash in published.block_hashes:
            index = position[block_hash]
            page = one.pages[index // step]
            self.residency.keep_unit(units[index], page)
            # Units of this request in an older copy of the page move to this fuller one.
            for before in range(index // step * step, index):
                if self.cache.block_payload(hashes[before]) is units[before]:
                    self.residency.keep_unit(units[before], page)

    def _publish_states(self, one: Running, whole: int, states: tuple[CachedState, ...]) -> None:
        boundary = whole * self.cache.hash_block_tokens
        ticket = one.ticket
        kept = []
        try:
            for state in states:
                if ticket is not None and self.cache.persist_checkpoint(
                    ticket, boundary, state.group, state
                ):
                    self.residency.keep_state(state)
                    kept.append(state)
        finally:
            self.pool.free([page for state in states for page in state.pages])
        if not kept:
            return
        one.touched[boundary] = tuple(kept)
        self._recycle(one, boundary)
        if self.host is not None and not one.intermediate:
            self.host.store(one, boundary)

    def _recycle(self, one: Running, boundary: int) -> None:
        """Give up the request's last checkpoint if the rule does not keep it, then the surplus."""
        hashes = one.prompt.block_hashes
        old = one.intermediate
        if old and self._droppable(one, old):
            self.residency.drop_boundary(hashes[old // self.cache.hash_block_tokens - 1])
            del one.touched[old]
            self.num_recycled_checkpoints += 1
        one.intermediate = 0 if self.retention.keeps(boundary, one.stops) else boundary
        if self.retention.max_per_path is None:
            return
        block = self.cache.hash_block_tokens
        path = hashes[: boundary // block]
        there = [(i + 1) * block for i, one_hash in enumerate(path) if self._stands(one_hash)]
        forks = [at for at in there if self.cache.is_fork(path[at // block - 1])]
        for at in surplus_boundaries(there, self.retention.max_per_path, {one.junction, *forks}):
            self.residency.drop_boundary(path[at // block - 1])
            one.touched.pop(at, None)
            self.num_recycled_checkpoints += 1

    def _stands(self, block_hash: bytes) -> bool:
        return self.num_state_pages > 0 and self.cache.has_checkpoint(block_hash)

    def _droppable(self, one: Running, boundary: int) -> bool:
        """Whether the checkpoint is still this request's own."""
        states = one.touched.get(boundary, ())
        return bool(states) and all(map(self.residency.has_state, states))
