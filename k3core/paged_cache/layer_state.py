"""The state of one KDA layer as bytes: packed by head, its convolution window behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from k3core.errors import K3Error, require, require_type, shown
from k3core.paged_cache.head_stream import (
    from_bytes,
    pack_heads,
    to_bytes,
    unpack_heads,
)

Container = Callable[[torch.Tensor, torch.Tensor | None], Any]


class StateWithWindow(Protocol):
    """A state and the window of its short convolution, such as ``k3core.kda.KDAState``."""

    @property
    def recurrent(self) -> torch.Tensor: ...

    @property
    def conv_window(self) -> torch.Tensor | None: ...


class LayerState(NamedTuple):
    """A state whose window was given beside a bare tensor."""

    recurrent: torch.Tensor
    conv_window: torch.Tensor | None = None


@dataclass(frozen=True)
class StateFormat:
    """How to read a state back from its bytes.

    Attributes:
        shape: ``(B, H, dk, dv)``.
        window_shape: None when there is no window.
        container: puts state and window together; None for a bare tensor.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    window_shape: tuple[int, ...] | None
    window_dtype: torch.dtype | None
    container: Container | None

    @property
    def state_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """State and window."""
        if self.window_shape is None or self.window_dtype is None:
            return self.state_bytes
        return self.state_bytes + math.prod(self.window_shape) * self.window_dtype.itemsize

    def decode(self, stream: torch.Tensor) -> Any:
        """A copy of what was encoded, from at least ``num_bytes`` bytes."""
        recurrent = unpack_heads(stream[: self.state_bytes].view(self.dtype), self.shape)
        if self.container is None:
            return recurrent
        window = None
        if self.window_shape is not None and self.window_dtype is not None:
            raw = stream[self.state_bytes : self.num_bytes]
            window = from_bytes(raw, self.window_dtype, self.window_shape)
        return self.container(recurrent, window)


def encode_state(
    state: torch.Tensor | StateWithWindow, conv_window: torch.Tensor | None
) -> tuple[list[torch.Tensor], StateFormat]:
    """Bytes of a state (1-D uint8, end to end) and how to read them back.

    Raises:
        K3Error: the state is empty or misshapen, or the window is given twice.
    """
    container: Container | None
    if isinstance(state, torch.Tensor):
        recurrent, window = state, conv_window
        container = None if conv_window is None else LayerState
    elif hasattr(state, "recurrent") and hasattr(state, "conv_window"):
        require(
            conv_window is None or state.conv_window is None,
            "conv_window is given twice: inside of state and as an argument",
        )
        recurrent, container = state.recurrent, type(state)
        window = state.conv_window if conv_window is None else conv_window
    else:
        raise K3Error(f"state={shown(state)} must be a tensor or a (recurrent, conv_window)")
    packed = pack_heads(recurrent)
    require(packed.numel() > 0, f"state has shape {tuple(recurrent.shape)}; it is empty")
    content = [to_bytes(packed)]
    if window is not None:
        require_type("conv_window", window, torch.Tensor)
        content.append(to_bytes(window))
    return content, StateFormat(
        shape=tuple(recurrent.shape),
        dtype=recurrent.dtype,
        window_shape=None if window is None else tuple(window.shape),
        window_dtype=None if window is None else window.dtype,
        container=container,
    )
