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
NOT_READY = "not_ready"
REASONS = (NO_CHECKPOINT, GROUP_MISSING, LAST_TOKEN, NOT_READY)
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
            ``group_missing`` (a boundary in between has some groups, not all), ``no_checkpoint``
            (none there has any) or ``last_token`` (only the last-token rule stands in the way).
            Otherwise ``not_ready`` when stage 1 ended at a block whose bytes are not written yet,
            and None when everything known is reused.
        num_tokens: length of the prompt.
        registered_tokens: where stage 1 would have ended had every known block been ready.
        hash_block_tokens: tokens per block.
        num_kda_groups: groups that a boundary needs.
        missing_groups: for each boundary that stage 2 passed over, the KDA groups without a
            checkpoint there.
        block_hashes: of every full block of the prompt.
        block_payloads: of the reused blocks, in order.
        checkpoint_payloads: one per KDA group; empty on a miss.
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

    @property
    def cap_tokens(self) -> int:
        """Deepest boundary that the last-token rule allows, ``(n - 1) // B * B``."""
        return max(self.num_tokens - 1, 0) // self.hash_block_tokens * self.hash_block_tokens

    @property
    def junction_tokens(self) -> int:
        """Deepest boundary at which a full set of checkpoints would have been reused."""
        return min(self.mla_tokens, self.cap_tokens)

    @property
    def partial_tokens(self) -> int:
        """Deepest passed-over boundary with some but not all groups; ``matched_tokens`` if none."""
        some = [at for at, gone in self.missing_groups.items() if len(gone) < self.num_kda_groups]
        return max(some, default=self.matched_tokens)

    def loss_account(self) -> dict[str, int]:
        """Splits the prompt into tokens: ``reused``, one entry per loss reason, ``new``.

        Each token has one reason and the sum is ``num_tokens``. Tokens up to the deepest boundary
        with some groups are lost to ``group_missing``, those after it to ``no_checkpoint``.
        """
        return {
            "reused": self.matched_tokens,
            GROUP_MISSING: self.partial_tokens - self.matched_tokens,
            NO_CHECKPOINT: self.junction_tokens - self.partial_tokens,
            LAST_TOKEN: self.mla_tokens - self.junction_tokens,
            NOT_READY: self.registered_tokens - self.mla_tokens,
            "new": self.num_tokens - self.registered_tokens,
        }
