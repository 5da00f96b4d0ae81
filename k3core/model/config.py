"""Sizes of the stack and the bytes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from k3core.dtypes import dtype_bytes
from k3core.errors import require, require_count
from k3core.kda import KDAState

TORCH_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a :class:`HybridModel`; the defaults are a toy.

    Raises:
        K3Error: a size is not a positive integer, ``num_layers`` is not a multiple of 4, or
            ``dtype`` is not ``"float32"`` or ``"float64"``.
    """

    num_layers: int = 4
    hidden_size: int = 64
    num_heads: int = 4
    dk: int = 16
    dv: int = 16
    conv_width: int = 4
    gate_rank: int = 16
    lower_bound: float = -5.0
    kv_latent: int = 32
    rope_width: int = 8
    nope_width: int = 16
    value_width: int = 16
    mlp_size: int = 128
    vocab_size: int = 256
    tied_head: bool = False
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "num_layers", "hidden_size", "num_heads", "dk", "dv", "gate_rank",
            "kv_latent", "rope_width", "nope_width", "value_width", "mlp_size", "vocab_size",
        ):  # fmt: skip
            require_count(name, getattr(self, name), 1)
        require(
            self.num_layers % 4 == 0,
            f"num_layers={self.num_layers} is not a multiple of 4 (3 KDA layers to 1 MLA layer)",
        )
        require_count("conv_width", self.conv_width, 2)
        require(self.lower_bound < 0, f"lower_bound={self.lower_bound} is not negative")
        require(
            self.dtype in TORCH_DTYPES,
            f"dtype={self.dtype!r} is unknown; allowed: {', '.join(TORCH_DTYPES)}",
        )

    @property
    def mla_layers(self) -> tuple[int, ...]:
        """0-based indices of the MLA layers: every fourth."""
        return tuple(range(3, self.num_layers, 4))

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """0-based indices of the KDA layers."""
        return tuple(i for i in range(self.num_layers) if i % 4 != 3)

    @property
    def kda_groups(self) -> tuple[tuple[int, ...], ...]:
        """KDA layers by their place in the period: three groups, each as long as the MLA group."""
        return tuple(tuple(range(place, self.num_layers, 4)) for place in range(3))

    @property
    def conv_channels(self) -> int:
        """Width of one row of the short convolution: the raw q, k and v of all heads."""
        return self.num_heads * (2 * self.dk + self.dv)

    @property
    def mla_row_width(self) -> int:
        """Numbers that one token leaves in one MLA layer: the latent and the rope slot."""
        return self.kv_latent + self.rope_width

    @property
    def itemsize(self) -> int:
        """Bytes of one number of the model."""
        return dtype_bytes(self.dtype)

    @property
    def mla_row_bytes(self) -> int:
        """Bytes of one token in one MLA layer."""
        return self.mla_row_width * self.itemsize

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent state of one KDA layer."""
        return self.num_heads * self.dk * self.dv * self.itemsize

    @property
    def window_bytes(self) -> int:
        """Bytes of the convolution window of one KDA layer."""
        return (self.conv_width - 1) * self.conv_channels * self.itemsize

    @property
    def kda_bytes(self) -> int:
        """Bytes of one KDA layer in a checkpoint: recurrent state and convolution window."""
        return self.recurrent_bytes + self.window_bytes

    def zero_state(self) -> KDAState:
        """The state of one KDA layer before the first token."""
        dtype = TORCH_DTYPES[self.dtype]
        return KDAState(
            torch.zeros(1, self.num_heads, self.dk, self.dv, dtype=dtype),
            torch.zeros(1, self.conv_width - 1, self.conv_channels, dtype=dtype),
        )
