"""Page pool, prefix cache and ranks: every argument of every public callable refuses what it cannot
be, by name and before anything changes."""

import dataclasses
import inspect
import math
import pickle
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from k3core import paged_cache, parallel, prefix_cache
from k3core.errors import CacheError, K3Error
from k3core.paged_cache import PagedCache, PageKind, PagePool
from k3core.parallel import AffineMap, KDAContextParallel, Layout, Piece
from k3core.prefix_cache import HitGranularity, PrefixCache, PromptHashes, Retention, chained_hash
from k3core.prefix_cache.host_tier import HostTier
from k3core.prefix_cache.manager import HybridCacheManager
from k3core.prefix_cache.window import HitWindow


class Fresh(NamedTuple):
    """An argument that is made anew for each call, from its subject."""

    make: Callable


PROBES = (None, "a", 1.5, True, math.nan, -1, [1], 2**70)
FLAG, LIST, BIG = (True,), ([1],), (2**70,)
ANY, NAME = PROBES, tuple(probe for probe in PROBES if probe != [1])
MAY_BE = {  # probes that an argument of this name may take; of all other names only a large count
    **dict.fromkeys(("poison", "record_events", "enable_caching", "cascade"), FLAG),
    **dict.fromkeys(("read_cache", "drafter_drop"), FLAG),
    **dict.fromkeys(("pages", "shape", "row_shape", "tokens", "stops", "junctions"), LIST),
    **dict.fromkeys(("budgets", "boundaries", "protected", "document_lens", "rank_lens"), LIST),
    **dict.fromkeys(("block_payloads",), LIST),
    **dict.fromkeys(("request_id", "new_id"), NAME),
    **dict.fromkeys(("payload", "keys"), ANY),
    **dict.fromkeys(("latency_s", "bandwidth_bytes_per_s"), (1.5, *BIG)),
    "salt": ("a",),
    "max_per_path": (None, *BIG),
}
MLA, KDA = PageKind
TOKENS = list(range(8))
FIRST = chained_hash(b"", range(4))
PATH = (FIRST, chained_hash(FIRST, range(4, 8)))
ROWS, STATE = torch.zeros(2, 4), torch.zeros(1, 2, 1, 2)
SEQUENCE = {name: torch.zeros(1, 2, 6, 3) for name in ("q", "k", "v", "g")}
SEQUENCE["beta"] = torch.zeros(1, 2, 6)
MAP = AffineMap(torch.eye(3).expand(1, 2, 3, 3), torch.zeros(1, 2, 3, 3))
RULE = Retention("junction")


def pool():
    made = PagePool(6, 32)
    made.alloc(MLA, 4)
    made.publish(1)
    return made


def request():
    made = PagedCache(PagePool(6, 32), 2, 16)
    made.append_mla(2, ROWS)
    made.store_kda(0, STATE)
    return made


def empty_request():
    made = PagedCache(PagePool(6, 32), 2, 16)
    made.pool.alloc(MLA)
    return made


def cache():
    made = PrefixCache(4, 2)
    ticket = made.register(TOKENS)
    made.persist_checkpoint(ticket, 4, 0)
    made.mark_ready(ticket, 4)
    return made


def tier():
    made = HostTier(100, 2, 3, 1)
    made.store(PATH[:1], nothing, nothing)
    return made


def nothing(index):
    return None


def manager():
    made = HybridCacheManager(PagePool(20, 32), hash_block_tokens=4)
    made.admit("r", TOKENS)
    made.computed("r", 4)
    return made


def layout():
    return Layout((4, 2), (3, 3))


def granularity():
    return HitGranularity(8, 4)


