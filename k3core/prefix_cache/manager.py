"""Pages and prefixes of running requests: one pool, one cache, all rules of an admission.

    admit      look up, pin the hits of all kinds, take all pages or none, copy the states
    grow       pages for the next tokens; what others can read is copied before it is written
    computed   tokens were really written: publish their blocks, keep a checkpoint, recycle the last
    extend     generated tokens become part of the prefix
    fork       a second request on the same tokens
    release    pages go back, the deepest first; what was published stays until it is needed

Everything that an engine's worker needs to know comes back as page numbers and copies. Not
imported by ``k3core.prefix_cache`` itself: the pool brings torch, the cache does not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from k3core.errors import CacheError, require, require_count, require_type, shown
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.prefix_cache.block_hash import PromptHashes
from k3core.prefix_cache.cache import PrefixCache
from k3core.prefix_cache.chunks import next_chunk_end
from k3core.prefix_cache.granularity import require_multiple
from k3core.prefix_cache.hit import PrefixHit
from k3core.prefix_cache.host_link import HostLink
from k3core.prefix_cache.host_tier import HostTier
from k3core.prefix_cache.page_need import PageNeed
from k3core.prefix_cache.publisher import Publisher
from k3core.prefix_cache.requests import RunningRequests
from k3core.prefix_cache.residency import CachedUnit, Residency
from k3core.prefix_cache.retention import Retention
from k3core.prefix_cache.running import Admission, Growth, PageCopy, Running
from k3core.prefix_cache.window import DEVICE, HOST, HitWindow


class HybridCacheManager(RunningRequests):
    """Requests of a hybrid model on one page pool.

    Args:
        pool: pages of one physical block of MLA rows, or of a KDA group's state.
        hash_block_tokens: tokens per hash block, the match unit.
        physical_block_tokens: tokens per page, a multiple of it; None is one hash block.
        num_kda_groups: groups that must be restored together.
        pages_per_state: pages of one group's state.
        retention: where checkpoints are kept.
        dropped_blocks: matched blocks that a drafter gives up.
        enable_caching: look up and publish at all.
        cascade: an evicted block takes everything behind it along.
        record_events: keep events for ``take_events``.
        host: second tier; restores both halves of a prefix or nothing.
        window_requests: requests in the hit statistics.
        copy: copies a page; ``pool.copy_page`` by default. When it fails, the request runs cold.

    Raises:
        CacheError: the hash block does not divide the physical block; names one that both share.
        K3Error: a size is not a count.
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        hash_block_tokens: int = 512,
        physical_block_tokens: int | None = None,
        num_kda_groups: int = 1,
        pages_per_state: int = 1,
        retention: Retention | None = None,
        dropped_blocks: int = 0,
        enable_caching: bool = True,
        cascade: bool = False,
        record_events: bool = False,
        host: HostTier | None = None,
        window_requests: int = 1000,
        copy: Callable[[int, int], None] | None = None,
    ) -> None:
        require_type("pool", pool, PagePool)
        require(pool.on_evict is None, "the pool already reports its evictions to another owner")
        block = hash_block_tokens if physical_block_tokens is None else physical_block_tokens
        require_multiple(block, hash_block_tokens)
        require_count("pages_per_state", pages_per_state, 1)
        require_type("enable_caching", enable_caching, bool)
        require_type("cascade", cascade, bool)
        require(copy is None or callable(copy), f"copy={shown(copy)} must be callable or None")
        self.retention = Retention() if retention is None else retention
        require_type("retention", self.retention, Retention)
        self.hash_block_tokens, self.physical_block_tokens = hash_block_tokens, block
        self.pages_per_state = pages_per_state
        self.enable_caching = enable_caching
        self.window = HitWindow(window_requests)
        self.copy = copy or pool.copy_page
        self.num_failed_copies = 0
        self.num_cold_fallbacks = 0
        cache = PrefixCache(
            hash_block_tokens,
            num_kda_groups,
            dropped_blocks=dropped_blocks,
            record_events=record_events,
        )
        residency = Residency(pool, cache, cascade=cascade)
        publisher = Publisher(residency, self.retention, block, pages_per_state)
        if host is not None:
            require_type("host", host, HostTier)
            publisher.host = HostLink(host, residency, block, pages_per_state)
        super().__init__(residency, publisher, publisher.host)
        pool.on_evict = residency.reused

    # life of a request: admit -> (grow -> computed | extend | fork)* -> release

    def prompt(self, tokens: Any, **keys: Any) -> PromptHashes:
        """Hashes of a prompt; ``root`` (salt, adapter) and ``media`` as in ``PromptHashes``."""
        if isinstance(tokens, PromptHashes):
            return tokens
        return PromptHashes(tokens, self.hash_block_tokens, **keys)

    def lookup(self, tokens: Any) -> PrefixHit:
        """What an admission would reuse from the pool now. Changes nothing."""
        return self.cache.lookup(self.prompt(tokens))

    def admit(
        self,
        request_id: Hashable,
        tokens: Any,
        num_tokens: int | None = None,
        *,
        read_cache: bool = True,
    ) -> Admission | None:
        """Take a request in: all pages that it needs now, or none.

        The pages of its hit that nobody holds leave the list of available pages when they are
        pinned, so they count as well. When the hit and its copies do not fit but a cold request
        does, it runs cold rather than never.

        Args:
            request_id: any name that no running request has; it says nothing about the content.
            tokens: the prompt.
            num_tokens: tokens to take pages for now; None is the prompt.
            read_cache: False computes everything (prompt log-probs) and leaves the statistics
                alone; blocks are still published.

        Returns:
            None when there are too few pages; nothing is changed then (a prefix that came back
            from the host stays cached).

        Raises:
            CacheError: the name is taken, or ``num_tokens`` is not positive.
        """
        self._require_new(request_id)
        require_type("read_cache", read_cache, bool)
        prompt = self.prompt(tokens)
        wanted = prompt.num_tokens if num_tokens is None else num_tokens
        require_count("num_tokens", wanted, 1, error=CacheError)
        hit = self.cache.lookup(prompt)
        reading = read_cache and self.enable_caching
        restored = 0
        if reading and self._host is not None:
            restored = self._host.restore(prompt, hit)
            hit = self.cache.lookup(prompt) if restored else hit
        admission = None
        if reading and hit.hit:
            admission = self._start(request_id, prompt, hit, wanted, warm=True)
        if admission is None:
            admission = self._start(request_id, prompt, hit, wanted, warm=False)
            self.num_cold_fallbacks += admission is not None and reading and hit.hit
        if admission is not None and reading:
            from_host = min(restored, admission.reused_tokens)
            by_source = {DEVICE: admission.reused_tokens - from_host, HOST: from_host}
            self.window.record(prompt.num_tokens, by_source)
            if from_host:
                admission = replace(admission, source=HOST)
        return admission

    def next_chunk_end(
        self, request_id: Hashable, budget: int, max_budget: int | None = None
    ) -> int:
        """Where the next chunk of the request's prefill ends, see ``chunks.next_chunk_end``."""
        one = self._get(request_id)
        return next_chunk_end(
            one.num_computed,
            one.prompt.num_tokens,
            budget,
            self.physical_block_tokens,
            one.stops,
            max_budget,
        )

    def grow(self, request_id: Hashable, num_tokens: int) -> Growth | None:
        """Pages so that the request can write up to ``num_tokens`` tokens in all.

        Pages that it is about to write and that others can read (a fork, a published block that
        it continues) are replaced by private copies.

        Returns:
            None when there are too few pages; nothing is changed then.
        """
        one = self._get(request_id)
        require_count("num_tokens", num_tokens)
        block = self.physical_block_tokens
        first = one.num_computed // block
        total = max(-(-num_tokens // block), first)
        used = range(first, min(len(one.pages), total))
        shared = [index for index in used if not self.pool.is_writable(one.pages[index])]
        num_new = max(total - len(one.pages), 0)
        if not shared and not num_new:
            return Growth()
        if len(shared) + num_new > self.pool.num_available:
            return None
        taken = self.pool.alloc(PageKind.MLA_KV, len(shared) + num_new)
        copies = []
        for index, target in zip(shared, taken, strict=False):
            source, one.pages[index] = one.pages[index], target
            if index * block < one.num_computed:
                copies.append(PageCopy(source, target))
                self.pool.copy_page(source, target)
            self.pool.free(source)
        one.pages.extend(taken[len(shared) :])
        return Growth(taken, tuple(copies))

    def computed(self, request_id: Hashable, num_tokens: int) -> None:
        """The request's first ``num_tokens`` tokens are written and verified: publish.

        Blocks that are complete become visible. When the position is a boundary, the live states
        are exactly those of the boundary and a copy of them is kept as a checkpoint; a step that
        passes over a boundary leaves none there. A checkpoint that finds no pages is skipped and
        counted. One that the rule does not keep is recycled by the next one of its request.

        Raises:
            CacheError: tokens without pages, or fewer than before.
        """
        one = self._get(request_id)
        require_count("num_tokens", num_tokens, error=CacheError)
        room = len(one.pages) * self.physical_block_tokens
        require(
            one.num_computed <= num_tokens <= room,
            f"num_tokens={num_tokens} is outside of {one.num_computed}..{room}",
            CacheError,
        )
        one.num_computed = num_tokens
        if self.enable_caching:
            self._publisher.publish(one)

    def extend(self, request_id: Hashable, tokens: Any) -> None:
        """Add generated tokens; they are not computed yet."""
        one = self._get(request_id)
        before = len(one.prompt.block_hashes)
        one.prompt.append(tokens)
        hashes = one.prompt.block_hashes
        if len(hashes) > before:
            one.units += [CachedUnit(block_hash) for block_hash in hashes[before:]]
            self._announce(one)

    def fork(self, request_id: Hashable, new_id: Hashable) -> tuple[PageCopy, ...] | None:
        """A second request at the same position: MLA pages are shared, states are copied.

        Returns:
            The copies, or None when there are no pages for the states; nothing is changed then.
        """
        one = self._get(request_id)
        self._require_new(new_id)
        need = self.num_state_pages
        if need > self.pool.num_available:
            return None
        states = self.pool.alloc(PageKind.KDA_STATE, need) if need else ()
        pages = one.pages[: -(-one.num_computed // self.physical_block_tokens)]
        self.pool.retain(pages)
        copies = tuple(map(PageCopy, one.state_pages, states))
        for source, target in copies:
            self.pool.copy_page(source, target)
        prompt = one.prompt.copy()
        self._running[new_id] = fork = Running(
            prompt,
            pages,
            states,
            [CachedUnit(block_hash) for block_hash in prompt.block_hashes],
            None,
            one.stops,
            one.junction,
            one.num_computed,
            one.num_published,
        )
        self._announce(fork)
        return copies

    def release(self, request_id: Hashable) -> PromptHashes:
        """End a request in any state: finished, aborted or preempted.

        What it announced and never wrote is forgotten. Its pages go back with the deepest first,
        its checkpoints beside the blocks of their positions; the last one is a turn's end and
        stays even if the rule did not ask for it.

        Returns:
            The prompt with its generated tokens; admitted again, it resumes from its own pages.
        """
        one = self._get(request_id)
        if one.ticket is not None:
            self.cache.abort(one.ticket)
        if self._host is not None and one.intermediate in one.touched:
            self._host.store(one, one.intermediate)
        held: list[tuple[int, int, tuple[int, ...]]] = [
            (min((index + 1) * self.physical_block_tokens, max(one.num_computed, 1)), 0, (page,))
            for index, page in enumerate(one.pages)
        ]
        for boundary, states in one.touched.items():
            alive = [state for state in states if self._residency.has_state(state)]
            pages = tuple(page for state in alive for page in state.pages)
            self.pool.retain(pages)
            held.append((boundary, 1, pages))
        held.sort(reverse=True)
        self.pool.free([*one.state_pages, *(page for _, _, pages in held for page in pages)])
        del self._running[request_id]
        return one.prompt

    def reset(self) -> bool:
        """Forget all prefixes, as new weights demand; refused while a request is running."""
        if self._running or not self._residency.clear():
            return False
        if self._host is not None:
            self._host.tier.clear()
        self.window.clear()
        return True

    # inner steps

    def _start(
        self, request_id: Hashable, prompt: PromptHashes, hit: PrefixHit, wanted: int, warm: bool
    ) -> Admission | None:
        """Pin, take and copy; None when the pages do not fit or a copy failed."""
        need = PageNeed.of(
            hit if warm else None, wanted, self.physical_block_tokens, self.num_state_pages
        )
        if not need.fits(self.pool):
            return None
        taken = need.take(self.pool, self.copy)
        if taken is None:
            self.num_failed_copies += 1
            return None
        hashes = prompt.block_hashes
        self._running[request_id] = one = Running(
            prompt,
            [*need.shared[: len(need.shared) - len(need.copied)], *taken.mla],
            taken.states,
            [CachedUnit(block_hash) for block_hash in hashes],
            None,
            self.retention.stop_boundaries(
                prompt.num_tokens,
                self.hash_block_tokens,
                hit.junction_tokens,
                self.cache.dropped_blocks,
            ),
            hit.junction_tokens,
            need.reused,
            need.reused // self.hash_block_tokens,
        )
        if warm:
            one.touched[need.reused] = hit.checkpoint_payloads
        self._announce(one)
        return Admission(
            hit, need.reused, DEVICE if warm else None, taken.mla, taken.states, taken.copies
        )

    def _announce(self, one: Running) -> None:
        if self.enable_caching:
            self._publisher.announce(one)
