"""Kimi Delta Attention (KDA): recurrence, chunked form, gates and short convolution.

One step for one head, decay first, then the delta rule on the decayed state, read after write::

    S <- exp(g)[:, None] * S
    u  = beta * (v - S^T k)
    S <- S + k u^T
    o  = S^T q

Sources: Kimi K3 report, equation 1 (arXiv:2607.24653); flash-linear-attention `ops/kda`.

Shapes: B batch, H heads, T tokens, K key size, V value size. Sequences are (B, H, T, D), one step
is (B, H, D), a state is (B, H, K, V). Arithmetic runs in float64 if any argument is float64, else
in float32; a state keeps its own dtype, an output takes the dtype of `v`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from k3core.checks import compute_dtype, require_count, require_float, require_shape
from k3core.errors import require
from k3core.gates import kda_gate, l2_normalize, normalize_qk, sigmoid, silu, softplus_gate

__all__ = [
    "SUB_CHUNK_LEN",
    "KDAState",
    "copy_state",
    "kda_chunk",
    "kda_gate",
    "kda_recurrent",
    "kda_step",
    "l2_normalize",
    "normalize_qk",
    "short_convolution",
    "sigmoid",
    "silu",
    "softplus_gate",
]

SUB_CHUNK_LEN = 16
"""Tokens whose gates are summed relative to one anchor inside `kda_chunk`."""


class KDAState(NamedTuple):
    """What one KDA layer remembers of a sequence.

    Attributes:
        recurrent: (B, H, K, V) state matrix per head.
        conv_window: (B, W-1, C) last inputs of the short convolution of width W, oldest first, with
            C = H*(2*K + V) (raw q, k, v before the convolution), or None without a convolution.
    """

    recurrent: Tensor
    conv_window: Tensor | None = None


StateT = TypeVar("StateT", Tensor, KDAState)


def copy_state(state: StateT) -> StateT:
    """A deep copy of a state tensor or a `KDAState`."""
    if isinstance(state, KDAState):
        window = state.conv_window
        return KDAState(state.recurrent.clone(), None if window is None else window.clone())
    return state.clone()


def short_convolution(
    x: Tensor, weight: Tensor, window: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution with SiLU, as it stands before q, k and v.

    ``y_t = silu(sum_w weight[:, w] * x_{t-W+1+w})``; inputs before the first token stand in
    `window`.

    Args:
        x: (B, T, C) raw inputs.
        weight: (C, W) taps, oldest first.
        window: (B, W-1, C) inputs before `x`, oldest first; None means zeros.

    Returns:
        (silu(y) (B, T, C), new window (B, W-1, C)), both in the dtype of `x`; the window is a copy.

    Raises:
        K3Error: wrong shape or dtype.
    """
    require_float("x", x)
    require_float("weight", weight)
    require(x.dim() == 3, f"x has shape {tuple(x.shape)}; allowed: (B, T, C)")
    batch, num_tokens, channels = x.shape
    require(
        weight.dim() == 2 and weight.shape[0] == channels and weight.shape[1] >= 1,
        f"weight has shape {tuple(weight.shape)}; allowed: ({channels}, W) with W >= 1",
    )
    width = weight.shape[1]
    if window is None:
        window = x.new_zeros(batch, width - 1, channels)
    require_shape("window", window, (batch, width - 1, channels))
    rows = torch.cat([window.to(x.dtype), x], dim=1)
    dtype = compute_dtype(x, weight)
    wide, taps = rows.to(dtype), weight.to(dtype)
    y = wide.new_zeros(batch, num_tokens, channels)
    for tap in range(width):
        y = y + taps[:, tap] * wide[:, tap : tap + num_tokens]
    return silu(y).to(x.dtype), rows[:, num_tokens:].clone()


