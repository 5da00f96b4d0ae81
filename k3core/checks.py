"""Argument checks that tensor mechanisms share; each raises before anything changes."""

from __future__ import annotations

import torch
from torch import Tensor

from k3core.errors import K3Error, require, require_count

__all__ = [
    "compute_dtype",
    "require_count",
    "require_float",
    "require_not_empty",
    "require_shape",
    "wants_gradient",
]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Formats that torch computes in; narrower ones only store."""


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if any tensor is float64, else float32 (also for bfloat16 and float16)."""
    wide = any(x is not None and x.dtype == torch.float64 for x in tensors)
    return torch.float64 if wide else torch.float32


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a result of these tensors would be differentiated."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def require_float(name: str, x: object) -> None:
    """Raise K3Error unless `x` is a tensor of a float format that torch computes in."""
    if not isinstance(x, Tensor):
        raise K3Error(f"{name}={type(x).__name__} must be a tensor")
    if x.dtype not in FLOATS:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise K3Error(f"{name} has dtype {x.dtype}; allowed: {allowed}")


def require_not_empty(name: str, x: Tensor, *axes: int) -> None:
    """Raise K3Error when one of these axes of `x` has no element."""
    shape = tuple(x.shape)
    require(all(shape[axis] > 0 for axis in axes), f"{name} has shape {shape}; allowed: no axis 0")


def require_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise K3Error unless `x` has exactly this shape."""
    require(tuple(x.shape) == shape, f"{name} has shape {tuple(x.shape)}; allowed: {shape}")
