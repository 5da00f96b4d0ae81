"""The pool alone: one free list, references, publication, eviction order, errors at the call."""

import numpy as np
import pytest

from k3core.errors import K3Error, PageError, PoolExhausted
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageInfo, PageKind

MLA, KDA = PageKind.MLA_KV, PageKind.KDA_STATE


def snapshot(pool: PagePool) -> tuple:
    pages = tuple(pool.page_info(page) for page in range(pool.num_pages))
    return pages, pool.free_order(), pool.stats()


def test_both_kinds_come_from_one_free_list():
    pool = PagePool(4, 16)
    assert pool.alloc(MLA) + pool.alloc(KDA, 2) + pool.alloc(MLA) == (0, 1, 2, 3)
    assert pool.num_free == 0
    assert dict(pool.stats().owned) == {MLA: 2, KDA: 2}


def test_pages_freed_by_one_kind_serve_the_other():
    pool = PagePool(3, 16)
    pool.free(pool.alloc(MLA, 3))
    assert sorted(pool.alloc(KDA, 3)) == [0, 1, 2]


def test_an_allocation_takes_all_or_nothing():
    pool = PagePool(4, 16)
    pool.alloc(MLA, 3)
    before = snapshot(pool)
    with pytest.raises(PoolExhausted, match=r"count=2 pages of KDA_STATE.*1 of 4"):
        pool.alloc(KDA, 2)
    assert snapshot(pool) == before
    assert pool.alloc(KDA) == (3,)


def test_every_page_can_be_taken_and_returned():
    pool = PagePool(5, 16)
    for _ in range(3):
        pages = pool.alloc(MLA, 5)
        assert sorted(pages) == [0, 1, 2, 3, 4]
        pool.free(pages)
        pool.check()


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "2", None, np.float64(2)])
def test_bad_sizes_are_refused(bad: object):
    pool = PagePool(4, 16)
    before = snapshot(pool)
    for call in (
        lambda: PagePool(bad),
        lambda: PagePool(4, bad),
        lambda: pool.alloc(MLA, bad),
    ):
        with pytest.raises(K3Error, match="must be an integer >= 1"):
            call()
    assert snapshot(pool) == before


@pytest.mark.parametrize("kind", [0, 1, "MLA_KV", None, True])
def test_only_a_page_kind_is_a_kind(kind: object):
    pool = PagePool(4, 16)
    with pytest.raises(K3Error, match="PageKind"):
        pool.alloc(kind)
    assert pool.num_free == 4


def test_numpy_integers_are_page_ids_and_counts():
    pool = PagePool(4, 16)
    pages = pool.alloc(MLA, np.int64(2))
    pool.free(np.array(pages))
    assert pool.num_free == 4


# what is refused at the call


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ([0, 0], "page 0 is named twice"),
        ([0, 2], "page 2 is not owned: it is already free"),
        ([3], "page 3 is foreign"),
        ([4], "page 4 is out of range: 0..3"),
        ([-1], "page -1 is out of range"),
        ([True], "not a page id"),
        ([0.0], "not a page id"),
        (None, "not a page id"),
    ],
)
@pytest.mark.parametrize("operation", ["free", "publish", "retain"])
def test_a_page_that_may_not_be_named_is_refused(operation: str, pages: object, message: str):
    pool = PagePool(4, 16)
    pool.alloc(MLA, 3)
    pool.free(2)
    before = snapshot(pool)
    with pytest.raises(PageError, match=message):
        getattr(pool, operation)(pages)
    assert snapshot(pool) == before
    pool.check()


def test_a_double_free_is_refused_at_the_second_call():
    pool = PagePool(2, 16)
    pages = pool.alloc(MLA, 2)
    pool.free(pages)
    with pytest.raises(PageError, match="already free"):
        pool.free(pages[0])
    assert pool.num_free == 2


def test_a_good_page_beside_a_bad_one_is_not_freed():
    pool = PagePool(4, 16)
    pool.alloc(MLA, 2)
    with pytest.raises(PageError):
        pool.free([0, 1, 3])
    assert pool.num_owned == 2