ONE_PAGE, SOME_PAGES = {"page": 0, "kind": MLA}, {"pages": [0], "kind": MLA}
HASH = {"block_hash": FIRST}
PROMPT = {"num_tokens": 9, "hash_block_tokens": 4}
LENGTHS = {"document_lens": (4, 2), "rank_lens": (3, 3)}
RANGE = {"num_tokens": 9, "block_tokens": 4, "stops": (4,), "start": 0}
SERVED = {"num_tokens": 9, "retention": RULE, "junction_tokens": 4, "start": 0}
CALLS = {  # (subject, method): arguments that work
    (None, PagePool): {"num_pages": 4, "page_bytes": 8, "poison": False, "on_evict": None},
    (pool, "alloc"): {"kind": MLA, "count": 1},
    (pool, "retain"): SOME_PAGES,
    (pool, "free"): SOME_PAGES,
    (pool, "publish"): {"pages": [0]},
    (pool, "unpublish"): {"pages": [1]},
    (pool, "page_bytes_view"): ONE_PAGE,
    (pool, "copy_page"): {"source": 0, "target": 2},
    (pool, "clear_pages"): {"pages": [0]},
    (pool, "is_writable"): {"page": 0},
    (pool, "page_info"): {"page": 0},
    (None, PagedCache): {"pool": PagePool(4, 64), "tokens_per_page": 2, "bytes_per_token": 16},
    (request, "append_mla"): {"num_tokens": 2, "rows": ROWS},
    (request, "truncate_mla"): {"num_tokens": 1},
    (empty_request, "adopt_mla"): {
        "pages": [0], "num_tokens": 2, "dtype": torch.float32, "row_shape": (4,),
    },
    (request, "read_mla"): {"start": 0, "stop": 1},
    (request, "store_kda"): {"layer": 0, "state": STATE, "conv_window": ROWS},
    (request, "load_kda"): {"layer": 0},
    (None, paged_cache.pack_heads): {"state": STATE},
    (None, paged_cache.unpack_heads): {"flat": torch.zeros(4), "shape": (1, 2, 1, 2)},
    (None, paged_cache.head_slice): {
        "flat": torch.zeros(4), "num_heads": 2, "start": 0, "stop": 1,
    },
    (None, PrefixCache): {
        "hash_block_tokens": 4, "num_kda_groups": 2, "dropped_blocks": 0, "record_events": False,
        "num_remembered": 8,
    },
    (cache, "hashes"): {"tokens": TOKENS},
    (cache, "lookup"): {"tokens": TOKENS},
    (cache, "register"): {"tokens": TOKENS, "block_payloads": [1, 2]},
    (cache, "mark_ready"): {"tokens": TOKENS, "num_tokens": 8},
    (cache, "persist_checkpoint"): {"tokens": TOKENS, "boundary": 4, "group": 1, "payload": 0},
    (cache, "abort"): {"tokens": TOKENS},
    (cache, "evict_block"): HASH,
    (cache, "evict_subtree"): HASH,
    (cache, "evict_boundary"): HASH,
    (cache, "evict_checkpoint"): {**HASH, "group": 0},
    (cache, "checkpoint_groups"): HASH,
    (cache, "has_checkpoint"): HASH,
    (cache, "is_fork"): HASH,
    (cache, "holds"): {**HASH, "ticket": Fresh(lambda made: made.register(TOKENS))},
    (cache, "block_payload"): HASH,
    (cache, "block_state"): HASH,
    (None, PromptHashes): {"tokens": TOKENS, "hash_block_tokens": 4, "root": b"", "media": ()},
    (None, PromptHashes.from_hashes): {
        "block_hashes": PATH, "num_tokens": 8, "hash_block_tokens": 4,
    },
    (lambda: PromptHashes(TOKENS, 4), "append"): {"tokens": [1]},
    (lambda: PromptHashes(TOKENS, 4), "coarse_hashes"): {"block_tokens": 8},
    (None, prefix_cache.chained_hash): {"parent": b"", "tokens": TOKENS},
    (None, prefix_cache.token_bytes): {"tokens": TOKENS},
    (None, prefix_cache.root_parent): {"salt": "s", "lora": ("name", "path")},
    (None, prefix_cache.next_chunk_end): {**RANGE, "budget": 4, "max_budget": 4},
    (None, prefix_cache.chunk_ends): {**RANGE, "max_batched_tokens": 4},
    (None, prefix_cache.fragmented_chunk_ends): {**RANGE, "budgets": (4, 2)},
    (None, prefix_cache.common_block): {"block_tokens": 4},
    (None, prefix_cache.require_multiple): {"physical_block_tokens": 8, "hash_block_tokens": 4},
    (None, prefix_cache.replay_boundary): {**PROMPT, "dropped_blocks": 0},
    (None, prefix_cache.dense_boundaries): PROMPT,
    (None, prefix_cache.every_boundaries): {**PROMPT, "interval_tokens": 8},
    (None, prefix_cache.junction_boundaries): {**PROMPT, "junctions": (4,)},
    (None, prefix_cache.surplus_boundaries): {
        "boundaries": (4, 8), "max_per_path": 1, "protected": (),
    },
    (None, prefix_cache.retained_boundaries): {**PROMPT, "interval_blocks": 1, "junctions": ()},
    (None, Retention): {"rule": "interval", "interval_tokens": 4, "max_per_path": 1},
    (lambda: RULE, "stop_boundaries"): {**PROMPT, "junction_tokens": 4, "dropped_blocks": 0},
    (lambda: RULE, "keeps"): {"boundary": 4, "stops": (4,)},
    (None, HitGranularity): {
        "physical_block_tokens": 8, "hash_block_tokens": 4, "dropped_blocks": 0,
        "max_batched_tokens": 16,
    },
    (None, HitGranularity.of_model): {
        "model": "kimi-k3", "tp": 8, "mla_dtype": "float8", "state_dtype": "float32",
        "draft_len": 0, "context_parallel": 1, "quantum": 128, "hash_block_tokens": 0,
        "drafter_drop": False, "max_batched_tokens": 0,
    },
    (granularity, "ceiling_tokens"): {"num_tokens": 9},
    (granularity, "hit_tokens"): {"num_tokens": 9},
    (granularity, "stop_boundaries"): {"num_tokens": 9, "retention": RULE, "junction_tokens": 4},
    (granularity, "chunk_ends"): SERVED,
    (granularity, "state_boundaries"): SERVED,
    (None, HostTier): {
        "budget_bytes": 10, "block_bytes": 2, "state_bytes": 3, "num_kda_groups": 1,
    },
    (tier, "store"): {"path": PATH, "read_block": nothing, "read_state": nothing},
    (tier, "deepest"): {"hashes": PATH, "most_blocks": 2},
    (tier, "load"): HASH,
    (None, HitWindow): {"num_requests": 2},
    (HitWindow, "record"): {"num_tokens": 2, "hit_tokens": {"device": 1}},
    (None, HybridCacheManager): {
        "pool": Fresh(lambda _: PagePool(4, 8)), "hash_block_tokens": 4, "physical_block_tokens": 8,
        "num_kda_groups": 1, "pages_per_state": 1, "retention": RULE, "dropped_blocks": 0,
        "enable_caching": True, "cascade": False, "record_events": False,
        "host": HostTier(9, 1, 1, 1), "window_requests": 5, "copy": print,
    },
    (manager, "prompt"): {"tokens": TOKENS},
    (manager, "lookup"): {"tokens": TOKENS},
    (manager, "admit"): {
        "request_id": "s", "tokens": TOKENS, "num_tokens": 8, "read_cache": True,
    },
    (manager, "next_chunk_end"): {"request_id": "r", "budget": 4, "max_budget": 4},
    (manager, "grow"): {"request_id": "r", "num_tokens": 9},
    (manager, "computed"): {"request_id": "r", "num_tokens": 8},
    (manager, "extend"): {"request_id": "r", "tokens": [1]},
    (manager, "fork"): {"request_id": "r", "new_id": "s"},
    (manager, "release"): {"request_id": "r"},
    (manager, "pages"): {"request_id": "r"},
    (manager, "state_pages"): {"request_id": "r"},
    (manager, "stops"): {"request_id": "r"},
    (manager, "num_computed"): {"request_id": "r"},
    (None, KDAContextParallel): {"world": 2, "scan": "tree"},
    (None, KDAContextParallel.communication_volume): {
        "B": 1, "H": 1, "dk": 1, "dv": 1, "world": 2, "itemsize": 4,
    },
    (lambda: KDAContextParallel(2), "split"): {"num_tokens": 5},
    (lambda: KDAContextParallel(2), "layout"): {"num_tokens": 6, **LENGTHS},
    (lambda: KDAContextParallel(2), "prefill"): {
        **SEQUENCE, "state": torch.zeros(1, 2, 3, 3), **LENGTHS,
    },
    (lambda: KDAContextParallel(2), "short_convolution"): {
        "x": torch.zeros(1, 6, 5), "weight": torch.zeros(5, 4), "window": torch.zeros(1, 3, 5),
        **LENGTHS,
    },
    (None, Layout): LENGTHS,
    (layout, "pieces"): {"rank": 0},
    (layout, "tail"): {"rank": 0},
    (layout, "forgets"): {"rank": 0},
    (layout, "senders"): {"rank": 1, "reach": 2},
    (layout, "starts_document"): {"piece": Piece(0, 0, 3)},
    (layout, "ends_document"): {"piece": Piece(0, 0, 3)},
    (layout, "starts_afresh"): {"piece": Piece(0, 0, 3)},
    (None, parallel.merge): {"state": MAP.offset, "stretch": MAP},
    (None, parallel.compose): {"later": MAP, "earlier": MAP},
    (None, parallel.scan_chain): {"maps": [MAP], "state": MAP.offset},
    (None, parallel.scan_tree): {"maps": [MAP], "state": MAP.offset},
    (None, parallel.transition_and_offset): {n: SEQUENCE[n] for n in ("k", "v", "g", "beta")},
    (None, parallel.all_gather_seconds): {
        "sent_bytes": 8, "world": 2, "bandwidth_bytes_per_s": 1.0, "latency_s": 0.1,
    },
}  # fmt: skip


