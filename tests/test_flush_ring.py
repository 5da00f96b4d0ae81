"""The ring with deferred flush: when history becomes state, and that nothing is lost on the way."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import K3Error
from k3core.kda import kda_recurrent
from k3core.replayssm import FlushRing
from tests.helpers import (
    assert_same_projections,
    make_kda_state,
    make_projection,
    make_state,
    same_bits,
    shares_memory,
    to_batch,
)

SHAPE = (1, 2, 4, 3)


def run_steps(ring: FlushRing, accepted_counts, *, verify_len: int, with_conv: bool = False):
    """Verify and accept step by step; returns the steps and all accepted inputs."""
    steps, accepted = [], []
    for seed, num_accepted in enumerate(accepted_counts):
        batch = make_projection(verify_len, *SHAPE, seed=seed, with_conv=with_conv)
        steps.append((ring.verify(batch), batch))
        ring.accept(num_accepted)
        accepted.append(batch[:num_accepted])
    return steps, accepted


def recurrence_over(parts, state) -> torch.Tensor:
    columns = zip(*(to_batch(part) for part in parts), strict=True)
    return kda_recurrent(*(torch.cat(column, dim=2) for column in columns), state=state)


@pytest.mark.parametrize(("window_len", "verify_len", "flush_min"), [(16, 8, 9), (16, 4, 13)])
def test_published_flush_thresholds(window_len, verify_len, flush_min):
    # FlashInfer #4864.
    assert FlushRing(make_state(*SHAPE), window_len, verify_len).flush_min == flush_min


def test_history_folds_only_from_the_threshold():
    ring = FlushRing(make_state(*SHAPE), window_len=16, verify_len=8)
    steps, _ = run_steps(ring, [4, 4, 1, 8, 0, 1], verify_len=8)
    assert [step.history_len for step, _ in steps] == [0, 4, 8, 0, 8, 8]
    assert [step.num_folded for step, _ in steps] == [0, 0, 0, 9, 0, 0]


def test_window_is_never_exceeded_and_often_reached():
    ring = FlushRing(make_state(*SHAPE), window_len=8, verify_len=4)
    steps, _ = run_steps(ring, [0, 4, 1, 2, 3, 4] * 5, verify_len=4)
    lengths = [step.history_len + step.in_flight_len for step, _ in steps]
    assert max(lengths) == 8


def test_state_is_written_less_often_than_steps_are_made():
    ring = FlushRing(make_state(*SHAPE), window_len=16, verify_len=4)
    steps, _ = run_steps(ring, [2] * 28, verify_len=4)
    assert sum(step.num_folded > 0 for step, _ in steps) == 3


def test_outputs_and_state_have_the_bits_of_the_recurrence():
    first = make_state(*SHAPE)
    ring = FlushRing(first, window_len=10, verify_len=4, num_rows=10)
    accepted = []
    for seed, num_accepted in enumerate([4, 2, 0, 3, 4, 1, 4, 4, 0, 2]):
        batch = make_projection(4, *SHAPE, seed=seed)
        step = ring.verify(batch)
        out, _ = recurrence_over([*accepted, batch], first)
        assert same_bits(step.outputs, out[:, :, -4:])
        ring.accept(num_accepted)
        accepted.append(batch[:num_accepted])
    assert same_bits(ring.flush(), recurrence_over(accepted, first)[1])
    assert ring.history_len == 0


def test_convolution_window_follows_the_fold():
    first = make_kda_state(*SHAPE)
    ring = FlushRing(first, window_len=8, verify_len=4)
    _, accepted = run_steps(ring, [4, 2, 3, 1], verify_len=4, with_conv=True)
    raw = [first.conv_window.transpose(0, 1), *(part.conv_inputs for part in accepted)]
    assert same_bits(ring.flush().conv_window, torch.cat(raw)[-3:].transpose(0, 1))


def test_verify_without_accept_drops_what_was_in_flight():
    ring = FlushRing(make_state(*SHAPE), window_len=8, verify_len=4)
    run_steps(ring, [2], verify_len=4)
    ring.verify(make_projection(4, *SHAPE, seed=7))
    ring.verify(make_projection(3, *SHAPE, seed=8))
    assert (ring.history_len, ring.in_flight_len) == (2, 3)
    assert_same_projections(ring.history(), make_projection(4, *SHAPE, seed=0)[:2])


def test_verification_leaves_the_state_and_the_given_state_alone():
    first = make_state(*SHAPE)
    ring = FlushRing(first, window_len=8, verify_len=4)
    run_steps(ring, [4], verify_len=4)
    assert same_bits(ring.state, first)
    assert not shares_memory(ring.state, first)
    first.zero_()
    assert same_bits(ring.state, make_state(*SHAPE))


def test_rows_run_around_the_ring():
    ring = FlushRing(make_state(*SHAPE), window_len=4, verify_len=2, num_rows=5)
    steps, _ = run_steps(ring, [2, 2, 2, 2], verify_len=2)
    assert [step.rows for step, _ in steps] == [(0, 1), (0, 1, 2, 3), (4, 0), (4, 0, 1, 2)]
    assert ring.base == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_len": 0}, "window_len=0"),
        ({"verify_len": 0}, "verify_len=0"),
        ({"window_len": 4, "verify_len": 5}, "verify_len=5.*<= 4"),
        ({"window_len": 8, "num_rows": 7}, "num_rows=7"),
    ],
)
def test_impossible_flush_ring_is_refused(arguments, message):
    with pytest.raises(K3Error, match=message):
        FlushRing(make_state(*SHAPE), **arguments)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (make_projection(0, *SHAPE), r"len\(projections\)=0"),
        (make_projection(5, *SHAPE), r"len\(projections\)=5.*<= 4"),
        (make_projection(4, 1, 2, 4, 7), "v has shape"),
        (make_projection(4, *SHAPE, dtype=torch.float32), "q has dtype torch.float32"),
    ],
)
def test_refused_verification_changes_nothing(batch, message):
    ring = FlushRing(make_state(*SHAPE), window_len=8, verify_len=4)
    run_steps(ring, [4, 2], verify_len=4)
    before = (ring.history_len, ring.base, ring.in_flight_len, ring.state)
    with pytest.raises(K3Error, match=message):
        ring.verify(batch)
    after = (ring.history_len, ring.base, ring.in_flight_len, ring.state)
    assert before[:3] == after[:3]
    assert same_bits(before[3], after[3])


def test_more_cannot_be_accepted_than_is_in_flight():
    ring = FlushRing(make_state(*SHAPE), window_len=8, verify_len=4)
    ring.verify(make_projection(3, *SHAPE))
    with pytest.raises(K3Error, match=r"num_accepted=4.*<= 3"):
        ring.accept(4)
    ring.accept(3)
    with pytest.raises(K3Error, match=r"num_accepted=1.*<= 0"):
        ring.accept(1)


@given(
    window_len=st.integers(1, 9),
    data=st.data(),
)
def test_any_run_of_steps_equals_the_recurrence(window_len, data):
    verify_len = data.draw(st.integers(1, window_len))
    num_rows = data.draw(st.integers(window_len, 2 * window_len))
    first = make_state(*SHAPE, dtype=torch.float32)
    ring = FlushRing(first, window_len, verify_len, num_rows)
    accepted = []
    for seed in range(data.draw(st.integers(1, 8))):
        in_flight = data.draw(st.integers(1, verify_len))
        batch = make_projection(in_flight, *SHAPE, seed=seed)
        step = ring.verify(batch)
        assert step.history_len + step.in_flight_len <= window_len
        out, _ = recurrence_over([*accepted, batch], first)
        assert same_bits(step.outputs, out[:, :, -in_flight:])
        num_accepted = data.draw(st.integers(0, in_flight))
        ring.accept(num_accepted)
        accepted.append(batch[:num_accepted])
        assert ring.history_len <= window_len
    assert same_bits(ring.flush(), recurrence_over(accepted, first)[1])
