"""A small stack of KDA and MLA layers with random weights, written the way a server runs it.

Every third-to-one period is three KDA layers and one MLA layer, as in Kimi K3. The model owns no
memory of a request: it reads and writes KDA states and MLA rows through :class:`LayerMemory`.

Bits. A matrix product over 512 rows and one over a single row round differently, so prefill gives
the same bits only for the same chunk boundaries. A decode window (:meth:`HybridModel.verify`) goes
through the layers once, but takes every matrix product row by row, as a plain decode step does;
its logits do not depend on how many drafts stand behind a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from k3core import decode
from k3core.decode import DraftProjections
from k3core.errors import require
from k3core.kda import KDAState
from k3core.model.config import ModelConfig
from k3core.model.layers import MLP, KDALayer, MLALayer, Weights, linear_by_row, rms_norm


class LayerMemory(Protocol):
    """What one request remembers, by layer. The model is the only one who reads or writes it."""

    def load_kda(self, layer: int) -> KDAState:
        """State and convolution window after all committed tokens."""

    def store_kda(self, layer: int, state: KDAState) -> None:
        """Replace the state of ``layer``."""

    def append_mla(self, layer: int, rows: Tensor) -> None:
        """Add rows (T, mla_row_width) behind the rows of ``layer``."""

    def read_mla(self, layer: int) -> Tensor:
        """All rows (L, mla_row_width) of ``layer``, contiguous, in token order."""

    def cut_mla(self, layer: int, num_tokens: int) -> None:
        """Keep only the first ``num_tokens`` rows of ``layer``."""


class DecodeWindow(NamedTuple):
    """A verified but not yet committed window of T tokens.

    ``logits`` (T, vocab): row t predicts the token after window token t. ``states`` are the
    committed states that it was verified on and ``projections`` what each KDA layer needs to
    replay it. ``start`` tokens were committed before it.
    """

    logits: Tensor
    states: dict[int, KDAState]
    projections: dict[int, DraftProjections]
    start: int

    def __len__(self) -> int:
        return self.logits.shape[0]


class _Block(NamedTuple):
    mixer_norm: Tensor
    mixer: KDALayer | MLALayer
    mlp_norm: Tensor
    mlp: MLP


class HybridModel:
    """The stack. Weights depend on ``config`` alone (its seed included)."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        self.config = config = config or ModelConfig()
        weights = Weights(config)
        self.embedding = weights.normal(config.vocab_size, config.hidden_size, std=1.0)
        self.blocks = [
            _Block(
                weights.ones(config.hidden_size),
                (MLALayer if layer in config.mla_layers else KDALayer)(config, weights),
                weights.ones(config.hidden_size),
                MLP(config, weights),
            )
            for layer in range(config.num_layers)
        ]
        self.norm = weights.ones(config.hidden_size)
        self.w_head = (
            self.embedding
            if config.tied_head
            else weights.linear(config.vocab_size, config.hidden_size)
        )
        self.num_parameters = weights.num_parameters

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise K3Error unless ``tokens`` is not empty and all ids are in the vocabulary."""
        require(len(tokens) > 0, "tokens is empty; allowed: at least one token id")
        low, high = min(tokens), max(tokens)
        bad = low if low < 0 else high
        require(
            low >= 0 and high < self.config.vocab_size,
            f"tokens holds id {bad}; allowed: 0 to {self.config.vocab_size - 1}",
        )

    def prefill(self, tokens: Sequence[int], memory: LayerMemory) -> Tensor:
        """Run one chunk behind what ``memory`` holds; logits (vocab,) after its last token."""
        self.check_tokens(tokens)
        x = self.embedding[torch.tensor(tokens)]
        for layer, block in enumerate(self.blocks):
            normed = rms_norm(x, block.mixer_norm)
            if isinstance(block.mixer, KDALayer):
                mixed, state = block.mixer.prefill(normed, memory.load_kda(layer))
                memory.store_kda(layer, state)
            else:
                memory.append_mla(layer, block.mixer.cache_rows(normed))
                mixed = block.mixer.attend(normed, memory.read_mla(layer))
            x = x + mixed
            x = x + block.mlp(rms_norm(x, block.mlp_norm))
        return functional.linear(rms_norm(x[-1:], self.norm), self.w_head)[0]

    def verify(self, tokens: Sequence[int], memory: LayerMemory) -> DecodeWindow:
        """Run a decode window (the current token and its drafts) through the stack once.

        KDA states stay as committed. MLA rows of the window are appended; :meth:`commit` cuts
        those of rejected drafts.
        """
        self.check_tokens(tokens)
        x = self.embedding[torch.tensor(tokens)]
        states: dict[int, KDAState] = {}
        projections: dict[int, DraftProjections] = {}
        start = 0
        for layer, block in enumerate(self.blocks):
            normed = rms_norm(x, block.mixer_norm)
            if isinstance(block.mixer, KDALayer):
                states[layer] = memory.load_kda(layer)
                mixed, projections[layer] = block.mixer.verify(normed, states[layer])
            else:
                memory.append_mla(layer, block.mixer.cache_rows(normed, linear_by_row))
                cached = memory.read_mla(layer)
                start = cached.shape[0] - len(tokens)
                mixed = block.mixer.verify(normed, cached)
            x = x + mixed
            x = x + block.mlp(rms_norm(x, block.mlp_norm), linear_by_row)
        logits = linear_by_row(rms_norm(x, self.norm), self.w_head)
        return DecodeWindow(logits, states, projections, start)

    def commit(self, window: DecodeWindow, num_accepted: int, memory: LayerMemory) -> None:
        """Make the first ``num_accepted`` window tokens permanent and forget the others.

        KDA states (and their convolution windows) are replayed from the committed ones; MLA rows
        behind the accepted tokens are cut.
        """
        require(
            1 <= num_accepted <= len(window),
            f"num_accepted={num_accepted} is outside 1 to {len(window)}, the window's tokens",
        )
        for layer, projections in window.projections.items():
            state, _ = decode.verify_and_replay(window.states[layer], projections, num_accepted)
            memory.store_kda(layer, state)
        for layer in self.config.mla_layers:
            memory.cut_mla(layer, window.start + num_accepted)

    def flops(self, num_tokens: int, start: int = 0) -> int:
        """Floating-point operations of ``num_tokens`` tokens behind ``start`` tokens, one row of
        logits included."""
        mixers = sum(block.mixer.flops(num_tokens, start) for block in self.blocks)
        mlps = sum(block.mlp.flops(num_tokens) for block in self.blocks)
        return mixers + mlps + 2 * self.w_head.numel()

    def bytes_moved(self, num_tokens: int, start: int = 0) -> int:
        """Bytes that such a pass moves: weights once, all MLA rows, KDA states in and out."""
        config = self.config
        rows = (start + num_tokens) * config.mla_row_bytes * len(config.mla_layers)
        states = 2 * config.kda_bytes * len(config.kda_layers)
        return self.num_parameters * config.itemsize + rows + states
