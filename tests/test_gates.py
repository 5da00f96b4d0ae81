"""Gates, normalisation and short convolution against the oracle, with bits that do not move."""

import math

import pytest
import torch

from k3core import kda
from k3core.errors import K3Error
from k3core.studies.oracle import (
    oracle_convolution,
    oracle_gate,
    oracle_l2_normalize,
    oracle_softplus_gate,
)
from tests.helpers import largest_difference, same_bits, shares_memory


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- gates and normalisation --------------------------------------------------------------------


def test_bounded_gate_matches_the_oracle():
    f, a_log, dt_bias = normal(2, 3, 5, 4, seed=1), normal(3, seed=2), normal(3, 4, seed=3)
    g = kda.kda_gate(f, a_log, dt_bias, lower_bound=-5.0)
    assert largest_difference(g, oracle_gate(f, a_log, dt_bias, -5.0)) < 1e-14


def test_bounded_gate_stays_between_its_bound_and_zero():
    f = torch.tensor([-1e4, -3.0, 0.0, 3.0, 1e4], dtype=torch.float64).reshape(1, 1, 5, 1)
    g = kda.kda_gate(f).flatten()
    assert g[2] == -2.5
    assert -1e-30 < g[0] <= 0.0
    assert g[4] == -5.0
    assert (g.diff() <= 0.0).all()


def test_gate_defaults_mean_slope_one_and_no_bias():
    f = normal(2, 3, 5, 4)
    explicit = kda.kda_gate(f, torch.zeros(3).double(), torch.zeros(3, 4).double())
    assert same_bits(kda.kda_gate(f), explicit)


def test_softplus_gate_matches_the_oracle():
    f, a_log, dt_bias = 5 * normal(2, 3, 5, 4, seed=1), normal(3, seed=2), normal(3, 4, seed=3)
    g = kda.softplus_gate(f, a_log, dt_bias)
    assert largest_difference(g, oracle_softplus_gate(f, a_log, dt_bias)) < 1e-8


def test_softplus_gate_is_linear_above_its_threshold():
    f = torch.tensor([[[19.0, 20.5]]], dtype=torch.float64)
    g = kda.softplus_gate(f, torch.zeros(1).double(), torch.zeros(1, 2).double()).flatten()
    assert g[0] == -math.log1p(math.exp(19.0))
    assert g[1] == -20.5


@pytest.mark.parametrize("gate", [kda.kda_gate, kda.softplus_gate])
def test_gate_of_a_step_is_the_gate_of_that_token(gate):
    f, a_log, dt_bias = normal(2, 3, 5, 7), normal(3, seed=2), normal(3, 7, seed=3)
    sequence = gate(f, a_log, dt_bias)
    for t in range(5):
        assert same_bits(gate(f[:, :, t], a_log, dt_bias), sequence[:, :, t])


@pytest.mark.parametrize("gate", [kda.kda_gate, kda.softplus_gate])
def test_gate_of_low_precision_input_is_computed_in_float32(gate):
    f = normal(1, 2, 3, 4).to(torch.bfloat16)
    g = gate(f, torch.zeros(2), torch.zeros(2, 4))
    assert g.dtype == torch.float32
    assert same_bits(g, gate(f.float(), torch.zeros(2), torch.zeros(2, 4)))


def test_sigmoid_and_silu_match_their_definition_and_have_finite_gradients():
    x = torch.tensor([-1e4, -90.0, -2.0, 0.0, 3.0, 1e4], requires_grad=True)
    wide = x.detach().double()
    expected = 1.0 / (1.0 + torch.exp(-wide))
    assert largest_difference(kda.sigmoid(x).detach(), expected) < 1e-7
    assert largest_difference(kda.silu(x).detach(), wide * expected) < 1e-6
    (kda.sigmoid(x).sum() + kda.silu(x).sum()).backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad[3] == 0.75


