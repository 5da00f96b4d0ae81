"""What every simulated study of the fleet takes: the requests, the fleet, and what goes wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from k3core.errors import require
from k3core.fleet.budget import BudgetController
from k3core.fleet.cost import PrefillCost, prefill_cost
from k3core.fleet.result import FleetResult
from k3core.fleet.simulator import Failure, FleetSimulator
from k3core.fleet.synthetic import synthetic_workload
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
        num_sessions, rate_per_s: of the synthetic workload.
        speed: how many times faster a trace is replayed.
        num_clusters, vnodes, blocks: the fleet; ``blocks`` MLA blocks of cache per cluster.
        cost, rule: codes of ``COST_PRESETS`` and ``CHECKPOINT_RULES``.
        constants: seconds per request, per token and per squared token that replace those of
            ``cost``; empty keeps the preset.
        admission: ``none``, ``reject`` or ``queue``, with a budget of its own per class.
        kill_cluster, kill_minute, down_minutes: one failure; minute 0 means none, and 0 minutes
            down that it does not come back.
    """

    trace: str = ""
    num_requests: int = 1800
    num_sessions: int = 1500
    rate_per_s: float = 2.0
    speed: float = 1.0
    num_clusters: int = 8
    vnodes: int = 160
    blocks: int = 4000
    cost: str = "kimi-k3"
    rule: str = "junction"
    constants: tuple[float, ...] = ()
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
        return _synthetic(self.num_requests, self.num_sessions, self.rate_per_s, self.seed)

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
        weights = {"short": self.weight_short, "long": self.weight_long}
        if shared:
            total = {"all": self.budget_short + self.budget_long}
            return BudgetController(total, weights, mode, SHARED_LANE)
        return BudgetController(
            {"short": self.budget_short, "long": self.budget_long}, weights, mode
        )

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
            admission=admission,
            failures=self.failures,
            vnodes=self.vnodes,
            seed=self.seed,
        )

    def run(self, router: str = "session") -> FleetResult:
        """One run of these parameters; the last few are kept, for several studies read one."""
        return _run(self, router)


@lru_cache(maxsize=16)
def _run(params: FleetParams, router: str) -> FleetResult:
    return params.simulator(router).run(params.workload())


@lru_cache(maxsize=8)
def _synthetic(num_requests: int, num_sessions: int, rate_per_s: float, seed: int) -> Workload:
    return synthetic_workload(num_requests, num_sessions, rate_per_s, seed=seed)
