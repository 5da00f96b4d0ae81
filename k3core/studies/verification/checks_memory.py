"""Checks of the page pool (page 3) and of the prefix cache (page 4)."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable

import numpy as np
import torch

from k3core.errors import K3Error
from k3core.kda import KDAState
from k3core.paged_cache import PagedCache, PageKind, PagePool, pack_heads, unpack_heads
from k3core.prefix_cache import PrefixCache, chained_hash
from k3core.studies.verification.check import (
    ACCOUNTING,
    ORACLE,
    SELF,
    Case,
    Reading,
    check,
    counted,
    difference,
)
from k3core.studies.verification.inputs import CONV_WIDTH, committed_state, conv_rows

POOL, PREFIX = "paged_cache", "prefix_cache"
ROW_BYTES = 1152
BLOCK = 4


# Pages


@check(POOL, ACCOUNTING)
def test_append_mla_increments_pages_across_boundary(case: Case) -> Reading:
    """600 tokens fill one page of 512 and 88 rows of a second one; the rows come back."""
    cache = PagedCache(PagePool(4))
    rng = np.random.default_rng(case.seed)
    rows = torch.from_numpy(rng.integers(256, size=(600, ROW_BYTES), dtype=np.uint8))
    cache.append_mla(500, rows[:500])
    cache.append_mla(100, rows[500:])
    reading = counted(len(cache.mla_pages), 2)
    wrong = (cache.mla_pages[-1].filled != 88) + (not torch.equal(cache.read_mla(), rows))
    return reading._replace(deviation=reading.deviation + wrong)


@check(POOL, SELF)
def test_pack_unpack_roundtrip(case: Case) -> float:
    state = committed_state(case.seed, case.torch_dtype)
    packed = pack_heads(state)
    batch, heads, dk, dv = state.shape
    second_head = packed.numpy().reshape(heads, batch, dk, dv)[1]
    return max(
        difference(unpack_heads(packed, state.shape), state),
        difference(second_head, state[:, 1]),
    )


@check(POOL, SELF)
def test_store_and_load_roundtrip(case: Case) -> float:
    """State and convolution window through pages smaller than the state, and back."""
    state = KDAState(
        committed_state(case.seed, case.torch_dtype),
        conv_rows(CONV_WIDTH - 1, case.seed, case.torch_dtype),
    )
    pool = PagePool(40, 4096, poison=True)
    cache = PagedCache(pool, 1, 1)
    needed = -(-sum(x.nbytes for x in state if x is not None) // pool.page_bytes)
    if len(cache.store_kda(0, state)) != needed:
        return math.inf
    loaded = cache.load_kda(0)
    return max(
        math.inf if kept is None else difference(back, kept)
        for back, kept in zip(loaded, state, strict=True)
    )


@check(POOL, ACCOUNTING)
def page_sets_stay_disjoint(case: Case) -> Reading:
    """100 random operations, failed ones too: free, owned and cached pages make up the pool."""
    rng = np.random.default_rng(case.seed)
    pool = PagePool(24, 64)
    held: list[int] = []
    right, num_moves = 0, 100
    for _ in range(num_moves):
        move = int(rng.integers(5))
        picked = held[: int(rng.integers(1, 5))]
        try:
            if move <= 1:
                held += pool.alloc(PageKind(int(rng.integers(2))), int(rng.integers(1, 9)))
            elif move == 2:
                pool.free(picked)
                held = held[len(picked) :]
            elif move == 3:
                pool.publish(picked)
            else:
                pool.free([*picked, int(rng.integers(30))])
                held = [page for page in held if pool.page_info(page).num_references]
        except K3Error:
            pass
        infos = [pool.page_info(page) for page in range(pool.num_pages)]
        owned = {page for page, info in enumerate(infos) if info.num_references}
        cached = {
            page for page, info in enumerate(infos) if info.published and not info.num_references
        }
        listed = pool.free_order()
        pool.check()
        right += (
            owned == set(held)
            and len(set(listed)) == len(listed) == pool.num_free + len(cached)
            and owned | set(listed) == set(range(pool.num_pages))
            and not owned & set(listed)
        )
    return counted(right, num_moves)


@check(POOL, ACCOUNTING)
def bad_page_calls_raise(case: Case) -> Reading:
    """Double free, foreign page, wrong kind, id out of range, too many pages: refused, no trace."""
    pool = PagePool(6, 64)
    kept = pool.alloc(PageKind.MLA_KV, 2)
    freed = pool.alloc(PageKind.KDA_STATE, 1)
    pool.free(freed)
    before = (pool.stats(), pool.free_order())
    calls: tuple[Callable[[], object], ...] = (
        lambda: pool.free(freed),
        lambda: pool.free([kept[0], kept[0]]),
        lambda: pool.free(5),
        lambda: pool.free(kept, PageKind.KDA_STATE),
        lambda: pool.free([kept[0], 99]),
        lambda: pool.alloc(PageKind.MLA_KV, 5),
    )
    refused = sum(_raises(call) and (pool.stats(), pool.free_order()) == before for call in calls)
    return counted(refused, len(calls))


@check(POOL, ACCOUNTING)
def retyped_page_leaks_no_bytes(case: Case) -> Reading:
    """Old bytes that a page still shows after it changed its kind."""
    pool = PagePool(1, 256)
    page = pool.alloc(PageKind.MLA_KV)[0]
    pool.page_bytes_view(page)[:] = 1 + case.seed % 255
    pool.free(page)
    again = pool.alloc(PageKind.KDA_STATE)[0]
    return counted(int(np.count_nonzero(pool.page_bytes_view(again))), 0)


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except K3Error:
        return True
    return False


# Prefixes


def _prompt(case: Case, num_tokens: int) -> list[int]:
    return np.random.default_rng(case.seed).integers(1000, size=num_tokens).tolist()


def _cached(tokens: list[int], boundaries: tuple[int, ...], num_groups: int = 2) -> PrefixCache:
    """A cache in which ``tokens`` are ready, with full checkpoints at ``boundaries``."""
    cache = PrefixCache(BLOCK, num_groups)
    ticket = cache.register(tokens)
    cache.mark_ready(ticket)
    for boundary in boundaries:
        for group in range(num_groups):
            cache.persist_checkpoint(ticket, boundary, group)
    return cache


@check(PREFIX, ACCOUNTING)
def test_register_then_lookup_at_same_prefix_hits(case: Case) -> Reading:
    """17 tokens, checkpoints at 8 and 16: the same prompt reuses 16."""
    tokens = _prompt(case, 17)
    return counted(_cached(tokens, (8, 16)).lookup(tokens).matched_tokens, 16)


@check(PREFIX, ACCOUNTING)
def test_two_stage_uses_longest_checkpoint_boundary(case: Case) -> Reading:
    """Blocks match up to 16, checkpoints stand at 4 and 8: the lookup walks back to 8."""
    tokens = _prompt(case, 17)
    hit = _cached(tokens, (4, 8)).lookup(tokens)
    reading = counted(hit.matched_tokens, 8)
    return reading._replace(deviation=reading.deviation + abs(hit.mla_tokens - 16))


@check(PREFIX, ACCOUNTING)
def test_lookup_without_checkpoint_misses(case: Case) -> Reading:
    """Blocks are all there, no state is: a miss, and the result says what was found."""
    tokens = _prompt(case, 17)
    hit = _cached(tokens, ()).lookup(tokens)
    reading = counted(hit.matched_tokens, 0)
    wrong = hit.hit or hit.checkpoint is not None or hit.mla_tokens != 16
    return reading._replace(deviation=reading.deviation + wrong)


@check(PREFIX, ACCOUNTING)
def test_checkpoint_atomic_across_groups(case: Case) -> Reading:
    """Three groups, one lacks its state at 16: the boundary is unusable for all, 8 is used."""
    tokens = _prompt(case, 17)
    cache = _cached(tokens, (8, 16), 3)
    cache.evict_checkpoint(cache.hashes(tokens)[3], 1)
    return counted(cache.lookup(tokens).matched_tokens, 8)


@check(PREFIX, ACCOUNTING)
def entry_invisible_until_ready(case: Case) -> Reading:
    """Tokens that a second prompt can reuse while the bytes of 8 of 16 are written."""
    tokens = _prompt(case, 17)
    cache = PrefixCache(BLOCK, 2)
    ticket = cache.register(tokens)
    for boundary in (8, 16):
        for group in range(2):
            cache.persist_checkpoint(ticket, boundary, group)
    early = cache.lookup(tokens).matched_tokens
    cache.mark_ready(ticket, 8)
    reading = counted(cache.lookup(tokens).matched_tokens, 8)
    return reading._replace(deviation=reading.deviation + early)


@check(PREFIX, ACCOUNTING)
def last_token_is_computed(case: Case) -> Reading:
    """16 tokens, all cached: at most 15 may be reused, so the boundary is 12."""
    tokens = _prompt(case, 16)
    return counted(_cached(tokens, (4, 8, 12, 16)).lookup(tokens).matched_tokens, 12)


@check(PREFIX, ACCOUNTING)
def published_checkpoint_never_changes(case: Case) -> Reading:
    """A second state for the same boundary is refused; readers go on with the first one."""
    tokens = _prompt(case, 9)
    cache = PrefixCache(BLOCK, 1)
    for payload in (1, 2):
        ticket = cache.register(tokens)
        cache.mark_ready(ticket)
        cache.persist_checkpoint(ticket, 8, 0, payload)
    return counted(cache.lookup(tokens).checkpoint_payloads[0], 1)


@check(PREFIX, ORACLE)
def hash_names_whole_prefix(case: Case) -> Reading:
    """Two prompts with an equal second block have two names, those of a plain sha256 chain."""
    rng = np.random.default_rng(case.seed)
    first, other, block = (rng.integers(1000, size=BLOCK).tolist() for _ in range(3))
    names = [chained_hash(chained_hash(b"", head), block) for head in (first, other)]
    plain = [_sha256_of(_sha256_of(b"", head), block) for head in (first, other)]
    return counted(sum(a == b for a, b in zip(names, plain, strict=True)) * len(set(names)), 4)


def _sha256_of(parent: bytes, tokens: list[int]) -> bytes:
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}q", *tokens)).digest()


@check(PREFIX, ORACLE)
def lookup_matches_brute_force(case: Case) -> Reading:
    """60 random prompts over two tokens against a search that compares the tokens themselves."""
    rng = np.random.default_rng(case.seed)
    cache = PrefixCache(BLOCK, 2)
    blocks: set[tuple[int, ...]] = set()
    states: set[tuple[tuple[int, ...], int]] = set()
    right = 0
    for _ in range(60):
        tokens = tuple(rng.integers(2, size=int(rng.integers(1, 22))).tolist())
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        matched = 0
        for end in ends:
            if tokens[:end] not in blocks:
                break
            matched = end
        usable = max(
            (
                end
                for end in ends
                if end <= min(matched, len(tokens) - 1)
                and all((tokens[:end], group) in states for group in range(2))
            ),
            default=0,
        )
        hit = cache.lookup(tokens)
        right += (hit.matched_tokens, hit.mla_tokens) == (usable, matched)
        ticket = cache.register(tokens)
        cache.mark_ready(ticket)
        blocks |= {tokens[:end] for end in ends}
        for end in ends:
            for group in range(2):
                if rng.random() < 0.6:
                    cache.persist_checkpoint(ticket, end, group)
                    states.add((tokens[:end], group))
    return counted(right, 60)


CHECKS = (
    test_append_mla_increments_pages_across_boundary,
    test_pack_unpack_roundtrip,
    test_store_and_load_roundtrip,
    page_sets_stay_disjoint,
    bad_page_calls_raise,
    retyped_page_leaks_no_bytes,
    test_register_then_lookup_at_same_prefix_hits,
    test_two_stage_uses_longest_checkpoint_boundary,
    test_lookup_without_checkpoint_misses,
    test_checkpoint_atomic_across_groups,
    entry_invisible_until_ready,
    last_token_is_computed,
    published_checkpoint_never_changes,
    hash_names_whole_prefix,
    lookup_matches_brute_force,
)