def test_l2_normalize_matches_the_oracle_and_keeps_zero():
    x = normal(2, 3, 4, 5)
    x[0, 0, 0] = 0.0
    y = kda.l2_normalize(x)
    assert largest_difference(y, oracle_l2_normalize(x)) < 1e-15
    assert (y[0, 0, 0] == 0.0).all()


def test_normalize_qk_scales_the_query_only():
    q, k = kda.normalize_qk(normal(1, 2, 3, 16), normal(1, 2, 3, 16, seed=1))
    assert largest_difference(q.norm(dim=-1), 0.25) < 1e-6
    assert largest_difference(k.norm(dim=-1), 1.0) < 1e-6


# --- short convolution --------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4, 9])
def test_convolution_matches_the_oracle(num_tokens):
    x, weight, window = normal(2, num_tokens, 6), normal(6, 4, seed=1), normal(2, 3, 6, seed=2)
    y, _ = kda.short_convolution(x, weight, window)
    assert largest_difference(y, oracle_convolution(x, weight, window)) < 1e-14


def test_convolution_without_window_starts_from_zeros():
    x, weight = normal(2, 5, 6), normal(6, 4, seed=1)
    zeros = torch.zeros(2, 3, 6, dtype=torch.float64)
    assert same_bits(
        kda.short_convolution(x, weight)[0], kda.short_convolution(x, weight, zeros)[0]
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [3, 7, 16, 33])
def test_convolution_token_by_token_has_the_bits_of_the_whole(channels, dtype):
    x, weight = normal(2, 9, channels, dtype=dtype), normal(channels, 4, seed=1, dtype=dtype)
    whole, end = kda.short_convolution(x, weight)
    window, parts = None, []
    for t in range(9):
        part, window = kda.short_convolution(x[:, t : t + 1], weight, window)
        parts.append(part)
    assert same_bits(torch.cat(parts, dim=1), whole)
    assert same_bits(window, end)


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 7])
def test_convolution_in_two_parts_equals_one(cut):
    x, weight, window = normal(2, 7, 6), normal(6, 4, seed=1), normal(2, 3, 6, seed=2)
    whole, after = kda.short_convolution(x, weight, window)
    first, middle = kda.short_convolution(x[:, :cut], weight, window)
    second, end = kda.short_convolution(x[:, cut:], weight, middle)
    assert same_bits(torch.cat([first, second], dim=1), whole)
    assert same_bits(end, after)


def test_convolution_window_is_the_last_raw_inputs_and_a_copy():
    x, weight = normal(2, 5, 6), normal(6, 4, seed=1)
    _, window = kda.short_convolution(x, weight)
    assert same_bits(window, x[:, 2:])
    assert not shares_memory(window, x)


def test_convolution_of_width_one_has_an_empty_window():
    _, window = kda.short_convolution(normal(2, 5, 6), normal(6, 1))
    assert window.shape == (2, 0, 6)


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lower_bound", [0.0, 1.0, -math.inf, math.nan])
def test_lower_bound_must_be_negative_and_finite(lower_bound):
    with pytest.raises(K3Error, match="lower_bound="):
        kda.kda_gate(normal(1, 2, 3, 4), lower_bound=lower_bound)


@pytest.mark.parametrize(
    ("a_log", "dt_bias", "name"),
    [
        (torch.zeros(4), torch.zeros(3, 4), "a_log"),
        (torch.zeros(3), torch.zeros(3), "dt_bias"),
        (torch.zeros(3), torch.zeros(3, 5), "dt_bias"),
    ],
)
def test_gate_parameters_of_wrong_shape_are_named(a_log, dt_bias, name):
    for gate in (kda.kda_gate, kda.softplus_gate):
        with pytest.raises(K3Error, match=f"{name} has shape"):
            gate(normal(2, 3, 5, 4), a_log, dt_bias)


def test_convolution_refuses_a_window_of_another_width():
    with pytest.raises(K3Error, match="window has shape"):
        kda.short_convolution(normal(2, 5, 6), normal(6, 4), normal(2, 2, 6))
