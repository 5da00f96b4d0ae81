"""The two-stage prefix cache: hash chain, visibility, checkpoints, lookup, peer cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3core.errors import CacheError
from k3core.prefix_cache import (
    DRAFTER_DROP,
    EVICTED,
    GROUP_MISSING,
    LAST_TOKEN,
    NO_CHECKPOINT,
    NOT_READY,
    PrefixCache,
    PromptHashes,
    retained_boundaries,
)

B = 512


def cached(tokens, groups=1, boundaries=None, block=B):
    """A cache that holds every full block of ``tokens``, and checkpoints (None: everywhere)."""
    cache = PrefixCache(block, groups)
    whole = len(tokens) // block * block
    ticket = cache.register(tokens, [("block", at) for at in range(block, whole + 1, block)])
    cache.mark_ready(ticket)
    for boundary in range(block, whole + 1, block) if boundaries is None else boundaries:
        for group in range(groups):
            cache.persist_checkpoint(ticket, boundary, group, ("state", boundary, group))
    return cache


# ---- the source text's four --------------------------------------------------------------------


def test_register_then_lookup_at_same_prefix_hits():
    cache = cached(range(B))
    hit = cache.lookup(range(B + 1))
    assert (hit.hit, hit.matched_tokens, hit.checkpoint, hit.mla_tokens) == (True, B, B, B)
    assert hit.reason is None
    assert hit.block_payloads == (("block", B),)
    assert hit.checkpoint_payloads == (("state", B, 0),)


def test_two_stage_uses_longest_checkpoint_boundary():
    cache = cached(range(4 * B), boundaries=[B, 2 * B])
    hit = cache.lookup(range(4 * B + 1))
    assert (hit.matched_tokens, hit.mla_tokens, hit.reason) == (2 * B, 4 * B, NO_CHECKPOINT)


def test_lookup_without_checkpoint_misses():
    cache = cached(range(2 * B), boundaries=[])
    hit = cache.lookup(range(2 * B + 1))
    assert (hit.hit, hit.matched_tokens, hit.checkpoint) == (False, 0, None)
    assert (hit.mla_tokens, hit.reason) == (2 * B, NO_CHECKPOINT)


def test_checkpoint_atomic_across_groups():
    cache = PrefixCache(B, num_kda_groups=3)
    prompt = range(2 * B + 1)
    cache.register(prompt)
    cache.mark_ready(prompt)
    for group in range(3):
        cache.persist_checkpoint(prompt, B, group)
    for group in (0, 2):
        cache.persist_checkpoint(prompt, 2 * B, group)
    short = cache.lookup(prompt)
    assert (short.matched_tokens, short.reason) == (B, GROUP_MISSING)
    assert dict(short.missing_groups) == {2 * B: (1,)}
    cache.persist_checkpoint(prompt, 2 * B, 1)
    assert cache.lookup(prompt).matched_tokens == 2 * B


# ---- prompts known by their hashes ---------------------------------------------------------------


def test_a_prompt_known_by_its_hashes_is_looked_up_like_its_tokens():
    tokens = np.arange(2 * B + 9)
    cache = cached(tokens)
    by_hash = PromptHashes.from_hashes(PromptHashes(tokens).block_hashes, len(tokens))
    assert cache.lookup(by_hash) == cache.lookup(tokens)


def test_hashes_registered_ahead_serve_a_lookup_by_tokens():
    tokens = np.arange(2 * B + 9)
    cache = PrefixCache(B, 1)
    ticket = cache.register(
        PromptHashes.from_hashes(PromptHashes(tokens).block_hashes, len(tokens))
    )
    cache.mark_ready(ticket)
    cache.persist_checkpoint(ticket, B, 0)
    assert cache.lookup(tokens).matched_tokens == B


def test_a_prompt_hashed_in_other_blocks_is_refused():
    with pytest.raises(CacheError, match="hash_block_tokens"):
        PrefixCache(B, 1).lookup(PromptHashes(range(9), 4))


# ---- visibility ----------------------------------------------------------------------------------


def test_a_registered_block_is_invisible_until_it_is_ready():
    cache = PrefixCache(2, 1)
    ticket = cache.register(range(4))
    cache.persist_checkpoint(ticket, 2, 0)
    cache.persist_checkpoint(ticket, 4, 0)
    before = cache.lookup(range(5))
    assert (before.hit, before.mla_tokens, before.reason) == (False, 0, NOT_READY)
    assert before.registered_tokens == 4
    cache.mark_ready(ticket, 2)
    half = cache.lookup(range(5))
    assert (half.matched_tokens, half.mla_tokens, half.reason) == (2, 2, NOT_READY)
    cache.mark_ready(ticket)
    assert cache.lookup(range(5)).matched_tokens == 4


def test_a_chunk_that_ends_inside_a_block_publishes_only_whole_blocks():
    cache = PrefixCache(4, 1)
    ticket = cache.register(range(12))
    cache.mark_ready(ticket, 7)
    assert cache.lookup(range(12)).mla_tokens == 4


def test_registering_again_does_not_hide_a_ready_block():
    cache = cached(range(2 * B))
    again = cache.register(range(2 * B), ["x", "y"])
    hit = cache.lookup(range(2 * B + 1))
    assert hit.matched_tokens == 2 * B
    assert hit.block_payloads == (("block", B), ("block", 2 * B))
    assert cache.mark_ready(again).block_hashes == ()
    assert cache.lookup(range(2 * B + 1)) == hit


def test_of_two_prompts_in_flight_the_first_to_be_ready_stays():
    cache = PrefixCache(2, 1)
    slow = cache.register([1, 2], ["slow"])
    fast = cache.register([1, 2], ["fast"])
    assert len(cache.mark_ready(fast).block_hashes) == 1
    cache.persist_checkpoint(fast, 2, 0, "state")
    assert cache.mark_ready(slow).block_hashes == ()
    assert cache.lookup([1, 2, 3]).block_payloads == ("fast",)


def test_aborting_one_of_two_prompts_in_flight_leaves_the_other():
    cache = PrefixCache(2, 1)
    first = cache.register([1, 2, 3, 4], ["a0", "a1"])
    second = cache.register([1, 2, 9, 9], ["b0", "b1"])
    assert set(cache.abort(first)) == {"a0", "a1"}
    cache.mark_ready(second)
    cache.persist_checkpoint(second, 2, 0)
    assert cache.lookup([1, 2, 3, 4, 5]).block_payloads == ("b0",)
    cache.check()


def test_abort_leaves_no_trace():
    cache = cached(range(B))
    before = (cache.lookup(range(4 * B)), cache.num_blocks, cache.num_checkpoints)
    ticket = cache.register(range(3 * B), ["p", "q", "r"])
    cache.persist_checkpoint(ticket, 3 * B, 0, "state")
    assert set(cache.abort(ticket)) == {"q", "r", "state"}
    assert (cache.lookup(range(4 * B)), cache.num_blocks, cache.num_checkpoints) == before
    assert cache.num_pending_blocks == 0
    assert cache.abort(ticket) == ()
    with pytest.raises(CacheError, match="aborted"):
        cache.mark_ready(ticket)
    with pytest.raises(CacheError):
        cache.persist_checkpoint(ticket, 3 * B, 0)
    cache.check()


def test_b4_preempted_after_part_of_the_prompt_keeps_only_what_was_written():
    cache = PrefixCache(16, 1)
    ticket = cache.register(range(48))
    cache.mark_ready(ticket, 32)
    for boundary in (16, 32):
        cache.persist_checkpoint(ticket, boundary, 0)
    cache.abort(ticket)
    hit = cache.lookup(range(64))
    assert (hit.matched_tokens, hit.reason) == (32, None)


def test_b1_a_second_prompt_of_the_same_step_sees_nothing():
    cache = PrefixCache(1, 1)
    cache.register([1, 2, 3, 4])
    assert cache.lookup([1, 2, 3, 5]).matched_tokens == 0


def test_a_checkpoint_appears_with_its_own_registration_only():
    cache = PrefixCache(2, 1)
    writer = cache.register([1, 2])
    cache.persist_checkpoint(writer, 2, 0, "of the writer")
    other = cache.register([1, 2])
    cache.mark_ready(other)
    assert cache.lookup([1, 2, 3]).reason == NO_CHECKPOINT
    published = cache.mark_ready(writer)
    assert published.block_hashes == ()
    assert published.checkpoints == ((writer.block_hashes[0], 0),)
    assert cache.lookup([1, 2, 3]).checkpoint_payloads == ("of the writer",)


def test_a_published_checkpoint_is_not_replaced():
    cache = cached(range(B))
    assert cache.persist_checkpoint(range(B), B, 0, "newer") is False
    assert cache.lookup(range(B + 1)).checkpoint_payloads == (("state", B, 0),)


def test_lookup_changes_nothing():
    cache = cached(range(3 * B), groups=2, boundaries=[B])
    first = cache.lookup(range(5 * B))
    assert cache.lookup(range(5 * B)) == first
    assert cache.num_blocks == 3
    cache.check()


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", [0, -B, B - 1, B + 1, 3 * B, 4 * B])
def test_a_checkpoint_off_the_grid_or_beyond_the_blocks_is_refused(boundary):
    cache = cached(range(2 * B + 9), boundaries=[])
    with pytest.raises(CacheError, match="boundary"):
        cache.persist_checkpoint(range(2 * B + 9), boundary, 0)
    assert cache.num_checkpoints == 0


@pytest.mark.parametrize("group", [-1, 3, "0", None])
def test_an_unknown_group_is_refused(group):
    cache = cached(range(B), groups=3, boundaries=[])
    with pytest.raises(CacheError, match="group"):
        cache.persist_checkpoint(range(B), B, group)
    assert cache.num_checkpoints == 0


def test_a_checkpoint_of_unregistered_blocks_is_refused():
    cache = cached(range(B))
    with pytest.raises(CacheError, match="not registered"):
        cache.persist_checkpoint(range(2 * B), 2 * B, 0)
    with pytest.raises(CacheError, match="not registered"):
        cache.mark_ready(range(2 * B))
    assert cache.lookup(range(3 * B)).mla_tokens == B


@pytest.mark.parametrize(("block", "groups"), [(0, 1), (-1, 1), (512, -1), (1.5, 1), (True, 1)])
def test_impossible_sizes_are_refused(block, groups):
    with pytest.raises(ValueError):
        PrefixCache(block, groups)


def test_a_wrong_number_of_payloads_is_refused_before_anything_is_registered():
    cache = PrefixCache(2, 1)
    with pytest.raises(CacheError, match="block_payloads"):
        cache.register(range(4), ["only one"])
    assert cache.lookup(range(4)).registered_tokens == 0


# ---- the last-token rule and the published hit lengths -------------------------------------------


def test_h1_dense_checkpoints_reach_the_last_token_rule():
    cache = cached(range(4 * B + 7), groups=3)
    found = {n: cache.lookup(range(n)).matched_tokens for n in (2048, 2049, 2047, 512, 513)}
    assert found == {2048: 1536, 2049: 2048, 2047: 1536, 512: 0, 513: 512}


def test_an_exactly_cached_prompt_names_the_last_token_rule():
    hit = cached(range(2 * B)).lookup(range(2 * B))
    assert (hit.matched_tokens, hit.mla_tokens, hit.cap_tokens) == (B, 2 * B, B)
    assert hit.reason == LAST_TOKEN


def test_h2_each_missing_checkpoint_moves_the_boundary_one_block_back():
    cache = cached(range(4 * B + 7), groups=3)
    hashes = cache.hashes(range(4 * B))
    steps = []
    for boundary, group in ((2048, 1), (1536, 0), (1024, 2), (512, 2)):
        payload = cache.evict_checkpoint(hashes[boundary // B - 1], group)
        assert payload == ("state", boundary, group)
        hit = cache.lookup(range(4 * B + 7))
        steps.append((hit.matched_tokens, hit.junction_tokens, hit.reason))
    assert steps == [(at, 2048, GROUP_MISSING) for at in (1536, 1024, 512, 0)]


def test_h4_without_its_first_block_nothing_is_found():
    cache = cached(range(4 * B + 7), groups=3)
    assert cache.evict_block(cache.hashes(range(B))[0]) == ("block", B)
    hit = cache.lookup(range(4 * B + 7))
    assert (hit.matched_tokens, hit.mla_tokens) == (0, 0)
    assert cache.num_blocks == 3
    assert cache.num_checkpoints == 12


def test_h4_the_rest_is_found_again_when_the_first_block_is_back():
    cache = cached(range(4 * B + 7), groups=3)
    cache.evict_block(cache.hashes(range(B))[0])
    cache.mark_ready(cache.register(range(B)))
    assert cache.lookup(range(4 * B + 7)).matched_tokens == 4 * B


def test_h5_with_only_the_chunk_end_state_a_shorter_prompt_finds_nothing():
    cache = cached(range(2048 + 7), groups=3, boundaries=[2048])
    forked = [*range(1300), *range(9000, 9700)]
    found = [
        (hit.matched_tokens, hit.junction_tokens)
        for hit in map(cache.lookup, (range(2049), range(2048), forked))
    ]
    assert found == [(2048, 2048), (0, 1536), (0, 1024)]


def test_h15_a_sibling_is_found_after_its_producer_registers_again():
    cache = cached(range(32), block=16)
    cache.register(range(40))
    siblings = [[*range(32), 100 + number] for number in range(3)]
    assert [cache.lookup(one).matched_tokens for one in siblings] == [32, 32, 32]


def test_v35_one_changed_token_ends_the_match_at_its_block():
    cache = cached(range(4 * B))
    changed = list(range(4 * B + 1))
    changed[600] = -1
    assert cache.lookup(changed).matched_tokens == 512


def test_b26_a_prompt_shorter_than_a_block_finds_and_leaves_nothing():
    cache = cached(range(64), block=64)
    hit = cache.lookup(range(63))
    assert (hit.matched_tokens, hit.mla_tokens, hit.reason) == (0, 0, None)
    assert cache.register(range(63)).block_hashes == ()
    assert cache.num_pending_blocks == 0


def test_an_empty_prompt_misses():
    hit = cached(range(B)).lookup([])
    assert (hit.hit, hit.cap_tokens, hit.reason) == (False, 0, None)


@pytest.mark.parametrize(
    ("block", "num_tokens", "published"),
    [
        pytest.param(784, 55_009, 54_880, id="vllm-51250"),
        pytest.param(1600, 4_481, 3_200, id="vllm-53504-drop-off"),
        pytest.param(1568, 4_481, 3_136, id="vllm-53504-no-drafter"),
        pytest.param(2176, 8_034, 6_528, id="qwen38-174-8k"),
        pytest.param(2176, 15_997, 15_232, id="qwen38-174-16k"),
        pytest.param(2176, 29_932, 28_288, id="qwen38-174-30k"),
        pytest.param(2176, 49_838, 47_872, id="qwen38-174-50k"),
        pytest.param(1536, 3_072, 1_536, id="vllm-50235-resent"),
        pytest.param(1536, 3_073, 3_072, id="vllm-50235-one-more"),
    ],
)
def test_a_prompt_sent_again_hits_the_published_length(block, num_tokens, published):
    prompt = np.arange(num_tokens)
    dense = cached(prompt, groups=2, block=block)
    assert dense.lookup(prompt).matched_tokens == published
    sparse = cached(prompt, 2, retained_boundaries(num_tokens, block, 0), block)
    assert sparse.lookup(prompt).matched_tokens == published


def test_every_length_reaches_the_ceiling_of_dense_checkpoints():
    block = 8
    cache = cached(range(5 * block), groups=2, block=block)
    for num_tokens in range(1, 5 * block + 1):
        assert cache.lookup(range(num_tokens)).matched_tokens == (num_tokens - 1) // block * block


# ---- the account of lost tokens ------------------------------------------------------------------


def test_every_reason_of_a_loss_is_told_from_the_others():
    cache = cached(range(6 * B), groups=2, boundaries=[B, 3 * B])
    hashes = cache.hashes(range(6 * B))
    cache.evict_checkpoint(hashes[2], 1)
    cache.register(range(8 * B))
    hit = cache.lookup([*range(8 * B), *range(90_000, 90_100)])
    assert hit.reason == GROUP_MISSING
    assert hit.loss_account() == {
        "reused": B,
        GROUP_MISSING: 2 * B,
        NO_CHECKPOINT: 3 * B,
        LAST_TOKEN: 0,
        NOT_READY: 2 * B,
        DRAFTER_DROP: 0,
        EVICTED: 0,
        "new": 100,
    }
    assert cache.lookup(range(6 * B)).loss_account()[LAST_TOKEN] == B


# ---- retention -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval_blocks", "junctions", "blocks"),
    [
        (4, (), {3, 7, 11, 14, 15}),
        (0, (), {14}),
        (1, (), set(range(16))),
        (0, (96,), {5, 14}),
        (0, (100,), {5, 14}),
        (0, (-3, 0, 9_999), {14}),
    ],
)
def test_h20_retained_boundaries_of_256_tokens(interval_blocks, junctions, blocks):
    kept = retained_boundaries(256, 16, interval_blocks, junctions)
    assert kept == tuple(16 * (index + 1) for index in sorted(blocks))


def test_a_prompt_within_one_block_retains_nothing():
    assert retained_boundaries(512) == (512,)
    assert retained_boundaries(512, interval_blocks=0) == ()
    assert retained_boundaries(0) == ()


@pytest.mark.parametrize("bad", [{"num_tokens": -1}, {"interval_blocks": -1}])
def test_a_negative_retention_argument_is_refused(bad):
    with pytest.raises(CacheError, match=next(iter(bad))):
        retained_boundaries(**{"num_tokens": 5, **bad})


# ---- eviction ------------------------------------------------------------------------------------


def test_evicting_what_is_not_visible_is_refused():
    cache = PrefixCache(2, 1)
    ticket = cache.register([1, 2])
    for call in (cache.evict_block, lambda one: cache.evict_checkpoint(one, 0)):
        with pytest.raises(CacheError, match="visible"):
            call(ticket.block_hashes[0])
    with pytest.raises(CacheError, match="group"):
        cache.evict_checkpoint(ticket.block_hashes[0], 1)
    cache.mark_ready(ticket)
    cache.evict_block(ticket.block_hashes[0])
    with pytest.raises(CacheError, match="visible"):
        cache.evict_block(ticket.block_hashes[0])


def test_an_evicted_block_serves_the_next_payload():
    cache = cached([1, 2], block=2)
    cache.evict_block(cache.hashes([1, 2])[0])
    cache.mark_ready(cache.register([1, 2], ["new page"]))
    assert cache.lookup([1, 2, 3]).block_payloads == ("new page",)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 1), min_size=0, max_size=24), st.data())
def test_a_hit_is_the_longest_shared_prefix_with_all_groups(tokens, data):
    """Against a brute-force search over token prefixes, for one cached prompt."""
    block, groups = 3, 2
    cache = PrefixCache(block, groups)
    ticket = cache.register(tokens)
    cache.mark_ready(ticket)
    held = set()
    for boundary in range(block, len(tokens) + 1, block):
        for group in range(groups):
            if data.draw(st.booleans()):
                cache.persist_checkpoint(ticket, boundary, group)
                held.add((boundary, group))
    asked = data.draw(st.lists(st.integers(0, 1), max_size=24))
    best = max(
        at
        for at in range(len(asked) + 1)
        if at == 0
        or (
            at % block == 0
            and at < len(asked)
            and asked[:at] == tokens[:at]
            and all((at, group) in held for group in range(groups))
        )
    )
    assert cache.lookup(asked).matched_tokens == best
