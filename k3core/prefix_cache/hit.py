"""The answer of one prefix-cache lookup, and its account of lost tokens.

Re-exported by ``k3core.prefix_cache``, which is where users import it from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NO_CHECKPOINT = "no_checkpoint"
GROUP_MISSING = "group_missing"
LAST_TOKEN = "last_token"
DRAFTER_DROP = "drafter_drop"
NOT_READY = "not_ready"
EVICTED = "evicted"
REASONS = (NO_CHECKPOINT, GROUP_MISSING, LAST_TOKEN, NOT_READY, DRAFTER_DROP, EVICTED)
"""Why a prefix that is known is not reused; see ``PrefixHit.reason``."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What one lookup found.

    Attributes:
        hit: a usable boundary exists.
        matched_tokens: the usable boundary, 0 on a miss; never above ``num_tokens - 1``.
        checkpoint: the same boundary, None on a miss.
        mla_tokens: deepest stage-1 match: tokens whose MLA blocks are known and ready. Not capped,
            so it can equal ``num_tokens``.
        reason: why known tokens are not reused. When ``matched_tokens < mla_tokens``:
            ``group_missing`` (a boundary in between has some groups, not all), ``evicted`` (one
            there had all), ``no_checkpoint`` (none there has any), ``drafter_drop`` or
            ``last_token`` (only that rule stands in the way). Otherwise ``not_ready`` when stage 1
            ended at a block whose bytes are not written yet, ``evicted`` when at one that was
            thrown out, and None when everything known is reused.
        num_tokens: length of the prompt.
        registered_tokens: where stage 1 would have ended had every registered block been ready.
        hash_block_tokens: tokens per block.
        num_kda_groups: groups that a boundary needs.
        missing_groups: for each boundary that stage 2 passed over, the KDA groups without a
            checkpoint there.
        block_hashes: of every full block of the prompt.
        block_payloads: of the reused blocks, in order.
        checkpoint_payloads: one per KDA group; empty on a miss.
        dropped_blocks: matched blocks that a drafter gives up.
        known_tokens: where stage 1 would have ended had nothing been evicted either; -1 stands for
            ``registered_tokens``.
        evicted_states: deepest passed-over boundary whose checkpoints were evicted, 0 if none.
    """

    hit: bool
    matched_tokens: int
    checkpoint: int | None
    mla_tokens: int
    reason: str | None
    num_tokens: int
    registered_tokens: int
    hash_block_tokens: int
    num_kda_groups: int
    missing_groups: Mapping[int, tuple[int, ...]]
    block_hashes: tuple[bytes, ...]
    block_payloads: tuple[Any, ...]
    checkpoint_payloads: tuple[Any, ...]
    dropped_blocks: int = 0
    known_tokens: int = -1
    evicted_states: int = 0

    @property
    def cap_tokens(self) -> int:
        """Deepest boundary that the last-token rule allows, ``(n - 1) // B * B``."""
        return max(self.num_tokens - 1, 0) // self.hash_block_tokens * self.hash_block_tokens

    @property
    def junction_tokens(self) -> int:
        """Deepest boundary at which a full set of checkpoints would have been reused."""
        allowed = min(self.mla_tokens, self.cap_tokens)
        return max(allowed - self.dropped_blocks * self.hash_block_tokens, 0)

    @property
    def partial_tokens(self) -> int:
        """Deepest passed-over boundary with some but not all groups; ``matched_tokens`` if none."""
        some = [at for at, gone in self.missing_groups.items() if len(gone) < self.num_kda_groups]
        return max(some, default=self.matched_tokens)

    def loss_spans(self) -> tuple[tuple[str, int, int], ...]:
        """The prompt as ``(reason, start, stop)`` in order, empty spans left out.

        Each token has one reason: ``reused``, a loss, or ``new``. Between the usable boundary and
        the junction the deepest remedy counts: up to the deepest boundary with some groups one
        more group would have helped, after it up to the deepest one whose states were evicted a
        larger pool, after that a checkpoint.
        """
        known = self.registered_tokens if self.known_tokens < 0 else self.known_tokens
        allowed = min(self.mla_tokens, self.cap_tokens)
        ends = (
            ("reused", self.matched_tokens),
            (GROUP_MISSING, self.partial_tokens),
            (EVICTED, max(self.partial_tokens, self.evicted_states)),
            (NO_CHECKPOINT, self.junction_tokens),
            (DRAFTER_DROP, allowed),
            (LAST_TOKEN, self.mla_tokens),
            (NOT_READY, self.registered_tokens),
            (EVICTED, known),
            ("new", self.num_tokens),
        )
        spans, start = [], 0
        for reason, stop in ends:
            if stop > start:
                spans.append((reason, start, stop))
                start = stop
        return tuple(spans)

    def loss_account(self) -> dict[str, int]:
        """Tokens of the prompt by reason: ``reused``, one entry per loss, ``new``.

        The sum is ``num_tokens``; see ``loss_spans``.
        """
        account = dict.fromkeys(("reused", *ACCOUNT_ORDER, "new"), 0)
        for reason, start, stop in self.loss_spans():
            account[reason] += stop - start
        return account


ACCOUNT_ORDER = (GROUP_MISSING, NO_CHECKPOINT, DRAFTER_DROP, LAST_TOKEN, NOT_READY, EVICTED)
"""Losses in the order in which the account names them."""
