"""Pictures of the two-stage prefix cache."""

from k3core.figures.prefix_cache.load import cliff_pictures, policy_pictures
from k3core.figures.prefix_cache.panels import (
    account_picture,
    cost_pictures,
    fig_prefix_hit,
    fig_prefix_miss,
    hash_pictures,
    ladder_picture,
)
from k3core.figures.prefix_cache.player import player_pictures
from k3core.figures.prefix_cache.ruler import main_picture
from k3core.figures.prefix_cache.stairs import stairs_pictures

__all__ = [
    "account_picture",
    "cliff_pictures",
    "cost_pictures",
    "fig_prefix_hit",
    "fig_prefix_miss",
    "hash_pictures",
    "ladder_picture",
    "main_picture",
    "player_pictures",
    "policy_pictures",
    "stairs_pictures",
]
