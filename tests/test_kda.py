"""The recurrence against an independent oracle, bit for bit in steps, and its chunked form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core import kda
from k3core.errors import K3Error
from k3core.studies.oracle import oracle_recurrent
from tests.helpers import (
    largest_difference,
    make_sequences,
    make_state,
    same_bits,
    shares_memory,
    snapshot,
)

SHAPES = [(1, 2, 8, 5), (3, 1, 4, 9), (2, 3, 7, 7)]
LENGTHS = [1, 2, 15, 16, 17, 31, 63, 64, 65, 130]


# --- recurrence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("correlated", [True, False])
def test_recurrent_matches_the_oracle(shape, correlated):
    sequences = make_sequences(37, *shape, correlated=correlated)
    state = make_state(*shape)
    out, final = kda.kda_recurrent(*sequences, state=state)
    oracle_out, oracle_final = oracle_recurrent(*sequences, state=state)
    assert largest_difference(out, oracle_out) < 1e-12
    assert largest_difference(final, oracle_final) < 1e-12


def test_delta_on_the_undecayed_state_is_far_from_the_oracle():
    q, k, v, g, beta = make_sequences(64, dk=16, dv=8)
    state = make_state(dk=16, dv=8)
    wrong = state.clone()
    for t in range(64):
        key = k[:, :, t]
        update = beta[:, :, t, None] * (v[:, :, t] - torch.einsum("bhkv,bhk->bhv", wrong, key))
        wrong = g[:, :, t].exp().unsqueeze(-1) * wrong + key.unsqueeze(-1) * update.unsqueeze(-2)
    _, oracle = oracle_recurrent(q, k, v, g, beta, state)
    right = kda.kda_recurrent(q, k, v, g, beta, state)[1]
    scale = float(np.abs(oracle).max())
    assert largest_difference(wrong, oracle) / scale > 0.01
    assert largest_difference(right, oracle) / scale < 1e-12


def test_one_step_by_hand():
    out, state = kda.kda_step(
        q=torch.tensor([[[1.0, 2.0]]], dtype=torch.float64),
        k=torch.tensor([[[1.0, 0.0]]], dtype=torch.float64),
        v=torch.tensor([[[4.0]]], dtype=torch.float64),
        g=torch.tensor([[[math.log(0.5), 0.0]]], dtype=torch.float64),
        beta=torch.tensor([[0.25]], dtype=torch.float64),
        state=torch.tensor([[[[2.0], [3.0]]]], dtype=torch.float64),
    )
    # decayed state (1, 3); it predicts 1 for the key; a quarter of the error 4 - 1 is written.
    assert state.flatten().tolist() == [1.75, 3.0]
    assert out.item() == 1.75 + 2 * 3.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("state_dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_recurrent_is_bit_equal_to_a_loop_of_steps(dtype, state_dtype):
    sequences = make_sequences(9, 2, 3, 7, 5, dtype=dtype)
    state = make_state(2, 3, 7, 5, dtype=state_dtype)
    out, final = kda.kda_recurrent(*sequences, state=state)
    for t in range(9):
        step = [x[:, :, t].clone() for x in sequences]
        expected, state = kda.kda_step(*step, state)
        assert same_bits(out[:, :, t], expected)
    assert same_bits(final, state)


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
@pytest.mark.parametrize("state_dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_state_and_output_keep_their_dtypes(function, state_dtype):
    sequences = make_sequences(5, dtype=torch.bfloat16)
    out, final = function(*sequences, state=make_state(dtype=state_dtype))
    assert (out.dtype, final.dtype) == (torch.bfloat16, state_dtype)


def test_low_precision_inputs_start_from_a_float32_state():
    _, state = kda.kda_recurrent(*make_sequences(2, dtype=torch.bfloat16))
    assert state.dtype == torch.float32


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
def test_missing_state_is_zeros(function):
    sequences = make_sequences(6)
    given = function(*sequences, state=torch.zeros(1, 2, 8, 5, dtype=torch.float64))
    absent = function(*sequences)
    assert all(same_bits(a, b) for a, b in zip(given, absent, strict=True))


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
def test_no_tokens_leave_the_state_and_give_empty_output(function):
    state = make_state(2, 3, 4, 6)
    out, final = function(*make_sequences(0, 2, 3, 4, 6), state=state)
    assert out.shape == (2, 3, 0, 6)
    assert same_bits(final, state)
    assert not shares_memory(final, state)


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
def test_sequences_and_state_are_read_only(function):
    arguments = [*make_sequences(20), make_state()]
    before = snapshot(*arguments)
    _, final = function(*arguments)
    assert all(same_bits(a, b) for a, b in zip(arguments, before, strict=True))
    assert not shares_memory(final, arguments[-1])


def test_step_never_changes_its_arguments():
    arguments = [*(x[:, :, 0] for x in make_sequences(1)), make_state()]
    before = snapshot(*arguments)
    _, new = kda.kda_step(*arguments)
    assert all(same_bits(a, b) for a, b in zip(arguments, before, strict=True))
    assert not shares_memory(new, arguments[-1])


def test_bits_do_not_depend_on_memory_layout():
    step = [x[:, :, 0].contiguous() for x in make_sequences(1, 2, 3, 17, 9, dtype=torch.float32)]
    state = make_state(2, 3, 17, 9, dtype=torch.float32)
    strided = [torch.stack([x, x], dim=-1)[..., 1] for x in step]
    transposed = state.transpose(-1, -2).contiguous().transpose(-1, -2)
    expected, actual = kda.kda_step(*step, state), kda.kda_step(*strided, transposed)
    assert all(same_bits(a, b) for a, b in zip(expected, actual, strict=True))


def test_each_batch_row_and_head_is_independent_of_its_neighbours():
    sequences = make_sequences(12, 3, 4, 16, 16, dtype=torch.float32)
    state = make_state(3, 4, 16, 16, dtype=torch.float32)
    out, final = kda.kda_recurrent(*sequences, state=state)
    alone_out, alone = kda.kda_recurrent(*(x[1:2, 2:3] for x in sequences), state=state[1:2, 2:3])
    assert same_bits(out[1:2, 2:3], alone_out)
    assert same_bits(final[1:2, 2:3], alone)


# --- chunked form -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [0, *LENGTHS])
@pytest.mark.parametrize("chunk_size", [1, 5, 16, 20, 64, 1000])
def test_chunk_equals_recurrent_in_float64(num_tokens, chunk_size):
    sequences = make_sequences(num_tokens, 2, 2, 8, 5)
    state = make_state(2, 2, 8, 5)
    expected = kda.kda_recurrent(*sequences, state=state)
    actual = kda.kda_chunk(*sequences, state=state, chunk_size=chunk_size)
    for left, right in zip(actual, expected, strict=True):
        assert left.shape == right.shape
        assert largest_difference(left, right) < 1e-12


@given(
    num_tokens=st.integers(0, 90),
    chunk_size=st.integers(1, 100),
    batch=st.integers(1, 2),
    num_heads=st.integers(1, 3),
    dk=st.integers(1, 9),
    dv=st.integers(1, 9),
    gate=st.sampled_from([None, 0.0, -1e-3, -5.0, -40.0]),
    seed=st.integers(0, 10**6),
)
def test_chunk_equals_the_oracle_for_any_shape(
    num_tokens, chunk_size, batch, num_heads, dk, dv, gate, seed
):
    sequences = make_sequences(num_tokens, batch, num_heads, dk, dv, seed=seed, gate=gate)
    state = make_state(batch, num_heads, dk, dv, seed=seed)
    actual = kda.kda_chunk(*sequences, state=state, chunk_size=chunk_size)
    expected = oracle_recurrent(*sequences, state=state)
    for left, right in zip(actual, expected, strict=True):
        assert largest_difference(left, right) < 1e-12


@pytest.mark.parametrize("gate", [-5.0, -3.0, -1000.0])
@pytest.mark.parametrize("chunk_size", [64, 128, 200])
def test_chunk_in_float32_survives_a_gate_at_its_bound(gate, chunk_size):
    sequences = make_sequences(200, 1, 2, 16, 8, dtype=torch.float32, gate=gate)
    state = make_state(1, 2, 16, 8, dtype=torch.float32)
    out, final = kda.kda_chunk(*sequences, state=state, chunk_size=chunk_size)
    oracle_out, oracle_final = oracle_recurrent(*sequences, state=state)
    assert torch.isfinite(out).all()
    assert torch.isfinite(final).all()
    assert largest_difference(out, oracle_out) < 1e-6
    assert largest_difference(final, oracle_final) < 1e-6


def test_chunk_in_float32_keeps_slow_channels_beside_a_channel_at_the_bound():
    q, k, v, g, beta = make_sequences(192, 1, 2, 16, 8, dtype=torch.float32, gate=-1e-4)
    g[..., ::2] = -5.0
    out, final = kda.kda_chunk(q, k, v, g, beta)
    oracle_out, oracle_final = oracle_recurrent(q, k, v, g, beta)
    assert largest_difference(out, oracle_out) < 2e-6
    assert largest_difference(final, oracle_final) < 5e-6


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
@pytest.mark.parametrize("changed", [1, 15, 16, 40, 63, 64, 99])
def test_changing_a_token_never_changes_earlier_outputs(function, changed):
    sequences = make_sequences(100, 1, 2, 8, 5)
    out, _ = function(*sequences)
    other = [x.clone() for x in sequences]
    for x, replacement in zip(other, make_sequences(100, 1, 2, 8, 5, seed=9), strict=True):
        x[:, :, changed:] = replacement[:, :, changed:]
    other_out, _ = function(*other)
    assert same_bits(out[:, :, :changed], other_out[:, :, :changed])
    assert not torch.equal(out[:, :, changed], other_out[:, :, changed])


@pytest.mark.parametrize("cut", [1, 16, 50, 64])
def test_chunk_continues_from_a_state(cut):
    sequences = make_sequences(100, 2, 2, 8, 5)
    whole, final = kda.kda_chunk(*sequences)
    first, middle = kda.kda_chunk(*(x[:, :, :cut] for x in sequences))
    second, end = kda.kda_chunk(*(x[:, :, cut:] for x in sequences), state=middle)
    assert largest_difference(torch.cat([first, second], dim=2), whole) < 1e-12
    assert largest_difference(end, final) < 1e-12


def test_gradients_flow_through_the_chunked_form():
    arguments = [
        x.requires_grad_() for x in (*make_sequences(18, 1, 1, 2, 1), make_state(1, 1, 2, 1))
    ]
    assert torch.autograd.gradcheck(lambda *x: kda.kda_chunk(*x, chunk_size=17), arguments)


def test_gradients_stay_finite_with_a_gate_at_its_bound():
    sequences = make_sequences(64, 1, 1, 4, 3, dtype=torch.float32, gate=-5.0)
    sequences = [x.requires_grad_() for x in sequences]
    out, final = kda.kda_chunk(*sequences)
    (out.sum() + final.sum()).backward()
    assert all(torch.isfinite(x.grad).all() for x in sequences)


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "state"])
@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk, kda.kda_step])
def test_wrong_shape_is_named(function, name):
    sequences = make_sequences(3)
    if function is kda.kda_step:
        sequences = tuple(x[:, :, 0] for x in sequences)
    arguments = dict(zip(["q", "k", "v", "g", "beta"], sequences, strict=True), state=make_state())
    arguments[name] = arguments[name].unsqueeze(0)
    with pytest.raises(K3Error, match=rf"\b{name} has shape"):
        function(**arguments)


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
def test_integer_tensor_is_refused(function):
    q, k, v, g, beta = make_sequences(3)
    with pytest.raises(K3Error, match=r"v has dtype torch.int64"):
        function(q, k, v.long(), g, beta)


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
@pytest.mark.parametrize("sizes", [(0, 2, 4, 3), (1, 0, 4, 3), (1, 2, 0, 3), (1, 2, 4, 0)])
def test_no_axis_but_the_tokens_may_be_empty(function, sizes):
    batch, num_heads, dk, dv = sizes
    keys, rows = torch.zeros(batch, num_heads, 3, dk), torch.zeros(batch, num_heads, 3, dv)
    with pytest.raises(K3Error, match="allowed: no axis 0"):
        function(keys, keys, rows, keys, torch.zeros(batch, num_heads, 3))


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
def test_a_format_that_only_stores_is_refused(function):
    state = make_state().to(torch.float8_e4m3fn)
    with pytest.raises(K3Error, match=r"state has dtype torch\.float8_e4m3fn; allowed: float16"):
        function(*make_sequences(3), state)


@pytest.mark.parametrize("chunk_size", [0, -1, 2.0, True])
def test_chunk_size_must_be_a_positive_integer(chunk_size):
    with pytest.raises(K3Error, match="chunk_size="):
        kda.kda_chunk(*make_sequences(3), chunk_size=chunk_size)
