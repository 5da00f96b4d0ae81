"""The before/after demonstration: two requests with a common prefix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3core.engine.drafters import Drafter, NoisyReplayDrafter
from k3core.engine.request import RequestResult
from k3core.engine.serving import Engine
from k3core.errors import require, require_count
from k3core.model import HybridModel, ModelConfig

MAX_PROMPT_LEN = 32_768
"""Tokens of a prompt: attention is quadratic, so this many take about a minute."""
MAX_NEW_TOKENS = 4096
MAX_DRAFT_LEN = 64
MAX_RUN_BYTES = 2**30
"""Bytes of a page pool, and of the attention scores of one chunk."""


@dataclass(frozen=True, eq=False)
class RunOnce:
    """Two requests that share a prefix, before and after (source text 1.7).

    Attributes:
        first: the request that leaves the prefix behind.
        without_prefix: the second request on an engine that knows nothing.
        with_prefix: the second request on the engine of the first.
        plain: the second request decoded without drafts.
        prompts: the two prompts.
        drafter: what proposed tokens to the second request.
        model: the stack that served them.
    """

    first: RequestResult
    without_prefix: RequestResult
    with_prefix: RequestResult
    plain: RequestResult
    prompts: tuple[tuple[int, ...], tuple[int, ...]]
    drafter: Drafter
    model: HybridModel

    @property
    def reused_tokens(self) -> int:
        return self.with_prefix.reused_tokens

    @property
    def same_split(self) -> bool:
        """Whether both runs of the second request split the rest of the prompt alike."""
        mine = self.with_prefix.chunk_ends
        return self.without_prefix.chunk_ends[-len(mine) :] == mine

    @property
    def reuse_difference(self) -> float:
        """Largest difference of logits with and without the prefix; 0.0 means equal bits."""
        return _largest_difference(self.with_prefix, self.without_prefix)

    @property
    def draft_difference(self) -> float:
        """Largest difference of logits with and without drafts; 0.0 means equal bits."""
        return _largest_difference(self.with_prefix, self.plain)


def run_once(
    prompt_len: int = 1100,
    shared_len: int = 1024,
    num_new_tokens: int = 24,
    *,
    config: ModelConfig | None = None,
    block_tokens: int = 512,
    chunk_tokens: int = 512,
    draft_len: int = 4,
    draft_quality: float = 0.75,
    use_cache: bool = True,
    seed: int = 0,
) -> RunOnce:
    """Serve two requests that share their first ``shared_len`` tokens; the second one twice.

    Args:
        prompt_len: tokens of each prompt.
        shared_len: tokens after which the prompts part; ``prompt_len`` sends one prompt twice.
        num_new_tokens: output tokens of each request.
        config: sizes and weights of the model.
        block_tokens, chunk_tokens, draft_len, use_cache: see :class:`Engine`.
        draft_quality: probability that a draft is what plain decoding wrote.
        seed: of the prompts and of the drafter's errors.

    Raises:
        K3Error: ``shared_len`` is outside 0 to ``prompt_len``, a size is out of range, or the run
            needs more than ``MAX_RUN_BYTES`` (nothing is allocated then).
    """
    require_count("prompt_len", prompt_len, 1, MAX_PROMPT_LEN)
    require_count("shared_len", shared_len, 0, prompt_len)
    require_count("num_new_tokens", num_new_tokens, 1, MAX_NEW_TOKENS)
    require_count("block_tokens", block_tokens, 1)
    require_count("chunk_tokens", chunk_tokens, 1)
    require_count("draft_len", draft_len, 0, MAX_DRAFT_LEN)
    config = ModelConfig() if config is None else config
    num_tokens = prompt_len + num_new_tokens
    pages = 3 * _pages_of_request(config, num_tokens, block_tokens)
    _require_memory(config, num_tokens, pages, block_tokens, min(chunk_tokens, prompt_len))
    model = HybridModel(config)
    vocab_size = model.config.vocab_size
    prompts = _prompts(prompt_len, shared_len, vocab_size, seed)

    def serve(engine: Engine, index: int) -> tuple[RequestResult, RequestResult, Drafter]:
        """The request, a plain one that runs between its prefill and its decoding, and the
        drafter that proposes the plain one's text to the first."""
        prompt = prompts[index]
        request = engine.open(prompt, num_new_tokens)
        try:
            while not request.tokens:
                engine.step(request)
            plain = engine.generate(prompt, num_new_tokens)
            request.drafter = NoisyReplayDrafter(
                (*prompt, *plain.tokens), draft_quality, vocab_size, 2 * seed + index
            )
            while not request.done:
                engine.step(request)
            return engine.result(request), plain, request.drafter
        finally:
            engine.close(request)

    served, fresh = (
        Engine(
            model,
            pages,
            block_tokens=block_tokens,
            chunk_tokens=chunk_tokens,
            draft_len=draft_len,
            use_cache=use_cache,
        )
        for _ in range(2)
    )
    first, _, _ = serve(served, 0)
    with_prefix, plain, drafter = serve(served, 1)
    without_prefix = fresh.generate(prompts[1], num_new_tokens, drafter)
    return RunOnce(first, without_prefix, with_prefix, plain, prompts, drafter, model)


def _prompts(
    prompt_len: int, shared_len: int, vocab_size: int, seed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two random prompts that agree on exactly ``shared_len`` tokens."""
    rng = np.random.default_rng(seed)
    first = rng.integers(vocab_size, size=prompt_len)
    second = rng.integers(vocab_size, size=prompt_len)
    second[:shared_len] = first[:shared_len]
    if shared_len < prompt_len and second[shared_len] == first[shared_len]:
        second[shared_len] = (first[shared_len] + 1) % vocab_size
    return tuple(first.tolist()), tuple(second.tolist())


def _pages_of_request(config: ModelConfig, num_tokens: int, block_tokens: int) -> int:
    """Pages of one request: rows, private states and a checkpoint at every boundary."""
    num_blocks = -(-num_tokens // block_tokens)
    state_pages = -(-config.kda_bytes // (block_tokens * config.mla_row_bytes))
    return num_blocks * len(config.mla_layers) + (num_blocks + 1) * state_pages * len(
        config.kda_layers
    )


def _require_memory(
    config: ModelConfig, num_tokens: int, pages: int, block_tokens: int, chunk_tokens: int
) -> None:
    """Refuse a run whose pool or scores do not fit.

    Raises:
        K3Error: it needs more than ``MAX_RUN_BYTES`` for one of them.
    """
    pool_bytes = pages * block_tokens * config.mla_row_bytes
    score_bytes = 2 * config.itemsize * config.num_heads * chunk_tokens * num_tokens
    sizes = (
        f"{num_tokens} tokens with block_tokens={block_tokens}, "
        f"{config.num_layers} layers, {config.num_heads} heads of {config.dk} x {config.dv}"
    )
    for what, size in (("page pool", pool_bytes), ("scores of a chunk", score_bytes)):
        require(
            size <= MAX_RUN_BYTES,
            f"the {what} of {sizes} would take {size} bytes; allowed: {MAX_RUN_BYTES}",
        )


def _largest_difference(one: RequestResult, other: RequestResult) -> float:
    require(len(one.tokens) == len(other.tokens), "the requests have outputs of different length")
    return float((one.logits - other.logits).abs().max())
