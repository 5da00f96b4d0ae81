"""What a page that changes kind would hand to its next owner, with and without scrubbing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import pandas as pd
import torch

from k3core.errors import require_count
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.studies.paged_cache.sizes import TORCH_DTYPES, RequestSizes, SizeOptions, request_sizes
from k3core.studies.paged_cache.watched import stale_content
from k3core.units import count_text


class _UnscrubbedPool(PagePool):
    def _scrub(self, pages: object) -> None:
        pass


@dataclass(frozen=True)
class StaleStudy:
    """One page in both directions of a change of kind.

    Tables:
        rows: the first rows of a former state page after three real rows were written.
        readers: what the next owner finds, per direction, with and without scrubbing.
    """

    tables: dict[str, pd.DataFrame]
    sizes: RequestSizes
    num_written: int

    def found(self, direction: str, pool: str, column: str) -> float:
        """One number of ``readers``; ``pool`` is ``scrubbed`` or ``unscrubbed``."""
        readers = self.tables["readers"]
        row = readers[(readers["direction"] == direction) & (readers["pool"] == pool)]
        return float(row[column].iloc[0])

    @property
    def wrong_outputs(self) -> dict[str, str]:
        """Attention outputs over a former state page, wrong of all read, without scrubbing."""
        names = {"wrong": "wrong_values", "read": "read"}
        return {
            name: count_text(self.found("state_to_rows", "unscrubbed", column))
            for name, column in names.items()
        }


def stale_bytes(
    num_written: int = 3,
    shown_rows: int = 48,
    **options: Unpack[SizeOptions],
) -> StaleStudy:
    """A state page becomes an MLA page, and the reverse.

    In the first direction ``num_written`` rows are written and all rows of the page are read with
    weight zero on the others, as a masked attention kernel does (vLLM #35138): zero times NaN is
    NaN. In the other a fresh request reads its state before it writes one (vLLM #56524).

    Args:
        options: sizes, as in ``request_sizes``.

    Raises:
        K3Error: a size is out of range.
    """
    sizes = request_sizes(**options)
    num_written = min(require_count("num_written", num_written, 1), sizes.tokens_per_page)
    shown_rows = min(require_count("shown_rows", shown_rows, 1), sizes.tokens_per_page)
    rows, readers = [], []
    for name, make in (("scrubbed", PagePool), ("unscrubbed", _UnscrubbedPool)):
        page_rows, result = _state_then_rows(sizes, make, num_written)
        readers.append(("state_to_rows", name, *result))
        for row in range(shown_rows):
            num_nan = int(page_rows[row].isnan().sum())
            dirty = int((page_rows[row] != 0).sum())
            status = "written" if row < num_written else "stale" if dirty else "clean"
            rows.append((name, row, status, num_nan))
        readers.append(("rows_to_state", name, *_rows_then_state(sizes, make)))
    return StaleStudy(
        tables={
            "rows": pd.DataFrame(rows, columns=["pool", "row", "status", "nan_values"]),
            "readers": pd.DataFrame(
                readers,
                columns=["direction", "pool", "stale_bytes", "nan_values", "wrong_values", "read"],
            ),
        },
        sizes=sizes,
        num_written=num_written,
    )


def _pool(sizes: RequestSizes, make: type[PagePool]) -> PagePool:
    num_pages = -(-sizes.kda_bytes // sizes.page_bytes)
    sizes.require_buffer(num_pages)
    return make(num_pages, sizes.page_bytes)


def _state_then_rows(
    sizes: RequestSizes, make: type[PagePool], num_written: int
) -> tuple[torch.Tensor, tuple[int, int, int, int]]:
    """Rows of the reused page, and (stale bytes, NaN values, wrong outputs, outputs)."""
    pool = _pool(sizes, make)
    cache = sizes.cache(pool)
    cache.store_kda(0, *sizes.state(seed=4))
    cache.release()
    if pool.num_pages > 1:  # others take the deeper pages; the first one is full of state
        pool.alloc(PageKind.MLA_KV, pool.num_pages - 1)
    (page,) = pool.alloc(PageKind.MLA_KV)
    stale, num_nan = stale_content(pool, page, sizes.memory.mla_dtype)
    pool.free(page)
    rows = sizes.rows(num_written, seed=5)
    cache.append_mla(num_written, rows)
    page = cache.mla_pages[0].page
    content = torch.from_numpy(pool.page_bytes_view(page).copy()).view(rows.dtype)
    page_rows = content.reshape(sizes.tokens_per_page, -1).to(torch.float32)
    weights = torch.zeros(sizes.tokens_per_page)
    weights[:num_written] = 1 / num_written
    output = weights @ page_rows
    expected = weights[:num_written] @ rows.to(torch.float32)
    wrong = int((~torch.isclose(output, expected, rtol=1e-4, atol=1e-5)).sum())
    return page_rows, (stale, num_nan, wrong, output.numel())


def _rows_then_state(sizes: RequestSizes, make: type[PagePool]) -> tuple[int, int, int, int]:
    """(stale bytes, NaN values, entries of the fresh state that are not zero, entries)."""
    pool = _pool(sizes, make)
    cache = sizes.cache(pool)
    num_tokens = pool.num_pages * sizes.tokens_per_page
    cache.append_mla(num_tokens, sizes.rows(num_tokens, seed=6))
    cache.release()
    stale = num_nan = wrong = total = 0
    dtype = sizes.memory.state_dtype
    for page in pool.alloc(PageKind.KDA_STATE, pool.num_pages):
        page_stale, page_nan = stale_content(pool, page, dtype)
        stale, num_nan = stale + page_stale, num_nan + page_nan
        content = torch.from_numpy(pool.page_bytes_view(page).copy())
        width = TORCH_DTYPES[dtype].itemsize
        values = content[: len(content) // width * width].view(TORCH_DTYPES[dtype])
        wrong += int((values != 0).sum())
        total += values.numel()
    return stale, num_nan, wrong, total
