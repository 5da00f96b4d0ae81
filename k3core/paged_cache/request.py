"""The memory of one request in pages: MLA rows that grow with it, KDA states that do not.

    append_mla   ceil(tokens / tokens_per_page) pages, the last page is filled first
    store_kda    ceil(bytes / page_bytes) pages per layer, whatever the length (K3 report 5.4.1)

Both are all-or-nothing: when the pool has too few pages nothing changes. A page that somebody
else can read (referenced twice, or published) is copied before it is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from k3core.errors import (
    CacheError,
    require,
    require_count,
    require_counts,
    require_range,
    require_type,
)
from k3core.paged_cache.head_stream import from_bytes, to_bytes
from k3core.paged_cache.layer_state import StateFormat, StateWithWindow, encode_state
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind


class MLAPage(NamedTuple):
    """A page of MLA rows and the number of tokens in it."""

    page: int
    filled: int


class _RowFormat(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]


class _StoredState(NamedTuple):
    pages: tuple[int, ...]
    format: StateFormat


class PagedCache:
    """Pages of one request.

    Args:
        pool: where pages come from; several caches share one pool.
        tokens_per_page: MLA rows in a page.
        bytes_per_token: bytes of one MLA row (576 values in bfloat16 for one layer).

    Raises:
        K3Error: a size is not an integer of at least 1, or a full page of rows does not fit into
            ``pool.page_bytes``.
    """

    def __init__(
        self, pool: PagePool, tokens_per_page: int = 512, bytes_per_token: int = 1152
    ) -> None:
        self.pool = require_type("pool", pool, PagePool)
        self.tokens_per_page = require_count("tokens_per_page", tokens_per_page, 1)
        self.bytes_per_token = require_count("bytes_per_token", bytes_per_token, 1)
        require(
            self.tokens_per_page * self.bytes_per_token <= pool.page_bytes,
            f"tokens_per_page={tokens_per_page} x bytes_per_token={bytes_per_token} exceeds the "
            f"page of {pool.page_bytes} bytes",
        )
        self._mla: list[int] = []
        self._num_tokens = 0
        self._num_written = 0
        self._row_format: _RowFormat | None = None
        self._kda: dict[int, _StoredState] = {}

    # MLA rows

    @property
    def num_tokens(self) -> int:
        """Tokens appended so far."""
        return self._num_tokens

    @property
    def mla_pages(self) -> tuple[MLAPage, ...]:
        """Pages in token order with their fill; only the last one may be partly filled."""
        full = self.tokens_per_page
        return tuple(
            MLAPage(page, min(full, self._num_tokens - index * full))
            for index, page in enumerate(self._mla)
        )

    def append_mla(self, num_tokens: int, rows: torch.Tensor | None = None) -> tuple[int, ...]:
        """Add tokens; the last page is filled before new pages are taken.

        Args:
            num_tokens: tokens to add.
            rows: ``(num_tokens, ...)``, any dtype, ``bytes_per_token`` bytes a row; written into
                the pages. Without it only the accounting is done.

        Returns:
            The pages that were taken for this call.

        Raises:
            K3Error: a bad size, or rows of another size, dtype or shape than before.
            CacheError: rows are given after tokens without rows.
            PoolExhausted: too few pages; nothing is changed.
        """
        num_tokens = require_count("num_tokens", num_tokens, 1)
        row_format = None if rows is None else self._check_rows(num_tokens, rows)
        stop = self._num_tokens + num_tokens
        num_new = -(-stop // self.tokens_per_page) - len(self._mla)
        room = len(self._mla) * self.tokens_per_page - self._num_tokens
        shared_tail = room > 0 and not self.pool.is_writable(self._mla[-1])
        taken: tuple[int, ...] = ()
        if num_new + shared_tail:
            taken = self.pool.alloc(PageKind.MLA_KV, num_new + shared_tail)
        if shared_tail:
            tail = self._mla[-1]
            if self._num_written:
                self.pool.page_bytes_view(taken[0])[:] = self.pool.page_bytes_view(tail)
            self._mla[-1] = taken[0]
            self.pool.free(tail)
        self._mla.extend(taken[shared_tail:])
        if rows is not None:
            self._row_format = row_format
            self._write_rows(to_bytes(rows).reshape(num_tokens, -1))
            self._num_written = stop
        self._num_tokens = stop
        return taken

    def truncate_mla(self, num_tokens: int) -> tuple[int, ...]:
        """Keep only the first ``num_tokens`` rows: how rejected drafts leave an MLA cache.

        Args:
            num_tokens: rows to keep, 0 to the present number.

        Returns:
            The pages that were given up, the deepest first.

        Raises:
            K3Error: ``num_tokens`` is out of range.
        """
        require(
            type(num_tokens) is int and 0 <= num_tokens <= self._num_tokens,
            f"num_tokens={num_tokens!r} is outside of 0..{self._num_tokens}",
        )
        needed = -(-num_tokens // self.tokens_per_page)
        surplus = tuple(reversed(self._mla[needed:]))
        self.pool.free(surplus)
        del self._mla[needed:]
        self._num_tokens = num_tokens
        self._num_written = min(self._num_written, num_tokens)
        return surplus

    def adopt_mla(
        self,
        pages: Sequence[int],
        num_tokens: int,
        dtype: torch.dtype | None = None,
        row_shape: Sequence[int] | None = None,
    ) -> None:
        """Start this cache on rows that others wrote (a prefix hit): share, do not copy.

        Each page gets one more reference. A partly filled last page is copied when the first
        token is appended to it.

        Args:
            pages: pages of rows in token order, ``ceil(num_tokens / tokens_per_page)`` of them.
            num_tokens: tokens they hold.
            dtype: element type of the rows; None reads them as uint8.
            row_shape: shape of one row; None is flat.

        Raises:
            CacheError: this cache already has tokens.
            K3Error: the number of pages does not fit ``num_tokens``, or the row format does not
                fit ``bytes_per_token``.
            PageError: a page holds nothing, or not MLA rows; nothing is changed.
        """
        num_tokens = require_count("num_tokens", num_tokens, 1)
        require(not self._mla, "pages can be adopted only by an empty cache", CacheError)
        pages = require_counts("pages", pages)
        needed = -(-num_tokens // self.tokens_per_page)
        require(
            len(pages) == needed,
            f"{len(pages)} pages were given; num_tokens={num_tokens} needs {needed}",
        )
        row_format = None
        shape = None if row_shape is None else require_counts("row_shape", row_shape)
        if dtype is not None:
            require_type("dtype", dtype, torch.dtype)
            flat = (self.bytes_per_token // dtype.itemsize,)
            row_format = _RowFormat(dtype, flat if shape is None else shape)
            self._require_row_bytes(row_format)
        self.pool.retain(pages, PageKind.MLA_KV)
        self._mla = list(pages)
        self._num_tokens = self._num_written = num_tokens
        self._row_format = row_format

    def read_mla(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """A copy of rows ``start..stop`` in the dtype and shape in which they were given.

        Raises:
            CacheError: some of the tokens were appended without rows.
            K3Error: the range is outside of ``0..num_tokens``.
        """
        end = self._num_tokens
        start, stop = require_range("tokens", start, end if stop is None else stop, end)
        require(
            self._num_written == self._num_tokens,
            f"tokens {self._num_written}..{self._num_tokens} were appended without rows",
            CacheError,
        )
        raw = torch.empty((stop - start, self.bytes_per_token), dtype=torch.uint8)
        rows = raw.numpy()
        token = start
        while token < stop:
            index, offset = divmod(token, self.tokens_per_page)
            count = min(self.tokens_per_page - offset, stop - token)
            page_rows = self._page_rows(self._mla[index])
            rows[token - start : token - start + count] = page_rows[offset : offset + count]
            token += count
        if self._row_format is None:
            return raw
        return from_bytes(raw, self._row_format.dtype, (len(raw), *self._row_format.shape))

    # KDA states

    @property
    def kda_pages(self) -> dict[int, tuple[int, ...]]:
        """Pages by layer."""
        return {layer: stored.pages for layer, stored in self._kda.items()}

    @property
    def kda_bytes(self) -> dict[int, int]:
        """Bytes of state and convolution window by layer; the rest of its pages is zero."""
        return {layer: stored.format.num_bytes for layer, stored in self._kda.items()}

    def store_kda(
        self,
        layer: int,
        state: torch.Tensor | StateWithWindow,
        conv_window: torch.Tensor | None = None,
    ) -> tuple[int, ...]:
        """Write the state of one layer into pages, head by head, and pad with zeros.

        Storing a layer again overwrites its own pages; pages that others can read are left to
        them and replaced.

        Args:
            layer: any non-negative layer number.
            state: ``(B, H, dk, dv)`` in any dtype, alone or in a named pair such as ``KDAState``.
            conv_window: last inputs of the short convolution, any shape; stored after the state.

        Returns:
            The pages of the layer, ``ceil(bytes / page_bytes)`` of them.

        Raises:
            K3Error: a bad layer, an empty or misshapen state, or a window given twice.
            PoolExhausted: too few pages; the old state of the layer is untouched.
        """
        layer = require_count("layer", layer)
        content, state_format = encode_state(state, conv_window)
        pages = self._pages_for_state(layer, -(-state_format.num_bytes // self.pool.page_bytes))
        self._write_stream(pages, content)
        self._kda[layer] = _StoredState(pages, state_format)
        return pages

    def load_kda(self, layer: int) -> Any:
        """A copy of the stored state, bit for bit.

        Returns:
            The bare ``(B, H, dk, dv)`` tensor when a bare tensor was stored, a pair of the stored
            type (``KDAState``) when a pair was, and a ``LayerState`` when the window was given
            beside a bare tensor.

        Raises:
            CacheError: nothing is stored for ``layer``.
        """
        layer = require_count("layer", layer)
        if layer not in self._kda:
            raise CacheError(f"layer={layer!r} has no state; stored layers: {sorted(self._kda)}")
        stored = self._kda[layer]
        page_bytes = self.pool.page_bytes
        stream = torch.empty(len(stored.pages) * page_bytes, dtype=torch.uint8)
        for index, page in enumerate(stored.pages):
            view = self.pool.page_bytes_view(page, PageKind.KDA_STATE)
            stream.numpy()[index * page_bytes : (index + 1) * page_bytes] = view
        return stored.format.decode(stream)

    def release(self) -> int:
        """Drop every page, the deepest MLA page first; the cache is empty afterwards.

        Returns:
            The number of references dropped. A second call drops none.
        """
        pages = [page for stored in self._kda.values() for page in stored.pages]
        pages = [*reversed(self._mla), *reversed(pages)]
        self.pool.free(pages)
        self._mla.clear()
        self._kda.clear()
        self._num_tokens = self._num_written = 0
        self._row_format = None
        return len(pages)

    # inner steps

    def _check_rows(self, num_tokens: int, rows: torch.Tensor) -> _RowFormat:
        require_type("rows", rows, torch.Tensor)
        require(
            rows.ndim >= 1 and rows.shape[0] == num_tokens,
            f"rows has shape {tuple(rows.shape)}; allowed: ({num_tokens}, ...)",
        )
        require(
            self._num_written == self._num_tokens,
            "rows are given after tokens that were appended without rows",
            CacheError,
        )
        row_format = _RowFormat(rows.dtype, tuple(rows.shape[1:]))
        self._require_row_bytes(row_format)
        require(
            self._row_format in (None, row_format),
            f"rows are {row_format}; this cache holds {self._row_format}",
        )
        return row_format

    def _require_row_bytes(self, row_format: _RowFormat) -> None:
        row_bytes = math.prod(row_format.shape) * row_format.dtype.itemsize
        require(
            row_bytes == self.bytes_per_token,
            f"a row of {row_format.shape} {row_format.dtype} has {row_bytes} bytes; "
            f"bytes_per_token={self.bytes_per_token}",
        )

    def _page_rows(self, page: int) -> npt.NDArray[np.uint8]:
        view = self.pool.page_bytes_view(page, PageKind.MLA_KV)
        used = self.tokens_per_page * self.bytes_per_token
        return view[:used].reshape(self.tokens_per_page, self.bytes_per_token)

    def _write_rows(self, rows: torch.Tensor) -> None:
        source, done = rows.numpy(), 0
        while done < len(source):
            index, offset = divmod(self._num_tokens + done, self.tokens_per_page)
            count = min(self.tokens_per_page - offset, len(source) - done)
            page_rows = self._page_rows(self._mla[index])
            page_rows[offset : offset + count] = source[done : done + count]
            done += count

    def _pages_for_state(self, layer: int, needed: int) -> tuple[int, ...]:
        """Own writable pages first, new ones for the rest; what is left over is released."""
        old = self._kda[layer].pages if layer in self._kda else ()
        kept = tuple(page for page in old if self.pool.is_writable(page))[:needed]
        fresh: tuple[int, ...] = ()
        if needed > len(kept):
            fresh = self.pool.alloc(PageKind.KDA_STATE, needed - len(kept))
        self.pool.free([page for page in old if page not in kept])
        return kept + fresh

    def _write_stream(self, pages: Sequence[int], content: Sequence[torch.Tensor]) -> None:
        """Write ``content`` end to end over ``pages`` and zero what is left of the last one."""
        views = [self.pool.page_bytes_view(page, PageKind.KDA_STATE) for page in pages]
        position, page_bytes = 0, self.pool.page_bytes
        for part in content:
            source, done = part.numpy(), 0
            while done < len(source):
                index, offset = divmod(position, page_bytes)
                count = min(page_bytes - offset, len(source) - done)
                views[index][offset : offset + count] = source[done : done + count]
                done += count
                position += count
        if position < len(views) * page_bytes:
            views[-1][position % page_bytes :] = 0
