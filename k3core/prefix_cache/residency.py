"""Which cache entries lie in which pages, kept true through publication and eviction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from k3core.errors import CacheError, require
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.prefix_cache.cache import PrefixCache


@dataclass(slots=True)
class CachedUnit:
    """One hash block in a page that also holds those before it in the same physical block."""

    block_hash: bytes
    page: int = -1


@dataclass(frozen=True, slots=True)
class CachedState:
    """The checkpoint of one KDA group."""

    block_hash: bytes
    group: int
    pages: tuple[int, ...]


class Residency:
    """Published pages of one pool and their entries in one cache.

    Args:
        cascade: evicting a block takes everything behind it along; otherwise that stays, orphaned,
            until the pool needs its pages.
    """

    def __init__(self, pool: PagePool, cache: PrefixCache, *, cascade: bool = False) -> None:
        self.pool = pool
        self.cache = cache
        self.cascade = cascade
        self.num_evicted_blocks = 0
        self.num_evicted_boundaries = 0
        self._units: dict[int, dict[bytes, CachedUnit]] = {}  # MLA page -> what it holds
        self._states: dict[int, CachedState] = {}  # KDA page -> its checkpoint

    def keep_unit(self, unit: CachedUnit, page: int) -> None:
        """An entry is visible: its page must stay readable. A unit may move to a fuller page."""
        if unit.page in self._units and self._units[unit.page].get(unit.block_hash) is unit:
            if unit.page == page:
                return
            self._take_unit(unit)
        unit.page = page
        self._units.setdefault(page, {})[unit.block_hash] = unit
        self.pool.publish(page)

    def keep_state(self, state: CachedState) -> None:
        self._states.update(dict.fromkeys(state.pages, state))
        self.pool.publish(state.pages)

    def has_state(self, state: CachedState) -> bool:
        return self._states.get(state.pages[0]) is state

    def reused(self, pages: Iterable[int]) -> None:
        """The pool handed published ``pages`` out: drop their entries and what goes with them."""
        for page in pages:
            for unit in tuple(self._units.pop(page, {}).values()):
                self.drop_block(unit.block_hash)
            state = self._states.get(page)
            if state is not None:
                self.drop_boundary(state.block_hash)

    def drop_block(self, block_hash: bytes) -> None:
        """Evict an MLA block; with ``cascade`` all that needs it."""
        if self.cache.block_state(block_hash) != "ready":
            return
        if self.cascade:
            self._forget(self.cache.evict_subtree(block_hash))
        else:
            self._forget((self.cache.evict_block(block_hash),))

    def drop_boundary(self, block_hash: bytes) -> None:
        """Evict the checkpoints of all groups at a boundary."""
        self._forget(self.cache.evict_boundary(block_hash))

    def clear(self) -> bool:
        """Evict everything; refused while a registration is pending."""
        if not self.cache.reset():
            return False
        pages = list(self.pages)
        self._units.clear()
        self._states.clear()
        self._withdraw(pages)
        return True

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages that hold entries."""
        return (*self._units, *self._states)

    def check(self) -> None:
        """Verify that pool and cache name each other's entries.

        Raises:
            CacheError: what disagrees.
        """
        for page, units in self._units.items():
            info = self.pool.page_info(page)
            require(
                info.published and info.kind is PageKind.MLA_KV,
                f"page {page} is {info}, but holds MLA entries",
                CacheError,
            )
            for one, unit in units.items():
                require(
                    self.cache.block_payload(one) is unit and unit.page == page,
                    f"page {page} holds {one.hex()[:12]}, the cache does not say so",
                    CacheError,
                )
        for page, state in self._states.items():
            info = self.pool.page_info(page)
            require(
                info.published
                and info.kind is PageKind.KDA_STATE
                and state.group in self.cache.checkpoint_groups(state.block_hash),
                f"page {page} is {info}, but holds a checkpoint",
                CacheError,
            )
        held = sum(map(len, self._units.values()))
        require(
            (held, len({id(state) for state in self._states.values()}))
            == (self.cache.num_blocks, self.cache.num_checkpoints),
            f"{held} blocks lie in pages, the cache shows {self.cache.num_blocks}",
            CacheError,
        )
        for page in range(self.pool.num_pages):
            require(
                self.pool.page_info(page).published
                == (page in self._units or page in self._states),
                f"page {page} is published without an entry",
                CacheError,
            )

    def _forget(self, payloads: Sequence[CachedUnit | CachedState]) -> None:
        withdrawn: list[int] = []
        boundaries = set()
        for entry in payloads:
            if isinstance(entry, CachedUnit):
                self.num_evicted_blocks += 1
                units = self._units.get(entry.page)
                if units is not None:
                    units.pop(entry.block_hash, None)
                    if not units:
                        del self._units[entry.page]
                        withdrawn.append(entry.page)
            else:
                boundaries.add(entry.block_hash)
                for page in entry.pages:
                    del self._states[page]
                    withdrawn.append(page)
        self.num_evicted_boundaries += len(boundaries)
        self._withdraw(withdrawn)

    def _take_unit(self, unit: CachedUnit) -> None:
        units = self._units[unit.page]
        del units[unit.block_hash]
        if not units:
            del self._units[unit.page]
            self._withdraw([unit.page])

    def _withdraw(self, pages: Iterable[int]) -> None:
        self.pool.unpublish(sorted(p for p in pages if self.pool.page_info(p).published))
