"""An independent reference for KDA: numpy, float64, the matrix form of the recurrence.

``S_t = (I - beta k k^T) Diag(exp g) S_{t-1} + beta k v^T``, ``o_t = S_t^T q`` (Kimi K3 report,
equation 1). This module imports nothing of k3core and shares no step with it: a wrong recurrence
there cannot be right here too. Arrays are (B, H, T, D), states (B, H, K, V).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def oracle_recurrent(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    state: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Outputs (B, H, T, V) and final state (B, H, K, V); a missing state is zero."""
    queries, keys, values, gates, strengths = (
        np.asarray(x, dtype=np.float64) for x in (q, k, v, g, beta)
    )
    batch, num_heads, num_tokens, dk = keys.shape
    dv = values.shape[-1]
    identity = np.eye(dk)
    out = np.zeros((batch, num_heads, num_tokens, dv))
    current = np.zeros((batch, num_heads, dk, dv))
    if state is not None:
        current += np.asarray(state, dtype=np.float64)
    for t in range(num_tokens):
        key = keys[:, :, t, :, None]
        strength = strengths[:, :, t, None, None]
        columns = np.exp(gates[:, :, t])[:, :, None, :]  # "A @ Diag(x)" scales the columns of A
        transition = (identity - strength * key * key.swapaxes(-1, -2)) * columns
        current = transition @ current + strength * key * values[:, :, t, None, :]
        out[:, :, t] = (queries[:, :, t, None, :] @ current)[:, :, 0]
    return out, current


def oracle_gate(
    f: ArrayLike, a_log: ArrayLike, dt_bias: ArrayLike, lower_bound: float = -5.0
) -> Array:
    """``lower_bound / (1 + exp(-exp(a_log) (f + dt_bias)))`` for f (B, H, T, K)."""
    slope = np.exp(np.asarray(a_log, dtype=np.float64))[:, None, None]
    bias = np.asarray(dt_bias, dtype=np.float64)[:, None, :]
    result: Array = lower_bound / (1.0 + np.exp(-slope * (np.asarray(f, dtype=np.float64) + bias)))
    return result


def oracle_softplus_gate(f: ArrayLike, a_log: ArrayLike, dt_bias: ArrayLike) -> Array:
    """``-exp(a_log) log(1 + exp(f + dt_bias))`` for f (B, H, T, K)."""
    slope = np.exp(np.asarray(a_log, dtype=np.float64))[:, None, None]
    bias = np.asarray(dt_bias, dtype=np.float64)[:, None, :]
    result: Array = -slope * np.logaddexp(0.0, np.asarray(f, dtype=np.float64) + bias)
    return result


def oracle_l2_normalize(x: ArrayLike, eps: float = 1e-6) -> Array:
    """``x / sqrt(sum(x^2) + eps)`` over the last axis."""
    wide = np.asarray(x, dtype=np.float64)
    result: Array = wide / np.sqrt(np.einsum("...d,...d->...", wide, wide)[..., None] + eps)
    return result


def oracle_convolution(x: ArrayLike, weight: ArrayLike, window: ArrayLike | None = None) -> Array:
    """Causal depthwise convolution and SiLU of x (B, T, C) with taps (C, W), oldest tap first."""
    rows, taps = np.asarray(x, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    batch, num_tokens, channels = rows.shape
    width = taps.shape[1]
    before = (
        np.zeros((batch, width - 1, channels))
        if window is None
        else np.asarray(window, dtype=np.float64)
    )
    padded = np.concatenate([before, rows], axis=1)
    out = np.zeros((batch, num_tokens, channels))
    for t in range(num_tokens):
        mixed = np.einsum("bwc,cw->bc", padded[:, t : t + width], taps)
        out[:, t] = mixed / (1.0 + np.exp(-mixed))
    return out
