"""What a prefix cache tells others: events for a router, and the memory of what was evicted."""

from __future__ import annotations

from typing import NamedTuple

from k3core.prefix_cache.tree import MLA

STORED, REMOVED, CLEARED = "stored", "removed", "cleared"


class CacheEvent(NamedTuple):
    """One change of what is visible, in order.

    A router that counts MLA blocks alone overestimates a hybrid cache (SGLang #23678, dynamo
    #12169), so checkpoints have events too.

    Attributes:
        kind: ``stored``, ``removed`` or ``cleared``.
        block_hashes: the blocks, in path order; of a checkpoint the one that ends at its boundary.
        group: KDA group of a checkpoint, None for MLA blocks.
        parent: hash before the first stored block; None for a root block, and where nothing is
            stored.
    """

    kind: str
    block_hashes: tuple[bytes, ...] = ()
    group: int | None = None
    parent: bytes | None = None


class Journal:
    """Events until somebody takes them, and the newest evicted keys.

    Args:
        record_events: keep events; without a reader they would pile up.
        num_remembered: evicted keys that a lookup can still name as lost.
    """

    def __init__(self, record_events: bool, num_remembered: int) -> None:
        self.record_events = record_events
        self.num_remembered = num_remembered
        self._events: list[CacheEvent] = []
        self._evicted: dict[tuple[bytes, int], None] = {}  # oldest first

    def stored(self, hashes: tuple[bytes, ...], kind: int, parent: bytes | None) -> None:
        for one in hashes:
            self._evicted.pop((one, kind), None)
        if self.record_events and hashes:
            group = None if kind == MLA else kind
            self._events.append(CacheEvent(STORED, hashes, group, parent))

    def removed(self, block_hash: bytes, kind: int) -> None:
        if self.num_remembered:
            self._evicted[block_hash, kind] = None
            if len(self._evicted) > self.num_remembered:
                del self._evicted[next(iter(self._evicted))]
        if self.record_events:
            group = None if kind == MLA else kind
            self._events.append(CacheEvent(REMOVED, (block_hash,), group))

    def cleared(self) -> None:
        self._evicted.clear()
        if self.record_events:
            self._events.append(CacheEvent(CLEARED))

    def was_evicted(self, block_hash: bytes, kind: int) -> bool:
        return (block_hash, kind) in self._evicted

    def take(self) -> tuple[CacheEvent, ...]:
        events, self._events = tuple(self._events), []
        return events
