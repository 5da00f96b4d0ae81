"""Chained against independent block hashes on a case where the latter give a false hit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from k3core.kda import kda_gate, kda_recurrent, l2_normalize
from k3core.prefix_cache import ROOT_PARENT, PrefixCache, PromptHashes, chained_hash
from k3core.studies import single_thread  # noqa: F401

SCHEMES = ("chained", "independent")
_VOCABULARY = 256
_HEADS, _DIM = 2, 32
_MAX_BLOCK = 32  # tokens of a block whose states are really computed
_HEX_DIGITS = 8
_NUM_GROUPS = 1


@dataclass(frozen=True)
class HashStudy:
    """Two cached prompts and a third made of one block of each, under two hash schemes.

    Attributes:
        tables: ``blocks`` (scheme x prompt x block: content, hash, status), ``verdicts`` (scheme:
            tokens reused, tokens really shared, false tokens, error of the restored state).
        block_tokens: tokens per block here.
        true_tokens: longest prefix that a cached prompt really shares.
        false_tokens: reused beyond that by independent hashes.
        state_error: relative error of the KDA state restored by independent hashes.
        chained_error: the same for chained hashes.
    """

    tables: dict[str, pd.DataFrame]
    block_tokens: int
    true_tokens: int
    false_tokens: int
    state_error: float
    chained_error: float


def _prompt_hashes(scheme: str, tokens: np.ndarray, block: int) -> PromptHashes:
    if scheme == "chained":
        return PromptHashes(tokens, block)
    whole = len(tokens) // block * block
    alone = [
        chained_hash(ROOT_PARENT, tokens[start : start + block]) for start in range(0, whole, block)
    ]
    return PromptHashes.from_hashes(alone, len(tokens), block)


def _token_inputs(seed: int) -> tuple[torch.Tensor, ...]:
    """Random q, k, v, g, beta of each token id: (V, H, D) and (V, H), fp64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(_VOCABULARY, _HEADS, *shape, generator=generator, dtype=torch.float64)

    q, k = l2_normalize(draw(_DIM)) * _DIM**-0.5, l2_normalize(draw(_DIM))
    return q, k, draw(_DIM), kda_gate(draw(_DIM) - 6.0), torch.sigmoid(draw())


def _state_after(tokens: np.ndarray, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """KDA state (1, H, dk, dv) after exactly these tokens."""
    ids = torch.as_tensor(tokens, dtype=torch.long)
    q, k, v, g, beta = (part[ids].movedim(0, 1).unsqueeze(0) for part in inputs)
    return kda_recurrent(q, k, v, g, beta)[1]


def hash_schemes(block_tokens: int = 512, seed: int = 0) -> HashStudy:
    """Cache prompts ``A B`` and ``C D``, then ask for ``A D``: block D exists, after another A.

    Both schemes run on the same ``PrefixCache``; only the hashes handed to it differ. Each
    checkpoint holds the KDA state really computed from its prompt, so a false hit restores a state
    whose error can be measured.

    Args:
        block_tokens: tokens per block; states are computed with at most 32.
        seed: of tokens and token inputs.

    Raises:
        K3Error: ``block_tokens`` below 1.
    """
    block = min(block_tokens, _MAX_BLOCK)
    rng = np.random.default_rng(seed)
    content = {name: rng.integers(0, _VOCABULARY, block) for name in "ABCD"}
    made_of = {"first": "AB", "second": "CD", "asked": "AD"}
    prompts = {
        name: np.concatenate([content[letter] for letter in letters])
        for name, letters in made_of.items()
    }
    asked = np.append(prompts["asked"], 0)
    inputs = _token_inputs(seed)
    true_tokens = max(_shared(asked, prompts[name]) for name in ("first", "second"))
    true_tokens = true_tokens // block * block

    rows, verdicts, errors = [], [], {}
    for scheme in SCHEMES:
        cache = PrefixCache(block, _NUM_GROUPS)
        for name in ("first", "second"):
            tokens = prompts[name]
            ticket = cache.register(_prompt_hashes(scheme, tokens, block))
            for boundary in range(block, len(tokens) + 1, block):
                cache.persist_checkpoint(
                    ticket, boundary, 0, _state_after(tokens[:boundary], inputs)
                )
            cache.mark_ready(ticket)
        hit = cache.lookup(_prompt_hashes(scheme, asked, block))
        false_tokens = max(hit.matched_tokens - true_tokens, 0)
        truth = _state_after(asked[: hit.matched_tokens], inputs)
        restored = hit.checkpoint_payloads[0] if hit.hit else torch.zeros_like(truth)
        errors[scheme] = float((restored - truth).norm() / truth.norm())
        verdicts.append((scheme, hit.matched_tokens, true_tokens, false_tokens, errors[scheme]))
        for name, letters in made_of.items():
            hashes = _prompt_hashes(scheme, prompts[name], block).block_hashes
            for index, (letter, one) in enumerate(zip(letters, hashes, strict=True)):
                end = (index + 1) * block
                if name != "asked":
                    status = "cached"
                elif end > hit.matched_tokens:
                    status = "not_found"
                else:
                    status = "true_match" if end <= true_tokens else "false_match"
                rows.append((scheme, name, index, letter, one.hex()[:_HEX_DIGITS], status))
    return HashStudy(
        tables={
            "blocks": pd.DataFrame(
                rows, columns=["scheme", "prompt", "index", "content", "hash", "status"]
            ),
            "verdicts": pd.DataFrame(
                verdicts,
                columns=["scheme", "reused", "shared", "false_tokens", "state_error"],
            ),
        },
        block_tokens=block,
        true_tokens=true_tokens,
        false_tokens=int(verdicts[1][3]),
        state_error=errors["independent"],
        chained_error=errors["chained"],
    )


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """Leading tokens that two prompts have in common."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
