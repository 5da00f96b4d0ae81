"""Random inputs of the checks: batch > 1, K != V, odd lengths, keys near each other."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from k3core.kda import kda_gate, normalize_qk
from k3core.studies import single_thread  # noqa: F401
from k3core.studies.verification.check import Case

BATCH, HEADS, DK, DV = 2, 3, 32, 20
CONV_WIDTH = 4
CHANNELS = HEADS * (2 * DK + DV)
WINDOW_LEN = 7
"""Tokens of a verify window."""

NUM_ACCEPTED = 4
"""Tokens of it that are kept."""

KEY_SPREAD = 0.4
"""Distance of correlated keys from their common direction."""


class Sequences(NamedTuple):
    """Activated inputs: q, k, g (B, H, T, K), v (B, H, T, V), beta (B, H, T)."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def head(self, num_tokens: int) -> Sequences:
        """The first tokens."""
        return Sequences(*(x[:, :, :num_tokens] for x in self))


def sequences(
    num_tokens: int,
    seed: int,
    correlated: bool | float,
    dtype: torch.dtype,
    *,
    num_heads: int = HEADS,
    dk: int = DK,
) -> Sequences:
    """Inputs of ``num_tokens`` tokens.

    Args:
        correlated: True and False give keys near one direction per head and independent keys; a
            number in [0, 1] mixes them (1 is one key repeated).
    """
    normal = partial(torch.randn, generator=_generator(seed, 0), dtype=torch.float64)
    noise = normal(BATCH, num_heads, num_tokens, dk)
    common = normal(BATCH, num_heads, 1, dk)
    if correlated is True:
        keys = common + KEY_SPREAD * noise
    else:
        keys = float(correlated) * common + (1.0 - float(correlated)) * noise
    q, k = normalize_qk(normal(BATCH, num_heads, num_tokens, dk), keys)
    v = normal(BATCH, num_heads, num_tokens, DV)
    g = kda_gate(normal(BATCH, num_heads, num_tokens, dk) - 2.0)
    beta = torch.sigmoid(normal(BATCH, num_heads, num_tokens))
    return Sequences(*(x.to(dtype) for x in (q, k, v, g, beta)))


def committed_state(seed: int, dtype: torch.dtype) -> Tensor:
    """A (B, H, K, V) state in the middle of a text."""
    shape = (BATCH, HEADS, DK, DV)
    return (0.5 * torch.randn(shape, generator=_generator(seed, 1), dtype=torch.float64)).to(dtype)


def conv_rows(num_rows: int, seed: int, dtype: torch.dtype) -> Tensor:
    """(B, rows, C) raw inputs of the short convolution.

    The raw keys share a direction too: what comes out of the convolution is correlated.
    """
    generator = _generator(seed, 2)
    shape = (BATCH, num_rows, CHANNELS)
    return torch.randn(shape, generator=generator, dtype=torch.float64).add_(0.7).to(dtype)


def conv_weight(seed: int, dtype: torch.dtype) -> Tensor:
    """(C, W) taps."""
    generator = _generator(seed, 3)
    return (0.5 * torch.randn(CHANNELS, CONV_WIDTH, generator=generator, dtype=torch.float64)).to(
        dtype
    )


class WindowInputs(NamedTuple):
    """One verify window and the state before it."""

    sequences: Sequences
    state: Tensor
    conv_window: Tensor
    conv_inputs: Tensor


def verify_window(case: Case) -> WindowInputs:
    """Fresh tensors for one verify step of ``WINDOW_LEN`` tokens: a fault may write into them."""
    dtype = case.torch_dtype
    rows = conv_rows(CONV_WIDTH - 1 + WINDOW_LEN, case.seed, dtype)
    return WindowInputs(
        sequences(WINDOW_LEN, case.seed, case.correlated, dtype),
        committed_state(case.seed, dtype),
        rows[:, : CONV_WIDTH - 1].clone(),
        rows[:, CONV_WIDTH - 1 :].clone(),
    )


def _generator(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + stream)
