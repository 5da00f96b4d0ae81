"""H1-H23: one MLA group and several KDA groups, as vLLM 0.33 answers (its KVCacheManager).

H2 by single groups, H4 and H20 also stand in tests/test_prefix_cache.py.
"""

import random

import pytest

from k3core.prefix_cache import (
    NOT_READY,
    HitGranularity,
    PromptHashes,
    Retention,
    chunk_ends,
    fragmented_chunk_ends,
    retained_boundaries,
)
from tests.peer_cases.common import DENSE, hit, make, run, serve

PROMPT = range(4 * 512 + 7)
EVERY = [512, 512, 512, 512, 7]


def filled(chunks=EVERY, retention=DENSE):
    manager = make(60, groups=3, retention=retention)
    serve(manager, "first", PROMPT, chunks)
    return manager


def test_h1_dense_checkpoints_and_the_blocks_of_a_hit():
    manager = filled()
    hits = [hit(manager, range(n)) for n in (2048, 2049, 2047, 512, 513)]
    assert hits == [1536, 2048, 1536, 0, 512]
    found = manager.lookup(range(2049))
    assert len(found.block_payloads) == 4
    assert [state.group for state in found.checkpoint_payloads] == [0, 1, 2]
    pages = [unit.page for unit in found.block_payloads]
    pages += [page for state in found.checkpoint_payloads for page in state.pages]
    assert len(set(pages)) == 7


def test_h2_losing_checkpoints_moves_the_boundary_back_block_by_block():
    """Groups lose their states one at a time in vLLM; here siblings go together."""
    manager = filled()
    chain = PromptHashes(PROMPT).block_hashes
    hits = []
    for depth in (4, 3, 2, 1):
        manager.residency.drop_boundary(chain[depth - 1])
        found = manager.lookup(range(2049))
        hits.append(found.matched_tokens)
        assert found.junction_tokens == 2048
        assert manager.cache.checkpoint_groups(chain[depth - 1]) == ()
        manager.check()
    assert hits == [1536, 1024, 512, 0]


def test_h4_without_the_first_block_nothing_is_found():
    manager = filled()
    manager.residency.drop_block(PromptHashes(PROMPT).block_hashes[0])
    found = manager.lookup(range(2049))
    assert (found.matched_tokens, found.mla_tokens) == (0, 0)
    assert found.loss_account()["evicted"] == 2048
    assert manager.cache.num_orphan_blocks == 3
    assert manager.cache.num_orphan_checkpoints == 12


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (range(2049), (2048, 2048)),
        (range(2048), (0, 1536)),
        ([*range(1300), *range(9000, 9800)], (0, 1024)),
    ],
)
def test_h5_only_the_chunk_end_state_exists(prompt, expected):
    manager = filled([2048, 7], Retention("chunk_end"))
    found = manager.lookup(prompt)
    assert (found.matched_tokens, found.junction_tokens) == expected


def test_h8_the_second_sighting_makes_a_shared_prefix_reusable():
    manager = make(40, groups=2, retention=Retention("junction"))
    shared = list(range(1024))

    def prompt(own):
        return [*shared, *range(own, own + 1024)]

    def served(name, own):
        at = run_through(manager, name, prompt(own))
        return at

    a = served("a", 10_000)
    b = served("b", 20_000)
    c = served("c", 30_000)
    assert (a.reused_tokens, b.reused_tokens, c.reused_tokens) == (0, 0, 1024)
    assert b.hit.junction_tokens == 1024


def run_through(manager, name, prompt, budget=8192):
    """Prefill in the chunks that the manager asks for."""
    admission = manager.admit(name, prompt)
    while manager.num_computed(name) < len(prompt):
        manager.computed(name, manager.next_chunk_end(name, budget))
        manager.check()
    manager.release(name)
    return admission


def test_h9_a_second_request_of_the_same_step_waits_or_computes_for_itself():
    """vLLM shows it the hit and refuses the pages for one step; here the hit shows when the bytes
    are there, and the account says who is about to write them."""
    manager = make(60, groups=3)
    manager.admit("a", range(2100))
    early = manager.lookup(range(2100))
    assert (early.matched_tokens, early.reason) == (0, NOT_READY)
    assert early.loss_account()[NOT_READY] == 2048
    manager.computed("a", 2048)
    assert run(manager, "b", range(2100)).reused_tokens == 2048


