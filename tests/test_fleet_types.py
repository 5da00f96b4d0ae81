"""Every argument of every public part of the fleet, given values of the wrong kind.

A value is taken, or refused by a K3Error that names the argument; nothing else ever comes out.
"""

import inspect
import math
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest

from k3core import fleet
from k3core.capacity.presets import PRESETS
from k3core.errors import K3Error
from k3core.fleet import (
    cache,
    columns,
    cost,
    failures,
    published,
    ring,
    router,
    segments,
    stats,
    synthetic,
    theory,
    trace_csv,
    trace_files,
    workload,
)

HUGE = 2**70
WRONG = (None, "a", 1.5, True, math.inf, math.nan, -1, [1], HUGE)

# What may be taken of WRONG, by the kind of argument; () is a count with an upper bound.
COUNT, NUMBER, NEGATIVE, OPEN = (HUGE,), (1.5, HUGE), (1.5, HUGE, -1), (1.5, HUGE, math.inf)
MAYBE, TEXT = (HUGE, None), ("a",)

WORKLOAD = fleet.synthetic_workload(20, 5)
RESULT = fleet.FleetSimulator(2).run(WORKLOAD)
PLACES = np.array([0, 1, 3])
IDS = np.array([4, 5, 6])
SIMULATOR = {
    "num_clusters": (4, ()),
    "router": ("session", ()),
    "capacity_blocks": (10, MAYBE),
    "cost": ("kimi-k3", ()),
    "rule": ("dense", ()),
    "checkpoint_blocks": (0, COUNT),
    "admission": (None, (None,)),
    "admission_by": ("class", ()),
    "class_by": ("total", ()),
    "failures": ((), ()),
    "vnodes": (10, ()),
    "weights": (None, (None,)),
    "servers": (1, COUNT),
    "decode": (None, (None,)),
    "load_factor": (1.25, NUMBER),
    "routing": (None, (None,)),
    "window_s": ((0.0, 9.0), ()),
    "horizon_s": (9.0, OPEN),
    "seed": (0, COUNT),
}
ROUTING = {
    name: (getattr(fleet.RouterSettings(), name), NUMBER)
    for name in fleet.RouterSettings.__dataclass_fields__
} | {"seed": (0, COUNT), "balance_abs": (64, COUNT), "cache_threshold": (0.3, ())}
MANY = {"num_requests": (9, ()), "rate_per_s": (2.0, NUMBER), "seed": (0, COUNT)}
MANY |= {"arrival_cv": (1.0, (1.5,)), "long_threshold": (99, COUNT)}
PRICES = {"code": ("x", TEXT), "source": ("x", TEXT), "fixed_s": (0.0, NUMBER)}
FLOPS = {"peak_flops_per_s": (1e15, NUMBER), "efficiency": (0.5, ())}
SIZES = {"num_clusters": (8, ()), "vnodes": (8, ())}
COLUMNS = {
    name: (getattr(WORKLOAD, name), ())
    for name in ("arrival_s", "input_len", "output_len", "block_ids", "block_offsets", "sessions")
}
RULE = {"capacity_blocks": (10, MAYBE), "rule": ("dense", ()), "checkpoint_blocks": (0, COUNT)}
LIMITS = {"long_threshold": (99, COUNT), "max_bytes": (999, ())}
JSONL = b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}'
CLS = {"cls": ("short", ())}


def budget():
    return fleet.BudgetController({"short": 2}, {"short": 1})


def members():
    made = fleet.ConsistentHashRing()
    made.add_cluster("a")
    return made


