"""Requests as columns.

A workload holds its requests in arrays, in order of arrival; no object stands for a request, so a
million of them fit in memory. ``Request`` is the view of one. Traces are read by
``k3core.fleet.trace_files``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from k3core.errors import (
    K3Error,
    require,
    require_count,
    require_counts,
    require_number,
    require_type,
    shown,
)
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.columns import (
    MAX_ID,
    MAX_TOKENS,
    offsets_of,
    require_column,
    require_offsets,
)
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
        num = len(require_column("arrival_s", self.arrival_s, "iuf"))
        kinds = {"input_len": "iu", "output_len": "iu", "sessions": "iu", "service_s": "iuf"}
        for name, kind in kinds.items():
            column = getattr(self, name)
            if name != "service_s" or column is not None:
                size = len(require_column(name, column, kind))
                require(size == num, f"{name} has {size} entries, arrival_s has {num}")
        if self.service_s is not None:
            good = np.isfinite(self.service_s) & (self.service_s >= 0)
            require(bool(good.all()), "service_s must be finite and >= 0")
        offsets = require_offsets(
            self.block_offsets, require_column("block_ids", self.block_ids, "iu")
        )
        require(
            len(offsets) == num + 1, f"block_offsets has {len(offsets)} entries; allowed: {num + 1}"
        )
        require_count("long_threshold", self.long_threshold, 1)
        if num == 0:
            return
        require(bool(np.isfinite(self.arrival_s).all()), "arrival_s must be finite")
        require(bool((np.diff(self.arrival_s) >= 0).all()), "arrival_s must not decrease")
        require(bool(self.arrival_s[0] >= 0), f"arrival_s={self.arrival_s[0]} must be >= 0")
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
            K3Error: a value of a request, by name, or ``requests`` holds none.
        """
        rows = _checked(requests)
        rows.sort(key=lambda request: request.arrival_s)
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
        require_count("index", index, 0, len(self) - 1)
        return Request(
            float(self.arrival_s[index]),
            int(self.input_len[index]),
            int(self.output_len[index]),
            tuple(self.path(index)),
            int(self.sessions[index]),
        )

    def path(self, index: int) -> list[int]:
        """Block ids of one request, from the root."""
        require_count("index", index, 0, len(self) - 1)
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
        require_count("seed", seed)
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
        require_number("factor", factor, above=0)
        return replace(self, arrival_s=self.arrival_s / factor)

    def head(self, num_requests: int) -> Workload:
        """The first ``num_requests`` requests, or all when there are fewer."""
        num = min(require_count("num_requests", num_requests), len(self))
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


def _checked(requests: object) -> list[Request]:
    if not isinstance(requests, Iterable) or isinstance(requests, (str, bytes)):
        raise K3Error(f"requests={shown(requests)} must be a sequence of Request")
    rows = [require_type("requests: each", row, Request) for row in requests]
    for row in rows:
        require_number("arrival_s", row.arrival_s, least=0)
        require_count("input_len", row.input_len, 1, MAX_TOKENS)
        require_count("output_len", row.output_len, 0, MAX_TOKENS)
        require_counts("block_ids", row.block_ids, 0, MAX_ID)
        session_key(row.session_id)
    return rows


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
    require_column("block_ids", block_ids, "iu")
    require_offsets(block_offsets, block_ids)
    require_count("hub_children", hub_children, 1)
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
