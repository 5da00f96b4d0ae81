"""Sizes of the stack that this lab runs, without torch, and its description for the planner.

`k3core.model.ModelConfig` is this class with tensors; the sizes have no second place.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.capacity.model import ModelPreset
from k3core.dtypes import dtype_bytes
from k3core.errors import require, require_count, require_number, shown

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class StackSizes:
    """Sizes of a hybrid stack, `kda_per_mla` KDA layers before each MLA layer; a toy by default.

    Raises:
        K3Error: a size is not a positive integer, ``num_layers`` is no whole number of periods, or
            ``dtype`` is not ``"float32"`` or ``"float64"``.
    """

    num_layers: int = 4
    kda_per_mla: int = 3
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
            "num_layers", "kda_per_mla", "hidden_size", "num_heads", "dk", "dv", "gate_rank",
            "kv_latent", "rope_width", "nope_width", "value_width", "mlp_size", "vocab_size",
        ):  # fmt: skip
            require_count(name, getattr(self, name), 1)
        require(
            self.num_layers % self.period == 0,
            f"num_layers={self.num_layers} is not a multiple of {self.period} "
            f"({self.kda_per_mla} KDA layers to 1 MLA layer)",
        )
        require_count("conv_width", self.conv_width, 2)
        require(
            require_number("lower_bound", self.lower_bound) < 0,
            f"lower_bound={self.lower_bound} is not negative",
        )
        require(
            isinstance(self.dtype, str) and self.dtype in DTYPES,
            f"dtype={shown(self.dtype)} is unknown; allowed: {', '.join(DTYPES)}",
        )

    @property
    def period(self) -> int:
        """Layers after which the pattern repeats."""
        return self.kda_per_mla + 1

    @property
    def mla_layers(self) -> tuple[int, ...]:
        """0-based indices of the MLA layers: the last of each period."""
        return tuple(range(self.kda_per_mla, self.num_layers, self.period))

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """0-based indices of the KDA layers."""
        return tuple(i for i in range(self.num_layers) if i not in self.mla_layers)

    @property
    def kda_groups(self) -> tuple[tuple[int, ...], ...]:
        """KDA layers by their place in the period: groups as long as that of the MLA layers."""
        return tuple(
            tuple(range(place, self.num_layers, self.period)) for place in range(self.kda_per_mla)
        )

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


def stack_preset(sizes: StackSizes, code: str, title: str, source: str, note: str) -> ModelPreset:
    """The planner's description of a stack of these sizes."""
    return ModelPreset(
        code=code,
        title=title,
        num_kda_layers=len(sizes.kda_layers),
        mla_layer_ids=tuple(layer + 1 for layer in sizes.mla_layers),
        num_heads=sizes.num_heads,
        dk=sizes.dk,
        dv=sizes.dv,
        conv_width=sizes.conv_width,
        mla_latent_dim=sizes.mla_row_width,
        mla_dtype=sizes.dtype,
        hidden_size=sizes.hidden_size,
        num_mla_heads=sizes.num_heads,
        gate_low_rank_dim=sizes.gate_rank,
        source=source,
        note=note,
    )


LAB_STACK = stack_preset(
    StackSizes(),
    code="lab-stack",
    title="Lab stack (toy, random weights)",
    source="k3core.model.ModelConfig(): the toy stack that the engine page runs",
    note="random weights, not trained; it computes in fp32 throughout, so its bytes in the engine "
    "are those with an fp32 window",
)