def test_freeing_or_reading_under_the_wrong_kind_is_refused():
    pool = PagePool(2, 16)
    (page,) = pool.alloc(KDA)
    for call in (pool.free, pool.page_bytes_view, pool.retain):
        with pytest.raises(PageError, match="page 0 holds KDA_STATE, not MLA_KV"):
            call(page, MLA)
    assert pool.page_info(page) == PageInfo(KDA, 1, False)


def test_freeing_no_page_changes_nothing():
    pool = PagePool(2, 16)
    before = snapshot(pool)
    pool.free([])
    assert snapshot(pool) == before


# references and publication


def test_a_page_returns_with_its_last_reference():
    pool = PagePool(2, 16)
    (page,) = pool.alloc(MLA)
    pool.retain(page)
    pool.retain([page])
    assert pool.stats().num_references == 3
    for left in (2, 1, 0):
        pool.free(page)
        assert pool.page_info(page).num_references == left
    assert pool.num_free == 2


def test_unpublished_pages_are_reused_before_published_ones():
    pool = PagePool(6, 16)
    kept, dropped = pool.alloc(MLA, 2), pool.alloc(MLA, 2)
    pool.publish(kept)
    pool.free(reversed(kept))
    pool.free(reversed(dropped))
    assert pool.free_order() == (3, 2, 4, 5, 1, 0)


def test_shared_prefix_of_two_requests_is_evicted_last_and_deepest_first():
    # Ten pages; A holds three full pages and a tail, B shares the three and has its own tail.
    pool = PagePool(10, 16)
    a = pool.alloc(MLA, 4)
    pool.publish(a[:3])
    pool.retain(a[:3])
    b_tail = pool.alloc(MLA)
    pool.free([*reversed(a)])
    pool.free([*b_tail, *reversed(a[:3])])
    assert pool.free_order() == (4, 3, 5, 6, 7, 8, 9, 2, 1, 0)


def test_a_hit_takes_a_page_back_from_the_middle_of_the_free_list():
    pool = PagePool(5, 16)
    pages = pool.alloc(MLA, 5)
    pool.publish(pages)
    pool.free(pages)
    assert (pool.num_free, pool.num_cached, pool.num_available) == (0, 5, 5)
    pool.retain(2)
    assert pool.free_order() == (0, 1, 3, 4)
    assert pool.num_owned == 1
    pool.check()
    pool.free(2)
    assert pool.free_order() == (0, 1, 3, 4, 2)


def test_eviction_happens_at_reuse_and_is_reported():
    evicted: list[tuple[int, ...]] = []
    pool = PagePool(3, 16, on_evict=evicted.append)
    pages = pool.alloc(MLA, 2)
    pool.publish(pages)
    pool.free(pages)
    assert pool.alloc(KDA) == (2,)
    assert evicted == []
    assert pool.alloc(KDA, 2) == (0, 1)
    assert evicted == [(0, 1)]
    assert pool.page_info(0) == PageInfo(KDA, 1, False)


def test_a_withdrawn_page_is_reused_next():
    pool = PagePool(4, 16)
    pages = pool.alloc(MLA, 3)
    pool.publish(pages)
    pool.free(pages[:2])
    pool.unpublish([1, 2])
    assert pool.free_order() == (1, 3, 0)
    assert pool.page_info(2) == PageInfo(MLA, 1, False)
    pool.check()
    with pytest.raises(PageError, match="page 1 is not published"):
        pool.unpublish([0, 1])
    assert pool.page_info(0).published


def test_shared_and_published_pages_are_read_only():
    pool = PagePool(3, 16)
    private, shared, published = pool.alloc(MLA, 3)
    pool.retain(shared)
    pool.publish(published)
    pool.page_bytes_view(private)[:] = 1
    for page in (shared, published):
        assert not pool.is_writable(page)
        with pytest.raises(ValueError, match="read-only"):
            pool.page_bytes_view(page)[:] = 1


# bytes


def test_a_page_is_a_window_of_one_buffer():
    pool = PagePool(4, 16)
    for page in pool.alloc(MLA, 4):
        pool.page_bytes_view(page)[:] = page
    addresses = [pool.page_bytes_view(page).ctypes.data for page in range(4)]
    assert np.diff(addresses).tolist() == [16, 16, 16]
    assert [pool.page_bytes_view(page).tolist() for page in range(4)] == [
        [p] * 16 for p in range(4)
    ]