CALLS = {
    fleet.FleetSimulator: SIMULATOR,
    fleet.FleetSimulator.run: {"self": fleet.FleetSimulator(2), "workload": (WORKLOAD, ())},
    fleet.RouterSettings: ROUTING,
    fleet.DecodeStage: {"token_budget": (9, COUNT), "seconds_per_token": (0.1, NUMBER)},
    fleet.BlockCache: RULE,
    fleet.BudgetController: {
        "budgets": ({"short": 2}, ()),
        "weights": ({"short": 1}, ()),
        "mode": ("queue", ()),
        "lanes": (None, (None,)),
        "max_overtakes": (0, COUNT),
    },
    fleet.BudgetController.admit: {"self": budget(), "weight": (1, (None,)), **CLS},
    fleet.BudgetController.release: {"self": budget(), "ticket": (budget().admit("short"), ())},
    fleet.BudgetController.usage: {"self": budget(), **CLS},
    fleet.BudgetController.num_held: {"self": budget(), **CLS},
    fleet.BudgetController.num_waiting: {"self": budget(), **CLS},
    fleet.BudgetController.num_rejected: {"self": budget(), **CLS},
    fleet.PrefillCost: {
        "linear_s": (1e-5, NUMBER),
        "quadratic_s": (0.0, NUMBER),
        "peak_flops_per_s": (0.0, NUMBER),
        "efficiency": (0.0, NUMBER),
        **PRICES,
    },
    fleet.PrefillCost.from_flops: {
        "linear_flops": (1e9, NUMBER),
        "quadratic_flops": (1e3, NUMBER),
        **FLOPS,
        **PRICES,
    },
    fleet.PrefillCost.from_preset: {"preset": (PRESETS["kimi-k3"], ()), **FLOPS},
    fleet.PrefillCost.calibrated: {
        "measured": ([(9, 0, 1.0), (99, 0, 20.0)], ()),
        "code": ("x", TEXT),
    },
    fleet.ConsistentHashRing.add_cluster: {
        "self": fleet.ConsistentHashRing(),
        "id": ("b", ("a", -1, HUGE)),
        "vnodes": (8, ()),
    },
    fleet.ConsistentHashRing.remove_cluster: {"self": members(), "cluster": ("a", ("a",))},
    fleet.ConsistentHashRing.vnodes: {"self": members(), "cluster": ("a", ("a",))},
    fleet.ConsistentHashRing.route: {"self": members(), "session_id": (5, TEXT)},
    fleet.ConsistentHashRing.route_many: {
        "self": members(),
        "keys": (np.array([5], np.uint64), ()),
    },
    fleet.Workload: {**COLUMNS, "long_threshold": (99, COUNT), "service_s": (None, (None,))},
    fleet.Workload.from_requests: {"requests": ((), ()), "long_threshold": (99, COUNT)},
    fleet.Workload.request: {"self": WORKLOAD, "index": (5, ())},
    fleet.Workload.path: {"self": WORKLOAD, "index": (5, ())},
    fleet.Workload.spread: {"self": WORKLOAD, "seed": (5, COUNT)},
    fleet.Workload.faster: {"self": WORKLOAD, "factor": (5, NUMBER)},
    fleet.Workload.head: {"self": WORKLOAD, "num_requests": (5, COUNT)},
    fleet.FleetResult.of_class: {"self": RESULT, "cls": ("short", (None,))},
    fleet.FleetResult.count: {"self": RESULT, "status": (1, ()), "cls": ("short", (None,))},
    fleet.FleetResult.ttft_at: {"self": RESULT, "q": (0.5, ()), "cls": ("short", (None,))},
    fleet.FleetResult.goodput: {"self": RESULT, "slo_s": (5.0, NUMBER)},
    fleet.FleetResult.as_dict: {"self": RESULT, "slo_s": (5.0, NUMBER)},
    fleet.FleetResult.num_refused_for: {"self": RESULT, "reason": ("too_large", ())},
    fleet.FleetResult.saved_money: {
        "self": RESULT,
        "price": (HUGE, NUMBER),
        "cached_price": (1, (1.5, HUGE)),
    },
    fleet.synthetic_workload: {
        "num_sessions": (5, ()),
        "long_share": (0.5, ()),
        "hub_len": (512, ()),
        **MANY,
    },
    fleet.hub_workload: {
        "num_hubs": (5, ()),
        "hub_len": (512, ()),
        "tail_len": (9, ()),
        **MANY,
    },
    fleet.lognormal_workload: MANY,
    fleet.generated_workload: {"kind": ("sessions", ()), "num_sessions": (5, (None,)), **MANY},
    fleet.parse_trace: {"data": (JSONL, ()), **LIMITS},
    fleet.read_trace: {"path": ("trace", ()), **LIMITS},
    trace_files.trace_bytes: {"path": ("trace", ()), "max_bytes": (9, ())},
    trace_csv.is_csv: {"text": (b"arrival_s,input_len", ())},
    trace_csv.parse_csv: {
        "text": (b"arrival_s,input_len\n0,5", ()),
        "long_threshold": (99, COUNT),
    },
    cache.retention: {"code": ("dense", ())},
    cache.check_cache: {"capacity_blocks": (10, MAYBE), "checkpoint_blocks": (0, COUNT)},
    columns.offsets_of: {"sizes": ((1, 2), ([1],))},
    columns.require_column: {"values": (IDS, ()), "name": "values", "kinds": "iu"},
    columns.require_offsets: {"offsets": (PLACES, ()), "block_ids": IDS},
    cost.prefill_cost: {"code": ("kimi-k3", ())},
    failures.checked_failures: {
        "failures": ([(1, 5.0)], ()),
        "num_clusters": (4, COUNT),
    },
    published.fig9_hit_rate: {
        "workload": (WORKLOAD, ()),
        "capacity_tokens": (9999, COUNT),
        "system_prompt_len": (9, COUNT),
    },
    ring.stable_hash64: {"key": ("a", TEXT)},
    ring.session_key: {"session_id": ("a", TEXT)},
    ring.mix64: {"key": (5, ())},
    ring.mix64_many: {"keys": (np.array([5], np.uint64), ())},
    ring.vnode_positions: {"cluster": ("a", ("a", -1, HUGE)), "vnodes": (8, ())},
    router.router_class: {"code": ("session", ())},
    segments.Segments.of: {"block_ids": (IDS, ()), "block_offsets": (PLACES, ())},
    segments.SegmentCache: {"segments": (WORKLOAD.segments, ()), **RULE},
    stats.order_statistic: {"values": (np.array([1.0]), ()), "q": (0.5, ())},
    stats.counting_refusals: {
        "values": (np.array([1.0]), ()),
        "num_refused": (5, ()),
        "q": (0.5, ()),
    },
    synthetic.arrival_times: {
        "num": (5, ()),
        "rate_per_s": (2.0, NUMBER),
        "arrival_cv": (1.0, (1.5,)),
        "rng": (np.random.default_rng(0), ()),
    },
    synthetic.session_blocks: {
        "session": (np.array([0, 1]), ()),
        "input_len": (np.array([5, 9]), ()),
        "num_sessions": (2, ()),
        "num_hub_blocks": (0, ()),
    },
    theory.share_cv: SIZES,
    theory.share_band: {**SIZES, "level": (0.9, ())},
    theory.peak_band: {**SIZES, "level": (0.9, ())},
    workload.sessions_from_blocks: {
        "block_ids": (IDS, ()),
        "block_offsets": (PLACES, ()),
        "hub_children": (5, COUNT),
    },
}
SAID = {"code": "rule|cost|router|code", "kind": "generator", "path": "path|cannot read"}
CASES = [
    pytest.param(call, arguments, name, id=f"{call.__qualname__}-{name}")
    for call, arguments in CALLS.items()
    for name, spec in arguments.items()
    if isinstance(spec, tuple)
]


