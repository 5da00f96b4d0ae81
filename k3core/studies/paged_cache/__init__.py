"""Studies of the page pool: a run, pages by length, storage, stale bytes, forks, fragments."""

from k3core.studies.paged_cache.choices import (
    most_layers,
    page_choices,
    pool_choices,
    usual_pool,
)
from k3core.studies.paged_cache.fork import ForkStudy, fork
from k3core.studies.paged_cache.fragments import FragmentStudy, fragments
from k3core.studies.paged_cache.lengths import LengthStudy, lengths
from k3core.studies.paged_cache.run import CHUNK_TOKENS, PoolRun, RunView, pages_for, run_pool
from k3core.studies.paged_cache.sizes import RequestSizes, request_sizes
from k3core.studies.paged_cache.stale import StaleStudy, stale_bytes
from k3core.studies.paged_cache.storage import PagingStudy, StoreStudy, paging, store

__all__ = [
    "CHUNK_TOKENS",
    "ForkStudy",
    "FragmentStudy",
    "LengthStudy",
    "PagingStudy",
    "PoolRun",
    "RequestSizes",
    "RunView",
    "StaleStudy",
    "StoreStudy",
    "fork",
    "fragments",
    "lengths",
    "most_layers",
    "page_choices",
    "pages_for",
    "paging",
    "pool_choices",
    "request_sizes",
    "run_pool",
    "stale_bytes",
    "store",
    "usual_pool",
]
