"""Every row of the verification can fail: its mechanism is broken, and the row must see it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from k3core import decode, kda
from k3core.capacity.memory import RequestMemory
from k3core.engine import Engine, RequestResult
from k3core.fleet import (
    ROUTERS,
    BudgetController,
    ConsistentHashRing,
    FleetResult,
    FleetSimulator,
)
from k3core.paged_cache import PagedCache, PagePool
from k3core.parallel import KDAContextParallel
from k3core.replayssm import RawInputRing, ReplaySSM
from k3core.studies import verification as v
from k3core.studies.verification import checks_memory
from k3core.studies.verification.check import Case
from k3core.studies.verification.subject import real_subject

CHECK = {check.id: check for check in v.CHECKS}


def wrapped(owner, name, change):
    real = getattr(owner, name)

    def replacement(*args, **kwargs):
        return change(real(*args, **kwargs))

    return owner, name, replacement


def fixed(owner, name, value):
    """An attribute that always reads as ``value``."""
    return owner, name, property(lambda self: value, lambda self, given: None)


def share_memory(self, other):
    self.__dict__.update(other.__dict__)


def free_of_any_kind(real):
    return lambda self, pages, kind=None: real(self, pages)


def more_bytes(result):
    return replace(
        result, traffic=tuple(replace(t, sent_bytes=t.sent_bytes + 8) for t in result.traffic)
    )


def ready_at_once(cache_type):
    class Eager(cache_type):
        def register(self, tokens, block_payloads=None):
            ticket = super().register(tokens, block_payloads)
            self.mark_ready(ticket)
            return ticket

    return Eager


def lookup_with(cache_type, **changes):
    class Changed(cache_type):
        def lookup(self, tokens):
            hit = super().lookup(tokens)
            return replace(hit, **{name: change(hit) for name, change in changes.items()})

    return Changed


def replacing(cache_type):
    class Replacing(cache_type):
        def persist_checkpoint(self, tokens, boundary, group, payload=None):
            end = self.hashes(tokens)[boundary // self.hash_block_tokens - 1]
            if group in self.checkpoint_groups(end):
                self.evict_checkpoint(end, group)
            return super().persist_checkpoint(tokens, boundary, group, payload)

    return Replacing


def looks_ahead(real):
    def kda_chunk(q, k, v, g, beta, *rest):
        out, state = real(q, k, v, g, beta, *rest)
        return out + 1e-12 * v.sum(2, keepdim=True), state

    return kda_chunk


def in_checks(name, change):
    """The name as ``checks_memory`` sees it, replaced by ``change`` of it."""
    return checks_memory, name, change(getattr(checks_memory, name))


SABOTAGE = {
    "chunk_matches_oracle": lambda: wrapped(kda, "kda_chunk", lambda r: (r[0], r[1] * 1.0001)),
    "chunk_survives_gate_at_bound": lambda: wrapped(
        kda, "kda_chunk", lambda r: (r[0] * math.nan, r[1])
    ),
    "chunk_is_causal": lambda: (kda, "kda_chunk", looks_ahead(kda.kda_chunk)),
    "gates_match_oracle": lambda: wrapped(kda, "kda_gate", lambda g: g * (1 + 1e-9)),
    "convolution_matches_oracle": lambda: wrapped(
        kda, "short_convolution", lambda r: (r[0], torch.zeros_like(r[1]))
    ),
    "test_snapshot_cost_ratio_exceeds_one_and_grows_with_state": lambda: (
        decode,
        "snapshot_cost_ratio",
        lambda heads, dk, dv, draft_len=1: 4.0,
    ),
    "figure_bytes_come_from_mechanism": lambda: wrapped(decode, "snapshot_bytes", lambda x: x + 1),
    "test_ring_evicts_oldest_at_capacity": lambda: wrapped(ReplaySSM, "pop", lambda s: s * 1.01),
    "test_pop_after_refill_returns_oldest": lambda: wrapped(ReplaySSM, "pop", lambda s: s + 3),
    "test_copy_from_is_deep_and_independent": lambda: (ReplaySSM, "copy_from", share_memory),
    "ring_window_equals_batch": lambda: wrapped(RawInputRing, "window", lambda w: w[:-1]),
    "test_append_mla_increments_pages_across_boundary": lambda: wrapped(
        PagedCache, "read_mla", lambda rows: rows * 0
    ),
    "test_pack_unpack_roundtrip": lambda: in_checks(
        "pack_heads", lambda real: lambda state: state.reshape(-1).clone()
    ),
    "test_store_and_load_roundtrip": lambda: wrapped(
        PagedCache, "load_kda", lambda s: s._replace(conv_window=s.conv_window.flip(1))
    ),
    "page_sets_stay_disjoint": lambda: wrapped(PagePool, "free_order", lambda x: x[:-1]),
    "bad_page_calls_raise": lambda: (PagePool, "free", free_of_any_kind(PagePool.free)),
    "retyped_page_leaks_no_bytes": lambda: wrapped(
        PagePool, "page_bytes_view", lambda view: view | 1
    ),
    "test_register_then_lookup_at_same_prefix_hits": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: 0)
    ),
    "test_two_stage_uses_longest_checkpoint_boundary": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.cap_tokens)
    ),
    "test_lookup_without_checkpoint_misses": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, hit=lambda hit: True)
    ),
    "test_checkpoint_atomic_across_groups": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.cap_tokens)
    ),
    "entry_invisible_until_ready": lambda: in_checks("PrefixCache", ready_at_once),
    "last_token_is_computed": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.mla_tokens)
    ),
    "published_checkpoint_never_changes": lambda: in_checks("PrefixCache", replacing),
    "hash_names_whole_prefix": lambda: in_checks(
        "chained_hash", lambda real: lambda parent, tokens: real(b"", tokens)
    ),
    "lookup_matches_brute_force": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.mla_tokens)
    ),
    "test_engine_returns_hit_stats": lambda: fixed(Engine, "use_cache", False),
    "test_engine_miss_returns_zero": lambda: fixed(RequestResult, "reused_tokens", 512),
    "checkpoint_matches_oracle": lambda: wrapped(kda, "kda_chunk", lambda r: (r[0], r[1] * 1.0001)),
    "pages_survive_eviction": lambda: wrapped(
        PagePool, "stats", lambda s: replace(s, num_free=s.num_free - 1)
    ),
    "conv_halo_matches_oracle": lambda: wrapped(
        KDAContextParallel,
        "short_convolution",
        lambda r: replace(r, outputs=r.outputs.roll(1, dims=1)),
    ),
    "message_bytes_do_not_grow": lambda: wrapped(KDAContextParallel, "prefill", more_bytes),
    "test_ring_distributes_sessions_uniformly": lambda: (
        ConsistentHashRing,
        "route",
        lambda self, session: self.clusters[:2],
    ),
    "test_remove_cluster_only_affects_few_sessions": lambda: wrapped(
        ConsistentHashRing, "route", lambda route: route._replace(secondary=route.primary)
    ),
    "test_budget_isolates_long_burst_from_short": lambda: wrapped(
        BudgetController, "admit", lambda ticket: None
    ),
    "test_simulator_routes_to_primary_on_hit": lambda: (
        ROUTERS["session"],
        "choose",
        lambda self, request, now: request % 2,
    ),
    "requests_are_conserved": lambda: wrapped(FleetResult, "num_served", lambda n: n + 1),
    "same_seed_gives_same_bytes": lambda: (
        FleetResult,
        "as_dict",
        lambda self: {"id": str(np.random.default_rng().random())},
    ),
    "cluster_cache_matches_plain_lru": lambda: fixed(FleetSimulator, "capacity_blocks", 250),
    "state_bytes_match_real_tensors": lambda: fixed(RequestMemory, "kda_bytes_per_layer", 786_432),
    "break_even_matches_published_sizes": lambda: fixed(RequestMemory, "break_even_len", 4064.0),
}


@pytest.mark.parametrize("row", SABOTAGE)
def test_a_row_sees_its_mechanism_broken(row, monkeypatch):
    check = CHECK[row]
    assert check.read(Case(real_subject())).deviation <= check.tolerance
    owner, name, replacement = SABOTAGE[row]()
    monkeypatch.setattr(owner, name, replacement, raising=False)
    assert check.read(Case(real_subject())).deviation > check.tolerance


def test_a_row_sees_time_that_nobody_spent():
    case, check = Case(real_subject()), CHECK["littles_law_holds"]
    assert check.read(case).deviation <= check.tolerance
    next(iter(case._memo.values())).area_s[0] *= 1.001
    assert check.read(case).deviation > check.tolerance


def test_every_row_is_broken_here_or_by_a_fault_or_declared_blind():
    outside = {check.id for check in v.CHECKS if not check.in_matrix}
    assert outside == set(SABOTAGE) | {"littles_law_holds"}
