"""Which pages are owned, cached or free: references, kinds and one free list, without any bytes."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable
from types import MappingProxyType

import numpy as np

from k3core.errors import K3Error, PageError, PoolExhausted, require, require_count, shown
from k3core.paged_cache.free_list import FreeList
from k3core.paged_cache.stats import PageInfo, PageKind, PoolStats

MAX_PAGES = 2**31 - 1  # page ids and reference counts are C ints
_NEVER_USED = -1


class PageAccounts:
    """Places and references of pages; ``PagePool`` adds their bytes.

    Accounting costs arrays, not an object per page.

    Args:
        num_pages, page_bytes, on_evict: as in ``PagePool``.
    """

    def __init__(
        self, num_pages: int, page_bytes: int, on_evict: Callable[[tuple[int, ...]], None] | None
    ) -> None:
        self.num_pages = require_count("num_pages", num_pages, 1, MAX_PAGES)
        self.page_bytes = require_count("page_bytes", page_bytes, 1, 2**63 // self.num_pages)
        require(
            on_evict is None or callable(on_evict),
            f"on_evict={shown(on_evict)} must be callable or None",
        )
        self.on_evict = on_evict
        self._free_list = FreeList(self.num_pages)
        self._references = array("i", np.zeros(self.num_pages, np.intc).tobytes())
        self._kinds = array("b", np.full(self.num_pages, _NEVER_USED, np.int8).tobytes())
        self._published = bytearray(self.num_pages)
        self._num_owned = [0] * len(PageKind)
        self._num_cached = [0] * len(PageKind)

    # life of a page: alloc -> (retain) -> (publish) -> free -> (retain again | alloc)

    def alloc(self, kind: PageKind, count: int = 1) -> tuple[int, ...]:
        """Take ``count`` pages with one reference each: all of them or none.

        Free pages go first, then cached ones in the order in which they were released.

        Raises:
            K3Error: ``kind`` is not a ``PageKind`` or ``count`` is not an integer of at least 1.
            PoolExhausted: fewer than ``count`` pages are free or cached; nothing is changed.
        """
        _require_kind(kind)
        count = require_count("count", count, 1)
        if count > self.num_available:
            raise PoolExhausted(
                f"count={count} pages of {kind.name} do not fit: {self.num_available} of "
                f"{self.num_pages} are available; nothing was allocated"
            )
        references, kinds, published = self._references, self._kinds, self._published
        pages = self._free_list.pop_front(count)
        evicted: list[int] = []
        retyped: list[int] = []
        for page in pages:
            references[page] = 1
            if published[page]:
                published[page] = 0
                self._num_cached[kinds[page]] -= 1
                evicted.append(page)
            if kinds[page] != kind:
                if kinds[page] != _NEVER_USED:
                    retyped.append(page)
                kinds[page] = kind
        self._num_owned[kind] += count
        self._taken(retyped, evicted)
        if evicted and self.on_evict is not None:
            self.on_evict(tuple(evicted))
        return tuple(pages)

    def retain(self, pages: int | Iterable[int], kind: PageKind | None = None) -> None:
        """Add one reference to each page; a cached page leaves the free list.

        Args:
            pages: one page or several.
            kind: when given, every page must be of this kind.

        Raises:
            PageError: a page is out of range, named twice, holds nothing, or is of another kind;
                nothing is changed.
        """
        ids = self._page_list(pages)
        self._require_readable(ids, kind)
        for page in ids:
            if not self._references[page]:
                self._free_list.remove(page)
                self._num_cached[self._kinds[page]] -= 1
                self._num_owned[self._kinds[page]] += 1
            self._references[page] += 1

    def publish(self, pages: int | Iterable[int]) -> None:
        """Mark owned pages as worth keeping: read-only from now on, cached when released.

        Raises:
            PageError: a page is out of range, named twice, or not owned; nothing is changed.
        """
        ids = self._page_list(pages)
        self._require_owned(ids)
        for page in ids:
            self._published[page] = 1

    def unpublish(self, pages: int | Iterable[int]) -> None:
        """Withdraw published pages: owned ones are private again, cached ones become free.

        Raises:
            PageError: a page is out of range, named twice, or not published; nothing is changed.
        """
        ids = self._page_list(pages)
        for page in ids:
            if not self._published[page]:
                raise PageError(f"page {page} is not published")
        withdrawn = [page for page in ids if not self._references[page]]
        for page in ids:
            self._published[page] = 0
        for page in withdrawn:
            self._num_cached[self._kinds[page]] -= 1
            self._free_list.remove(page)
        self._return_free(withdrawn)

    def free(self, pages: int | Iterable[int], kind: PageKind | None = None) -> None:
        """Drop one reference of each page; the last one returns it to the free list.

        Released pages are reused in the order given: unpublished ones next, published ones after
        everything that is already on the list. Give the deepest page of a request first.

        Args:
            pages: one page or several.
            kind: when given, every page must be of this kind.

        Raises:
            PageError: a page is out of range, named twice in this call, already free, never
                allocated, or of another kind; nothing is changed.
        """
        ids = self._page_list(pages)
        self._require_owned(ids, kind)
        references, kinds, published = self._references, self._kinds, self._published
        released: list[int] = []
        for page in ids:
            references[page] -= 1
            if not references[page]:
                self._num_owned[kinds[page]] -= 1
                if published[page]:
                    self._num_cached[kinds[page]] += 1
                    self._free_list.push_back(page)
                else:
                    released.append(page)
        self._return_free(released)

    # reading the accounts

    @property
    def num_free(self) -> int:
        """Pages with no reference and nothing to read."""
        return self.num_pages - sum(self._num_owned) - sum(self._num_cached)

    @property
    def num_cached(self) -> int:
        """Published pages without a reference."""
        return sum(self._num_cached)

    @property
    def num_owned(self) -> int:
        """Pages with at least one reference."""
        return sum(self._num_owned)

    @property
    def num_available(self) -> int:
        """Pages that an allocation can take: free and cached."""
        return self.num_pages - sum(self._num_owned)

    def stats(self) -> PoolStats:
        """Pages by place and kind, now."""
        return PoolStats(
            num_pages=self.num_pages,
            page_bytes=self.page_bytes,
            num_free=self.num_free,
            owned=MappingProxyType({kind: self._num_owned[kind] for kind in PageKind}),
            cached=MappingProxyType({kind: self._num_cached[kind] for kind in PageKind}),
            num_references=int(np.frombuffer(self._references, np.intc).sum()),
        )

    def page_info(self, page: int) -> PageInfo:
        """Kind, references and publication of one page.

        Raises:
            PageError: the page is out of range.
        """
        page = self._page(page)
        kind = None if self._kinds[page] == _NEVER_USED else PageKind(self._kinds[page])
        return PageInfo(kind, self._references[page], bool(self._published[page]))

    def is_writable(self, page: int) -> bool:
        """True when the page has one reference and is not published."""
        page = self._page(page)
        return self._references[page] == 1 and not self._published[page]

    def free_order(self) -> tuple[int, ...]:
        """Free and cached pages in the order in which allocations will take them."""
        return tuple(self._free_list.order())

    def check(self) -> None:
        """Verify the whole accounting.

        Raises:
            PageError: what is wrong, with the pages and numbers that disagree.
        """
        self._free_list.check()
        references = np.frombuffer(self._references, np.intc)
        kinds = np.frombuffer(self._kinds, np.int8)
        published = np.frombuffer(self._published, np.uint8) > 0
        listed = np.zeros(self.num_pages, dtype=bool)
        listed[list(self.free_order())] = True
        owned = references > 0
        for bad, what in (
            (references < 0, "negative number of references"),
            ((kinds < _NEVER_USED) | (kinds >= len(PageKind)), "unknown kind"),
            ((owned | published) & (kinds == _NEVER_USED), "in use but never allocated"),
            (listed & owned, "on the free list although referenced"),
            (~listed & ~owned, "neither referenced nor on the free list"),
        ):
            if bad.any():
                raise PageError(f"pages {np.flatnonzero(bad)[:8].tolist()}: {what}")
        for kind in PageKind:
            for place, pages, counter in (
                ("owned", owned, self._num_owned[kind]),
                ("cached", published & ~owned, self._num_cached[kind]),
            ):
                found = int(np.count_nonzero(pages & (kinds == kind)))
                if found != counter:
                    raise PageError(
                        f"{kind.name}: {found} pages are {place}, the counter says {counter}"
                    )

    # what the bytes have to follow

    def _taken(self, retyped: list[int], evicted: list[int]) -> None:
        """Pages were handed out that had another kind, or something to read."""

    def _returned(self, pages: list[int]) -> None:
        """Pages became free."""

    # inner steps

    def _return_free(self, pages: list[int]) -> None:
        self._returned(pages)
        self._free_list.push_front(pages)

    def _page_list(self, pages: int | Iterable[int]) -> list[int]:
        """Distinct page ids in range, as plain ints."""
        ids = list(pages) if isinstance(pages, (tuple, list)) else _entries(pages)
        if set(map(type, ids)) - {int}:
            ids = [_page_id(page) for page in ids]
        if ids:
            for page in (min(ids), max(ids)):
                if not 0 <= page < self.num_pages:
                    raise PageError(f"page {page} is out of range: 0..{self.num_pages - 1}")
            if len(ids) > 1 and len(set(ids)) != len(ids):
                twice = next(page for page in ids if ids.count(page) > 1)
                raise PageError(f"page {twice} is named twice in one call")
        return ids

    def _page(self, page: int) -> int:
        """One page id in range."""
        number = _page_id(page)
        if not 0 <= number < self.num_pages:
            raise PageError(f"page {number} is out of range: 0..{self.num_pages - 1}")
        return number

    def _require_owned(self, ids: list[int], kind: PageKind | None = None) -> None:
        references = self._references
        for page in ids:
            if not references[page]:
                raise PageError(self._why_unusable(page))
        if kind is not None:
            self._require_page_kind(ids, kind)

    def _require_readable(self, ids: list[int], kind: PageKind | None) -> None:
        for page in ids:
            if not self._references[page] and not self._published[page]:
                raise PageError(self._why_unusable(page))
        if kind is not None:
            self._require_page_kind(ids, kind)

    def _require_page_kind(self, ids: list[int], kind: PageKind) -> None:
        _require_kind(kind)
        for page in ids:
            if self._kinds[page] != kind:
                actual = PageKind(self._kinds[page])
                raise PageError(f"page {page} holds {actual.name}, not {kind.name}")

    def _why_unusable(self, page: int) -> str:
        if self._kinds[page] == _NEVER_USED:
            return f"page {page} is foreign: this pool never handed it out"
        return f"page {page} is not owned: it is already free"


def _require_kind(kind: object) -> None:
    if not isinstance(kind, PageKind):
        raise K3Error(f"kind={shown(kind)} is not a PageKind; allowed: MLA_KV, KDA_STATE")


def _entries(pages: object) -> list[int]:
    """One page, or the pages of a collection; text, bytes and mappings are neither."""
    if not isinstance(pages, (int, str, bytes, bytearray, dict)):
        try:
            return list(pages)  # type: ignore[call-overload]
        except TypeError:
            pass
    return [pages]  # type: ignore[list-item]


def _page_id(page: object) -> int:
    try:
        if isinstance(page, bool):
            raise TypeError
        return operator.index(page)  # type: ignore[arg-type]
    except TypeError:
        raise PageError(f"page {shown(page)} is not a page id (an integer)") from None
