"""A run of the fleet in plain values: what page 7, ``replay`` and ``sweep`` are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from k3core.errors import (
    K3Error,
    require,
    require_choice,
    require_count,
    require_counts,
    require_number,
    require_type,
    shown,
)
from k3core.fleet.budget import BudgetController
from k3core.fleet.cache import retention
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.fleet.decode_stage import DecodeStage
from k3core.fleet.result import DEFAULT_SLO_S, FleetResult
from k3core.fleet.router_base import RouterSettings
from k3core.fleet.simulator import DEFAULT_VNODES, FleetSimulator
from k3core.fleet.synthetic import generated_workload
from k3core.fleet.workload import CLASS_NAMES, LONG_THRESHOLD, Workload
from k3core.studies.fleet.traces import trace_workload

ADMISSIONS = ("none", "reject", "queue")
LANES = ("separate", "shared")
TICKS = ("raw", "spread")
DEFAULT_REQUESTS = 1800
_MAX_REQUESTS = 1_000_000  # generated: some 100 blocks each stand in memory
_MAX_POINTS = 1 << 22  # of the ring, all clusters
_MAX_RATE = 1e6  # requests per second, and how many times faster; 1 / it is the least
_MAX_PRICE = 1e12
_MAX_CONSTANT = 1e6  # seconds
_MAX_MS = 1e9


@dataclass(frozen=True)
class Scenario:
    """Requests, fleet, admission and what is counted; every field has a plain value.

    Attributes:
        generate: kind of generated requests (``k3core.fleet.synthetic.GENERATORS``); empty: those
            of ``trace``.
        trace: key of a stored trace (``k3core.studies.fleet.traces``).
        num_requests: generated requests (0: 1,800), or the first ones of a trace (0: all).
        num_sessions: of the generated kind ``sessions``; None: five for every six requests.
        rate_per_s, arrival_cv: of generated requests.
        speed: how many times faster the requests arrive.
        ticks: ``raw`` timestamps, or each tick's arrivals ``spread`` over the tick.
        class_threshold, class_by: from how many ``total`` or ``uncached`` tokens on a prompt is
            long.
        clusters, servers, vnodes, weights: the fleet; one ring weight per cluster, or none.
        capacity_blocks, checkpoints, checkpoint_blocks: cache of a cluster, see ``FleetSimulator``.
        router, load_factor, refresh_s, balancing_threshold: see ``RouterSettings``.
        cost: preset code; ``constants`` (fixed, per token, per squared token; seconds) or
            ``measured`` triples (prompt, cached, seconds) replace it.
        decode_tokens, decode_ms: decode stage; no budget, no stage.
        admission, admission_by, lanes, budgets, class_weights, max_overtakes: budgets and weights
            for (short, long); tokens when weights come from requests; one sum when shared.
        failures: (cluster, fails at, returns at) in seconds.
        warmup_s, until_s: arrivals outside are simulated and not counted.
        horizon_s: where the clock stops.
        slo_s: a first token within it is good.
        price, cached_price: of a million prompt tokens, computed and reused.
        seed: of every draw.
    """

    generate: str = ""
    trace: str = ""
    num_requests: int = 0
    num_sessions: int | None = None
    rate_per_s: float = 2.0
    arrival_cv: float = 1.0
    speed: float = 1.0
    ticks: str = "raw"
    class_threshold: int = LONG_THRESHOLD
    class_by: str = "total"
    clusters: int = 8
    servers: int = 1
    vnodes: int = DEFAULT_VNODES
    weights: tuple[float, ...] = ()
    capacity_blocks: int | None = 5859
    checkpoints: str = "junction"
    checkpoint_blocks: int = 0
    router: str = "session"
    load_factor: float = 1.25
    refresh_s: float = 0.0
    balancing_threshold: float = 1.0
    cost: str = "kimi-k3"
    constants: tuple[float, ...] = ()
    measured: tuple[tuple[int, int, float], ...] = ()
    decode_tokens: int = 0
    decode_ms: float = 20.0
    admission: str = "none"
    admission_by: str = "class"
    lanes: str = "separate"
    budgets: tuple[int, int] = (12, 12)
    class_weights: tuple[int, int] = (1, 3)
    max_overtakes: int = 0
    failures: tuple[tuple[int, float, float], ...] = ()
    warmup_s: float = 0.0
    until_s: float = math.inf
    horizon_s: float = math.inf
    slo_s: float = DEFAULT_SLO_S
    price: float = 3.0
    cached_price: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("admission", self.admission, ADMISSIONS)
        require_choice("lanes", self.lanes, LANES)
        require_choice("ticks", self.ticks, TICKS)
        for name in ("generate", "trace", "checkpoints", "cost"):
            require_type(name, getattr(self, name), str)
        for name in ("decode_tokens", "seed"):
            require_count(name, getattr(self, name))
        require_count(
            "num_requests", self.num_requests, 0, _MAX_REQUESTS if self.generate else None
        )
        require_count("class_threshold", self.class_threshold, 1)
        if self.num_sessions is not None:
            require_count("num_sessions", self.num_sessions, 1)
        for name in ("rate_per_s", "speed"):
            require_number(name, getattr(self, name), least=1 / _MAX_RATE, most=_MAX_RATE)
        for name in ("arrival_cv", "slo_s"):
            require_number(name, getattr(self, name), above=0)
        require_number("warmup_s", self.warmup_s, least=0)
        require_number("until_s", self.until_s, above=self.warmup_s, infinite=True)
        require_number("decode_ms", self.decode_ms, least=0, most=_MAX_MS)
        require_number("price", self.price, least=0, most=_MAX_PRICE)
        require_count("max_overtakes", self.max_overtakes)
        require_number("cached_price", self.cached_price, least=0, most=self.price)
        for name in ("weights", "measured", "failures"):
            require_type(name, getattr(self, name), tuple)
        for name, sizes in (("budgets", (2,)), ("class_weights", (2,)), ("constants", (0, 3))):
            values = require_type(name, getattr(self, name), tuple)
            require(
                len(values) in sizes,
                f"{name}={shown(values)} must be {' or '.join(map(str, sizes))} numbers",
            )
        for name in ("budgets", "class_weights"):
            require_counts(name, getattr(self, name), 1)
        for value in self.constants:
            require_number("constants", value, least=0, most=_MAX_CONSTANT)
        try:
            retention(self.checkpoints)
        except K3Error as error:
            raise K3Error(str(error).replace("rule=", "checkpoints=", 1)) from None

    @property
    def prefill(self) -> PrefillCost:
        """The cost model of the run."""
        if self.measured:
            return PrefillCost.calibrated(self.measured)
        if self.constants:
            fixed_s, linear_s, quadratic_s = self.constants
            return PrefillCost("custom", linear_s, quadratic_s, fixed_s, "constants given")
        return prefill_cost(self.cost)

    @property
    def budget_controller(self) -> BudgetController | None:
        """Budgets as asked for; None admits everything."""
        if self.admission == "none":
            return None
        by_class = self.admission_by == "class"
        weights = dict(zip(CLASS_NAMES, self.class_weights if by_class else (1, 1), strict=True))
        budgets = dict(zip(CLASS_NAMES, self.budgets, strict=True))
        lanes = None
        if self.lanes == "shared":
            budgets, lanes = {"all": sum(self.budgets)}, dict.fromkeys(weights, "all")
        return BudgetController(budgets, weights, self.admission, lanes, self.max_overtakes)

    def simulator(self) -> FleetSimulator:
        """The fleet.

        Raises:
            K3Error: a value out of range.
        """
        fleet = FleetSimulator(
            self.clusters,
            router=self.router,
            capacity_blocks=self.capacity_blocks,
            cost=self.prefill,
            rule=self.checkpoints,
            checkpoint_blocks=self.checkpoint_blocks,
            admission=self.budget_controller,
            admission_by=self.admission_by,
            class_by=self.class_by,
            failures=self.failures,
            vnodes=self.vnodes,
            weights=self.weights or None,
            servers=self.servers,
            decode=DecodeStage(self.decode_tokens, self.decode_ms / 1e3)
            if self.decode_tokens
            else None,
            load_factor=self.load_factor,
            routing=RouterSettings(
                refresh_s=self.refresh_s, balancing_threshold=self.balancing_threshold
            ),
            window_s=(self.warmup_s, self.until_s),
            horizon_s=self.horizon_s,
            seed=self.seed,
        )
        require(
            sum(fleet.points) <= _MAX_POINTS,
            f"vnodes={self.vnodes} gives {sum(fleet.points)} points to {self.clusters} clusters; "
            f"allowed: {_MAX_POINTS} points in all",
        )
        return fleet

    def workload(self) -> Workload:
        """The requests: generated, or those of a stored trace.

        Raises:
            TraceError: the trace is not stored (any more).
            K3Error: neither a trace nor a generator, or a number out of range.
        """
        return _workload(
            self.generate,
            self.trace,
            self.num_requests,
            self.num_sessions,
            self.rate_per_s,
            self.arrival_cv,
            self.speed,
            self.ticks,
            self.class_threshold,
            self.seed,
        )

    def require_counted(self, workload: Workload) -> None:
        """Refuse a window that no request arrives in.

        Raises:
            K3Error: nothing would be counted.
        """
        arrival_s, end_s = workload.arrival_s, min(self.until_s, self.horizon_s)
        name = "horizon_s" if self.horizon_s < self.until_s else "until_s"
        if self.warmup_s > arrival_s[-1]:
            name = "warmup_s"
        require(
            bool(((arrival_s >= self.warmup_s) & (arrival_s <= end_s)).any()),
            f"{name}={getattr(self, name):g} leaves no request to count; allowed: warmup_s, "
            f"until_s and horizon_s around some of the arrivals, {arrival_s[0]:g} to "
            f"{arrival_s[-1]:g} s",
        )

    @property
    def has_window(self) -> bool:
        """Whether some arrivals may not be counted."""
        return self.warmup_s > 0 or min(self.until_s, self.horizon_s) < math.inf

    def run(self) -> FleetResult:
        """Serve the requests."""
        return self.simulator().run(self.workload())

    def facts(self, result: FleetResult) -> dict[str, Any]:
        """Facts of a run, money included, as plain values."""
        return {
            **result.as_dict(self.slo_s),
            "saved_money": result.saved_money(self.price, self.cached_price),
            "price_per_million_tokens": self.price,
            "cached_price_per_million_tokens": self.cached_price,
        }


def failure_of(cluster: int, minute: float, down_minutes: float) -> tuple[int, float, float]:
    """A failure in minutes; 0 minutes down: it does not come back."""
    at_s = 60.0 * minute
    return cluster, at_s, at_s + 60.0 * down_minutes if down_minutes > 0 else math.inf


PAGE = Scenario(
    generate="sessions",
    num_requests=DEFAULT_REQUESTS,
    num_sessions=1500,
    capacity_blocks=4000,
    failures=(failure_of(3, 6, 4),),
)
"""Where page 7 and its studies start; what it does not name stands in ``Scenario``."""


def page_scenario(**changes: Any) -> Scenario:
    """The scenario of page 7 with some fields changed."""
    return replace(PAGE, **changes)


def kept_run(scenario: Scenario) -> FleetResult:
    """``scenario.run()``; the last few are kept, for several studies read one.

    What only counts (window, service level, prices) asks for no new run.
    """
    scenario.simulator()  # raises on a bad window as on everything else
    run_only = replace(
        scenario,
        warmup_s=PAGE.warmup_s,
        until_s=PAGE.until_s,
        slo_s=PAGE.slo_s,
        price=PAGE.price,
        cached_price=PAGE.cached_price,
    )
    result = _run(run_only)
    return replace(result, window_s=(scenario.warmup_s, scenario.until_s))


@lru_cache(maxsize=32)
def _run(scenario: Scenario) -> FleetResult:
    return scenario.run()


@lru_cache(maxsize=4)
def _workload(
    generate: str,
    trace: str,
    num_requests: int,
    num_sessions: int | None,
    rate_per_s: float,
    arrival_cv: float,
    speed: float,
    ticks: str,
    class_threshold: int,
    seed: int,
) -> Workload:
    if generate:
        workload = generated_workload(
            generate,
            num_requests or DEFAULT_REQUESTS,
            rate_per_s,
            arrival_cv,
            seed,
            class_threshold,
            num_sessions,
        )
    else:
        require(bool(trace), "neither a trace nor a kind of requests to generate is given")
        workload = replace(trace_workload(trace), long_threshold=class_threshold)
        if num_requests:
            workload = workload.head(num_requests)
    if ticks == "spread":
        workload = workload.spread(seed)
    return workload if speed == 1 else workload.faster(speed)
