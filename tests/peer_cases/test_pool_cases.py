"""V1-V23: free list and page pool of vLLM (its test_kv_cache_utils and test_prefix_caching)."""

import pytest

from k3core.errors import PageError, PoolExhausted
from k3core.paged_cache import PageKind, PagePool
from k3core.paged_cache.free_list import FreeList
from k3core.prefix_cache import PromptHashes
from tests.peer_cases.common import hit, make, run, serve

MLA, KDA = PageKind.MLA_KV, PageKind.KDA_STATE
COMMON = list(range(48))
FIRST, SECOND, THIRD = ([*COMMON, *range(n, n + 7)] for n in (100, 200, 300))


def references(manager, pages):
    return [manager.pool.page_info(page).num_references for page in pages]


def test_v1_a_prompt_takes_the_first_pages_and_hashes_the_full_ones():
    manager = make(10, 16, groups=0)
    run(manager, "first", FIRST)
    assert manager.pages("first") == (0, 1, 2, 3)
    assert [manager.pool.page_info(page).published for page in range(4)] == [True] * 3 + [False]
    assert references(manager, range(4)) == [1, 1, 1, 1]
    chain = PromptHashes(FIRST, 16).block_hashes
    assert [manager.cache.block_payload(one).page for one in chain] == [0, 1, 2]


def test_v2_a_second_request_shares_the_common_pages():
    manager = make(10, 16, groups=0)
    run(manager, "first", FIRST)
    second = run(manager, "second", SECOND[:53])
    assert (second.reused_tokens, second.pages) == (48, (4,))
    assert references(manager, range(3)) == [2, 2, 2]
    assert manager.pool.num_available == 5


def test_v3_v4_free_order_and_a_third_request():
    manager = make(10, 16, groups=0)
    run(manager, "first", FIRST)
    run(manager, "second", SECOND[:53])
    manager.release("first")
    manager.release("second")
    assert manager.pool.free_order() == (4, 3, 5, 6, 7, 8, 9, 2, 1, 0)
    third = run(manager, "third", THIRD[:53])
    assert (third.reused_tokens, third.pages) == (48, (4,))
    assert manager.pool.num_available == 6
    assert references(manager, manager.pool.free_order()) == [0] * 6


def test_v7_a_reused_page_loses_its_hash():
    manager = make(1, 16, groups=0)
    serve(manager, "first", range(16))
    assert manager.pool.page_info(0).published
    run(manager, "second", range(100, 115))
    assert manager.pages("second") == (0,)
    assert not manager.pool.page_info(0).published
    assert hit(manager, range(17)) == 0


def test_v8_an_allocation_never_evicts_the_page_that_it_hits():
    manager = make(2, 16, groups=0)
    serve(manager, "first", range(16))
    serve(manager, "second", range(500, 516))
    admission = run(manager, "third", [*range(16), *range(900, 916)])
    assert admission.reused_tokens == 16
    assert manager.pages("third") == (0, 1)
    assert hit(manager, range(500, 517)) == 0


@pytest.mark.parametrize("num_tokens", [4, 8, 12, 16])
def test_v11_predicted_need_equals_the_pages_taken(num_tokens):
    need = -(-num_tokens // 4) + 2
    exact, short = make(need, 4, groups=2), make(need - 1, 4, groups=2)
    admission = exact.admit("all", range(num_tokens))
    assert len(admission.pages) + len(admission.state_pages) == need
    assert exact.pool.num_available == 0
    assert short.admit("all", range(num_tokens)) is None


def test_v12_one_entry_per_hash_and_evictions_leave_the_others():
    """Two identical prompts in flight leave one entry, not two pages under one key as in vLLM:
    the second page is never published, and goes back first."""
    manager = make(6, 16, groups=0)
    first, second = range(16), range(100, 116)
    for name, prompt in (("a", first), ("b", second), ("c", first)):
        assert manager.admit(name, prompt, read_cache=False) is not None
    for name in "abc":
        manager.computed(name, 16)
    assert manager.cache.num_blocks == 2
    for name in "abc":
        manager.release(name)
    assert manager.pool.free_order()[0] == 2
    manager.residency.drop_block(PromptHashes(second, 16).block_hashes[0])
    assert (hit(manager, range(17)), hit(manager, range(100, 117))) == (16, 0)
    manager.residency.drop_block(PromptHashes(first, 16).block_hashes[0])
    assert manager.cache.num_blocks == 0
    manager.check()


def test_v14_pop_remove_from_the_middle_append_and_drain():
    pages = FreeList(5)
    assert pages.pop_front(1) == [0]
    pages.remove(2)
    pages.push_back(2)
    assert pages.pop_front(4) == [1, 3, 4, 2]
    assert pages.order() == []
    pages.check()
    pool = PagePool(1)
    pool.alloc(MLA)
    with pytest.raises(PoolExhausted, match="0 of 1 are available"):
        pool.alloc(MLA)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_v15_draining_and_refilling_keeps_the_links(count):
    pages = FreeList(count)
    assert pages.pop_front(0) == []
    for _ in range(3):
        taken = pages.pop_front(count)
        pages.check()
        assert pages.order() == []
        for page in taken:
            pages.push_back(page)
        pages.check()
        assert pages.order() == taken


def test_v17_no_object_stands_for_a_page():
    """vLLM demands slots of its page record; here a page is an int and its record four arrays."""
    pool = PagePool(3)
    assert all(type(page) is int for page in pool.alloc(MLA, 3))
    assert not hasattr(pool.page_info(0), "__dict__")


def test_v20_taking_too_many_raises_and_changes_nothing():
    pool = PagePool(3)
    pool.alloc(KDA, 1)
    before = pool.stats(), pool.free_order()
    with pytest.raises(ValueError, match="nothing was allocated"):
        pool.alloc(MLA, 3)
    assert (pool.stats(), pool.free_order()) == before


def test_v21_a_double_free_is_an_error_at_the_call():
    pool = PagePool(3)
    (page,) = pool.alloc(MLA)
    pool.free(page)
    with pytest.raises(PageError, match="already free"):
        pool.free(page)
    pool.check()


def test_v22_without_caching_nothing_is_looked_up_and_a_full_pool_refuses():
    manager = make(7, 4, groups=0, enable_caching=False)
    first, second = run(manager, "a", range(10)), run(manager, "b", range(16))
    assert (len(first.pages), len(second.pages)) == (3, 4)
    assert second.reused_tokens == 0
    assert manager.window.num_requests == 0
    assert manager.admit("c", range(4)) is None


def test_v23_reset_is_refused_in_flight_and_clears_everything_afterwards():
    manager = make(10, 16, groups=1)
    run(manager, "a", range(40), [16, 16, 8])
    assert manager.reset() is False
    assert hit(manager, range(40)) == 32
    manager.release("a")
    assert manager.reset() is True
    assert manager.pool.stats().num_cached == 0
    assert hit(manager, range(40)) == 0
    manager.check()
