"""What a page holds, and the pages of a pool by place and kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class PageKind(IntEnum):
    """What the bytes of a page mean; a page keeps its kind until it is handed out again."""

    MLA_KV = 0
    KDA_STATE = 1


class PageInfo(NamedTuple):
    """One page: ``kind`` is None until the first allocation."""

    kind: PageKind | None
    num_references: int
    published: bool


@dataclass(frozen=True)
class PoolStats:
    """Pages by place and kind; ``num_free + num_cached + num_owned == num_pages``."""

    num_pages: int
    page_bytes: int
    num_free: int
    owned: Mapping[PageKind, int]
    cached: Mapping[PageKind, int]
    num_references: int

    @property
    def num_owned(self) -> int:
        return sum(self.owned.values())

    @property
    def num_cached(self) -> int:
        return sum(self.cached.values())

    @property
    def num_available(self) -> int:
        """Pages that an allocation can take: free ones, then cached ones."""
        return self.num_free + self.num_cached

    @property
    def owned_bytes(self) -> int:
        return self.num_owned * self.page_bytes
