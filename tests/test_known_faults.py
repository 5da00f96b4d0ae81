"""One test per fault that others met: B ids, each with the small input that would show it here.

B1-B5 published before written; B8-B18 wrong checkpoint position; B21-B28 lookups that lose hits;
B29-B47 ownership; B12, B13 a page changes kind; B48, B49 speculation; B51, B52 tenants and weights.
"""

import random

import numpy as np
import pytest
import torch

from k3core.decode import verify_and_replay
from k3core.engine import Engine
from k3core.errors import CacheError, PageError, PoolExhausted
from k3core.kda import kda_recurrent
from k3core.model import HybridModel, ModelConfig
from k3core.paged_cache import PagedCache, PageKind, PagePool
from k3core.prefix_cache import (
    HitGranularity,
    PrefixCache,
    PromptHashes,
    Retention,
    common_block,
    root_parent,
)
from k3core.prefix_cache.host_tier import HostTier
from tests.helpers import make_projection, make_state
from tests.kda_pages import VOCABULARY, Server
from tests.peer_cases.common import DENSE, hit, make, run, serve

MLA, KDA = PageKind.MLA_KV, PageKind.KDA_STATE
MODEL = HybridModel(
    ModelConfig(
        num_layers=4, hidden_size=32, num_heads=2, dk=8, dv=12, gate_rank=8, kv_latent=12,
        rope_width=4, nope_width=8, value_width=8, mlp_size=32, vocab_size=97,
    )
)  # fmt: skip


