"""Figures of the fleet."""

from k3core.figures.fleet.admission import fig_fleet_budget
from k3core.figures.fleet.placement import fig_fleet_hash_ring, fig_fleet_minimal_perturbation
from k3core.figures.fleet.ranges import fig_fleet_range
from k3core.figures.fleet.routers import load_strip, main_picture
from k3core.figures.fleet.run import fig_fleet_simulation
from k3core.figures.fleet.side_by_side import fig_fleet_routers

__all__ = [
    "fig_fleet_budget",
    "fig_fleet_hash_ring",
    "fig_fleet_minimal_perturbation",
    "fig_fleet_range",
    "fig_fleet_routers",
    "fig_fleet_simulation",
    "load_strip",
    "main_picture",
]
