"""The rings: which snapshot leaves first, what a window holds, what a commit replays."""

from collections import deque

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from k3core.decode import verify_and_replay
from k3core.errors import K3Error
from k3core.kda import KDAState, kda_recurrent
from k3core.replayssm import RawInputRing, ReplaySSM
from tests.helpers import (
    assert_same_projections,
    make_kda_state,
    make_projection,
    make_state,
    push_all,
    same_bits,
    shares_memory,
    to_batch,
)

SHAPE = (1, 2, 4, 3)


def numbered(number: int) -> torch.Tensor:
    return torch.full(SHAPE, float(number))


def number_of(state: torch.Tensor) -> int:
    assert state.unique().numel() == 1
    return int(state.flatten()[0])


def filled(capacity: int, numbers) -> ReplaySSM:
    ring = ReplaySSM(capacity)
    for number in numbers:
        ring.push(numbered(number))
    return ring


def drained(ring: ReplaySSM) -> list[int]:
    return [number_of(ring.pop()) for _ in range(len(ring))]


# --- snapshots: the rows of the source text's test table ----------------------------------------


def test_ring_evicts_oldest_at_capacity():
    ring = filled(4, range(7))
    assert len(ring) == 4
    assert drained(ring) == [3, 4, 5, 6]


def test_pop_after_refill_returns_oldest():
    ring = filled(4, range(4))
    assert number_of(ring.pop()) == 0
    ring.push(numbered(4))
    assert ring.is_full
    assert drained(ring) == [1, 2, 3, 4]


def test_copy_from_is_deep_and_independent():
    source = filled(3, range(5))
    target = filled(3, [90])
    target.copy_from(source)
    source.push(numbered(5))
    assert drained(target) == [2, 3, 4]
    assert drained(source) == [3, 4, 5]


# --- snapshots ----------------------------------------------------------------------------------


def test_a_snapshot_is_a_copy_of_the_state_at_push():
    ring, state = ReplaySSM(2), numbered(1)
    ring.push(state)
    state.fill_(9.0)
    assert number_of(ring.pop()) == 1


def test_copied_snapshots_share_no_memory():
    source, target = filled(2, [1, 2]), ReplaySSM(2)
    target.copy_from(source)
    assert not shares_memory(*(ring.pop() for ring in (source, source, target, target)))


def test_ring_may_copy_from_itself():
    ring = filled(3, range(5))
    ring.copy_from(ring)
    assert drained(ring) == [2, 3, 4]


def test_copy_that_does_not_fit_changes_nothing():
    target = filled(2, [7])
    with pytest.raises(K3Error, match=r"other holds 3 snapshots.*capacity=2"):
        target.copy_from(filled(3, range(3)))
    assert drained(target) == [7]


@pytest.mark.parametrize("other", [None, [1], RawInputRing(1)])
def test_only_a_snapshot_ring_is_copied(other):
    target = filled(2, [7])
    with pytest.raises(K3Error, match=r"other=.* must be a ReplaySSM"):
        target.copy_from(other)
    assert drained(target) == [7]


def test_pop_from_an_empty_ring_is_refused():
    ring = filled(1, [0])
    ring.pop()
    with pytest.raises(K3Error, match="empty ring"):
        ring.pop()
    ring.push(numbered(1))
    assert drained(ring) == [1]


def test_a_full_ring_writes_over_the_slot_of_its_oldest():
    ring = ReplaySSM(3)
    assert [ring.push(numbered(i)) for i in range(5)] == [0, 1, 2, 0, 1]
    assert ring.slots == (2, 0, 1)


def test_snapshots_carry_the_convolution_window():
    ring, state = ReplaySSM(1), make_kda_state()
    ring.push(state)
    state.conv_window.zero_()
    popped = ring.pop()
    assert isinstance(popped, KDAState)
    assert same_bits(popped.conv_window, make_kda_state().conv_window)


def test_snapshot_bytes_held():
    state = make_kda_state()
    ring = ReplaySSM(3)
    for _ in range(5):
        ring.push(state)
    assert ring.nbytes == 3 * (state.recurrent.nbytes + state.conv_window.nbytes)


@pytest.mark.parametrize("capacity", [0, -1, 1.0, True])
@pytest.mark.parametrize("ring", [ReplaySSM, RawInputRing])
def test_capacity_must_be_a_positive_integer(ring, capacity):
    with pytest.raises(K3Error, match=f"capacity={capacity}"):
        ring(capacity)


def test_only_states_can_be_pushed():
    with pytest.raises(K3Error, match="state=list"):
        ReplaySSM(1).push([1.0])


