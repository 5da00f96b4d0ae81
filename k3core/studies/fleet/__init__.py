"""Studies of the fleet: routers side by side, ring, failover, admission, one run, replay."""

from k3core.studies.fleet.admission import SETTINGS, admission, admission_run, gather_admission
from k3core.studies.fleet.params import FleetParams
from k3core.studies.fleet.placement import hash_ring, minimal_perturbation
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
from k3core.studies.fleet.scenario import Scenario, trace_bytes
from k3core.studies.fleet.sweep import SweepStudy, grid, sweep, sweep_lines, write_table
from k3core.studies.fleet.traces import MAX_UPLOAD_MB, StoredTrace, store_trace, stored_trace

__all__ = [
    "FleetParams",
    "MAX_UPLOAD_MB",
    "ReplayReport",
    "Scenario",
    "StoredTrace",
    "SweepStudy",
    "RoutersStudy",
    "SETTINGS",
    "admission",
    "admission_run",
    "gather",
    "gather_admission",
    "grid",
    "hash_ring",
    "load_strip",
    "minimal_perturbation",
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
