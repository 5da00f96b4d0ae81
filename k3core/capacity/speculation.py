"""What drafting earns and costs: tokens per step, bytes per request, requests in flight, reuse.

Acceptance comes from per-position probabilities or from a golden acceptance length, which engines
realise as the schedule of least variance. Whether drafting still pays under load is read from a
published curve; the constant that a formula needs to follow it is fitted, and named so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from k3core.capacity.planner import CapacityPlan
from k3core.capacity.rollback import MAX_DRAFTS
from k3core.errors import CapacityError, require, require_count, require_number, require_type, shown

GOLDEN_SOURCE = "InferenceX #2697, #2725, #2814, #2845: Kimi K3 DSpark, bonus token included"
# Drafts per step -> tokens per step of Kimi K3 with a DSpark drafter.
GOLDEN_LENGTHS: dict[int, float] = {2: 2.51, 3: 3.00, 4: 3.36, 6: 3.75, 7: 3.84}


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Tokens that a step commits on average: the bonus token and every accepted draft.

    Args:
        acceptance: probability that draft i is accepted when all before it were, in [0, 1].
    """
    require(
        isinstance(acceptance, Sequence) and not isinstance(acceptance, str),
        f"acceptance={shown(acceptance)} must be a sequence of numbers",
        CapacityError,
    )
    for place, chance in enumerate(acceptance):
        require_number(f"acceptance[{place}]", chance, least=0, most=1, error=CapacityError)
    total, alive = 1.0, 1.0
    for chance in acceptance:
        alive *= chance
        total += alive
    return total


def golden_schedule(acceptance_len: float, drafts: int) -> tuple[float, ...]:
    """Per-position acceptance with the least variance for a mean of ``acceptance_len`` tokens.

    All drafts up to the whole part are accepted, the next one with the rest (ATOM #1948: 3.78 over
    seven drafts is 1, 1, 0.78, 0, 0, 0, 0).
    """
    require_count("drafts", drafts, 1, MAX_DRAFTS, CapacityError)
    require_number("acceptance_len", acceptance_len, least=1, most=drafts + 1, error=CapacityError)
    accepted = acceptance_len - 1
    return tuple(round(min(max(accepted - i, 0.0), 1.0), 10) for i in range(drafts))


def golden_length(drafts: int) -> float:
    """Published tokens per step for this many drafts; linear between published counts.

    Raises:
        CapacityError: more drafts than were published.
    """
    require_count("drafts", drafts, 0, None, CapacityError)
    points = [(0, 1.0), *sorted(GOLDEN_LENGTHS.items())]
    require(
        drafts <= points[-1][0],
        f"drafts={drafts} is beyond the published {points[-1][0]}; give an acceptance length",
        CapacityError,
    )
    for (low, a), (high, b) in pairwise(points):
        if drafts <= high:
            return a + (b - a) * (drafts - low) / (high - low)
    return points[-1][1]


@dataclass(frozen=True)
class LoadPoint:
    """Throughput at one concurrency, without and with drafts, in tokens per second."""

    concurrency: int
    plain: float
    drafted: float

    @property
    def gain(self) -> float:
        return self.drafted / self.plain


@dataclass(frozen=True)
class LoadCurve:
    """A published measurement of drafting under growing load."""

    source: str
    drafts: int
    points: tuple[LoadPoint, ...]

    @property
    def break_even(self) -> float:
        """Concurrency at which drafting stops paying, between measured points (log scale).

        Infinite when it pays at every point, 0 when at none.
        """
        if self.points[0].gain < 1:
            return 0.0
        for low, high in pairwise(self.points):
            if high.gain < 1:
                part = (low.gain - 1) / (low.gain - high.gain)
                step = math.log(high.concurrency / low.concurrency)
                return low.concurrency * math.exp(part * step)
        return math.inf

    def gain_at(self, concurrency: float) -> float | None:
        """Measured gain at a concurrency, between two points on a log scale of it.

        None outside the measured points: nothing is extrapolated.
        """
        require_number("concurrency", concurrency, least=0, error=CapacityError)
        for low, high in pairwise(self.points):
            if low.concurrency <= concurrency <= high.concurrency:
                part = math.log(concurrency / low.concurrency)
                part /= math.log(high.concurrency / low.concurrency)
                return low.gain + part * (high.gain - low.gain)
        return None

    def fitted_row_cost(self, tokens_per_step: float) -> float:
        """FITTED: time of one verified row, as a part of a step's constant time.

        With a step time of ``1 + x rows`` the gain is ``E (1 + x c) / (1 + x T c)``; x is chosen to
        minimise the squared error of its logarithm over the measured points.
        """
        width = 1 + self.drafts

        def error(x: float) -> float:
            return sum(
                math.log(load_gain(tokens_per_step, width, p.concurrency, x) / p.gain) ** 2
                for p in self.points
            )

        return min((10 ** (i / 50 - 4) for i in range(251)), key=error)


