"""Hit granularity, chunk ends, retention rules, and the hit lengths that others published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import CacheError
from k3core.fleet.cache import BlockCache
from k3core.prefix_cache import (
    HitGranularity,
    PrefixCache,
    PromptHashes,
    Retention,
    chunk_ends,
    fragmented_chunk_ends,
    replay_boundary,
    surplus_boundaries,
)

PUBLISHED = (  # source, block, dropped blocks, prompt, hit
    ("vLLM #51250", 784, 0, 55_009, 54_880),
    ("vLLM #53504, drafter", 1600, 1, 4481, 1600),
    ("vLLM #53504, drop off", 1600, 0, 4481, 3200),
    ("vLLM #53504, no drafter", 1568, 0, 4481, 3136),
    ("qwen38 #174", 2176, 0, 8034, 6528),
    ("qwen38 #174", 2176, 0, 15_997, 15_232),
    ("qwen38 #174", 2176, 0, 29_932, 28_288),
    ("qwen38 #174", 2176, 0, 49_838, 47_872),
    ("vLLM #50235", 1536, 0, 3072, 1536),
    ("vLLM #50235", 1536, 0, 3073, 3072),
)


def serve(cache, prompt, boundaries):
    ticket = cache.register(prompt)
    for boundary in boundaries:
        for group in range(cache.num_kda_groups):
            cache.persist_checkpoint(ticket, boundary, group)
    cache.mark_ready(ticket)


@pytest.mark.parametrize(("source", "block", "dropped", "length", "expected"), PUBLISHED)
def test_published_hit_lengths(source, block, dropped, length, expected):
    """By the formula, and by a cache that served the prompt once under vLLM's default rule."""
    granularity = HitGranularity(block, dropped_blocks=dropped, max_batched_tokens=8192)
    assert granularity.hit_tokens(length) == expected
    prompt = PromptHashes(range(length), block)
    cache = PrefixCache(block, 3, dropped_blocks=dropped)
    serve(cache, prompt, granularity.state_boundaries(length, Retention("junction")))
    assert cache.lookup(prompt).matched_tokens == expected


def test_the_published_miss_comes_from_states_at_chunk_ends_only():
    """vLLM #50235: 3,072 then 3,073 tokens reuse nothing. With one state where the chunk ended and
    a drafter that gives up the block before it, the same happens here, and with
    the replay boundary of the first prompt as well. States at every block are the remedy."""
    first, second = PromptHashes(range(3072), 1536), PromptHashes(range(3073), 1536)
    for rule, dropped, expected in (("chunk_end", 1, 0), ("replay", 1, 0), ("dense", 1, 1536)):
        granularity = HitGranularity(1536, dropped_blocks=dropped)
        cache = PrefixCache(1536, 3, dropped_blocks=dropped)
        serve(cache, first, granularity.state_boundaries(3072, Retention(rule)))
        found = cache.lookup(second)
        assert (rule, found.matched_tokens) == (rule, expected)


@pytest.mark.parametrize(("shared", "expected"), [(1600, 52), (1500, 0)])
def test_a_shared_prefix_that_ends_before_the_last_boundary_is_lost_without_junctions(
    shared, expected
):
    """vLLM #45238, block 528, 64 prompts of about 2,200 tokens, of which 12 come at once: a state
    at the last boundary alone falls into a prompt's own tokens (1,584 of 1,600 against 1,500)."""
    granularity = HitGranularity(528)
    cache = PrefixCache(528, 3)
    hits = 0
    for number in range(64):
        prompt = PromptHashes(
            [*range(shared), *range(10_000 * (number + 1), 10_000 * (number + 1) + 2200 - shared)],
            528,
        )
        if number >= 12:
            hits += cache.lookup(prompt).hit
        ends = (1584, *granularity.state_boundaries(2200, Retention("replay")))
        serve(cache, prompt, sorted(set(ends)))
    assert hits == expected


@pytest.mark.parametrize(
    ("tp", "dtype", "quantum", "expected"),
    [
        (8, "", 128, 1536),
        (1, "", 128, 11_392),
        (1, "bfloat16", 512, 6144),
        (2, "bfloat16", 512, 3072),
        (4, "bfloat16", 512, 1536),
        (8, "bfloat16", 512, 1024),
        (16, "bfloat16", 512, 512),
    ],
)
def test_physical_block_of_kimi_k3(tp, dtype, quantum, expected):
    granularity = HitGranularity.of_model("kimi-k3", tp, mla_dtype=dtype, quantum=quantum)
    assert granularity.physical_block_tokens == granularity.match_unit == expected


def test_context_parallel_ranks_multiply_the_block_and_drafts_enlarge_it():
    assert HitGranularity.of_model(context_parallel=8).physical_block_tokens == 12_288
    drafted = HitGranularity.of_model(draft_len=7, quantum=16).physical_block_tokens
    assert drafted > HitGranularity.of_model(quantum=16).physical_block_tokens


def test_hash_blocks_inside_a_page_are_matched_singly():
    granularity = HitGranularity.of_model(
        tp=1, mla_dtype="bfloat16", quantum=512, hash_block_tokens=512
    )
    assert (granularity.units_per_page, granularity.match_unit) == (12, 512)
    assert granularity.hit_tokens(1025) == 1024
    with pytest.raises(CacheError, match="every 3072 tokens"):
        HitGranularity(1536, 1024)


