"""Small engines, prompts and their comparison, shared by the engine tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from k3core.engine import (
    Engine,
    Request,
    RequestResult,
)
from k3core.model import HybridModel, ModelConfig

SMALL = ModelConfig(
    num_layers=4, hidden_size=32, num_heads=2, dk=8, dv=12, gate_rank=8, kv_latent=12,
    rope_width=4, nope_width=8, value_width=8, mlp_size=32, vocab_size=97,
)  # fmt: skip
TWO_PERIODS = ModelConfig(**{**SMALL.__dict__, "num_layers": 8, "seed": 3})
MODEL = HybridModel(SMALL)
MODEL_8 = HybridModel(TWO_PERIODS)
BLOCK = 16


def engine(model: HybridModel = MODEL, num_pages: int = 300, **options: object) -> Engine:
    defaults = {"block_tokens": BLOCK, "chunk_tokens": BLOCK, "draft_len": 4}
    return Engine(model, num_pages, **{**defaults, **options})  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0, shared: Sequence[int] = ()) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    own = torch.randint(SMALL.vocab_size, (length,), generator=generator).tolist()
    return (*shared, *own[len(shared) :])


def same_bits(one: RequestResult, other: RequestResult) -> bool:
    return one.tokens == other.tokens and torch.equal(one.logits, other.logits)


def prefill(serving: Engine, request: Request) -> None:
    while not request.tokens:
        serving.step(request)