def kda_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of the recurrence; the arguments are never changed.

    Sums run over freshly made contiguous products, so that the bits of a result depend on the
    values only, not on where in memory the arguments lie.

    Args:
        q, k: (B, H, K), normalised, `q` scaled.
        v: (B, H, V).
        g: (B, H, K) log-decay.
        beta: (B, H) write strength in [0, 1].
        state: (B, H, K, V).

    Returns:
        (out (B, H, V) in the dtype of `v`, new state (B, H, K, V) in the dtype of `state`).

    Raises:
        K3Error: wrong shape or dtype.
    """
    _check_inputs(q, k, v, g, beta, state, sequence=False)
    dtype = compute_dtype(q, k, v, g, beta, state)
    decay, key, query, value, strength = (
        x.to(dtype, copy=True, memory_format=torch.contiguous_format) for x in (g, k, q, v, beta)
    )
    decay.exp_()
    new = state.to(dtype).contiguous() * decay.unsqueeze(-1)
    predicted = (new * key.unsqueeze(-1)).sum(-2)
    update = strength.unsqueeze(-1) * (value - predicted)
    new = new + key.unsqueeze(-1) * update.unsqueeze(-2)
    out = (new * query.unsqueeze(-1)).sum(-2)
    return out.to(v.dtype), new.to(state.dtype)


def kda_recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence token by token: bit-equal to a loop of `kda_step`.

    Args:
        q, k, g: (B, H, T, K).
        v: (B, H, T, V).
        beta: (B, H, T).
        state: (B, H, K, V), or None for zeros (float32, or float64 for float64 arguments).

    Returns:
        (out (B, H, T, V), state (B, H, K, V)); the state is never the argument itself.

    Raises:
        K3Error: wrong shape or dtype.
    """
    _check_inputs(q, k, v, g, beta, state, sequence=True)
    state = _initial_state(q, k, v, g, beta, state)
    outputs = []
    for t in range(q.shape[2]):
        out, state = kda_step(q[:, :, t], k[:, :, t], v[:, :, t], g[:, :, t], beta[:, :, t], state)
        outputs.append(out)
    return (torch.stack(outputs, dim=2) if outputs else torch.zeros_like(v)), state


def kda_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """The same result as `kda_recurrent`, `chunk_size` tokens at a time (WY form).

    Inside a chunk, with G the cumulative log-decay: ``A = stril(beta_i <k_i e^(G_i-G_j), k_j>)``,
    ``V' = (I + A)^-1 beta (V - e^G K S)``, ``O = e^G Q S + tril(<q_i e^(G_i-G_j), k_j>) V'``. Every
    exponential has an exponent <= 0 for log-decays <= 0: gates are summed inside sub-chunks of 16,
    products between sub-chunks are anchored at the border between them, products inside one take
    ``G_i - G_j`` directly. Nothing overflows, whatever the gate and the chunk size.

    A state of low precision is rounded once at the end, not after each token.

    Args:
        q, k, g: (B, H, T, K).
        v: (B, H, T, V).
        beta: (B, H, T).
        state: (B, H, K, V), or None for zeros.
        chunk_size: tokens per chunk, >= 1.

    Returns:
        (out (B, H, T, V), state (B, H, K, V)).

    Raises:
        K3Error: wrong shape or dtype, or ``chunk_size`` < 1.
    """
    require_count("chunk_size", chunk_size, least=1)
    _check_inputs(q, k, v, g, beta, state, sequence=True)
    state = _initial_state(q, k, v, g, beta, state)
    num_tokens = q.shape[2]
    if num_tokens == 0:
        return torch.zeros_like(v), state
    dtype = compute_dtype(q, k, v, g, beta, state)
    chunk_len = min(chunk_size, num_tokens)
    sub_len = min(SUB_CHUNK_LEN, chunk_len)
    query, key, value, log_decay = (_split(x.to(dtype), chunk_len, sub_len) for x in (q, k, v, g))
    strength = _split(beta.to(dtype).unsqueeze(-1), chunk_len, sub_len)

    to_here = log_decay.cumsum(-2)  # from the sub-chunk start through this token
    after_here = _sum_after(log_decay)  # after this token to the sub-chunk end
    totals = to_here[..., -1:, :]  # of one sub-chunk
    before_sub = totals.cumsum(-3) - totals
    keys_products, query_products = _decayed_products(query, key, to_here, after_here, totals)

    flat = (*query.shape[:3], query.shape[3] * sub_len)
    since_start = (to_here + before_sub).exp()
    until_end = (after_here + _sum_after(totals.squeeze(-2)).unsqueeze(-2)).exp()
    query_in = (query * since_start).reshape(*flat, query.shape[-1])
    key_in = (key * since_start * strength).reshape(*flat, key.shape[-1])
    key_out = (key * until_end).reshape(*flat, key.shape[-1])
    rhs = torch.cat([key_in, (value * strength).reshape(*flat, value.shape[-1])], dim=-1)
    lower = keys_products * strength.reshape(*flat, 1)
    solved = torch.linalg.solve_triangular(lower, rhs, upper=False, unitriangular=True)
    from_state, own = solved.split([key.shape[-1], value.shape[-1]], dim=-1)
    chunk_decay = totals.sum(-3).squeeze(-2).exp().unsqueeze(-1)

    running, outputs = state.to(dtype), []
    for n in range(query.shape[2]):
        update = own[:, :, n] - from_state[:, :, n] @ running
        outputs.append(query_in[:, :, n] @ running + query_products[:, :, n] @ update)
        running = chunk_decay[:, :, n] * running + key_out[:, :, n].transpose(-1, -2) @ update
    out = torch.stack(outputs, dim=2)[..., :chunk_len, :].flatten(2, 3)[:, :, :num_tokens]
    return out.to(v.dtype).contiguous(), running.to(state.dtype)


