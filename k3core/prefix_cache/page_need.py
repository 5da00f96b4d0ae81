"""What an admission pins, takes and copies, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.prefix_cache.hit import PrefixHit
from k3core.prefix_cache.running import PageCopy


class TakenPages(NamedTuple):
    """Pages of an admission: new MLA pages, private KDA pages, and what was copied into them."""

    mla: tuple[int, ...]
    states: tuple[int, ...]
    copies: tuple[PageCopy, ...]


@dataclass(frozen=True)
class PageNeed:
    """Pages of one admission.

    Attributes:
        reused: tokens of the hit, 0 for a cold request.
        shared: MLA pages of the hit in token order.
        copied: of them, the last one when the hit ends inside of it.
        kept: pages of the hit's checkpoints, by group.
        num_mla, num_states: pages to take.
    """

    reused: int
    shared: tuple[int, ...]
    copied: tuple[int, ...]
    kept: tuple[int, ...]
    num_mla: int
    num_states: int

    @classmethod
    def of(
        cls, hit: PrefixHit | None, wanted: int, physical_block_tokens: int, num_states: int
    ) -> PageNeed:
        """The need of a request for ``wanted`` tokens behind a hit, or cold."""
        block = physical_block_tokens
        step = block // hit.hash_block_tokens if hit else 1
        units = hit.block_payloads if hit else ()
        reused = hit.matched_tokens if hit else 0
        # The last hash block of each page: its page holds those before it as well.
        last = (min(at + step, len(units)) - 1 for at in range(0, len(units), step))
        shared = tuple(units[index].page for index in last)
        inside = bool(reused % block)
        total = max(-(-max(wanted, reused + 1) // block), len(shared))
        return cls(
            reused,
            shared,
            shared[-1:] if inside else (),
            tuple(
                page for state in (hit.checkpoint_payloads if hit else ()) for page in state.pages
            ),
            total - len(shared) + inside,
            num_states,
        )

    @property
    def pinned(self) -> tuple[int, ...]:
        """Pages that must not be evicted until the copies are made."""
        return (*self.shared, *self.kept)

    @property
    def num_pages(self) -> int:
        """Pages to take, of both kinds."""
        return self.num_mla + self.num_states

    def fits(self, pool: PagePool) -> bool:
        """Whether all pages can be taken; pinned ones count as available until they are pinned."""
        unheld = sum(not pool.page_info(page).num_references for page in self.pinned)
        return self.num_pages + unheld <= pool.num_available

    def take(self, pool: PagePool, copy: Callable[[int, int], None]) -> TakenPages | None:
        """Pin, take and copy; None when a copy failed, and nothing is held then."""
        pool.retain(self.pinned)
        mla = pool.alloc(PageKind.MLA_KV, self.num_mla) if self.num_mla else ()
        states = pool.alloc(PageKind.KDA_STATE, self.num_states) if self.num_states else ()
        sources, targets = (*self.copied, *self.kept), (*mla[: len(self.copied)], *states)
        copies = tuple(map(PageCopy, sources, targets)) if self.pinned else ()
        try:
            for source, target in copies:
                copy(source, target)
        except Exception:
            pool.free([*states, *reversed(mla), *reversed(self.pinned)])
            return None
        if not self.kept:
            pool.clear_pages(states)
        pool.free([*self.kept, *self.copied])
        return TakenPages(mla, states, copies)
