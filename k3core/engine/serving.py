"""A small serving engine: prefill in blocks, prefix reuse, speculative decoding, all in pages.

One request at a time goes through::

    open    lookup -> pin the hit -> copy the checkpoint into private states -> register
    step    prefill one chunk: write bytes -> mark_ready -> persist a checkpoint per KDA group
            or verify one decode window: run T tokens -> accept -> replay and cut
    close   pages go back; what was published stays readable until the pool needs the pages

Chunks end on hash boundaries, so a state that is checkpointed stands after exactly that many
tokens (vLLM #34587 shows what happens otherwise). A published page is never written again. Only
blocks of the prompt are published, not those that decoding fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from k3core.engine.drafters import Drafter
from k3core.engine.memory import CachedBlock, Checkpoint, PagedMemory
from k3core.engine.request import (
    PREFILL,
    VERIFY,
    PoolUse,
    Request,
    RequestResult,
    Step,
    next_chunk_end,
)
from k3core.errors import PoolExhausted, require, require_count
from k3core.model import HybridModel
from k3core.paged_cache import PageKind, PagePool
from k3core.prefix_cache import PrefixCache, PromptHashes, Registration


class Engine:
    """Serves requests on one model, one page pool and one prefix cache.

    Args:
        model: the stack.
        num_pages: pages of the pool; each holds ``block_tokens`` rows of one MLA layer.
        block_tokens: tokens per hash block and MLA page.
        chunk_tokens: most prompt tokens per prefill step.
        draft_len: most drafts per verify step.
        use_cache: look up and publish prefixes.
        poison: overwrite released pages with NaN (for tests).

    Raises:
        K3Error: a size is not positive, or ``draft_len`` is negative.
    """

    def __init__(
        self,
        model: HybridModel,
        num_pages: int = 64,
        *,
        block_tokens: int = 512,
        chunk_tokens: int = 512,
        draft_len: int = 0,
        use_cache: bool = True,
        poison: bool = False,
    ) -> None:
        require_count("block_tokens", block_tokens, 1)
        require_count("chunk_tokens", chunk_tokens, 1)
        require_count("draft_len", draft_len)
        self.model = model
        self.block_tokens = block_tokens
        self.chunk_tokens = chunk_tokens
        self.draft_len = draft_len
        self.use_cache = use_cache
        config = model.config
        self.pool = PagePool(
            num_pages,
            block_tokens * config.mla_row_bytes,
            poison=poison,
            on_evict=self._forget,
        )
        self.cache = PrefixCache(block_tokens, len(config.kda_groups))
        self._published: dict[int, tuple[bytes, bool]] = {}  # page -> (hash, is a checkpoint)

    # life of a request: open -> step* -> close

    def generate(
        self, prompt: Sequence[int], num_new_tokens: int, drafter: Drafter | None = None
    ) -> RequestResult:
        """Serve one request to its end.

        Args:
            prompt: token ids.
            num_new_tokens: output tokens, greedy.
            drafter: proposes up to ``draft_len`` tokens per step; None decodes plainly.

        Raises:
            K3Error: bad tokens or a bad count.
            PoolExhausted: too few pages; those of the request are back in the pool.
        """
        request = self.open(prompt, num_new_tokens, drafter)
        try:
            while not request.done:
                self.step(request)
            return self.result(request)
        finally:
            self.close(request)

    def open(
        self, prompt: Sequence[int], num_new_tokens: int, drafter: Drafter | None = None
    ) -> Request:
        """Admit a request: find its prefix, take its states, announce its blocks."""
        began = perf_counter()
        self.model.check_tokens(prompt)
        require_count("num_new_tokens", num_new_tokens, 1)
        memory = PagedMemory(self.pool, self.model.config, self.block_tokens)
        request = Request(tuple(prompt), num_new_tokens, drafter, memory)
        if not self.use_cache:
            memory.start((), ())
        else:
            hashes = PromptHashes(request.prompt, self.block_tokens)
            hit = request.hit = self.cache.lookup(hashes)
            request.blocks = tuple(CachedBlock() for _ in hashes.block_hashes)
            request.num_computed = hit.matched_tokens
            memory.start(hit.block_payloads, hit.checkpoint_payloads)
            request.ticket = self.cache.register(hashes, request.blocks)
        request.open_seconds = perf_counter() - began
        return request

    def step(self, request: Request) -> Step:
        """Run the next chunk, or the next decode window once the prompt is done.

        On failure the request is closed before the error goes on.
        """
        require(not request.closed, "the request is closed")
        require(not request.done, f"the request already has its {request.num_new_tokens} tokens")
        try:
            prefilling = request.num_computed < len(request.prompt)
            step = self._prefill(request) if prefilling else self._verify(request)
        except BaseException:
            self.close(request)
            raise
        request.steps.append(step)
        return step

    def close(self, request: Request) -> None:
        """Give the request's pages back and forget what it announced but never wrote."""
        if request.closed:
            return
        request.closed = True
        if request.ticket is not None:
            self.cache.abort(request.ticket)
        request.memory.release()

    def result(self, request: Request) -> RequestResult:
        """The account of a request that is not closed yet."""
        memory = request.memory
        return RequestResult(
            prompt_len=len(request.prompt),
            hit=request.hit,
            tokens=tuple(request.tokens),
            logits=torch.stack(request.logits),
            steps=tuple(request.steps),
            open_seconds=request.open_seconds,
            num_mla_pages=memory.num_mla_pages,
            num_shared_mla_pages=memory.num_shared_mla_pages,
            num_state_pages=memory.num_state_pages,
            num_checkpoint_pages=request.num_checkpoint_pages,
            num_skipped_checkpoints=request.num_skipped_checkpoints,
        )

    # accounts

    def pool_use(self) -> PoolUse:
        """Pages by kind and place, now."""
        stats = self.pool.stats()
        mla, kda = PageKind.MLA_KV, PageKind.KDA_STATE
        return PoolUse(
            stats.owned[mla], stats.owned[kda], stats.cached[mla], stats.cached[kda], stats.num_free
        )

    def check(self) -> None:
        """Verify the accounts of pool and cache and that they name each other's entries.

        Raises:
            K3Error: what disagrees.
        """
        self.pool.check()
        self.cache.check()
        for page, (block_hash, is_checkpoint) in self._published.items():
            info = self.pool.page_info(page)
            kind = PageKind.KDA_STATE if is_checkpoint else PageKind.MLA_KV
            require(
                info.published and info.kind is kind,
                f"page {page} is {info}, the prefix cache holds it as {kind.name}",
            )
            known = (
                bool(self.cache.checkpoint_groups(block_hash))
                if is_checkpoint
                else self.cache.block_state(block_hash) == "ready"
            )
            require(known, f"page {page} is published for {block_hash.hex()[:12]}, not cached")

    # inner steps

    def _prefill(self, request: Request) -> Step:
        began = perf_counter()
        start = request.num_computed
        prompt_len = len(request.prompt)
        end = next_chunk_end(start, prompt_len, self.chunk_tokens, self.block_tokens)
        logits = self.model.prefill(request.prompt[start:end], request.memory)
        request.num_computed = end
        self._publish(request)
        emitted: tuple[int, ...] = ()
        if end == prompt_len:
            emitted = (int(logits.argmax()),)
            request.tokens.extend(emitted)
            request.logits.append(logits)
        return self._account(PREFILL, start, end - start, end - start, (), emitted, began)

    def _verify(self, request: Request) -> Step:
        began = perf_counter()
        start = request.num_computed
        room = min(self.draft_len, request.num_new_tokens - len(request.tokens) - 1)
        drafts: tuple[int, ...] = ()
        if request.drafter is not None and room > 0:
            drafts = request.drafter.propose((*request.prompt, *request.tokens), room)[:room]
        window = self.model.verify((request.tokens[-1], *drafts), request.memory)
        best = window.logits.argmax(dim=-1).tolist()
        num_kept = 0
        while num_kept < len(drafts) and drafts[num_kept] == best[num_kept]:
            num_kept += 1
        num_accepted = 1 + num_kept
        self.model.commit(window, num_accepted, request.memory)
        request.num_computed += num_accepted
        emitted = tuple(best[:num_accepted])
        request.tokens.extend(emitted)
        request.logits.extend(window.logits[:num_accepted])
        return self._account(VERIFY, start, len(window), num_accepted, drafts, emitted, began)

    def _account(
        self,
        kind: str,
        start: int,
        num_tokens: int,
        num_committed: int,
        drafts: tuple[int, ...],
        new_tokens: tuple[int, ...],
        began: float,
    ) -> Step:
        model = self.model
        return Step(
            kind=kind,
            start=start,
            num_tokens=num_tokens,
            num_committed=num_committed,
            drafts=drafts,
            new_tokens=new_tokens,
            flops=model.flops(num_tokens, start),
            bytes_moved=model.bytes_moved(num_tokens, start),
            seconds=perf_counter() - began,
            pool=self.pool_use(),
        )

    def _publish(self, request: Request) -> None:
        """Make what the last chunk completed visible: blocks first, then checkpoints.

        The copy of the states comes before both: it allocates, and an allocation may evict.
        """
        end = request.num_computed
        if request.ticket is None or end < self.block_tokens:
            return
        checkpoints = self._copy_states(request)
        try:
            ticket = self._announced(request, request.ticket)
            block_of = dict(zip(ticket.block_hashes, request.blocks, strict=True))
            for index, block in enumerate(request.blocks[: end // self.block_tokens]):
                block.pages = request.memory.block_pages(index)
            for block_hash in self.cache.mark_ready(ticket, end).block_hashes:
                self._keep(block_of[block_hash].pages, block_hash, is_checkpoint=False)
            for group, checkpoint in enumerate(checkpoints):
                if self.cache.persist_checkpoint(ticket, end, group, checkpoint):
                    block_hash = ticket.block_hashes[end // self.block_tokens - 1]
                    self._keep(checkpoint.pages, block_hash, is_checkpoint=True)
                    request.num_checkpoint_pages += len(checkpoint.pages)
        finally:
            for checkpoint in checkpoints:
                checkpoint.unpin()

    def _copy_states(self, request: Request) -> list[Checkpoint]:
        """The states at a boundary that lacks a checkpoint, one per KDA group; none when the
        pool has no pages for them: the request goes on without leaving one."""
        num_blocks, beyond = divmod(request.num_computed, self.block_tokens)
        if beyond or request.ticket is None:
            return []
        groups = self.model.config.kda_groups
        there = self.cache.checkpoint_groups(request.ticket.block_hashes[num_blocks - 1])
        if len(there) == len(groups):
            return []
        try:
            return request.memory.checkpoints(groups)
        except PoolExhausted:
            request.num_skipped_checkpoints += 1
            return []

    def _announced(self, request: Request, ticket: Registration) -> Registration:
        """The ticket, renewed when a block that others had published, and that this request
        computed for itself, was evicted since it was announced."""
        written = ticket.block_hashes[: request.num_computed // self.block_tokens]
        if any(self.cache.block_state(block_hash) == "absent" for block_hash in written):
            self.cache.abort(ticket)
            ticket = request.ticket = self.cache.register(ticket, request.blocks)
        return ticket

    def _keep(self, pages: tuple[int, ...], block_hash: bytes, *, is_checkpoint: bool) -> None:
        """Keep pages readable after their last reference, until the pool reuses them."""
        self.pool.publish(pages)
        self._published.update((page, (block_hash, is_checkpoint)) for page in pages)

    def _forget(self, pages: tuple[int, ...]) -> None:
        """The pool reused ``pages``: drop their cache entries and free what belonged to them.

        A checkpoint goes with those of its sibling groups (K3 report 5.4.1), a block with its
        pages in the other MLA layers.
        """
        for page in pages:
            if page not in self._published:
                continue  # already gone with a sibling
            block_hash, is_checkpoint = self._published[page]
            if is_checkpoint:
                dropped = [
                    page
                    for group in self.cache.checkpoint_groups(block_hash)
                    for page in self.cache.evict_checkpoint(block_hash, group).pages
                ]
            else:
                dropped = list(self.cache.evict_block(block_hash).pages)
            for sibling in dropped:
                del self._published[sibling]
            self.pool.unpublish([p for p in dropped if self.pool.page_info(p).published])
