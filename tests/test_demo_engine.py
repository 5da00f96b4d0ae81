"""The engine: reuse never changes a bit."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3core.engine import (
    Checkpoint,
    NoisyReplayDrafter,
    next_chunk_end,
    run_once,
)
from k3core.errors import K3Error
from k3core.kda import KDAState
from k3core.model import HybridModel
from k3core.paged_cache import PageKind
from tests.engine_helpers import (
    BLOCK,
    MODEL,
    MODEL_8,
    SMALL,
    TWO_PERIODS,
    engine,
    prefill,
    prompt,
    same_bits,
)

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
