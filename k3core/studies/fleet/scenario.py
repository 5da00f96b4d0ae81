"""A run of the fleet in plain values: what ``replay`` and ``sweep`` are asked for."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from k3core.errors import TraceError, require
from k3core.fleet.budget import BudgetController
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.fleet.decode_stage import DecodeStage
from k3core.fleet.result import FleetResult
from k3core.fleet.router_base import RouterSettings
from k3core.fleet.simulator import DEFAULT_VNODES, Failure, FleetSimulator
from k3core.fleet.synthetic import generated_workload
from k3core.fleet.trace_files import MAX_TRACE_BYTES, parse_trace
from k3core.fleet.workload import LONG_THRESHOLD, Workload

ADMISSIONS = ("none", "reject", "queue")
LANES = ("separate", "shared")
TICKS = ("raw", "spread")
_MAX_PARSED = 2
_parsed: OrderedDict[tuple[bytes, int], Workload] = OrderedDict()


@dataclass(frozen=True)
class Scenario:
    """Requests, fleet, admission and what is counted; every field has a plain value.

    Attributes:
        generate: kind of generated requests (``k3core.fleet.synthetic.GENERATORS``); empty: a
            trace, whose bytes come beside the scenario.
        num_requests: generated requests, or the first ones of a trace (0: all).
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
    num_requests: int = 0
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
    slo_s: float = 10.0
    price: float = 3.0
    cached_price: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("admission", ADMISSIONS), ("lanes", LANES), ("ticks", TICKS)):
            value = getattr(self, name)
            require(value in allowed, f"{name}={value!r} is unknown; allowed: {', '.join(allowed)}")
        require(self.num_requests >= 0, f"num_requests={self.num_requests} must be >= 0")
        require(self.slo_s > 0, f"slo_s={self.slo_s} must be > 0")
        require(
            0 <= self.cached_price <= self.price < math.inf,
            f"cached_price={self.cached_price} must be in 0..price={self.price}",
        )
        require(
            len(self.constants) in (0, 3),
            f"constants={self.constants} must be three numbers: fixed, linear, quadratic",
        )

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
        weights = dict(
            zip(("short", "long"), self.class_weights if by_class else (1, 1), strict=True)
        )
        budgets = dict(zip(("short", "long"), self.budgets, strict=True))
        lanes = None
        if self.lanes == "shared":
            budgets, lanes = {"all": sum(self.budgets)}, dict.fromkeys(weights, "all")
        return BudgetController(budgets, weights, self.admission, lanes, self.max_overtakes)

    def simulator(self) -> FleetSimulator:
        """The fleet.

        Raises:
            K3Error: a value out of range.
        """
        return FleetSimulator(
            self.clusters,
            router=self.router,
            capacity_blocks=self.capacity_blocks,
            cost=self.prefill,
            rule=self.checkpoints,
            checkpoint_blocks=self.checkpoint_blocks,
            admission=self.budget_controller,
            admission_by=self.admission_by,
            class_by=self.class_by,
            failures=[Failure(*failure) for failure in self.failures],
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

    def workload(self, trace: bytes = b"") -> Workload:
        """The requests: generated, or those of a trace's bytes.

        Raises:
            TraceError: a bad trace.
            K3Error: neither a trace nor a generator, or a number out of range.
        """
        if self.generate:
            workload = generated_workload(
                self.generate,
                self.num_requests or 1800,
                self.rate_per_s,
                self.arrival_cv,
                self.seed,
                self.class_threshold,
            )
        else:
            require(bool(trace), "neither a trace nor a kind of requests to generate is given")
            workload = _parse(trace, self.class_threshold)
            if self.num_requests:
                workload = workload.head(self.num_requests)
        if self.ticks == "spread":
            workload = workload.spread(self.seed)
        return workload if self.speed == 1 else workload.faster(self.speed)

    def run(self, trace: bytes = b"") -> FleetResult:
        """Serve the requests."""
        return self.simulator().run(self.workload(trace))

    def facts(self, result: FleetResult) -> dict[str, Any]:
        """Facts of a run, money included, as plain values."""
        return {
            **result.as_dict(self.slo_s),
            "saved_money": result.saved_money(self.price, self.cached_price),
            "price_per_million_tokens": self.price,
            "cached_price_per_million_tokens": self.cached_price,
        }


def trace_bytes(path: str | Path) -> bytes:
    """The bytes of a trace file, packed or not.

    Raises:
        TraceError: it cannot be read or is too large.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_TRACE_BYTES + 1)
    except OSError as error:
        raise TraceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    require(len(data) <= MAX_TRACE_BYTES, f"{str(path)!r} is too large", TraceError)
    require(bool(data), f"{str(path)!r} is empty: the trace holds no request", TraceError)
    return data


def _parse(data: bytes, class_threshold: int) -> Workload:
    """A trace, parsed once per process for the runs of a sweep."""
    key = (blake2b(data).digest(), class_threshold)
    if key not in _parsed:
        _parsed[key] = parse_trace(data, class_threshold)
        while len(_parsed) > _MAX_PARSED:
            _parsed.popitem(last=False)
    return _parsed[key]
