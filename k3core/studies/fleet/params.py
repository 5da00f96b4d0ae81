"""What every simulated study of the fleet takes: the requests, the fleet, and what goes wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from k3core.errors import require
from k3core.fleet.budget import BudgetController
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.fleet.decode_stage import DecodeStage
from k3core.fleet.result import FleetResult
from k3core.fleet.simulator import Failure, FleetSimulator
from k3core.fleet.synthetic import generated_workload, synthetic_workload
from k3core.fleet.workload import Workload
from k3core.studies.fleet.traces import trace_workload

CLASSES = ("short", "long")
SHARED_LANE = {"short": "all", "long": "all"}


@dataclass(frozen=True)
class FleetParams:
    """Plain values; the defaults are those of the page.

    Attributes:
        trace: key of an uploaded trace, or empty for the synthetic workload.
        num_requests: requests in all, or the first ones of a trace.
        source: kind of synthetic workload, one of ``GENERATORS``.
        num_sessions: of the kind ``sessions``.
        rate_per_s, arrival_cv: arrivals of a synthetic workload (1: Poisson).
        speed: how many times faster a trace is replayed.
        num_clusters, vnodes, blocks: the fleet; ``blocks`` MLA blocks of cache per cluster.
        servers: prefill servers of each cluster.
        decode_tokens, decode_ms: token budget of each cluster's decode stage and milliseconds per
            generated token; budget 0 leaves the stage out.
        cost: code of ``COST_PRESETS``.
        rule: retention policy as ``k3core.fleet.cache.retention`` reads it.
        checkpoint_blocks: MLA blocks that a checkpoint takes of the cache.
        constants: seconds per request, per token and per squared token that replace those of
            ``cost``; empty keeps the preset.
        admission: ``none``, ``reject`` or ``queue``, with a budget of its own per class.
        weigh: what a request takes of its budget: ``class`` (its weight), ``total`` or
            ``uncached`` (its tokens; the budgets are then ``tokens_short``, ``tokens_long``).
        max_overtakes: later requests of a class that may enter before one that waits.
        load_factor: bound of the bounded ring, relative to the mean load.
        warm_minutes: arrivals before are simulated and not counted.
        class_by: what makes a request long: ``total`` or ``uncached`` tokens.
        kill_cluster, kill_minute, down_minutes: one failure; minute 0 means none, and 0 minutes
            down that it does not come back.
    """

    trace: str = ""
    num_requests: int = 1800
    num_sessions: int = 1500
    rate_per_s: float = 2.0
    source: str = "sessions"
    arrival_cv: float = 1.0
    speed: float = 1.0
    num_clusters: int = 8
    vnodes: int = 160
    blocks: int = 4000
    cost: str = "kimi-k3"
    rule: str = "junction"
    constants: tuple[float, ...] = ()
    servers: int = 1
    decode_tokens: int = 0
    decode_ms: float = 20.0
    checkpoint_blocks: int = 0
    weigh: str = "class"
    class_by: str = "total"
    max_overtakes: int = 0
    load_factor: float = 1.25
    warm_minutes: float = 0.0
    tokens_short: int = 262_144
    tokens_long: int = 4_194_304
    admission: str = "none"
    budget_short: int = 12
    budget_long: int = 12
    weight_short: int = 1
    weight_long: int = 3
    kill_cluster: int = 3
    kill_minute: float = 6
    down_minutes: float = 4
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self.admission in ("none", "reject", "queue"),
            f"admission={self.admission!r} is unknown; allowed: none, reject, queue",
        )
        require(
            0 <= self.kill_cluster < self.num_clusters,
            f"kill_cluster={self.kill_cluster} must be in 0..{self.num_clusters - 1}",
        )
        require(
            len(self.constants) in (0, 3),
            f"constants={self.constants} must be empty or three numbers",
        )

    def workload(self) -> Workload:
        if self.trace:
            head = trace_workload(self.trace).head(self.num_requests)
            return head if self.speed == 1 else head.faster(self.speed)
        sessions = self.num_sessions if self.source == "sessions" else 0
        return _synthetic(
            self.source, self.num_requests, sessions, self.rate_per_s, self.arrival_cv, self.seed
        )

    @property
    def prefill(self) -> PrefillCost:
        """The cost model of the run: the preset, or the constants given instead."""
        if not self.constants:
            return prefill_cost(self.cost)
        fixed_s, linear_s, quadratic_s = self.constants
        return PrefillCost("custom", linear_s, quadratic_s, fixed_s, "constants given")

    @property
    def failures(self) -> tuple[Failure, ...]:
        if self.kill_minute <= 0:
            return ()
        at_s = 60.0 * self.kill_minute
        back_s = at_s + 60.0 * self.down_minutes if self.down_minutes > 0 else math.inf
        return (Failure(self.kill_cluster, at_s, back_s),)

    def budgets(self, mode: str, shared: bool = False) -> BudgetController:
        """Budgets of their own per class, or the sum of both shared by all.

        Raises:
            BudgetError: a weight exceeds its budget.
        """
        if self.weigh == "class":
            weights = {"short": self.weight_short, "long": self.weight_long}
            budgets = {"short": self.budget_short, "long": self.budget_long}
        else:  # every request brings its own weight in tokens
            weights = dict.fromkeys(CLASSES, 1)
            budgets = {"short": self.tokens_short, "long": self.tokens_long}
        if shared:
            budgets = {"all": sum(budgets.values())}
        lanes = SHARED_LANE if shared else None
        return BudgetController(budgets, weights, mode, lanes, self.max_overtakes)

    def simulator(
        self, router: str = "session", admission: BudgetController | None = None
    ) -> FleetSimulator:
        """The fleet of these parameters; ``admission`` replaces the one they name."""
        if admission is None and self.admission != "none":
            admission = self.budgets(self.admission)
        return FleetSimulator(
            self.num_clusters,
            router=router,
            capacity_blocks=self.blocks,
            cost=self.prefill,
            rule=self.rule,
            checkpoint_blocks=self.checkpoint_blocks,
            servers=self.servers,
            decode=DecodeStage(self.decode_tokens, self.decode_ms / 1e3)
            if self.decode_tokens
            else None,
            admission=admission,
            admission_by=self.weigh,
            class_by=self.class_by,
            failures=self.failures,
            vnodes=self.vnodes,
            load_factor=self.load_factor,
            window_s=(60.0 * self.warm_minutes, math.inf),
            seed=self.seed,
        )

    def run(self, router: str = "session") -> FleetResult:
        """One run of these parameters; the last few are kept, for several studies read one."""
        return _run(self, router)


@lru_cache(maxsize=16)
def _run(params: FleetParams, router: str) -> FleetResult:
    return params.simulator(router).run(params.workload())


@lru_cache(maxsize=8)
def _synthetic(
    source: str,
    num_requests: int,
    num_sessions: int,
    rate_per_s: float,
    arrival_cv: float,
    seed: int,
) -> Workload:
    if source == "sessions":
        return synthetic_workload(
            num_requests, num_sessions, rate_per_s, arrival_cv=arrival_cv, seed=seed
        )
    return generated_workload(source, num_requests, rate_per_s, arrival_cv, seed)
