"""A pool that watches itself: pages that change kind, and what their next owner finds."""

from __future__ import annotations

import numpy as np
import torch

from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.studies.paged_cache.sizes import TORCH_DTYPES

KIND_CODES = {PageKind.MLA_KV: "mla", PageKind.KDA_STATE: "kda"}


class WatchedPool(PagePool):
    """A pool that notes which pages change kind and what a reader of the new kind would find."""

    def __init__(self, num_pages: int, page_bytes: int, dtypes: dict[PageKind, str]) -> None:
        super().__init__(num_pages, page_bytes)
        self.dtypes = dtypes
        self.step = 0
        self.retyped: list[tuple[int, int, int, int]] = []  # step, page, stale bytes, NaN values

    def alloc(self, kind: PageKind, count: int = 1) -> tuple[int, ...]:
        before = {page: self.page_info(page).kind for page in self.free_order()[:count]}
        pages = super().alloc(kind, count)
        for page in pages:
            if before[page] not in (None, kind):
                stale, num_nan = stale_content(self, page, self.dtypes[kind])
                self.retyped.append((self.step, page, stale, num_nan))
        return pages


class UnscrubbedPool(WatchedPool):
    """The fault: pages change kind with the bytes of their former owner."""

    def _scrub(self, pages: object) -> None:
        pass


def stale_content(pool: PagePool, page: int, dtype: str) -> tuple[int, int]:
    """Bytes that are not zero, and values that are NaN when read in ``dtype``."""
    view = pool.page_bytes_view(page)
    stale = int(np.count_nonzero(view))
    if not stale:
        return 0, 0
    content = torch.from_numpy(view.copy())
    width = TORCH_DTYPES[dtype].itemsize
    values = content[: len(content) // width * width].view(TORCH_DTYPES[dtype])
    return stale, int(values.to(torch.float32).isnan().sum())
