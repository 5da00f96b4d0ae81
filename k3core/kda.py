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

from k3core.checks import (
    compute_dtype,
    require_count,
    require_float,
    require_not_empty,
    require_shape,
    wants_gradient,
)
from k3core.chunked import run_chunks
from k3core.errors import require
from k3core.gates import kda_gate, l2_normalize, normalize_qk, sigmoid, silu, softplus_gate
from k3core.threads import threads_for

__all__ = [
    "KDAState",
    "advance_state",
    "copy_state",
    "kda_chunk",
    "kda_gate",
    "kda_recurrent",
    "kda_step",
    "l2_normalize",
    "normalize_qk",
    "run_tokens",
    "short_convolution",
    "sigmoid",
    "silu",
    "softplus_gate",
]

CHUNK_LEN = 64
"""Tokens per chunk by default (design; flash-linear-attention uses the same)."""

CACHE_LINE_BYTES = 64
"""Alignment that torch gives each tensor and `run_tokens` each row."""

TOKENS_AT_A_TIME = 512
"""Tokens whose inputs `run_tokens` brings into shape at once."""


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


def advance_state(
    state: Tensor,
    decay: Tensor,
    key: Tensor,
    query: Tensor,
    write_key: Tensor,
    write_value: Tensor,
    *,
    new_state: Tensor | None = None,
    update: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One token on N heads: the one place where the recurrence is written down.

    Args:
        state: (N, K, V).
        decay: (N, K, 1) multiplier of the state, ``exp(g)``.
        key: (N, K, 1).
        query: (N, 1, K).
        write_key: (N, 1, K) ``beta * k``.
        write_value: (N, 1, V) ``beta * v``.
        new_state, update, out: (N, K, V), (N, 1, V) and (N, 1, V) to write to, none of them an
            argument from above except that `new_state` may be `state`; None allocates.

    Returns:
        (out (N, 1, V), new state (N, K, V)).
    """
    decayed = torch.mul(state, decay, out=new_state)
    update = torch.baddbmm(write_value, write_key, decayed, alpha=-1, out=update)
    new_state = torch.addcmul(decayed, key, update, out=new_state)
    return torch.bmm(query, new_state, out=out), new_state


def kda_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token of the recurrence; the arguments are never changed.

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
    out, new = run_tokens(*(x.unsqueeze(0) for x in (q, k, v, g, beta)), state=state)
    return out[0], new


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
    out, state = run_tokens(*(x.movedim(2, 0) for x in (q, k, v, g, beta)), state=state)
    return out.movedim(0, 2).contiguous(), state


def run_tokens(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, state: Tensor
) -> tuple[Tensor, Tensor]:
    """`advance_state` over T tokens, written in place on memory of its own.

    The bits of a result depend on the values and on K and V only, not on T, on the number of heads
    or on where in memory the arguments lie: every row of a product starts on a cache line (sizes
    that do not fill lines are filled with zeros, which are inert), because a matrix product may
    sum in another order elsewhere. One thread for small states (`k3core.threads`).

    Args:
        q, k, g: (T, B, H, K).
        v: (T, B, H, V).
        beta: (T, B, H).
        state: (B, H, K, V), never written.

    Returns:
        (out (T, B, H, V) in the dtype of `v`, new state (B, H, K, V) in the dtype of `state`, which
        shares no memory with the argument).
    """
    num_tokens, batch, num_heads, dk = k.shape
    num_rows, dv = batch * num_heads, v.shape[-1]
    if num_tokens == 0:
        return torch.zeros_like(v), state.clone()
    dtype = compute_dtype(q, k, v, g, beta, state)
    in_place = not wants_gradient(q, k, v, g, beta, state)
    fill_k, fill_v = (-size % (CACHE_LINE_BYTES // dtype.itemsize) for size in (dk, dv))
    running = state.reshape(num_rows, dk, dv)
    if fill_k or fill_v:
        running = F.pad(running, (0, fill_v, 0, fill_k))
    wide = narrow = update = None
    if in_place:
        wide = torch.empty_like(running, dtype=dtype, memory_format=torch.contiguous_format)
        update = wide.new_empty(num_rows, 1, dv + fill_v)
        narrow = wide if state.dtype == dtype else wide.to(state.dtype)

    outputs: list[Tensor] = []
    with threads_for(num_rows * dk * dv):
        for start in range(0, num_tokens, TOKENS_AT_A_TIME):
            part = slice(start, start + TOKENS_AT_A_TIME)
            key, query, value, log_decay = (
                _lines(x[part], dtype, num_rows, fill)
                for x, fill in ((k, fill_k), (q, fill_k), (v, fill_v), (g, fill_k))
            )
            strength = beta[part].to(dtype).reshape(-1, num_rows, 1, 1)
            rows = (
                log_decay.exp().transpose(2, 3),
                key.transpose(2, 3),
                query,
                key * strength,
                value * strength,
            )
            made = torch.empty_like(value) if in_place else None
            targets = [None] * len(value) if made is None else made.unbind(0)
            outs = []
            for target, *row in zip(targets, *(x.unbind(0) for x in rows), strict=True):
                out, new = advance_state(running, *row, new_state=wide, update=update, out=target)
                if state.dtype == dtype:
                    running = new
                else:
                    running = new.to(state.dtype) if narrow is None else narrow.copy_(new)
                outs.append(out)
            outputs.append(torch.stack(outs) if made is None else made)
    if fill_k or fill_v:
        running = running[:, :dk, :dv].contiguous()
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    out = out[..., :dv].reshape(num_tokens, batch, num_heads, dv).to(v.dtype)
    return out, running.view(batch, num_heads, dk, dv)


def _lines(x: Tensor, dtype: torch.dtype, num_rows: int, fill: int) -> Tensor:
    """(T, B, H, D) -> contiguous (T, N, 1, D + fill) whose rows start on cache lines."""
    rows = x.to(dtype).reshape(-1, num_rows, 1, x.shape[-1])
    rows = F.pad(rows, (0, fill)) if fill else rows.contiguous()
    return rows.clone() if rows.data_ptr() % CACHE_LINE_BYTES else rows


def kda_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    chunk_size: int = CHUNK_LEN,
) -> tuple[Tensor, Tensor]:
    """The same result as `kda_recurrent`, `chunk_size` tokens at a time (`k3core.chunked`).

    Every decay factor is a product of `exp(g)` over a run of tokens, so that nothing overflows for
    log-decays <= 0, whatever the gate and the chunk size. A state of low precision is rounded once
    at the end, not after each token. When the state does not stay finite the tokens run one by one
    instead, so that Inf and NaN never reach an output before their token.

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
    batch, num_heads, num_tokens, dk = k.shape
    if num_tokens == 0:
        return torch.zeros_like(v), state.clone()
    dtype = compute_dtype(q, k, v, g, beta, state)
    running = state.to(dtype, copy=True, memory_format=torch.contiguous_format).flatten(0, 1)
    heads = [x.flatten(0, 1) for x in (q, k, v, g, beta)]
    in_place = not wants_gradient(q, k, v, g, beta, state)
    with threads_for(batch * num_heads * num_tokens * dk) as num_threads:
        out, new = run_chunks(
            *heads,
            state=running,
            chunk_len=chunk_size,
            in_place=in_place,
            num_threads=num_threads,
        )
    if not bool(torch.isfinite(new).all()):
        # Inf and NaN pass the zeros of triangular products (0 * inf is NaN) to earlier tokens.
        out, new = kda_recurrent(q, k, v, g, beta, state.to(dtype))
        return out, new.to(state.dtype)
    return out.view(v.shape), new.to(state.dtype).view(state.shape)


def _initial_state(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None
) -> Tensor:
    """The state, or zeros for None."""
    if state is not None:
        return state
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
    require_not_empty("k", k, 0, 1, -1)
    require_not_empty("v", v, -1)
    if state is not None:
        require_float("state", state)
        require_shape("state", state, (k.shape[0], k.shape[1], k.shape[-1], v.shape[-1]))
