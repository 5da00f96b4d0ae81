"""Study of the engine: two requests with a common prefix, before and after.

Times. The clock of the pictures is a roofline, not this CPU: a pass takes as long as reading all
weights once, or longer when it moves more bytes (MLA rows, KDA states) or computes more than a
machine does meanwhile. One unit is one reading of the weights. Results are therefore the same on
every machine; milliseconds of this CPU stand beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from k3core import decode
from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import PRESETS
from k3core.engine import (
    PREFILL,
    Drafter,
    RequestResult,
    RunOnce,
    Step,
    run_once,
)
from k3core.model import HybridModel, ModelConfig
from k3core.parallel import KDAContextParallel
from k3core.studies import single_thread  # noqa: F401

KNEE_TOKENS = 206
"""Tokens per pass at which computing takes as long as reading bf16 weights.

989 TFLOP/s of dense bf16 over 4.8 TB/s (NVIDIA H200 SXM data sheet), two operations and two bytes
per parameter.
"""

LANES = ("first", "without_prefix", "with_prefix")
SWEEP_DRAFTS = tuple(range(9))
LENGTHS = tuple(512 * 2**i for i in range(12))

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
        bytes_by_length, message_by_length: production bytes of the chosen model.
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
    state_bytes_per_request: int
    mla_bytes_per_token: int
    message_bytes: int
    heads_per_rank: int
    num_kda_layers: int

    @property
    def share(self) -> float:
        """Time to the first token with the prefix over the time without."""
        return self.first_token_with / self.first_token_without


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
    model: str = "kimi-k3",
    tp: int = 8,
    mla_dtype: str = "float8",
    world: int = 8,
    seed: int = 0,
) -> EngineStudy:
    """Serve a request, then a second one that shares ``shared_len`` tokens, with and without reuse.

    Args:
        prompt_len, shared_len, new_tokens: tokens of each prompt, of the common prefix, of output.
        block_tokens, chunk_tokens, draft_len, draft_quality, use_cache: of the engine and drafter.
        layers, heads, dk, dv, dtype: toy sizes, really computed.
        model, tp, mla_dtype, world: production sizes of the byte curves; ``world`` context-parallel
            ranks.
        seed: of weights, prompts and drafts.

    Raises:
        K3Error: a size is out of range.
    """
    memory = RequestMemory(PRESETS[model], tp, mla_dtype=mla_dtype)
    message = PRESETS[model].num_kda_layers * KDAContextParallel.communication_volume(
        1, memory.num_heads, PRESETS[model].dk, PRESETS[model].dv, world
    )
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
        [_step_table(lane, result, run.model) for lane, result in results.items()],
        ignore_index=True,
    )
    flags = _flag_table(steps, results)
    first_token = dict(zip(flags["lane"], flags["at"], strict=True))
    warm, cold = run.with_prefix, run.without_prefix
    return EngineStudy(
        tables={
            "steps": steps,
            "flags": flags,
            "strip": _strip_table(results, first_token),
            "squares": _square_table(steps),
            "pages": _page_table(steps),
            "saving": pd.DataFrame(
                {
                    "begin": [first_token["with_prefix"]],
                    "end": [first_token["without_prefix"]],
                    "reused": [run.reused_tokens],
                    "share": [first_token["with_prefix"] / first_token["without_prefix"]],
                }
            ),
            "tokens": _token_table(warm),
            "compare": _compare_table(cold, warm, first_token),
            "bytes_by_length": pd.DataFrame(
                [
                    (length, kind, size)
                    for length in LENGTHS
                    for kind, size in (
                        ("mla", memory.kv_bytes(length)),
                        ("kda", memory.state_bytes_per_request),
                        ("kcp", message),
                    )
                ],
                columns=["num_tokens", "kind", "bytes"],
            ),
            "message_by_length": pd.DataFrame(
                [(length, message) for length in LENGTHS], columns=["num_tokens", "bytes"]
            ),
            "by_draft": _draft_table(run, draft_quality, draft_len),
            "rollback": _rollback_table(run.model.config, draft_len),
            "exact": _exact_table(run),
        },
        prompt_len=prompt_len,
        reused_tokens=run.reused_tokens,
        matched_mla_tokens=warm.hit.mla_tokens if warm.hit else 0,
        loss_reason=(warm.hit.reason if warm.hit else None) or "",
        tokens_per_step=warm.tokens_per_step,
        expected_tokens_per_step=_expected(draft_quality, draft_len),
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
        state_bytes_per_request=memory.state_bytes_per_request,
        mla_bytes_per_token=memory.mla_bytes_per_token,
        message_bytes=message,
        heads_per_rank=memory.num_heads,
        num_kda_layers=PRESETS[model].num_kda_layers,
    )


def _step_table(lane: str, result: RequestResult, model: HybridModel) -> pd.DataFrame:
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


def _flag_table(steps: pd.DataFrame, results: dict[str, RequestResult]) -> pd.DataFrame:
    prefill = steps[steps["kind"] == PREFILL].groupby("lane", sort=False)["end"].max()
    return pd.DataFrame(
        {
            "lane": list(results),
            "at": [float(prefill[lane]) for lane in results],
            "reused": [result.reused_tokens for result in results.values()],
            "cpu_ms": [result.ttft_seconds * 1e3 for result in results.values()],
        }
    )


def _strip_table(results: dict[str, RequestResult], first_token: dict[str, float]) -> pd.DataFrame:
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


def _square_table(steps: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for step in steps[steps["kind"] != PREFILL].itertuples():
        for slot in range(step.num_tokens):
            status = "kept" if slot < step.num_committed else "rejected"
            rows.append((step.lane, step.step, step.begin, step.end, slot, status))
    return pd.DataFrame(rows, columns=["lane", "step", "begin", "end", "slot", "status"])


def _page_table(steps: pd.DataFrame) -> pd.DataFrame:
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


def _token_table(result: RequestResult) -> pd.DataFrame:
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


def _compare_table(
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


def _draft_table(run: RunOnce, quality: float, current: int) -> pd.DataFrame:
    """Tokens per step that this drafter reaches on this text, by draft length."""
    prompt, output = run.prompts[1], run.plain.tokens
    rows = []
    for draft_len in SWEEP_DRAFTS:
        num_steps, num_computed = _walk(prompt, output, run.drafter, draft_len)
        per_step = (len(output) - 1) / num_steps if num_steps else 0.0
        wasted = num_computed - (len(output) - 1)
        now = draft_len == current
        rows.append((draft_len, per_step, _expected(quality, draft_len), num_steps, wasted, now))
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


def _expected(quality: float, draft_len: int) -> float:
    """Tokens per step of an endless text: 1 + q + q^2 + ... + q^k."""
    return float(sum(quality**kept for kept in range(draft_len + 1)))


def _rollback_table(config: ModelConfig, current: int) -> pd.DataFrame:
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


def _exact_table(run: RunOnce) -> pd.DataFrame:
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
