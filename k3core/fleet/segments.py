"""The block cache at the speed of a fleet: runs of blocks that are always touched together.

Block ids of a workload form a tree of prefixes. A *segment* is a run of blocks from one branching
(or end of a path) to the next; every request that touches one of its blocks touches all of them.
So an LRU over blocks, touched deepest first, can be kept per segment: recency is that of the
segment, and eviction takes its blocks from the deep end. ``SegmentCache`` gives, block for block,
the hits and evictions of ``k3core.fleet.cache.BlockCache`` at a few steps per request instead of
several per block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3core.errors import require_type
from k3core.fleet.cache import BLOCK_LEN, BlockCache, kept_depths
from k3core.fleet.columns import require_column, require_offsets
from k3core.prefix_cache.retention import Retention, surplus_boundaries

_COMPACT_MIN = 1024


@dataclass(frozen=True, eq=False)
class Segments:
    """Paths of a workload in segments.

    Attributes:
        ids: all paths end to end, as segment numbers.
        offsets: (R+1,) path of request i is ``ids[offsets[i]:offsets[i+1]]``.
        num_blocks: per segment, its length.
    """

    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    num_blocks: list[int]

    @classmethod
    def of(cls, block_ids: NDArray[np.int64], block_offsets: NDArray[np.int64]) -> Segments:
        """Cut paths into segments; where ids are no tree of prefixes every block is one."""
        require_offsets(block_offsets, require_column("block_ids", block_ids, "iu"))
        if len(block_ids) == 0:
            return cls(block_ids, block_offsets, [])
        blocks, num_distinct = _numbered(block_ids)
        parent = np.empty_like(blocks)
        parent[1:] = blocks[:-1]
        parent[block_offsets[:-1]] = -1
        parent_of = np.full(num_distinct, -1, blocks.dtype)
        parent_of[blocks] = parent
        known = np.zeros(num_distinct, bool)
        known[blocks] = True
        starts = known
        if np.array_equal(parent_of[blocks], parent):
            num_children = np.bincount(parent_of[known & (parent_of >= 0)], minlength=num_distinct)
            cut_below = num_children != 1
            cut_below[blocks[block_offsets[1:] - 1]] = True
            starts = known & ((parent_of < 0) | cut_below[parent_of])
        at = np.flatnonzero(starts[blocks])
        number = np.cumsum(starts) - 1  # of the segment that a starting block opens
        ids = number[blocks[at]]
        num_blocks = np.zeros(int(number[-1]) + 1, np.int64)
        num_blocks[ids] = np.diff(at, append=len(blocks))
        return cls(ids, np.searchsorted(at, block_offsets), num_blocks.tolist())

    def path(self, request: int) -> list[int]:
        """Segments of one request, from the root."""
        path: list[int] = self.ids[self.offsets[request] : self.offsets[request + 1]].tolist()
        return path


def _numbered(block_ids: NDArray[np.int64]) -> tuple[NDArray[np.signedinteger], int]:
    """Ids as numbers 0..N-1, or as they are when they nearly are that; narrow if they fit."""
    num_distinct = int(block_ids.max()) + 1
    numbers: NDArray[np.signedinteger] = block_ids
    if block_ids.min() < 0 or num_distinct > 4 * len(block_ids):
        distinct, numbers = np.unique(block_ids, return_inverse=True)
        num_distinct = len(distinct)
    narrow = np.int32 if num_distinct < 2**31 else np.int64
    return numbers.astype(narrow), num_distinct


class SegmentCache:
    """``BlockCache`` over segments: same arguments, same results, paths in segments.

    Args:
        segments: of the workload that will be served.
        capacity_blocks, rule, checkpoint_blocks: as ``BlockCache``.
    """

    __slots__ = (
        "_checkpoints",
        "_clock",
        "_log",
        "_num_blocks",
        "_num_cached",
        "_num_kept",
        "_num_logged",
        "_resident",
        "_touched",
        "capacity_blocks",
        "checkpoint_blocks",
        "everywhere",
        "policy",
    )

    def __init__(
        self,
        segments: Segments,
        capacity_blocks: int | None = None,
        rule: str | Retention = "junction",
        checkpoint_blocks: int = 0,
    ) -> None:
        require_type("segments", segments, Segments)
        like = BlockCache(capacity_blocks, rule, checkpoint_blocks)  # raises on bad settings
        self.capacity_blocks = like.capacity_blocks
        self.checkpoint_blocks = like.checkpoint_blocks
        self.policy = like.policy
        self.everywhere = like.everywhere
        self._num_blocks = segments.num_blocks
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._resident: dict[int, int] = {}  # segment -> its leading blocks that are cached
        self._touched: dict[int, int] = {}  # segment -> number of the touch that came last
        self._log: deque[tuple[int, list[int]]] = deque()  # (touch, its path leaf first), by age
        self._num_logged = 0
        self._num_cached = 0
        self._clock = 0
        # segment -> numbers of its leading blocks after which a KDA state is kept
        self._checkpoints: dict[int, list[int]] = {}
        self._num_kept = 0

    def match(self, path: Sequence[int]) -> int:
        """Leading blocks of a path that are cached; never touches."""
        resident, num_blocks = self._resident, self._num_blocks
        depth = 0
        for segment in path:
            cached = resident.get(segment)
            if cached is None:
                break
            depth += cached
            if cached < num_blocks[segment]:
                break
        return depth

    def usable(self, path: Sequence[int], matched: int, num_tokens: int) -> int:
        """Tokens that a prompt can skip; see ``BlockCache.usable``."""
        limit = min(matched, (num_tokens - 1) // BLOCK_LEN)
        if self.everywhere:
            return limit * BLOCK_LEN
        checkpoints, num_blocks = self._checkpoints, self._num_blocks
        above = deepest = 0
        for segment in path:
            if above >= limit:
                break
            for kept in checkpoints.get(segment, ()):
                if deepest < above + kept <= limit:
                    deepest = above + kept
            above += num_blocks[segment]
        return deepest * BLOCK_LEN

    def store(self, path: Sequence[int], matched: int, num_tokens: int) -> None:
        """A prompt was served; see ``BlockCache.store``."""
        if self.capacity_blocks == 0:
            return
        self._touch(path)
        if self.everywhere:
            return
        self._keep(path, kept_depths(self.policy, num_tokens, matched))
        if self.policy.max_per_path is not None:
            self._keep_at_most(path, self.policy.max_per_path, matched, num_tokens)
        if self.checkpoint_blocks and self.capacity_blocks is not None:
            used = self._num_cached + self.checkpoint_blocks * self._num_kept
            if used > self.capacity_blocks:
                self._evict(used - self.capacity_blocks)

    def _keep(self, path: Sequence[int], depths: Sequence[int]) -> None:
        """Keep checkpoints after these numbers of blocks (ascending), where those are cached."""
        above, number = 0, 0
        for segment in path:
            if number == len(depths):
                return
            end = above + self._num_blocks[segment]
            while number < len(depths) and depths[number] <= end:
                depth = depths[number] - above
                number += 1
                if 0 < depth <= self._resident.get(segment, 0):
                    kept = self._checkpoints.setdefault(segment, [])
                    if depth not in kept:
                        kept.append(depth)
                        self._num_kept += 1
            above = end

    def _keep_at_most(self, path: Sequence[int], cap: int, matched: int, num_tokens: int) -> None:
        """Give up the checkpoints that one path has too many."""
        where, above = {}, 0
        for segment in path:
            for kept in self._checkpoints.get(segment, ()):
                where[above + kept] = (segment, kept)
            above += self._num_blocks[segment]
        protected = {min(matched, (num_tokens - 1) // BLOCK_LEN)}
        for depth in surplus_boundaries(tuple(where), cap, protected):
            segment, kept = where[depth]
            self._drop(segment, [kept])

    def _drop(self, segment: int, gone: Sequence[int]) -> None:
        left = [kept for kept in self._checkpoints.pop(segment) if kept not in gone]
        self._num_kept -= len(gone)
        if left:
            self._checkpoints[segment] = left

    def _touch(self, path: Sequence[int]) -> None:
        leaf_first = list(path[::-1])
        resident, num_blocks, touched = self._resident, self._num_blocks, self._touched
        self._clock = clock = self._clock + 1
        for segment in leaf_first:
            self._num_cached += num_blocks[segment] - resident.get(segment, 0)
            resident[segment] = num_blocks[segment]
            touched[segment] = clock
        if self.capacity_blocks is None:
            return
        self._log.append((clock, leaf_first))
        self._num_logged += len(leaf_first)
        used = self._num_cached + self.checkpoint_blocks * self._num_kept
        if used > self.capacity_blocks:
            self._evict(used - self.capacity_blocks)
        if self._num_logged > _COMPACT_MIN and self._num_logged > 4 * len(resident):
            self._compact()

    def _evict(self, excess: int) -> None:
        log, touched, resident = self._log, self._touched, self._resident
        while excess > 0:
            clock, path = log.popleft()
            self._num_logged -= len(path)
            for index, segment in enumerate(path):
                if touched.get(segment) != clock:
                    continue  # touched again later
                left, freed = self._shrink(segment, resident[segment], excess)
                self._num_cached -= resident[segment] - left
                excess -= freed
                if left:
                    resident[segment] = left
                else:
                    del resident[segment], touched[segment]
                if excess <= 0:
                    if left or index + 1 < len(path):
                        rest = path[index:] if left else path[index + 1 :]
                        log.appendleft((clock, rest))
                        self._num_logged += len(rest)
                    break

    def _shrink(self, segment: int, cached: int, excess: int) -> tuple[int, int]:
        """Blocks of a segment that stay when ``excess`` must go, and what that frees."""
        kept, weight = self._checkpoints.get(segment), self.checkpoint_blocks
        if kept is None or not weight:
            left, freed = max(cached - excess, 0), min(cached, excess)
        else:
            left, freed = cached, 0
            while left and freed < excess:
                freed += 1 + weight * (left in kept)
                left -= 1
        if kept is not None:
            gone = [depth for depth in kept if depth > left]
            if gone:
                self._drop(segment, gone)
        return left, freed

    def _compact(self) -> None:
        """Drop the dead part of the log; the live rest keeps its order."""
        touched = self._touched
        live = (
            (clock, [segment for segment in path if touched.get(segment) == clock])
            for clock, path in self._log
        )
        self._log = deque(entry for entry in live if entry[1])
        self._num_logged = len(touched)

    def __len__(self) -> int:
        """Cached blocks."""
        return self._num_cached

    @property
    def num_checkpoints(self) -> int:
        """Kept checkpoints; under ``dense`` every cached block counts."""
        return self._num_cached if self.everywhere else self._num_kept