def test_bytes_of_a_free_page_cannot_be_viewed():
    pool = PagePool(2, 16)
    (page,) = pool.alloc(MLA)
    pool.free(page)
    for bad in (page, 1, 2, -1):
        with pytest.raises(PageError):
            pool.page_bytes_view(bad)


def test_cached_bytes_stay_readable_until_reuse():
    pool = PagePool(1, 16)
    (page,) = pool.alloc(MLA)
    pool.page_bytes_view(page)[:] = 9
    pool.publish(page)
    pool.free(page)
    assert pool.page_bytes_view(page, MLA).tolist() == [9] * 16
    pool.retain(page, MLA)
    assert pool.page_bytes_view(page).tolist() == [9] * 16


@pytest.mark.parametrize(("before", "after"), [(MLA, KDA), (KDA, MLA)])
@pytest.mark.parametrize("cached", [False, True])
def test_a_page_that_changes_kind_loses_its_old_bytes(
    before: PageKind, after: PageKind, cached: bool
):
    pool = PagePool(1, 16)
    (page,) = pool.alloc(before)
    pool.page_bytes_view(page)[:] = 9
    if cached:
        pool.publish(page)
    pool.free(page)
    pool.alloc(after)
    assert pool.page_bytes_view(page).tolist() == [0] * 16


def test_a_poisoned_pool_shows_nan_where_nobody_wrote():
    pool = PagePool(2, 16, poison=True)
    (page,) = pool.alloc(MLA)
    assert np.isnan(pool.page_bytes_view(page).view(np.float32)).all()
    pool.page_bytes_view(page)[:] = 0
    pool.free(page)
    assert pool.alloc(MLA) == (page,)
    assert np.isnan(pool.page_bytes_view(page).view(np.float32)).all()


def test_a_poisoned_pool_poisons_evicted_pages_of_the_same_kind():
    pool = PagePool(1, 16, poison=True)
    (page,) = pool.alloc(MLA)
    pool.page_bytes_view(page)[:] = 0
    pool.publish(page)
    pool.free(page)
    assert not pool.page_bytes_view(page).any()
    pool.alloc(MLA)
    assert np.isnan(pool.page_bytes_view(page).view(np.float32)).all()


# the accounting check


def break_double_listing(pool: PagePool) -> None:
    pool._free_list._next[pool.free_order()[-1]] = pool.free_order()[0]


def break_backward_link(pool: PagePool) -> None:
    pool._free_list._prev[pool.free_order()[1]] = pool.num_pages


def break_stale_link(pool: PagePool) -> None:
    pool._free_list._next[0] = 1


def break_reference_of_free_page(pool: PagePool) -> None:
    pool._references[pool.free_order()[-1]] = 1


def break_lost_page(pool: PagePool) -> None:
    pool._references[0] = 0


def break_negative_reference(pool: PagePool) -> None:
    pool._references[0] = -1


def break_kind(pool: PagePool) -> None:
    pool._kinds[0] = 7


def break_kind_of_owned_page(pool: PagePool) -> None:
    pool._kinds[0] = -1


def break_owned_counter(pool: PagePool) -> None:
    pool._num_owned[MLA] += 1


def break_cached_counter(pool: PagePool) -> None:
    pool._num_cached[KDA] -= 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_double_listing, "more than once on the free list"),
        (break_backward_link, "backwards"),
        (break_stale_link, "linked although off the free list"),
        (break_reference_of_free_page, "on the free list although referenced"),
        (break_lost_page, "neither referenced nor on the free list"),
        (break_negative_reference, "negative number of references"),
        (break_kind, "unknown kind"),
        (break_kind_of_owned_page, "in use but never allocated"),
        (break_owned_counter, "MLA_KV: 2 pages are owned, the counter says 3"),
        (break_cached_counter, "KDA_STATE: 1 pages are cached, the counter says 0"),
    ],
)
def test_check_says_what_is_wrong(damage, message: str):
    pool = PagePool(8, 16)
    pool.alloc(MLA, 2)
    (cached,) = pool.alloc(KDA)
    pool.publish(cached)
    pool.free(cached)
    pool.check()
    damage(pool)
    with pytest.raises(PageError, match=message):
        pool.check()
