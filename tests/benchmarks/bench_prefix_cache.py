"""Cost of hashing and of a lookup: ``pytest tests/benchmarks/test_prefix_cache_benchmark.py -s``.

Not part of the test suite. Bounds are ratios between two things measured in turns in the same run;
the two that are times hold on an idle core. Prints what it measured.

Beside vLLM's hasher: the same SHA-256, but over a buffer of int64, without pickle and without
extra keys per block; and a lookup that never compares tokens.
"""

import gc
import hashlib
from array import array
from statistics import median
from time import perf_counter

import numpy as np
import pytest

from k3core.prefix_cache import PrefixCache, PromptHashes

NUM_TOKENS, BLOCK, GROUPS = 51_200, 512, 3
TOKENS = np.random.default_rng(0).integers(0, 163_840, NUM_TOKENS, dtype=np.int64)


def in_turns(*calls, rounds=41):
    """Least and median seconds of each call, measured in turns so that all see the same noise."""
    samples = [[] for _ in calls]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for sample, call in zip(samples, calls, strict=True):
                began = perf_counter()
                call()
                sample.append(perf_counter() - began)
    finally:
        gc.enable()
    return [(min(sample), median(sample)) for sample in samples]


def bare_chain():
    """One sha256 call per block over the same bytes, and nothing else."""
    view, step = memoryview(TOKENS).cast("B"), 8 * BLOCK
    for start in range(0, len(view), step):
        hashlib.sha256(view[start : start + step]).digest()


def cached(groups=GROUPS):
    prompt, cache = PromptHashes(TOKENS, BLOCK), PrefixCache(BLOCK, groups)
    ticket = cache.register(prompt, range(NUM_TOKENS // BLOCK))
    cache.mark_ready(ticket)
    for end in range(BLOCK, NUM_TOKENS + 1, BLOCK):
        for group in range(groups):
            cache.persist_checkpoint(ticket, end, group, (end, group))
    return cache


def test_the_chain_costs_little_more_than_its_digests():
    (bare, bare_mid), (chain, chain_mid) = in_turns(bare_chain, lambda: PromptHashes(TOKENS, BLOCK))
    print(
        f"\nhash chain, 51,200 tokens, B = 512: {chain * 1e3:.3f} ms "
        f"(median {chain_mid * 1e3:.3f}), bare digests {bare * 1e3:.3f} ms "
        f"(median {bare_mid * 1e3:.3f}): {chain / bare:.2f} times"
    )
    assert chain <= 1.6 * bare


def test_a_list_costs_its_conversion_on_top():
    tokens = TOKENS.tolist()
    (turn, _), (bare, _), (chain, _) = in_turns(
        lambda: memoryview(array("q", tokens)).cast("B"),
        bare_chain,
        lambda: PromptHashes(tokens, BLOCK),
    )
    print(f"\nlist: chain {chain * 1e3:.3f} ms, conversion {turn * 1e3:.3f} ms, digests "
          f"{bare * 1e3:.3f} ms")  # fmt: skip
    assert chain <= 1.6 * bare + 1.1 * turn


def test_appending_a_token_hashes_nothing_until_a_block_is_full():
    prompt = PromptHashes(TOKENS, BLOCK)
    (whole, _), (one, _) = in_turns(
        lambda: PromptHashes(TOKENS, BLOCK), lambda: prompt.append((1,)), rounds=101
    )
    print(f"\nappend one token: {one * 1e6:.2f} us, hash it all: {whole * 1e6:.0f} us")
    assert one < whole / 20


@pytest.mark.parametrize("groups", [1, GROUPS])
def test_a_lookup_of_a_cached_prompt(groups):
    cache, prompt = cached(groups), PromptHashes(np.append(TOKENS, 1), BLOCK)
    assert cache.lookup(prompt).matched_tokens == NUM_TOKENS
    (hit, hit_mid), (miss, _) = in_turns(
        lambda: cache.lookup(prompt), lambda: PrefixCache(BLOCK, groups).lookup(prompt), rounds=201
    )
    print(
        f"\nlookup beyond hashing, {groups} KDA groups: hit {hit * 1e3:.4f} ms "
        f"(median {hit_mid * 1e3:.4f}), miss {miss * 1e3:.4f} ms"
    )
    assert hit <= 0.15e-3


def test_the_answers_are_right_in_the_same_run():
    cache = cached()
    for num_tokens, expected in ((2048, 1536), (2049, 2048), (2047, 1536), (512, 0), (513, 512)):
        assert cache.lookup(TOKENS[:num_tokens]).matched_tokens == expected
