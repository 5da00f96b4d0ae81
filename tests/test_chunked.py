"""The chunked form at its limits: length, gate, causality, gradients, memory; bits of the steps."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from k3core import kda
from k3core.decode import DraftProjections, verify_and_replay
from k3core.threads import ELEMENTS_PER_THREAD, thread_count, threads_for
from tests.helpers import (
    largest_difference,
    make_sequences,
    make_state,
    same_bits,
    shares_memory,
    snapshot,
)

ROOT = Path(__file__).resolve().parent.parent


# --- overflow -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [64, 4096, 65_536])
@pytest.mark.parametrize("chunk_size", [32, kda.CHUNK_LEN, 256])
def test_a_gate_at_its_bound_never_overflows_float32(num_tokens, chunk_size):
    sequences = make_sequences(num_tokens, 1, 1, 8, 4, dtype=torch.float32, gate=-5.0)
    out, final = kda.kda_chunk(*sequences, chunk_size=chunk_size)
    tail = [x[:, :, -64:] for x in sequences]  # e^-320 of what was before: nothing is left
    expected, state = kda.kda_recurrent(*(x.double() for x in tail))
    assert torch.isfinite(out).all()
    assert largest_difference(out[:, :, -32:], expected[:, :, -32:]) < 1e-6
    assert largest_difference(final, state) < 1e-6


def test_gates_of_every_size_side_by_side_keep_the_accuracy_of_float32():
    q, k, v, g, beta = make_sequences(512, 1, 2, 16, 8, dtype=torch.float32)
    sizes = torch.tensor([0.0, -1e-6, -1e-3, -0.1, -1.0, -5.0, -40.0, -1000.0])
    picked = torch.randint(0, 8, g.shape, generator=torch.Generator().manual_seed(0))
    g = sizes[picked]
    out, final = kda.kda_chunk(q, k, v, g, beta)
    expected, state = kda.kda_recurrent(*(x.double() for x in (q, k, v, g, beta)))
    assert largest_difference(out, expected) < 2e-6
    assert largest_difference(final, state) < 2e-6


# --- causality ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_that_is_not_finite_reaches_an_earlier_output(name, value):
    clean = make_sequences(70, 2, 2, 8, 4, dtype=torch.float32)
    dirty = [x.clone() for x in clean]
    dirty["qkvgb".index(name[0])][1, 0, 37] = value
    out, final = kda.kda_chunk(*dirty)
    expected, state = kda.kda_recurrent(*dirty)
    assert torch.isfinite(out[:, :, :37]).all()
    assert torch.allclose(out, expected, atol=1e-5, equal_nan=True)
    assert torch.allclose(final, state, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk_size", [16, 32, 64, 100])
def test_perturbing_one_input_of_one_token_never_reaches_back(dtype, chunk_size):
    sequences = make_sequences(150, 1, 2, 16, 8, dtype=dtype)
    out, _ = kda.kda_chunk(*sequences, chunk_size=chunk_size)
    for changed in (0, 31, 32, 99, 149):
        for i in range(5):
            other = [x.clone() for x in sequences]
            other[i][:, :, changed] *= 1.5
            moved, _ = kda.kda_chunk(*other, chunk_size=chunk_size)
            assert same_bits(out[:, :, :changed], moved[:, :, :changed])
            if i != 3 or changed > 0:  # a decay of the empty state moves nothing
                assert not torch.equal(out[:, :, changed:], moved[:, :, changed:])


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_tokens", "chunk_size"), [(1, 4), (9, 4), (11, 8), (40, 32)])
def test_gradients_are_right_for_any_length(num_tokens, chunk_size):
    arguments = [
        x.requires_grad_()
        for x in (*make_sequences(num_tokens, 1, 2, 3, 2), make_state(1, 2, 3, 2))
    ]
    assert torch.autograd.gradcheck(
        lambda *x: kda.kda_chunk(*x, chunk_size=chunk_size), arguments, fast_mode=True
    )


def test_gradients_of_recurrence_and_chunks_agree():
    arguments = [
        x.requires_grad_() for x in (*make_sequences(40, 1, 2, 5, 3), make_state(1, 2, 5, 3))
    ]
    gradients = []
    for function in (kda.kda_recurrent, kda.kda_chunk):
        out, final = function(*arguments)
        gradients.append(torch.autograd.grad(out.square().sum() + final.sin().sum(), arguments))
    for left, right in zip(*gradients, strict=True):
        assert largest_difference(left, right) < 1e-12


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
def test_wanting_gradients_changes_values_by_rounding_only(function):
    sequences = make_sequences(70, 1, 2, 16, 16, dtype=torch.float32)
    plain, _ = function(*sequences)
    wanted, _ = function(*(x.clone().requires_grad_() for x in sequences))
    assert largest_difference(plain, wanted.detach()) < 1e-6


# --- bits of the steps --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(16, 16), (17, 33), (33, 31), (65, 127), (128, 128), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_step_recurrence_and_replay_have_the_same_bits(size, dtype):
    shape = (2, 3, *size)
    sequences, state = make_sequences(5, *shape, dtype=dtype), make_state(*shape, dtype=dtype)
    out, final = kda.kda_recurrent(*sequences, state=state)
    replayed, outputs = verify_and_replay(state, DraftProjections.from_sequences(*sequences), 5)
    running, rows = state, []
    for t in range(5):
        row, running = kda.kda_step(*(x[:, :, t] for x in sequences), running)
        rows.append(row)
    assert same_bits(out, outputs)
    assert same_bits(out, torch.stack(rows, dim=2))
    assert same_bits(final, replayed)
    assert same_bits(final, running)


@pytest.mark.parametrize("size", [(16, 16), (17, 33), (33, 31), (65, 127), (128, 128)])
def test_a_head_alone_has_the_bits_that_it_has_among_others(size):
    sequences = make_sequences(4, 3, 5, *size, dtype=torch.float32)
    state = make_state(3, 5, *size, dtype=torch.float32)
    out, final = kda.kda_recurrent(*sequences, state=state)
    for b, first, last in ((0, 0, 1), (1, 2, 3), (2, 4, 5), (1, 1, 5)):
        part = (slice(b, b + 1), slice(first, last))
        alone, end = kda.kda_recurrent(*(x[part] for x in sequences), state=state[part])
        assert same_bits(out[part], alone)
        assert same_bits(final[part], end)


def test_a_long_recurrence_has_the_bits_of_its_pieces():
    sequences = make_sequences(kda.TOKENS_AT_A_TIME + 9, 1, 2, 6, 5, dtype=torch.float32)
    out, final = kda.kda_recurrent(*sequences)
    first, middle = kda.kda_recurrent(*(x[:, :, :100] for x in sequences))
    second, end = kda.kda_recurrent(*(x[:, :, 100:] for x in sequences), state=middle)
    assert same_bits(out, torch.cat([first, second], dim=2))
    assert same_bits(final, end)


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
@pytest.mark.parametrize("num_tokens", [1, 33, 600])
def test_results_own_their_memory_and_arguments_stay(function, num_tokens):
    arguments = [*make_sequences(num_tokens, 1, 2, 16, 16, dtype=torch.float32)]
    arguments.append(make_state(1, 2, 16, 16, dtype=torch.float32))
    before = snapshot(*arguments)
    results = function(*arguments)
    again = function(*arguments)
    assert not shares_memory(*results, *again, *arguments)
    assert all(same_bits(a, b) for a, b in zip(results, again, strict=True))
    assert all(same_bits(a, b) for a, b in zip(arguments, before, strict=True))


def test_chunks_accept_sequences_in_any_memory_layout():
    sequences = make_sequences(100, 2, 3, 16, 8, dtype=torch.float32)
    state = make_state(2, 3, 16, 8, dtype=torch.float32)
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in sequences]
    turned = state.transpose(-1, -2).contiguous().transpose(-1, -2)
    expected, actual = kda.kda_chunk(*sequences, state), kda.kda_chunk(*moved, turned)
    assert all(same_bits(a, b) for a, b in zip(expected, actual, strict=True))


# --- memory and threads -------------------------------------------------------------------------

PEAK = """
import torch
from k3core import kda

