"""Studies of the fleet: routers side by side, ring, failover, admission, one run, replay."""

from k3core.fleet.trace_files import trace_bytes
from k3core.studies.fleet.admission import SETTINGS, admission, admission_run, gather_admission
from k3core.studies.fleet.cost import NodeConstants, fitted_cost, long_prefix_words
from k3core.studies.fleet.placement import hash_ring, minimal_perturbation
from k3core.studies.fleet.ranges import (
    RANGES,
    RangeStudy,
    gather_range,
    load_range,
    range_points,
    range_run,
)
from k3core.studies.fleet.replay import ReplayReport, render_text, replay_trace
from k3core.studies.fleet.requests import request_table
from k3core.studies.fleet.routers import (
    RoutersStudy,
    gather,
    load_strip,
    router_run,
    routers,
    tick_variants,
)
from k3core.studies.fleet.run import simulation
from k3core.studies.fleet.scenario import PAGE, Scenario, failure_of, page_scenario
from k3core.studies.fleet.sweep import SweepStudy, grid, sweep, sweep_lines, write_table
from k3core.studies.fleet.traces import StoredTrace, store_trace, stored_trace

__all__ = [
    "NodeConstants",
    "PAGE",
    "RANGES",
    "RangeStudy",
    "ReplayReport",
    "RoutersStudy",
    "SETTINGS",
    "Scenario",
    "StoredTrace",
    "SweepStudy",
    "admission",
    "admission_run",
    "failure_of",
    "fitted_cost",
    "gather",
    "gather_admission",
    "gather_range",
    "grid",
    "hash_ring",
    "load_range",
    "load_strip",
    "long_prefix_words",
    "minimal_perturbation",
    "page_scenario",
    "range_points",
    "range_run",
    "render_text",
    "replay_trace",
    "request_table",
    "router_run",
    "routers",
    "simulation",
    "store_trace",
    "stored_trace",
    "sweep",
    "sweep_lines",
    "tick_variants",
    "trace_bytes",
    "write_table",
]
