"""Byte sizes of one request's pages, and the tensors that fill them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.errors import K3Error, require, require_count
from k3core.paged_cache import PagedCache
from k3core.paged_cache.pool import PagePool
from k3core.studies import single_thread  # noqa: F401

TORCH_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.float8_e4m3fn,
}
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MAX_BUFFER_BYTES = 256 * 2**20


@dataclass(frozen=True)
class RequestSizes:
    """One rank's sizes: a page holds ``tokens_per_page`` rows of one MLA layer."""

    memory: RequestMemory
    tokens_per_page: int

    @property
    def row_bytes(self) -> int:
        return self.memory.mla_bytes_per_token_layer

    @property
    def page_bytes(self) -> int:
        return self.tokens_per_page * self.row_bytes

    @property
    def kda_bytes(self) -> int:
        """State and convolution window of one KDA layer."""
        return self.memory.kda_bytes_per_layer

    @property
    def break_even_tokens(self) -> int:
        """First length at which the MLA pages outnumber or equal the KDA pages of all layers."""
        model = self.memory.model
        kda_pages = model.num_kda_layers * -(-self.kda_bytes // self.page_bytes)
        return (-(-kda_pages // model.num_mla_layers) - 1) * self.tokens_per_page + 1

    def pool(self, num_pages: int) -> PagePool:
        """A pool of pages of this size, refused when its buffer would be too large to show.

        Raises:
            K3Error: the buffer would exceed ``MAX_BUFFER_BYTES``.
        """
        self.require_buffer(num_pages)
        return PagePool(num_pages, self.page_bytes)

    def require_buffer(self, num_pages: int) -> None:
        """Raise K3Error when ``num_pages`` pages exceed ``MAX_BUFFER_BYTES``."""
        require(
            num_pages * self.page_bytes <= MAX_BUFFER_BYTES,
            f"pool_pages={num_pages} pages of {self.page_bytes:,} bytes exceed the "
            f"{MAX_BUFFER_BYTES // 2**20} MiB that one run may allot; use fewer or smaller pages",
        )

    def cache(self, pool: PagePool) -> PagedCache:
        """An empty cache of one MLA layer on ``pool``."""
        return PagedCache(pool, self.tokens_per_page, self.row_bytes)

    def state(self, seed: int = 0, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """A random state ``(B, H, dk, dv)`` and convolution window ``(B, W-1, C)``."""
        model, memory = self.memory.model, self.memory
        generator = torch.Generator().manual_seed(seed)
        state = torch.randn(batch, memory.num_heads, model.dk, model.dv, generator=generator)
        window = torch.randn(batch, memory.conv_rows, memory.conv_channels, generator=generator)
        return (
            state.to(TORCH_DTYPES[memory.state_dtype]),
            window.to(TORCH_DTYPES[memory.conv_dtype]),
        )

    def rows(self, num_tokens: int, seed: int = 0) -> torch.Tensor:
        """Random latent rows ``(num_tokens, mla_latent_dim)`` in the cache's format."""
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(num_tokens, self.memory.model.mla_latent_dim, generator=generator)
        return rows.to(TORCH_DTYPES[self.memory.mla_dtype])


class SizeOptions(TypedDict, total=False):
    """What decides the sizes; every study of this package takes it, see ``request_sizes``."""

    model: str
    tp: int
    state_dtype: str
    mla_dtype: str
    heads: int
    dk: int
    dv: int
    tokens_per_page: int


def request_sizes(
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "float8",
    heads: int = 12,
    dk: int = 128,
    dv: int = 128,
    tokens_per_page: int = 512,
) -> RequestSizes:
    """Sizes of a preset whose heads per rank and head sizes may have been changed.

    Raises:
        K3Error: a size is not an integer of at least 1, or a name is unknown.
    """
    for name, value in {"heads": heads, "dk": dk, "dv": dv}.items():
        require_count(name, value, 1)
    require_count("tokens_per_page", tokens_per_page, 1)
    for name, dtype in {"state_dtype": state_dtype, "mla_dtype": mla_dtype}.items():
        if dtype not in TORCH_DTYPES:
            raise K3Error(f"{name}={dtype!r} is unknown; allowed: {', '.join(TORCH_DTYPES)}")
    sized = replace(get_preset(model), num_heads=heads * tp, dk=dk, dv=dv)
    return RequestSizes(RequestMemory(sized, tp, state_dtype, mla_dtype=mla_dtype), tokens_per_page)


def num_different(left: torch.Tensor, right: torch.Tensor) -> int:
    """Elements whose bits differ; all of them when shape or format differ."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return max(left.numel(), right.numel())
    bits = _INTEGERS[left.dtype.itemsize]
    left, right = left.contiguous().view(bits), right.contiguous().view(bits)
    return 0 if torch.equal(left, right) else int((left != right).sum())


def max_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Largest absolute difference in float64."""
    return float((left.to(torch.float64) - right.to(torch.float64)).abs().max())


def shape_text(shape: tuple[int, ...] | torch.Size) -> str:
    """``(1, 12, 128, 128)`` -> ``"1 × 12 × 128 × 128"``."""
    return " × ".join(f"{size:,}" for size in shape)
