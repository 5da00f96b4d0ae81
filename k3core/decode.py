"""Rollback for speculative decoding: keep the inputs of the drafts, replay the accepted ones.

The state of a KDA layer is overwritten by each token and cannot be cut back like an MLA cache.
Verification therefore reads the committed state without writing it, keeps the small inputs of every
draft (`DraftProjections`), and once the accepted count is known `verify_and_replay` runs the
recurrence over the accepted prefix only. Source: Kimi K3 report 5.4.2; compare TokenSpeed #1156.

Bytes: a snapshot of one head is K*V elements, its inputs are 3*K + V + 1 (q, k, g, v, beta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from k3core import kda
from k3core.checks import require_count, require_float, require_not_empty, require_shape
from k3core.dtypes import dtype_bytes
from k3core.errors import require
from k3core.kda import KDAState


@dataclass(frozen=True, eq=False)
class DraftProjections:
    """The inputs of the recurrence for consecutive draft tokens.

    Attributes:
        q, k, g: (draft, B, H, K).
        v: (draft, B, H, V).
        beta: (draft, B, H).
        conv_inputs: (draft, B, C) raw inputs of the short convolution, C = H*(2*K + V), or None.

    Raises:
        K3Error: shapes do not agree, or a tensor is not of a float dtype.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    conv_inputs: Tensor | None = None

    def __post_init__(self) -> None:
        for name, x in self.tensors().items():
            require_float(name, x)
        require(
            self.k.dim() == 4,
            f"k has shape {tuple(self.k.shape)}; allowed: (draft, B, H, K)",
        )
        draft, batch, num_heads, dk = self.k.shape
        dv = self.v.shape[-1] if self.v.dim() == 4 else -1
        wanted = {
            "q": (draft, batch, num_heads, dk),
            "g": (draft, batch, num_heads, dk),
            "v": (draft, batch, num_heads, dv),
            "beta": (draft, batch, num_heads),
            "conv_inputs": (draft, batch, num_heads * (2 * dk + dv)),
        }
        require_not_empty("k", self.k, 1, 2, 3)
        for name, x in self.tensors().items():
            shape = tuple(x.shape)
            if name != "k":
                allowed = str(wanted[name]).replace("-1", "V")
                require(shape == wanted[name], f"{name} has shape {shape}; allowed: {allowed}")
        require_not_empty("v", self.v, -1)

    @classmethod
    def from_sequences(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        conv_inputs: Tensor | None = None,
    ) -> DraftProjections:
        """Build from sequences (B, H, T, D), beta (B, H, T), conv_inputs (B, T, C)."""
        for name, x, dims in (
            *((n, x, 4) for n, x in {"q": q, "k": k, "v": v, "g": g}.items()),
            ("beta", beta, 3),
            ("conv_inputs", conv_inputs, 3),
        ):
            if x is not None or name != "conv_inputs":
                require_float(name, x)
            require(
                x is None or x.dim() == dims,
                f"{name} has shape {None if x is None else tuple(x.shape)}; "
                f"allowed: {dims} axes with tokens at axis {1 if name == 'conv_inputs' else 2}",
            )
        q, k, v, g = (x.permute(2, 0, 1, 3).contiguous() for x in (q, k, v, g))
        if conv_inputs is not None:
            conv_inputs = conv_inputs.transpose(0, 1).contiguous()
        return cls(q, k, v, g, beta.permute(2, 0, 1).contiguous(), conv_inputs)

    def sequences(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(q, k, v, g, beta) as `kda_recurrent` takes them: (B, H, T, D) and (B, H, T)."""
        q, k, v, g = (x.permute(1, 2, 0, 3) for x in (self.q, self.k, self.v, self.g))
        return q, k, v, g, self.beta.permute(1, 2, 0)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are held, by name."""
        named = {"q": self.q, "k": self.k, "v": self.v, "g": self.g, "beta": self.beta}
        if self.conv_inputs is not None:
            named["conv_inputs"] = self.conv_inputs
        return named

    def __len__(self) -> int:
        return int(self.k.shape[0])

    def __getitem__(self, index: slice) -> DraftProjections:
        """A run of drafts, as views: ``projections[:n]``."""
        require(
            isinstance(index, slice) and index.step in (None, 1),
            f"index={index!r} must be a slice of consecutive drafts such as [:n]",
        )
        return DraftProjections(**{name: x[index] for name, x in self.tensors().items()})

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution that feeds these heads: H*(2*K + V)."""
        return int(self.k.shape[2] * (2 * self.k.shape[3] + self.v.shape[3]))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are held, all drafts, batch rows and heads."""
        return sum(x.numel() * x.element_size() for x in self.tensors().values())


@overload
def verify_and_replay(
    state: Tensor, projections: DraftProjections, num_accepted: int
) -> tuple[Tensor, Tensor]: ...


@overload
def verify_and_replay(
    state: KDAState, projections: DraftProjections, num_accepted: int
) -> tuple[KDAState, Tensor]: ...


def verify_and_replay(
    state: Tensor | KDAState, projections: DraftProjections, num_accepted: int
) -> tuple[Tensor | KDAState, Tensor]:
    """Run the recurrence over the accepted drafts, from the committed state, which stays as it is.

    Bit-equal to `k3core.kda.kda_recurrent` over the same tokens. With a `KDAState` the convolution
    window rolls back too: it ends as the last W-1 raw inputs after `num_accepted` tokens.

    Args:
        state: committed (B, H, K, V) state, or a `KDAState`.
        projections: inputs of the drafts.
        num_accepted: accepted drafts, 0 to ``len(projections)``.

    Returns:
        (new state of the same kind, sharing no memory with the argument;
        outputs (B, H, num_accepted, V)).

    Raises:
        K3Error: a shape, a dtype or `num_accepted` is wrong, or a `KDAState` with a window meets
            projections without `conv_inputs`.
    """
    _check_replay(state, projections, num_accepted)
    if isinstance(state, KDAState):
        running, outputs = _replay(state.recurrent, projections, num_accepted)
        window = advance_window(state.conv_window, projections.conv_inputs, num_accepted)
        return KDAState(running, window), outputs
    return _replay(state, projections, num_accepted)


def advance_window(
    window: Tensor | None, conv_inputs: Tensor | None, num_accepted: int
) -> Tensor | None:
    """The convolution window after `num_accepted` more tokens.

    Args:
        window: (B, W-1, C), oldest first, or None for a layer without a convolution.
        conv_inputs: (draft, B, C) raw inputs, at least `num_accepted` of them.

    Returns:
        (B, W-1, C), a copy in the dtype of `window`; None when `window` is None.
    """
    if window is None:
        return None
    if conv_inputs is None or num_accepted == 0:
        return window.clone()
    rows = torch.cat([window, conv_inputs[:num_accepted].transpose(0, 1).to(window.dtype)], dim=1)
    return rows[:, num_accepted:].clone()


def _replay(
    state: Tensor, projections: DraftProjections, num_accepted: int
) -> tuple[Tensor, Tensor]:
    p, n = projections, num_accepted
    out, running = kda.run_tokens(p.q[:n], p.k[:n], p.v[:n], p.g[:n], p.beta[:n], state=state)
    return running, out.movedim(0, 2).contiguous()


def _check_replay(
    state: Tensor | KDAState, projections: DraftProjections, num_accepted: int
) -> None:
    require(
        isinstance(projections, DraftProjections),
        f"projections={type(projections).__name__} must be DraftProjections",
    )
    require_count("num_accepted", num_accepted, most=len(projections))
    check_state("state", state, projections)


def check_state(name: str, state: Tensor | KDAState, projections: DraftProjections) -> None:
    """Raise K3Error unless `projections` can be replayed on `state`."""
    recurrent = state.recurrent if isinstance(state, KDAState) else state
    require_float(name, recurrent)
    _, batch, num_heads, dk = projections.k.shape
    require_shape(name, recurrent, (batch, num_heads, dk, projections.v.shape[-1]))
    window = state.conv_window if isinstance(state, KDAState) else None
    if window is None:
        return
    conv = projections.conv_inputs
    require(
        conv is not None,
        "conv_inputs=None is not allowed: the state has a convolution window to roll back",
    )
    channels = projections.conv_channels
    require(
        window.dim() == 3 and window.shape[0] == batch and window.shape[2] == channels,
        f"{name}.conv_window has shape {tuple(window.shape)}; allowed: ({batch}, W-1, {channels})",
    )


def snapshot_bytes(
    num_heads: int,
    dk: int,
    dv: int,
    draft_len: int = 1,
    state_dtype: str = "float32",
    conv_width: int = 0,
    conv_dtype: str = "bfloat16",
) -> int:
    """Bytes of one full state per draft token, one layer, one request.

    Args:
        num_heads: heads on this rank.
        dk, dv: key and value size of a head.
        draft_len: number of snapshots.
        state_dtype: format of the state.
        conv_width: taps of the short convolution; each snapshot then also holds its window of
            ``conv_width - 1`` rows. 0 counts the state only.
        conv_dtype: format of the window.

    Raises:
        K3Error: a size is out of range or a dtype is unknown.
    """
    _check_sizes(num_heads, dk, dv, draft_len)
    require_count("conv_width", conv_width)
    state = num_heads * dk * dv * dtype_bytes(state_dtype)
    rows = max(conv_width - 1, 0)
    window = rows * num_heads * (2 * dk + dv) * dtype_bytes(conv_dtype)
    return draft_len * (state + window)


def projection_bytes(
    num_heads: int,
    dk: int,
    dv: int,
    draft_len: int = 1,
    input_dtype: str = "bfloat16",
    gate_dtype: str = "float32",
    beta_dtype: str = "float32",
    with_q: bool = True,
) -> int:
    """Bytes of the inputs of each draft token, one layer, one request.

    The defaults without `q` are SGLang #36821: 1,028 bytes per head and token at K = V = 128.

    Args:
        num_heads: heads on this rank.
        dk, dv: key and value size of a head.
        draft_len: number of draft tokens.
        input_dtype: format of q, k, v.
        gate_dtype: format of g (one per key channel).
        beta_dtype: format of beta (one per head).
        with_q: count `q`; the state needs it not, only the outputs do.

    Raises:
        K3Error: a size is out of range or a dtype is unknown.
    """
    _check_sizes(num_heads, dk, dv, draft_len)
    inputs = ((2 if with_q else 1) * dk + dv) * dtype_bytes(input_dtype)
    per_head = inputs + dk * dtype_bytes(gate_dtype) + dtype_bytes(beta_dtype)
    return draft_len * num_heads * per_head


def snapshot_cost_ratio(num_heads: int, dk: int, dv: int, draft_len: int = 1) -> float:
    """Elements of a snapshot over elements of its inputs: ``dk*dv / (3*dk + dv + 1)``.

    Heads and draft length cancel. Equals the ratio of bytes only where state and inputs share a
    dtype. Below 1 (inputs are larger) when ``dk*dv < 3*dk + dv + 1``, such as 4 x 4.

    Raises:
        K3Error: a size is out of range.
    """
    _check_sizes(num_heads, dk, dv, draft_len)
    require_count("draft_len", draft_len, least=1)
    snapshot = draft_len * num_heads * dk * dv
    return snapshot / (draft_len * num_heads * (3 * dk + dv + 1))


def _check_sizes(num_heads: int, dk: int, dv: int, draft_len: int) -> None:
    for name, value in {"num_heads": num_heads, "dk": dk, "dv": dv}.items():
        require_count(name, value, least=1)
    require_count("draft_len", draft_len)
