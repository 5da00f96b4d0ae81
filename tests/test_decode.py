"""Replay of accepted drafts: exact, read-only, with its convolution window; and what it costs."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.decode import (
    DraftProjections,
    projection_bytes,
    snapshot_bytes,
    snapshot_cost_ratio,
    verify_and_replay,
)
from k3core.errors import K3Error
from k3core.kda import KDAState, kda_recurrent, short_convolution
from k3core.studies.oracle import oracle_recurrent
from tests.helpers import (
    make_kda_state,
    make_projection,
    make_sequences,
    make_state,
    same_bits,
    shares_memory,
    snapshot,
    to_batch,
)

DRAFT_LEN = 6
SHAPE = (2, 3, 8, 5)


def prefix(projections: DraftProjections, num_accepted: int) -> list[torch.Tensor]:
    return [x[:, :, :num_accepted] for x in to_batch(projections)]


def assert_replay_is_exact(
    state: torch.Tensor, projections: DraftProjections, num_accepted: int
) -> None:
    """Bit-equal to the recurrence over the accepted prefix, and right by the oracle."""
    new_state, outputs = verify_and_replay(state, projections, num_accepted)
    sequences = prefix(projections, num_accepted)
    expected_out, expected = kda_recurrent(*sequences, state=state)
    assert same_bits(outputs, expected_out)
    assert same_bits(new_state, expected)
    oracle_out, oracle_state = oracle_recurrent(*sequences, state=state)
    assert np.abs(outputs.numpy() - oracle_out).max(initial=0.0) < 1e-12
    assert np.abs(new_state.numpy() - oracle_state).max() < 1e-12


# --- the rows of the source text's test table ---------------------------------------------------


def test_verify_replay_partial_matches_full_recurrence():
    for num_accepted in range(1, DRAFT_LEN):
        assert_replay_is_exact(make_state(*SHAPE), make_projection(DRAFT_LEN, *SHAPE), num_accepted)


def test_verify_replay_accept_all_matches_full():
    projections, state = make_projection(DRAFT_LEN, *SHAPE), make_state(*SHAPE)
    assert_replay_is_exact(state, projections, DRAFT_LEN)
    _, outputs = verify_and_replay(state, projections, DRAFT_LEN)
    assert outputs.shape == (2, 3, DRAFT_LEN, 5)


def test_verify_replay_reject_zero_is_identity():
    state = make_state(*SHAPE)
    new_state, outputs = verify_and_replay(state, make_projection(DRAFT_LEN, *SHAPE), 0)
    assert same_bits(new_state, state)
    assert not shares_memory(new_state, state)
    assert outputs.shape == (2, 3, 0, 5)


def test_snapshot_cost_ratio_exceeds_one_and_grows_with_state():
    ratios = [snapshot_cost_ratio(16, size, size) for size in (8, 16, 32, 64, 128, 256)]
    assert ratios[0] > 1.0
    assert all(later > earlier for earlier, later in pairwise(ratios))
    assert ratios[0] == 64 / 33
    assert ratios[1] == 256 / 65
    assert ratios[2] == 1024 / 129


# --- replay -------------------------------------------------------------------------------------


@given(
    draft_len=st.integers(0, 9),
    accepted_share=st.floats(0, 1),
    batch=st.integers(1, 3),
    num_heads=st.integers(1, 3),
    dk=st.integers(1, 9),
    dv=st.integers(1, 9),
    input_dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    state_dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 10**6),
)
def test_replay_has_the_bits_of_the_recurrence(
    draft_len, accepted_share, batch, num_heads, dk, dv, input_dtype, state_dtype, seed
):
    projections = make_projection(draft_len, batch, num_heads, dk, dv, seed=seed, dtype=input_dtype)
    state = make_state(batch, num_heads, dk, dv, seed=seed, dtype=state_dtype)
    num_accepted = int(accepted_share * draft_len)
    new_state, outputs = verify_and_replay(state, projections, num_accepted)
    expected_out, expected = kda_recurrent(*prefix(projections, num_accepted), state=state)
    assert same_bits(new_state, expected)
    assert same_bits(outputs, expected_out)


@pytest.mark.parametrize("num_accepted", range(DRAFT_LEN + 1))
def test_rejected_inputs_leave_no_trace(num_accepted):
    projections, state = make_projection(DRAFT_LEN, *SHAPE), make_state(*SHAPE)
    tensors = {name: x.clone() for name, x in projections.tensors().items()}
    for x in tensors.values():
        x[num_accepted:] = torch.nan
    polluted = DraftProjections(**tensors)
    expected = verify_and_replay(state, projections, num_accepted)
    actual = verify_and_replay(state, polluted, num_accepted)
    assert all(same_bits(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("num_accepted", [0, 3, DRAFT_LEN])
def test_replay_reads_only(num_accepted):
    projections = make_projection(DRAFT_LEN, *SHAPE, with_conv=True)
    state = make_kda_state(*SHAPE)
    arguments = [*state, *projections.tensors().values()]
    before = snapshot(*arguments)
    new_state, _ = verify_and_replay(state, projections, num_accepted)
    assert all(same_bits(a, b) for a, b in zip(arguments, before, strict=True))
    assert not shares_memory(new_state.recurrent, new_state.conv_window, *arguments)


def test_verifying_twice_from_the_committed_state_gives_the_same():
    projections, state = make_projection(DRAFT_LEN, *SHAPE), make_state(*SHAPE)
    verify_and_replay(state, projections, DRAFT_LEN)
    again = verify_and_replay(state, projections, 2)
    fresh = verify_and_replay(make_state(*SHAPE), projections, 2)
    assert all(same_bits(a, b) for a, b in zip(again, fresh, strict=True))


def test_many_windows_in_a_row_stay_on_the_plain_recurrence():
    accepted_counts = [0, 3, 6, 1, 0, 5, 2, 6]
    state = make_state(*SHAPE, dtype=torch.float32)
    kept, running = [], state
    for step, num_accepted in enumerate(accepted_counts):
        projections = make_projection(DRAFT_LEN, *SHAPE, seed=step, dtype=torch.float32)
        running, _ = verify_and_replay(running, projections, num_accepted)
        kept.append(prefix(projections, num_accepted))
    plain = [torch.cat(parts, dim=2) for parts in zip(*kept, strict=True)]
    assert same_bits(running, kda_recurrent(*plain, state=state)[1])


# --- convolution window -------------------------------------------------------------------------


@pytest.mark.parametrize("num_accepted", range(DRAFT_LEN + 1))
def test_window_rolls_back_with_the_state(num_accepted):
    projections = make_projection(DRAFT_LEN, *SHAPE, with_conv=True)
    state = make_kda_state(*SHAPE)
    new_state, _ = verify_and_replay(state, projections, num_accepted)
    raw = projections.conv_inputs.transpose(0, 1)[:, :num_accepted]
    weight = torch.ones(raw.shape[-1], 4, dtype=torch.float64)
    _, expected = short_convolution(raw, weight, state.conv_window)
    assert same_bits(new_state.conv_window, expected)
    bare, _ = verify_and_replay(state.recurrent, projections, num_accepted)
    assert same_bits(new_state.recurrent, bare)


def test_state_without_window_needs_no_convolution_inputs():
    state = KDAState(make_state(*SHAPE))
    new_state, _ = verify_and_replay(state, make_projection(DRAFT_LEN, *SHAPE), 2)
    assert new_state.conv_window is None


def test_window_without_convolution_inputs_is_refused():
    with pytest.raises(K3Error, match="conv_inputs=None"):
        verify_and_replay(make_kda_state(*SHAPE), make_projection(DRAFT_LEN, *SHAPE), 0)


def test_window_of_another_layer_is_refused():
    projections = make_projection(DRAFT_LEN, *SHAPE, with_conv=True)
    state = KDAState(make_state(*SHAPE), torch.zeros(2, 3, 7, dtype=torch.float64))
    with pytest.raises(K3Error, match=r"conv_window has shape \(2, 3, 7\)"):
        verify_and_replay(state, projections, 1)


# --- container ----------------------------------------------------------------------------------


def test_projections_convert_to_sequences_and_back():
    sequences = make_sequences(5, *SHAPE)
    projections = DraftProjections.from_sequences(*sequences)
    assert all(same_bits(a, b) for a, b in zip(projections.sequences(), sequences, strict=True))
    assert all(same_bits(a, b) for a, b in zip(to_batch(projections), sequences, strict=True))


def test_slice_keeps_the_first_drafts_without_copying():
    projections = make_projection(DRAFT_LEN, *SHAPE, with_conv=True)
    first = projections[:2]
    assert len(first) == 2
    assert all(same_bits(x, projections.tensors()[name][:2]) for name, x in first.tensors().items())
    assert first.q.data_ptr() == projections.q.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bytes_held_are_the_bytes_accounted(dtype):
    projections = make_projection(DRAFT_LEN, 1, 3, 8, 5, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    assert projections.nbytes == projection_bytes(3, 8, 5, DRAFT_LEN, name, name, name)
    state = make_state(1, 3, 8, 5, dtype=dtype)
    assert state.nbytes == snapshot_bytes(3, 8, 5, state_dtype=name)


def test_convolution_inputs_count_as_held_bytes():
    with_conv = make_projection(DRAFT_LEN, *SHAPE, with_conv=True)
    without = make_projection(DRAFT_LEN, *SHAPE)
    assert with_conv.nbytes - without.nbytes == DRAFT_LEN * 2 * (3 * (2 * 8 + 5)) * 8


# --- byte accounting ----------------------------------------------------------------------------


def test_kimi_k3_snapshot_of_one_layer_at_tp8():
    assert snapshot_bytes(12, 128, 128) == 786_432
    assert snapshot_bytes(12, 128, 128, conv_width=4) == 814_080
    # SGLang: eight state snapshots over 69 layers.
    assert 69 * snapshot_bytes(12, 128, 128, draft_len=8) == 434_110_464


def test_published_raw_input_record():
    # SGLang #36821: v and k in bf16, g and beta in fp32.
    assert projection_bytes(1, 128, 128, with_q=False) == 1028
    assert 69 * projection_bytes(12, 128, 128, draft_len=8, with_q=False) == 6_809_472


def test_ratio_does_not_depend_on_draft_length_or_heads():
    assert {snapshot_cost_ratio(h, 32, 32, n) for h in (1, 16) for n in (1, 8, 32)} == {1024 / 129}


def test_tiny_states_are_cheaper_to_copy_than_their_inputs():
    assert snapshot_cost_ratio(1, 4, 4) == 16 / 17


def test_ratio_of_bytes_equals_ratio_of_elements_only_for_one_dtype():
    same = snapshot_bytes(2, 16, 8, 3, "float32") / projection_bytes(
        2, 16, 8, 3, "float32", "float32", "float32"
    )
    mixed = snapshot_bytes(2, 16, 8, 3, "float32") / projection_bytes(
        2, 16, 8, 3, "bfloat16", "bfloat16", "bfloat16"
    )
    assert same == snapshot_cost_ratio(2, 16, 8, 3)
    assert mixed == 2 * same


def test_query_costs_its_bytes_only_when_counted():
    assert projection_bytes(2, 16, 8) - projection_bytes(2, 16, 8, with_q=False) == 2 * 16 * 2


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_accepted", [-1, DRAFT_LEN + 1, 1.0, True])
def test_accepted_count_out_of_range_is_named(num_accepted):
    with pytest.raises(K3Error, match=f"num_accepted={num_accepted}.*<= {DRAFT_LEN}"):
        verify_and_replay(make_state(*SHAPE), make_projection(DRAFT_LEN, *SHAPE), num_accepted)


@pytest.mark.parametrize("shape", [(1, 3, 8, 5), (2, 2, 8, 5), (2, 3, 5, 8), (3, 8, 5)])
def test_state_of_wrong_shape_is_named(shape):
    with pytest.raises(K3Error, match=r"state has shape .*allowed: \(2, 3, 8, 5\)"):
        verify_and_replay(torch.zeros(shape), make_projection(DRAFT_LEN, *SHAPE), 0)


def test_integer_state_is_refused():
    state = make_state(*SHAPE).long()
    with pytest.raises(K3Error, match=r"state has dtype torch.int64"):
        verify_and_replay(state, make_projection(DRAFT_LEN, *SHAPE), 1)


@pytest.mark.parametrize("name", ["q", "v", "g", "beta", "conv_inputs"])
def test_projection_of_wrong_shape_is_named(name):
    tensors = make_projection(DRAFT_LEN, *SHAPE, with_conv=True).tensors()
    tensors[name] = tensors[name][:-1]
    with pytest.raises(K3Error, match=f"{name} has shape"):
        DraftProjections(**tensors)


@pytest.mark.parametrize("index", [0, -1, [0, 1]])
def test_only_slices_index_projections(index):
    with pytest.raises(K3Error, match="must be a slice"):
        make_projection()[index]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"num_heads": 0}, "num_heads=0"),
        ({"dk": 0}, "dk=0"),
        ({"dv": -1}, "dv=-1"),
        ({"draft_len": -1}, "draft_len=-1"),
    ],
)
@pytest.mark.parametrize("function", [snapshot_bytes, projection_bytes, snapshot_cost_ratio])
def test_impossible_sizes_are_named(function, arguments, name):
    with pytest.raises(K3Error, match=name):
        function(**{"num_heads": 2, "dk": 8, "dv": 8, **arguments})


def test_unknown_dtype_is_named():
    with pytest.raises(K3Error, match="dtype='int4'"):
        snapshot_bytes(2, 8, 8, state_dtype="int4")
