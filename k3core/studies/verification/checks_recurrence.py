"""Checks of the recurrence and of speculative replay (page 1)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from k3core.capacity.presets import PRESETS
from k3core.studies.decode import rollback
from k3core.studies.oracle import (
    oracle_convolution,
    oracle_gate,
    oracle_l2_normalize,
    oracle_recurrent,
    oracle_softplus_gate,
)
from k3core.studies.verification.check import (
    ACCOUNTING,
    ORACLE,
    SELF,
    Case,
    Reading,
    check,
    counted,
    difference,
)
from k3core.studies.verification.inputs import (
    CHANNELS,
    CONV_WIDTH,
    DK,
    DV,
    HEADS,
    NUM_ACCEPTED,
    WINDOW_LEN,
    Sequences,
    committed_state,
    conv_rows,
    conv_weight,
    sequences,
    verify_window,
)

PAGE = "decode"
NUM_TOKENS = 13
PRODUCTION_DK = 128
LONG_LEN = 67  # one whole chunk of 64 and a piece
FP64, FP32 = 1e-12, 1e-5


def _recurrence_against_oracle(case: Case, correlated: bool) -> float:
    inputs, expected = _wide_inputs(case.seed, correlated, case.torch_dtype)
    return _worst(case.subject.kda.kda_recurrent(*inputs), expected)


@lru_cache(maxsize=4)
def _wide_inputs(
    seed: int, correlated: bool, dtype: torch.dtype
) -> tuple[Sequences, tuple[object, object]]:
    """Inputs of production width and what the oracle makes of them, once for all faults."""
    inputs = sequences(NUM_TOKENS, seed, correlated, dtype, num_heads=1, dk=PRODUCTION_DK)
    return inputs, oracle_recurrent(*inputs)


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def recurrence_matches_oracle_random_keys(case: Case) -> float:
    return _recurrence_against_oracle(case, False)


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def recurrence_matches_oracle_correlated_keys(case: Case) -> float:
    return _recurrence_against_oracle(case, True)


@check(PAGE, SELF, FP64, FP32, in_matrix=True)
def chunk_matches_recurrence(case: Case) -> float:
    inputs = sequences(LONG_LEN, case.seed, case.correlated, case.torch_dtype)
    state = committed_state(case.seed, case.torch_dtype)
    kda = case.subject.kda
    return _worst(kda.kda_chunk(*inputs, state), kda.kda_recurrent(*inputs, state))


@check(PAGE, ORACLE, FP64, FP32)
def chunk_matches_oracle(case: Case) -> float:
    inputs = sequences(LONG_LEN, case.seed, case.correlated, case.torch_dtype)
    state = committed_state(case.seed, case.torch_dtype)
    expected = oracle_recurrent(*inputs, state=state)
    return _worst(case.subject.kda.kda_chunk(*inputs, state), expected)


@check(PAGE, ORACLE, FP32)
def chunk_survives_gate_at_bound(case: Case) -> float:
    """fp32, every log-decay at -5: exp(64 * 5) is far out of range."""
    inputs = sequences(LONG_LEN, case.seed, case.correlated, torch.float32)
    inputs = inputs._replace(g=torch.full_like(inputs.g, -5.0))
    state = committed_state(case.seed, torch.float32)
    expected = oracle_recurrent(*inputs, state=state)
    return _worst(case.subject.kda.kda_chunk(*inputs, state), expected)


@check(PAGE, SELF)
def chunk_is_causal(case: Case) -> float:
    """Another token at 40 leaves the outputs before it alone."""
    inputs = sequences(LONG_LEN, case.seed, case.correlated, case.torch_dtype)
    changed_at = 40
    other = Sequences(*(x.clone() for x in inputs))
    for x in other:
        x[:, :, changed_at] = x[:, :, changed_at].flip(0)
    kda = case.subject.kda
    before, _ = kda.kda_chunk(*inputs)
    after, _ = kda.kda_chunk(*other)
    if difference(before[:, :, changed_at:], after[:, :, changed_at:]) == 0.0:
        return math.inf  # the change reached nothing: nothing was tested
    return difference(after[:, :, :changed_at], before[:, :, :changed_at])


@check(PAGE, ORACLE, FP64, FP32)
def gates_match_oracle(case: Case) -> float:
    kda = case.subject.kda
    f = 4.0 * sequences(NUM_TOKENS, case.seed, False, case.torch_dtype).g + 1.0
    a_log = torch.linspace(-1.0, 1.0, HEADS, dtype=f.dtype)
    dt_bias = committed_state(case.seed, f.dtype)[0, :, :, 0]
    return max(
        difference(kda.kda_gate(f, a_log, dt_bias), oracle_gate(f, a_log, dt_bias)),
        difference(kda.softplus_gate(f, a_log, dt_bias), oracle_softplus_gate(f, a_log, dt_bias)),
        difference(kda.l2_normalize(f), oracle_l2_normalize(f)),
    )


@check(PAGE, ORACLE, FP64, FP32)
def convolution_matches_oracle(case: Case) -> float:
    """One pass, and the same tokens in two pieces that hand the window over."""
    x = conv_rows(NUM_TOKENS, case.seed, case.torch_dtype)
    weight = conv_weight(case.seed, case.torch_dtype)
    convolve = case.subject.kda.short_convolution
    whole, _ = convolve(x, weight)
    first, window = convolve(x[:, :2], weight)
    second, _ = convolve(x[:, 2:], weight, window)
    expected = oracle_convolution(x, weight)
    pieces = torch.cat([first, second], dim=1)
    return max(difference(whole, expected), difference(pieces, expected))


# Replay


def _replay_against_recurrence(case: Case, num_accepted: int) -> float:
    inputs = verify_window(case)
    projections = case.subject.decode.DraftProjections.from_sequences(*inputs.sequences)
    expected = case.subject.kda.kda_recurrent(
        *inputs.sequences.head(num_accepted), inputs.state.clone()
    )
    state, outputs = case.subject.decode.verify_and_replay(inputs.state, projections, num_accepted)
    return _worst((outputs, state), expected)


@check(PAGE, SELF, in_matrix=True)
def test_verify_replay_partial_matches_full_recurrence(case: Case) -> float:
    return _replay_against_recurrence(case, NUM_ACCEPTED)


@check(PAGE, SELF, in_matrix=True)
def test_verify_replay_accept_all_matches_full(case: Case) -> float:
    return _replay_against_recurrence(case, WINDOW_LEN)


@check(PAGE, SELF, in_matrix=True)
def test_verify_replay_reject_zero_is_identity(case: Case) -> float:
    inputs = verify_window(case)
    before = inputs.state.clone()
    projections = case.subject.decode.DraftProjections.from_sequences(*inputs.sequences)
    state, outputs = case.subject.decode.verify_and_replay(inputs.state, projections, 0)
    return math.inf if outputs.numel() else difference(state, before)


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def replay_matches_oracle(case: Case) -> float:
    inputs = verify_window(case)
    expected = oracle_recurrent(*inputs.sequences.head(NUM_ACCEPTED), state=inputs.state.clone())
    projections = case.subject.decode.DraftProjections.from_sequences(*inputs.sequences)
    state, outputs = case.subject.decode.verify_and_replay(inputs.state, projections, NUM_ACCEPTED)
    return _worst((outputs, state), expected)


@check(PAGE, SELF, in_matrix=True)
def verify_leaves_committed_state(case: Case) -> float:
    inputs = verify_window(case)
    decode = case.subject.decode
    committed = case.subject.kda.KDAState(inputs.state, inputs.conv_window)
    before = case.subject.kda.copy_state(committed)
    projections = decode.DraftProjections.from_sequences(*inputs.sequences, inputs.conv_inputs)
    decode.verify_and_replay(committed, projections, NUM_ACCEPTED)
    return max(difference(now, then) for now, then in zip(committed, before, strict=True))


@check(PAGE, ORACLE, in_matrix=True)
def conv_window_matches_last_inputs(case: Case) -> float:
    """After n tokens the window is the last three raw inputs, taken from the text itself."""
    inputs = verify_window(case)
    decode = case.subject.decode
    text = torch.cat([inputs.conv_window, inputs.conv_inputs], dim=1).numpy()
    projections = decode.DraftProjections.from_sequences(*inputs.sequences, inputs.conv_inputs)
    committed = case.subject.kda.KDAState(inputs.state, inputs.conv_window)
    state, _ = decode.verify_and_replay(committed, projections, NUM_ACCEPTED)
    return difference(state.conv_window, text[:, NUM_ACCEPTED : NUM_ACCEPTED + CONV_WIDTH - 1])


@check(PAGE, ORACLE, FP64, FP32, in_matrix=True)
def decode_loop_matches_oracle(case: Case) -> float:
    """Verify steps with rejected tokens in between, as a server runs them.

    Each step verifies a window on the committed state, then commits its accepted part from the
    same state. The oracle sees the accepted tokens only.
    """
    kda, decode = case.subject.kda, case.subject.decode
    accepted_per_step = (3, WINDOW_LEN, 1)
    num_steps = len(accepted_per_step)
    rows = conv_rows(num_steps * WINDOW_LEN, case.seed, case.torch_dtype)
    weight = conv_weight(case.seed, case.torch_dtype)
    plain = sequences(len(rows[0]), case.seed, case.correlated, case.torch_dtype)
    state = kda.KDAState(
        committed_state(case.seed, case.torch_dtype),
        rows.new_zeros(rows.shape[0], CONV_WIDTH - 1, CHANNELS),
    )
    first_state = state.recurrent.clone()
    outputs: list[Tensor] = []
    kept: list[int] = []
    for step, num_accepted in enumerate(accepted_per_step):
        at = slice(step * WINDOW_LEN, (step + 1) * WINDOW_LEN)
        raw = rows[:, at]
        mixed, _ = kda.short_convolution(raw, weight, state.conv_window)
        inputs = _activated(mixed, plain.g[:, :, at], plain.beta[:, :, at])
        projections = decode.DraftProjections.from_sequences(*inputs, raw)
        _, out = decode.verify_and_replay(state, projections, WINDOW_LEN)
        state, _ = decode.verify_and_replay(state, projections, num_accepted)
        outputs.append(out[:, :, :num_accepted])
        kept += range(at.start, at.start + num_accepted)
    mixed = torch.from_numpy(oracle_convolution(rows[:, kept], weight)).to(rows.dtype)
    accepted = _activated(mixed, plain.g[:, :, kept], plain.beta[:, :, kept])
    expected = oracle_recurrent(*accepted, state=first_state)
    return _worst((torch.cat(outputs, dim=2), state.recurrent), expected)


def _activated(mixed: Tensor, g: Tensor, beta: Tensor) -> Sequences:
    """Inputs of the recurrence from convolved rows (B, T, C)."""
    widths = (HEADS * DK, HEADS * DK, HEADS * DV)
    q, k, v = (
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in mixed.split(widths, dim=-1)
    )
    q = torch.nn.functional.normalize(q, dim=-1) * DK**-0.5
    return Sequences(q, torch.nn.functional.normalize(k, dim=-1), v, g, beta)


@check(PAGE, ACCOUNTING)
def test_snapshot_cost_ratio_exceeds_one_and_grows_with_state(case: Case) -> Reading:
    """Against the element counts of real tensors; above one and rising from 8 x 8 to 128 x 128."""
    ratio = case.subject.decode.snapshot_cost_ratio
    sizes = (8, 16, 32, 64, 128)
    wrong, last = 0, 1.0
    counted_ratio = 0.0
    for size in sizes:
        one = [torch.empty(1, HEADS, size) for _ in range(4)] + [torch.empty(1, HEADS)]
        counted_ratio = torch.empty(1, HEADS, size, size).numel() / sum(x.numel() for x in one)
        wrong += ratio(HEADS, size, size) != counted_ratio or ratio(HEADS, size, size) <= last
        last = ratio(HEADS, size, size)
    return Reading(float(wrong), last, counted_ratio)


@check(PAGE, ACCOUNTING)
def figure_bytes_come_from_mechanism(case: Case) -> Reading:
    """Snapshot bytes that the main picture of page 1 draws, against the mechanism's own count."""
    draft_len, model = 1 + case.seed % 7, PRESETS["kimi-k3"]
    drawn = rollback(draft_len=draft_len, accepted=0).tables["window"]
    per_layer = case.subject.decode.snapshot_bytes(
        model.num_heads // 8, model.dk, model.dv, 1 + draft_len
    )
    return counted(
        int(drawn.loc[drawn["lane"] == "snapshots", "bytes"].sum()),
        model.num_kda_layers * per_layer,
    )


def _worst(actual: tuple[Tensor, Tensor], expected: tuple[object, object]) -> float:
    """Larger difference of outputs and state."""
    return max(difference(a, e) for a, e in zip(actual, expected, strict=True))  # type: ignore[arg-type]


CHECKS = (
    recurrence_matches_oracle_random_keys,
    recurrence_matches_oracle_correlated_keys,
    chunk_matches_recurrence,
    chunk_matches_oracle,
    chunk_survives_gate_at_bound,
    chunk_is_causal,
    gates_match_oracle,
    convolution_matches_oracle,
    test_verify_replay_partial_matches_full_recurrence,
    test_verify_replay_accept_all_matches_full,
    test_verify_replay_reject_zero_is_identity,
    replay_matches_oracle,
    verify_leaves_committed_state,
    conv_window_matches_last_inputs,
    decode_loop_matches_oracle,
    test_snapshot_cost_ratio_exceeds_one_and_grows_with_state,
    figure_bytes_come_from_mechanism,
)
