"""Figures of capacity."""

from k3core.figures.capacity.main import bill, main_picture
from k3core.figures.capacity.panels import fig_break_even, fig_pools, fig_schemes
from k3core.figures.capacity.scenes import fig_drafts, fig_grid, fig_printed, fig_published

__all__ = [
    "bill",
    "fig_break_even",
    "fig_drafts",
    "fig_grid",
    "fig_pools",
    "fig_printed",
    "fig_published",
    "fig_schemes",
    "main_picture",
]
