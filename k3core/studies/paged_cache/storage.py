"""How rows fill pages, how a state lies in pages, and that both come back bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import pandas as pd
import torch

from k3core.errors import require, require_count
from k3core.paged_cache import PagedCache, head_slice, pack_heads, unpack_heads
from k3core.paged_cache.pool import PagePool
from k3core.studies.paged_cache.sizes import (
    TORCH_DTYPES,
    RequestSizes,
    SizeOptions,
    max_difference,
    num_different,
    request_sizes,
    shape_text,
)
from k3core.units import bytes_text, error_text

CHECKED_BATCH = 2  # the format check stores two sequences at once, with dk and dv as chosen


@dataclass(frozen=True)
class PagingStudy:
    """Rows in pages, and one stream of heads cut for another number of ranks.

    Tables:
        fill: tokens in each page.
        roundtrip: pack and unpack of this run, step by step.
        heads: which rank holds which head, before and after.
    """

    tables: dict[str, pd.DataFrame]
    sizes: RequestSizes
    num_tokens: int
    max_difference: float
    num_different: int
    num_wrong_rows: int

    @property
    def num_pages(self) -> int:
        return len(self.tables["fill"])

    @property
    def last_fill(self) -> int:
        return int(self.tables["fill"]["tokens"].iloc[-1])


def paging(
    num_tokens: int = 600,
    to_tp: int = 4,
    **options: Unpack[SizeOptions],
) -> PagingStudy:
    """Append ``num_tokens`` rows for real; move a state from ``tp`` to ``to_tp`` ranks.

    Args:
        options: sizes, as in ``request_sizes``.

    Raises:
        K3Error: a size is out of range, or ``to_tp`` does not divide all heads.
    """
    sizes = request_sizes(**options)
    num_tokens, to_tp = require_count("num_tokens", num_tokens, 1), require_count("to_tp", to_tp, 1)
    model, tp = sizes.memory.model, sizes.memory.tp
    all_heads, dk, dv = model.num_heads, model.dk, model.dv
    require(all_heads % to_tp == 0, f"to_tp={to_tp} does not divide the {all_heads} heads")
    pool = sizes.pool(-(-num_tokens // sizes.tokens_per_page))
    cache = sizes.cache(pool)
    rows = sizes.rows(num_tokens)
    cache.append_mla(num_tokens, rows)
    fill = pd.DataFrame(cache.mla_pages, columns=["page", "tokens"])
    fill["capacity"] = sizes.tokens_per_page
    fill["text"] = [f"{tokens:,} / {sizes.tokens_per_page:,}" for tokens in fill["tokens"]]

    ranks = [sizes.state(seed=rank)[0] for rank in range(tp)]
    flat = torch.cat([pack_heads(rank) for rank in ranks])
    whole = unpack_heads(flat, (1, all_heads, dk, dv))
    expected = torch.cat(ranks, dim=1)
    per_rank = all_heads // to_tp
    moved = [
        unpack_heads(
            head_slice(flat, all_heads, rank * per_rank, (rank + 1) * per_rank),
            (1, per_rank, dk, dv),
        )
        for rank in range(to_tp)
    ]
    resharded = torch.cat(moved, dim=1)
    different = num_different(whole, expected) + num_different(resharded, expected)
    worst = max(max_difference(whole, expected), max_difference(resharded, expected))
    flow = [
        ("state_shape", f"{tp} · ({shape_text(ranks[0].shape)})", "kda"),
        ("packed", f"({shape_text(flat.shape)}), {bytes_text(flat.nbytes)}", "neutral"),
        ("cut", f"{to_tp} · ({shape_text(moved[0].shape)})", "kda"),
        ("back", f"({shape_text(whole.shape)})", "kda"),
        *_verdict(different, worst),
    ]
    return PagingStudy(
        tables={
            "fill": fill,
            "roundtrip": _flow(flow),
            "heads": _head_table(all_heads, tp, to_tp),
        },
        sizes=sizes,
        num_tokens=num_tokens,
        max_difference=worst,
        num_different=different,
        num_wrong_rows=num_different(cache.read_mla(), rows),
    )


def _head_table(all_heads: int, tp: int, to_tp: int) -> pd.DataFrame:
    rows = []
    for side, ranks in (("from", tp), ("to", to_tp)):
        run = all_heads // ranks
        rows += [
            (side, rank, rank * run, (rank + 1) * run, f"{rank}" if ranks <= 16 else "")
            for rank in range(ranks)
        ]
    return pd.DataFrame(rows, columns=["side", "rank", "first", "stop", "text"])


@dataclass(frozen=True)
class StoreStudy:
    """One state in pages.

    Tables:
        pages: bytes of state, convolution window and padding in each page.
        flow_store, flow_load: what this run wrote and read, step by step.
        formats: elements that differ after a round trip, by number format.
    """

    tables: dict[str, pd.DataFrame]
    sizes: RequestSizes
    num_pages: int
    num_bytes: int
    padding_bytes: int
    padding_not_zero: int
    num_different: int
    max_difference: float

    @property
    def padding_share(self) -> float:
        """Padding over the bytes of the pages."""
        return self.padding_bytes / (self.num_bytes + self.padding_bytes)


def store(**options: Unpack[SizeOptions]) -> StoreStudy:
    """Store one layer's state and window, read the pages, load the state back.

    Args:
        options: sizes, as in ``request_sizes``.

    Raises:
        K3Error: a size is out of range.
    """
    sizes = request_sizes(**options)
    state, window = sizes.state()
    pool = sizes.pool(-(-sizes.kda_bytes // sizes.page_bytes))
    cache = sizes.cache(pool)
    pages = cache.store_kda(0, state, window)
    loaded = cache.load_kda(0)
    num_bytes = cache.kda_bytes[0]
    padding = len(pages) * sizes.page_bytes - num_bytes
    tail = pool.page_bytes_view(pages[-1])[sizes.page_bytes - padding :]
    different = num_different(loaded.recurrent, state) + num_different(loaded.conv_window, window)
    worst = max_difference(loaded.recurrent, state)
    packed = pack_heads(state)
    store_steps = [
        ("state_shape", f"({shape_text(state.shape)}), {bytes_text(state.nbytes)}", "kda"),
        ("window_shape", f"({shape_text(window.shape)}), {bytes_text(window.nbytes)}", "kda"),
        ("packed", f"({shape_text(packed.shape)})", "neutral"),
        ("written", f"{len(pages)} · {bytes_text(sizes.page_bytes)}", "mla"),
        ("padded", bytes_text(padding), "neutral"),
    ]
    load_steps = [
        ("read", f"{len(pages)} · {bytes_text(sizes.page_bytes)}", "mla"),
        ("back", f"({shape_text(loaded.recurrent.shape)})", "kda"),
        ("window_back", f"({shape_text(loaded.conv_window.shape)})", "kda"),
        *_verdict(different, worst),
    ]
    return StoreStudy(
        tables={
            "pages": _page_table(pages, state.nbytes, window.nbytes, sizes.page_bytes),
            "flow_store": _flow(store_steps),
            "flow_load": _flow(load_steps),
            "formats": _format_table(sizes),
        },
        sizes=sizes,
        num_pages=len(pages),
        num_bytes=num_bytes,
        padding_bytes=padding,
        padding_not_zero=int((tail != 0).sum()),
        num_different=different,
        max_difference=worst,
    )


def _page_table(
    pages: tuple[int, ...], state_bytes: int, window_bytes: int, page_bytes: int
) -> pd.DataFrame:
    """Where state, window and padding lie: first and last byte of each part in each page."""
    ends = {
        "state": state_bytes,
        "window": state_bytes + window_bytes,
        "padding": len(pages) * page_bytes,
    }
    rows, begin = [], 0
    for part, end in ends.items():
        for index, page in enumerate(pages):
            first = max(begin, index * page_bytes) - index * page_bytes
            stop = min(end, (index + 1) * page_bytes) - index * page_bytes
            if stop > first:
                rows.append((page, part, first, stop, stop - first))
        begin = end
    return pd.DataFrame(rows, columns=["page", "part", "first", "stop", "bytes"])


def _format_table(sizes: RequestSizes) -> pd.DataFrame:
    """Store and load two sequences in every format."""
    generator = torch.Generator().manual_seed(3)
    model, heads = sizes.memory.model, sizes.memory.num_heads
    source = torch.randn(CHECKED_BATCH, heads, model.dk, model.dv, generator=generator)
    rows = []
    for name, dtype in TORCH_DTYPES.items():
        state = source.to(dtype)
        page_bytes = max(state.nbytes // 3, 1)
        pool = PagePool(-(-state.nbytes // page_bytes), page_bytes, poison=True)
        cache = PagedCache(pool, 1, 1)
        pages = cache.store_kda(0, state)
        rows.append((name, num_different(cache.load_kda(0), state), len(pages), state.nbytes))
    table = pd.DataFrame(rows, columns=["dtype", "different", "pages", "bytes"])
    table["verdict"] = ["pass" if n == 0 else "fail" for n in table["different"]]
    return table


def _verdict(different: int, worst: float) -> list[tuple[str, str, str]]:
    """The last boxes of a flow: what differs after the way there and back."""
    verdict, kind = ("roundtrip_fail", "rejected") if different else ("roundtrip_pass", "accepted")
    return [
        ("elements_different", f"{different}", kind),
        (verdict, f"max|Δ| = {error_text(worst)}", kind),
    ]


def _flow(steps: list[tuple[str, str, str]]) -> pd.DataFrame:
    table = pd.DataFrame(steps, columns=["box", "number", "kind"])
    table["step"] = range(len(table))
    return table
