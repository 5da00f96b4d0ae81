"""Pages that can be handed out, in order: a doubly linked list threaded through two arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from k3core.errors import PageError

_OFF_LIST = -1


class FreeList:
    """Page ids ``0..num_pages-1`` in the order in which they will be taken.

    Every operation costs the pages that it names, also a removal from the middle. The caller
    keeps the rule that a page is pushed only while off the list and removed only while on it.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # Index num_pages is the head and the tail.
        ids = np.arange(num_pages + 1, dtype=np.intc)
        self._next = array("i", np.roll(ids, -1).tobytes())
        self._prev = array("i", np.roll(ids, 1).tobytes())

    def pop_front(self, count: int) -> list[int]:
        """Take the first ``count`` pages; the list must hold as many."""
        links, back, head = self._next, self._prev, self.num_pages
        pages: list[int] = []
        page = links[head]
        for _ in range(count):
            pages.append(page)
            following = links[page]
            links[page] = back[page] = _OFF_LIST
            page = following
        links[head] = page
        back[page] = head
        return pages

    def push_front(self, pages: Iterable[int]) -> None:
        """Put ``pages`` ahead of all others, in their order."""
        links, back, before = self._next, self._prev, self.num_pages
        first = links[before]
        for page in pages:
            links[before] = page
            back[page] = before
            before = page
        links[before] = first
        back[first] = before

    def push_back(self, page: int) -> None:
        """Put ``page`` after all others."""
        last, end = self._prev[self.num_pages], self.num_pages
        self._next[last] = self._prev[end] = page
        self._prev[page] = last
        self._next[page] = end

    def remove(self, page: int) -> None:
        """Take ``page`` out of wherever it is."""
        before, after = self._prev[page], self._next[page]
        self._next[before] = after
        self._prev[after] = before
        self._next[page] = self._prev[page] = _OFF_LIST

    def order(self) -> list[int]:
        """All pages, the next to be taken first."""
        pages: list[int] = []
        page = self._next[self.num_pages]
        while page != self.num_pages and len(pages) <= self.num_pages:
            pages.append(page)
            page = self._next[page]
        return pages

    def check(self) -> None:
        """Verify the links.

        Raises:
            PageError: a page is listed twice, the list reads differently backwards, or a page
                off the list still has links.
        """
        order = np.array(self.order(), dtype=np.intc)
        counts = np.bincount(order, minlength=self.num_pages)
        if (counts > 1).any():
            twice = np.flatnonzero(counts > 1)[:8].tolist()
            raise PageError(f"pages {twice}: more than once on the free list")
        back = np.frombuffer(self._prev, np.intc)
        ring = np.concatenate((order, [self.num_pages]))
        if not np.array_equal(back[ring], np.roll(ring, 1)):
            raise PageError("the free list reads differently backwards")
        links = np.frombuffer(self._next, np.intc)
        off_list = np.flatnonzero(counts == 0)
        linked = off_list[(links[off_list] != _OFF_LIST) | (back[off_list] != _OFF_LIST)]
        if len(linked):
            raise PageError(f"pages {linked[:8].tolist()}: linked although off the free list")
