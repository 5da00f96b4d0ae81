"""S2-S22: SGLang's hybrid radix cache, in its own small token lists (block 1)."""

import random

import pytest
import torch

from k3core.engine import Engine
from k3core.kda import KDAState
from k3core.model import HybridModel, ModelConfig
from k3core.paged_cache import PagedCache, PageKind, PagePool
from k3core.prefix_cache import STORED, MediaItem, PromptHashes, Retention
from k3core.prefix_cache.host_tier import HostTier
from tests.peer_cases.common import hit, make, run, serve

TAIL = Retention("chunk_end")
MODEL = HybridModel(
    ModelConfig(
        num_layers=4, hidden_size=32, num_heads=2, dk=8, dv=12, gate_rank=8, kv_latent=12,
        rope_width=4, nope_width=8, value_width=8, mlp_size=32, vocab_size=97,
    )
)  # fmt: skip


def tree(*prompts, pages=40, block=1, **kwargs):
    """A cache with a state at the end of each prompt, as the radix tree has at each node."""
    manager = make(pages, block, retention=TAIL, **kwargs)
    for number, prompt in enumerate(prompts):
        at = manager.admit(number, prompt, read_cache=False)
        assert at is not None
        manager.computed(number, len(prompt))
        manager.release(number)
    return manager


def drop_state(manager, prompt):
    manager.residency.drop_boundary(
        PromptHashes(prompt, manager.hash_block_tokens).block_hashes[-1]
    )
    manager.check()


def test_s2_a_tombstone_does_not_block_what_is_deeper():
    manager = tree([1, 2, 3], [1, 2, 3, 4, 5])
    drop_state(manager, [1, 2, 3])
    assert hit(manager, [1, 2, 3, 9]) == 0
    assert hit(manager, [1, 2, 3, 4, 5, 9]) == 5


def test_s3_a_state_that_was_used_is_evicted_after_those_that_were_not():
    manager = tree([1, 2], [3, 4], [5, 6])
    serve(manager, "reader", [1, 2, 9])
    state = manager.lookup([1, 2, 9]).checkpoint_payloads[0]
    others = [manager.lookup([*p, 9]).checkpoint_payloads[0] for p in ([3, 4], [5, 6])]
    order = manager.pool.free_order()
    assert order.index(state.pages[0]) > max(order.index(other.pages[0]) for other in others)


def test_s4_what_a_request_holds_is_not_evicted():
    manager = tree([1, 2], pages=5)
    run(manager, "reader", [1, 2, 7])
    held = manager.pages("reader")[:2]
    assert all(page not in manager.pool.free_order() for page in held)
    taken = manager.pool.alloc(PageKind.MLA_KV, manager.pool.num_available)
    assert not set(taken) & set(held)
    assert manager.lookup([1, 2, 7]).mla_tokens >= 2
    manager.pool.free(taken)
    manager.release("reader")
    manager.pool.alloc(PageKind.MLA_KV, 5)
    assert manager.cache.num_blocks == 0


def test_s6_a_reader_gets_its_own_copy_of_conv_and_state():
    manager = tree(range(8), block=4, groups=2)
    pool = manager.pool
    for state in manager.lookup(range(9)).checkpoint_payloads:
        pool.retain(state.pages)
        pool.unpublish(state.pages)
        pool.page_bytes_view(state.pages[0])[:] = 10 + state.group
        pool.publish(state.pages)
        pool.free(state.pages)
    admission = manager.admit("reader", range(9))
    cached = [s.pages[0] for s in manager.lookup(range(9)).checkpoint_payloads]
    assert not set(admission.state_pages) & set(cached)
    for group, page in enumerate(admission.state_pages):
        assert (pool.page_bytes_view(page) == 10 + group).all()
    pool.page_bytes_view(admission.state_pages[0])[:] = 99
    assert (pool.page_bytes_view(cached[0]) == 10).all()


def test_s7_evicting_rows_takes_the_leaves_first():
    manager = tree([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6], groups=0, pages=7)
    chain = {p: PromptHashes(p, 1).block_hashes[-1] for p in ((1,), (1, 2, 3), (1, 2, 3, 4))}
    order = [
        unit.page
        for one in (chain[1, 2, 3, 4], chain[1, 2, 3], chain[1,])
        if (unit := manager.cache.block_payload(one)) is not None
    ]
    places = [manager.pool.free_order().index(page) for page in order]
    assert places == sorted(places)
    manager.pool.alloc(PageKind.MLA_KV, 3)
    assert manager.lookup([1, 2, 3, 9]).mla_tokens == 3


def test_s8_an_empty_cache_matches_and_evicts_nothing():
    manager = make(4, 1)
    assert hit(manager, [1, 2, 3]) == 0
    manager.residency.drop_block(b"")
    manager.residency.drop_boundary(b"")
    assert manager.cache.evict_boundary(b"no") == manager.cache.evict_subtree(b"no") == ()
    manager.check()


def test_s9_evictable_pages_while_locked_and_after():
    manager = tree([1, 2, 3, 4, 5])
    stats = manager.pool.stats()
    assert (stats.cached[PageKind.MLA_KV], stats.cached[PageKind.KDA_STATE]) == (5, 1)
    manager.admit("reader", [1, 2, 3, 4, 5, 6])
    assert manager.pool.stats().cached[PageKind.MLA_KV] == 0
    manager.release("reader")
    assert manager.pool.stats().cached == stats.cached


def test_s12_a_shorter_lookup_leaves_the_entry_whole():
    manager = tree([1, 2, 3])
    found = manager.lookup([1, 2])
    assert (found.matched_tokens, found.mla_tokens) == (0, 2)
    assert hit(manager, [1, 2, 3, 9]) == 3


