"""Requests as columns.

A workload holds its requests in arrays, in order of arrival; no object stands for a request, so a
million of them fit in memory. ``Request`` is the view of one. Traces are read by
``k3core.fleet.trace_files``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from k3core.errors import require
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.ring import SessionId, session_key
from k3core.fleet.segments import Segments

CLASS_NAMES = ("short", "long")
LONG_THRESHOLD = 16_384
"""Prompts from here on are long: 23% of the conversation trace's requests, 63% of its tokens."""

HUB_CHILDREN = 50
"""A block followed by at least this many different blocks is a hub (a system prompt)."""


class Request(NamedTuple):
    """One request.

    Attributes:
        arrival_s: seconds since the start of the workload.
        input_len: prompt tokens.
        output_len: tokens to generate.
        block_ids: one id per 512-token block of the prompt, a partial last block included.
        session_id: whose conversation it belongs to; routing depends on nothing else.
    """

    arrival_s: float
    input_len: int
    output_len: int
    block_ids: tuple[int, ...]
    session_id: SessionId


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in order of arrival, as columns of equal length R.

    Attributes:
        arrival_s: (R,) float64, not decreasing.
        input_len: (R,) int64 prompt tokens, each >= 1.
        output_len: (R,) int64.
        block_ids: (sum of blocks,) int64, all paths end to end.
        block_offsets: (R+1,) int64; path of request i is ``block_ids[offsets[i]:offsets[i+1]]``.
        sessions: (R,) uint64 session keys.
        long_threshold: prompts of at least this many tokens are of class ``long``.
        service_s: (R,) prefill seconds that requests bring along instead of the cost model's.
    """

    arrival_s: NDArray[np.float64]
    input_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    block_ids: NDArray[np.int64]
    block_offsets: NDArray[np.int64]
    sessions: NDArray[np.uint64]
    long_threshold: int = LONG_THRESHOLD
    service_s: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        num = len(self.arrival_s)
        for name in ("input_len", "output_len", "sessions", "service_s"):
            column = getattr(self, name)
            size = num if column is None else len(column)
            require(size == num, f"{name} has {size} entries, arrival_s has {num}")
        if self.service_s is not None:
            good = np.isfinite(self.service_s) & (self.service_s >= 0)
            require(bool(good.all()), "service_s must be finite and >= 0")
        require(
            len(self.block_offsets) == num + 1
            and self.block_offsets[0] == 0
            and self.block_offsets[-1] == len(self.block_ids),
            "block_offsets must run from 0 to the number of block ids, one more than requests",
        )
        require(self.long_threshold >= 1, f"long_threshold={self.long_threshold} must be >= 1")
        if num == 0:
            return
        require(bool(np.isfinite(self.arrival_s).all()), "arrival_s must be finite")
        require(bool((np.diff(self.arrival_s) >= 0).all()), "arrival_s must not decrease")
        require(bool((self.input_len >= 1).all()), "input_len must be >= 1")
        require(bool((self.output_len >= 0).all()), "output_len must be >= 0")
        expected = -(-self.input_len // BLOCK_LEN)
        wrong = np.flatnonzero(np.diff(self.block_offsets) != expected)
        require(
            len(wrong) == 0,
            f"request {wrong[0] if len(wrong) else 0} must have ceil(input_len/{BLOCK_LEN}) blocks",
        )

    @classmethod
    def from_requests(
        cls, requests: Iterable[Request], long_threshold: int = LONG_THRESHOLD
    ) -> Workload:
        """A workload from single requests; sorted by arrival, ties in the given order.

        Raises:
            K3Error: a column breaks the rules of the class.
        """
        rows = sorted(requests, key=lambda request: request.arrival_s)
        sizes = [len(row.block_ids) for row in rows]
        return cls(
            arrival_s=np.array([row.arrival_s for row in rows], np.float64),
            input_len=np.array([row.input_len for row in rows], np.int64),
            output_len=np.array([row.output_len for row in rows], np.int64),
            block_ids=np.fromiter(chain.from_iterable(row.block_ids for row in rows), np.int64),
            block_offsets=offsets_of(sizes),
            sessions=np.array([session_key(row.session_id) for row in rows], np.uint64),
            long_threshold=long_threshold,
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    def request(self, index: int) -> Request:
        """The request at ``index`` in order of arrival."""
        return Request(
            float(self.arrival_s[index]),
            int(self.input_len[index]),
            int(self.output_len[index]),
            tuple(self.path(index)),
            int(self.sessions[index]),
        )

    def path(self, index: int) -> list[int]:
        """Block ids of one request, from the root."""
        start, end = self.block_offsets[index], self.block_offsets[index + 1]
        ids: list[int] = self.block_ids[start:end].tolist()
        return ids

    @cached_property
    def segments(self) -> Segments:
        """Runs of blocks that are always touched together; computed once."""
        return Segments.of(self.block_ids, self.block_offsets)

    @property
    def is_long(self) -> NDArray[np.bool_]:
        long: NDArray[np.bool_] = np.greater_equal(self.input_len, self.long_threshold)
        return long

    @property
    def num_blocks(self) -> int:
        return len(self.block_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return int(self.input_len.sum())

    @property
    def num_sessions(self) -> int:
        return len(np.unique(self.sessions))

    @property
    def tick_s(self) -> float:
        """Grain of the timestamps, or 0 when most requests arrive alone.

        Traces often carry coarse clocks (the conversation trace: 3 s), which makes requests arrive
        in bursts that never happened and can turn the ranking of routers round.
        """
        distinct = np.unique(self.arrival_s)
        if len(distinct) < 2 or len(distinct) > len(self) / 2:
            return 0.0
        return float(np.median(np.diff(distinct)))

    def spread(self, seed: int = 0) -> Workload:
        """The same requests in the same order, each tick's arrivals drawn evenly over the tick."""
        tick = self.tick_s
        if tick == 0.0:
            return self
        distinct, group = np.unique(self.arrival_s, return_inverse=True)
        width = np.minimum(np.diff(distinct, append=distinct[-1] + tick), tick)
        draws = np.random.default_rng(seed).random(len(self))
        draws = draws[np.lexsort((draws, group))]
        return replace(self, arrival_s=self.arrival_s + draws * width[group])

    def faster(self, factor: float) -> Workload:
        """The same requests arriving ``factor`` times as fast.

        Raises:
            K3Error: ``factor`` is not positive and finite.
        """
        require(0 < factor < math.inf, f"factor={factor} must be positive and finite")
        return replace(self, arrival_s=self.arrival_s / factor)

    def head(self, num_requests: int) -> Workload:
        """The first ``num_requests`` requests."""
        num = min(max(num_requests, 0), len(self))
        end = int(self.block_offsets[num])
        return replace(
            self,
            arrival_s=self.arrival_s[:num],
            input_len=self.input_len[:num],
            output_len=self.output_len[:num],
            block_ids=self.block_ids[:end],
            block_offsets=self.block_offsets[: num + 1],
            sessions=self.sessions[:num],
            service_s=None if self.service_s is None else self.service_s[:num],
        )


