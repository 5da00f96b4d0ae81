"""The engine: reuse and drafts never change a bit, pages never leak."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3core.engine import (
    Checkpoint,
    Engine,
    NoisyReplayDrafter,
    PromptLookupDrafter,
    Request,
    RequestResult,
    next_chunk_end,
    run_once,
)
from k3core.errors import K3Error, PoolExhausted
from k3core.kda import KDAState
from k3core.model import HybridModel, ModelConfig
from k3core.paged_cache import PageKind

SMALL = ModelConfig(
    num_layers=4, hidden_size=32, num_heads=2, dk=8, dv=12, gate_rank=8, kv_latent=12,
    rope_width=4, nope_width=8, value_width=8, mlp_size=32, vocab_size=97,
)  # fmt: skip
TWO_PERIODS = ModelConfig(**{**SMALL.__dict__, "num_layers": 8, "seed": 3})
MODEL = HybridModel(SMALL)
MODEL_8 = HybridModel(TWO_PERIODS)
BLOCK = 16


def engine(model: HybridModel = MODEL, num_pages: int = 300, **options: object) -> Engine:
    defaults = {"block_tokens": BLOCK, "chunk_tokens": BLOCK, "draft_len": 4}
    return Engine(model, num_pages, **{**defaults, **options})  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0, shared: Sequence[int] = ()) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    own = torch.randint(SMALL.vocab_size, (length,), generator=generator).tolist()
    return (*shared, *own[len(shared) :])


def same_bits(one: RequestResult, other: RequestResult) -> bool:
    return one.tokens == other.tokens and torch.equal(one.logits, other.logits)


def prefill(serving: Engine, request: Request) -> None:
    while not request.tokens:
        serving.step(request)


# The two rows of the source text


def test_engine_returns_hit_stats() -> None:
    run = run_once(prompt_len=600, shared_len=512, num_new_tokens=4)
    assert run.reused_tokens == 512
    assert run.with_prefix.hit.matched_tokens == 512
    assert run.with_prefix.computed_prompt_tokens == 88
    assert run.without_prefix.reused_tokens == 0
    assert run.reuse_difference == 0.0
    assert run.draft_difference == 0.0


def test_engine_miss_returns_zero() -> None:
    run = run_once(prompt_len=600, shared_len=511, num_new_tokens=4)
    assert run.reused_tokens == 0
    assert run.with_prefix.computed_prompt_tokens == 600
    assert not run.with_prefix.hit.hit


def test_the_last_token_is_always_computed() -> None:
    serving = engine(block_tokens=512, chunk_tokens=512)
    text = prompt(513)
    serving.generate(text[:512], 2)
    assert serving.generate(text[:512], 2).reused_tokens == 0
    assert serving.generate(text, 2).reused_tokens == 512


# Reuse


@settings(max_examples=15)
@given(
    shared=st.integers(0, 80),
    rest=st.integers(1, 40),
    chunk=st.sampled_from([5, 16, 24]),
    draft_len=st.integers(0, 5),
    quality=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_reuse_and_drafts_change_no_bit(
    shared: int, rest: int, chunk: int, draft_len: int, quality: float
) -> None:
    run = run_once(
        shared + rest,
        shared,
        9,
        config=SMALL,
        block_tokens=BLOCK,
        chunk_tokens=chunk,
        draft_len=draft_len,
        draft_quality=quality,
    )
    assert run.with_prefix.tokens == run.without_prefix.tokens == run.plain.tokens
    assert run.same_split
    assert run.reuse_difference == 0.0
    assert run.draft_difference == 0.0
    assert run.reused_tokens == shared // BLOCK * BLOCK


def test_reuse_over_another_split_agrees_but_not_in_bits() -> None:
    run = run_once(103, 71, 9, config=SMALL, block_tokens=BLOCK, chunk_tokens=3 * BLOCK)
    assert run.reused_tokens == 48
    assert run.same_split
    longer = run_once(71, 71, 9, config=SMALL, block_tokens=BLOCK, chunk_tokens=3 * BLOCK)
    assert longer.reused_tokens == 64
    serving = engine(chunk_tokens=3 * BLOCK)
    text = prompt(200)
    serving.generate(text[:71], 1)
    warm = serving.generate(text, 9)
    cold = engine(chunk_tokens=3 * BLOCK).generate(text, 9)
    assert warm.reused_tokens == 64
    assert warm.chunk_ends[0] not in cold.chunk_ends
    assert warm.tokens == cold.tokens
    assert 0 < (warm.logits - cold.logits).abs().max() < 1e-4


@pytest.mark.parametrize("model", [MODEL, MODEL_8], ids=["4 layers", "8 layers"])
def test_a_then_b_then_a_equals_three_cold_runs(model: HybridModel) -> None:
    texts = [prompt(50, 1), prompt(70, 2, shared=prompt(50, 1)[:33]), prompt(50, 1)]
    serving = engine(model)
    for text, reused in zip(texts, (0, 32, 48), strict=True):
        warm = serving.generate(text, 6)
        assert warm.reused_tokens == reused
        assert same_bits(warm, engine(model).generate(text, 6))


def test_prefixes_that_part_inside_a_block_share_only_the_blocks_before() -> None:
    serving = engine()
    first = prompt(64)
    serving.generate(first, 1)
    second = (*first[:40], (first[40] + 1) % SMALL.vocab_size, *first[41:])
    assert serving.generate(second, 1).reused_tokens == 32


def test_a_hit_shares_mla_pages_and_copies_states() -> None:
    serving = engine(MODEL_8)
    text = prompt(70)
    serving.generate(text[:64], 1)
    before = serving.pool_use()
    request = serving.open(text, 4)
    assert request.hit.matched_tokens == 64
    layers = TWO_PERIODS
    assert request.memory.num_shared_mla_pages == 4 * len(layers.mla_layers)
    after = serving.pool_use()
    assert after.mla_cached == before.mla_cached - 4 * len(layers.mla_layers)
    assert after.kda_cached == before.kda_cached
    state_pages = -(-layers.kda_bytes // (BLOCK * layers.mla_row_bytes))
    assert after.kda_owned == len(layers.kda_layers) * state_pages
    serving.close(request)
    assert serving.pool_use() == before


def test_published_pages_keep_their_bytes_whoever_reads_them() -> None:
    serving = engine()
    text = prompt(90)
    serving.generate(text[:64], 5)
    pages = list(serving._published)
    before = [serving.pool.page_bytes_view(page).copy() for page in pages]
    serving.generate(text, 9, NoisyReplayDrafter((*text, *range(9)), 0.5, SMALL.vocab_size))
    assert set(pages) <= set(serving._published)
    for page, content in zip(pages, before, strict=True):
        assert (serving.pool.page_bytes_view(page) == content).all()


def test_a_checkpoint_holds_the_state_after_exactly_its_tokens() -> None:
    serving = engine()
    text = prompt(70)
    request = serving.open(text, 1)
    states: dict[int, list[KDAState]] = {}
    while not request.done:
        serving.step(request)
        states[request.num_computed] = [request.memory.load_kda(i) for i in SMALL.kda_layers]
    serving.close(request)
    for boundary in (16, 32, 48, 64):
        hit = serving.cache.lookup(text[: boundary + 1])
        assert hit.checkpoint == boundary
        for layer, checkpoint in enumerate(hit.checkpoint_payloads):
            for mine, theirs in zip(checkpoint.load(layer), states[boundary][layer], strict=True):
                assert torch.equal(mine, theirs)


def test_a_checkpoint_without_its_convolution_window_gives_other_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = prompt(40)
    cold = engine().generate(text, 4)
    serving = engine()
    serving.generate(text, 1)
    load = Checkpoint.load

    def without_window(self: Checkpoint, layer: int) -> KDAState:
        state = load(self, layer)
        return KDAState(state.recurrent, torch.zeros_like(state.conv_window))

    monkeypatch.setattr(Checkpoint, "load", without_window)
    warm = serving.generate(text, 4)
    assert warm.reused_tokens == 32
    assert (warm.logits[0] - cold.logits[0]).abs().max() > 1e-3


def test_a_missing_group_moves_the_hit_to_an_earlier_boundary() -> None:
    serving = engine()
    text = prompt(70)
    first = serving.generate(text, 3)
    hashes = serving.cache.hashes(text)
    for group, boundary in ((1, 64), (2, 48)):
        pages = serving.cache.evict_checkpoint(hashes[boundary // BLOCK - 1], group).pages
        serving.pool.unpublish(pages)
        for page in pages:
            del serving._published[page]
    warm = serving.generate(text, 3)
    assert warm.reused_tokens == 32
    assert warm.hit.reason == "group_missing"
    assert same_bits(warm, first)
    assert serving.generate(text, 3).reused_tokens == 64  # the second run put both back
    serving.check()


def test_a_block_evicted_while_another_request_computes_it_is_published_again() -> None:
    serving = engine()
    text = prompt(BLOCK)
    serving.generate(text, 1)
    request = serving.open(text, 1)  # the last-token rule: nothing is reused
    serving.pool.free(serving.pool.alloc(PageKind.MLA_KV, serving.pool.num_available))
    assert serving.cache.num_blocks == 0
    serving.step(request)
    serving.close(request)
    assert serving.generate((*text, 1), 1).reused_tokens == BLOCK
    serving.check()


def test_blocks_are_visible_only_after_their_chunk_ran() -> None:
    serving = engine()
    text = prompt(70)
    writer = serving.open(text, 2)
    for written in (0, 16, 32):
        hit = serving.cache.lookup(text)
        assert hit.matched_tokens == written
        serving.step(writer)
    reader = serving.open(text, 2)
    assert reader.num_computed == 48
    for request in (writer, reader):
        prefill(serving, request)
    assert torch.equal(writer.logits[0], reader.logits[0])
    for request in (writer, reader):
        serving.close(request)
    serving.check()


def test_without_cache_nothing_is_looked_up_or_published() -> None:
    serving = engine(use_cache=False)
    text = prompt(70)
    one, two = serving.generate(text, 3), serving.generate(text, 3)
    assert two.hit is None
    assert two.reused_tokens == 0
    assert same_bits(one, two)
    assert serving.pool.num_free == serving.pool.num_pages


# Speculative decoding


class Script:
    """Proposes what it was told, step by step."""

    def __init__(self, *proposals: tuple[int, ...]) -> None:
        self.proposals = list(proposals)

    def propose(self, tokens: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        return self.proposals.pop(0) if self.proposals else ()


def test_every_number_of_kept_drafts_gives_the_plain_text() -> None:
    text = prompt(35)
    plain = engine().generate(text, 12)
    for kept in range(5):
        right = plain.tokens[1 : 1 + kept]
        wrong = tuple((t + 1) % SMALL.vocab_size for t in plain.tokens[1 + kept : 5])
        result = engine().generate(text, 12, Script((*right, *wrong)))
        assert result.verify_steps[0].num_committed == 1 + kept
        assert result.verify_steps[0].num_rejected == 4 - kept
        assert same_bits(result, plain)


def test_steps_without_drafts_between_steps_with_drafts_change_nothing() -> None:
    text = prompt(35)
    plain = engine().generate(text, 12)
    script = Script((), plain.tokens[2:4], (), (0, 0, 0, 0), ())
    result = engine().generate(text, 12, script)
    assert [step.num_tokens for step in result.verify_steps][:5] == [1, 3, 1, 5, 1]
    assert same_bits(result, plain)


def test_perfect_drafts_take_the_fewest_steps_and_wrong_ones_the_most() -> None:
    text = prompt(35)
    plain = engine().generate(text, 11)
    steps = {}
    for quality in (0.0, 1.0):
        drafter = NoisyReplayDrafter((*text, *plain.tokens), quality, SMALL.vocab_size)
        result = engine().generate(text, 11, drafter)
        assert same_bits(result, plain)
        steps[quality] = len(result.verify_steps)
    assert steps == {0.0: 10, 1.0: 2}


def test_drafts_never_go_past_the_requested_length() -> None:
    text = prompt(20)
    plain = engine().generate(text, 4)
    drafter = NoisyReplayDrafter((*text, *plain.tokens), 1.0, SMALL.vocab_size)
    result = engine().generate(text, 4, drafter)
    assert result.tokens == plain.tokens
    assert [step.num_tokens for step in result.verify_steps] == [3]


def test_step_accounts_add_up() -> None:
    text = prompt(50)
    plain = engine().generate(text, 15)
    drafter = NoisyReplayDrafter((*text, *plain.tokens), 0.6, SMALL.vocab_size, seed=1)
    result = engine().generate(text, 15, drafter)
    assert sum(len(step.new_tokens) for step in result.steps) == 15
    assert 0 < result.num_kept_drafts < result.num_drafts
    position = 0
    for step in result.steps:
        assert step.start == position
        position += step.num_committed
        assert step.flops == MODEL.flops(step.num_tokens, step.start)
    assert position == 50 + 14  # the last output token was never fed back
    assert result.tokens_per_step == 14 / len(result.verify_steps)
    assert result.prefill_flops == sum(s.flops for s in result.steps if s.kind == "prefill")


def test_interleaved_requests_do_not_see_each_other() -> None:
    serving = engine(MODEL_8)
    texts = [prompt(40, seed) for seed in range(3)]
    alone = [engine(MODEL_8).generate(text, 8) for text in texts]
    requests = [
        serving.open(text, 8, NoisyReplayDrafter((*text, *r.tokens), 0.5, SMALL.vocab_size))
        for text, r in zip(texts, alone, strict=True)
    ]
    while not all(request.done for request in requests):
        for request in requests:
            if not request.done:
                serving.step(request)
    for request, expected in zip(requests, alone, strict=True):
        assert same_bits(serving.result(request), expected)
        serving.close(request)
    serving.check()


# Pages


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


# Chunks


def ends(prompt_len: int, chunk: int, block: int, start: int = 0) -> list[int]:
    edges = []
    while start < prompt_len:
        start = next_chunk_end(start, prompt_len, chunk, block)
        edges.append(start)
    return edges


def test_chunks_end_on_boundaries_and_before_the_last_token() -> None:
    assert ends(1100, 512, 512) == [512, 1024, 1100]
    assert ends(1024, 512, 512) == [512, 1024]
    assert ends(2100, 1024, 512) == [1024, 2048, 2100]
    assert ends(2048, 2048, 512) == [1536, 2048]
    assert ends(1100, 300, 512) == [300, 512, 812, 1024, 1100]
    assert ends(10_000, 8192, 512) == [8192, 9728, 10_000]
    assert ends(7, 512, 512) == [7]


@given(
    prompt_len=st.integers(1, 5000),
    chunk=st.integers(1, 1500),
    block=st.sampled_from([16, 512, 600]),
)
def test_chunks_cover_the_prompt_within_budget(prompt_len: int, chunk: int, block: int) -> None:
    edges = [0, *ends(prompt_len, chunk, block)]
    assert edges[-1] == prompt_len
    assert all(0 < b - a <= chunk for a, b in pairwise(edges))
    replay = (prompt_len - 1) // block * block
    assert replay in edges
    if chunk >= block:
        assert all(edge % block == 0 for edge in edges[:-1])


# Drafters


def test_prompt_lookup_continues_the_latest_longest_match() -> None:
    drafter = PromptLookupDrafter(max_ngram=2)
    assert drafter.propose([1, 2, 9, 1, 2, 7, 8, 1, 2], 2) == (7, 8)
    assert drafter.propose([5, 2, 9, 1, 2], 1) == (9,)
    assert drafter.propose([1, 2, 3], 4) == ()
    assert drafter.propose([1], 4) == ()


def test_noisy_replay_errs_at_its_rate_and_at_fixed_positions() -> None:
    text = list(prompt(4000))
    drafter = NoisyReplayDrafter(text, 0.75, SMALL.vocab_size, seed=5)
    proposed = drafter.propose(text[:100], 3900)
    share = sum(a == b for a, b in zip(proposed, text[100:], strict=True)) / 3900
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 3900) ** 0.5
    assert drafter.propose(text[:1000], 50) == proposed[900:950]


def test_a_prompt_lookup_drafter_gives_the_plain_text() -> None:
    text = prompt(20) * 3
    serving = engine()
    plain = serving.generate(text, 30)
    looked_up = engine().generate(text, 30, PromptLookupDrafter())
    assert looked_up.num_drafts > 0
    assert same_bits(looked_up, plain)


# Bad input


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"block_tokens": 0}, "block_tokens"),
        ({"chunk_tokens": -1}, "chunk_tokens"),
        ({"draft_len": -1}, "draft_len"),
        ({"num_pages": 0}, "num_pages"),
    ],
)
def test_bad_engine_sizes_raise(options: dict[str, int], name: str) -> None:
    with pytest.raises(K3Error, match=name):
        engine(**options)  # type: ignore[arg-type]


def test_bad_requests_raise_before_any_page_is_taken() -> None:
    serving = engine()
    for text, count in (((), 3), ((1, 2), 0), ((1, SMALL.vocab_size), 3)):
        with pytest.raises(K3Error):
            serving.generate(text, count)
    assert serving.pool.num_free == serving.pool.num_pages


@pytest.mark.parametrize("shared_len", [-1, 21])
def test_a_shared_length_outside_the_prompt_raises(shared_len: int) -> None:
    with pytest.raises(K3Error, match="shared_len"):
        run_once(20, shared_len, 2, config=SMALL)


def test_equal_digests_mean_equal_logits() -> None:
    one, two, other = (engine().generate(prompt(20, seed), 3) for seed in (0, 0, 1))
    assert one.logits_digest == two.logits_digest != other.logits_digest
