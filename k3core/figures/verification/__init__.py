"""Pictures of the verification: the matrix of checks and faults, and what it teaches."""

from k3core.figures.verification.matrix import main_picture
from k3core.figures.verification.panels import fig_blind_spots, fig_break_it, fig_keys

__all__ = ["fig_blind_spots", "fig_break_it", "fig_keys", "main_picture"]
