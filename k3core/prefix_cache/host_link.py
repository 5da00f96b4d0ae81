"""Between the pages of a manager and host memory: both halves of a prefix, or nothing."""

from __future__ import annotations

import numpy as np

from k3core.paged_cache.stats import PageKind
from k3core.prefix_cache.block_hash import PromptHashes
from k3core.prefix_cache.hit import PrefixHit
from k3core.prefix_cache.host_tier import HostTier
from k3core.prefix_cache.residency import CachedState, CachedUnit, Residency
from k3core.prefix_cache.running import Running


class HostLink:
    """Stores checkpoints with their blocks when they are made; brings them back on a miss.

    A write-through: by the time an allocation evicts a page its bytes are already somebody
    else's.
    """

    def __init__(
        self,
        tier: HostTier,
        residency: Residency,
        physical_block_tokens: int,
        pages_per_state: int,
    ) -> None:
        self.tier = tier
        self._residency = residency
        self._step = physical_block_tokens // residency.cache.hash_block_tokens
        self._pages_per_state = pages_per_state

    def store(self, one: Running, boundary: int) -> None:
        """Copy a boundary of a running request to the host."""
        pool, block = self._residency.pool, self._residency.cache.hash_block_tokens
        states = one.touched[boundary]
        whole = len(states) == self.tier.num_kda_groups
        if not whole or not all(map(self._residency.has_state, states)):
            return

        def read_block(index: int) -> bytes | None:
            if not pool.has_bytes:
                return None
            page, start = self._place(index)
            view = pool.page_bytes_view(one.pages[page], PageKind.MLA_KV)
            return bytes(view[start : start + self.tier.block_bytes])

        def read_state(group: int) -> bytes | None:
            if not pool.has_bytes:
                return None
            pages = states[group].pages
            return b"".join(bytes(pool.page_bytes_view(page)) for page in pages)

        self.tier.store(one.prompt.block_hashes[: boundary // block], read_block, read_state)

    def restore(self, prompt: PromptHashes, hit: PrefixHit) -> int:
        """Bring back the deepest boundary that the pool lacks; none when it does not fit.

        Returns:
            Tokens that the pool gained.
        """
        pool, cache = self._residency.pool, self._residency.cache
        block, step = cache.hash_block_tokens, self._step
        most = max(hit.cap_tokens // block - hit.dropped_blocks, 0)
        depth = self.tier.deepest(hit.block_hashes, most)
        if depth * block <= hit.matched_tokens:
            return 0
        path = hit.block_hashes[:depth]
        absent = [i for i, one in enumerate(path) if cache.block_state(one) != "ready"]
        new_blocks = sorted({index // step for index in absent})
        present = [cache.block_payload(one) for one in path]
        pinned = sorted({unit.page for unit in present if unit is not None})
        unheld = sum(not pool.page_info(page).num_references for page in pinned)
        num_states = cache.num_kda_groups * self._pages_per_state
        if len(new_blocks) + num_states + unheld > pool.num_available:
            return 0
        blocks, states = self.tier.load(path[-1])
        pool.retain(pinned)
        mla = pool.alloc(PageKind.MLA_KV, len(new_blocks)) if new_blocks else ()
        kda = pool.alloc(PageKind.KDA_STATE, num_states) if num_states else ()
        page_of = dict(zip(new_blocks, mla, strict=True))
        for index in range(depth):
            if index // step in page_of:
                _, start = self._place(index)
                self._write(page_of[index // step], start, blocks[index])
        units = [CachedUnit(one) for one in path]
        tail = PromptHashes.from_hashes(path, depth * block, block)
        ticket = cache.register(tail, units)
        published = set(cache.mark_ready(ticket).block_hashes)
        for index, one in enumerate(path):
            if one in published:
                self._residency.keep_unit(units[index], page_of[index // step])
        each = self._pages_per_state
        for group in range(cache.num_kda_groups):
            pages = kda[group * each : (group + 1) * each]
            data = states[group]
            for part, page in enumerate(pages):
                size = pool.page_bytes
                self._write(page, 0, None if data is None else data[part * size :][:size])
            state = CachedState(path[-1], group, pages)
            if cache.persist_checkpoint(ticket, depth * block, group, state):
                self._residency.keep_state(state)
        pool.free([*reversed(mla), *kda, *reversed(pinned)])
        return depth * block - hit.matched_tokens

    def _place(self, index: int) -> tuple[int, int]:
        """Physical block of a hash block, and its first byte in the page."""
        page, inside = divmod(index, self._step)
        return page, inside * self.tier.block_bytes

    def _write(self, page: int, start: int, data: bytes | None) -> None:
        if data is not None:
            view = self._residency.pool.page_bytes_view(page)
            view[start : start + len(data)] = np.frombuffer(data, np.uint8)
