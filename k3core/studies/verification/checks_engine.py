"""Checks of the engine: prefix reuse, drafts, checkpoints and pages on a real stack (page 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from k3core.studies.verification.check import (
    ACCOUNTING,
    ORACLE,
    SELF,
    Case,
    Reading,
    check,
    counted,
    difference,
)
from k3core.studies.verification.oracle_stack import OraclePass, oracle_pass

PAGE = "engine"
BLOCK_TOKENS = 8
PROMPT_LEN, NUM_NEW = 11, 4
DRAFT_LEN = 3
FP64, FP32 = 1e-10, 1e-4


class Runs(NamedTuple):
    """One prompt served plainly, cold with drafts, and with drafts on the cached prefix;
    ``oracle`` read the prompt and the plain output."""

    model: Any
    prompt: tuple[int, ...]
    cold: Any
    warm: Any
    plain: Any
    oracle: OraclePass


class _EveryThirdWrong:
    """Proposes the known text with every third token wrong: all windows lose some drafts."""

    def __init__(self, text: Sequence[int], vocab_size: int) -> None:
        self._text = text
        self._vocab_size = vocab_size

    def propose(self, tokens: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        start = len(tokens)
        return tuple(
            (token + (position % 3 == 0)) % self._vocab_size
            for position, token in enumerate(self._text[start : start + num_drafts], start)
        )


def _small_model(case: Case, num_heads: int = 2) -> Any:
    config = case.subject.model.ModelConfig(
        num_layers=2, kda_per_mla=1, hidden_size=24, num_heads=num_heads, dk=8, dv=6, gate_rank=8,
        kv_latent=12, rope_width=4, nope_width=8, value_width=8, mlp_size=32, vocab_size=61,
        dtype=case.dtype, seed=case.seed,
    )  # fmt: skip
    return case.subject.model.HybridModel(config)


def _engine(case: Case, model: Any) -> Any:
    return case.subject.engine.Engine(
        model, 200, block_tokens=BLOCK_TOKENS, chunk_tokens=BLOCK_TOKENS, draft_len=DRAFT_LEN
    )


def _prompt(case: Case, model: Any) -> tuple[int, ...]:
    rng = np.random.default_rng(case.seed)
    return tuple(rng.integers(model.config.vocab_size, size=PROMPT_LEN).tolist())


def _runs(case: Case) -> Runs:
    model = _small_model(case)
    prompt = _prompt(case, model)
    serving = _engine(case, model)
    plain = serving.generate(prompt, NUM_NEW)
    drafter = _EveryThirdWrong((*prompt, *plain.tokens), model.config.vocab_size)
    cold = _engine(case, model).generate(prompt, NUM_NEW, drafter)
    warm = serving.generate(prompt, NUM_NEW, drafter)
    oracle = oracle_pass(model, (*prompt, *plain.tokens[:-1]))
    return Runs(model, prompt, cold, warm, plain, oracle)


@check(PAGE, SELF, in_matrix=True)
def hit_equals_miss(case: Case) -> float:
    """Logits of one prompt with and without a cached prefix, on a quiet engine."""
    runs = case.once(_runs)
    if runs.warm.reused_tokens == 0 or runs.cold.reused_tokens > 0:
        return math.inf
    if runs.warm.tokens != runs.cold.tokens:
        return math.inf
    return difference(runs.warm.logits, runs.cold.logits)


@check(PAGE, SELF, in_matrix=True)
def drafts_change_nothing(case: Case) -> float:
    """Logits with drafts, some kept and some rejected, against plain decoding."""
    runs = case.once(_runs)
    if runs.cold.num_kept_drafts == runs.cold.num_drafts:
        return math.inf  # nothing was rejected: nothing was tested
    return difference(runs.cold.logits, runs.plain.logits)


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def engine_matches_oracle(case: Case) -> float:
    """Logits of the served request against a pass over the whole text that caches nothing."""
    runs = case.once(_runs)
    expected = runs.oracle.logits[PROMPT_LEN - 1 :]
    if runs.warm.tokens != runs.plain.tokens:
        # The texts part: from there on the oracle has read another text.
        expected = oracle_pass(runs.model, (*runs.prompt, *runs.warm.tokens[:-1])).logits[
            PROMPT_LEN - 1 :
        ]
    return difference(runs.warm.logits, expected)


@check(PAGE, ORACLE, FP64, FP32)
def checkpoint_matches_oracle(case: Case) -> float:
    """A published checkpoint at token d holds states and windows after exactly d tokens."""
    model = _small_model(case)
    prompt = _prompt(case, model)
    serving = _engine(case, model)
    serving.generate(prompt, 1)
    hit = serving.cache.lookup(prompt)
    if not hit.hit:
        return math.inf
    expected = oracle_pass(model, prompt[: hit.matched_tokens])
    worst = 0.0
    for checkpoint in hit.checkpoint_payloads:
        for layer in checkpoint.layers:
            state = checkpoint.load(layer)
            worst = max(
                worst,
                difference(state.recurrent, expected.states[layer]),
                difference(state.conv_window, expected.windows[layer]),
            )
    return worst


@check(PAGE, ACCOUNTING)
def pages_survive_eviction(case: Case) -> Reading:
    """Four prompts through a pool that holds about two: no page is lost, none leaks."""
    model = _small_model(case)
    serving = case.subject.engine.Engine(
        model, 40, block_tokens=BLOCK_TOKENS, chunk_tokens=BLOCK_TOKENS, poison=True
    )
    rng = np.random.default_rng(case.seed)
    for _ in range(4):
        serving.generate(rng.integers(model.config.vocab_size, size=PROMPT_LEN).tolist(), 1)
        serving.check()
    stats = serving.pool.stats()
    return counted(stats.num_free + stats.num_cached, stats.num_pages)


LONG_LEN, LONG_BLOCK = 530, 512


class LongPrompts(NamedTuple):
    """An engine with blocks of 512 that has served one prompt, and prompts that start like it."""

    model: Any
    serving: Any
    first: tuple[int, ...]

    def sharing(self, shared_len: int) -> list[int]:
        """A prompt that parts from the first one after ``shared_len`` tokens."""
        vocab_size = self.model.config.vocab_size
        tail = [(token + 1) % vocab_size for token in self.first[shared_len:]]
        return [*self.first[:shared_len], *tail]


def _long_prompts(case: Case) -> LongPrompts:
    model = _small_model(case, num_heads=1)
    serving = case.subject.engine.Engine(model, 40, block_tokens=LONG_BLOCK)
    rng = np.random.default_rng(case.seed)
    first = tuple(rng.integers(model.config.vocab_size, size=LONG_LEN).tolist())
    serving.generate(first, 1)
    return LongPrompts(model, serving, first)


@check(PAGE, ACCOUNTING)
def test_engine_returns_hit_stats(case: Case) -> Reading:
    """512 shared tokens: 512 are reused, and the logits are those of a fresh engine."""
    prompts = case.once(_long_prompts)
    prompt = prompts.sharing(LONG_BLOCK)
    warm = prompts.serving.generate(prompt, 1)
    fresh = case.subject.engine.Engine(prompts.model, 40, block_tokens=LONG_BLOCK)
    reading = counted(warm.reused_tokens, LONG_BLOCK)
    apart = difference(warm.logits, fresh.generate(prompt, 1).logits)
    return reading._replace(deviation=max(reading.deviation, apart))


@check(PAGE, ACCOUNTING)
def test_engine_miss_returns_zero(case: Case) -> Reading:
    """511 shared tokens, one short of a block: nothing is reused."""
    prompts = case.once(_long_prompts)
    return counted(prompts.serving.generate(prompts.sharing(LONG_BLOCK - 1), 1).reused_tokens, 0)


CHECKS = (
    test_engine_returns_hit_stats,
    test_engine_miss_returns_zero,
    hit_equals_miss,
    drafts_change_nothing,
    engine_matches_oracle,
    checkpoint_matches_oracle,
    pages_survive_eviction,
)
