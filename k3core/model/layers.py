"""The layers of the stack, with weights drawn from one seeded generator.

A layer knows two forms of its work: over a chunk (prefill) and over a decode window. They differ
in their matrix products alone: a window takes them row by row (:func:`linear_by_row`). All other
operations give a row the same bits whatever stands beside it; that excludes ``torch.sigmoid``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from k3core import decode, kda
from k3core.decode import DraftProjections
from k3core.errors import require
from k3core.gates import sigmoid, silu
from k3core.kda import KDAState
from k3core.model.config import TORCH_DTYPES, ModelConfig

Linear = Callable[[Tensor, Tensor], Tensor]


def linear_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """``functional.linear`` of each row (T, in) alone: a row's bits do not depend on the others.

    Rows are copied first, because BLAS rounds an unaligned row in another way.
    """
    if len(x) == 1:
        return functional.linear(x.clone(), weight)
    return torch.cat([functional.linear(row.clone(), weight) for row in x.split(1)])


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Scale the last axis of ``x`` to unit mean square, then by ``weight``."""
    return functional.rms_norm(x, weight.shape, weight, eps)


class Weights:
    """Draws named weights from one seeded generator; counts them."""

    def __init__(self, config: ModelConfig) -> None:
        self._generator = torch.Generator().manual_seed(config.seed)
        self._dtype = TORCH_DTYPES[config.dtype]
        self.num_parameters = 0

    def normal(self, *shape: int, std: float) -> Tensor:
        self.num_parameters += math.prod(shape)
        draw = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return (draw * std).to(self._dtype)

    def linear(self, out_size: int, in_size: int, gain: float = 1.0) -> Tensor:
        return self.normal(out_size, in_size, std=gain * in_size**-0.5)

    def ones(self, size: int) -> Tensor:
        self.num_parameters += size
        return torch.ones(size, dtype=self._dtype)


class _KDAInputs(NamedTuple):
    q: Tensor  # (1, H, T, dk), normalised and scaled
    k: Tensor  # (1, H, T, dk), normalised
    v: Tensor  # (1, H, T, dv)
    g: Tensor  # (1, H, T, dk), log-decay in (lower_bound, 0)
    beta: Tensor  # (1, H, T)
    conv_inputs: Tensor  # (1, T, C), before the convolution
    window: Tensor  # (1, W-1, C), after these tokens
    out_gate: Tensor  # (T, H, dv), before the sigmoid


