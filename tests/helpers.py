"""Small random inputs for the recurrence tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from k3core.decode import DraftProjections
from k3core.kda import KDAState, kda_gate, normalize_qk
from k3core.replayssm import RawInputRing

CONV_WIDTH = 4


def make_sequences(
    num_tokens: int = 4,
    batch: int = 1,
    num_heads: int = 2,
    dk: int = 8,
    dv: int = 5,
    *,
    seed: int = 0,
    correlated: bool = True,
    dtype: torch.dtype = torch.float64,
    gate: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(q, k, v, g, beta) as `kda_recurrent` takes them.

    Correlated keys lie near one direction per head; there a wrong recurrence shows most. `gate`
    sets every log-decay to one value, else it is drawn through the bounded gate.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    raw_keys = normal(batch, num_heads, num_tokens, dk)
    if correlated:
        raw_keys = normal(batch, num_heads, 1, dk) + 0.4 * raw_keys
    q, k = normalize_qk(normal(batch, num_heads, num_tokens, dk), raw_keys)
    v = normal(batch, num_heads, num_tokens, dv)
    g = kda_gate(normal(batch, num_heads, num_tokens, dk) - 2.0)
    if gate is not None:
        g = torch.full_like(g, gate)
    beta = torch.sigmoid(normal(batch, num_heads, num_tokens))
    return q.to(dtype), k.to(dtype), v.to(dtype), g.to(dtype), beta.to(dtype)


def make_projection(
    draft_len: int = 4,
    batch: int = 1,
    num_heads: int = 2,
    dk: int = 8,
    dv: int = 5,
    *,
    seed: int = 0,
    correlated: bool = True,
    dtype: torch.dtype = torch.float64,
    with_conv: bool = False,
) -> DraftProjections:
    """Inputs of `draft_len` draft tokens, with raw convolution inputs if asked."""
    conv_inputs = None
    if with_conv:
        generator = torch.Generator().manual_seed(seed + 1)
        channels = num_heads * (2 * dk + dv)
        conv_inputs = torch.randn(batch, draft_len, channels, generator=generator).to(dtype)
    return DraftProjections.from_sequences(
        *make_sequences(
            draft_len, batch, num_heads, dk, dv, seed=seed, correlated=correlated, dtype=dtype
        ),
        conv_inputs=conv_inputs,
    )


def to_batch(projections: DraftProjections) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(q, k, v, g, beta) with the draft axis moved to the token axis, for `kda_recurrent`."""
    p = projections
    q, k, v, g, beta = (x.movedim(0, 2) for x in (p.q, p.k, p.v, p.g, p.beta))
    return q, k, v, g, beta


def make_state(
    batch: int = 1,
    num_heads: int = 2,
    dk: int = 8,
    dv: int = 5,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """A committed (B, H, K, V) state."""
    generator = torch.Generator().manual_seed(seed + 1000)
    shape = (batch, num_heads, dk, dv)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def make_kda_state(
    batch: int = 1,
    num_heads: int = 2,
    dk: int = 8,
    dv: int = 5,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> KDAState:
    """A committed state with the window of a convolution of width `CONV_WIDTH`."""
    generator = torch.Generator().manual_seed(seed + 2000)
    window = torch.randn(batch, CONV_WIDTH - 1, num_heads * (2 * dk + dv), generator=generator)
    return KDAState(make_state(batch, num_heads, dk, dv, seed=seed, dtype=dtype), window.to(dtype))


def snapshot(*tensors: Tensor | None) -> list[Tensor | None]:
    """Copies, to show later that nothing was written."""
    return [None if x is None else x.clone() for x in tensors]


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Equal dtype, shape and every bit (so that +0 differs from -0)."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return left.contiguous().view(torch.uint8).equal(right.contiguous().view(torch.uint8))


def largest_difference(left: ArrayLike, right: ArrayLike) -> float:
    """Largest absolute difference of two arrays, 0 for empty ones."""
    return float(np.abs(np.asarray(left) - np.asarray(right)).max(initial=0.0))


def shares_memory(*tensors: Tensor) -> bool:
    """Whether any two of the tensors overlap in storage."""
    spans = sorted(
        (x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in tensors if x.numel()
    )
    return any(end > start for (_, end), (start, _) in pairwise(spans))


def push_all(ring: RawInputRing, projections: DraftProjections) -> None:
    """Push the drafts one by one."""
    for i in range(len(projections)):
        conv = None if projections.conv_inputs is None else projections.conv_inputs[i]
        p = projections
        ring.push(p.q[i], p.k[i], p.v[i], p.g[i], p.beta[i], conv)


def assert_same_projections(actual: DraftProjections, expected: DraftProjections) -> None:
    """The same tensors under the same names, bit for bit."""
    assert set(actual.tensors()) == set(expected.tensors())
    for name, x in actual.tensors().items():
        assert same_bits(x, expected.tensors()[name]), name