def peak_kib():  # of this program alone; getrusage would count what its parent had
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)

torch.set_num_threads(1)
x = [torch.full((1, 4, 4096, 128), 0.01) for _ in range(4)]
x[3].neg_()
beta = torch.full((1, 4, 4096), 0.5)
kda.kda_chunk(*(y[:, :, :64] for y in (*x, beta)))
before = peak_kib()
kda.kda_chunk(*x, beta)
after = peak_kib()
print(1024 * (after - before) / sum(y.numel() * 4 for y in (*x, beta)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_chunks_take_less_than_six_times_their_inputs_in_memory():
    done = subprocess.run(
        [sys.executable, "-c", PEAK], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    share = float(done.stdout)
    assert 0.1 < share < 6


@pytest.mark.parametrize(
    ("num_elements", "most", "expected"),
    [
        (0, 4, 1),
        (ELEMENTS_PER_THREAD, 4, 1),
        (2 * ELEMENTS_PER_THREAD, 4, 2),
        (100 * ELEMENTS_PER_THREAD, 4, 4),
        (100 * ELEMENTS_PER_THREAD, 1, 1),
    ],
)
def test_threads_grow_with_the_size_up_to_the_setting(num_elements, most, expected):
    assert thread_count(num_elements, most) == expected


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_the_setting_of_the_caller_is_back_even_after_an_error(two_threads):
    with threads_for(1) as inside:
        assert (inside, torch.get_num_threads()) == (1, 1)
    assert torch.get_num_threads() == 2
    with pytest.raises(RuntimeError), threads_for(1):
        raise RuntimeError("stop")
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk])
def test_small_work_runs_on_one_thread_and_leaves_the_setting(two_threads, monkeypatch, function):
    seen = []
    real = torch.bmm
    monkeypatch.setattr(
        torch, "bmm", lambda *a, **k: (seen.append(torch.get_num_threads()), real(*a, **k))[1]
    )
    function(*make_sequences(40))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