def name_of(call):
    subject, target = call
    if subject is None:
        return target.__qualname__
    return f"{type(subject()).__name__}.{target}"


def bind(call):
    """Subject, the callable on it, and arguments that work."""
    make, target = call
    subject = None if make is None else make()
    arguments = {
        name: value.make(subject) if isinstance(value, Fresh) else value
        for name, value in CALLS[call].items()
    }
    return subject, getattr(subject, target) if make else target, arguments


def run(target, arguments):
    if target is prefix_cache.common_block:
        return target(*arguments.values())
    return target(**arguments)


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_wrong_types_are_refused_before_anything_changes(call):
    _, target, working = bind(call)
    run(target, working)
    parameters = inspect.signature(target).parameters
    for name in working:
        may_be = MAY_BE.get(name, BIG)
        if name in parameters and parameters[name].default is None:
            may_be = (None, *may_be)
        for probe in PROBES:
            subject, target, arguments = bind(call)
            before = pickle.dumps(subject)
            try:
                run(target, {**arguments, name: probe})
            except K3Error:
                assert pickle.dumps(subject) == before, f"{name}={probe!r} left a trace"
            else:
                allowed = any(probe is one or (probe == one and one is not True) for one in may_be)
                assert allowed, f"{name}={probe!r} was taken"


