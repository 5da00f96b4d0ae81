"""The ring with deferred flush, step by step, and what each way of rolling back writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import PRESETS
from k3core.decode import DraftProjections, projection_bytes
from k3core.errors import require, require_count
from k3core.kda import kda_recurrent
from k3core.replayssm import FlushRing
from k3core.studies.replayssm.tokens import toy_tokens, zero_state

PATTERNS = ("chance", "constant", "all", "one")
DRAFT_CHANCE = 0.77
"""Chance that a draft is accepted after its predecessor was: about 3.8 tokens per step with seven
drafts, near the published 3.84 (InferenceX #2845)."""


def accepted_counts(
    pattern: str, num_steps: int, verify_len: int, accepted: int, seed: int
) -> tuple[int, ...]:
    """Tokens kept per step, the current one included.

    ``chance`` keeps the current token and each draft with `DRAFT_CHANCE` until the first miss;
    ``constant`` keeps `accepted`; ``all`` keeps everything; ``one`` keeps the current token only.

    Raises:
        K3Error: the pattern is unknown.
    """
    require(pattern in PATTERNS, f"pattern={pattern!r}; allowed: {', '.join(PATTERNS)}")
    if pattern == "chance":
        hits = np.random.default_rng(seed).random((num_steps, verify_len - 1)) < DRAFT_CHANCE
        kept = 1 + np.cumprod(hits, axis=1).sum(axis=1)
        return tuple(int(n) for n in kept)
    count = {"constant": accepted, "all": verify_len, "one": 1}[pattern]
    require_count("accepted", count, most=verify_len)
    return (count,) * num_steps


@dataclass(frozen=True)
class FlushStudy:
    """Tables:
    steps: one row per decode step: history and inputs in flight while verifying, inputs folded
        before it, tokens kept after it.
    limits: the window W and the fold threshold.
    writes: state writes (count and bytes over all KDA layers, one rank) and recomputed tokens of
        three schemes on the same accepted counts.
    """

    tables: dict[str, pd.DataFrame]
    window_len: int
    verify_len: int
    flush_min: int
    num_steps: int
    num_folds: int
    num_kept: int
    num_recomputed: int
    largest_fill: int
    elements_different: int
    ring_rows: int
    ring_bytes: int
    state_bytes: int
    record_bytes: int


def flush(
    draft_len: int = 7,
    window_len: int = 16,
    pattern: str = "chance",
    accepted: int = 3,
    num_steps: int = 15,
    model: str = "kimi-k3",
    tp: int = 8,
    heads: int = 2,
    dk: int = 16,
    dv: int = 16,
    input_dtype: str = "bfloat16",
    state_dtype: str = "float32",
    seed: int = 0,
) -> FlushStudy:
    """Run a `FlushRing` and compare every output and the final state with the plain recurrence.

    Args:
        draft_len: drafts; a step verifies T = 1 + drafts tokens.
        window_len: W, most inputs that one step reads.
        pattern, accepted: how many tokens each step keeps (`accepted_counts`).
        num_steps: decode steps.
        model, tp: sizes for the production bytes.
        heads, dk, dv, input_dtype, state_dtype, seed: the toy tensors.
    """
    require_count("num_steps", num_steps, least=1)
    verify_len = 1 + draft_len
    counts = accepted_counts(pattern, num_steps, verify_len, accepted, seed)
    ring = FlushRing(zero_state(heads, dk, dv, state_dtype), window_len, verify_len)
    tokens = toy_tokens(num_steps * verify_len, heads, dk, dv, input_dtype, seed)
    reference = ring.state
    rows, different = [], 0
    for step, kept in enumerate(counts):
        batch = tokens[step * verify_len : (step + 1) * verify_len]
        kept_out, reference = _recurrence(batch[:kept], reference)
        rejected_out, _ = _recurrence(batch[kept:], reference)
        expected = torch.cat([kept_out, rejected_out], dim=2)
        seen = ring.verify(batch)
        ring.accept(kept)
        different += int((seen.outputs != expected).sum())
        rows.append((step, seen.history_len, seen.in_flight_len, seen.num_folded, kept))
    history_left = ring.history_len
    different += int((ring.flush() != reference).sum())
    steps = pd.DataFrame(rows, columns=["step", "history", "in_flight", "folded", "kept"])

    memory = RequestMemory(PRESETS[model], tp, state_dtype)
    layers = memory.model.num_kda_layers
    state_bytes = layers * memory.state_bytes_per_layer
    record_bytes = layers * projection_bytes(
        memory.num_heads, memory.model.dk, memory.model.dv, 1, input_dtype, with_q=False
    )
    num_folds = int((steps["folded"] > 0).sum())
    recomputed = int(steps["history"].sum() + steps["folded"].sum())
    writes = pd.DataFrame(
        [
            ("snapshots", num_steps * verify_len, 0),
            ("every_commit", int((steps["kept"] > 0).sum()), int(steps["kept"].sum())),
            ("deferred", num_folds, recomputed),
        ],
        columns=["scheme", "writes", "recomputed"],
    )
    writes["bytes"] = writes["writes"] * state_bytes
    return FlushStudy(
        tables={
            "steps": steps,
            "limits": pd.DataFrame(
                {"limit": ["window", "flush_min"], "rows": [window_len, ring.flush_min]}
            ),
            "writes": writes,
        },
        window_len=window_len,
        verify_len=verify_len,
        flush_min=ring.flush_min,
        num_steps=num_steps,
        num_folds=num_folds,
        num_kept=int(steps["kept"].sum()) - history_left,
        num_recomputed=recomputed,
        largest_fill=int((steps["history"] + steps["in_flight"]).max()),
        elements_different=different,
        ring_rows=ring.num_rows,
        ring_bytes=ring.num_rows * record_bytes,
        state_bytes=state_bytes,
        record_bytes=record_bytes,
    )


def _recurrence(
    projections: DraftProjections, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, g, beta = projections.sequences()
    return kda_recurrent(q, k, v, g, beta, state)
