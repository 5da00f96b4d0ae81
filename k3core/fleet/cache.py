"""The prefix cache of one cluster: an LRU over the block ids of traces, with KDA checkpoints.

A trace names every 512-token block of a prompt by an id that stands for the block *and* all that
precedes it. A request touches its whole path once, deepest block first, so that the blocks nearest
to the root (a system prompt) are the youngest and leave last. (Touched root first, a cache smaller
than a prompt throws the system prompt out with every request.)

A cached MLA block is not enough for a hybrid model: a request can resume only where the KDA state
was kept. ``CHECKPOINT_RULES`` says which boundaries keep one; capacity counts MLA blocks, and a
checkpoint leaves with the block that ends at its boundary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from k3core.errors import CacheError, require

BLOCK_LEN = 512

CHECKPOINT_RULES = ("dense", "replay", "junction")
"""Boundaries that keep a KDA checkpoint after a prompt of n tokens was served.

- ``dense``: every block boundary (an upper bound: checkpoints would take most of the memory).
- ``replay``: only the deepest boundary that the same prompt could resume at, (n-1)//512*512.
- ``junction``: that one, and the end of the MLA match at which the request left a known path
  (vLLM's default since #52216: retention interval 0 plus shared-prefix boundaries).
"""

_COMPACT_MIN = 4096


class BlockCache:
    """Least recently used blocks of one cluster.

    One dictionary entry per resident block and a log of the touched paths; nothing is kept of
    evicted blocks. Eviction reads the log from its old end: a block of a logged path is live when
    that was its last touch.

    Args:
        capacity_blocks: MLA blocks that fit; 0 caches nothing, None never evicts.
        rule: one of ``CHECKPOINT_RULES``.

    Raises:
        CacheError: a negative capacity or an unknown rule.
    """

    __slots__ = (
        "_checkpoints",
        "_clock",
        "_last",
        "_log",
        "_num_logged",
        "capacity_blocks",
        "rule",
    )

    def __init__(self, capacity_blocks: int | None = None, rule: str = "junction") -> None:
        require(
            capacity_blocks is None or capacity_blocks >= 0,
            f"capacity_blocks={capacity_blocks} must be >= 0, or None for no limit",
            CacheError,
        )
        require(
            rule in CHECKPOINT_RULES,
            f"rule={rule!r} is unknown; allowed: {', '.join(CHECKPOINT_RULES)}",
            CacheError,
        )
        self.capacity_blocks = capacity_blocks
        self.rule = rule
        self.clear()

    def clear(self) -> None:
        """Forget everything, as a cluster does that fails."""
        self._last: dict[int, int] = {}  # resident block -> number of the touch that came last
        self._log: deque[tuple[int, list[int]]] = deque()  # (touch, its path leaf first), by age
        self._num_logged = 0  # blocks in the log, live or not
        self._clock = 0
        self._checkpoints: set[int] = set()  # blocks at whose end a KDA state is kept

    def match(self, path: Sequence[int]) -> int:
        """Leading blocks of ``path`` that are cached. Reads only: a peek never touches."""
        last = self._last
        depth = 0
        for block in path:
            if block not in last:
                break
            depth += 1
        return depth

    def usable(self, path: Sequence[int], matched: int, num_tokens: int) -> int:
        """Tokens that a prompt can skip: the deepest kept boundary within the match.

        The last token is always computed (its logits are needed), so at most ``num_tokens`` - 1
        tokens are skipped.
        """
        depth = min(matched, (num_tokens - 1) // BLOCK_LEN)
        if self.rule != "dense":
            checkpoints = self._checkpoints
            while depth and path[depth - 1] not in checkpoints:
                depth -= 1
        return depth * BLOCK_LEN

    def store(self, path: Sequence[int], matched: int, num_tokens: int) -> None:
        """A prompt was served: touch its path, deepest block first, and keep its checkpoints.

        Args:
            path: block ids of the prompt, a partial last block included.
            matched: what ``match`` said when its service started.
            num_tokens: length of the prompt.
        """
        if self.capacity_blocks == 0:
            return
        self._touch(path)
        if self.rule == "dense":
            return
        replay = (num_tokens - 1) // BLOCK_LEN
        depths = (replay,) if self.rule == "replay" else (replay, min(matched, replay))
        for depth in depths:
            if depth and path[depth - 1] in self._last:
                self._checkpoints.add(path[depth - 1])

    def _touch(self, path: Sequence[int]) -> None:
        leaf_first = list(path[::-1])
        self._clock = clock = self._clock + 1
        self._last.update(dict.fromkeys(leaf_first, clock))
        if self.capacity_blocks is None:
            return
        self._log.append((clock, leaf_first))
        self._num_logged += len(leaf_first)
        excess = len(self._last) - self.capacity_blocks
        if excess > 0:
            self._evict(excess)
        if self._num_logged > _COMPACT_MIN and self._num_logged > 4 * len(self._last):
            self._compact()

    def _evict(self, excess: int) -> None:
        last, log = self._last, self._log
        while excess:
            clock, blocks = log.popleft()
            self._num_logged -= len(blocks)
            live = [block for block in blocks if last.get(block) == clock]
            if len(live) > excess:
                log.appendleft((clock, live[excess:]))
                self._num_logged += len(live) - excess
                del live[excess:]
            for block in live:
                del last[block]
            self._checkpoints.difference_update(live)
            excess -= len(live)

    def _compact(self) -> None:
        """Drop the dead part of the log; the live rest keeps its order."""
        last = self._last
        filtered = (
            (clock, [block for block in blocks if last.get(block) == clock])
            for clock, blocks in self._log
        )
        self._log = deque(entry for entry in filtered if entry[1])
        self._num_logged = len(last)

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, block: object) -> bool:
        return block in self._last

    @property
    def num_checkpoints(self) -> int:
        """Kept checkpoints; under ``dense`` every resident block counts."""
        return len(self._last) if self.rule == "dense" else len(self._checkpoints)

    def eviction_order(self) -> list[int]:
        """Resident blocks, the next one to leave first; empty when the cache never evicts."""
        return [
            block for clock, blocks in self._log for block in blocks if self._last[block] == clock
        ]
