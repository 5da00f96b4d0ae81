"""Gates of KDA and the normalisation of its queries and keys.

Sources: Kimi K3 report 2.1.1 (bounded gate), Kimi-Linear report (softplus gate),
flash-linear-attention `ops/kda/gate.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3core.checks import compute_dtype, require_float, require_shape
from k3core.errors import require, require_number

SOFTPLUS_THRESHOLD = 20.0
"""Above this input softplus is the identity."""

EXP_LIMIT = 80.0
"""Largest exponent that `sigmoid` uses; exp(80) is finite in float32."""


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``, with the same bits wherever an element lies in its tensor.

    `torch.sigmoid` rounds the last elements of a tensor in another way than the others, so that a
    token computed alone may differ from the same token computed in a batch. Below -80 the result
    is that of -80 (1.8e-35).
    """
    return 1.0 / (1.0 + torch.exp((-x).clamp(max=EXP_LIMIT)))


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``, bits independent of the position like `sigmoid`."""
    return x * sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, x itself above 20; bits independent of the position like `sigmoid`."""
    small = torch.log1p(torch.exp(x.clamp(max=SOFTPLUS_THRESHOLD)))
    return torch.where(x > SOFTPLUS_THRESHOLD, x, small)


def kda_gate(
    f: Tensor,
    a_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float = -5.0,
) -> Tensor:
    """Bounded log-decay of Kimi K3: ``lower_bound * sigmoid(exp(a_log) * (f + dt_bias))``.

    The result is a log-decay in (lower_bound, 0); the multiplier of the state is its exponential.

    Args:
        f: (B, H, T, K) or (B, H, K) gate projection.
        a_log: (H,) log of the slope per head; a missing one means slope 1.
        dt_bias: (H, K) bias; a missing one means 0.
        lower_bound: smallest log-decay, negative.

    Returns:
        Log-decay, shape of `f`, float32 (float64 for float64 arguments).

    Raises:
        K3Error: wrong shape or dtype, or ``lower_bound`` is not a negative finite number.
    """
    require(
        isinstance(lower_bound, (int, float)) and -float("inf") < lower_bound < 0.0,
        f"lower_bound={lower_bound!r} must be a negative finite log-decay",
    )
    return lower_bound * sigmoid(_biased(f, dt_bias, a_log) * _slope(f, a_log, dt_bias))


def softplus_gate(f: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Unbounded log-decay of Kimi-Linear: ``-exp(a_log) * softplus(f + dt_bias)``.

    Args:
        f: (B, H, T, K) or (B, H, K) gate projection.
        a_log: (H,) log of the slope per head.
        dt_bias: (H, K) bias.

    Returns:
        Log-decay <= 0, shape of `f`, float32 (float64 for float64 arguments).

    Raises:
        K3Error: wrong shape or dtype.
    """
    x = softplus(_biased(f, dt_bias, a_log))
    return -_slope(f, a_log, dt_bias) * x


def _biased(f: Tensor, dt_bias: Tensor | None, a_log: Tensor | None) -> Tensor:
    """``f + dt_bias`` in the compute dtype."""
    require_float("f", f)
    require(f.dim() in (3, 4), f"f has shape {tuple(f.shape)}; allowed: (B, H, T, K) or (B, H, K)")
    wide = f.to(compute_dtype(f, a_log, dt_bias))
    if dt_bias is None:
        return wide
    num_heads, dk = f.shape[1], f.shape[-1]
    require_float("dt_bias", dt_bias)
    require_shape("dt_bias", dt_bias, (num_heads, dk))
    return wide + dt_bias.to(wide.dtype).view((num_heads,) + (1,) * (f.dim() - 3) + (dk,))


def _slope(f: Tensor, a_log: Tensor | None, dt_bias: Tensor | None) -> Tensor:
    """``exp(a_log)`` broadcastable over `f`, or 1 without `a_log`."""
    dtype = compute_dtype(f, a_log, dt_bias)
    if a_log is None:
        return torch.ones((), dtype=dtype, device=f.device)
    require_float("a_log", a_log)
    require_shape("a_log", a_log, (f.shape[1],))
    return a_log.to(dtype).exp().view((f.shape[1],) + (1,) * (f.dim() - 2))


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """``x * rsqrt(sum(x^2) + eps)`` over the last axis, computed in float32 or float64.

    Args:
        x: (..., D) any float dtype.
        eps: added to the sum of squares; a zero vector stays zero.

    Returns:
        Shape and dtype of `x`.

    Raises:
        K3Error: `x` is not a float tensor, or `eps` is not positive.
    """
    require_float("x", x)
    require_number("eps", eps, above=0)
    wide = x.to(compute_dtype(x))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def normalize_qk(q: Tensor, k: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Make `q` and `k` ready for the recurrence: both L2-normalised, `q` scaled by K^-0.5.

    Args:
        q, k: (..., K).

    Returns:
        (q, k) in their own dtypes.
    """
    return l2_normalize(q, eps) * q.shape[-1] ** -0.5, l2_normalize(k, eps)
