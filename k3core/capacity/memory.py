"""Bytes that one request holds on one rank: a constant part (KDA) and a growing part (MLA).

Recurrent state and convolution window are split over the heads, so tensor parallelism divides
them. The MLA latent is shared by all heads, so every rank keeps a whole copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.capacity.presets import ModelPreset
from k3core.dtypes import dtype_bytes
from k3core.errors import CapacityError, require


@dataclass(frozen=True)
class RequestMemory:
    """Memory of one request on one rank; every figure is bytes per rank.

    Args:
        model: sizes of the whole model.
        tp: tensor-parallel degree; must divide the KDA heads.
        state_dtype: format of the recurrent state.
        conv_dtype: format of the rows in the convolution window.
        mla_dtype: format of the MLA cache; an empty string takes the model's default.
        draft_len: drafted tokens per step; each adds one row to the convolution window
            (vLLM `MambaStateShapeCalculator`: W-1 + number of speculative tokens).

    Raises:
        CapacityError: the degree does not divide the heads or ``draft_len`` is negative.
        K3Error: a dtype is unknown.
    """

    model: ModelPreset
    tp: int = 8
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    mla_dtype: str = ""
    draft_len: int = 0

    def __post_init__(self) -> None:
        if not self.mla_dtype:
            object.__setattr__(self, "mla_dtype", self.model.mla_dtype)
        self.model.heads_per_rank(self.tp)
        require(
            self.draft_len >= 0, f"draft_len={self.draft_len} must be at least 0", CapacityError
        )
        for name in (self.state_dtype, self.conv_dtype, self.mla_dtype):
            dtype_bytes(name)

    @property
    def num_heads(self) -> int:
        """KDA heads on this rank."""
        return self.model.heads_per_rank(self.tp)

    @property
    def state_bytes_per_head(self) -> int:
        return self.model.dk * self.model.dv * dtype_bytes(self.state_dtype)

    @property
    def state_bytes_per_layer(self) -> int:
        return self.num_heads * self.state_bytes_per_head

    @property
    def conv_channels(self) -> int:
        """Channels of q, k and v together on this rank."""
        return self.num_heads * (2 * self.model.dk + self.model.dv)

    @property
    def conv_rows(self) -> int:
        return self.model.conv_width - 1 + self.draft_len

    @property
    def conv_bytes_per_layer(self) -> int:
        return self.conv_rows * self.conv_channels * dtype_bytes(self.conv_dtype)

    @property
    def kda_bytes_per_layer(self) -> int:
        """State and convolution window of one layer: one slot of a state pool."""
        return self.state_bytes_per_layer + self.conv_bytes_per_layer

    @property
    def state_bytes_per_request(self) -> int:
        """State and convolution window of all KDA layers, paid once whatever the length."""
        return self.model.num_kda_layers * self.kda_bytes_per_layer

    @property
    def mla_bytes_per_token_layer(self) -> int:
        return self.model.mla_latent_dim * dtype_bytes(self.mla_dtype)

    @property
    def mla_bytes_per_token(self) -> int:
        """Latent rows that one token adds over all MLA layers; the same on every rank."""
        return self.model.num_mla_layers * self.mla_bytes_per_token_layer

    @property
    def break_even_len(self) -> float:
        """Length at which the MLA cache weighs as much as the KDA memory, as a quotient."""
        return self.state_bytes_per_request / self.mla_bytes_per_token

    @property
    def break_even_tokens(self) -> int:
        """First whole length at which the MLA cache weighs at least as much."""
        return -(-self.state_bytes_per_request // self.mla_bytes_per_token)

    @property
    def context_parallel_bytes_per_layer(self) -> int:
        """What one rank sends per KDA layer in a context-parallel prefill, always fp32.

        Two ``dk x (dk + dv)`` parts per head: transition and local state (fla #691).
        """
        return self.num_heads * self.model.dk * (self.model.dk + self.model.dv) * 4

    def kv_bytes(self, num_tokens: int) -> int:
        """MLA cache of a request with ``num_tokens`` tokens."""
        require(num_tokens >= 0, f"num_tokens={num_tokens} must be at least 0", CapacityError)
        return num_tokens * self.mla_bytes_per_token

    def total_bytes(self, num_tokens: int) -> int:
        """KDA memory and MLA cache together, without pages, padding or rollback."""
        return self.state_bytes_per_request + self.kv_bytes(num_tokens)

    def block_tokens(self, quantum: int = 128) -> int:
        """Tokens per page when a page must hold one KDA layer of a request.

        vLLM sizes the attention page up to the state page: the smallest multiple of ``quantum``
        whose MLA rows weigh at least as much. The quantum is 128 for MLA backends of mid-2026,
        64 in 2025, and 512 in the K3 report (5.4.1).
        """
        require(quantum >= 1, f"quantum={quantum} must be at least 1", CapacityError)
        return quantum * -(-self.kda_bytes_per_layer // (quantum * self.mla_bytes_per_token_layer))

    def page_bytes(self, quantum: int = 128) -> int:
        """Bytes of one page of ``block_tokens(quantum)`` tokens of one MLA layer."""
        return self.block_tokens(quantum) * self.mla_bytes_per_token_layer

    def page_fill(self, quantum: int = 128) -> float:
        """Share of a page that one KDA layer fills, in (0, 1]."""
        return self.kda_bytes_per_layer / self.page_bytes(quantum)
