"""Prompts of conversations and of a shared system prompt, served one after another on one pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from k3core.errors import require, require_count
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.prefix_cache.block_hash import PromptHashes
from k3core.prefix_cache.granularity import HitGranularity
from k3core.prefix_cache.manager import HybridCacheManager
from k3core.prefix_cache.retention import Retention
from k3core.prefix_cache.running import Admission
from k3core.studies import single_thread  # noqa: F401

HISTORIES = ("resent", "stripped")
"""What the next turn sends again: all that was generated, or the answers without the reasoning."""

NUM_GROUPS = 3
"""KDA groups: three per MLA group of Kimi K3 (24 MLA layers; 69 KDA layers as 23, 23, 23)."""

_VOCABULARY = 163_840


class Arrival(NamedTuple):
    """One request: its prompt, what it generates, and its turn (0 is a first one)."""

    prompt: PromptHashes
    output: npt.NDArray[np.int64]
    turn: int


@dataclass(frozen=True)
class Talk:
    """Conversations that take turns, each turn adding a message, reasoning and an answer.

    Args:
        num_conversations: they speak one after another, round by round.
        turns: rounds.
        system_len: tokens that all of them begin with.
        opening_len: tokens of a conversation's first message.
        message_len, reasoning_len, answer_len: tokens of each turn.
        history: one of ``HISTORIES``.
    """

    num_conversations: int = 2
    turns: int = 4
    system_len: int = 0
    opening_len: int = 30_000
    message_len: int = 600
    reasoning_len: int = 1_400
    answer_len: int = 500
    history: str = "resent"
    seed: int = 0

    def arrivals(self, block_tokens: int) -> Iterator[Arrival]:
        """The requests, in order.

        Raises:
            K3Error: a count below its least, or an unknown history.
        """
        require(
            self.history in HISTORIES,
            f"history={self.history!r} must be one of {', '.join(HISTORIES)}",
        )
        for name in ("num_conversations", "turns", "opening_len", "message_len", "answer_len"):
            require_count(name, getattr(self, name), 1)
        rng = np.random.default_rng(self.seed)

        def draw(count: int) -> npt.NDArray[np.int64]:
            return rng.integers(0, _VOCABULARY, count)

        system = PromptHashes(draw(self.system_len), block_tokens)
        known = []
        for _ in range(self.num_conversations):
            known.append(system.copy())
            known[-1].append(draw(self.opening_len))
        for turn in range(self.turns):
            for prompt in known:
                if turn:
                    prompt.append(draw(self.message_len))
                reasoning, answer = draw(self.reasoning_len), draw(self.answer_len)
                yield Arrival(prompt.copy(), np.concatenate([reasoning, answer]), turn)
                if self.history == "resent":
                    prompt.append(reasoning)
                prompt.append(answer)


@dataclass(frozen=True)
class SharedPrompt:
    """Strangers behind one system prompt: nothing else is ever sent twice."""

    num_requests: int = 40
    system_len: int = 7_000
    own_len: int = 3_000
    answer_len: int = 300
    seed: int = 0

    def arrivals(self, block_tokens: int) -> Iterator[Arrival]:
        """The requests, in order; lengths of their own part vary by a third."""
        rng = np.random.default_rng(self.seed)
        system = PromptHashes(rng.integers(0, _VOCABULARY, self.system_len), block_tokens)
        for number in range(self.num_requests):
            prompt = system.copy()
            own = max(int(self.own_len * rng.uniform(2 / 3, 4 / 3)), 1)
            prompt.append(rng.integers(0, _VOCABULARY, own))
            yield Arrival(prompt, rng.integers(0, _VOCABULARY, self.answer_len), number)


@dataclass
class Served:
    """Sums over a run.

    Attributes:
        prompt_tokens, reused_tokens: of all requests.
        later_tokens, later_reused: of those that are no first turns: what could be reused at all.
        num_refused: requests that did not fit.
        peak_states: most pages that held checkpoints after a request.
        peak_rows: most pages that held MLA rows after a request.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    later_tokens: int = 0
    later_reused: int = 0
    num_requests: int = 0
    num_refused: int = 0
    peak_states: int = 0
    peak_rows: int = 0
    losses: dict[str, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        return self.reused_tokens / max(self.prompt_tokens, 1)

    @property
    def later_rate(self) -> float:
        return self.later_reused / max(self.later_tokens, 1)


def make_manager(
    num_pages: int, granularity: HitGranularity, retention: Retention
) -> HybridCacheManager:
    """Accounting only, a page per physical block and per KDA group: no byte is asked for."""
    return HybridCacheManager(
        PagePool(num_pages),
        hash_block_tokens=granularity.match_unit,
        physical_block_tokens=granularity.physical_block_tokens,
        num_kda_groups=NUM_GROUPS,
        retention=retention,
        dropped_blocks=granularity.dropped_blocks,
    )


def serve_all(
    manager: HybridCacheManager,
    arrivals: Iterable[Arrival],
    budget: int = 0,
    track_every: int = 0,
) -> Served:
    """Serve requests one after another: admit, prefill in chunks, decode, release.

    Args:
        arrivals: their prompts are left as they are, so a list can be served again.
        budget: tokens of a prefill step; 0 is no limit.
        track_every: an engine that writes a state only at multiples of this, in prefill and decode
            (SGLang ``mamba_track_interval``); 0 lets the retention rule and the blocks decide.
    """
    sums = Served()
    for number, arrival in enumerate(arrivals):
        sums.num_requests += 1
        sums.prompt_tokens += arrival.prompt.num_tokens
        later = arrival.prompt.num_tokens if arrival.turn else 0
        sums.later_tokens += later
        limit = budget or arrival.prompt.num_tokens
        admission = _serve(manager, number, arrival, limit, track_every)
        hit = manager.lookup(arrival.prompt) if admission is None else admission.hit
        for reason, tokens in hit.loss_account().items():
            sums.losses[reason] = sums.losses.get(reason, 0) + tokens
        if admission is None:
            sums.num_refused += 1
            continue
        sums.reused_tokens += admission.reused_tokens
        sums.later_reused += admission.reused_tokens if later else 0
        stats = manager.pool.stats()
        sums.peak_states = max(sums.peak_states, stats.cached[PageKind.KDA_STATE])
        sums.peak_rows = max(sums.peak_rows, stats.cached[PageKind.MLA_KV])
    return sums


def _serve(
    manager: HybridCacheManager, name: int, arrival: Arrival, budget: int, track_every: int
) -> Admission | None:
    """One request, released at its end; None when it does not fit."""
    admission = manager.admit(name, arrival.prompt.copy())
    if admission is None:
        return None
    prompt_len, at = arrival.prompt.num_tokens, admission.reused_tokens
    while at < prompt_len:
        if track_every:
            at = min((at // track_every + 1) * track_every, prompt_len)
        else:
            at = manager.next_chunk_end(name, budget)
        manager.computed(name, at)
    total = prompt_len + len(arrival.output)
    if len(arrival.output):
        manager.extend(name, arrival.output)
    if total > prompt_len and manager.grow(name, total) is not None:
        step = track_every or manager.hash_block_tokens
        for stop in range((prompt_len // step + 1) * step, total, step):
            manager.computed(name, stop)
        manager.computed(name, total)
    manager.release(name)
    return admission
