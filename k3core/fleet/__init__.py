"""The fleet: which cluster serves a request, who is let in, and what it costs when one fails."""

from k3core.fleet.budget import BudgetController, Ticket
from k3core.fleet.cache import BlockCache
from k3core.fleet.cost import COST_PRESETS, PrefillCost
from k3core.fleet.result import FleetResult
from k3core.fleet.ring import ConsistentHashRing, Route
from k3core.fleet.router import ROUTERS
from k3core.fleet.simulator import Failure, FleetSimulator
from k3core.fleet.synthetic import synthetic_workload
from k3core.fleet.workload import Request, Workload, parse_trace, read_trace

__all__ = [
    "BlockCache",
    "BudgetController",
    "COST_PRESETS",
    "ConsistentHashRing",
    "Failure",
    "FleetResult",
    "FleetSimulator",
    "PrefillCost",
    "ROUTERS",
    "Request",
    "Route",
    "Ticket",
    "Workload",
    "parse_trace",
    "read_trace",
    "synthetic_workload",
]
