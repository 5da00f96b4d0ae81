"""One pool of equal pages for two kinds of memory, and the memory of one request in its pages.

``pool`` owns bytes, references and the free list; ``request`` fills pages with MLA rows and KDA
states; ``head_stream`` lays a state out head by head, so that ranks can cut it.
"""

from k3core.paged_cache.head_stream import head_slice, pack_heads, unpack_heads
from k3core.paged_cache.layer_state import LayerState
from k3core.paged_cache.pool import DEFAULT_PAGE_BYTES, PagePool
from k3core.paged_cache.request import MLAPage, PagedCache
from k3core.paged_cache.stats import PageInfo, PageKind, PoolStats

__all__ = [
    "DEFAULT_PAGE_BYTES",
    "LayerState",
    "MLAPage",
    "PageInfo",
    "PageKind",
    "PagePool",
    "PagedCache",
    "PoolStats",
    "head_slice",
    "pack_heads",
    "unpack_heads",
]
