"""Records of the cache manager: one running request, and what its calls return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from k3core.prefix_cache.block_hash import PromptHashes
from k3core.prefix_cache.entries import Registration
from k3core.prefix_cache.hit import PrefixHit
from k3core.prefix_cache.residency import CachedState, CachedUnit


class PageCopy(NamedTuple):
    """Bytes that were copied so that ``target`` may be written."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Pages taken for the next tokens.

    Attributes:
        pages: new pages, copies included.
        copies: of shared or published pages that will be written.
    """

    pages: tuple[int, ...] = ()
    copies: tuple[PageCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that is in.

    Attributes:
        hit: what the lookup said.
        reused_tokens: where the request resumes; 0 although ``hit`` found more when the copy of
            its states failed, or when the hit did not fit beside the request and it runs cold.
        source: ``device``, ``host``, or None when nothing is reused.
        pages: MLA pages that were taken, shared ones excluded.
        state_pages: private KDA pages.
        copies: of a partly used page, and of each checkpoint page.
    """

    hit: PrefixHit
    reused_tokens: int
    source: str | None
    pages: tuple[int, ...]
    state_pages: tuple[int, ...]
    copies: tuple[PageCopy, ...]


@dataclass(slots=True)
class Running:
    """One running request.

    Attributes:
        prompt: all known tokens, generated ones included, as hashes.
        pages: MLA pages in token order; page i holds one physical block.
        state_pages: the live states, one run of pages per KDA group.
        units: one per full hash block of ``prompt``.
        stops: boundaries that the retention rule keeps.
        junction: where the prompt left the known path.
        num_computed: tokens written and verified.
        num_published: hash blocks that were published, or reused.
        touched: checkpoints that this request made or resumed from, by boundary.
        intermediate: boundary of the last checkpoint if the rule does not keep it, else 0.
    """

    prompt: PromptHashes
    pages: list[int]
    state_pages: tuple[int, ...]
    units: list[CachedUnit]
    ticket: Registration | None
    stops: tuple[int, ...]
    junction: int
    num_computed: int
    num_published: int
    touched: dict[int, tuple[CachedState, ...]] = field(default_factory=dict)
    intermediate: int = 0
    num_skipped_checkpoints: int = 0
