"""Cost of hashing and of a lookup; ratios are taken between two things measured in turns.

Beside vLLM's hasher: the same SHA-256, but over a buffer of int64, without pickle and without
extra keys per block; and a lookup that never compares tokens.
"""

import hashlib
from array import array

import numpy as np
import pytest

from k3core.prefix_cache import PrefixCache, PromptHashes
from tests.benchmarks.measures import at_least, at_most, note_ratio, note_value, race

NUM_TOKENS, BLOCK, GROUPS = 51_200, 512, 3
TOKENS = np.random.default_rng(0).integers(0, 163_840, NUM_TOKENS, dtype=np.int64)
pytestmark = pytest.mark.benchmark(group="Prefix cache", disable_gc=True)


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


def test_the_chain_against_its_digests(benchmark):
    times = race(benchmark, lambda: PromptHashes(TOKENS, BLOCK), {"bare": bare_chain}, rounds=41)
    note_ratio(benchmark, "chain / bare digests", times["ours"], times["bare"], at_most(1.6))


def test_a_list_against_its_conversion_and_digests(benchmark):
    tokens = TOKENS.tolist()

    def convert_and_digest():
        memoryview(array("q", tokens)).cast("B")
        bare_chain()

    peers = {"bare": convert_and_digest}
    times = race(benchmark, lambda: PromptHashes(tokens, BLOCK), peers, rounds=41)
    name = "chain / conversion and digests"
    note_ratio(benchmark, name, times["ours"], times["bare"], at_most(1.6))


def test_appending_a_token_against_hashing_it_all(benchmark):
    prompt = PromptHashes(TOKENS, BLOCK)
    peers = {"whole": lambda: PromptHashes(TOKENS, BLOCK)}
    times = race(benchmark, lambda: prompt.append((1,)), peers, rounds=101)
    note_ratio(benchmark, "hash all / append one", times["whole"], times["ours"], at_least(20))


@pytest.mark.parametrize("groups", [1, GROUPS])
def test_a_lookup_of_a_cached_prompt(benchmark, groups):
    cache, prompt = cached(groups), PromptHashes(np.append(TOKENS, 1), BLOCK)
    assert cache.lookup(prompt).matched_tokens == NUM_TOKENS
    benchmark.pedantic(cache.lookup, args=(prompt,), rounds=201, warmup_rounds=1)
    milliseconds = np.asarray(benchmark.stats.stats.data) * 1e3
    note_value(benchmark, "ms beyond hashing", milliseconds, at_most(0.15))


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(2048, 1536), (2049, 2048), (2047, 1536), (512, 0), (513, 512)]
)
def test_the_answers_are_right_in_the_same_run(num_tokens, expected):
    assert cached().lookup(TOKENS[:num_tokens]).matched_tokens == expected
