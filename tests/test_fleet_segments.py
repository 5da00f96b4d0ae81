"""Segments of a prefix tree: the same cache, block for block, at a fraction of the steps."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from k3core.errors import CacheError
from k3core.fleet.cache import BLOCK_LEN, BlockCache
from k3core.fleet.segments import SegmentCache, Segments


def segments_of(paths):
    offsets = np.cumsum([0, *map(len, paths)])
    return Segments.of(np.concatenate([np.array(path) for path in paths]), offsets)


def in_blocks(segments, paths):
    """Rebuild every path from its segments, given the blocks of each segment."""
    blocks = {}
    for request, path in enumerate(paths):
        position = 0
        for segment in segments.path(request):
            size = segments.num_blocks[segment]
            run = tuple(path[position : position + size])
            assert blocks.setdefault(segment, run) == run
            position += size
        assert position == len(path)
    return blocks


def tree_path(choices, spread=1):
    ids, node = [], 0
    for choice in choices:
        node = node * 3 + choice + 1
        ids.append(node * spread)
    return ids


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=7), st.integers(1, BLOCK_LEN)),
    min_size=1,
    max_size=50,
)


@given(
    REQUESTS,
    st.one_of(st.none(), st.integers(0, 25)),
    st.sampled_from(["dense", "replay", "junction"]),
    st.sampled_from([1, 10**12]),
)
@example([([0, 0], 1), ([0, 1], 1), ([0], 5), ([0, 0, 0, 0], 1)] * 3, 3, "junction", 1)
def test_hits_and_evictions_are_those_of_the_block_cache(requests, capacity, rule, spread):
    paths = [tree_path(choices, spread) for choices, _ in requests]
    segments = segments_of(paths)
    blocks, runs = BlockCache(capacity, rule), SegmentCache(segments, capacity, rule)
    for request, (path, (_, tail)) in enumerate(zip(paths, requests, strict=True)):
        num_tokens = BLOCK_LEN * (len(path) - 1) + tail
        run = segments.path(request)
        matched = runs.match(run)
        assert matched == blocks.match(path)
        assert runs.usable(run, matched, num_tokens) == blocks.usable(path, matched, num_tokens)
        runs.store(run, matched, num_tokens)
        blocks.store(path, matched, num_tokens)
        assert len(runs) == len(blocks)
        assert runs.num_checkpoints == blocks.num_checkpoints
        for other, other_path in enumerate(paths):
            assert runs.match(segments.path(other)) == blocks.match(other_path)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True), min_size=1))
def test_ids_that_are_no_tree_still_cache_as_blocks(paths):
    segments = segments_of(paths)
    in_blocks(segments, paths)
    blocks, runs = BlockCache(4), SegmentCache(segments, 4)
    for request, path in enumerate(paths):
        run, num_tokens = segments.path(request), BLOCK_LEN * len(path)
        matched = runs.match(run)
        assert matched == blocks.match(path)
        assert runs.usable(run, matched, num_tokens) == blocks.usable(path, matched, num_tokens)
        runs.store(run, matched, num_tokens)
        blocks.store(path, matched, num_tokens)
        assert len(runs) == len(blocks)


@given(REQUESTS, st.sampled_from([1, 7, 10**12]))
def test_segments_rebuild_every_path(requests, spread):
    paths = [tree_path(choices, spread) for choices, _ in requests]
    in_blocks(segments_of(paths), paths)


def test_a_path_is_cut_at_branchings_and_ends_only():
    segments = segments_of([[0, 1, 2, 3], [0, 1, 5, 6, 7], [0, 1, 5, 6]])
    assert [segments.path(i) for i in range(3)] == [[0, 1], [0, 2, 3], [0, 2]]
    assert segments.num_blocks == [2, 2, 2, 1]


def test_a_long_history_is_compacted_and_stays_exact(monkeypatch):
    monkeypatch.setattr("k3core.fleet.segments._COMPACT_MIN", 20)
    paths = [tree_path([step % 2, step % 3, step % 2]) for step in range(400)]
    segments = segments_of(paths)
    blocks, runs = BlockCache(12), SegmentCache(segments, 12)
    for request, path in enumerate(paths):
        matched = runs.match(segments.path(request))
        assert matched == blocks.match(path)
        runs.store(segments.path(request), matched, 1536)
        blocks.store(path, matched, 1536)
        assert runs._num_logged <= 60
        assert runs._num_logged == sum(len(entry) for _, entry in runs._log)


def test_clear_forgets_everything():
    segments = segments_of([[1, 2], [1, 3]])
    cache = SegmentCache(segments, 10)
    cache.store(segments.path(0), 0, 1024)
    cache.clear()
    assert (len(cache), cache.num_checkpoints, cache.match(segments.path(0))) == (0, 0, 0)


def test_no_requests_have_no_segments():
    empty = Segments.of(np.array([], np.int64), np.array([0]))
    assert empty.num_blocks == []


def test_bad_settings_raise():
    with pytest.raises(CacheError, match="capacity_blocks=-1"):
        SegmentCache(segments_of([[1]]), -1)
