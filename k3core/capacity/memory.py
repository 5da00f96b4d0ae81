"""Bytes that one request holds on one rank: a constant part (KDA) and a growing part (MLA).

Recurrent state and convolution window are split over the heads, so tensor parallelism divides
them. The MLA latent is shared by all heads, so every rank keeps a whole copy of it. Names say KDA
and MLA for every model; of a comparison model they mean its linear and its attention layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3core.capacity.blocks import aligned_block
from k3core.capacity.model import ModelPreset
from k3core.dtypes import DTYPE_BYTES, dtype_bytes
from k3core.errors import CapacityError, require_choice, require_count, require_type

INDEXER_SCALE_BYTES = 4
MAX_COUNT = 2**31


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
        drafter_layers: attention layers of a drafter, whose cache grows with the model's (a
            DSpark drafter of Kimi K3: 5 MLA layers).
        drafter_dtype: format of the drafter's cache; an empty string takes ``mla_dtype``.

    Raises:
        CapacityError: the degree does not divide the heads, or ``draft_len`` or
            ``drafter_layers`` is no whole number of at least 0, or a dtype is unknown.
    """

    model: ModelPreset
    tp: int = 8
    state_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    mla_dtype: str = ""
    draft_len: int = 0
    drafter_layers: int = 0
    drafter_dtype: str = ""

    def __post_init__(self) -> None:
        require_type("model", self.model, ModelPreset, CapacityError)
        for name in ("mla_dtype", "drafter_dtype"):
            require_type(name, getattr(self, name), str, CapacityError)
        if not self.mla_dtype:
            object.__setattr__(self, "mla_dtype", self.model.mla_dtype)
        if not self.drafter_dtype:
            object.__setattr__(self, "drafter_dtype", self.mla_dtype)
        self.model.heads_per_rank(self.tp)
        for name in ("draft_len", "drafter_layers"):
            require_count(name, getattr(self, name), 0, MAX_COUNT, CapacityError)
        for name in ("state_dtype", "conv_dtype", "mla_dtype", "drafter_dtype"):
            require_choice(name, getattr(self, name), DTYPE_BYTES, CapacityError)

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
        """Channels of q, k and v together on this rank (Mamba-2: of x, B and C)."""
        keys = self.model.key_heads_per_rank(self.tp)
        return 2 * keys * self.model.dk + self.num_heads * self.model.dv

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

    def slot_bytes(self, num_slots: int) -> int:
        """Whole slots of a state pool, state and window of all KDA layers each."""
        count = require_count("num_slots", num_slots, 0, None, CapacityError)
        return count * self.state_bytes_per_request

    @property
    def recurrent_bytes_per_request(self) -> int:
        """Recurrent state of all KDA layers, without the window."""
        return self.model.num_kda_layers * self.state_bytes_per_layer

    @property
    def conv_bytes_per_request(self) -> int:
        """Convolution window of all KDA layers."""
        return self.model.num_kda_layers * self.conv_bytes_per_layer

    @property
    def mla_bytes_per_token_layer(self) -> int:
        return self.model.cache_dim_per_rank(self.tp) * dtype_bytes(self.mla_dtype)

    @property
    def mla_bytes_per_token(self) -> int:
        """Rows that one token adds over all attention layers of the model, on one rank."""
        return self.model.num_mla_layers * self.mla_bytes_per_token_layer

    @property
    def drafter_bytes_per_token_layer(self) -> int:
        return self.model.cache_dim_per_rank(self.tp) * dtype_bytes(self.drafter_dtype)

    @property
    def drafter_bytes_per_token(self) -> int:
        """Rows that one token adds in the drafter's layers."""
        return self.drafter_layers * self.drafter_bytes_per_token_layer

    @property
    def cache_bytes_per_token(self) -> int:
        """What a token adds over the attention layers of model and drafter."""
        return self.mla_bytes_per_token + self.drafter_bytes_per_token

    @property
    def every_layer_bytes_per_token(self) -> int:
        """What a count that takes every layer for attention would say (LMCache, inference-sim)."""
        return self.model.num_layers * self.mla_bytes_per_token_layer

    @property
    def every_layer_factor(self) -> float:
        """How many times too much such a count reports."""
        return self.every_layer_bytes_per_token / self.mla_bytes_per_token

    @property
    def per_head_pair_factor(self) -> int:
        """Waste of a latent stored as keys and values of every head on the rank (ATOM #1959)."""
        return 2 * self.model.num_mla_heads // self.tp

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
        count = require_count("num_tokens", num_tokens, 0, None, CapacityError)
        return count * self.cache_bytes_per_token

    @property
    def indexer_key_bytes(self) -> int:
        """One indexer key: fp8 numbers and an fp32 scale, as vLLM and SGLang keep it."""
        dim = self.model.indexer_dim
        return dim + INDEXER_SCALE_BYTES if dim else 0

    @property
    def indexer_bytes_per_token(self) -> float:
        """Indexer keys of one token over the attention layers, each rank a whole copy.

        They lie in pools of their own beside the cache and are no part of its bytes.
        """
        return self.model.num_mla_layers * self.indexer_key_bytes / self.model.indexer_pool

    def transfer_bytes(self, num_tokens: int, latent_copies: int = 1) -> int:
        """What a prefill cluster sends to decode for one request, all ranks together.

        States and windows are shards, so every rank's part travels. A latent is the same on every
        rank: one copy does when the receivers share it, ``tp`` copies when each pulls its own.
        A grouped-query cache is sharded like the states.
        """
        require_count("latent_copies", latent_copies, 1, None, CapacityError)
        copies = latent_copies if self.model.is_mla else self.tp
        return self.tp * self.state_bytes_per_request + copies * self.kv_bytes(num_tokens)

    def checkpoint_share(self, interval: int) -> float:
        """Share of the cache that checkpoints take at one per ``interval`` tokens, in (0, 1)."""
        require_count("interval", interval, 1, None, CapacityError)
        state = self.state_bytes_per_request
        return state / (state + interval * self.mla_bytes_per_token)

    @property
    def context_parallel_bytes(self) -> int:
        """What one rank sends in a context-parallel prefill, all KDA layers."""
        return self.model.num_kda_layers * self.context_parallel_bytes_per_layer

    def context_parallel_even_tokens(self) -> float:
        """Tokens per rank above which moving MLA rows costs more than the state packet."""
        return self.context_parallel_bytes_per_layer / self.mla_bytes_per_token_layer

    def total_bytes(self, num_tokens: int) -> int:
        """KDA memory and MLA cache together, without pages, padding or rollback."""
        return self.state_bytes_per_request + self.kv_bytes(num_tokens)

    def block_tokens(self, quantum: int = 128) -> int:
        """Tokens per page when a page must hold one KDA layer of a request.

        vLLM sizes the attention page up to the state page: the smallest multiple of ``quantum``
        whose MLA rows weigh at least as much. The quantum is 128 for MLA backends of mid-2026,
        64 in 2025, and 512 in the K3 report (5.4.1).
        """
        return aligned_block(self.kda_bytes_per_layer, self.mla_bytes_per_token_layer, quantum)

    def page_bytes(self, quantum: int = 128) -> int:
        """Bytes of one page of ``block_tokens(quantum)`` tokens of one MLA layer."""
        return self.block_tokens(quantum) * self.mla_bytes_per_token_layer

    def page_fill(self, quantum: int = 128) -> float:
        """Share of a page that one KDA layer fills, in (0, 1]."""
        return self.kda_bytes_per_layer / self.page_bytes(quantum)