class KDALayer:
    """Token mixing with a recurrent state (K3 report 2.1.1): one fused input projection, short
    convolution, bounded gate through a low-rank map, delta rule, per-head norm, output gate."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        heads, dk, dv = config.num_heads, config.dk, config.dv
        self.sizes = [config.conv_channels, config.gate_rank, heads, heads * dv]
        self.w_in = weights.linear(sum(self.sizes), config.hidden_size)
        self.conv_weight = weights.normal(
            config.conv_channels, config.conv_width, std=config.conv_width**-0.5
        )
        self.w_gate = weights.linear(heads * dk, config.gate_rank)
        self.a_log = weights.normal(heads, std=0.5)
        self.dt_bias = weights.normal(heads, dk, std=1.0) - 4.0
        self.norm = weights.ones(dv)
        self.w_out = weights.linear(config.hidden_size, heads * dv)

    def project(self, x: Tensor, window: Tensor, linear: Linear) -> _KDAInputs:
        """Everything that the recurrence needs of the normed rows ``x`` (T, hidden)."""
        config = self.config
        heads, dk, dv = config.num_heads, config.dk, config.dv
        num_tokens = x.shape[0]
        raw, f, b, out_gate = linear(x, self.w_in).split(self.sizes, dim=-1)
        conv_inputs = raw.contiguous()[None]
        mixed, new_window = kda.short_convolution(conv_inputs, self.conv_weight, window)

        def by_head(flat: Tensor, width: int) -> Tensor:
            return flat.reshape(num_tokens, heads, width).transpose(0, 1)[None].contiguous()

        q, k, v = mixed[0].split([heads * dk, heads * dk, heads * dv], dim=-1)
        gate_input = by_head(linear(f.contiguous(), self.w_gate), dk)
        return _KDAInputs(
            q=kda.l2_normalize(by_head(q, dk)) * dk**-0.5,
            k=kda.l2_normalize(by_head(k, dk)),
            v=by_head(v, dv),
            g=kda.kda_gate(gate_input, self.a_log, self.dt_bias, config.lower_bound),
            beta=sigmoid(by_head(b, 1)[..., 0]),
            conv_inputs=conv_inputs,
            window=new_window,
            out_gate=out_gate.reshape(num_tokens, heads, dv),
        )

    def output(self, out: Tensor, out_gate: Tensor, linear: Linear) -> Tensor:
        """Head outputs (1, H, T, dv) to rows (T, hidden)."""
        by_token = out[0].transpose(0, 1).contiguous()
        gated = rms_norm(by_token, self.norm) * sigmoid(out_gate)
        return linear(gated.flatten(1), self.w_out)

    def prefill(self, x: Tensor, state: KDAState) -> tuple[Tensor, KDAState]:
        """Mix a chunk of rows (T, hidden) and return the state after it."""
        inputs = self.project(x, _window(state), functional.linear)
        out, recurrent = kda.kda_chunk(
            inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta, state.recurrent
        )
        mixed = self.output(out, inputs.out_gate, functional.linear)
        return mixed, KDAState(recurrent, inputs.window)

    def verify(self, x: Tensor, state: KDAState) -> tuple[Tensor, DraftProjections]:
        """Mix a window (T, hidden) without touching ``state``."""
        inputs = self.project(x, _window(state), linear_by_row)
        projections = DraftProjections.from_sequences(
            inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta, inputs.conv_inputs
        )
        _, out = decode.verify_and_replay(state, projections, len(projections))
        return self.output(out, inputs.out_gate, linear_by_row), projections

    def flops(self, num_tokens: int, start: int) -> int:
        """Multiply-adds counted twice: projections and the recurrence (6 dk dv per head)."""
        matrices = self.w_in.numel() + self.w_gate.numel() + self.w_out.numel()
        recurrence = 6 * self.config.num_heads * self.config.dk * self.config.dv
        return num_tokens * (2 * (matrices + self.conv_weight.numel()) + recurrence)


class MLALayer:
    """Attention over latent rows (MLA, NoPE): the cache holds one latent and one rope slot per
    token; queries are mapped into the latent space, so rows are used as they lie in the pages."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        heads, hidden = config.num_heads, config.hidden_size
        head_width = config.nope_width + config.rope_width
        self.w_q = weights.linear(heads * head_width, hidden, gain=2.0)
        self.w_kv = weights.linear(config.mla_row_width, hidden)
        self.kv_norm = weights.ones(config.kv_latent)
        self.w_key = weights.normal(
            heads, config.nope_width, config.kv_latent, std=config.kv_latent**-0.5
        )
        self.w_value = weights.normal(
            heads, config.kv_latent, config.value_width, std=config.kv_latent**-0.5
        )
        self.w_out_gate = weights.linear(heads * config.value_width, hidden)
        self.w_out = weights.linear(hidden, heads * config.value_width)
        self.scale = head_width**-0.5

    def cache_rows(self, x: Tensor, linear: Linear = functional.linear) -> Tensor:
        """What the normed rows ``x`` (T, hidden) leave in the cache: (T, mla_row_width)."""
        flat = linear(x, self.w_kv)
        latent, slot = flat.split([self.config.kv_latent, self.config.rope_width], dim=-1)
        return torch.cat([rms_norm(latent.contiguous(), self.kv_norm), slot], dim=-1)

    def attend(self, x: Tensor, cached: Tensor) -> Tensor:
        """Rows ``x`` (T, hidden) attend causally; they are the last T of ``cached`` (L, width)."""
        config = self.config
        num_tokens, num_cached = x.shape[0], cached.shape[0]
        q = functional.linear(x, self.w_q).view(num_tokens, config.num_heads, -1).transpose(0, 1)
        nope, slot = q.split([config.nope_width, config.rope_width], dim=-1)
        query = torch.cat([nope.contiguous() @ self.w_key, slot], dim=-1)
        scores = (query @ cached.T) * self.scale
        if num_tokens > 1:
            future = torch.ones(num_tokens, num_cached, dtype=torch.bool).triu(
                num_cached - num_tokens + 1
            )
            scores.masked_fill_(future, -math.inf)
        latent = torch.softmax(scores, dim=-1) @ cached[:, : config.kv_latent]
        values = (latent @ self.w_value).transpose(0, 1).reshape(num_tokens, -1)
        gate = sigmoid(functional.linear(x, self.w_out_gate))
        return functional.linear(values * gate, self.w_out)

    def verify(self, x: Tensor, cached: Tensor) -> Tensor:
        """A window (T, hidden) attends row by row; its rows are the last T of ``cached``."""
        start = cached.shape[0] - x.shape[0]
        rows = x.split(1)
        return torch.cat(
            [self.attend(row.clone(), cached[: start + t + 1]) for t, row in enumerate(rows)]
        )

    def flops(self, num_tokens: int, start: int) -> int:
        """Multiply-adds counted twice: projections and causal attention behind ``start`` tokens."""
        config = self.config
        matrices = sum(
            w.numel()
            for w in (self.w_q, self.w_kv, self.w_key, self.w_value, self.w_out_gate, self.w_out)
        )
        pairs = num_tokens * start + num_tokens * (num_tokens + 1) // 2
        per_pair = 2 * config.num_heads * (config.mla_row_width + config.kv_latent)
        return 2 * num_tokens * matrices + pairs * per_pair


class MLP:
    """Gated feed-forward: down(silu(gate x) * up x)."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.w_in = weights.linear(2 * config.mlp_size, config.hidden_size)
        self.w_out = weights.linear(config.hidden_size, config.mlp_size)

    def __call__(self, x: Tensor, linear: Linear = functional.linear) -> Tensor:
        gate, up = linear(x, self.w_in).chunk(2, dim=-1)
        return linear(silu(gate) * up, self.w_out)

    def flops(self, num_tokens: int) -> int:
        return 2 * num_tokens * (self.w_in.numel() + self.w_out.numel())


def _window(state: KDAState) -> Tensor:
    require(state.conv_window is not None, "state has no conv_window; this layer convolves")
    return state.conv_window  # type: ignore[return-value]
