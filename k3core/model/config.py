"""Sizes of the stack and the bytes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from k3core.capacity.lab_stack import DTYPES, StackSizes
from k3core.kda import KDAState

TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}


@dataclass(frozen=True)
class ModelConfig(StackSizes):
    """Sizes of a :class:`HybridModel`, and its empty states; the defaults are a toy.

    Fields and byte counts are those of `StackSizes`, which the planner reads without torch.

    Raises:
        K3Error: a size is not a positive integer, ``num_layers`` is no whole number of periods, or
            ``dtype`` is not ``"float32"`` or ``"float64"``.
    """

    def zero_state(self) -> KDAState:
        """The state of one KDA layer before the first token."""
        dtype = TORCH_DTYPES[self.dtype]
        return KDAState(
            torch.zeros(1, self.num_heads, self.dk, self.dv, dtype=dtype),
            torch.zeros(1, self.conv_width - 1, self.conv_channels, dtype=dtype),
        )
