"""Admission budgets: exact giving back, first in first out, no class waits for another."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import BudgetError
from k3core.fleet import BudgetController, Ticket

WEIGHTS = {"short": 1, "long": 3}


def controller(mode="reject", short=4, long=6, **kwargs):
    return BudgetController({"short": short, "long": long}, WEIGHTS, mode, **kwargs)


def shared(mode, total=6):
    lanes = {"short": "all", "long": "all"}
    return BudgetController({"all": total}, WEIGHTS, mode, lanes)


def test_a_class_is_refused_at_its_budget():
    budget = controller(long=8)
    held = [budget.admit("long") for _ in range(20)]
    assert sum(ticket is not None for ticket in held) == 8 // 3
    assert budget.num_rejected("long") == 18


def test_release_makes_room_for_exactly_one():
    budget = controller(long=3)
    ticket = budget.admit("long")
    assert budget.admit("long") is None
    assert budget.release(ticket) == []
    assert budget.usage("long") == 0
    assert budget.admit("long") is not None


def test_release_gives_back_the_weight_that_was_admitted_not_the_default():
    budget = controller(long=6)
    ticket = budget.admit("long", weight=5)
    assert (ticket.weight, budget.usage("long")) == (5, 5)
    budget.release(ticket)
    assert budget.usage("long") == 0


def test_double_release_raises_and_changes_nothing():
    budget = controller()
    first, second = budget.admit("short"), budget.admit("short")
    budget.release(first)
    with pytest.raises(BudgetError, match="released already"):
        budget.release(first)
    assert budget.usage("short") == second.weight


def test_a_forged_or_foreign_ticket_raises():
    budget, other = controller(), controller()
    ticket = budget.admit("short")
    foreign = other.admit("short")
    for bad in (foreign, Ticket(ticket.number, "short", 1), Ticket(99, "long", 3)):
        with pytest.raises(BudgetError, match="not held"):
            budget.release(bad)
    assert budget.usage("short") == 1


@pytest.mark.parametrize(
    ("budgets", "weights", "kwargs", "words"),
    [
        ({"short": 4, "long": 2}, WEIGHTS, {}, r"weights\['long'\]=3 exceeds its budget 2"),
        ({"short": 0, "long": 6}, WEIGHTS, {}, r"budgets\['short'\]=0"),
        ({"short": 4, "long": 6}, {"short": 0, "long": 3}, {}, r"weights\['short'\]=0"),
        ({"short": 4, "long": 6}, {"short": True, "long": 3}, {}, "True"),
        ({"short": 4, "long": 6}, {"short": 1.5, "long": 3}, {}, "1.5"),
        ({"short": 4}, WEIGHTS, {}, "budgets are given for"),
        ({"short": 4, "long": 6, "x": 1}, WEIGHTS, {}, "budgets are given for"),
        ({}, {}, {}, "at least one class"),
        ({"short": 4, "long": 6}, WEIGHTS, {"mode": "drop"}, "mode='drop'"),
        ({"short": 4, "long": 6}, WEIGHTS, {"lanes": {"short": "short"}}, "lanes name"),
    ],
)
def test_impossible_settings_fail_at_construction(budgets, weights, kwargs, words):
    with pytest.raises(BudgetError, match=words):
        BudgetController(budgets, weights, **kwargs)


def test_a_single_weight_above_the_budget_raises_instead_of_waiting_for_ever():
    budget = controller("queue", long=6)
    with pytest.raises(BudgetError, match="weight=7 exceeds the budget 6"):
        budget.admit("long", weight=7)
    with pytest.raises(BudgetError, match="weight=0"):
        budget.admit("long", weight=0)
    with pytest.raises(BudgetError, match="cls='medium'"):
        budget.admit("medium")
    assert (budget.num_waiting("long"), budget.usage("long")) == (0, 0)


def test_the_queue_is_first_in_first_out_within_a_class():
    budget = controller("queue", short=1)
    ticket = budget.admit("short", item="a")
    assert [budget.admit("short", item=name) for name in "bcd"] == [None] * 3
    order = []
    while ticket:
        (ticket,) = budget.release(ticket) or (None,)
        order += [ticket.item] if ticket else []
    assert order == ["b", "c", "d"]


def test_a_light_request_does_not_overtake_a_heavy_one_of_its_own_class():
    budget = controller("queue", long=4)
    first = budget.admit("long", 3)
    assert budget.admit("long", 4, item="heavy") is None
    assert budget.admit("long", 1, item="light") is None  # it would fit
    assert [ticket.item for ticket in budget.release(first)] == ["heavy"]


def test_a_waiting_class_does_not_hold_back_another():
    budget = controller("queue", short=2, long=3)
    budget.admit("long")
    assert budget.admit("long") is None
    assert budget.admit("short") is not None


def test_in_a_shared_lane_a_heavy_head_holds_back_its_class_only():
    budget = shared("queue", total=3)
    tickets = [budget.admit("short") for _ in range(3)]
    assert budget.admit("long", item="L") is None
    assert budget.admit("short", item="s") is None
    assert [ticket.item for ticket in budget.release(tickets[0])] == ["s"]


def test_a_shared_lane_admits_the_oldest_head_that_fits_first():
    budget = shared("queue", total=3)
    ticket = budget.admit("long")
    for cls, item in (("short", "s1"), ("long", "L"), ("short", "s2")):
        assert budget.admit(cls, item=item) is None
    assert [granted.item for granted in budget.release(ticket)] == ["s1", "s2"]


def test_one_release_can_let_several_in():
    budget = controller("queue", long=6)
    ticket = budget.admit("long", 6)
    for item in "ab":
        budget.admit("long", 3, item=item)
    assert [granted.item for granted in budget.release(ticket)] == ["a", "b"]
    assert budget.usage("long") == 6


def test_sharing_one_budget_lets_a_burst_of_long_ones_refuse_the_short():
    alone, together = controller("reject", short=4, long=6), shared("reject", total=10)
    for budget in (alone, together):
        for _ in range(10):
            budget.admit("long")
    assert [alone.admit("short") is not None for _ in range(4)] == [True] * 4
    assert sum(together.admit("short") is not None for _ in range(4)) == 1  # 10 - 3 * 3


def test_fresh_is_empty_with_the_same_settings():
    budget = controller("queue")
    budget.admit("long")
    copy = budget.fresh()
    assert copy.usage("long") == 0
    assert (copy.budgets, copy.weights, copy.mode, copy.lanes) == (
        budget.budgets, budget.weights, budget.mode, budget.lanes,
    )  # fmt: skip


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.sampled_from(["short", "long"]), st.integers(1, 6)),
        st.tuples(st.just("release"), st.integers(0, 30), st.just(0)),
    ),
    max_size=60,
)


@given(st.sampled_from(["reject", "queue"]), st.booleans(), OPERATIONS)
def test_usage_equals_the_held_weight_after_any_operations(mode, share, operations):
    budget = shared(mode) if share else controller(mode, short=6, long=6)
    held, waiting, refused = [], {"short": deque(), "long": deque()}, {"short": 0, "long": 0}
    admitted = 0
    for number, (what, which, weight) in enumerate(operations):
        if what == "admit":
            ticket = budget.admit(which, weight, item=number)
            if ticket is not None:
                assert not waiting[which]
                held.append(ticket)
                admitted += 1
            elif mode == "queue":
                waiting[which].append(number)
            else:
                refused[which] += 1
        elif held:
            for ticket in budget.release(held.pop(which % len(held))):
                assert waiting[ticket.cls].popleft() == ticket.item
                held.append(ticket)
                admitted += 1
        for cls in ("short", "long"):
            lane = [t for t in held if budget.lanes[t.cls] == budget.lanes[cls]]
            limit = budget.budgets[budget.lanes[cls]]
            assert budget.usage(cls) == sum(t.weight for t in lane) <= limit
            assert budget.num_held(cls) == sum(t.cls == cls for t in held)
            assert budget.num_waiting(cls) == len(waiting[cls])
            assert budget.num_rejected(cls) == refused[cls]
    asked = sum(what == "admit" for what, _, _ in operations)
    assert asked == admitted + sum(map(len, waiting.values())) + sum(refused.values())


@given(OPERATIONS)
def test_no_head_waits_while_it_fits(operations):
    budget, held = controller("queue", short=6, long=6), []
    waiting = {"short": deque(), "long": deque()}
    for what, which, weight in operations:
        if what == "admit":
            ticket = budget.admit(which, weight)
            held += [ticket] if ticket else []
            if ticket is None:
                waiting[which].append(weight)
        elif held:
            for ticket in budget.release(held.pop(which % len(held))):
                waiting[ticket.cls].popleft()
                held.append(ticket)
        for cls, queue in waiting.items():
            assert not queue or budget.usage(cls) + queue[0] > budget.budgets[cls]


@pytest.mark.parametrize(
    "ticket", [None, "short", 0, (0, "short", 1, None), Ticket([], "short", 1)]
)
def test_only_a_ticket_is_released(ticket):
    budget = controller()
    budget.admit("short")
    with pytest.raises(BudgetError, match="ticket"):
        budget.release(ticket)
    assert budget.usage("short") == 1


@pytest.mark.parametrize("cls", ["huge", None, ["short"]])
def test_an_unknown_class_is_refused_by_name(cls):
    budget = controller()
    with pytest.raises(BudgetError, match=r"cls=.* is unknown; allowed: long, short"):
        budget.admit(cls)
    assert budget.num_rejected("short") == 0
