"""The cache manager: admission, copy on write, forks, checkpoints in flight, two kinds of page."""

import random

import pytest

from k3core.errors import CacheError
from k3core.paged_cache import PageKind, PagePool
from k3core.prefix_cache import Retention
from k3core.prefix_cache.manager import HybridCacheManager
from k3core.prefix_cache.window import HitWindow
from tests.kda_pages import VOCABULARY, Server
from tests.peer_cases.common import hit, make, run, serve

MLA, KDA = PageKind.MLA_KV, PageKind.KDA_STATE


def words(length, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def test_a_fork_shares_rows_and_copies_states():
    server = Server(units=2)
    tokens = words(13)
    server.run("a", tokens)
    manager = server.manager
    manager.fork("a", "b")
    server.prompts["b"] = list(tokens)
    assert manager.pages("a") == manager.pages("b")
    assert not set(manager.state_pages("a")) & set(manager.state_pages("b"))
    for name, word in (("a", 1), ("b", 2)):
        manager.extend(name, [word, 3, 4])
        server.prompts[name] += [word, 3, 4]
        server.compute(name, 16)
    assert manager.pages("a")[0] == manager.pages("b")[0]
    assert manager.pages("a")[1] != manager.pages("b")[1]
    assert server.states("a") == server.layers.clean([*tokens, 1, 3, 4])
    assert server.states("b") == server.layers.clean([*tokens, 2, 3, 4])
    server.check()


def test_the_last_writer_of_a_shared_page_needs_no_copy():
    manager = make(20, 8, groups=1)
    run(manager, "a", range(3))
    manager.fork("a", "b")
    assert len(manager.grow("a", 4).copies) == 1
    assert manager.grow("b", 4).copies == ()


def test_a_turn_end_stays_although_the_rule_did_not_ask_for_it():
    """Intermediate states of a request replace each other; the last one is where the next turn
    of the conversation begins."""
    manager = make(60, 16, groups=2, retention=Retention("replay"))
    manager.admit("a", range(40))
    manager.computed("a", 16)
    manager.computed("a", 32)
    manager.computed("a", 40)
    for at in range(40, 70):
        manager.extend("a", [at])
        manager.grow("a", at + 1)
        manager.computed("a", at + 1)
        manager.check()
    manager.release("a")
    kept = [n for n in (16, 32, 48, 64) if hit(manager, range(n + 1)) == n]
    assert kept == [32, 64]
    assert manager.num_recycled_checkpoints == 2


def test_a_checkpoint_without_pages_is_skipped_and_counted():
    manager = make(6, 16, groups=2)
    run(manager, "a", range(60), [16, 16, 28])
    assert manager.num_skipped_checkpoints == 2
    assert manager.cache.num_checkpoints == 0
    manager.check()


def test_a_cap_per_path_gives_up_shallow_states_and_keeps_forks():
    manager = make(90, 16, groups=1, retention=Retention("dense", max_per_path=3))
    serve(manager, "a", range(100), [16] * 6 + [4])
    kept = [n for n in range(16, 97, 16) if hit(manager, range(n + 1)) == n]
    assert kept == [64, 80, 96]
    serve(manager, "b", [*range(64), *range(500, 560)], [16] * 3 + [12])
    assert hit(manager, range(65)) == 64


def test_a_preempted_request_resumes_from_its_own_pages():
    server = Server()
    tokens = words(30)
    server.admit("a", tokens)
    server.compute("a", 8)
    server.compute("a", 16)
    prompt = server.manager.release("a")
    assert server.manager.pool.num_owned == 0
    again = server.manager.admit("a", prompt)
    assert again.reused_tokens == 16
    assert server.states("a") == server.layers.clean(tokens[:16])


@pytest.mark.parametrize("first", [MLA, KDA])
def test_neither_kind_starves_while_the_other_is_only_cached(first):
    manager = make(12, 16, groups=2)
    for number in range(6):
        serve(manager, number, range(100 * number, 100 * number + 33), [16, 16, 1])
    assert manager.pool.stats().num_cached > 8
    taken = manager.pool.alloc(first, 12)
    assert len(taken) == 12
    assert manager.cache.num_blocks == manager.cache.num_checkpoints == 0
    manager.pool.free(taken)
    manager.check()


def test_evicting_a_block_orphans_or_cascades():
    for cascade, orphans in ((False, (2, 6)), (True, (0, 0))):
        manager = make(30, 16, groups=2, cascade=cascade)
        serve(manager, "a", range(50), [16, 16, 16, 2])
        first = manager.prompt(range(50)).block_hashes[0]
        manager.residency.drop_block(first)
        cache = manager.cache
        assert (cache.num_orphan_blocks, cache.num_orphan_checkpoints) == orphans
        assert hit(manager, range(50)) == 0
        manager.check()
        serve(manager, "back", range(17), [16, 1])
        assert hit(manager, range(50)) == (16 if cascade else 48)
        manager.check()


def test_a_page_of_one_group_takes_the_states_of_all_along():
    manager = make(8, 16, groups=3)
    serve(manager, "a", range(17), [16, 1])
    state = manager.lookup(range(17)).checkpoint_payloads[0]
    while state.pages[0] in manager.pool.free_order():
        manager.pool.alloc(MLA)
    assert manager.cache.num_checkpoints == 0
    assert manager.pool.stats().cached[KDA] == 0
    found = manager.lookup(range(17))
    if found.mla_tokens:
        assert found.reason == "evicted"


def test_the_window_tells_no_data_from_no_hit():
    window = HitWindow(2)
    assert window.hit_rate is None
    window.record(100, {"device": 0})
    assert window.hit_rate == 0.0
    window.record(100, {"device": 30, "host": 20})
    assert (window.hit_rate, window.by_source) == (0.25, {"device": 30, "host": 20})
    window.record(100, {"device": 100})
    assert (window.num_requests, window.hit_rate) == (2, 0.75)
    with pytest.raises(ValueError, match="exceed"):
        window.record(10, {"device": 11})
    window.clear()
    assert window.hit_rate is None


def test_a_refused_admission_changes_nothing():
    manager = make(6, 16, groups=2)
    serve(manager, "a", range(17), [16, 1])
    before = manager.pool.stats(), manager.pool.free_order(), manager.window.num_requests
    assert manager.admit("b", range(200)) is None
    assert (manager.pool.stats(), manager.pool.free_order(), manager.window.num_requests) == before
    assert manager.running == ()
    manager.check()


def test_growth_that_does_not_fit_changes_nothing():
    manager = make(4, 16, groups=1)
    run(manager, "a", range(20))
    before = manager.pages("a"), manager.pool.free_order()
    assert manager.grow("a", 200) is None
    assert (manager.pages("a"), manager.pool.free_order()) == before


def test_names_and_positions_are_checked():
    manager = make(20, 16)
    run(manager, "a", range(20))
    for call in (
        lambda: manager.admit("a", range(5)),
        lambda: manager.release("b"),
        lambda: manager.computed("a", 19),
        lambda: manager.computed("a", 33),
        lambda: manager.fork("a", "a"),
        lambda: manager.admit("c", range(5), 0),
    ):
        with pytest.raises(CacheError):
            call()
    manager.check()
    with pytest.raises(ValueError, match="another owner"):
        HybridCacheManager(manager.pool)


def test_states_of_several_pages_are_one_checkpoint():
    manager = HybridCacheManager(
        PagePool(40, 64, poison=True),
        hash_block_tokens=16,
        num_kda_groups=2,
        pages_per_state=3,
        retention=Retention("dense"),
    )
    serve(manager, "a", range(33), [16, 16, 1])
    found = manager.lookup(range(33))
    assert [len(state.pages) for state in found.checkpoint_payloads] == [3, 3]
    admission = run(manager, "b", range(33))
    assert (len(admission.state_pages), len(admission.copies)) == (6, 6)