def public_methods(kind):
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or isinstance(member, property) or not callable(member):
            continue
        if len(inspect.signature(member).parameters) > (not inspect.ismethod(member)):
            yield f"{kind.__name__}.{name}"


def test_every_public_callable_is_in_the_table():
    """Records are left out: tuples, and dataclasses that are only made by the package."""
    listed = {name_of(call) for call in CALLS}
    exported = [
        getattr(m, name) for m in (paged_cache, prefix_cache, parallel) for name in m.__all__
    ]
    exported += [HostTier, HitWindow, HybridCacheManager]
    for one in exported:
        if inspect.isfunction(one):
            assert one.__qualname__ in listed
        record = isinstance(one, type) and (
            issubclass(one, (tuple, int))
            or (dataclasses.is_dataclass(one) and not hasattr(one, "__post_init__"))
        )
        if isinstance(one, type) and not record:
            wanted = {one.__name__, *public_methods(one)}
            assert wanted <= listed, sorted(wanted - listed)


def test_all_arguments_of_a_callable_are_in_its_row():
    for call in CALLS:
        _, target, arguments = bind(call)
        kinds = inspect.signature(target).parameters.values()
        named = {one.name for one in kinds if one.kind is not one.VAR_KEYWORD}
        assert named == set(arguments), name_of(call)


@pytest.mark.parametrize("method", ["hashes", "mark_ready", "abort", "register"])
def test_a_ticket_of_another_cache_is_refused(method):
    subject, ticket = cache(), cache().register(TOKENS)
    before = pickle.dumps(subject)
    with pytest.raises(CacheError, match="of another cache"):
        getattr(subject, method)(ticket)
    assert pickle.dumps(subject) == before


@pytest.mark.parametrize("pages", [{0: 1}, b"\x00", "0"])
def test_what_only_iterates_like_pages_is_refused(pages):
    subject = pool()
    with pytest.raises(K3Error, match="not a page id"):
        subject.free(pages)


@pytest.mark.parametrize("group", [0.0, True])
def test_a_number_that_equals_a_group_is_none(group):
    with pytest.raises(CacheError, match="group="):
        cache().persist_checkpoint(TOKENS, 4, group)