@pytest.mark.parametrize(("call", "arguments", "name"), CASES)
def test_wrong_values_are_refused_by_name_and_right_ones_taken(
    call, arguments, name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace").write_bytes(JSONL)
    given = {key: spec[0] if isinstance(spec, tuple) else spec for key, spec in arguments.items()}
    taken = arguments[name][1]
    for value in WRONG:
        may = any(type(value) is type(one) and value == one for one in taken)
        refusal = ""
        try:
            call(**{**given, name: value})
        except K3Error as error:
            refusal = str(error)
        assert bool(refusal) != may, f"{name}={value!r}: {refusal or 'taken'}"
        if refusal:
            assert any(word in refusal for word in SAID.get(name, name).split("|"))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (fleet.Request(0.0, 5.5, 1, (0,), 1), "input_len=5.5"),
        (fleet.Request(0.0, 5, None, (0,), 1), "output_len=None"),
        (fleet.Request(-1.0, 5, 1, (0,), 1), "arrival_s=-1"),
        (fleet.Request("a", 5, 1, (0,), 1), "arrival_s='a'"),
        (fleet.Request(0.0, 5, 1, (HUGE,), 1), "block_ids=1180591620717411303424"),
        (fleet.Request(0.0, 5, 1, None, 1), "block_ids=None"),
        (fleet.Request(0.0, 5, 1, (0,), None), "session_id=None"),
        ((0.0, 5, 1, (0,), 1), "must be a Request"),
    ],
)
def test_a_request_of_wrong_values_is_refused_by_name(row, words):
    with pytest.raises(K3Error, match=words):
        fleet.Workload.from_requests([row])


@pytest.mark.parametrize("failure", [None, (1,), (1, "a"), (True, 5.0), (1.5, 5.0), (1, 5.0, None)])
def test_a_failure_of_wrong_values_is_refused_by_name(failure):
    with pytest.raises(K3Error, match="failures"):
        fleet.FleetSimulator(4, failures=[failure])


def test_every_public_part_of_the_fleet_is_in_the_table():
    """All but records, whose values are looked at where they are used, and the event loop's own.

    ``seconds`` and ``kept_depths`` are asked for every request and do not look.
    """
    skipped = {"Ticket", "Request", "Failure", "Change", "Route", "Arc", "Band", "FleetResult"}
    skipped |= {"ConsistentHashRing", "EventLoop", "Fleet", "Segments", "kept_depths", "changes"}
    covered = {call.__qualname__.split(".")[0] for call in CALLS}
    for module in iter_modules(fleet.__path__, "k3core.fleet."):
        for name, part in vars(import_module(module.name)).items():
            own = callable(part) and getattr(part, "__module__", "") == module.name
            if own and not name.startswith("_") and not inspect.isabstract(part):
                is_router = inspect.isclass(part) and issubclass(part, fleet.router_base.Router)
                assert is_router or name in covered | skipped, f"{module.name}.{name}"
