"""Pictures of context parallelism."""

from __future__ import annotations

from k3core.figures.parallel.growth import crossing_picture, length_pictures, time_pictures
from k3core.figures.parallel.merging import merge_pictures, partner_pictures
from k3core.figures.parallel.ranks import main_picture

__all__ = [
    "crossing_picture",
    "length_pictures",
    "main_picture",
    "merge_pictures",
    "partner_pictures",
    "time_pictures",
]