def _positive(name: str, value: float) -> None:
    require_number(name, value, above=0, error=CapacityError)


def load_gain(tokens_per_step: float, width: int, concurrency: float, row_cost: float) -> float:
    """Throughput with drafts over throughput without, for a fitted cost of a verified row."""
    _positive("tokens_per_step", tokens_per_step)
    require_count("width", width, 1, None, CapacityError)
    _positive("concurrency", concurrency)
    require_number("row_cost", row_cost, least=0, error=CapacityError)
    plain, drafted = 1 + row_cost * concurrency, 1 + row_cost * width * concurrency
    return tokens_per_step * plain / drafted


INFERA_74 = LoadCurve(
    "Infera #74: Kimi K3 with DSpark, MI355X, 1K in, 128 out",
    7,
    (
        LoadPoint(4, 56.78, 147.90),
        LoadPoint(8, 241.69, 328.58),
        LoadPoint(16, 427.86, 471.74),
        LoadPoint(32, 689.22, 685.25),
        LoadPoint(64, 972.37, 879.84),
    ),
)


@dataclass(frozen=True)
class DraftBalance:
    """A deployment with drafts against the same one without.

    Attributes:
        drafts: drafted tokens per step.
        tokens_per_step: mean committed tokens, bonus included.
        verify_width: rows that a step verifies, 1 + drafts.
        added_bytes: what a request holds more, one rank.
        requests_plain: requests in flight without drafts.
        requests_drafted: with them.
        reuse_lost_tokens: shortest prefix that is no longer reused, one grid block.
        traffic_plain, traffic_drafted: bytes per committed token for state and rollback, one rank
            and request.
    """

    drafts: int
    tokens_per_step: float
    verify_width: int
    added_bytes: int
    requests_plain: int
    requests_drafted: int
    reuse_lost_tokens: int
    traffic_plain: float
    traffic_drafted: float

    @property
    def in_flight_ratio(self) -> float:
        """Requests in flight with drafts over without; 0 when neither fits."""
        return self.requests_drafted / self.requests_plain if self.requests_plain else 0.0

    @property
    def memory_bound_gain(self) -> float:
        """Upper bound of the gain of a full replica whose steps take no longer with drafts."""
        return self.tokens_per_step * self.in_flight_ratio

    @property
    def even_step_time(self) -> float:
        """How many times longer a step may take before drafting loses on a full replica."""
        return self.memory_bound_gain


def balance(
    plain: CapacityPlan, drafted: CapacityPlan, tokens_per_step: float, dropped_blocks: int = 1
) -> DraftBalance:
    """Compare two plans that differ in their drafts.

    Raises:
        CapacityError: the first plan drafts, or a step cannot commit that many tokens.
    """
    require_type("plain", plain, CapacityPlan, CapacityError)
    require_type("drafted", drafted, CapacityPlan, CapacityError)
    require_count("dropped_blocks", dropped_blocks, 0, None, CapacityError)
    drafts = drafted.deployment.drafts
    require(plain.deployment.drafts == 0, "the plain plan must draft nothing", CapacityError)
    require_number(
        "tokens_per_step", tokens_per_step, least=1, most=drafts + 1, error=CapacityError
    )
    return DraftBalance(
        drafts=drafts,
        tokens_per_step=tokens_per_step,
        verify_width=drafts + 1,
        added_bytes=drafted.cost.extra_bytes,
        requests_plain=plain.max_requests,
        requests_drafted=drafted.max_requests,
        reuse_lost_tokens=dropped_blocks * drafted.blocks.block_tokens if drafts else 0,
        traffic_plain=plain.cost.step_traffic(1).total,
        traffic_drafted=drafted.cost.step_traffic(tokens_per_step).total / tokens_per_step,
    )
