"""A second tier in host memory: MLA blocks and KDA states of whole prefixes, under one budget.

An entry is one boundary: the states of all groups there, and every MLA block before it. Boundaries
share the blocks that they have in common. Both halves enter and leave together, so the tier never
holds states whose blocks are gone, or blocks that nothing can resume behind (SGLang #39436), and
its budget counts both (SGLang #29034).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from k3core.errors import CacheError, require, require_count, shown
from k3core.prefix_cache.keys import require_hash, require_hashes

Reader = Callable[[int], bytes | None]
"""Bytes of block i, or of the state of group i; None where only sizes are kept."""


@dataclass
class _Block:
    data: bytes | None
    num_boundaries: int = 0


@dataclass
class _Boundary:
    path: tuple[bytes, ...]
    states: tuple[bytes | None, ...] = field(repr=False)


class HostTier:
    """Least recently used boundaries.

    Keys are the chained hashes of the device cache, so a salt separates tenants here too
    (vLLM #51640).

    Args:
        budget_bytes: bytes of both halves.
        block_bytes: MLA rows of one hash block, one group.
        state_bytes: state of one KDA group.
        num_kda_groups: groups of a boundary.
    """

    def __init__(
        self, budget_bytes: int, block_bytes: int, state_bytes: int, num_kda_groups: int
    ) -> None:
        self.budget_bytes = require_count("budget_bytes", budget_bytes)
        self.block_bytes = require_count("block_bytes", block_bytes, 1)
        self.state_bytes = require_count("state_bytes", state_bytes, 1)
        self.num_kda_groups = require_count("num_kda_groups", num_kda_groups)
        self.num_refused = 0
        self._blocks: dict[bytes, _Block] = {}
        self._boundaries: dict[bytes, _Boundary] = {}  # least recently used first

    @property
    def used_bytes(self) -> int:
        states = self.num_kda_groups * self.state_bytes
        return len(self._blocks) * self.block_bytes + len(self._boundaries) * states

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_boundaries(self) -> int:
        return len(self._boundaries)

    def store(self, path: Sequence[bytes], read_block: Reader, read_state: Reader) -> bool:
        """Copy the boundary at the end of ``path``; what is there already is only touched.

        Older boundaries make room. An entry that exceeds the whole budget is refused and counted.

        Returns:
            Whether the boundary is in the tier now.
        """
        path = require_hashes("path", path)
        require(len(path) > 0, "path=() must name at least one block", CacheError)
        for name, reader in (("read_block", read_block), ("read_state", read_state)):
            require(callable(reader), f"{name}={shown(reader)} must be callable", CacheError)
        if self._touch(path[-1]):
            return True
        own = len(path) * self.block_bytes + self.num_kda_groups * self.state_bytes
        if own > self.budget_bytes:
            self.num_refused += 1
            return False
        states = tuple(read_state(group) for group in range(self.num_kda_groups))
        for index, one in enumerate(path):
            if one not in self._blocks:
                self._blocks[one] = _Block(read_block(index))
            self._blocks[one].num_boundaries += 1
        self._boundaries[path[-1]] = _Boundary(path, states)
        while self.used_bytes > self.budget_bytes:
            self._drop(next(iter(self._boundaries)))
        return True

    def deepest(self, hashes: Sequence[bytes], most_blocks: int) -> int:
        """Blocks up to the deepest boundary on a path, at most ``most_blocks``. Changes nothing."""
        require_count("most_blocks", most_blocks)
        path = require_hashes("hashes", hashes)
        depth = min(most_blocks, len(path))
        while depth and path[depth - 1] not in self._boundaries:
            depth -= 1
        return depth

    def load(self, block_hash: bytes) -> tuple[tuple[bytes | None, ...], tuple[bytes | None, ...]]:
        """Both halves of a boundary: its blocks in order, its states by group.

        Raises:
            CacheError: there is no such boundary.
        """
        require_hash("block_hash", block_hash)
        require(
            self._touch(block_hash),
            f"no boundary {block_hash.hex()[:12]} in host memory",
            CacheError,
        )
        entry = self._boundaries[block_hash]
        return tuple(self._blocks[one].data for one in entry.path), entry.states

    def clear(self) -> None:
        """Forget everything (new weights)."""
        self._blocks.clear()
        self._boundaries.clear()

    def check(self) -> None:
        """Verify that blocks and boundaries agree and fit the budget.

        Raises:
            CacheError: what disagrees.
        """
        counts: dict[bytes, int] = {}
        for entry in self._boundaries.values():
            for one in entry.path:
                counts[one] = counts.get(one, 0) + 1
        held = {one: block.num_boundaries for one, block in self._blocks.items()}
        require(counts == held, "host blocks and boundaries disagree", CacheError)
        require(
            self.used_bytes <= self.budget_bytes,
            f"host tier holds {self.used_bytes} bytes of {self.budget_bytes}",
            CacheError,
        )

    def _touch(self, block_hash: bytes) -> bool:
        entry = self._boundaries.pop(block_hash, None)
        if entry is not None:
            self._boundaries[block_hash] = entry
        return entry is not None

    def _drop(self, block_hash: bytes) -> None:
        for one in self._boundaries.pop(block_hash).path:
            block = self._blocks[one]
            block.num_boundaries -= 1
            if not block.num_boundaries:
                del self._blocks[one]