class SnapshotRingMachine(RuleBasedStateMachine):
    """The ring against a bounded deque, also through full, pop, push, pop."""

    @initialize(capacity=st.integers(1, 4))
    def start(self, capacity):
        self.ring = ReplaySSM(capacity)
        self.model = deque(maxlen=capacity)
        self.next_number = 0

    @rule(count=st.integers(1, 5))
    def push(self, count):
        for _ in range(count):
            self.ring.push(numbered(self.next_number))
            self.model.append(self.next_number)
            self.next_number += 1

    @precondition(lambda self: self.model)
    @rule()
    def pop(self):
        assert number_of(self.ring.pop()) == self.model.popleft()

    @precondition(lambda self: not self.model)
    @rule()
    def pop_empty(self):
        with pytest.raises(K3Error):
            self.ring.pop()

    @rule(extra=st.integers(0, 2))
    def copy(self, extra):
        other = ReplaySSM(self.ring.capacity + extra)
        other.push(numbered(-1))
        other.copy_from(self.ring)
        self.ring.push(numbered(-1))
        self.ring = other
        self.model = deque(self.model, maxlen=other.capacity)

    @invariant()
    def same_length_and_distinct_slots(self):
        assert len(self.ring) == len(self.model) <= self.ring.capacity
        assert len(set(self.ring.slots)) == len(self.ring)


TestSnapshotRing = SnapshotRingMachine.TestCase


# --- raw inputs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("with_conv", [False, True])
@pytest.mark.parametrize("num_pushes", [1, 3, 4, 5, 11])
def test_window_equals_the_batch_of_the_last_inputs(num_pushes, with_conv):
    batch = make_projection(num_pushes, *SHAPE, with_conv=with_conv)
    ring = RawInputRing(4)
    push_all(ring, batch)
    assert_same_projections(ring.window(), batch[max(0, num_pushes - 4) :])


@pytest.mark.parametrize("num_accepted", range(6))
def test_commit_has_the_bits_of_the_batch_replay_and_of_the_recurrence(num_accepted):
    batch, state = make_projection(5, *SHAPE), make_state(*SHAPE)
    ring = RawInputRing(5)
    push_all(ring, batch)
    committed = ring.commit(state, num_accepted)
    assert same_bits(committed, verify_and_replay(state, batch, num_accepted)[0])
    sequences = [x[:, :, :num_accepted] for x in to_batch(batch)]
    assert same_bits(committed, kda_recurrent(*sequences, state=state)[1])


def test_commit_rolls_the_convolution_window_back():
    batch, state = make_projection(5, *SHAPE, with_conv=True), make_kda_state(*SHAPE)
    ring = RawInputRing(5)
    push_all(ring, batch)
    committed = ring.commit(state, 2)
    assert same_bits(committed.conv_window, verify_and_replay(state, batch, 2)[0].conv_window)


def test_commit_empties_the_ring_and_leaves_the_old_state():
    ring, state = RawInputRing(5), make_state(*SHAPE)
    push_all(ring, make_projection(5, *SHAPE))
    committed = ring.commit(state, 3)
    assert (len(ring), len(ring.window()), ring.nbytes) == (0, 0, 0)
    assert same_bits(state, make_state(*SHAPE))
    assert not shares_memory(committed, state)


def test_next_window_begins_after_a_commit():
    first, second = make_projection(3, *SHAPE), make_projection(4, *SHAPE, seed=1)
    ring = RawInputRing(5)
    push_all(ring, first)
    ring.commit(make_state(*SHAPE), 1)
    push_all(ring, second)
    assert_same_projections(ring.window(), second)


@pytest.mark.parametrize("num_accepted", [-1, 4, 1.5])
def test_refused_commit_changes_nothing(num_accepted):
    ring, batch = RawInputRing(5), make_projection(3, *SHAPE)
    push_all(ring, batch)
    with pytest.raises(K3Error, match=f"num_accepted={num_accepted}"):
        ring.commit(make_state(*SHAPE), num_accepted)
    with pytest.raises(K3Error, match="state has shape"):
        ring.commit(make_state(1, 2, 3, 4), 1)
    assert_same_projections(ring.window(), batch)


def test_commit_before_any_push_accepts_only_nothing():
    ring, state = RawInputRing(2), make_state(*SHAPE)
    assert same_bits(ring.commit(state, 0), state)
    with pytest.raises(K3Error, match="num_accepted=1"):
        ring.commit(state, 1)


def test_window_before_any_push_is_refused():
    with pytest.raises(K3Error, match="no input has been pushed"):
        RawInputRing(2).window()


def test_losses_to_overwriting_are_counted_until_the_commit():
    ring = RawInputRing(3)
    push_all(ring, make_projection(5, *SHAPE))
    assert ring.num_overwritten == 2
    ring.commit(make_state(*SHAPE), 3)
    assert ring.num_overwritten == 0


def test_held_inputs_share_no_memory_with_what_was_pushed_or_handed_out():
    batch, ring = make_projection(2, *SHAPE), RawInputRing(2)
    push_all(ring, batch)
    handed_out = ring.window()
    for x in (*batch.tensors().values(), *handed_out.tensors().values()):
        x.zero_()
    assert_same_projections(ring.window(), make_projection(2, *SHAPE))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_raw_input_bytes_held(dtype):
    batch = make_projection(7, *SHAPE, dtype=dtype, with_conv=True)
    ring = RawInputRing(4)
    push_all(ring, batch[:3])
    assert ring.nbytes == batch[:3].nbytes
    push_all(ring, batch[3:])
    assert ring.nbytes == ring.buffer_nbytes == batch[:4].nbytes


