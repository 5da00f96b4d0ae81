"""The block cache of a cluster: least recently used, leaf first, resumable only at checkpoints."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import CacheError
from k3core.fleet.cache import BLOCK_LEN, BlockCache, kept_depths, retention


class NaiveCache:
    """The same rules, written for reading: an OrderedDict and a scan."""

    def __init__(self, capacity, rule):
        self.capacity, self.rule = capacity, rule
        self.blocks, self.checkpoints = OrderedDict(), set()

    def match(self, path):
        depth = 0
        while depth < len(path) and path[depth] in self.blocks:
            depth += 1
        return depth

    def usable(self, path, matched, num_tokens):
        kept = self.blocks if self.rule == "dense" else self.checkpoints
        depths = range(min(matched, (num_tokens - 1) // BLOCK_LEN), 0, -1)
        return next((d * BLOCK_LEN for d in depths if path[d - 1] in kept), 0)

    def store(self, path, matched, num_tokens):
        for block in reversed(path):
            self.blocks.pop(block, None)
            self.blocks[block] = None
        while self.capacity is not None and len(self.blocks) > self.capacity:
            block, _ = self.blocks.popitem(last=False)
            self.checkpoints.discard(block)
        replay = (num_tokens - 1) // BLOCK_LEN
        depths = {"dense": [], "replay": [replay], "junction": [replay, min(matched, replay)]}
        for depth in depths[self.rule]:
            if depth and path[depth - 1] in self.blocks:
                self.checkpoints.add(path[depth - 1])


def serve(cache, path, num_tokens=None):
    num_tokens = BLOCK_LEN * len(path) if num_tokens is None else num_tokens
    matched = cache.match(path)
    usable = cache.usable(path, matched, num_tokens)
    cache.store(path, matched, num_tokens)
    return matched, usable


def tree_path(choices):
    """Ids of a path in a tree: an id names its whole prefix."""
    ids, node = [], 0
    for choice in choices:
        node = node * 3 + choice + 1
        ids.append(node)
    return ids


PATHS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tree_path),
        st.integers(1, BLOCK_LEN),
    ),
    max_size=60,
)


@given(
    PATHS,
    st.one_of(st.none(), st.integers(0, 30)),
    st.sampled_from(["dense", "replay", "junction"]),
)
def test_equals_a_naive_cache_for_any_requests(requests, capacity, rule):
    cache, naive = BlockCache(capacity, rule), NaiveCache(capacity, rule)
    for path, tail in requests:
        num_tokens = BLOCK_LEN * (len(path) - 1) + tail
        assert serve(cache, path, num_tokens) == serve(naive, path, num_tokens)
        assert len(cache) == len(naive.blocks)
        if capacity is not None:
            assert cache.eviction_order() == list(naive.blocks)
            assert len(cache) <= capacity
        if rule != "dense":
            assert cache.num_checkpoints == len(naive.checkpoints)


@given(PATHS)
def test_a_cached_block_has_its_parent_cached(requests):
    cache = BlockCache(7)
    for path, tail in requests:
        serve(cache, path, BLOCK_LEN * (len(path) - 1) + tail)
        for block in cache.eviction_order():
            assert block <= 3 or (block - 1) // 3 in cache


def test_a_long_history_is_compacted_and_stays_exact(monkeypatch):
    monkeypatch.setattr("k3core.fleet.cache._COMPACT_MIN", 20)
    cache, naive = BlockCache(12), NaiveCache(12, "junction")
    for step in range(400):
        path = tree_path([step % 2, step % 3, step % 2])
        assert serve(cache, path) == serve(naive, path)
        assert cache.eviction_order() == list(naive.blocks)
        assert cache._num_logged <= max(20, 4 * 12) + 3


def test_the_system_prompt_outlives_its_followers():
    cache = BlockCache(4)
    for session in range(50):
        serve(cache, [0, 100 + 2 * session, 101 + 2 * session])
    assert 0 in cache


def test_a_prompt_longer_than_the_cache_keeps_its_root_end():
    cache = BlockCache(2)
    serve(cache, [1, 2, 3, 4])
    assert cache.eviction_order() == [2, 1]


def test_a_peek_does_not_touch():
    cache = BlockCache(2)
    serve(cache, [1])
    serve(cache, [2])
    cache.match([1])
    cache.usable([1], 1, 600)
    serve(cache, [3])
    assert 1 not in cache


def test_the_last_token_is_always_computed():
    cache = BlockCache(None, "dense")
    serve(cache, [1, 2])
    assert serve(cache, [1, 2], 1024) == (2, 512)
    assert cache.usable([1, 2, 3], 2, 1025) == 1024
    assert cache.usable([1], 1, 1) == 0


def test_a_turn_resumes_where_the_turn_before_it_ended():
    cache = BlockCache(None, "replay")
    serve(cache, [1, 2, 30], 1500)
    assert serve(cache, [1, 2, 31, 32], 2000) == (2, 1024)


def test_a_shared_prefix_is_reusable_only_from_the_third_sighting():
    """MLA blocks match at once; the state at the junction exists after someone computed it."""
    cache = BlockCache(None, "junction")
    assert serve(cache, [0, 1, 2], 1500) == (0, 0)
    assert serve(cache, [0, 5, 6], 1500) == (1, 0)
    assert serve(cache, [0, 8, 9], 1500) == (1, 512)


def test_without_a_junction_checkpoint_a_shared_prefix_never_is():
    cache = BlockCache(None, "replay")
    for first in (1, 5, 8, 11):
        assert serve(cache, [0, first, first + 1], 1500)[1] == 0


def test_a_checkpoint_leaves_with_its_block():
    cache = BlockCache(3, "replay")
    serve(cache, [1, 2, 3], 1500)
    assert cache.num_checkpoints == 1  # after block 2
    serve(cache, [7, 8], 600)
    assert 2 not in cache
    assert cache.num_checkpoints == 1  # after block 7; the one after block 2 left
    assert cache.usable([1, 2], 1, 2000) == 0


def test_no_capacity_caches_nothing():
    cache = BlockCache(0)
    serve(cache, [1, 2])
    assert serve(cache, [1, 2]) == (0, 0)
    assert len(cache) == 0


def test_clear_forgets_everything():
    cache = BlockCache(5)
    serve(cache, [1, 2, 3])
    cache.clear()
    assert (len(cache), cache.num_checkpoints, cache.match([1])) == (0, 0, 0)


@pytest.mark.parametrize("kwargs", [{"capacity_blocks": -1}, {"rule": "sometimes"}])
def test_bad_settings_raise(kwargs):
    with pytest.raises(CacheError, match=r"-1|sometimes"):
        BlockCache(**kwargs)


@given(
    st.sampled_from(["dense", "replay", "junction", "none", "every-3", "junction+cap1"]),
    st.integers(1, 20 * BLOCK_LEN),
    st.integers(0, 20),
)
def test_checkpoints_stand_where_the_policy_of_the_engine_puts_them(code, num_tokens, matched):
    policy = retention(code)
    junction = min(matched, (num_tokens - 1) // BLOCK_LEN) * BLOCK_LEN
    stops = policy.stop_boundaries(num_tokens, BLOCK_LEN, junction)
    assert [d * BLOCK_LEN for d in kept_depths(policy, num_tokens, matched)] == list(stops)