@pytest.mark.parametrize("groups", range(5))
@pytest.mark.parametrize("units", [1, 2, 3])
def test_h14_every_mix_of_groups_hits_the_common_prefix(groups, units):
    """vLLM mixes full attention, windows and Mamba; here: MLA with any number of KDA groups, and
    pages of one to three hash blocks."""
    manager = make(40, 16, groups, physical_block_tokens=16 * units)
    common = list(range(48))
    serve(manager, "a", [*common, *range(100, 107)], [48, 7])
    second = serve(manager, "b", [*common, *range(200, 207)])
    assert second.reused_tokens == 48


def test_h15_siblings_come_in_when_the_producer_is_done():
    manager = make(40, 16, groups=2)
    run(manager, "producer", range(40), [32, 8])
    for name in ("one", "two", "three"):
        assert run(manager, name, [*range(32), *range(500, 508)]).reused_tokens == 32
    manager.release("producer")
    manager.check()


def test_h16_chunks_end_on_blocks_then_on_the_hash_block_then_with_the_prompt():
    granularity = HitGranularity(512, 32, max_batched_tokens=8192)
    assert granularity.chunk_ends(10_000, Retention("replay")) == (8192, 9728, 9984, 10_000)
    assert chunk_ends(12_000, 512, 512, (), 9984)[:2] == (9984 + 256, 9984 + 256 + 512)


def test_h17_sub_block_steps_only_where_a_block_can_never_fit():
    ends = chunk_ends(30_000, 8192, 11_392)
    sizes = [b - a for a, b in zip((0, *ends), ends, strict=False)]
    assert sizes == [8192, 3200, 8192, 3200, 7216]


@pytest.mark.parametrize(
    ("block", "num_tokens", "budgets"),
    [
        (1600, 2002, [364, 2002]),
        (1600, 3602, [1600, 1000, 3602]),
        (1536, 30_000, [27_648, 1024, 30_000]),
        (12_288, 41_000, [24_576, 8000, 41_000]),
    ],
)
def test_h19_a_fragmented_budget_never_leaves_a_state_inside_a_block(block, num_tokens, budgets):
    ends = fragmented_chunk_ends(num_tokens, budgets, block)
    assert ends[-1] == num_tokens
    assert [end for end in ends[:-1] if end % block] == []
    manager = make(80, block, groups=2)
    held = {}  # state page -> tokens in the state, as vLLM's regression test keeps it
    manager.admit("a", range(num_tokens))
    for end in ends:
        for page in manager.state_pages("a"):
            held[page] = end
        manager.computed("a", end)
        chain = PromptHashes(range(num_tokens), block).block_hashes
        for index, one in enumerate(chain):
            assert bool(manager.cache.checkpoint_groups(one)) == (
                (index + 1) * block in ends and (index + 1) * block <= end
            )


def test_h20_the_mask_is_that_of_the_stop_boundaries_too():
    by_rule = {
        Retention("interval", 64): retained_boundaries(256, 16, 4),
        Retention("replay"): retained_boundaries(256, 16, 0),
        DENSE: retained_boundaries(256, 16, 1),
    }
    for retention, expected in by_rule.items():
        assert retention.stop_boundaries(256, 16) == expected
    assert Retention().stop_boundaries(256, 16, 100) == retained_boundaries(256, 16, 0, (100,))


def test_h21_a_superseded_checkpoint_is_given_back_once():
    manager = make(20, 4, groups=1, retention=Retention("replay"))
    manager.admit("a", range(21))
    for end in (4, 8, 12):
        manager.computed("a", end)
    assert manager.num_recycled_checkpoints == 2
    before = manager.pool.stats()
    manager.computed("a", 12)
    assert manager.pool.stats() == before
    assert manager.cache.num_checkpoints == 1
    assert hit(manager, range(13)) == 12
    manager.check()


@pytest.mark.parametrize("drop", [0, 1])
def test_h23_a_conversation_reuses_at_least_its_last_turn(drop):
    block, rng = 16, random.Random(0)
    manager = make(200, block, groups=2, retention=Retention("junction"), dropped_blocks=drop)
    history, computed, total = [], 0, 0
    for turn in range(8):
        prompt = history + [rng.randrange(10_000) for _ in range(rng.randrange(1, 60))]
        admission = manager.admit(turn, prompt)
        cached = admission.reused_tokens
        assert 0 <= cached < len(prompt)
        assert cached >= computed // block * block - (1 + drop) * block
        while manager.num_computed(turn) < len(prompt):
            manager.computed(turn, manager.next_chunk_end(turn, 64))
        total += cached
        computed, history = len(prompt), prompt
        manager.release(turn)
        manager.check()
    assert manager.window.hit_tokens == total > 0
