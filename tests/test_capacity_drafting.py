"""What drafting earns and costs, against published acceptance and a published load curve."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity import speculation
from k3core.capacity.planner import Deployment, plan
from k3core.errors import CapacityError, K3Error


def test_golden_schedule_is_the_one_that_engines_use():
    """ATOM #1948: 3.78 over seven drafts is 1, 1, 0.78, 0, 0, 0, 0."""
    assert speculation.golden_schedule(3.78, 7) == (1.0, 1.0, 0.78, 0.0, 0.0, 0.0, 0.0)


@given(st.integers(1, 15), st.floats(0, 1))
def test_golden_schedule_has_the_length_that_it_was_made_for(drafts, part):
    length = 1 + part * drafts
    schedule = speculation.golden_schedule(length, drafts)
    assert speculation.expected_tokens(schedule) == pytest.approx(length, abs=1e-6)


def test_golden_lengths_are_interpolated_between_published_ones():
    assert [speculation.golden_length(k) for k in (0, 2, 7)] == [1.0, 2.51, 3.84]
    assert 3.36 < speculation.golden_length(5) < 3.75
    with pytest.raises(CapacityError, match="beyond the published 7"):
        speculation.golden_length(8)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_expected_tokens_lie_between_one_and_the_width(acceptance):
    tokens = speculation.expected_tokens(acceptance)
    assert 1 <= tokens <= 1 + len(acceptance) + 1e-9


def test_published_curve_says_when_drafting_loses():
    """Infera #74: 2.60x at 4 requests, 0.99x at 32, 0.90x at 64."""
    curve = speculation.INFERA_74
    assert [round(p.gain, 2) for p in curve.points] == [2.60, 1.36, 1.10, 0.99, 0.90]
    assert 16 < curve.break_even < 32
    cost = curve.fitted_row_cost(3.84)
    assert speculation.load_gain(3.84, 8, 4, cost) > 1 > speculation.load_gain(3.84, 8, 64, cost)


def test_measured_gain_is_read_between_points_and_never_beyond():
    curve = speculation.INFERA_74
    assert [curve.gain_at(p.concurrency) for p in curve.points] == pytest.approx(
        [p.gain for p in curve.points]
    )
    assert curve.gain_at(curve.break_even) == pytest.approx(1)
    assert curve.gain_at(3) is curve.gain_at(65) is curve.gain_at(0) is None
    with pytest.raises(CapacityError, match="concurrency"):
        curve.gain_at(-1)


def test_balance_names_what_drafting_takes():
    drafted = plan(Deployment(tp=8, pool_rule="split", mean_tokens=8192, budget_gib=28.5))
    plain = plan(dataclasses.replace(drafted.deployment, drafts=0))
    found = speculation.balance(plain, drafted, 3.84)
    assert found.verify_width == 8
    assert found.added_bytes == 11_260_800
    assert found.reuse_lost_tokens == 1536
    assert found.requests_plain == 51
    assert found.requests_drafted < 51
    assert found.memory_bound_gain == pytest.approx(
        3.84 * found.requests_drafted / found.requests_plain
    )
    assert found.traffic_drafted < found.traffic_plain
    with pytest.raises(CapacityError, match="tokens_per_step=9"):
        speculation.balance(plain, drafted, 9)


def test_sizes_that_are_no_dtype_are_refused():
    with pytest.raises(K3Error):
        plan(Deployment(state_dtype="int4"))
    assert math.isfinite(plan(Deployment()).max_concurrency)
