"""Replay of a request trace over a fleet, as the command line prints it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k3core.errors import require, require_choice
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.result import LOAD_UNIT, ROUTER_LOAD_UNIT, FleetResult
from k3core.fleet.trace_files import trace_bytes
from k3core.studies.fleet.scenario import TICKS, Scenario
from k3core.studies.fleet.traces import store_trace
from k3core.units import count_text, percent_text, seconds_text


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        trace: path of the trace, or kind of the generated requests.
        settings: what the run was asked for, constants of the cost model included.
        result: the run itself.
        spread: facts of the same run with each tick's arrivals spread over the tick; None when
            the timestamps have no ticks or it was not asked for.
    """

    trace: str
    settings: dict[str, Any]
    scenario: Scenario
    result: FleetResult = field(repr=False)
    spread: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def requests_per_s(self) -> float:
        """Requests per second of wall time of the event loop, loading excluded; this machine."""
        return len(self.result.status) / max(self.result.loop_s, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON. ``requests_per_s`` alone depends on the machine."""
        return {
            "trace": self.trace,
            **self.settings,
            **self.scenario.facts(self.result),
            "spread": self.spread,
            "requests_per_s": self.requests_per_s,
        }


def replay_trace(
    path: str | Path | None = None,
    clusters: int = 8,
    capacity_blocks: int | None = 5859,
    router: str = "session",
    *,
    ticks: str = "both",
    **options: Any,
) -> ReplayReport:
    """Replay a trace, or generated requests, until everyone is served.

    Args:
        path: of a trace; None: the requests that the option ``generate`` names.
        clusters: clusters, each with its own prefix cache and prefill servers.
        capacity_blocks: MLA blocks of 512 tokens per cluster; None: unlimited.
        router: key of ``k3core.fleet.router.ALL_ROUTERS``.
        ticks: ``raw``, ``spread``, or ``both``: raw timestamps, and where these have ticks a
            second run with the arrivals spread over them.
        options: further fields of ``Scenario``.

    Raises:
        TraceError: the trace cannot be read or has a bad line.
        K3Error: another argument is out of range.
    """
    require_choice("ticks", ticks, (*TICKS, "both"))
    scenario = Scenario(
        clusters=clusters,
        capacity_blocks=capacity_blocks,
        router=router,
        ticks="spread" if ticks == "spread" else "raw",
        **options,
    )
    require(
        (path is None) == bool(scenario.generate),
        "either a trace or a kind of requests to generate must be given",
    )
    simulator = scenario.simulator()
    if path is not None:
        scenario = replace(scenario, trace=store_trace(trace_bytes(path)).key)
    workload = scenario.workload()
    scenario.require_counted(workload)
    result = simulator.run(workload)
    spread = None
    if ticks == "both" and workload.tick_s > 0:
        spread = scenario.facts(simulator.run(workload.spread(scenario.seed)))
    prefill = simulator.cost
    settings = {
        "clusters": clusters,
        "servers": scenario.servers,
        "capacity_blocks": capacity_blocks,
        "router": router,
        "vnodes": scenario.vnodes,
        "weights": list(scenario.weights),
        "checkpoints": scenario.checkpoints,
        "checkpoint_blocks": scenario.checkpoint_blocks,
        "class_threshold_tokens": scenario.class_threshold,
        "class_by": scenario.class_by,
        "admission": {
            "mode": scenario.admission,
            "by": scenario.admission_by,
            "lanes": scenario.lanes,
            "budgets": list(scenario.budgets),
            "weights": list(scenario.class_weights),
            "max_overtakes": scenario.max_overtakes,
        },
        "decode": {"token_budget": scenario.decode_tokens, "ms_per_token": scenario.decode_ms},
        "failures": [
            [cluster, at_s, return_s if math.isfinite(return_s) else None]
            for cluster, at_s, return_s in scenario.failures
        ],
        "seed": scenario.seed,
        "ticks": scenario.ticks,
        "tick_s": workload.tick_s,
        "load_unit": LOAD_UNIT,
        "router_load_unit": ROUTER_LOAD_UNIT,
        "cost": {
            "code": prefill.code,
            "fixed_s": prefill.fixed_s,
            "linear_s_per_token": prefill.linear_s,
            "quadratic_s_per_token2": prefill.quadratic_s,
            "source": prefill.source,
            "calibrated": bool(scenario.measured),
        },
    }
    trace_name = scenario.generate if path is None else str(path)
    return ReplayReport(trace_name, settings, scenario, result, spread)


def render_text(report: ReplayReport) -> list[str]:
    """The report as lines for a terminal."""
    result, settings = report.result, report.settings
    facts = report.scenario.facts(result)
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
        (
            "blocks hit",
            _ratio(facts["hit_blocks"], facts["total_blocks"])
            + f"  (MLA blocks of {BLOCK_LEN} tokens)",
        ),
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
        *((f"{name} to first token", _by_class(facts[key])) for name, key in _OTHER_TIMES),
        ("rejected", _shares(facts["rejection_rate"])),
        (
            f"goodput at {facts['slo_s']:g} s",
            _shares(facts["goodput"]) + "  (of all that arrived)",
        ),
        (
            "peak / mean load",
            f"{result.peak_to_mean_load:.3f}, CV {result.load_cv:.3f}  "
            f"(load: {settings['load_unit']} of a cluster; routers compare "
            f"{settings['router_load_unit']})",
        ),
        ("utilisation", f"{percent_text(result.utilisation)} of all server seconds"),
        (
            "failover",
            f"{count_text(result.num_failovers)} served away from home, "
            f"{count_text(result.reprefilled_tokens)} tokens computed for them",
        ),
        (
            "saved prefill",
            f"{facts['saved_money']:,.2f} in the currency of the prices  (per million prompt "
            f"tokens: {report.scenario.price:g} new, {report.scenario.cached_price:g} reused; "
            "defaults in US dollars)",
        ),
        (
            "window",
            f"{count_text(facts['window']['num_requests'])} requests that arrived from "
            f"{facts['window']['start_s']:.0f} to {facts['window']['end_s']:.0f} s",
        ),
        (
            "prefill time",
            ("measured: " if settings["cost"]["calibrated"] else "declared model: ")
            + str(settings["cost"]["source"]),
        ),
        *_spread_rows(report),
        ("event loop", f"{count_text(report.requests_per_s)} requests/s on this machine"),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


_OTHER_TIMES = (("P50", "p50_ttft_s"), ("P99", "p99_ttft_s"))


def _spread_rows(report: ReplayReport) -> list[tuple[str, str]]:
    """The same requests without the coarse clock of the trace."""
    if report.spread is None:
        return []
    tick = f"{report.settings['tick_s']:g} s ticks spread"
    return [
        (tick, f"P95 {_by_class(report.spread['p95_ttft_s'])}"),
        ("", f"tokens reused {percent_text(report.spread['reuse_rate_tokens'], 2)}"),
    ]


def _by_class(values: dict[str, float | None]) -> str:
    return ", ".join(
        f"{cls} {_seconds(math.nan if value is None else value)}" for cls, value in values.items()
    )


def _shares(values: dict[str, float]) -> str:
    return ", ".join(f"{cls} {percent_text(value, 2)}" for cls, value in values.items())


def _ratio(part: int, whole: int) -> str:
    return f"{count_text(part)} of {count_text(whole)}, {percent_text(part / max(1, whole), 2)}"


def _seconds(value: float) -> str:
    return seconds_text(value) if math.isfinite(value) else "–"
