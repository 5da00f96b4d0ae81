"""What a run of the fleet leaves behind: one row per request, and what follows from the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3core.errors import require_choice, require_count, require_number
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.stats import counting_refusals, order_statistic
from k3core.fleet.workload import CLASS_NAMES, Workload

ABSENT, IN_FLIGHT, SERVED, REJECTED = range(4)
"""Status of a request when the clock stopped; ABSENT: it had not arrived."""

ADMITTED, NO_BUDGET, TOO_LARGE = range(3)
REASONS = ("admitted", "no_budget", "too_large")
"""Why a request was refused: the budget was full, or it could never fit."""

DEFAULT_SLO_S = 10.0
LOAD_UNIT = "prefill seconds"
ROUTER_LOAD_UNIT = "pending prompt tokens"


@dataclass(frozen=True, eq=False)
class FleetResult:
    """Columns of R requests in order of arrival, beside facts of the run.

    Counts, percentiles and shares are those of the requests that arrived inside ``window_s``.

    Attributes:
        status: (R,) uint8: ABSENT, IN_FLIGHT, SERVED or REJECTED.
        cluster: (R,) int32 cluster that served it, -1 if none.
        is_long: (R,) class of each request.
        reason: (R,) uint8 index into ``REASONS``.
        admit_s, start_s, finish_s: (R,) seconds: ticket granted, service begun, first token.
        done_s: (R,) answer complete; the same as ``finish_s`` without a decode stage.
        hit_blocks: (R,) leading MLA blocks found when service began.
        reused_len: (R,) tokens skipped: checkpoints and the last-token rule applied.
        fetched_len: (R,) of those, tokens fetched from another cluster (``mooncake`` only).
        moved: (R,) waited or ran at a cluster when it failed.
        failed_over: (R,) served away from its home because that was down.
        lost_s: (clusters,) seconds of service that failures threw away.
        area_s: (classes,) integral of requests in the system over time, kept by the event loop.
        cached_blocks: (clusters,) MLA blocks cached at the end.
        end_s: when the clock stopped.
        num_servers: prefill servers of each cluster.
        window_s: arrivals from here to there are counted.
        loop_s: wall-clock seconds of the run on this machine, its tables included.
    """

    workload: Workload
    clusters: tuple[str, ...]
    router: str
    status: NDArray[np.uint8]
    cluster: NDArray[np.int32]
    is_long: NDArray[np.bool_]
    reason: NDArray[np.uint8]
    admit_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    hit_blocks: NDArray[np.int32]
    reused_len: NDArray[np.int64]
    fetched_len: NDArray[np.int64]
    moved: NDArray[np.bool_]
    failed_over: NDArray[np.bool_]
    lost_s: NDArray[np.float64]
    area_s: NDArray[np.float64]
    cached_blocks: NDArray[np.int64]
    end_s: float
    num_servers: int
    window_s: tuple[float, float]
    loop_s: float

    @cached_property
    def in_window(self) -> NDArray[np.bool_]:
        """(R,) arrived inside the window: the rows behind every number."""
        start, end = self.window_s
        inside: NDArray[np.bool_] = (self.workload.arrival_s >= start) & (
            self.workload.arrival_s <= end
        )
        return inside

    def of_class(self, cls: str | None) -> NDArray[np.bool_]:
        """Requests of one class inside the window; all for None."""
        if cls is None:
            return self.in_window
        require_choice("cls", cls, CLASS_NAMES)
        return self.in_window & (self.is_long if cls == "long" else ~self.is_long)

    def count(self, status: int, cls: str | None = None) -> int:
        require_count("status", status, ABSENT, REJECTED)
        return int(np.count_nonzero((self.status == status) & self.of_class(cls)))

    def num_arrived(self, cls: str | None = None) -> int:
        """Requests that came before the clock stopped: served + rejected + in flight."""
        return int(np.count_nonzero((self.status != ABSENT) & self.of_class(cls)))

    def num_served(self, cls: str | None = None) -> int:
        return self.count(SERVED, cls)

    def num_rejected(self, cls: str | None = None) -> int:
        return self.count(REJECTED, cls)

    def num_in_flight(self, cls: str | None = None) -> int:
        return self.count(IN_FLIGHT, cls)

    def rejected_share(self, cls: str | None = None) -> float:
        return self.num_rejected(cls) / max(1, self.num_arrived(cls))

    @cached_property
    def is_served(self) -> NDArray[np.bool_]:
        """(R,) served, and counted."""
        served: NDArray[np.bool_] = np.equal(self.status, SERVED) & self.in_window
        return served

    @cached_property
    def hit_len(self) -> NDArray[np.int64]:
        """(R,) raw accounting of the traces: min(512 k, n) tokens for k cached MLA blocks."""
        lengths: NDArray[np.int64] = np.minimum(
            self.hit_blocks.astype(np.int64) * BLOCK_LEN, self.workload.input_len
        )
        return lengths

    @cached_property
    def service_s(self) -> NDArray[np.float64]:
        """(R,) prefill seconds; NaN unless served."""
        return np.where(self.status == SERVED, self.finish_s - self.start_s, np.nan)

    @cached_property
    def all_ttft_s(self) -> NDArray[np.float64]:
        """(R,) arrival to first token; NaN unless served."""
        return self.finish_s - self.workload.arrival_s

    def ttft_s(self, cls: str | None = None) -> NDArray[np.float64]:
        """Time to first token of the served requests of a class, in order of arrival."""
        return self.all_ttft_s[self.is_served & self.of_class(cls)]

    def mean_ttft_s(self, cls: str | None = None) -> float:
        """Mean of the served; NaN when none was."""
        times_s = self.ttft_s(cls)
        return float(times_s.mean()) if len(times_s) else math.nan

    def ttft_at(self, q: float, cls: str | None = None) -> float:
        """Order statistic of the served; NaN when none was."""
        return order_statistic(self.ttft_s(cls), q)

    def ttft_counting_refusals(self, q: float, cls: str | None = None) -> float:
        """The misleading one: refusals as infinite latencies."""
        return counting_refusals(self.ttft_s(cls), self.num_rejected(cls), q)

    def goodput(self, slo_s: float, cls: str | None = None) -> float:
        """Share of the arrived requests that got a first token within ``slo_s``."""
        require_number("slo_s", slo_s, above=0)
        in_time = int(np.count_nonzero(self.ttft_s(cls) <= slo_s))
        return in_time / max(1, self.num_arrived(cls))

    def _served_sum(self, column: NDArray[Any]) -> int:
        return int(column[self.is_served].sum())

    @property
    def num_hit_blocks(self) -> int:
        return self._served_sum(self.hit_blocks)

    @property
    def num_hit_tokens(self) -> int:
        return self._served_sum(self.hit_len)

    @property
    def num_reused_tokens(self) -> int:
        return self._served_sum(self.reused_len)

    @property
    def num_served_tokens(self) -> int:
        """Prompt tokens of the served requests."""
        return self._served_sum(self.workload.input_len)

    @property
    def reuse_share(self) -> float:
        """Prompt tokens of the served that were not computed again."""
        return self.num_reused_tokens / max(1, self.num_served_tokens)

    @property
    def num_failovers(self) -> int:
        """Served requests that a failure sent away from home."""
        return int(np.count_nonzero(self.failed_over & self.is_served))

    @property
    def num_moved(self) -> int:
        """Requests that were waiting or running at a cluster when it failed."""
        return int(np.count_nonzero(self.moved))

    @property
    def reprefilled_tokens(self) -> int:
        """Tokens computed by the served requests that a failure sent away from home."""
        rows = self.failed_over & self.is_served
        return int((self.workload.input_len - self.reused_len)[rows].sum())

    def per_cluster(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """(clusters,) sum of a column over the served requests of each cluster."""
        rows = self.is_served
        return np.bincount(
            self.cluster[rows], weights=values[rows], minlength=len(self.clusters)
        ).astype(np.float64)

    @cached_property
    def load_s(self) -> NDArray[np.float64]:
        """(clusters,) prefill seconds of what each cluster served (``LOAD_UNIT``)."""
        return self.per_cluster(self.service_s)

    @property
    def peak_to_mean_load(self) -> float:
        """Largest load over the mean of all clusters; 1 is perfect, the number of them worst."""
        mean = float(self.load_s.mean())
        return float(self.load_s.max()) / mean if mean > 0 else math.nan

    @property
    def load_std_s(self) -> float:
        """Standard deviation of the load over the clusters."""
        return float(self.load_s.std())

    @property
    def load_cv(self) -> float:
        """Standard deviation of the load over its mean."""
        mean = float(self.load_s.mean())
        return self.load_std_s / mean if mean > 0 else math.nan

    @property
    def utilisation(self) -> float:
        """Busy share of all servers until the clock stopped, window or not, lost service too."""
        span = self.end_s * len(self.clusters) * self.num_servers
        busy_s = float(np.nansum(self.service_s)) + float(self.lost_s.sum())
        return busy_s / span if span > 0 else 0.0

    def num_refused_for(self, reason: str) -> int:
        """Refused requests by reason, one of ``REASONS``."""
        require_choice("reason", reason, REASONS)
        rows = (self.status == REJECTED) & self.in_window
        return int(np.count_nonzero(self.reason[rows] == REASONS.index(reason)))

    def saved_money(self, price: float, cached_price: float) -> float:
        """What reuse saves when cached prompt tokens are cheaper.

        Args:
            price: of a million prompt tokens.
            cached_price: of a million reused ones.
        """
        require_number("price", price, least=0)
        require_number("cached_price", cached_price, least=0, most=price)
        return self.num_reused_tokens * (price - cached_price) / 1e6

    def as_dict(self, slo_s: float = DEFAULT_SLO_S) -> dict[str, Any]:
        """Facts of the run as plain values; the same run gives the same bytes.

        Args:
            slo_s: a first token within it counts as good.
        """
        classes: tuple[str | None, ...] = (*CLASS_NAMES, None)

        def by_class(value: Any) -> dict[str, Any]:
            return {cls or "all": _plain(value(cls)) for cls in classes}

        return {
            "num_requests": self.num_arrived(),
            "num_served": self.num_served(),
            "num_rejected": self.num_rejected(),
            "num_in_flight": self.num_in_flight(),
            "total_blocks": self._served_sum(np.diff(self.workload.block_offsets)),
            "hit_blocks": self.num_hit_blocks,
            "total_tokens": self.num_served_tokens,
            "hit_tokens": self.num_hit_tokens,
            "reused_tokens": self.num_reused_tokens,
            "p50_ttft_s": by_class(lambda cls: self.ttft_at(0.50, cls)),
            "p95_ttft_s": by_class(lambda cls: self.ttft_at(0.95, cls)),
            "p99_ttft_s": by_class(lambda cls: self.ttft_at(0.99, cls)),
            "num_served_by_class": by_class(self.num_served),
            "num_rejected_by_class": by_class(self.num_rejected),
            "mean_ttft_s": by_class(self.mean_ttft_s),
            "rejection_rate": by_class(self.rejected_share),
            "num_refused_by_reason": {r: self.num_refused_for(r) for r in REASONS[1:]},
            "slo_s": slo_s,
            "goodput": by_class(lambda cls: self.goodput(slo_s, cls)),
            "hit_rate_blocks": self.num_hit_blocks
            / max(1, self._served_sum(np.diff(self.workload.block_offsets))),
            "hit_rate_tokens": self.num_hit_tokens / max(1, self.num_served_tokens),
            "reuse_rate_tokens": self.reuse_share,
            "fetched_tokens": self._served_sum(self.fetched_len),
            "load_s": [float(value) for value in self.load_s],
            "peak_to_mean_load": _plain(self.peak_to_mean_load),
            "load_std_s": self.load_std_s,
            "load_cv": _plain(self.load_cv),
            "utilisation": self.utilisation,
            "num_failovers": self.num_failovers,
            "num_moved": self.num_moved,
            "reprefilled_tokens": self.reprefilled_tokens,
            "end_s": self.end_s,
            "window": {
                "start_s": self.window_s[0],
                "end_s": min(self.window_s[1], self.end_s),
                "num_requests": int(np.count_nonzero(self.in_window)),
            },
        }


def _plain(value: float) -> float | None:
    """JSON has no NaN or infinity: they become null."""
    return value if math.isfinite(value) else None
