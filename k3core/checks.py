"""Argument checks that tensor mechanisms share; each raises before anything changes."""

from __future__ import annotations

import torch
from torch import Tensor

from k3core.errors import require, require_count

__all__ = ["compute_dtype", "require_count", "require_float", "require_shape"]


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if any tensor is float64, else float32 (also for bfloat16 and float16)."""
    wide = any(x is not None and x.dtype == torch.float64 for x in tensors)
    return torch.float64 if wide else torch.float32


def require_float(name: str, x: object) -> None:
    """Raise K3Error unless `x` is a tensor of a float dtype."""
    require(isinstance(x, Tensor), f"{name}={type(x).__name__} must be a tensor")
    if isinstance(x, Tensor):
        require(x.is_floating_point(), f"{name} has dtype {x.dtype}; allowed: any float dtype")


def require_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise K3Error unless `x` has exactly this shape."""
    require(tuple(x.shape) == shape, f"{name} has shape {tuple(x.shape)}; allowed: {shape}")
