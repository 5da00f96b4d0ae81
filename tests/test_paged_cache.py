"""Pages of one request: MLA rows, KDA states, sharing, and everything that must be refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import CacheError, K3Error, PageError, PoolExhausted
from k3core.kda import KDAState
from k3core.paged_cache import (
    LayerState,
    PagedCache,
    PageKind,
    PagePool,
    pack_heads,
    unpack_heads,
)
from tests.helpers import same_bits

STATE_DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
]


def random_state(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def small_cache(num_pages: int = 8, **pool_options: bool) -> PagedCache:
    """Pages of 256 bytes: 8 tokens of 32 bytes, or 64 float32 values of a state."""
    pool = PagePool(num_pages, 256, poison=True, **pool_options)
    return PagedCache(pool, tokens_per_page=8, bytes_per_token=32)


# the three claims of the source text


def test_append_mla_increments_pages_across_boundary():
    pool = PagePool(4)
    cache = PagedCache(pool)
    cache.append_mla(600)
    assert [page.filled for page in cache.mla_pages] == [512, 88]
    assert pool.stats().owned[PageKind.MLA_KV] == 2
    cache.append_mla(424)
    assert [page.filled for page in cache.mla_pages] == [512, 512]
    cache.append_mla(1)
    assert [page.filled for page in cache.mla_pages] == [512, 512, 1]


def test_pack_unpack_roundtrip():
    for dtype in STATE_DTYPES:
        state = random_state(2, 3, 8, 4, dtype=dtype)
        flat = pack_heads(state)
        assert flat.shape == (2 * 3 * 8 * 4,)
        assert same_bits(unpack_heads(flat, state.shape), state)


def test_store_and_load_roundtrip():
    cache = small_cache(num_pages=32)
    for layer, dtype in enumerate(STATE_DTYPES):
        state = random_state(2, 3, 4, 8, dtype=dtype, seed=layer)
        cache.store_kda(layer, state)
    for layer, dtype in enumerate(STATE_DTYPES):
        assert same_bits(cache.load_kda(layer), random_state(2, 3, 4, 8, dtype=dtype, seed=layer))


# MLA rows


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_rows_read_back_as_written_for_any_split(counts: list[int]):
    cache = small_cache(num_pages=16)
    rows = random_state(sum(counts), 2, 4)
    done = 0
    for count in counts:
        cache.append_mla(count, rows[done : done + count])
        done += count
    assert same_bits(cache.read_mla(), rows)
    assert len(cache.mla_pages) == -(-done // 8)
    assert sum(page.filled for page in cache.mla_pages) == done
    assert all(page.filled == 8 for page in cache.mla_pages[:-1])


def test_a_range_of_rows_crosses_pages():
    cache = small_cache()
    rows = random_state(20, 8)
    cache.append_mla(20, rows)
    assert torch.equal(cache.read_mla(5, 18), rows[5:18])
    assert cache.read_mla(7, 7).shape == (0, 8)


def test_read_rows_are_a_copy():
    cache = small_cache()
    cache.append_mla(4, torch.ones(4, 8))
    cache.read_mla().zero_()
    assert torch.equal(cache.read_mla(), torch.ones(4, 8))


def test_append_that_does_not_fit_changes_nothing():
    cache = small_cache(num_pages=2)
    cache.append_mla(5, torch.ones(5, 8))
    before = (cache.mla_pages, cache.num_tokens, cache.pool.stats())
    with pytest.raises(PoolExhausted, match="count=2"):
        cache.append_mla(12, torch.zeros(12, 8))
    assert (cache.mla_pages, cache.num_tokens, cache.pool.stats()) == before
    assert torch.equal(cache.read_mla(), torch.ones(5, 8))
    cache.append_mla(11, torch.zeros(11, 8))
    cache.pool.check()


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(3, 8),
        torch.zeros(4, 9),
        torch.zeros(4, 8, dtype=torch.float64),
        torch.zeros(4, 16, dtype=torch.bfloat16),
        torch.zeros(4, 2, 4),
        [[0.0] * 8] * 4,
    ],
)
def test_rows_of_another_size_dtype_or_shape_are_refused(rows: object):
    cache = small_cache()
    cache.append_mla(4, torch.ones(4, 8))
    before = cache.pool.stats()
    with pytest.raises(K3Error):
        cache.append_mla(4, rows)
    assert cache.num_tokens == 4
    assert cache.pool.stats() == before


def test_tokens_without_rows_cannot_be_read():
    cache = small_cache()
    cache.append_mla(4, torch.ones(4, 8))
    cache.append_mla(1)
    with pytest.raises(CacheError, match=r"4\.\.5"):
        cache.read_mla()
    with pytest.raises(CacheError, match="without rows"):
        cache.append_mla(1, torch.ones(1, 8))


def test_accounting_alone_makes_no_byte_buffer():
    pool = PagePool(1_000_000)  # 549 GiB of pages
    cache = PagedCache(pool)
    cache.append_mla(100_000)
    cache.release()
    assert pool.num_free == 1_000_000


@pytest.mark.parametrize("keep", [0, 1, 8, 9, 16, 20])
def test_cutting_the_tail_gives_back_whole_pages_only(keep: int):
    cache = small_cache()
    rows = random_state(20, 8)
    cache.append_mla(20, rows)
    pages = [page.page for page in cache.mla_pages]
    surplus = cache.truncate_mla(keep)
    needed = -(-keep // 8)
    assert list(surplus) == list(reversed(pages[needed:]))
    assert (cache.num_tokens, cache.pool.num_owned) == (keep, needed)
    more = random_state(3, 8, seed=1)
    cache.append_mla(3, more)
    assert same_bits(cache.read_mla(), torch.cat([rows[:keep], more]))
    cache.pool.check()


def test_cutting_into_a_shared_page_leaves_the_other_reader_alone():
    first = small_cache()
    rows = random_state(12, 8)
    first.append_mla(12, rows)
    second = PagedCache(first.pool, 8, 32)
    second.adopt_mla([page.page for page in first.mla_pages], 12, torch.float32, (8,))
    second.truncate_mla(10)
    second.append_mla(2, torch.zeros(2, 8))
    assert same_bits(first.read_mla(), rows)
    assert same_bits(second.read_mla(), torch.cat([rows[:10], torch.zeros(2, 8)]))


@pytest.mark.parametrize("bad", [-1, 5, True, 1.0, None])
def test_a_cut_outside_of_the_rows_is_refused(bad: object):
    cache = small_cache()
    cache.append_mla(4)
    with pytest.raises(K3Error, match="outside"):
        cache.truncate_mla(bad)
    assert cache.num_tokens == 4


# KDA states


def test_a_state_takes_pages_by_its_bytes():
    cache = small_cache(num_pages=16)
    assert len(cache.store_kda(0, random_state(1, 1, 8, 8))) == 1
    assert len(cache.store_kda(1, random_state(1, 1, 8, 9))) == 2
    assert len(cache.store_kda(2, random_state(1, 4, 8, 8, dtype=torch.bfloat16))) == 2
    assert {layer: len(pages) for layer, pages in cache.kda_pages.items()} == {0: 1, 1: 2, 2: 2}
    assert cache.kda_bytes == {0: 256, 1: 288, 2: 512}


def test_the_number_of_state_pages_does_not_depend_on_the_tokens():
    cache = small_cache(num_pages=64)
    cache.store_kda(0, random_state(1, 2, 8, 8))
    for _ in range(5):
        cache.append_mla(77)
        cache.store_kda(0, random_state(1, 2, 8, 8))
    assert len(cache.kda_pages[0]) == 2
    assert len(cache.mla_pages) == 49


def test_the_rest_of_the_last_state_page_is_zero():
    cache = small_cache()
    (page,) = cache.store_kda(0, random_state(1, 1, 8, 4))
    assert cache.pool.page_bytes_view(page)[128:].tolist() == [0] * 128


def test_the_window_of_the_short_convolution_travels_with_the_state():
    cache = small_cache(num_pages=16)
    state, window = random_state(2, 3, 4, 2), random_state(2, 3, 30, dtype=torch.bfloat16)
    cache.store_kda(0, KDAState(state, window))
    cache.store_kda(1, state, window)
    cache.store_kda(2, KDAState(state, None))
    for layer, kind in ((0, KDAState), (1, LayerState)):
        loaded = cache.load_kda(layer)
        assert type(loaded) is kind
        assert same_bits(loaded.recurrent, state)
        assert same_bits(loaded.conv_window, window)
    loaded = cache.load_kda(2)
    assert type(loaded) is KDAState
    assert same_bits(loaded.recurrent, state)
    assert loaded.conv_window is None


def test_a_window_given_twice_is_refused():
    cache = small_cache()
    window = torch.zeros(1, 3, 6)
    with pytest.raises(K3Error, match="twice"):
        cache.store_kda(0, KDAState(torch.zeros(1, 1, 2, 2), window), window)
    assert cache.pool.num_owned == 0


def test_storing_a_layer_again_reuses_its_pages():
    cache = small_cache()
    first = cache.store_kda(0, random_state(1, 2, 8, 8, seed=1))
    again = random_state(1, 2, 8, 8, seed=2)
    assert cache.store_kda(0, again) == first
    assert cache.pool.num_owned == 2
    assert same_bits(cache.load_kda(0), again)


@pytest.mark.parametrize("heads", [1, 5])
def test_a_layer_that_changes_size_keeps_what_it_can(heads: int):
    cache = small_cache()
    cache.store_kda(0, random_state(1, 3, 8, 8))
    state = random_state(1, heads, 8, 8)
    cache.store_kda(0, state)
    assert cache.pool.num_owned == heads
    assert same_bits(cache.load_kda(0), state)
    cache.pool.check()


def test_a_state_that_does_not_fit_leaves_the_old_one():
    cache = small_cache(num_pages=3)
    old = random_state(1, 2, 8, 8)
    cache.store_kda(0, old)
    before = (cache.kda_pages, cache.pool.stats())
    with pytest.raises(PoolExhausted):
        cache.store_kda(0, random_state(1, 4, 8, 8))
    assert (cache.kda_pages, cache.pool.stats()) == before
    assert same_bits(cache.load_kda(0), old)


def test_nan_and_negative_zero_keep_their_bits():
    cache = small_cache()
    state = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]).reshape(1, 1, 2, 2)
    cache.store_kda(0, state)
    assert same_bits(cache.load_kda(0), state)


@pytest.mark.parametrize("layer", [-1, True, 1.0, "0", None])
def test_a_bad_layer_number_is_refused(layer: object):
    with pytest.raises(K3Error, match="layer"):
        small_cache().store_kda(layer, torch.zeros(1, 1, 2, 2))


@pytest.mark.parametrize("state", [torch.zeros(2, 2), torch.zeros(1, 0, 2, 2), 3, None, [0.0]])
def test_a_misshapen_state_is_refused(state: object):
    cache = small_cache()
    with pytest.raises(K3Error, match="state"):
        cache.store_kda(0, state)
    assert cache.pool.num_owned == 0


def test_loading_an_unknown_layer_names_the_stored_ones():
    cache = small_cache()
    cache.store_kda(3, torch.zeros(1, 1, 2, 2))
    with pytest.raises(CacheError, match=r"layer=0.*\[3\]"):
        cache.load_kda(0)


# sharing


def test_a_second_request_shares_full_pages_and_copies_the_partial_one():
    first = small_cache()
    rows = random_state(20, 8)
    first.append_mla(20, rows)
    second = PagedCache(first.pool, 8, 32)
    shared = [page.page for page in first.mla_pages]
    second.adopt_mla(shared, 20, torch.float32, (8,))
    assert first.pool.num_owned == 3
    assert same_bits(second.read_mla(), rows)
    more = random_state(3, 8, seed=9)
    second.append_mla(3, more)
    assert first.pool.num_owned == 4
    assert [page.page for page in second.mla_pages][:2] == shared[:2]
    assert second.mla_pages[2].page != shared[2]
    assert same_bits(first.read_mla(), rows)
    assert same_bits(second.read_mla(), torch.cat([rows, more]))
    first.release()
    assert same_bits(second.read_mla(0, 20), rows)
    second.release()
    assert first.pool.num_free == 8
    first.pool.check()


def test_the_producer_copies_a_page_that_others_read():
    cache = small_cache()
    rows = random_state(5, 8)
    cache.append_mla(5, rows)
    (page,) = (page.page for page in cache.mla_pages)
    cache.pool.retain(page)
    published = cache.pool.page_bytes_view(page).copy()
    cache.append_mla(1, torch.zeros(1, 8))
    assert cache.mla_pages[0].page != page
    assert (cache.pool.page_bytes_view(page) == published).all()
    assert same_bits(cache.read_mla(0, 5), rows)


def test_a_stored_state_that_others_read_is_replaced_not_overwritten():
    cache = small_cache()
    old_pages = cache.store_kda(0, random_state(1, 2, 8, 8, seed=1))
    cache.pool.publish(old_pages)
    published = [cache.pool.page_bytes_view(page).tobytes() for page in old_pages]
    state = random_state(1, 2, 8, 8, seed=2)
    new_pages = cache.store_kda(0, state)
    assert set(new_pages).isdisjoint(old_pages)
    assert cache.pool.num_cached == 2
    assert [cache.pool.page_bytes_view(page).tobytes() for page in old_pages] == published
    assert same_bits(cache.load_kda(0), state)


def test_a_copy_that_does_not_fit_leaves_both_readers_alone():
    cache = small_cache(num_pages=1)
    cache.append_mla(5, torch.ones(5, 8))
    cache.pool.retain(cache.mla_pages[0].page)
    with pytest.raises(PoolExhausted):
        cache.append_mla(1, torch.zeros(1, 8))
    assert torch.equal(cache.read_mla(), torch.ones(5, 8))
    cache.pool.check()


def test_adopting_pages_of_the_wrong_kind_or_number_is_refused():
    cache = small_cache()
    state_page = cache.store_kda(0, torch.zeros(1, 1, 8, 8))
    reader = PagedCache(cache.pool, 8, 32)
    with pytest.raises(PageError, match="holds KDA_STATE, not MLA_KV"):
        reader.adopt_mla(state_page, 8)
    with pytest.raises(PageError, match="foreign"):
        reader.adopt_mla([7], 8)
    with pytest.raises(K3Error, match="needs 2"):
        reader.adopt_mla(state_page, 9)
    with pytest.raises(K3Error, match="bytes_per_token"):
        reader.adopt_mla(state_page, 8, torch.float64, (8,))
    assert reader.num_tokens == 0
    assert cache.pool.stats().num_references == 1
    reader.append_mla(1)
    with pytest.raises(CacheError, match="empty"):
        reader.adopt_mla([reader.mla_pages[0].page], 8)


# life cycle and sizes


def test_release_returns_every_page_once():
    cache = small_cache()
    cache.append_mla(20)
    cache.store_kda(0, torch.zeros(1, 2, 8, 8))
    assert cache.release() == 5
    assert cache.pool.num_free == 8
    assert (cache.num_tokens, cache.mla_pages, cache.kda_pages) == (0, (), {})
    assert cache.release() == 0
    cache.pool.check()
    cache.append_mla(3, torch.ones(3, 4, dtype=torch.float64))
    assert cache.read_mla().dtype == torch.float64


def test_the_deepest_mla_page_is_evicted_first():
    cache = small_cache(num_pages=4)
    cache.append_mla(24)
    pages = [page.page for page in cache.mla_pages]
    cache.pool.publish(pages)
    cache.release()
    assert cache.pool.free_order() == (3, *reversed(pages))


def test_two_requests_do_not_touch_each_other():
    pool = PagePool(8, 256, poison=True)
    left, right = PagedCache(pool, 8, 32), PagedCache(pool, 8, 32)
    left.append_mla(10, torch.ones(10, 8))
    right.append_mla(10, 2 * torch.ones(10, 8))
    right.store_kda(0, 3 * torch.ones(1, 2, 8, 8))
    left.append_mla(10, 4 * torch.ones(10, 8))
    left.release()
    assert torch.equal(right.read_mla(), 2 * torch.ones(10, 8))
    assert torch.equal(right.load_kda(0), 3 * torch.ones(1, 2, 8, 8))


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, 2.5, "3", None])
def test_bad_sizes_are_refused(bad: object):
    pool = PagePool(4, 256)
    cache = PagedCache(pool, 8, 32)
    for call in (
        lambda: PagedCache(pool, tokens_per_page=bad),
        lambda: PagedCache(pool, tokens_per_page=8, bytes_per_token=bad),
        lambda: cache.append_mla(bad),
        lambda: cache.adopt_mla([0], bad),
    ):
        with pytest.raises(K3Error, match="must be an integer"):
            call()
    assert (cache.num_tokens, pool.num_free) == (0, 4)


def test_rows_that_overflow_a_page_are_refused_at_construction():
    with pytest.raises(K3Error, match="exceeds the page of 256 bytes"):
        PagedCache(PagePool(4, 256), tokens_per_page=9, bytes_per_token=32)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5)])
def test_a_token_range_outside_of_the_cache_is_refused(start: int, stop: int):
    cache = small_cache()
    cache.append_mla(4, torch.ones(4, 8))
    with pytest.raises(K3Error, match="outside"):
        cache.read_mla(start, stop)


# pages that change kind


def test_unwritten_rows_of_a_former_state_page_never_read_as_nan():
    pool = PagePool(1, 256)
    cache = PagedCache(pool, 8, 32)
    cache.store_kda(0, torch.full((1, 1, 8, 8), float("nan")))
    cache.release()
    cache.append_mla(3, torch.ones(3, 8))
    (page,) = (page.page for page in cache.mla_pages)
    whole = torch.from_numpy(pool.page_bytes_view(page).copy()).view(torch.float32).reshape(8, 8)
    weights = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert torch.equal(weights @ whole, 3 * torch.ones(8))


def test_a_state_on_a_former_mla_page_starts_from_zeros():
    pool = PagePool(2, 256)
    cache = PagedCache(pool, 8, 32)
    cache.append_mla(16, torch.full((16, 8), 7.0))
    cache.release()
    for page in pool.alloc(PageKind.KDA_STATE, 2):
        assert not pool.page_bytes_view(page).any()
