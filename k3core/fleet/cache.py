"""The prefix cache of one cluster: an LRU over the block ids of traces, with KDA checkpoints.

A trace names every 512-token block of a prompt by an id that stands for the block *and* all that
precedes it. A request touches its whole path once, deepest block first, so that the blocks nearest
to the root (a system prompt) are the youngest and leave last. (Touched root first, a cache smaller
than a prompt throws the system prompt out with every request.)

A cached MLA block is not enough for a hybrid model: a request can resume only where the KDA state
was kept. A ``Retention`` (``k3core.prefix_cache.retention``) says which boundaries keep one. A
checkpoint weighs ``checkpoint_blocks`` blocks of the capacity (0: checkpoints are free) and leaves
with the block that ends at its boundary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from k3core.errors import CacheError, K3Error, require, require_count, require_type, shown
from k3core.prefix_cache.retention import Retention, surplus_boundaries

BLOCK_LEN = 512

CHECKPOINT_RULES = ("dense", "replay", "junction")
"""Rules without parameters; ``retention`` also reads ``none``, ``every-K`` and a ``+capN``.

- ``dense``: every block boundary (an upper bound: checkpoints would take most of the memory).
- ``replay``: only the deepest boundary that the same prompt could resume at, (n-1)//512*512.
- ``junction``: that one, and the end of the MLA match at which the request left a known path, so
  that a shared prefix is reusable from its third sighting on (vLLM's default since #52216).
- ``every-K``: the replay boundary and one every K blocks.
"""


def retention(code: str | Retention) -> Retention:
    """The retention policy of that code: a rule, ``every-8`` (blocks), either with ``+cap4``.

    Raises:
        CacheError: an unknown rule, one that depends on chunks, or a bad number.
    """
    if isinstance(code, Retention):
        policy = code
    else:
        name, plus, cap = require_type("rule", code, str, CacheError).partition("+cap")
        rule, dash, blocks = name.partition("-")
        known = (not dash and rule in (*CHECKPOINT_RULES, "none")) or (
            rule == "every" and _is_positive(blocks)
        )
        require(
            known and (not plus or _is_positive(cap)),
            f"rule={shown(code)} is unknown; allowed: {', '.join(CHECKPOINT_RULES)}, none, every-K "
            "(blocks), each also with +capN (checkpoints per path)",
            CacheError,
        )
        policy = Retention(
            "interval" if dash else rule,
            int(blocks) * BLOCK_LEN if dash else 0,
            int(cap) if plus else None,
        )
    require(
        policy.rule != "chunk_end",
        "rule='chunk_end' is unknown to a fleet: its requests are not cut into chunks",
        CacheError,
    )
    return policy


def _is_positive(digits: str) -> bool:
    return digits.isdecimal() and len(digits) < 10 and int(digits) >= 1


def kept_depths(policy: Retention, num_tokens: int, matched: int) -> list[int]:
    """Blocks after which a served prompt leaves a checkpoint.

    Args:
        policy: the retention policy.
        num_tokens: of the prompt.
        matched: its leading blocks that were cached when its service started.
    """
    replay = (num_tokens - 1) // BLOCK_LEN
    junction = min(matched, replay)
    if policy.max_per_path is None and policy.rule in ("replay", "junction"):
        # Every request asks: the same as below without its checks.
        if not 0 < junction < replay or policy.rule == "replay":
            return [replay] if replay else []
        return [junction, replay]
    stops = policy.stop_boundaries(num_tokens, BLOCK_LEN, junction * BLOCK_LEN)
    return [stop // BLOCK_LEN for stop in stops]


def check_cache(capacity_blocks: int | None, checkpoint_blocks: int) -> None:
    """Raise CacheError for a size that no cache can have."""
    if capacity_blocks is not None:
        try:
            require_count("capacity_blocks", capacity_blocks)
        except K3Error as error:
            raise CacheError(f"{error}, or None for no limit") from None
    require_count("checkpoint_blocks", checkpoint_blocks, error=CacheError)


_COMPACT_MIN = 4096


class BlockCache:
    """Least recently used blocks of one cluster.

    One dictionary entry per resident block and a log of the touched paths; nothing is kept of
    evicted blocks. Eviction reads the log from its old end: a block of a logged path is live when
    that was its last touch.

    Args:
        capacity_blocks: MLA blocks that fit; 0 caches nothing, None never evicts.
        rule: retention policy or its code, see ``retention``.
        checkpoint_blocks: blocks that one checkpoint takes of the capacity.

    Raises:
        CacheError: a negative size or an unknown rule.
    """

    __slots__ = (
        "_checkpoints",
        "_clock",
        "_last",
        "_log",
        "_num_logged",
        "capacity_blocks",
        "checkpoint_blocks",
        "everywhere",
        "policy",
    )

    def __init__(
        self,
        capacity_blocks: int | None = None,
        rule: str | Retention = "junction",
        checkpoint_blocks: int = 0,
    ) -> None:
        check_cache(capacity_blocks, checkpoint_blocks)
        self.policy = retention(rule)
        self.capacity_blocks = capacity_blocks
        self.checkpoint_blocks = checkpoint_blocks
        # Every cached block ends at a checkpoint: nothing to remember beside the blocks.
        self.everywhere = self.policy == Retention("dense")
        if self.everywhere and capacity_blocks is not None:
            self.capacity_blocks = capacity_blocks // (1 + checkpoint_blocks)
            self.checkpoint_blocks = 0
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
        if not self.everywhere:
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
        if self.everywhere:
            return
        for depth in kept_depths(self.policy, num_tokens, matched):
            if path[depth - 1] in self._last:
                self._checkpoints.add(path[depth - 1])
        if self.policy.max_per_path is not None:
            kept = [d for d, block in enumerate(path, 1) if block in self._checkpoints]
            protected = {min(matched, (num_tokens - 1) // BLOCK_LEN)}
            for depth in surplus_boundaries(kept, self.policy.max_per_path, protected):
                self._checkpoints.discard(path[depth - 1])
        if self.checkpoint_blocks:
            self._evict_excess()

    def _touch(self, path: Sequence[int]) -> None:
        leaf_first = list(path[::-1])
        self._clock = clock = self._clock + 1
        self._last.update(dict.fromkeys(leaf_first, clock))
        if self.capacity_blocks is None:
            return
        self._log.append((clock, leaf_first))
        self._num_logged += len(leaf_first)
        self._evict_excess()
        if self._num_logged > _COMPACT_MIN and self._num_logged > 4 * len(self._last):
            self._compact()

    def _evict_excess(self) -> None:
        if self.capacity_blocks is None:
            return
        used = len(self._last) + self.checkpoint_blocks * len(self._checkpoints)
        last, log, checkpoints = self._last, self._log, self._checkpoints
        excess = used - self.capacity_blocks
        while excess > 0:
            clock, blocks = log.popleft()
            self._num_logged -= len(blocks)
            live = [block for block in blocks if last.get(block) == clock]
            num_gone = 0
            for block in live:
                if excess <= 0:
                    break
                del last[block]
                num_gone += 1
                excess -= 1
                if block in checkpoints:
                    checkpoints.remove(block)
                    excess -= self.checkpoint_blocks
            if num_gone < len(live):
                log.appendleft((clock, live[num_gone:]))
                self._num_logged += len(live) - num_gone

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
        return len(self._last) if self.everywhere else len(self._checkpoints)

    def eviction_order(self) -> list[int]:
        """Resident blocks, the next one to leave first; empty when the cache never evicts."""
        return [
            block for clock, blocks in self._log for block in blocks if self._last[block] == clock
        ]
