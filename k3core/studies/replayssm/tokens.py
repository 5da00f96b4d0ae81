"""Toy tokens for the ring studies: correlated keys, chosen formats, one seed."""

from __future__ import annotations

import torch
from torch import Tensor

from k3core.decode import DraftProjections
from k3core.dtypes import dtype_bytes
from k3core.errors import require_count
from k3core.kda import kda_gate, normalize_qk, sigmoid

CONV_WIDTH = 4


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a format's name.

    Raises:
        K3Error: the name is unknown.
    """
    dtype_bytes(name)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def toy_tokens(
    num_tokens: int, heads: int, dk: int, dv: int, input_dtype: str, seed: int
) -> DraftProjections:
    """Inputs of `num_tokens` consecutive tokens, raw convolution inputs included.

    Each head's keys lie near one direction: with random keys a wrong recurrence hardly shows.

    Raises:
        K3Error: a size is not positive or the dtype is unknown.
    """
    for name, value in {"heads": heads, "dk": dk, "dv": dv}.items():
        require_count(name, value, least=1)
    dtype = torch_dtype(input_dtype)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    keys = normal(1, heads, 1, dk) + 0.5 * normal(1, heads, num_tokens, dk)
    q, k = normalize_qk(normal(1, heads, num_tokens, dk), keys)
    v = normal(1, heads, num_tokens, dv)
    g = kda_gate(normal(1, heads, num_tokens, dk) - 3.0)
    beta = sigmoid(normal(1, heads, num_tokens))
    conv_inputs = normal(1, num_tokens, heads * (2 * dk + dv))
    q, k, v, g, beta = (x.to(dtype) for x in (q, k, v, g, beta))
    return DraftProjections.from_sequences(q, k, v, g, beta, conv_inputs.to(dtype))


def zero_state(heads: int, dk: int, dv: int, state_dtype: str) -> Tensor:
    """An empty (1, heads, dk, dv) state."""
    return torch.zeros(1, heads, dk, dv, dtype=torch_dtype(state_dtype))