def sessions_from_blocks(
    block_ids: NDArray[np.int64],
    block_offsets: NDArray[np.int64],
    hub_children: int = HUB_CHILDREN,
) -> NDArray[np.uint64]:
    """Session key of each request, from its blocks alone.

    Leading hub blocks (followed by at least ``hub_children`` different blocks: a system prompt
    that everyone shares) are stripped; the next block id names the session. A request that is all
    hub is named by its last block. Block ids are prefix-chained, so a block stands at one depth.

    Returns:
        (R,) uint64.
    """
    starts, sizes = block_offsets[:-1], np.diff(block_offsets)
    depth = np.zeros(len(starts), np.int64)
    undecided = np.flatnonzero(sizes > 1)
    while len(undecided):
        here = block_ids[starts[undecided] + depth[undecided]]
        below = block_ids[starts[undecided] + depth[undecided] + 1]
        edges = np.unique(np.stack((here, below)), axis=1)
        parents, num_children = np.unique(edges[0], return_counts=True)
        hubs = parents[num_children >= hub_children]
        undecided = undecided[np.isin(here, hubs)]
        depth[undecided] += 1
        undecided = undecided[depth[undecided] + 1 < sizes[undecided]]
    sessions: NDArray[np.uint64] = block_ids[starts + depth].astype(np.uint64)
    return sessions


def offsets_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """(N+1,) running sums of N sizes, from 0."""
    return np.concatenate(([0], np.cumsum(np.array(sizes, np.int64)))).astype(np.int64)
