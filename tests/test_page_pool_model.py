"""Random operations on the pool and on caches, against plain lists and dicts.

After every step, also a refused one: the accounting is whole, the pages are partitioned as the
model says, the free order is the model's, and every byte that anybody may read is what was
written.
"""

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from k3core.errors import K3Error, PageError, PoolExhausted
from k3core.paged_cache import PagedCache, PageKind, PagePool

NUM_PAGES = 7
PAGE_BYTES = 64
KINDS = st.sampled_from(list(PageKind))


class PoolMachine(RuleBasedStateMachine):
    """The pool against a list of free pages and three dicts."""

    @initialize(poison=st.booleans())
    def start(self, poison: bool) -> None:
        self.evicted: list[int] = []
        self.pool = PagePool(
            NUM_PAGES, PAGE_BYTES, poison=poison, on_evict=lambda pages: self.evicted.extend(pages)
        )
        self.scrubbed = 0xFF if poison else 0
        self.order = list(range(NUM_PAGES))
        self.references: dict[int, int] = {}
        self.published: set[int] = set()
        self.kind: dict[int, PageKind] = {}
        self.content: dict[int, int] = {}
        self.stamp = 0

    def readable(self) -> list[int]:
        return sorted(self.references.keys() | self.published)

    @rule(kind=KINDS, count=st.integers(1, NUM_PAGES + 1))
    def alloc(self, kind: PageKind, count: int) -> None:
        if count > len(self.order):
            with pytest.raises(PoolExhausted):
                self.pool.alloc(kind, count)
            return
        self.evicted.clear()
        pages = self.pool.alloc(kind, count)
        expected, self.order = self.order[:count], self.order[count:]
        assert list(pages) == expected
        assert self.evicted == [page for page in expected if page in self.published]
        for page in pages:
            view = self.pool.page_bytes_view(page)
            if self.kind.get(page, kind) != kind or page not in self.content:
                assert (view == self.scrubbed).all(), "old bytes of another kind"
            self.stamp = self.stamp % 250 + 1
            view[:] = self.stamp
            self.content[page] = self.stamp
            self.kind[page] = kind
            self.references[page] = 1
            self.published.discard(page)

    @rule(data=st.data())
    @precondition(lambda self: self.references)
    def free(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.references)), unique=True))
        self.pool.free(pages)
        released = []
        for page in pages:
            self.references[page] -= 1
            if not self.references[page]:
                del self.references[page]
                if page in self.published:
                    self.order.append(page)
                else:
                    released.append(page)
        self.order[:0] = released

    @rule(data=st.data())
    @precondition(lambda self: self.readable())
    def retain(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.readable()))
        self.pool.retain(page)
        if page in self.order:
            self.order.remove(page)
        self.references[page] = self.references.get(page, 0) + 1

    @rule(data=st.data())
    @precondition(lambda self: self.references)
    def publish(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.references)))
        self.pool.publish(page)
        self.published.add(page)

    @rule(data=st.data())
    @precondition(lambda self: self.published)
    def unpublish(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.published)), unique=True))
        self.pool.unpublish(pages)
        withdrawn = [page for page in pages if page in self.order]
        self.published -= set(pages)
        self.order = withdrawn + [page for page in self.order if page not in withdrawn]

    @rule(data=st.data(), operation=st.sampled_from(["free", "retain", "publish", "unpublish"]))
    def name_a_page_that_may_not_be_named(self, data: st.DataObject, operation: str) -> None:
        allowed = {
            "free": set(self.references),
            "retain": set(self.readable()),
            "publish": set(self.references),
            "unpublish": self.published,
        }[operation]
        bad = data.draw(st.sampled_from(sorted({*range(-1, NUM_PAGES + 1)} - allowed)))
        good = [page for page in sorted(allowed) if page != bad]
        for pages in ([*good, bad], [bad, bad], [*good, *good[:1], bad]):
            with pytest.raises(PageError):
                getattr(self.pool, operation)(pages)

    @invariant()
    def the_accounting_is_whole(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        assert list(self.pool.free_order()) == self.order
        cached = self.published - self.references.keys()
        stats = self.pool.stats()
        assert stats.num_owned == len(self.references)
        assert stats.num_cached == len(cached)
        assert stats.num_free == NUM_PAGES - len(self.references) - len(cached)
        assert stats.num_references == sum(self.references.values())
        for kind in PageKind:
            assert stats.owned[kind] == sum(self.kind[page] == kind for page in self.references)
            assert stats.cached[kind] == sum(self.kind[page] == kind for page in cached)

    @invariant()
    def readable_bytes_are_what_was_written(self) -> None:
        if not hasattr(self, "pool"):
            return
        for page in self.readable():
            assert (self.pool.page_bytes_view(page) == self.content[page]).all()


ROWS = st.integers(1, 9)
STATES = st.tuples(
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
CACHES = st.integers(0, 2)


class CacheMachine(RuleBasedStateMachine):
    """Three requests on one pool, with readers of their pages, against kept tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES * 2, PAGE_BYTES, poison=True)
        self.caches = [PagedCache(self.pool, 4, 16) for _ in range(3)]
        self.rows = [torch.empty(0, 4) for _ in range(3)]
        self.states: list[dict[int, torch.Tensor]] = [{} for _ in range(3)]
        self.readers: dict[int, bytes] = {}
        self.seed = 0

    def fresh(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        self.seed += 1
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    @rule(which=CACHES, count=ROWS)
    def append(self, which: int, count: int) -> None:
        rows = self.fresh(count, 4)
        try:
            self.caches[which].append_mla(count, rows)
        except PoolExhausted:
            return
        self.rows[which] = torch.cat([self.rows[which], rows])

    @rule(which=CACHES, data=st.data())
    def cut_the_tail(self, which: int, data: st.DataObject) -> None:
        keep = data.draw(st.integers(0, len(self.rows[which])))
        self.caches[which].truncate_mla(keep)
        self.rows[which] = self.rows[which][:keep]

    @rule(which=CACHES, layer=st.integers(0, 1), state=STATES)
    def store(self, which: int, layer: int, state: tuple[int, int, torch.dtype]) -> None:
        batch, heads, dtype = state
        tensor = self.fresh(batch, heads, 4, 3, dtype=dtype)
        try:
            self.caches[which].store_kda(layer, tensor)
        except PoolExhausted:
            return
        self.states[which][layer] = tensor

    @rule(which=CACHES)
    def release(self, which: int) -> None:
        self.caches[which].release()
        self.rows[which] = torch.empty(0, 4)
        self.states[which] = {}

    @rule(source=CACHES, reader=CACHES, data=st.data())
    def share_a_prefix(self, source: int, reader: int, data: st.DataObject) -> None:
        if not len(self.rows[source]) or self.caches[reader].num_tokens:
            return
        count = data.draw(st.integers(1, len(self.rows[source])))
        pages = [page.page for page in self.caches[source].mla_pages][: -(-count // 4)]
        self.caches[reader].adopt_mla(pages, count, torch.float32, (4,))
        self.rows[reader] = self.rows[source][:count]

    @rule(which=CACHES, data=st.data())
    def read_along(self, which: int, data: st.DataObject) -> None:
        pages = [page.page for page in self.caches[which].mla_pages]
        pages += [page for group in self.caches[which].kda_pages.values() for page in group]
        unread = sorted(set(pages) - self.readers.keys())
        if unread:
            page = data.draw(st.sampled_from(unread))
            self.pool.retain(page)
            self.readers[page] = self.pool.page_bytes_view(page).tobytes()

    @rule(data=st.data())
    @precondition(lambda self: self.readers)
    def stop_reading(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.readers)))
        del self.readers[page]
        self.pool.free(page)

    @rule(which=CACHES)
    def ask_for_nonsense(self, which: int) -> None:
        cache = self.caches[which]
        for call in (
            lambda: cache.append_mla(0),
            lambda: cache.append_mla(2, torch.zeros(3, 4)),
            lambda: cache.append_mla(2, torch.zeros(2, 5)),
            lambda: cache.append_mla(10_000),
            lambda: cache.store_kda(0, torch.zeros(1, 999, 4, 3)),
            lambda: cache.store_kda(-1, torch.zeros(1, 1, 4, 3)),
            lambda: cache.load_kda(7),
        ):
            with pytest.raises(K3Error):
                call()

    @invariant()
    def references_are_those_of_the_caches_and_readers(self) -> None:
        self.pool.check()
        counts = np.zeros(self.pool.num_pages, dtype=int)
        kinds: dict[int, PageKind] = {}
        for cache in self.caches:
            for page in cache.mla_pages:
                counts[page.page] += 1
                kinds[page.page] = PageKind.MLA_KV
            for pages in cache.kda_pages.values():
                counts[list(pages)] += 1
                kinds.update(dict.fromkeys(pages, PageKind.KDA_STATE))
        for page in self.readers:
            counts[page] += 1
        infos = [self.pool.page_info(page) for page in range(self.pool.num_pages)]
        assert [info.num_references for info in infos] == counts.tolist()
        assert all(infos[page].kind == kind for page, kind in kinds.items())

    @invariant()
    def contents_are_what_was_stored(self) -> None:
        for cache, rows, states in zip(self.caches, self.rows, self.states, strict=True):
            if len(rows):
                assert torch.equal(cache.read_mla(), rows)
            assert cache.kda_pages.keys() == states.keys()
            for layer, state in states.items():
                assert torch.equal(cache.load_kda(layer), state)
        for page, content in self.readers.items():
            assert self.pool.page_bytes_view(page).tobytes() == content


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40)
TestCaches = CacheMachine.TestCase
TestCaches.settings = settings(max_examples=40, stateful_step_count=40)
