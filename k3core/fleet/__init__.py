"""The fleet: which cluster serves a request, who is let in, and what it costs when one fails."""

from k3core.fleet.budget import BudgetController, Ticket
from k3core.fleet.cache import BlockCache
from k3core.fleet.cost import COST_PRESETS, PrefillCost
from k3core.fleet.decode_stage import DecodeStage
from k3core.fleet.failures import Failure
from k3core.fleet.result import FleetResult
from k3core.fleet.ring import ConsistentHashRing, Route
from k3core.fleet.router import ALL_ROUTERS, ROUTERS
from k3core.fleet.router_base import RouterSettings
from k3core.fleet.simulator import FleetSimulator
from k3core.fleet.synthetic import (
    GENERATORS,
    generated_workload,
    hub_workload,
    lognormal_workload,
    synthetic_workload,
)
from k3core.fleet.trace_files import parse_trace, read_trace
from k3core.fleet.workload import Request, Workload

__all__ = [
    "ALL_ROUTERS",
    "BlockCache",
    "BudgetController",
    "COST_PRESETS",
    "ConsistentHashRing",
    "DecodeStage",
    "Failure",
    "FleetResult",
    "FleetSimulator",
    "GENERATORS",
    "PrefillCost",
    "ROUTERS",
    "Request",
    "Route",
    "RouterSettings",
    "Ticket",
    "Workload",
    "generated_workload",
    "hub_workload",
    "lognormal_workload",
    "parse_trace",
    "read_trace",
    "synthetic_workload",
]