def test_s13_a_prompt_between_two_ends_finds_no_state():
    manager = tree([1, 2, 3], [1, 2, 4, 5])
    assert hit(manager, [1, 2, 4]) == 0
    assert hit(manager, [1, 2, 4, 5, 9]) == 4


def test_s16_events_name_new_blocks_only_and_states_apart():
    """SGLang says nothing about an evicted state; a router then counts on it (SGLang #23678), so
    this cache tells, in events of its own."""
    manager = make(20, 1, retention=TAIL, record_events=True)
    serve(manager, "a", [1, 2, 3])
    serve(manager, "b", [1, 2, 3, 4, 5], [2])
    rows = [e for e in manager.cache.take_events() if e.group is None]
    chain = PromptHashes([1, 2, 3, 4, 5], 1).block_hashes
    assert [e.block_hashes for e in rows] == [chain[:3], chain[3:]]
    manager.residency.drop_boundary(chain[2])
    (event,) = manager.cache.take_events()
    assert (event.kind, event.group, event.block_hashes) == ("removed", 0, (chain[2],))
    for one in reversed(chain):
        manager.residency.drop_block(one)
    assert [e.block_hashes[0] for e in manager.cache.take_events()] == list(reversed(chain))


def test_s17_the_parent_of_a_branch_is_the_block_where_it_leaves():
    manager = make(20, 1, groups=0, record_events=True)
    serve(manager, "a", [1, 2, 3, 4])
    manager.cache.take_events()
    serve(manager, "b", [1, 2, 5, 6])
    (event,) = manager.cache.take_events()
    assert event.kind == STORED
    assert event.parent == PromptHashes([1, 2], 1).block_hashes[-1]
    assert len(event.block_hashes) == 2


def test_s19_pages_that_nobody_gave_back_stay_visible():
    """SGLang sees such a leak in its count of states; here ``check`` names the page."""
    manager = make(8, 4)
    admission = manager.admit("a", range(9))
    manager.release("a")
    leaked = manager.pool.alloc(PageKind.KDA_STATE)
    with pytest.raises(ValueError, match=f"page {leaked[0]} has 1 references"):
        manager.check()
    manager.pool.free(leaked)
    manager.check()
    assert len(admission.state_pages) == 1


def test_s20_a_prefix_comes_back_from_host_memory_byte_for_byte():
    host = HostTier(10_000, block_bytes=32, state_bytes=64, num_kda_groups=2)
    manager = make(9, 4, groups=2, retention=TAIL, host=host)
    manager.admit("a", range(8))
    for value, page in enumerate(manager.pages("a"), 1):
        manager.pool.page_bytes_view(page)[:32] = value
    for page in manager.state_pages("a"):
        manager.pool.page_bytes_view(page)[:] = 7
    manager.computed("a", 8)
    manager.release("a")
    run(manager, "other", range(100, 128))
    manager.release("other")
    assert hit(manager, range(9)) == 0
    admission = manager.admit("b", range(9))
    assert (admission.reused_tokens, admission.source) == (8, "host")
    for value, page in enumerate(manager.pages("b")[:2], 1):
        assert (manager.pool.page_bytes_view(page)[:32] == value).all()
    for page in manager.state_pages("b"):
        assert (manager.pool.page_bytes_view(page) == 7).all()
    assert manager.window.by_source == {"host": 8}
    manager.check()


def test_s22_every_page_is_accounted_for_whenever_the_pool_is_idle():
    manager = tree([1, 2, 3], [1, 2, 3, 4, 5], [8, 9])
    stats = manager.pool.stats()
    assert stats.num_owned == 0
    assert stats.num_free + stats.num_cached == stats.num_pages
    assert manager.running == ()
    manager.check()


def test_s20_states_and_windows_survive_their_pages():
    cache = PagedCache(PagePool(12, 64), 1, 1)
    state = KDAState(torch.full((1, 2, 4, 4), 1.0), torch.full((1, 3, 8), 2.0))
    cache.store_kda(0, state)
    kept = cache.load_kda(0)
    cache.store_kda(0, KDAState(torch.zeros(1, 2, 4, 4), torch.zeros(1, 3, 8)))
    cache.store_kda(0, kept)
    back = cache.load_kda(0)
    assert torch.equal(back.recurrent, state.recurrent)
    assert torch.equal(back.conv_window, state.conv_window)


def test_v30_media_hold_through_the_manager():
    manager = make(20, 4, retention=TAIL)
    one = PromptHashes(range(8), 4, media=[MediaItem("a", 0, 4)])
    serve(manager, "a", one)
    assert hit(manager, PromptHashes(range(9), 4, media=[MediaItem("a", 0, 4)])) == 8
    assert hit(manager, PromptHashes(range(9), 4, media=[MediaItem("b", 0, 4)])) == 0


def test_s21_three_groups_and_three_branches_give_the_log_probs_of_a_cold_run():
    """SGLang allows a KL divergence of 0.003; the same chunk ends give the same bits."""
    serving, cold = (
        Engine(MODEL, 400, block_tokens=16, chunk_tokens=16, use_cache=cached)
        for cached in (True, False)
    )
    rng = random.Random(0)
    words = [rng.randrange(97) for _ in range(300)]
    reused = 0
    for group in range(3):
        prefix = [group, *words[group : group + 31]]
        for branch in range(3):
            history = [*prefix, branch, *words[60 + branch : 75 + 5 * branch]]
            for turn in range(3):
                history += words[100 + 40 * turn + branch :][: 24 if turn else 8]
                warm, fresh = serving.generate(history, 2), cold.generate(history, 2)
                assert torch.equal(warm.logits, fresh.logits)
                reused += warm.reused_tokens
    assert reused > 1000
    serving.check()
