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

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from k3core.errors import PageError, require_type
from k3core.paged_cache.accounts import PageAccounts
from k3core.paged_cache.stats import PageKind

DEFAULT_PAGE_BYTES = 589_824  # 512 tokens of one MLA layer in bfloat16 (512 x 576 x 2 B)


class PagePool(PageAccounts):
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
        super().__init__(num_pages, page_bytes, on_evict)
        self.poison = require_type("poison", poison, bool)
        self._buffer: npt.NDArray[np.uint8] | None = None

    def page_bytes_view(self, page: int, kind: PageKind | None = None) -> npt.NDArray[np.uint8]:
        """The bytes of an owned or cached page, ``(page_bytes,)`` uint8, without a copy.

        The view is read-only unless the page is writable (one reference, unpublished). It is
        valid until the page is released.

        Raises:
            PageError: the page is out of range, holds nothing, or is of another kind.
        """
        page = self._page(page)
        self._require_readable([page], kind)
        view: npt.NDArray[np.uint8] = self._bytes()[page]
        view.flags.writeable = self.is_writable(page)
        return view

    def copy_page(self, source: int, target: int) -> None:
        """Copy all bytes of a readable page into a writable one of the same kind.

        Costs nothing as long as nobody asked this pool for bytes.

        Raises:
            PageError: a page is out of range, ``source`` holds nothing, ``target`` may not be
                written, or their kinds differ; nothing is changed.
        """
        source, target = self._page(source), self._page(target)
        self._require_readable([source], None)
        self._require_owned([target], PageKind(self._kinds[source]))
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

    # inner steps

    def _taken(self, retyped: list[int], evicted: list[int]) -> None:
        self._scrub({*retyped, *evicted} if self.poison else retyped)

    def _returned(self, pages: list[int]) -> None:
        if self.poison:
            self._scrub(pages)

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
