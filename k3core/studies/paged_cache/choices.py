"""Page and pool sizes that a run can be given: together they hold its longest request."""

from __future__ import annotations

from k3core.studies.paged_cache.run import pages_for
from k3core.studies.paged_cache.sizes import MAX_BUFFER_BYTES, RequestSizes

PAGE_TOKENS = (128, 256, 512, 768, 1024, 1536)
POOL_SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
MAX_LAYERS = 6
ROOM = 2.8  # of the longest request: the pool where requests wait and cached pages are evicted


def most_layers(sizes: RequestSizes, seq_len: int) -> int:
    """KDA layers, up to ``MAX_LAYERS``, of the longest request that some pool holds."""
    fits = (n for n in range(MAX_LAYERS, 1, -1) if page_choices(sizes, n, seq_len))
    return next(fits, 1)


def page_choices(sizes: RequestSizes, kda_layers: int, seq_len: int) -> tuple[int, ...]:
    """Tokens per page for which some pool holds the longest request; ``sizes`` has any of them.

    Smaller pages need more of them, and larger ones more bytes.
    """
    return tuple(
        tokens
        for tokens in PAGE_TOKENS
        if pool_choices(RequestSizes(sizes.memory, tokens), kda_layers, seq_len)
    )


def pool_choices(sizes: RequestSizes, kda_layers: int, seq_len: int) -> tuple[int, ...]:
    """Pools that hold the longest request and fit into the buffer of one run, in pages."""
    needed = pages_for(sizes, kda_layers, seq_len)
    return tuple(n for n in POOL_SIZES if needed <= n <= MAX_BUFFER_BYTES // sizes.page_bytes)


def usual_pool(sizes: RequestSizes, kda_layers: int, seq_len: int) -> int:
    """The smallest pool that holds nearly three of the longest requests, or else the largest."""
    pools = pool_choices(sizes, kda_layers, seq_len)
    needed = ROOM * pages_for(sizes, kda_layers, seq_len)
    return next((size for size in pools if size >= needed), pools[-1])
