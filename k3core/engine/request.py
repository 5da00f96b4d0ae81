"""What a request is while it runs, and the account that it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from torch import Tensor

from k3core.engine.drafters import Drafter
from k3core.engine.memory import CachedBlock, PagedMemory
from k3core.prefix_cache import PrefixHit, Registration

PREFILL = "prefill"
VERIFY = "verify"


class PoolUse(NamedTuple):
    """Pages of a pool by kind and place, at one moment."""

    mla_owned: int
    kda_owned: int
    mla_cached: int
    kda_cached: int
    free: int


@dataclass(frozen=True)
class Step:
    """One pass through the model.

    Attributes:
        kind: ``"prefill"`` or ``"verify"``.
        start: tokens of the request that were committed before it.
        num_tokens: tokens that went through the model; for verify T = 1 + drafts.
        num_committed: tokens that stay: all of a chunk; the current token and the kept drafts.
        drafts: proposed tokens (verify).
        new_tokens: output tokens that this step decided.
        flops: floating-point operations of the pass.
        bytes_moved: weights and MLA rows read, KDA states read and written.
        seconds: wall clock on this CPU.
        pool: pages after the step.
    """

    kind: str
    start: int
    num_tokens: int
    num_committed: int
    drafts: tuple[int, ...]
    new_tokens: tuple[int, ...]
    flops: int
    bytes_moved: int
    seconds: float
    pool: PoolUse

    @property
    def num_rejected(self) -> int:
        """Tokens whose work is thrown away."""
        return self.num_tokens - self.num_committed


@dataclass(frozen=True, eq=False)
class RequestResult:
    """What one finished request did.

    Attributes:
        prompt_len: tokens of the prompt.
        hit: what the prefix lookup found; None when the request did not look.
        tokens: the output.
        logits: (len(tokens), vocab), the row that decided each output token.
        steps: in order.
        open_seconds: lookup and copy of the hit, before the first step.
        num_mla_pages: MLA pages at the end, ``num_shared_mla_pages`` of them from the cache.
        num_state_pages: private KDA pages.
        num_checkpoint_pages: KDA pages that it published for others.
        num_skipped_checkpoints: boundaries left without a checkpoint because the pool was full.
    """

    prompt_len: int
    hit: PrefixHit | None
    tokens: tuple[int, ...]
    logits: Tensor
    steps: tuple[Step, ...]
    open_seconds: float
    num_mla_pages: int
    num_shared_mla_pages: int
    num_state_pages: int
    num_checkpoint_pages: int
    num_skipped_checkpoints: int

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that were not run through the model."""
        return self.prompt_len - self.computed_prompt_tokens

    @property
    def prefill_steps(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind == PREFILL)

    @property
    def verify_steps(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.kind == VERIFY)

    @property
    def computed_prompt_tokens(self) -> int:
        return sum(step.num_tokens for step in self.prefill_steps)

    @property
    def prefill_flops(self) -> int:
        """Floating-point operations up to the first token."""
        return sum(step.flops for step in self.prefill_steps)

    @property
    def ttft_seconds(self) -> float:
        """Time to first token on this CPU, lookup included."""
        return self.open_seconds + sum(step.seconds for step in self.prefill_steps)

    @property
    def num_drafts(self) -> int:
        return sum(len(step.drafts) for step in self.verify_steps)

    @property
    def num_kept_drafts(self) -> int:
        return sum(step.num_committed - 1 for step in self.verify_steps)

    @property
    def tokens_per_step(self) -> float:
        """Output tokens per verify step; 0 when there was none."""
        steps = self.verify_steps
        return sum(len(step.new_tokens) for step in steps) / len(steps) if steps else 0.0

    @property
    def new_pages(self) -> int:
        """Pages taken from the pool, published checkpoints included."""
        own_mla = self.num_mla_pages - self.num_shared_mla_pages
        return own_mla + self.num_state_pages + self.num_checkpoint_pages

    @property
    def chunk_ends(self) -> tuple[int, ...]:
        """Prompt positions at which the work was split."""
        return tuple(step.start + step.num_tokens for step in self.prefill_steps)

    @property
    def logits_digest(self) -> str:
        """sha256 of the bytes of ``logits``: equal digests mean equal bits."""
        return sha256(self.logits.numpy().tobytes()).hexdigest()


def next_chunk_end(start: int, prompt_len: int, chunk_tokens: int, block_tokens: int) -> int:
    """Where the chunk that begins at ``start`` ends.

    As far as the budget of ``chunk_tokens`` reaches, but on a hash boundary where it can, and in
    any case on the last boundary before the last token, where the same prompt, sent again, resumes.
    """
    replay = (prompt_len - 1) // block_tokens * block_tokens
    limit = replay if start < replay else prompt_len
    end = min(start + chunk_tokens, limit)
    boundary = end // block_tokens * block_tokens
    return boundary if boundary > start else end


@dataclass(eq=False)
class Request:
    """A request in flight; made by ``Engine.open``."""

    prompt: tuple[int, ...]
    num_new_tokens: int
    drafter: Drafter | None
    memory: PagedMemory
    hit: PrefixHit | None = None
    ticket: Registration | None = None
    blocks: tuple[CachedBlock, ...] = ()
    num_computed: int = 0
    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    open_seconds: float = 0.0
    num_checkpoint_pages: int = 0
    num_skipped_checkpoints: int = 0
    closed: bool = False

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.num_new_tokens
