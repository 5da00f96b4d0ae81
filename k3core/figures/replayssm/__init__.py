"""Pictures of the rings."""

from k3core.figures.replayssm.main import main_picture
from k3core.figures.replayssm.panels import fig_replayssm

__all__ = ["fig_replayssm", "main_picture"]
