"""Pages against length, where the two kinds weigh the same, and the pool's three phases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import pandas as pd

from k3core.errors import K3Error, require_count
from k3core.paged_cache.pool import PagePool
from k3core.studies.paged_cache.run import pages_for
from k3core.studies.paged_cache.sizes import RequestSizes, SizeOptions, request_sizes
from k3core.studies.paged_cache.watched import KIND_CODES
from k3core.units import count_text

MAX_LENGTH = 2**20
STEPS_DRAWN = 12  # the first page boundaries are drawn one by one, then eight per octave


@dataclass(frozen=True)
class LengthStudy:
    """Pages of one request on one rank.

    Tables:
        by_length: pages of both kinds at each length, for one layer of each and for all layers.
        break_even: length and pages where the bytes (and the pages) of both kinds meet.
        you: pages of both kinds at the chosen length.
        phases: kind of every page before, during and after one request.
    """

    tables: dict[str, pd.DataFrame]
    sizes: RequestSizes
    seq_len: int
    mla_pages_per_layer: int
    kda_pages_per_layer: int

    @property
    def num_mla_pages(self) -> int:
        """MLA pages of all layers at the chosen length."""
        return self.mla_pages_per_layer * self.sizes.memory.model.num_mla_layers

    @property
    def num_kda_pages(self) -> int:
        """KDA pages of all layers at any length."""
        return self.kda_pages_per_layer * self.sizes.memory.model.num_kda_layers

    def num_drawn(self, kind: str) -> int:
        """Pages of ``mla`` or ``kda`` in ``phases``: one MLA layer, the run's KDA layers."""
        phases = self.tables["phases"]
        return int(((phases["phase"] == "allocated") & (phases["kind"] == kind)).sum())


def lengths(
    kda_layers: int = 3,
    pool_pages: int = 48,
    seq_len: int = 4096,
    **options: Unpack[SizeOptions],
) -> LengthStudy:
    """Count pages with the real cache, from one token to a million.

    Args:
        options: sizes, as in ``request_sizes``.

    Raises:
        K3Error: a size is out of range, or one request does not fit into ``pool_pages``.
    """
    sizes = request_sizes(**options)
    for name, value in {"kda_layers": kda_layers, "pool_pages": pool_pages}.items():
        require_count(name, value, 1)
    seq_len = require_count("seq_len", seq_len, 1)
    per_layer = _state_pages(sizes)
    model_layers = {
        "layer": (1, 1),
        "request": (sizes.memory.model.num_mla_layers, sizes.memory.model.num_kda_layers),
    }
    rows = []
    counted = _count_mla_pages(sizes, sorted({*_drawn_lengths(sizes.tokens_per_page), seq_len}))
    for scope, (mla_layers, kda_layers_all) in model_layers.items():
        for length, pages in counted.items():
            rows.append((scope, length, "mla", pages * mla_layers))
            rows.append((scope, length, "kda", per_layer * kda_layers_all))
    by_length = pd.DataFrame(rows, columns=["scope", "length", "kind", "pages"])
    break_even = pd.DataFrame(
        [
            ("bytes", sizes.memory.break_even_len, per_layer * model_layers["request"][1]),
            ("pages", float(sizes.break_even_tokens), per_layer * model_layers["request"][1]),
        ],
        columns=["measure", "length", "pages"],
    )
    break_even["text"] = [count_text(math.ceil(length)) for length in break_even["length"]]
    return LengthStudy(
        tables={
            "by_length": by_length,
            "break_even": break_even,
            "you": by_length[by_length["length"] == seq_len].reset_index(drop=True),
            "phases": _phases(sizes, kda_layers, pool_pages, seq_len),
        },
        sizes=sizes,
        seq_len=seq_len,
        mla_pages_per_layer=counted[seq_len],
        kda_pages_per_layer=per_layer,
    )


def _drawn_lengths(tokens_per_page: int) -> set[int]:
    """Both ends of the first steps of the staircase, then a denser and denser choice of them."""
    pages = {*range(1, STEPS_DRAWN + 1)}
    pages |= {round(STEPS_DRAWN * 2 ** (i / 8)) for i in range(160)}
    ends = {page * tokens_per_page for page in pages}
    starts = {end - tokens_per_page + 1 for end in ends}
    return {length for length in ends | starts | {MAX_LENGTH} if length <= MAX_LENGTH}


def _count_mla_pages(sizes: RequestSizes, at_lengths: list[int]) -> dict[int, int]:
    """Pages of one MLA layer at each length, by appending tokens to a real cache."""
    last = at_lengths[-1]
    pool = PagePool(-(-last // sizes.tokens_per_page), sizes.page_bytes)
    cache = sizes.cache(pool)
    counted = {}
    for length in at_lengths:
        cache.append_mla(length - cache.num_tokens)
        counted[length] = pool.num_owned
    return counted


def _state_pages(sizes: RequestSizes) -> int:
    """Pages of one KDA layer, by storing a real state."""
    pool = sizes.pool(-(-sizes.kda_bytes // sizes.page_bytes) + 1)
    return len(sizes.cache(pool).store_kda(0, *sizes.state()))


def _phases(sizes: RequestSizes, kda_layers: int, pool_pages: int, seq_len: int) -> pd.DataFrame:
    """One request in a pool of its own: initial, allocated, released."""
    needed = pages_for(sizes, kda_layers, seq_len)
    if needed > pool_pages:
        raise K3Error(f"pool_pages={pool_pages} cannot hold one request: it needs {needed} pages")
    pool = sizes.pool(pool_pages)
    cache = sizes.cache(pool)
    rows: list[tuple[str, int, str]] = []

    def look(phase: str) -> None:
        for page in range(pool.num_pages):
            info = pool.page_info(page)
            kind = KIND_CODES[info.kind] if info.num_references and info.kind is not None else ""
            rows.append((phase, page, kind or "free"))

    look("initial")
    for layer in range(kda_layers):
        cache.store_kda(layer, *sizes.state(seed=layer))
    cache.append_mla(seq_len)
    look("allocated")
    cache.release()
    look("released")
    pool.check()
    return pd.DataFrame(rows, columns=["phase", "page", "kind"])
