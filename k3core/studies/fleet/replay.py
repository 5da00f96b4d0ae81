"""Replay of a request trace over a fleet, as the command line prints it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3core.fleet.result import LOAD_UNIT, ROUTER_LOAD_UNIT, FleetResult
from k3core.fleet.simulator import DEFAULT_VNODES, FleetSimulator
from k3core.fleet.trace_files import read_trace
from k3core.fleet.workload import LONG_THRESHOLD
from k3core.units import count_text, percent_text, seconds_text


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        trace: path of the trace.
        settings: what the run was asked for, constants of the cost model included.
        result: the run itself.
    """

    trace: str
    settings: dict[str, Any]
    result: FleetResult = field(repr=False)

    @property
    def requests_per_s(self) -> float:
        """Requests per second of wall time of the event loop, loading excluded; this machine."""
        return len(self.result.status) / max(self.result.loop_s, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON. ``requests_per_s`` alone depends on the machine."""
        return {
            "trace": self.trace,
            **self.settings,
            **self.result.as_dict(),
            "requests_per_s": self.requests_per_s,
        }


def replay_trace(
    path: str | Path,
    clusters: int = 8,
    capacity_blocks: int | None = 5859,
    router: str = "session",
    *,
    cost: str = "kimi-k3",
    checkpoints: str = "junction",
    vnodes: int = DEFAULT_VNODES,
    class_threshold: int = LONG_THRESHOLD,
) -> ReplayReport:
    """Replay a Mooncake trace: raw timestamps, no admission limit, until everyone is served.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        clusters: clusters with one FIFO prefill server each.
        capacity_blocks: MLA blocks of 512 tokens per cluster; None: unlimited.
        router: key of ``k3core.fleet.router.ROUTERS``.
        cost: key of ``k3core.fleet.cost.COST_PRESETS``.
        checkpoints: key of ``k3core.fleet.cache.CHECKPOINT_RULES``.
        vnodes: ring points per cluster.
        class_threshold: prompts of at least this many tokens are long.

    Raises:
        TraceError: the trace cannot be read or has a bad line.
        K3Error: another argument is out of range.
    """
    simulator = FleetSimulator(
        clusters,
        router=router,
        capacity_blocks=capacity_blocks,
        cost=cost,
        rule=checkpoints,
        vnodes=vnodes,
    )
    result = simulator.run(read_trace(path, class_threshold))
    prefill = simulator.cost
    settings = {
        "clusters": clusters,
        "capacity_blocks": capacity_blocks,
        "router": router,
        "vnodes": vnodes,
        "checkpoints": checkpoints,
        "class_threshold_tokens": class_threshold,
        "load_unit": LOAD_UNIT,
        "router_load_unit": ROUTER_LOAD_UNIT,
        "cost": {
            "code": prefill.code,
            "fixed_s": prefill.fixed_s,
            "linear_s_per_token": prefill.linear_s,
            "quadratic_s_per_token2": prefill.quadratic_s,
            "source": prefill.source,
        },
    }
    return ReplayReport(str(path), settings, result)


def render_text(report: ReplayReport) -> list[str]:
    """The report as lines for a terminal."""
    result, settings = report.result, report.settings
    facts = result.as_dict()
    capacity = settings["capacity_blocks"]
    rows = [
        ("trace", report.trace),
        (
            "fleet",
            f"{settings['clusters']} clusters, router {settings['router']}, "
            + ("no limit" if capacity is None else f"{count_text(capacity)} blocks")
            + " of cache each",
        ),
        (
            "requests",
            f"{count_text(facts['num_requests'])}: {count_text(facts['num_served'])} served, "
            f"{count_text(facts['num_rejected'])} rejected",
        ),
        ("blocks hit", _ratio(facts["hit_blocks"], facts["total_blocks"])),
        ("tokens hit", _ratio(facts["hit_tokens"], facts["total_tokens"])),
        (
            "tokens reused",
            _ratio(facts["reused_tokens"], facts["total_tokens"])
            + f"  (checkpoints: {settings['checkpoints']}; last token computed)",
        ),
        (
            "P95 to first token",
            ", ".join(
                f"{cls} {_seconds(result.ttft_at(0.95, None if cls == 'all' else cls))}"
                for cls in ("short", "long", "all")
            )
            + f"  (served requests; long from {count_text(settings['class_threshold_tokens'])} "
            "tokens)",
        ),
        (
            "peak / mean load",
            f"{result.peak_to_mean_load:.3f}  (load: {settings['load_unit']})",
        ),
        ("prefill time", f"declared model: {settings['cost']['source']}"),
        ("event loop", f"{count_text(report.requests_per_s)} requests/s on this machine"),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def _ratio(part: int, whole: int) -> str:
    return f"{count_text(part)} of {count_text(whole)}, {percent_text(part / max(1, whole), 2)}"


def _seconds(value: float) -> str:
    return seconds_text(value) if math.isfinite(value) else "–"