def test_a_budget_decides_which_states_exist():
    """A rule can keep only what a chunk end has written."""
    dense = Retention("dense")
    assert HitGranularity(512).state_boundaries(5000, dense) == tuple(range(512, 5000, 512))
    assert HitGranularity(512, max_batched_tokens=2048).state_boundaries(5000, dense) == (
        2048, 4096, 4608,
    )  # fmt: skip
    assert HitGranularity(512).state_boundaries(5000, Retention("chunk_end")) == ()
    assert HitGranularity(512).state_boundaries(5120, Retention("chunk_end")) == (5120,)
    assert HitGranularity(512).state_boundaries(5000, Retention("none")) == ()


@given(
    num_tokens=st.integers(1, 5000),
    budget=st.integers(1, 3000),
    block=st.integers(1, 700),
    stops=st.lists(st.integers(1, 5000), max_size=4),
)
def test_chunks_cover_the_prompt_and_never_leave_a_block_without_a_reason(
    num_tokens, budget, block, stops
):
    ends = chunk_ends(num_tokens, budget, block, stops)
    starts = (0, *ends[:-1])
    assert ends[-1] == num_tokens
    for start, end in zip(starts, ends, strict=True):
        assert 0 < end - start <= budget
        crossed = (start // block + 1) * block
        assert start % block == 0 or end <= crossed
        aligned = end % block == 0 or end in stops or end == num_tokens
        assert aligned or budget < block


@given(
    num_tokens=st.integers(1, 3000),
    budgets=st.lists(st.integers(0, 900), max_size=6),
    block=st.integers(1, 500),
)
def test_fragmented_chunks_cover_the_prompt_too(num_tokens, budgets, block):
    ends = fragmented_chunk_ends(num_tokens, budgets, block)
    assert ends[-1] == num_tokens
    assert list(ends) == sorted(set(ends))
    if max([*budgets, 1]) >= block:
        assert all(end % block == 0 for end in ends[:-1])


@given(num_tokens=st.integers(1, 9000), dropped=st.integers(0, 2))
def test_every_rule_keeps_the_replay_boundary(num_tokens, dropped):
    expected = replay_boundary(num_tokens, 512, dropped)
    for rule in ("dense", "junction", "replay"):
        kept = Retention(rule).stop_boundaries(num_tokens, 512, 0, dropped)
        assert expected == 0 or expected in kept
        assert all(0 < at <= num_tokens and at % 512 == 0 for at in kept)


def test_a_cap_keeps_the_tail_and_what_is_protected():
    path = (512, 1024, 1536, 2048)
    assert surplus_boundaries(path, 2) == (512, 1024)
    assert surplus_boundaries(path, 2, {512}) == (1024, 1536)
    assert surplus_boundaries(path, 1, {512, 1024, 1536}) == ()
    assert surplus_boundaries(path, None) == ()
    assert Retention("dense", max_per_path=2).stop_boundaries(2049) == (1536, 2048)


@pytest.mark.parametrize(
    "kwargs", [{"rule": "some"}, {"rule": "interval"}, {"interval_tokens": -1}, {"max_per_path": 0}]
)
def test_impossible_retention_is_refused(kwargs):
    with pytest.raises(ValueError, match=r"rule|interval_tokens|max_per_path"):
        Retention(**kwargs)


# The fleet's cache and this one


@st.composite
def requests(draw):
    """Paths in a small tree of blocks, a partial last block included."""
    blocks = draw(st.lists(st.integers(0, 1), min_size=1, max_size=7))
    return tuple(blocks), draw(st.integers(1, 512))


@given(
    st.lists(requests(), max_size=25),
    st.sampled_from(
        [
            Retention("dense"), Retention("replay"), Retention("junction"), Retention("none"),
            Retention("interval", 1024), Retention("interval", 1024, 2),
            Retention("junction", 0, 2),
        ]
    ),
)  # fmt: skip
def test_the_cache_of_the_fleet_reuses_what_this_cache_reuses(paths, policy):
    fleet, cache = BlockCache(None, policy), PrefixCache(512, 2)
    for blocks, tail in paths:
        num_tokens = 512 * (len(blocks) - 1) + tail
        ids = [
            hash_of(blocks[: depth + 1], tail, depth, len(blocks)) for depth in range(len(blocks))
        ]
        matched = fleet.match(ids)
        prompt = PromptHashes.from_hashes(
            [one.to_bytes(8, "little") for one in ids[: num_tokens // 512]], num_tokens, 512
        )
        found = cache.lookup(prompt)
        assert fleet.usable(ids, matched, num_tokens) == found.matched_tokens
        assert min(matched, num_tokens // 512) * 512 == found.mla_tokens
        fleet.store(ids, matched, num_tokens)
        stops = policy.stop_boundaries(num_tokens, 512, found.junction_tokens)
        serve(cache, prompt, stops)
        drop_surplus(cache, prompt, policy, found.junction_tokens)


def hash_of(prefix, tail, depth, length):
    """Ids name prefixes; a partial last block is another one than the full block."""
    number = 1
    for block in prefix:
        number = number * 2 + block
    partial = depth == length - 1 and tail < 512
    return number + (10_000 * tail if partial else 0)


def drop_surplus(cache, prompt, policy, junction):
    path = prompt.block_hashes
    there = [512 * (i + 1) for i, one in enumerate(path) if cache.has_checkpoint(one)]
    for at in surplus_boundaries(there, policy.max_per_path, {junction}):
        cache.evict_boundary(path[at // 512 - 1])
