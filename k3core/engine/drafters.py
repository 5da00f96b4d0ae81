"""Where draft tokens come from. A drafter proposes; the model alone decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from k3core.errors import require, require_count


class Drafter(Protocol):
    """Proposes tokens behind a text."""

    def propose(self, tokens: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        """At most ``num_drafts`` tokens that may follow ``tokens`` (prompt and output so far)."""


class PromptLookupDrafter:
    """Continues the latest earlier occurrence of the last tokens; proposes nothing without one.

    Args:
        max_ngram: longest run of last tokens to look for; shorter runs are tried after it.
    """

    def __init__(self, max_ngram: int = 3) -> None:
        require_count("max_ngram", max_ngram, 1)
        self.max_ngram = max_ngram

    def propose(self, tokens: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        text = list(tokens)
        for size in range(min(self.max_ngram, len(text) - 1), 0, -1):
            tail = text[-size:]
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == tail:
                    return tuple(text[start + size : start + size + num_drafts])
        return ()


class NoisyReplayDrafter:
    """Stands in for a trained drafter: knows how the text goes on and errs at a chosen rate.

    Whether position p is wrong, and to which token, depends on the seed and p alone, not on how
    often it is asked.

    Args:
        text: the full text (prompt and output), as plain decoding wrote it.
        quality: probability in [0, 1] that a proposed token is the right one.
        vocab_size: wrong tokens are drawn from the other ``vocab_size - 1`` ids.
        seed: of the errors.
    """

    def __init__(self, text: Sequence[int], quality: float, vocab_size: int, seed: int = 0) -> None:
        require(0.0 <= quality <= 1.0, f"quality={quality} is outside 0 to 1")
        require_count("vocab_size", vocab_size, 2)
        rng = np.random.default_rng(seed)
        right = np.asarray(text, dtype=np.int64)
        wrong = (right + rng.integers(1, vocab_size, size=len(right))) % vocab_size
        self._proposals = np.where(rng.random(len(right)) < quality, right, wrong)

    def propose(self, tokens: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        start = len(tokens)
        return tuple(int(token) for token in self._proposals[start : start + num_drafts])
