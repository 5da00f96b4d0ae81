"""One token axis, several units: where a prefix may be cut so that every part of a server agrees.

Hash blocks, physical blocks, blocks of a context-parallel group and retained checkpoints each allow
a cut only at their own multiples; a cut that all allow is a multiple of their least common
multiple. A drafter may give up the last matched block on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3core.capacity.blocks import hit_tokens
from k3core.errors import CapacityError, require, require_count, require_type


@dataclass(frozen=True)
class GridUnit:
    """One unit of the token axis.

    Attributes:
        code: ``hash``, ``physical``, ``context-parallel`` or ``retention``.
        tokens: distance of its boundaries.
    """

    code: str
    tokens: int

    def __post_init__(self) -> None:
        require_type("code", self.code, str, CapacityError)
        require_count(self.code, self.tokens, 1, None, CapacityError)


@dataclass(frozen=True)
class TokenGrid:
    """Units that must agree, and the blocks that a drafter drops.

    Args:
        units: at least one unit.
        dropped_blocks: boundaries that a drafter gives up.
    """

    units: tuple[GridUnit, ...]
    dropped_blocks: int = 0

    def __post_init__(self) -> None:
        require_type("units", self.units, tuple, CapacityError)
        require(bool(self.units), "units=() must name at least one unit", CapacityError)
        for unit in self.units:
            require_type("each of units", unit, GridUnit, CapacityError)
        require_count("dropped_blocks", self.dropped_blocks, 0, None, CapacityError)

    @property
    def effective(self) -> int:
        """Tokens between boundaries that every unit allows."""
        return math.lcm(*(unit.tokens for unit in self.units))

    def agrees(self, position: int) -> bool:
        """Whether every unit has a boundary at ``position``."""
        return position % self.effective == 0

    def ticks(self, unit: GridUnit, limit: int) -> tuple[int, ...]:
        """Boundaries of one unit up to ``limit`` tokens."""
        return tuple(range(unit.tokens, limit + 1, unit.tokens))

    def hit(self, num_tokens: int) -> int:
        """Longest reusable prefix of a repeated prompt on this grid."""
        return hit_tokens(num_tokens, self.effective, self.dropped_blocks)

    @property
    def shortest_hit(self) -> int:
        """Shortest prompt whose repetition reuses anything."""
        return (1 + self.dropped_blocks) * self.effective + 1


def serving_grid(
    block_tokens: int,
    hash_tokens: int = 512,
    context_parallel: int = 1,
    retention_tokens: int = 0,
    dropped_blocks: int = 0,
) -> TokenGrid:
    """The units of a server.

    Args:
        block_tokens: physical block.
        hash_tokens: hash block; where the block is no multiple of it, both must agree.
        context_parallel: ranks that a request's cache is spread over in decode (DCP): the
            attention group then matches whole rows of blocks.
        retention_tokens: checkpoints are kept at multiples of this; 0 keeps each block's.
        dropped_blocks: boundaries that a drafter gives up.
    """
    require_count("context_parallel", context_parallel, 1, None, CapacityError)
    require_count("retention_tokens", retention_tokens, 0, None, CapacityError)
    units = [GridUnit("hash", hash_tokens), GridUnit("physical", block_tokens)]
    if context_parallel > 1:
        units.append(GridUnit("context-parallel", context_parallel * block_tokens))
    if retention_tokens:
        units.append(GridUnit("retention", retention_tokens))
    return TokenGrid(tuple(units), dropped_blocks)