def words(length, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


# published before written


def test_b1_a_state_of_the_same_step_is_not_offered():
    manager = make(20, 1, groups=2)
    manager.admit("a", [1, 2, 3, 4])
    assert manager.admit("c", [1, 2, 3, 5]).reused_tokens == 0


def test_b2_nor_are_rows_of_the_same_step():
    manager = make(20, 1, groups=0)
    manager.admit("a", [1, 2, 3, 4])
    assert manager.lookup([1, 2, 3, 5]).mla_tokens == 0
    assert manager.admit("c", [1, 2, 3, 5]).reused_tokens == 0


def test_b4_a_request_preempted_before_it_ran_leaves_only_what_ran():
    manager = make(14, 16, groups=1)
    run_part = manager.admit("a", range(60))
    assert run_part is not None
    manager.computed("a", 16)
    manager.computed("a", 32)
    manager.grow("a", 48)
    manager.release("a")
    assert hit(manager, range(60)) == 32
    manager.check()


def test_b5_two_prompts_of_one_prefill_batch_are_no_hits_of_each_other():
    manager = make(20, 4, groups=1)
    common = list(range(8))
    admissions = [manager.admit(name, [*common, name]) for name in (100, 101)]
    assert [one.reused_tokens for one in admissions] == [0, 0]
    for name in (100, 101):
        manager.computed(name, 8)
        manager.computed(name, 9)
        manager.check()
    assert manager.cache.num_blocks == 2


# wrong checkpoint position


def test_b8_a_chunk_that_ends_inside_a_block_leaves_no_state_of_its_boundary():
    server = Server(block=8)
    tokens = words(12)
    server.admit("a", tokens)
    server.compute("a", 7)
    server.compute("a", 12)
    assert server.manager.cache.num_checkpoints == 0
    server.manager.release("a")
    server.serve("b", tokens)
    assert hit(server.manager, tokens) == 8
    assert server.num_checked > 0


def test_b9_a_state_is_found_by_its_own_block_not_by_the_row_blocks():
    """Rows in hash blocks of 16, pages and states every 64: a resume at 640 takes state 10 of the
    blocks of 64 and 40 units of rows."""
    manager = make(60, 16, physical_block_tokens=64, retention=Retention("interval", 64))
    prompt = range(700)
    manager.admit("a", prompt)
    for end in (*range(64, 641, 64), 700):
        manager.computed("a", end)
    manager.release("a")
    found = manager.lookup(range(660))
    assert (found.matched_tokens, len(found.block_payloads)) == (640, 40)
    assert found.checkpoint_payloads[0].block_hash == PromptHashes(prompt, 64 // 4).block_hashes[39]
    assert len({unit.page for unit in found.block_payloads}) == 10


@pytest.mark.parametrize(("hash_block", "physical"), [(512, 384), (512, 768), (16, 24)])
def test_b9_block_sizes_that_do_not_divide_are_refused(hash_block, physical):
    with pytest.raises(CacheError, match="must be a multiple"):
        make(8, hash_block, physical_block_tokens=physical)


def test_b11_a_resume_inside_a_page_uses_three_pages():
    """Old page, private copy, and the next one: no write ever reaches a published row."""
    server = Server(block=4, units=2)
    tokens = words(12, 1)
    server.serve("a", tokens, budget=12)
    assert hit(server.manager, [*tokens[:4], 0, 1]) == 4
    old = server.manager.lookup([*tokens[:4], 0, 1]).block_payloads[0].page
    other = [*tokens[:4], *words(8, 2)]
    admission = server.run("b", other)
    assert admission.reused_tokens == 4
    private, new = server.manager.pages("b")
    assert len({old, private, new}) == 3
    assert admission.copies[0] == (old, private)
    states = {
        s.pages
        for end in (4, 8)
        for s in server.manager.lookup([*other[:end], 0]).checkpoint_payloads
    }
    assert len(states) == 6
    server.manager.release("b")
    server.check()


def test_b11_a_producer_that_goes_on_copies_its_published_page():
    server = Server(block=4, units=3)
    tokens = words(24)
    server.admit("a", tokens)
    for end in (4, 8, 16, 24):
        server.compute("a", end)
    assert server.manager.cache.num_blocks == 6
    server.manager.release("a")
    server.check()
    assert len({unit.page for unit in server.manager.lookup([*tokens, 0]).block_payloads}) == 2


def test_b15_the_second_prompt_of_a_batch_has_the_states_of_a_run_alone():
    together, alone = Server(block=64), Server(block=64)
    prompts = {"first": words(70, 1), "second": words(90, 2)}
    for name, tokens in prompts.items():
        together.admit(name, tokens)
    for end in (64, 90):
        for name, tokens in prompts.items():
            if together.manager.num_computed(name) < len(tokens):
                together.compute(name, min(end, len(tokens)))
    alone.serve("second", prompts["second"])
    pages = [
        server.manager.lookup(prompts["second"]).checkpoint_payloads for server in (together, alone)
    ]
    assert [together.state(s.pages[0]) for s in pages[0]] == [
        alone.state(s.pages[0]) for s in pages[1]
    ]
    assert len(pages[0]) == 3


def test_b16_the_token_after_a_hit_has_the_logits_of_a_cold_run():
    texts = [tuple(words(70, seed)) for seed in (1, 1, 2, 1)]
    warm = Engine(MODEL, 300, block_tokens=16, chunk_tokens=16, poison=True)
    for text in texts:
        cold = Engine(MODEL, 300, block_tokens=16, chunk_tokens=16, use_cache=False)
        assert torch.equal(warm.generate(text, 1).logits, cold.generate(text, 1).logits)
    assert warm.generate(texts[0], 1).reused_tokens == 64


def test_b17_a_step_of_drafts_over_a_boundary_leaves_no_checkpoint_there():
    manager = make(20, 16, groups=2)
    manager.admit("a", range(14))
    manager.computed("a", 14)
    manager.extend("a", [14, 15, 16, 17])
    manager.grow("a", 18)
    manager.computed("a", 18)
    assert (manager.cache.num_blocks, manager.cache.num_checkpoints) == (1, 0)
    assert manager.lookup(range(18)).reason == "no_checkpoint"


def test_b18_no_write_lands_on_pages_of_another_request():
    """Drafts of 5, the prompt 6 tokens past a boundary, then a second request."""
    manager = make(30, 8, groups=2)
    run(manager, "a", range(22), [8, 8, 6])
    manager.grow("a", 22 + 6)
    run(manager, "b", range(100, 122), [8, 8, 6])
    manager.grow("b", 22 + 6)
    owned = {n: {*manager.pages(n), *manager.state_pages(n)} for n in ("a", "b")}
    assert not owned["a"] & owned["b"]
    writable = {page for page in range(30) if manager.pool.is_writable(page)}
    assert writable <= owned["a"] | owned["b"]
    manager.check()


# lookups that lose hits


def test_b21_divergence_before_the_only_checkpoint_finds_nothing_and_says_why():
    manager = make(20, 16, groups=2, retention=Retention("chunk_end"))
    serve(manager, "a", range(64))
    found = manager.lookup([*range(40), *range(100, 140)])
    assert (found.matched_tokens, found.junction_tokens, found.reason) == (0, 32, "no_checkpoint")


@pytest.mark.parametrize("rule", ["dense", "junction", "replay"])
@pytest.mark.parametrize("dropped", [0, 1])
def test_b22_no_prompt_length_reuses_less_than_the_ceiling(rule, dropped):
    block = 8
    granularity = HitGranularity(block, dropped_blocks=dropped)
    for length in range(block, 4 * block + 2):
        manager = make(40, block, groups=2, retention=Retention(rule), dropped_blocks=dropped)
        manager.admit("a", range(length))
        while manager.num_computed("a") < length:
            manager.computed("a", manager.next_chunk_end("a", 1000))
        manager.release("a")
        assert hit(manager, range(length)) == granularity.hit_tokens(length)


def test_b23_the_common_block_of_512_and_384_is_named():
    assert common_block(512, 384) == 1536
    with pytest.raises(CacheError, match="every 1536 tokens"):
        HitGranularity(512, 384)


def test_b24_a_block_that_completes_after_a_resume_is_seen():
    manager = make(20, 4, groups=1)
    serve(manager, "a", range(12), [4, 4, 4])
    admission = manager.admit("b", [*range(12), 50])
    assert admission.reused_tokens == 12
    manager.computed("b", 13)
    manager.extend("b", [51, 52, 53])
    manager.computed("b", 16)
    assert hit(manager, [*range(12), 50, 51, 52, 53, 54]) == 16


def test_b25_b26_a_lookup_shorter_than_an_entry_leaves_it_whole():
    manager = make(8, 64, groups=1)
    serve(manager, "a", range(65), [64, 1])
    before = manager.cache.num_blocks, manager.cache.num_checkpoints
    assert hit(manager, range(63)) == 0
    assert hit(manager, range(64)) == 0
    assert (manager.cache.num_blocks, manager.cache.num_checkpoints) == before
    assert hit(manager, range(65)) == 64
    manager.check()


def test_b28_the_lookup_comes_before_the_allocation_that_could_evict_it():
    manager = make(5, 16, groups=1)
    serve(manager, "a", range(33), [16, 16, 1])
    assert hit(manager, range(33)) == 32
    again = manager.admit("b", range(33))
    assert again.reused_tokens == 32


# ownership


@pytest.mark.parametrize("spare", range(1, 8))
def test_b29_pages_of_a_hit_and_pages_taken_are_disjoint(spare):
    manager = make(2 + 6 + spare, 16, groups=3)
    serve(manager, "a", range(33), [16, 16, 1])
    found = manager.lookup(range(33))
    pages = {unit.page for unit in found.block_payloads}
    pages |= {page for state in found.checkpoint_payloads for page in state.pages}
    admission = manager.admit("b", [*range(32), *range(100, 140)])
    if admission is not None and admission.reused_tokens:
        assert not pages & {*admission.pages, *admission.state_pages}
    manager.check()


def test_b30_a_refused_admission_leaves_no_private_copy_a_hundred_times():
    manager = make(8, 16, groups=2)
    serve(manager, "a", range(17), [16, 1])
    run(manager, "b", range(100, 140))
    before = manager.pool.stats(), manager.pool.free_order()
    for _ in range(100):
        assert manager.admit("c", [*range(17), *range(200, 300)]) is None
    assert (manager.pool.stats(), manager.pool.free_order()) == before
    assert hit(manager, range(17)) == 16
    manager.check()


@pytest.mark.parametrize("state", ["waiting", "prefill", "decode", "speculating", "forked"])
def test_b31_a_request_that_ends_in_any_state_owns_nothing(state):
    manager = make(30, 4, groups=2)
    manager.admit("a", range(10))
    if state != "waiting":
        manager.computed("a", 4)
    if state in ("decode", "speculating"):
        manager.computed("a", 10)
        manager.extend("a", [1, 2])
        manager.grow("a", 12)
    if state == "speculating":
        manager.grow("a", 20)
    if state == "forked":
        manager.fork("a", "b")
        manager.release("b")
    manager.release("a")
    assert manager.pool.num_owned == 0
    assert manager.cache.num_pending_blocks == 0
    manager.check()


def test_b32_when_the_copy_fails_the_request_computes_everything():
    def broken(source, target):
        raise OSError("copy engine gone")

    manager = make(20, 16, groups=2, copy=broken)
    serve(manager, "a", range(33), [16, 16, 1])
    admission = manager.admit("b", range(33))
    assert (admission.hit.matched_tokens, admission.reused_tokens) == (32, 0)
    assert manager.num_failed_copies == 1
    for page in admission.state_pages:
        assert not manager.pool.page_bytes_view(page).any()
    manager.check()


def test_b33_fifty_requests_in_a_row_leave_only_cached_pages():
    manager = make(12, 16, groups=1)
    for number in range(50):
        serve(manager, number, range(number, number + 40), [16, 16, 8])
        stats = manager.pool.stats()
        assert (stats.num_owned, stats.num_free + stats.num_cached) == (0, 12)


def test_b35_a_reused_page_is_no_longer_found():
    manager = make(2, 16, groups=0)
    serve(manager, "a", range(32))
    serve(manager, "b", range(100, 132))
    assert manager.lookup(range(33)).mla_tokens == 0
    assert manager.lookup(range(33)).loss_account()["evicted"] == 32
    manager.check()


def test_b36_cached_pages_of_a_hit_count_at_admission():
    manager = make(3, 16, groups=0)
    serve(manager, "a", range(32))
    run(manager, "b", range(100, 110))
    assert manager.pool.num_available == 2
    before = manager.pool.free_order()
    assert manager.admit("c", range(40)) is None
    assert manager.pool.free_order() == before
    assert manager.admit("d", range(33)[:32]) is not None


def test_b36_a_hit_that_does_not_fit_beside_its_request_runs_cold_rather_than_never():
    manager = make(6, 16, groups=2)
    serve(manager, "a", range(17), [16, 1])
    assert hit(manager, range(48)) == 16
    admission = manager.admit("b", range(48))
    assert admission.reused_tokens == 0
    assert manager.num_cold_fallbacks == 1
    manager.check()


def test_b38_the_check_walks_everything_and_counts_shared_pages_once():
    manager = make(20, 16, groups=1)
    run(manager, "a", range(40), [16, 16, 8])
    run(manager, "b", [*range(32), 7, 8])
    manager.check()
    stats = manager.pool.stats()
    assert stats.num_owned + stats.num_cached + stats.num_free == 20
    assert stats.num_references == stats.num_owned + 2
    manager.pool.retain(manager.pages("a")[0])
    with pytest.raises(CacheError, match="references"):
        manager.check()


def test_b39_a_page_named_twice_in_one_free_raises():
    pool = PagePool(4)
    (page,) = pool.alloc(MLA)
    with pytest.raises(PageError, match="twice"):
        pool.free([page, page])
    assert pool.num_available == 3


def test_b40_victims_leave_in_the_order_of_their_last_use():
    manager = make(8, 16, groups=0)
    for name in range(3):
        serve(manager, name, range(100 * name, 100 * name + 32))
    serve(manager, "again", range(32))
    gone = []
    for _ in range(4):
        manager.pool.alloc(MLA, 2)
        gone.append(
            [n for n in range(3) if not manager.lookup([*range(100 * n, 100 * n + 16)]).mla_tokens]
        )
    assert gone == [[], [], [1], [0, 1, 2]]


def test_b40_a_release_gives_up_only_its_own_references():
    manager = make(20, 16, groups=1)
    serve(manager, "a", range(40), [16, 16, 8])
    run(manager, "b", range(40))
    run(manager, "c", range(40))
    manager.release("b")
    infos = [manager.pool.page_info(page).num_references for page in manager.pages("c")[:2]]
    assert infos == [1, 1]
    manager.check()


def test_b43_evicting_where_nothing_can_be_evicted_ends_at_once():
    manager = make(3, 16, groups=1)
    run(manager, "a", range(20))
    with pytest.raises(PoolExhausted):
        manager.pool.alloc(MLA)
    manager.residency.drop_boundary(b"unknown")
    assert manager.residency.num_evicted_boundaries == 0


def test_b45_a_page_number_beyond_the_pool_raises():
    pool = PagePool(4)
    for page in (4, -1, 10**9):
        with pytest.raises(PageError, match="out of range"):
            pool.page_bytes_view(page)
        with pytest.raises(PageError, match="out of range"):
            pool.free(page)


def test_b46_page_0_is_a_page_like_any_other():
    """No page means "nothing" here, so page 0 may be handed out and is never skipped."""
    pool = PagePool(2)
    assert pool.alloc(MLA, 2) == (0, 1)
    pool.free(0)
    assert pool.alloc(KDA) == (0,)


def test_b47_a_shrinking_number_of_drafts_keeps_pages_and_accounts():
    manager = make(20, 4, groups=1)
    run(manager, "a", range(10), [4, 4, 2])
    for num_drafts in (16, 1, 8, 0):
        manager.extend("a", [num_drafts])
        at = manager.num_computed("a") + 1
        assert manager.grow("a", at + num_drafts) is not None
        manager.computed("a", at)
        manager.check()


# a page changes kind


def test_b12_rows_of_a_former_state_page_hold_no_old_bytes():
    """A state page full of NaN becomes an MLA page; masked attention over its tail stays finite."""
    outputs = []
    for dirty in (True, False):
        pool = PagePool(1, 16 * 4 * 4)
        if dirty:
            (page,) = pool.alloc(KDA)
            pool.page_bytes_view(page)[:] = 0xFF
            pool.free(page)
        cache = PagedCache(pool, 16, 16)
        cache.append_mla(3, torch.arange(12, dtype=torch.float32).view(3, 4))
        rows = pool.page_bytes_view(cache.mla_pages[0].page).view(np.float32).reshape(16, 4)
        weights = np.zeros(16, np.float32)
        weights[:3] = 1 / 3
        outputs.append(weights @ rows)
    assert np.isfinite(outputs[0]).all()
    assert np.array_equal(*outputs)


def test_b13_a_cold_request_starts_from_zero_on_a_recycled_state_page():
    manager = make(4, 16, groups=2, enable_caching=False)
    manager.admit("a", range(20))
    for page in (*manager.state_pages("a"), *manager.pages("a")):
        manager.pool.page_bytes_view(page)[:] = 77
    manager.release("a")
    admission = manager.admit("b", range(20))
    for page in admission.state_pages:
        assert not manager.pool.page_bytes_view(page).any()


# speculation with recurrent state


@pytest.mark.parametrize("num_accepted", range(6))
def test_b48_b49_any_number_of_accepted_drafts_is_sequential_decoding(num_accepted):
    """One verified token and four drafts; none accepted leaves the state of the verified one."""
    state, window = make_state(), make_projection(5)
    new_state, outputs = verify_and_replay(state, window, num_accepted)
    q, k, v, g, beta = (
        x[:num_accepted].movedim(0, 2)
        for x in (window.q, window.k, window.v, window.g, window.beta)
    )
    expected, final = kda_recurrent(q, k, v, g, beta, state)
    assert torch.equal(new_state, final)
    assert torch.equal(outputs, expected)


# tenants and weights


def test_b51_a_salt_is_in_both_stages_and_in_the_host_tier():
    host = HostTier(100_000, block_bytes=64, state_bytes=64, num_kda_groups=2)
    manager = make(9, 16, groups=2, host=host)
    mine, theirs = (PromptHashes(range(33), 16, root_parent(salt=s)) for s in ("mine", "theirs"))
    serve(manager, "a", mine, [16, 16, 1])
    assert hit(manager, theirs) == 0
    run(manager, "flood", range(500, 596))
    manager.release("flood")
    assert hit(manager, mine) == 0
    assert manager.admit("b", theirs).reused_tokens == 0
    manager.release("b")
    assert manager.admit("c", mine).source == "host"


def test_b52_new_weights_need_a_reset_which_is_refused_in_use():
    cache = PrefixCache(4, 1)
    ticket = cache.register(range(8))
    assert cache.reset() is False
    cache.mark_ready(ticket)
    assert cache.reset() is True
    assert cache.num_blocks == 0
    host = HostTier(10_000, block_bytes=16, state_bytes=64, num_kda_groups=1)
    manager = make(9, 4, groups=1, host=host, retention=DENSE)
    run(manager, "a", range(9), [4, 4, 1])
    assert manager.reset() is False
    assert hit(manager, range(9)) == 8
    manager.release("a")
    assert manager.reset() is True
    assert (hit(manager, range(9)), host.num_boundaries, manager.window.hit_rate) == (0, 0, None)