def test_copied_raw_inputs_are_deep_and_independent():
    batch, source, target = make_projection(6, *SHAPE), RawInputRing(4), RawInputRing(5)
    push_all(source, batch)
    push_all(target, make_projection(1, *SHAPE, seed=3))
    target.copy_from(source)
    push_all(source, make_projection(2, *SHAPE, seed=4))
    assert_same_projections(target.window(), batch[2:])
    assert target.num_overwritten == 2
    push_all(target, make_projection(1, *SHAPE, seed=5))
    assert len(target) == 5


def test_raw_inputs_that_do_not_fit_are_not_copied():
    source, target = RawInputRing(3), RawInputRing(2)
    push_all(source, make_projection(3, *SHAPE))
    with pytest.raises(K3Error, match="other holds 3 inputs"):
        target.copy_from(source)
    assert len(target) == 0


@pytest.mark.parametrize("other", [None, [1], ReplaySSM(1)])
def test_only_a_ring_of_raw_inputs_is_copied(other):
    batch, target = make_projection(2, *SHAPE), RawInputRing(3)
    push_all(target, batch)
    with pytest.raises(K3Error, match=r"other=.* must be a RawInputRing"):
        target.copy_from(other)
    assert_same_projections(target.window(), batch)


@pytest.mark.parametrize("state", [None, [1.0]])
def test_an_unused_ring_commits_only_to_a_state(state):
    with pytest.raises(K3Error, match=r"state=.* must be a tensor or a KDAState"):
        RawInputRing(2).commit(state, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {**x, "k": x["k"][..., :-1]}, "q has shape"),
        (lambda x: {**x, "v": x["v"].unsqueeze(0)}, "v has shape"),
        (lambda x: {**x, "beta": x["beta"].float()}, "beta has dtype torch.float32"),
        (lambda x: {**x, "g": 1.0}, "g=float"),
        (lambda x: {**x, "conv_input": torch.zeros(1, 22)}, "on every push or on none"),
        (lambda x: {n: y.repeat(2, *[1] * (y.dim() - 1)) for n, y in x.items()}, "as pushed"),
    ],
)
def test_refused_push_changes_nothing(change, message):
    batch, ring = make_projection(3, *SHAPE), RawInputRing(4)
    push_all(ring, batch)
    step = {name: x[0] for name, x in make_projection(1, *SHAPE).tensors().items()}
    with pytest.raises(K3Error, match=message):
        ring.push(**change(step))
    assert_same_projections(ring.window(), batch)


class RawInputRingMachine(RuleBasedStateMachine):
    """The ring against a list of inputs and the plain recurrence over all accepted ones."""

    @initialize(capacity=st.integers(1, 5), with_conv=st.booleans())
    def start(self, capacity, with_conv):
        self.ring = RawInputRing(capacity)
        self.with_conv = with_conv
        self.held = deque(maxlen=capacity)
        self.accepted = []
        self.first = make_kda_state(*SHAPE) if with_conv else make_state(*SHAPE)
        self.state = self.first
        self.seed = 0

    @rule(count=st.integers(1, 3))
    def push(self, count):
        self.seed += 1
        batch = make_projection(count, *SHAPE, seed=self.seed, with_conv=self.with_conv)
        push_all(self.ring, batch)
        self.held.extend(batch[i : i + 1] for i in range(count))

    @precondition(lambda self: self.ring.num_overwritten == 0)
    @rule(share=st.floats(0, 1))
    def commit(self, share):
        num_accepted = round(share * len(self.held))
        self.state = self.ring.commit(self.state, num_accepted)
        self.accepted += list(self.held)[:num_accepted]
        self.held.clear()

    @precondition(lambda self: self.ring.num_overwritten > 0)
    @rule()
    def drop(self):
        self.ring.clear()
        self.held.clear()

    @rule()
    def copy(self):
        other = RawInputRing(self.ring.capacity)
        other.copy_from(self.ring)
        self.ring = other

    @invariant()
    def window_is_the_list(self):
        assert len(self.ring) == len(self.held)
        if self.held:
            for name, x in self.ring.window().tensors().items():
                parts = [one.tensors()[name] for one in self.held]
                assert same_bits(x, torch.cat(parts))

    @invariant()
    def state_is_the_recurrence(self):
        if not self.accepted:
            return
        parts = [to_batch(one) for one in self.accepted]
        sequences = [torch.cat(column, dim=2) for column in zip(*parts, strict=True)]
        first = self.first.recurrent if self.with_conv else self.first
        actual = self.state.recurrent if self.with_conv else self.state
        assert same_bits(actual, kda_recurrent(*sequences, state=first)[1])
        if self.with_conv:
            raw = [self.first.conv_window.transpose(0, 1)]
            raw += [one.conv_inputs for one in self.accepted]
            assert same_bits(self.state.conv_window, torch.cat(raw)[-3:].transpose(0, 1))


TestRawInputRing = RawInputRingMachine.TestCase
