"""An independent forward pass of the whole stack: numpy, float64, no cache, no chunk, no page.

It reads the weights of a model and the text, and shares no step with the mechanisms: the recurrence
is the matrix form of ``k3core.studies.oracle``, attention spells keys and values out per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from k3core.studies.oracle import (
    oracle_convolution,
    oracle_gate,
    oracle_l2_normalize,
    oracle_recurrent,
)

Array = NDArray[np.float64]


class OraclePass(NamedTuple):
    """Outcome of one pass over T tokens.

    Attributes:
        logits: (T, vocab).
        states: (1, H, K, V) state of each KDA layer after the last token.
        windows: (1, W-1, C) last inputs of its convolution.
    """

    logits: Array
    states: dict[int, Array]
    windows: dict[int, Array]


def oracle_pass(model: Any, tokens: Sequence[int]) -> OraclePass:
    """Run ``tokens`` through a copy of the weights of a ``HybridModel``."""
    config = model.config
    x = _wide(model.embedding)[list(tokens)]
    states: dict[int, Array] = {}
    windows: dict[int, Array] = {}
    for layer, block in enumerate(model.blocks):
        normed = _rms_norm(x, block.mixer_norm)
        if layer in config.mla_layers:
            x = x + _mla(block.mixer, normed)
        else:
            mixed, states[layer], windows[layer] = _kda(block.mixer, normed)
            x = x + mixed
        gate, up = np.split(_rms_norm(x, block.mlp_norm) @ _wide(block.mlp.w_in).T, 2, axis=-1)
        x = x + (gate * _sigmoid(gate) * up) @ _wide(block.mlp.w_out).T
    return OraclePass(_rms_norm(x, model.norm) @ _wide(model.w_head).T, states, windows)


def _kda(layer: Any, x: Array) -> tuple[Array, Array, Array]:
    config = layer.config
    heads, dk, dv = config.num_heads, config.dk, config.dv
    cuts = np.cumsum(layer.sizes)[:-1]
    raw, low_rank, strength, out_gate = np.split(x @ _wide(layer.w_in).T, cuts, axis=-1)
    mixed = oracle_convolution(raw[None], _wide(layer.conv_weight))[0]

    def by_head(flat: Array) -> Array:
        return flat.reshape(len(x), heads, -1).swapaxes(0, 1)[None]

    q, k, v = (by_head(part) for part in np.split(mixed, [heads * dk, 2 * heads * dk], axis=-1))
    gate = oracle_gate(
        by_head(low_rank @ _wide(layer.w_gate).T),
        _wide(layer.a_log),
        _wide(layer.dt_bias),
        config.lower_bound,
    )
    out, state = oracle_recurrent(
        oracle_l2_normalize(q) / np.sqrt(dk),
        oracle_l2_normalize(k),
        v,
        gate,
        by_head(_sigmoid(strength))[..., 0],
    )
    normed = _rms_norm(out[0].swapaxes(0, 1), layer.norm)
    gated = normed * _sigmoid(out_gate.reshape(len(x), heads, dv))
    history = np.concatenate([np.zeros((config.conv_width - 1, raw.shape[1])), raw])
    window = history[len(history) - (config.conv_width - 1) :]
    return gated.reshape(len(x), -1) @ _wide(layer.w_out).T, state, window[None]


def _mla(layer: Any, x: Array) -> Array:
    config = layer.config
    latent, slot = np.split(x @ _wide(layer.w_kv).T, [config.kv_latent], axis=-1)
    latent = _rms_norm(latent, layer.kv_norm)
    queries = (x @ _wide(layer.w_q).T).reshape(len(x), config.num_heads, -1)
    causal = np.tril(np.ones((len(x), len(x)), dtype=bool))
    heads = []
    for h in range(config.num_heads):
        keys = np.concatenate([latent @ _wide(layer.w_key)[h].T, slot], axis=-1)
        scores = np.where(causal, queries[:, h] @ keys.T * layer.scale, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        heads.append(weights @ (latent @ _wide(layer.w_value)[h]))
    mixed = np.concatenate(heads, axis=-1) * _sigmoid(x @ _wide(layer.w_out_gate).T)
    return mixed @ _wide(layer.w_out).T


def _rms_norm(x: Array, weight: Any, eps: float = 1e-5) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * _wide(weight)


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _wide(weight: Any) -> Array:
    return np.asarray(weight.numpy(), dtype=np.float64)
