"""Options of the fleet: servers, decode, weights, retention, admission by tokens, windows, cost."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import BudgetError, K3Error
from k3core.fleet import (
    BudgetController,
    DecodeStage,
    Failure,
    FleetSimulator,
    PrefillCost,
    Request,
    RouterSettings,
    Workload,
    hub_workload,
    synthetic_workload,
)
from k3core.fleet.cache import BlockCache, retention
from k3core.fleet.segments import SegmentCache
from tests.fleet_helpers import UNIT, requests

TOKENS = {"short": 1, "long": 1}


# ---- servers, decode, weights ------------------------------------------------------------------


def test_two_servers_of_a_cluster_prefill_two_requests_at_once():
    workload = requests((0.0, 2000, 0), (0.0, 1000, 0), (0.0, 1000, 0))
    result = FleetSimulator(1, cost=UNIT, servers=2).run(workload)
    assert result.finish_s.tolist() == [2.0, 1.0, 2.0]
    assert result.utilisation == 1.0


def test_decode_holds_prompt_and_answer_and_lets_prefill_go_on():
    rows = [Request(0.0, 1000, 100, (2 * i, 2 * i + 1), i) for i in range(3)]
    stage = DecodeStage(token_budget=2300, seconds_per_token=0.05)
    result = FleetSimulator(1, cost=UNIT, decode=stage).run(Workload.from_requests(rows))
    assert result.finish_s.tolist() == [1.0, 2.0, 3.0]
    # Two fit at once; the third waits until the first has given its answer.
    assert result.done_s.tolist() == [6.0, 7.0, 11.0]


def test_a_request_that_no_decode_stage_can_hold_is_refused_with_its_reason():
    rows = [Request(0.0, 1000, 9000, (1, 2), 0), Request(0.0, 1000, 10, (3, 4), 1)]
    result = FleetSimulator(1, decode=DecodeStage(5000)).run(Workload.from_requests(rows))
    assert result.num_refused_for("too_large") == 1
    assert result.num_served() == 1


def test_a_failure_during_decode_starts_the_request_over():
    workload = Workload.from_requests([Request(0.0, 1000, 100, (1, 2), 0)])
    stage = DecodeStage(seconds_per_token=0.1)
    simulator = FleetSimulator(
        2, cost=UNIT, decode=stage, failures=[Failure(0, 5.0), Failure(1, 5.5, 6.0)]
    )
    result = simulator.run(workload)
    assert result.num_moved == 1
    assert result.done_s[0] > 11.0
    assert result.lost_s.sum() > 0


def test_a_budget_is_held_until_the_answer_is_complete():
    rows = [Request(float(t), 1000, 100, (2 * t, 2 * t + 1), t) for t in (0, 2)]
    budget = BudgetController({"short": 1, "long": 1}, TOKENS)
    stage = DecodeStage(seconds_per_token=0.05)
    result = FleetSimulator(1, cost=UNIT, admission=budget, decode=stage).run(
        Workload.from_requests(rows)
    )
    assert (result.num_served(), result.num_refused_for("no_budget")) == (1, 1)


def test_a_cluster_of_twice_the_weight_gets_twice_the_sessions():
    workload = requests(*[(float(i), 600, i) for i in range(4000)])
    result = FleetSimulator(4, weights=[2, 1, 1, 1], vnodes=400).run(workload)
    shares = np.bincount(result.cluster) / 4000
    assert shares[0] == pytest.approx(0.4, abs=0.04)


@pytest.mark.parametrize("weights", [[1, 1], [1, 1, 1, 0], [1, 1, 1, math.inf]])
def test_bad_weights_raise(weights):
    with pytest.raises(K3Error, match="weights"):
        FleetSimulator(4, weights=weights)


# ---- retention ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reused"),
    [
        ("none", 0),
        ("replay", 0),  # the shared 8 blocks end before the replay boundary
        ("every-3", 6 * 512),
        ("every-4", 8 * 512),
        ("dense", 8 * 512),
        ("dense+cap1", 0),
    ],
)
def test_reuse_is_the_deepest_kept_checkpoint_inside_the_match(code, reused):
    first, second = list(range(10)), [*range(8), 20, 21]
    cache = BlockCache(None, code)
    cache.store(first, 0, 10 * 512)
    assert cache.match(second) == 8
    assert cache.usable(second, 8, 10 * 512) == reused


def test_a_junction_makes_a_shared_prefix_reusable_from_its_third_sighting():
    cache = BlockCache(None, "junction")
    for number in range(3):
        path = [*range(8), 20 + 2 * number, 21 + 2 * number]
        matched = cache.match(path)
        reused = cache.usable(path, matched, 5120)
        cache.store(path, matched, 5120)
    assert reused == 8 * 512


@pytest.mark.parametrize("code", ["sometimes", "every-0", "every-x", "chunk_end", "dense+cap0"])
def test_unknown_policies_raise(code):
    with pytest.raises(K3Error, match="rule"):
        retention(code)


CODES = ["dense", "junction", "replay", "none", "every-2", "junction+cap1", "every-1+cap2"]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=25),
    st.sampled_from([None, 0, 1, 4, 9, 30]),
    st.sampled_from(CODES),
    st.integers(0, 3),
)
def test_both_caches_agree_under_every_policy_and_weight(choices, capacity, code, weight):
    """Hits, reuse, blocks and checkpoints, request by request; the capacity is never exceeded."""
    ids: dict[tuple[int, ...], int] = {}
    rows = []
    for number, path in enumerate(choices):
        prefixes = [tuple(path[: depth + 1]) for depth in range(len(path))]
        blocks = tuple(ids.setdefault(prefix, len(ids)) for prefix in prefixes)
        rows.append(Request(float(number), 512 * len(path) - 100 * (number % 2), 1, blocks, 0))
    workload = Workload.from_requests(rows)
    plain = BlockCache(capacity, code, weight)
    fast = SegmentCache(workload.segments, capacity, code, weight)
    for index, row in enumerate(rows):
        path = workload.segments.path(index)
        matched = plain.match(row.block_ids)
        assert fast.match(path) == matched
        reused = plain.usable(row.block_ids, matched, row.input_len)
        assert fast.usable(path, matched, row.input_len) == reused
        plain.store(row.block_ids, matched, row.input_len)
        fast.store(path, matched, row.input_len)
        assert (len(fast), fast.num_checkpoints) == (len(plain), plain.num_checkpoints)
        if capacity is not None:
            assert len(plain) + weight * plain.num_checkpoints <= capacity


def test_checkpoints_that_weigh_leave_less_room_for_blocks():
    workload = synthetic_workload(600, 80, 5.0)
    reuse = {
        (code, weight): FleetSimulator(1, capacity_blocks=4000, rule=code, checkpoint_blocks=weight)
        .run(workload)
        .reuse_share
        for code in ("dense", "junction")
        for weight in (0, 8)
    }
    assert reuse["dense", 0] >= reuse["junction", 0]
    assert reuse["junction", 8] > reuse["dense", 8]  # the order turns round


# ---- admission and classes by tokens -----------------------------------------------------------


def turns(uncached_second=600):
    """A long first turn, and a second one that repeats it with little new."""
    path = tuple(range(60))
    more = (*path, 100, 101)
    return Workload.from_requests(
        [Request(0.0, 60 * 512, 1, path, 7), Request(1000.0, 61 * 512 + 88, 1, more, 7)]
    )


def test_the_estimate_at_arrival_touches_nothing_and_is_exact_when_the_home_is_idle():
    workload = turns()
    budget = BudgetController({"short": 40_000, "long": 40_000}, TOKENS)
    plain = FleetSimulator(4, rule="dense").run(workload)
    looked = FleetSimulator(
        4, rule="dense", admission=budget, admission_by="uncached", class_by="uncached"
    ).run(workload)
    np.testing.assert_array_equal(plain.finish_s, looked.finish_s)
    assert looked.is_long.tolist() == [True, False]  # 30,720 new tokens, then 600
    assert plain.is_long.tolist() == [True, True]


def test_by_total_a_request_larger_than_its_budget_is_refused_at_once_by_uncached_it_enters():
    workload = turns()
    budget = BudgetController({"short": 31_000, "long": 31_000}, TOKENS, "queue")
    by = {
        name: FleetSimulator(4, rule="dense", admission=budget, admission_by=name).run(workload)
        for name in ("total", "uncached")
    }
    assert by["total"].num_refused_for("too_large") == 1
    assert by["uncached"].num_served() == 2


def test_without_overtaking_a_heavy_head_holds_back_light_requests_of_its_class():
    def order(max_overtakes):
        budget = BudgetController({"a": 10}, {"a": 1}, "queue", max_overtakes=max_overtakes)
        running = budget.admit("a", 6)
        assert budget.admit("a", 8, item="heavy") is None
        entered = [budget.admit("a", 2, item=i) is not None for i in range(3)]
        return entered, [ticket.item for ticket in budget.release(running)]

    assert order(0) == ([False, False, False], ["heavy", 0])
    assert order(1) == ([True, False, False], ["heavy"])
    assert order(2)[0] == [True, True, False]


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.booleans(), st.integers(1, 6)), min_size=1, max_size=60),
)
def test_nobody_is_overtaken_more_often_than_allowed(max_overtakes, steps):
    budget = BudgetController({"a": 6}, {"a": 1}, "queue", max_overtakes=max_overtakes)
    held, entered, number = [], [], 0
    for arrives, weight in steps:
        if arrives:
            ticket = budget.admit("a", weight, item=number)
            number += 1
            granted = [ticket] if ticket else []
        else:
            granted = budget.release(held.pop(0)) if held else []
        held += granted
        entered += [ticket.item for ticket in granted]
        assert budget.usage("a") == sum(ticket.weight for ticket in held) <= 6
    for place, item in enumerate(entered):
        assert sum(other > item for other in entered[:place]) <= max_overtakes


def test_overtaking_must_be_a_count():
    with pytest.raises(BudgetError, match="max_overtakes"):
        BudgetController({"a": 1}, {"a": 1}, max_overtakes=-1)


# ---- routers -----------------------------------------------------------------------------------


def test_mooncake_fetches_a_prefix_that_another_cluster_holds():
    path = tuple(range(20))
    rows = [Request(0.0, 10_240, 1, path, 0), Request(100.0, 10_240, 1, (*path[:19], 99), 0)]
    rows += [Request(100.0, 10_240, 1, (*path[:19], 98), 0)]
    result = FleetSimulator(2, router="mooncake", cost=UNIT, rule="dense").run(
        Workload.from_requests(rows)
    )
    assert sorted(result.cluster[1:].tolist()) == [0, 1]  # one stays, one fetches
    assert sorted(result.fetched_len.tolist()) == [0, 0, 19 * 512]
    assert (result.reused_len[1:] == 19 * 512).all()


def test_dynamo_weighs_overlap_against_the_blocks_that_a_cluster_holds():
    path = tuple(range(10))
    rows = [Request(0.0, 5120, 1, path, 0), Request(100.0, 5120, 1, (*path[:9], 50), 0)]
    rows += [Request(100.0, 5120, 1, (*path[:9], 51), 0)]
    result = FleetSimulator(2, router="dynamo", cost=UNIT).run(Workload.from_requests(rows))
    # The warm cluster costs 1 new block; then it holds 10 blocks and 1 to compute: 12 against 10.
    warm = result.cluster[0]
    assert result.cluster[1:].tolist() == [warm, 1 - warm]


def test_sglang_follows_the_prefix_until_request_counts_differ_too_much():
    workload = hub_workload(60, rate_per_s=1e6, num_hubs=1)
    settings = RouterSettings(balance_abs=10, balance_rel=1.5)
    tight = FleetSimulator(4, router="sglang", routing=settings).run(workload)
    loose = FleetSimulator(4, router="sglang").run(workload)
    assert np.bincount(loose.cluster, minlength=4).max() == 60
    assert np.bincount(tight.cluster, minlength=4).max() < 30


def test_sglang_believes_in_blocks_that_were_evicted():
    """Its tree never hears of evictions: the request goes where its prefix was, and misses."""
    rows = [Request(1000.0 * i, 5120, 1, tuple(range(10 * i, 10 * i + 10)), 0) for i in range(2)]
    rows.append(Request(2000.0, 5120, 1, tuple(range(10)), 0))
    result = FleetSimulator(1, router="sglang", capacity_blocks=10).run(
        Workload.from_requests(rows)
    )
    assert result.hit_blocks[2] == 0
    two = FleetSimulator(2, router="sglang", capacity_blocks=10).run(Workload.from_requests(rows))
    assert two.cluster[2] == two.cluster[0]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"load_factor": 0.5},
        {"balancing_threshold": 0.5},
        {"cache_threshold": 2.0},
        {"refresh_s": -1.0},
        {"transfer_s_per_token": math.inf},
    ],
)
def test_impossible_router_settings_raise(kwargs):
    with pytest.raises(K3Error, match=next(iter(kwargs))):
        RouterSettings(**kwargs)


# ---- results and cost --------------------------------------------------------------------------


def test_a_window_counts_its_arrivals_and_simulates_all():
    workload = synthetic_workload(400, 50, 4.0)
    whole = FleetSimulator(4).run(workload)
    half = FleetSimulator(4, window_s=(50.0, math.inf)).run(workload)
    np.testing.assert_array_equal(whole.finish_s, half.finish_s)
    late = workload.arrival_s >= 50.0
    assert half.num_served() == late.sum() < 400
    assert half.as_dict()["window"]["num_requests"] == late.sum()
    assert half.num_hit_tokens == whole.hit_len[late].sum()
    assert half.reuse_share > whole.reuse_share  # the cold start is outside


def test_saved_money_is_the_price_difference_of_the_reused_tokens():
    result = FleetSimulator(2).run(synthetic_workload(300, 40, 2.0))
    expected = result.num_reused_tokens * 2.7 / 1e6
    assert result.saved_money(3.0, 0.3) == pytest.approx(expected)
    with pytest.raises(K3Error, match="cached_price"):
        result.saved_money(1.0, 2.0)


TRUE = PrefillCost("true", linear_s=4e-5, quadratic_s=2e-10, fixed_s=0.05)
MEASURED = [(n, c, TRUE.seconds(n, c)) for n, c in ((2000, 0), (60_000, 0), (120_000, 60_000))]


def test_three_measured_prefills_give_the_cost_model_back():
    fitted = PrefillCost.calibrated(MEASURED)
    assert fitted.linear_s == pytest.approx(TRUE.linear_s)
    assert fitted.quadratic_s == pytest.approx(TRUE.quadratic_s)
    assert fitted.fixed_s == pytest.approx(TRUE.fixed_s)


def test_two_measured_prefills_fix_the_linear_and_the_quadratic_part():
    fitted = PrefillCost.calibrated(MEASURED[1:])
    assert fitted.fixed_s == 0.0
    for input_len, cached_len, seconds in MEASURED[1:]:
        assert fitted.seconds(input_len, cached_len) == pytest.approx(seconds)


def test_noise_never_makes_a_part_of_the_cost_negative():
    fitted = PrefillCost.calibrated([(1000, 0, 0.2), (2000, 0, 0.3), (4000, 0, 0.55)])
    assert min(fitted.linear_s, fitted.quadratic_s, fitted.fixed_s) >= 0


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ([(1000, 0, 1.0)], "two or more"),
        ([(1000, 0, 1.0), (1000, 0, 1.1)], "too much alike"),
        ([(1000, 1000, 1.0), (500, 0, 1.0)], "cached < prompt"),
        ([(1000, 0, 0.0), (500, 0, 1.0)], "positive seconds"),
    ],
)
def test_measurements_that_say_nothing_raise(measured, words):
    with pytest.raises(K3Error, match=words):
        PrefillCost.calibrated(measured)
