"""Pictures of the page pool."""

from k3core.figures.paged_cache.life import fork_picture, fragment_pictures, order_pictures
from k3core.figures.paged_cache.panels import (
    fig_kda_store,
    fig_mla_paging,
    fig_page_pool,
    stale_pictures,
)
from k3core.figures.paged_cache.pool_map import main_picture

__all__ = [
    "fig_kda_store",
    "fig_mla_paging",
    "fig_page_pool",
    "fork_picture",
    "fragment_pictures",
    "main_picture",
    "order_pictures",
    "stale_pictures",
]
