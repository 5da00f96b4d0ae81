"""Tensors as bytes: a recurrent state as one stream of heads, and plain byte copies.

Heads are the unit that tensor parallelism divides, so they lie one after the other: the stream of
a whole model is the concatenation of its ranks' streams (K3 report 5.4.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from k3core.errors import require, require_count, require_counts, require_range, require_type


def pack_heads(state: torch.Tensor) -> torch.Tensor:
    """Lay a state out head by head.

    Args:
        state: ``(B, H, dk, dv)``, any dtype and strides.

    Returns:
        A new 1-D tensor of the same dtype; head h is the h-th of H equal runs, so the streams of
        tensor-parallel ranks concatenate to the stream of the whole (``head_slice``).

    Raises:
        K3Error: ``state`` is not a 4-D tensor.
    """
    require_type("state", state, torch.Tensor)
    require(state.ndim == 4, f"state has shape {tuple(state.shape)}; allowed: (B, H, dk, dv)")
    return state.detach().transpose(0, 1).clone(memory_format=torch.contiguous_format).reshape(-1)


def unpack_heads(flat: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Undo ``pack_heads``.

    Args:
        flat: 1-D stream of ``B * H * dk * dv`` elements.
        shape: ``(B, H, dk, dv)``.

    Returns:
        A new contiguous tensor of that shape.

    Raises:
        K3Error: ``flat`` is not 1-D, or its length does not fit ``shape``.
    """
    require_type("flat", flat, torch.Tensor)
    shape = require_counts("shape", shape)
    require(len(shape) == 4, f"shape={shape} must be (B, H, dk, dv)")
    require(
        flat.ndim == 1 and flat.numel() == math.prod(shape),
        f"flat has shape {tuple(flat.shape)}; shape={shape} needs ({math.prod(shape)},)",
    )
    batch, heads, dk, dv = shape
    by_head = flat.detach().reshape(heads, batch, dk, dv)
    return by_head.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def head_slice(flat: torch.Tensor, num_heads: int, start: int, stop: int) -> torch.Tensor:
    """Heads ``start..stop`` of a packed stream of ``num_heads`` heads, without a copy.

    This is the whole re-layout between two tensor-parallel degrees: a rank's part is one run.

    Raises:
        K3Error: the stream does not divide into ``num_heads``, or the range is outside of it.
    """
    require_type("flat", flat, torch.Tensor)
    num_heads = require_count("num_heads", num_heads, 1)
    require(
        flat.ndim == 1 and flat.numel() % num_heads == 0,
        f"flat has shape {tuple(flat.shape)}; it does not divide into num_heads={num_heads}",
    )
    start, stop = require_range("heads", start, stop, num_heads)
    run = flat.numel() // num_heads
    return flat[start * run : stop * run]


def to_bytes(values: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, 1-D uint8, in row-major order."""
    return values.detach().contiguous().reshape(-1).view(torch.uint8)


def from_bytes(raw: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A new tensor from its bytes."""
    return raw.reshape(-1).clone().view(dtype).reshape(tuple(shape))
