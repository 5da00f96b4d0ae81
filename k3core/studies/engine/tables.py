"""The tables of the engine study: accounts of a run as tidy rows, codes instead of words."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from k3core import decode
from k3core.engine import PREFILL, Drafter, RequestResult, RunOnce, Step
from k3core.model import HybridModel, ModelConfig

KNEE_TOKENS = 206
"""Tokens per pass at which computing takes as long as reading bf16 weights.

989 TFLOP/s of dense bf16 over 4.8 TB/s (NVIDIA H200 SXM data sheet), two operations and two bytes
per parameter.
"""

LANES = ("first", "without_prefix", "with_prefix")
SWEEP_DRAFTS = tuple(range(9))

_ONSETS = ["b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z"]
_RIMES = ["a", "e", "i", "o", "u", "an", "en", "in", "on", "un", "ar", "er", "or", "al", "el", "il"]


def token_word(token: int) -> str:
    """A pronounceable name of a token id below 256."""
    return _ONSETS[token // len(_RIMES) % len(_ONSETS)] + _RIMES[token % len(_RIMES)]


def pass_cost(step: Step, model: HybridModel) -> float:
    """Duration of a pass in readings of the weights; at least 1."""
    weight_bytes = model.num_parameters * model.config.itemsize
    moving = step.bytes_moved / weight_bytes
    computing = step.flops / (2 * model.num_parameters * KNEE_TOKENS)
    return max(moving, computing)


def step_table(lane: str, result: RequestResult, model: HybridModel) -> pd.DataFrame:
    rows = []
    now = 0.0
    for index, step in enumerate(result.steps):
        begin, now = now, now + pass_cost(step, model)
        rows.append(
            {
                "lane": lane,
                "step": index,
                "kind": step.kind,
                "begin": begin,
                "end": now,
                "start_token": step.start,
                "num_tokens": step.num_tokens,
                "num_committed": step.num_committed,
                "num_rejected": step.num_rejected,
                "mflops": step.flops / 1e6,
                "cpu_ms": step.seconds * 1e3,
                **step.pool._asdict(),
            }
        )
    return pd.DataFrame(rows)


def flag_table(steps: pd.DataFrame, results: dict[str, RequestResult]) -> pd.DataFrame:
    prefill = steps[steps["kind"] == PREFILL].groupby("lane", sort=False)["end"].max()
    return pd.DataFrame(
        {
            "lane": list(results),
            "at": [float(prefill[lane]) for lane in results],
            "reused": [result.reused_tokens for result in results.values()],
            "cpu_ms": [result.ttft_seconds * 1e3 for result in results.values()],
        }
    )


def strip_table(results: dict[str, RequestResult], first_token: dict[str, float]) -> pd.DataFrame:
    rows = []
    width = first_token["without_prefix"]
    for lane, result in results.items():
        edges = (0, result.reused_tokens, result.prompt_len)
        for part, low, high in zip(("reused", "computed"), edges, edges[1:], strict=False):
            if high > low:
                scale = width / result.prompt_len
                rows.append((lane, part, low, high, low * scale, high * scale))
    columns = ["lane", "part", "first_token", "end_token", "begin", "end"]
    return pd.DataFrame(rows, columns=columns)


def square_table(steps: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for step in steps[steps["kind"] != PREFILL].itertuples():
        for slot in range(step.num_tokens):
            status = "kept" if slot < step.num_committed else "rejected"
            rows.append((step.lane, step.step, step.begin, step.end, slot, status))
    return pd.DataFrame(rows, columns=["lane", "step", "begin", "end", "slot", "status"])


def page_table(steps: pd.DataFrame) -> pd.DataFrame:
    """Stacked page counts of the engine that serves both requests."""
    parts = {
        "kda_owned": ("kda", "owned"),
        "kda_cached": ("kda", "cached"),
        "mla_owned": ("mla", "owned"),
        "mla_cached": ("mla", "cached"),
    }
    rows = []
    for step in steps[steps["lane"] != "without_prefix"].to_dict("records"):
        lower = 0
        for column, (kind, place) in parts.items():
            upper = lower + step[column]
            rows.append(
                (step["lane"], step["step"], step["begin"], step["end"], kind, place, lower, upper)
            )
            lower = upper
    columns = ["lane", "step", "begin", "end", "kind", "place", "lower", "upper"]
    table = pd.DataFrame(rows, columns=columns)
    return table[table["upper"] > table["lower"]].assign(
        pages=lambda rows: rows["upper"] - rows["lower"]
    )


def token_table(result: RequestResult) -> pd.DataFrame:
    rows = []
    position = 0
    for index, step in enumerate(result.steps):
        kept = step.new_tokens[: step.num_committed - 1] if step.kind != PREFILL else ()
        for token in kept:
            rows.append((index, position, token, "kept"))
            position += 1
        for offset, token in enumerate(step.drafts[len(kept) :]):
            rows.append((index, position + offset, token, "rejected"))
        for token in step.new_tokens[len(kept) :]:
            rows.append((index, position, token, "model"))
            position += 1
    table = pd.DataFrame(rows, columns=["step", "position", "token", "status"])
    return table.assign(word=table["token"].map(token_word))


def compare_table(
    cold: RequestResult, warm: RequestResult, first_token: dict[str, float]
) -> pd.DataFrame:
    rows = [
        ("computed_tokens", cold.computed_prompt_tokens, warm.computed_prompt_tokens),
        ("prefill_mflops", cold.prefill_flops / 1e6, warm.prefill_flops / 1e6),
        ("first_token", first_token["without_prefix"], first_token["with_prefix"]),
        ("new_pages", cold.new_pages, warm.new_pages),
    ]
    table = pd.DataFrame(rows, columns=["metric", "without_prefix", "with_prefix"])
    return table.assign(share=table["with_prefix"] / table["without_prefix"])


def draft_table(run: RunOnce, quality: float, current: int) -> pd.DataFrame:
    """Tokens per step that this drafter reaches on this text, by draft length."""
    prompt, output = run.prompts[1], run.plain.tokens
    rows = []
    for draft_len in SWEEP_DRAFTS:
        num_steps, num_computed = _walk(prompt, output, run.drafter, draft_len)
        per_step = (len(output) - 1) / num_steps if num_steps else 0.0
        wasted = num_computed - (len(output) - 1)
        now = draft_len == current
        rows.append((draft_len, per_step, expected(quality, draft_len), num_steps, wasted, now))
    columns = ["draft_len", "tokens_per_step", "expected", "num_steps", "rejected_tokens", "now"]
    return pd.DataFrame(rows, columns=columns)


def _walk(
    prompt: Sequence[int], output: Sequence[int], drafter: Drafter, draft_len: int
) -> tuple[int, int]:
    """Verify steps and window tokens that the engine needs for ``output`` with these drafts."""
    produced, num_steps, num_computed = 1, 0, 0
    while produced < len(output):
        room = min(draft_len, len(output) - produced - 1)
        drafts = drafter.propose((*prompt, *output[:produced]), room)
        kept = 0
        while kept < len(drafts) and drafts[kept] == output[produced + kept]:
            kept += 1
        produced += kept + 1
        num_steps += 1
        num_computed += 1 + len(drafts)
    return num_steps, num_computed


def expected(quality: float, draft_len: int) -> float:
    """Tokens per step of an endless text: 1 + q + q^2 + ... + q^k."""
    return float(sum(quality**kept for kept in range(draft_len + 1)))


def rollback_table(config: ModelConfig, current: int) -> pd.DataFrame:
    """Bytes that one window keeps for its rollback, all KDA layers of the toy."""
    sizes = (config.num_heads, config.dk, config.dv)
    rows = []
    for draft_len in SWEEP_DRAFTS:
        window_len = 1 + draft_len
        snapshots = decode.snapshot_bytes(
            *sizes, window_len, config.dtype, config.conv_width, config.dtype
        )
        inputs = decode.projection_bytes(
            *sizes, window_len, config.dtype, config.dtype, config.dtype
        )
        inputs += window_len * config.conv_channels * config.itemsize
        for scheme, size in (("snapshots", snapshots), ("inputs", inputs)):
            rows.append((draft_len, scheme, size * len(config.kda_layers), draft_len == current))
    return pd.DataFrame(rows, columns=["draft_len", "scheme", "bytes", "now"])


def exact_table(run: RunOnce) -> pd.DataFrame:
    pairs = {
        "reuse": (run.with_prefix, run.without_prefix),
        "drafts": (run.with_prefix, run.plain),
    }
    rows = []
    for check, (one, other) in pairs.items():
        different = int((one.logits != other.logits).sum())
        largest = float((one.logits - other.logits).abs().max())
        same_tokens = one.tokens == other.tokens
        verdict = "pass" if same_tokens and different == 0 else "close" if same_tokens else "fail"
        rows.append((check, one.logits.numel(), different, largest, same_tokens, verdict))
    columns = ["check", "logits", "different", "largest_difference", "same_tokens", "verdict"]
    return pd.DataFrame(rows, columns=columns)
