"""One pool of equal pages for two kinds of memory, over one real byte buffer.

A hybrid model keeps latent key/value rows of its MLA layers (they grow with the tokens) and
recurrent states of its KDA layers (they do not). Both live in pages of the same size, taken from
one free list, so neither kind can starve while the other has room (K3 report 5.4.1).

Every page is in exactly one of three places:

    owned    at least one reference; off the free list
    cached   no reference, but published: readable until it is reused; on the free list
    free     no reference and nothing to read; on the free list, ahead of the cached pages
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from k3core.errors import K3Error, PageError, PoolExhausted, require_count
from k3core.paged_cache.free_list import FreeList
from k3core.paged_cache.stats import PageInfo, PageKind, PoolStats

DEFAULT_PAGE_BYTES = 589_824  # 512 tokens of one MLA layer in bfloat16 (512 x 576 x 2 B)

_NEVER_USED = -1


class PagePool:
    """Equal pages of two kinds on one free list.

    Pages are plain ints, ``0 <= page < num_pages``. Accounting costs arrays, not an object per
    page; the byte buffer (``num_pages * page_bytes``) is made when bytes are first asked for.

    A page that is handed out as another kind than it had is scrubbed first, so it never leaks its
    old bytes. With ``poison`` the scrub value is ``0xFF`` (NaN in every float format) instead of
    zero, and pages that become free are scrubbed at once: a reader of bytes it never wrote meets
    NaN.

    Args:
        num_pages: pages in the pool.
        page_bytes: bytes of one page.
        poison: scrub with NaN, and at release as well (for tests).
        on_evict: called with the cached pages that an allocation reused, after it is complete;
            it must not raise.

    Raises:
        K3Error: a size is not an integer of at least 1.
    """

    def __init__(
        self,
        num_pages: int,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        *,
        poison: bool = False,
        on_evict: Callable[[tuple[int, ...]], None] | None = None,
    ) -> None:
        self.num_pages = require_count("num_pages", num_pages, 1)
        self.page_bytes = require_count("page_bytes", page_bytes, 1)
        self.poison = poison
        self.on_evict = on_evict
        self._free_list = FreeList(self.num_pages)
        self._references = array("i", np.zeros(self.num_pages, np.intc).tobytes())
        self._kinds = array("b", np.full(self.num_pages, _NEVER_USED, np.int8).tobytes())
        self._published = bytearray(self.num_pages)
        self._num_owned = [0] * len(PageKind)
        self._num_cached = [0] * len(PageKind)
        self._buffer: npt.NDArray[np.uint8] | None = None

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
        self._scrub({*retyped, *evicted} if self.poison else retyped)
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

    # bytes

    def page_bytes_view(self, page: int, kind: PageKind | None = None) -> npt.NDArray[np.uint8]:
        """The bytes of an owned or cached page, ``(page_bytes,)`` uint8, without a copy.

        The view is read-only unless the page is writable (one reference, unpublished). It is
        valid until the page is released.

        Raises:
            PageError: the page is out of range, holds nothing, or is of another kind.
        """
        ids = self._page_list(page)
        self._require_readable(ids, kind)
        view: npt.NDArray[np.uint8] = self._bytes()[ids[0]]
        view.flags.writeable = self.is_writable(page)
        return view

    def copy_page(self, source: int, target: int) -> None:
        """Copy all bytes of a readable page into a writable one of the same kind.

        Costs nothing as long as nobody asked this pool for bytes.

        Raises:
            PageError: a page is out of range, ``source`` holds nothing, ``target`` may not be
                written, or their kinds differ; nothing is changed.
        """
        self._require_readable(self._page_list(source), None)
        kind = PageKind(self._kinds[source])
        self._require_owned(self._page_list(target), kind)
        if not self.is_writable(target):
            raise PageError(f"page {target} is shared or published: it may not be written")
        if self._buffer is not None:
            self._buffer[target] = self._buffer[source]

    def clear_pages(self, pages: int | Iterable[int]) -> None:
        """Zero writable pages: what a state page needs before a request without a prefix uses it.

        A page that keeps its kind is handed out with its old bytes (vLLM #56524).

        Raises:
            PageError: a page is out of range, named twice, or may not be written.
        """
        ids = self._page_list(pages)
        for page in ids:
            if not self.is_writable(page):
                raise PageError(f"page {page} is shared or published: it may not be written")
        if self._buffer is not None or self.poison:
            self._bytes()[ids] = 0

    @property
    def has_bytes(self) -> bool:
        """Whether the byte buffer exists; before that the pool is accounting only."""
        return self._buffer is not None

    def is_writable(self, page: int) -> bool:
        """True when the page has one reference and is not published."""
        (page,) = self._page_list(page)
        return self._references[page] == 1 and not self._published[page]

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
        (page,) = self._page_list(page)
        kind = None if self._kinds[page] == _NEVER_USED else PageKind(self._kinds[page])
        return PageInfo(kind, self._references[page], bool(self._published[page]))

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

    # inner steps

    def _scrub(self, pages: Iterable[int]) -> None:
        """Overwrite every byte of ``pages``, if there are bytes at all."""
        if self._buffer is not None:
            self._buffer[list(pages)] = 0xFF if self.poison else 0

    def _bytes(self) -> npt.NDArray[np.uint8]:
        if self._buffer is None:
            shape = (self.num_pages, self.page_bytes)
            if self.poison:
                self._buffer = np.full(shape, 0xFF, np.uint8)
            else:
                self._buffer = np.zeros(shape, np.uint8)
        return self._buffer

    def _return_free(self, pages: list[int]) -> None:
        if self.poison:
            self._scrub(pages)
        self._free_list.push_front(pages)

    def _page_list(self, pages: int | Iterable[int]) -> list[int]:
        """Distinct page ids in range, as plain ints."""
        ids = list(pages) if isinstance(pages, Iterable) else [pages]
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
        raise K3Error(f"kind={kind!r} is not a PageKind; allowed: MLA_KV, KDA_STATE")


def _page_id(page: object) -> int:
    try:
        if isinstance(page, bool):
            raise TypeError
        return operator.index(page)  # type: ignore[arg-type]
    except TypeError:
        raise PageError(f"page {page!r} is not a page id (an integer)") from None
