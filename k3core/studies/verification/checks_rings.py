"""Checks of the rings (page 2)."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from k3core.studies.oracle import oracle_recurrent
from k3core.studies.verification.check import (
    ACCOUNTING,
    ORACLE,
    SELF,
    Case,
    Reading,
    check,
    counted,
    difference,
    same_bits,
)
from k3core.studies.verification.inputs import (
    NUM_ACCEPTED,
    WINDOW_LEN,
    Sequences,
    WindowInputs,
    committed_state,
    sequences,
    verify_window,
)

PAGE = "replayssm"
FP64, FP32 = 1e-12, 1e-5
CAPACITY = 4


@check(PAGE, ACCOUNTING)
def test_ring_evicts_oldest_at_capacity(case: Case) -> Reading:
    """Seven snapshots into four slots: the last four come out, oldest first."""
    states = [committed_state(case.seed + i, case.torch_dtype) for i in range(7)]
    ring = case.subject.replayssm.ReplaySSM(CAPACITY)
    model = deque(states, maxlen=CAPACITY)
    for state in states:
        ring.push(state)
    held = len(ring)
    right = [same_bits(ring.pop(), model.popleft()) for _ in range(held)]
    return counted(sum(right), CAPACITY)


@check(PAGE, ACCOUNTING)
def test_pop_after_refill_returns_oldest(case: Case) -> Reading:
    """Full, pop, push, pop: the second pop is snapshot 1. A ring with a cursor alone gives 4."""
    ring = case.subject.replayssm.ReplaySSM(CAPACITY)
    for index in range(CAPACITY):
        ring.push(torch.full((1, 1, 2, 3), float(index)))
    ring.pop()
    ring.push(torch.full((1, 1, 2, 3), float(CAPACITY)))
    return counted(float(ring.pop().max()), 1.0)


@check(PAGE, SELF)
def test_copy_from_is_deep_and_independent(case: Case) -> float:
    """Whatever happens to the copy, the original gives back what it was given."""
    ring_type = case.subject.replayssm.ReplaySSM
    states = [committed_state(case.seed + i, case.torch_dtype) for i in range(3)]
    expected = [state.clone() for state in states]
    ring, copy = ring_type(CAPACITY), ring_type(CAPACITY)
    for state in states:
        ring.push(state)
    copy.copy_from(ring)
    if len(copy) != len(ring):
        return math.inf
    copy.pop().fill_(math.nan)
    copy.push(torch.zeros_like(states[0]))
    copy.pop()
    return max(difference(ring.pop(), state) for state in expected)


def _push_all(case: Case, inputs: WindowInputs, capacity: int) -> Any:
    ring = case.subject.replayssm.RawInputRing(capacity)
    for t in range(WINDOW_LEN):
        ring.push(*(x[:, :, t] for x in inputs.sequences), inputs.conv_inputs[:, t])
    return ring


@check(PAGE, SELF)
def ring_window_equals_batch(case: Case) -> float:
    inputs = verify_window(case)
    batch = case.subject.decode.DraftProjections.from_sequences(
        *inputs.sequences, inputs.conv_inputs
    ).tensors()
    streamed = _push_all(case, inputs, WINDOW_LEN).window().tensors()
    if set(batch) != set(streamed):
        return math.inf
    return max(difference(streamed[name], x) for name, x in batch.items())


@check(PAGE, SELF, in_matrix=True)
def ring_commit_equals_replay(case: Case) -> float:
    """The streamed ring against the batch: the two share every step of the replay."""
    inputs = verify_window(case)
    kda, decode = case.subject.kda, case.subject.decode
    committed = kda.KDAState(inputs.state, inputs.conv_window)
    ring = _push_all(case, inputs, WINDOW_LEN)
    streamed = ring.commit(kda.copy_state(committed), NUM_ACCEPTED)
    batch, _ = decode.verify_and_replay(
        committed,
        decode.DraftProjections.from_sequences(*inputs.sequences, inputs.conv_inputs),
        NUM_ACCEPTED,
    )
    return max(difference(a, b) for a, b in zip(streamed, batch, strict=True))


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def ring_commit_matches_oracle(case: Case) -> float:
    inputs = verify_window(case)
    text = torch.cat([inputs.conv_window, inputs.conv_inputs], dim=1).numpy()
    _, expected = oracle_recurrent(*inputs.sequences.head(NUM_ACCEPTED), state=inputs.state.clone())
    ring = _push_all(case, inputs, WINDOW_LEN)
    committed = case.subject.kda.KDAState(inputs.state, inputs.conv_window)
    state = ring.commit(committed, NUM_ACCEPTED)
    window = text[:, NUM_ACCEPTED : NUM_ACCEPTED + inputs.conv_window.shape[1]]
    return max(difference(state.recurrent, expected), difference(state.conv_window, window))


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def deferred_flush_matches_oracle(case: Case) -> float:
    """Five steps of a flush ring: outputs of accepted tokens, and the state after the last fold."""
    verify_len, accepted_per_step = 4, (3, 0, 4, 1, 2)
    inputs = sequences(
        verify_len * len(accepted_per_step), case.seed, case.correlated, case.torch_dtype
    )
    state = committed_state(case.seed, case.torch_dtype)
    ring = case.subject.replayssm.FlushRing(state, window_len=9, verify_len=verify_len)
    outputs: list[Tensor] = []
    kept: list[int] = []
    for step, num_accepted in enumerate(accepted_per_step):
        at = slice(step * verify_len, (step + 1) * verify_len)
        window = Sequences(*(x[:, :, at] for x in inputs))
        verified = ring.verify(case.subject.decode.DraftProjections.from_sequences(*window))
        ring.accept(num_accepted)
        outputs.append(verified.outputs[:, :, :num_accepted])
        kept += range(at.start, at.start + num_accepted)
    expected_out, expected = oracle_recurrent(
        *Sequences(*(x[:, :, kept] for x in inputs)), state=state
    )
    return max(
        difference(torch.cat(outputs, dim=2), expected_out), difference(ring.flush(), expected)
    )


CHECKS = (
    test_ring_evicts_oldest_at_capacity,
    test_pop_after_refill_returns_oldest,
    test_copy_from_is_deep_and_independent,
    ring_window_equals_batch,
    ring_commit_equals_replay,
    ring_commit_matches_oracle,
    deferred_flush_matches_oracle,
)