def _decayed_products(
    query: Tensor, key: Tensor, to_here: Tensor, after_here: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor]:
    """``<k_i e^(G_i-G_j), k_j>`` for j < i and ``<q_i e^(G_i-G_j), k_j>`` for j <= i.

    Args:
        query, key, to_here, after_here: (B, H, N, M, L, K), M sub-chunks of L tokens per chunk.
        totals: (B, H, N, M, 1, K).

    Returns:
        Two (B, H, N, M*L, M*L) lower-triangular matrices, the first with a zero diagonal.
    """
    num_subs, sub_len = key.shape[3], key.shape[4]
    stacked = torch.stack([key, query])
    columns = []
    for j in range(sub_len):
        decay = (to_here[..., j:, :] - to_here[..., j : j + 1, :]).exp()
        column = (stacked[..., j:, :] * decay * key[..., j : j + 1, :]).sum(-1)
        columns.append(F.pad(column, (j, 0)))
    diagonal = torch.stack(columns, dim=-1)

    rows = []
    for a in range(num_subs):
        blocks = [diagonal[:, :, :, :, a]]
        if a > 0:
            left = stacked[:, :, :, :, a] * to_here[:, :, :, a].exp()
            between = _sum_after(totals[:, :, :, :a].squeeze(-2)).unsqueeze(-2)
            right = (key[:, :, :, :a] * (after_here[:, :, :, :a] + between).exp()).flatten(3, 4)
            blocks.insert(0, left @ right.transpose(-1, -2))
        row = torch.cat(blocks, dim=-1)
        rows.append(F.pad(row, (0, (num_subs - 1 - a) * sub_len)))
    both = torch.cat(rows, dim=-2)
    return both[0].tril(-1), both[1]


def _split(x: Tensor, chunk_len: int, sub_len: int) -> Tensor:
    """(B, H, T, D) -> (B, H, chunks, sub-chunks, sub_len, D); zero rows fill the ends.

    A zero row is inert: it decays by exp(0) and writes nothing.
    """
    batch, num_heads, num_tokens, size = x.shape
    chunks = F.pad(x, (0, 0, 0, -num_tokens % chunk_len))
    chunks = chunks.reshape(batch, num_heads, -(-num_tokens // chunk_len), chunk_len, size)
    subs = F.pad(chunks, (0, 0, 0, -chunk_len % sub_len))
    return subs.reshape(*chunks.shape[:3], -(-chunk_len // sub_len), sub_len, size)


def _sum_after(x: Tensor) -> Tensor:
    """Sum over the rows (axis -2) after each row."""
    return F.pad(x[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _initial_state(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None
) -> Tensor:
    """Zeros for None, else a copy, so that a result never shares memory with the argument."""
    if state is not None:
        return state.clone()
    batch, num_heads, _, dk = k.shape
    shape = (batch, num_heads, dk, v.shape[-1])
    return torch.zeros(shape, dtype=compute_dtype(q, k, v, g, beta), device=v.device)


def _check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    *,
    sequence: bool,
) -> None:
    named = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    for name, x in named.items():
        require_float(name, x)
    dims = 4 if sequence else 3
    layout = "(B, H, T, K)" if sequence else "(B, H, K)"
    require(k.dim() == dims, f"k has shape {tuple(k.shape)}; allowed: {layout}")
    lead = tuple(k.shape[:-1])
    require_shape("q", q, tuple(k.shape))
    require_shape("g", g, tuple(k.shape))
    require(
        v.dim() == dims and tuple(v.shape[:-1]) == lead,
        f"v has shape {tuple(v.shape)}; allowed: {lead + ('V',)}",
    )
    require_shape("beta", beta, lead)
    if state is not None:
        require_float("state", state)
        require_shape("state", state, (k.shape[0], k.shape[1], k.shape[-1], v.shape[-1]))
