"""Study of the engine: two requests with a common prefix, before and after.

Times. The clock of the pictures is a roofline, not this CPU: a pass takes as long as reading all
weights once, or longer when it moves more bytes (MLA rows, KDA states) or computes more than a
machine does meanwhile. One unit is one reading of the weights. Results are therefore the same on
every machine; milliseconds of this CPU stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from k3core.engine import run_once
from k3core.engine.demo import MAX_NEW_TOKENS
from k3core.errors import require_count
from k3core.model import ModelConfig
from k3core.studies import single_thread  # noqa: F401
from k3core.studies.engine.growth import growth
from k3core.studies.engine.tables import (
    LANES,
    compare_table,
    draft_table,
    exact_table,
    expected,
    flag_table,
    page_table,
    rollback_table,
    square_table,
    step_table,
    strip_table,
    token_table,
)

_MAX_SIZE = 256  # layers, heads, and each side of a state


@dataclass(frozen=True)
class EngineStudy:
    """One run of the demonstration.

    Tables (lanes: ``first``, ``without_prefix``, ``with_prefix``):
        steps: one row per pass with its span on the roofline clock, tokens, operations, pages.
        flags: the first token of each lane.
        strip: reused and computed part of each prompt, on the span of the uncached prefill.
        squares: one row per token of a verify window: kept or rejected.
        pages: pages by kind and place during each pass, stacked, of the engine of both requests.
        saving: the span between the first tokens of the second request.
        tokens: its output, token by token, with rejected drafts where they were proposed.
        compare: the second request without and with the prefix.
        bytes_by_length, message_by_length: those of ``growth()``.
        by_draft: tokens per verify step against the draft length.
        rollback: bytes of a window in the toy model by scheme.
        exact: what was compared bit for bit.
    """

    tables: dict[str, pd.DataFrame]
    prompt_len: int
    reused_tokens: int
    matched_mla_tokens: int
    loss_reason: str
    tokens_per_step: float
    expected_tokens_per_step: float
    num_kept_drafts: int
    num_drafts: int
    first_token_without: float
    first_token_with: float
    flops_without: int
    flops_with: int
    cpu_ms_without: float
    cpu_ms_with: float
    logits_different: int
    same_split: bool
    reuse_difference: float
    logits_digest: str
    num_parameters: int

    @property
    def share(self) -> float:
        """Time to the first token with the prefix over the time without."""
        return self.first_token_with / self.first_token_without

    def as_dict(self) -> dict[str, Any]:
        """Facts, the comparison and the checks as plain JSON values."""
        facts = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "tables"
        }
        tables = {name: self.tables[name].to_dict("records") for name in ("compare", "exact")}
        return {**facts, **tables}


def before_after(
    prompt_len: int = 1100,
    shared_len: int = 1024,
    new_tokens: int = 24,
    block_tokens: int = 512,
    chunk_tokens: int = 512,
    draft_len: int = 4,
    draft_quality: float = 0.75,
    use_cache: bool = True,
    layers: int = 4,
    heads: int = 4,
    dk: int = 16,
    dv: int = 16,
    dtype: str = "float32",
    seed: int = 0,
) -> EngineStudy:
    """Serve a request, then a second one that shares ``shared_len`` tokens, with and without reuse.

    Args:
        prompt_len, shared_len, new_tokens: tokens of each prompt, of the common prefix, of output.
        block_tokens, chunk_tokens, draft_len, draft_quality, use_cache: of the engine and drafter.
        layers, heads, dk, dv, dtype: toy sizes, really computed.
        seed: of weights, prompts and drafts.

    Raises:
        K3Error: a size is out of range.
    """
    require_count("new_tokens", new_tokens, 1, MAX_NEW_TOKENS)
    for name, size in (("layers", layers), ("heads", heads), ("dk", dk), ("dv", dv)):
        require_count(name, size, 1, _MAX_SIZE)
    run = run_once(
        prompt_len,
        shared_len,
        new_tokens,
        config=ModelConfig(
            num_layers=layers, num_heads=heads, dk=dk, dv=dv, dtype=dtype, seed=seed
        ),
        block_tokens=block_tokens,
        chunk_tokens=chunk_tokens,
        draft_len=draft_len,
        draft_quality=draft_quality,
        use_cache=use_cache,
        seed=seed,
    )
    results = dict(zip(LANES, (run.first, run.without_prefix, run.with_prefix), strict=True))
    steps = pd.concat(
        [step_table(lane, result, run.model) for lane, result in results.items()],
        ignore_index=True,
    )
    flags = flag_table(steps, results)
    first_token = dict(zip(flags["lane"], flags["at"], strict=True))
    warm, cold = run.with_prefix, run.without_prefix
    return EngineStudy(
        tables={
            "steps": steps,
            "flags": flags,
            "strip": strip_table(results, first_token),
            "squares": square_table(steps),
            "pages": page_table(steps),
            "saving": pd.DataFrame(
                {
                    "begin": [first_token["with_prefix"]],
                    "end": [first_token["without_prefix"]],
                    "reused": [run.reused_tokens],
                    "share": [first_token["with_prefix"] / first_token["without_prefix"]],
                }
            ),
            "tokens": token_table(warm),
            "compare": compare_table(cold, warm, first_token),
            **growth().tables,
            "by_draft": draft_table(run, draft_quality, draft_len),
            "rollback": rollback_table(run.model.config, draft_len),
            "exact": exact_table(run),
        },
        prompt_len=prompt_len,
        reused_tokens=run.reused_tokens,
        matched_mla_tokens=warm.hit.mla_tokens if warm.hit else 0,
        loss_reason=(warm.hit.reason or "none") if warm.hit else "cache_off",
        tokens_per_step=warm.tokens_per_step,
        expected_tokens_per_step=expected(draft_quality, draft_len),
        num_kept_drafts=warm.num_kept_drafts,
        num_drafts=warm.num_drafts,
        first_token_without=first_token["without_prefix"],
        first_token_with=first_token["with_prefix"],
        flops_without=cold.prefill_flops,
        flops_with=warm.prefill_flops,
        cpu_ms_without=cold.ttft_seconds * 1e3,
        cpu_ms_with=warm.ttft_seconds * 1e3,
        logits_different=int((warm.logits != run.plain.logits).sum())
        + int((warm.logits != cold.logits).sum()),
        same_split=run.same_split,
        reuse_difference=run.reuse_difference,
        logits_digest=warm.logits_digest,
        num_parameters=run.model.num_parameters,
    )
