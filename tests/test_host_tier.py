"""The second tier: one budget, both halves together or not at all."""

import random

import pytest

from k3core.errors import CacheError
from k3core.paged_cache import PagePool
from k3core.prefix_cache import Retention
from k3core.prefix_cache.host_tier import HostTier
from k3core.prefix_cache.manager import HybridCacheManager
from tests.kda_pages import ROW_BYTES, STATE_BYTES, VOCABULARY, Server

NONE = (lambda index: None, lambda group: None)


def path(*names):
    return [repr(names[: end + 1]).encode() for end in range(len(names))]


def test_boundaries_share_their_blocks_and_count_both_halves():
    tier = HostTier(1000, block_bytes=10, state_bytes=25, num_kda_groups=2)
    assert tier.store(path("a", "b"), *NONE)
    assert tier.used_bytes == 2 * 10 + 50
    assert tier.store(path("a", "b", "c"), *NONE)
    assert tier.used_bytes == 3 * 10 + 100
    assert tier.deepest(path("a", "b", "c", "d"), 4) == 3
    assert tier.deepest(path("a", "b", "c", "d"), 2) == 2
    assert tier.deepest(path("x", "b"), 2) == 0
    tier.check()


def test_the_least_recently_used_boundary_makes_room_with_both_halves():
    tier = HostTier(130, block_bytes=10, state_bytes=25, num_kda_groups=2)
    tier.store(path("a"), *NONE)
    tier.store(path("b"), *NONE)
    tier.load(path("a")[0])
    tier.store(path("c"), *NONE)
    kept = [name for name in "abc" if tier.deepest(path(name), 1)]
    assert kept == ["a", "c"]
    assert (tier.num_blocks, tier.num_boundaries) == (2, 2)
    tier.check()


def test_an_entry_larger_than_the_budget_is_refused_and_evicts_nothing():
    tier = HostTier(100, block_bytes=10, state_bytes=25, num_kda_groups=2)
    tier.store(path("a"), *NONE)
    assert not tier.store(path(*"bcdefg"), *NONE)
    assert (tier.num_refused, tier.num_boundaries) == (1, 1)
    with pytest.raises(CacheError, match="no boundary"):
        tier.load(path("b")[0])


def test_a_tier_without_budget_holds_nothing():
    tier = HostTier(0, block_bytes=10, state_bytes=25, num_kda_groups=2)
    assert not tier.store(path("a"), *NONE)
    assert tier.used_bytes == 0


@pytest.mark.parametrize("units", [1, 2])
def test_restored_states_and_rows_are_those_of_a_clean_run(units):
    """Random conversations in a pool that evicts all the time, with a tier that keeps more."""
    host = HostTier(
        60 * STATE_BYTES, 4 * ROW_BYTES, max(STATE_BYTES, 4 * units * ROW_BYTES), num_kda_groups=3
    )
    server = Server(num_pages=30, block=4, units=units, rule="junction", host=host)
    rng = random.Random(units)
    histories = [[rng.randrange(VOCABULARY) for _ in range(9)] for _ in range(6)]
    for step in range(60):
        which = rng.randrange(6)
        histories[which] += [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 4))]
        if len(histories[which]) > 26:
            histories[which] = histories[which][:5]
        server.serve(step, histories[which], budget=7)
        host.check()
    assert server.manager.window.by_source.get("host", 0) > 0
    assert server.manager.residency.num_evicted_blocks > 0
    assert server.num_checked > 100


def test_a_prefix_that_does_not_fit_is_not_restored_by_half():
    host = HostTier(10_000, block_bytes=64, state_bytes=64, num_kda_groups=2)
    manager = HybridCacheManager(
        PagePool(8, 64),
        hash_block_tokens=4,
        num_kda_groups=2,
        retention=Retention("dense"),
        host=host,
    )
    manager.admit("a", range(9))
    for end in (4, 8, 9):
        manager.computed("a", end)
    manager.release("a")
    manager.admit("flood", range(100, 116))
    before = manager.pool.free_order()
    assert manager.admit("b", range(9)) is None
    assert manager.pool.free_order() == before
    assert (manager.cache.num_blocks, manager.cache.num_checkpoints) == (2, 0)
    manager.check()


def test_without_bytes_only_sizes_are_kept():
    host = HostTier(10_000, block_bytes=64, state_bytes=64, num_kda_groups=1)
    manager = HybridCacheManager(
        PagePool(5, 64), hash_block_tokens=4, retention=Retention("dense"), host=host
    )
    manager.admit("a", range(9))
    for end in (4, 8):
        manager.computed("a", end)
    manager.release("a")
    manager.admit("flood", range(100, 116))
    manager.release("flood")
    assert manager.admit("a", range(9)).source == "host"
    assert host.used_bytes == 2 * 64 + 2 * 64
    assert not manager.pool.has_bytes
