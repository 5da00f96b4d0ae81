"""Pictures of the engine: lanes on one clock, and what a cached prefix saves."""

from k3core.figures.engine.lanes import main_picture
from k3core.figures.engine.panels import (
    draft_pictures,
    exact_picture,
    fig_engine_before_after,
)

__all__ = ["draft_pictures", "exact_picture", "fig_engine_before_after", "main_picture"]
