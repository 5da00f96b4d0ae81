"""Pages of the engine: none leaks, whatever fails and whoever evicts."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3core.engine import (
    NoisyReplayDrafter,
    RequestResult,
)
from k3core.errors import K3Error, PoolExhausted
from k3core.model import HybridModel
from tests.engine_helpers import (
    MODEL,
    MODEL_8,
    SMALL,
    engine,
    prompt,
    same_bits,
)


def test_poisoned_released_pages_change_no_result() -> None:
    clean, poisoned = engine(num_pages=60), engine(num_pages=60, poison=True)
    for seed in (0, 1, 0, 2, 0):
        text = prompt(60, seed)
        drafter = NoisyReplayDrafter((*text, *range(9)), 0.5, SMALL.vocab_size)
        one, two = (e.generate(text, 9, drafter) for e in (clean, poisoned))
        assert same_bits(one, two)
        assert two.logits.isfinite().all()


def test_a_pool_too_small_raises_and_keeps_nothing() -> None:
    serving = engine(num_pages=8)
    with pytest.raises(PoolExhausted):
        serving.generate(prompt(100), 4)
    assert serving.pool.num_owned == 0
    serving.check()
    small = serving.generate(prompt(20, 1), 4)
    assert same_bits(small, engine().generate(prompt(20, 1), 4))


def test_a_pool_that_runs_out_at_every_possible_moment_leaks_nothing() -> None:
    text = prompt(60)
    expected = engine().generate(text, 6)
    outcomes = set()
    for num_pages in range(1, 40):
        serving = engine(num_pages=num_pages)
        try:
            result = serving.generate(text, 6)
        except PoolExhausted:
            outcomes.add("exhausted")
        else:
            assert same_bits(result, expected)
            outcomes.add("skipped" if result.num_skipped_checkpoints else "served")
        assert serving.pool.num_owned == 0
        serving.check()
    assert outcomes == {"exhausted", "skipped", "served"}


@pytest.mark.parametrize("num_steps", range(6))
def test_closing_a_request_in_any_state_returns_its_pages(num_steps: int) -> None:
    serving = engine()
    request = serving.open(prompt(50), 8)
    for _ in range(num_steps):
        serving.step(request)
    serving.close(request)
    serving.close(request)
    assert serving.pool.num_owned == 0
    assert serving.cache.num_pending_blocks == 0
    serving.check()
    with pytest.raises(K3Error, match="closed"):
        serving.step(request)


def test_a_failing_step_closes_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = engine()
    request = serving.open(prompt(50), 8)
    serving.step(request)
    monkeypatch.setattr(serving.model, "prefill", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        serving.step(request)
    assert request.closed
    assert serving.pool.num_owned == 0
    assert serving.cache.lookup(prompt(50)).matched_tokens == 16


@lru_cache(maxsize=512)
def cold(model: HybridModel, text: tuple[int, ...], count: int) -> RequestResult:
    return engine(model).generate(text, count)


@settings(max_examples=12)
@given(
    order=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([1, 16, 17, 33, 48, 70]), st.just(2)),
        max_size=8,
    ),
    num_pages=st.integers(12, 50),
    model=st.sampled_from([MODEL, MODEL_8]),
)
def test_any_order_of_requests_in_a_small_pool_gives_cold_results(
    order: list[tuple[int, int, int]], num_pages: int, model: HybridModel
) -> None:
    serving = engine(model, num_pages, poison=True)
    for branch, length, count in order:
        shared = prompt(45)[: min(length, 45)] if branch else ()
        text = prompt(length, branch, shared)
        try:
            result = serving.generate(text, count)
        except PoolExhausted:
            result = None
        serving.check()
        assert serving.pool.num_owned == 0
        if result is not None:
            assert result.reused_tokens <= length - 1
            assert same_bits(result, cold(model, text, count))


def test_evicting_one_page_of_a_block_forgets_the_whole_block() -> None:
    serving = engine(MODEL_8, num_pages=40)
    serving.generate(prompt(50), 1)
    known = serving.cache.num_blocks
    assert known == 3
    for seed in range(1, 6):
        serving.generate(prompt(50, seed), 1)
        serving.check()
    assert serving.cache.lookup(prompt(50)).mla_tokens == 0
