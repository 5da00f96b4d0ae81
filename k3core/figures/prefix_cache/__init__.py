"""Pictures of the two-stage prefix cache."""

from k3core.figures.prefix_cache.panels import (
    cost_pictures,
    fig_prefix_hit,
    fig_prefix_miss,
    hash_pictures,
    ladder_picture,
)
from k3core.figures.prefix_cache.ruler import main_picture

__all__ = [
    "cost_pictures",
    "fig_prefix_hit",
    "fig_prefix_miss",
    "hash_pictures",
    "ladder_picture",
    "main_picture",
]
