"""The hit ladder and the hit rate of a trace, as the command line prints them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.errors import CacheError, require, require_count
from k3core.fleet import read_trace
from k3core.fleet.cache import BLOCK_LEN, BlockCache
from k3core.fleet.workload import Workload
from k3core.prefix_cache import RETENTION_RULES, HitGranularity, Retention
from k3core.studies.prefix_cache.stairs import MAX_BLOCKS, found_again
from k3core.units import bytes_text, count_text, percent_text

_ALIASES = {"every": "interval", "second-sighting": "junction", "replay-boundary": "replay"}
_ALIAS_OF = {rule: f" ({alias})" for alias, rule in _ALIASES.items()}
POLICY_NAMES = ", ".join(f"{rule}{_ALIAS_OF.get(rule, '')}" for rule in RETENTION_RULES)
"""Every policy, its other name in brackets."""
MAX_LADDER_LEN = 2_097_152
"""Tokens of a prompt and of a block: twice the longest context of a published model."""
MAX_GROUPS = 64
_MAX_ROWS = 200_000
_MAX_WORK = 10_000_000  # boundaries and cached blocks, some 2 microseconds each


@dataclass(frozen=True)
class LadderRow:
    """A prompt that is served cold and sent again.

    Attributes:
        prompt_len: tokens of the prompt.
        hit_tokens: reused the second time.
        ceiling_tokens: what the last-token rule allows, ``(n - 1) // B * B``.
    """

    prompt_len: int
    hit_tokens: int
    ceiling_tokens: int


@dataclass(frozen=True)
class HitRateReport:
    """Reuse of a trace in one prefix cache.

    Attributes:
        policy: retention rule, with its parameters.
        capacity_blocks: blocks of 512 tokens that fit.
        checkpoint_blocks: blocks that one checkpoint takes of them.
        num_requests, total_blocks, total_tokens: of the trace.
        hit_blocks, hit_tokens: leading blocks that were cached, whether or not a state allowed to
            resume there: what a model without KDA layers would reuse.
        reused_tokens: up to the deepest checkpoint, the last token always computed.
        num_checkpoints, checkpoint_bytes: kept at the end; all KDA layers, one rank.
        peak_checkpoint_bytes: most at any time.
        model, tp: whose state is counted.
    """

    policy: str
    capacity_blocks: int
    checkpoint_blocks: int
    num_requests: int
    hit_blocks: int
    hit_tokens: int
    reused_tokens: int
    total_blocks: int
    total_tokens: int
    num_checkpoints: int
    checkpoint_bytes: int
    peak_checkpoint_bytes: int
    model: str
    tp: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def policy_of(code: str, interval_tokens: int = 0, max_per_path: int | None = None) -> Retention:
    """The retention policy of a command line.

    Args:
        code: one of ``RETENTION_RULES``, ``every`` (interval), ``second-sighting`` (junction) or
            ``replay-boundary``; dashes and underscores are the same.
        interval_tokens: distance of checkpoints, for ``interval``.
        max_per_path: most checkpoints of one path.

    Raises:
        CacheError: unknown code, or an interval where none belongs or none is given.
    """
    rule = _ALIASES.get(code, code.replace("-", "_"))
    require(
        rule in RETENTION_RULES,
        f"policy={code!r} is unknown; allowed: {POLICY_NAMES}",
        CacheError,
    )
    require(
        rule == "interval" or not interval_tokens,
        f"interval={interval_tokens} belongs to the policy interval, not to {rule}",
        CacheError,
    )
    return Retention(rule, interval_tokens, max_per_path)


def ladder_granularity(
    block: int = 0,
    model: str = "",
    tp: int = 8,
    drafter_drop: bool = False,
    max_batched_tokens: int = 0,
    **deployment: Any,
) -> HitGranularity:
    """The granularity of a ladder.

    Args:
        block: match unit; 0 is the model's physical block, or 512 without a model.
        model: a model's code decides the physical block; empty takes ``block`` for both.
        tp: tensor-parallel degree of the model.
        drafter_drop: a drafter gives up one matched block.
        max_batched_tokens: tokens of a prefill step, 0 for no limit.
        deployment: see ``HitGranularity.of_model``.

    Raises:
        K3Error: a size that no deployment can have.
    """
    require_count("block", block, 0, MAX_LADDER_LEN)
    if not model:
        return HitGranularity(block or BLOCK_LEN, 0, int(drafter_drop), max_batched_tokens)
    return HitGranularity.of_model(
        model,
        tp,
        hash_block_tokens=block,
        drafter_drop=drafter_drop,
        max_batched_tokens=max_batched_tokens,
        **deployment,
    )


def ladder_rows(
    granularity: HitGranularity,
    policy: Retention,
    groups: int = 3,
    first: int = 0,
    last: int = 0,
    step: int = 1,
) -> tuple[LadderRow, ...]:
    """Serve and resend every length from B to 4 B + 1, each on a cold cache of its own.

    Args:
        granularity: where prompts can resume.
        policy: where states are kept.
        groups: KDA groups.
        first, last, step: other lengths; 0 is B and 4 B + 1.

    Raises:
        K3Error: a bad range, more than 200,000 lengths, or a ladder that runs for minutes.
    """
    unit = granularity.match_unit
    require(
        granularity.physical_block_tokens <= MAX_LADDER_LEN,
        f"the block of the model is {granularity.physical_block_tokens} tokens; allowed: <= "
        f"{MAX_LADDER_LEN} (a smaller quantum, context_parallel or drafts)",
    )
    for name, value in (("first", first), ("last", last)):
        require_count(name, value, 0, MAX_LADDER_LEN)
    require_count("step", step, 1, MAX_LADDER_LEN)
    require_count("groups", groups, 1, MAX_GROUPS)
    lengths = range(first or unit, (last or MAX_BLOCKS * unit + 1) + 1, step)
    require(
        0 < len(lengths) <= _MAX_ROWS,
        f"lengths {lengths.start} to {lengths.stop - 1} by {step} are {len(lengths)} rows; "
        f"allowed: 1 to {_MAX_ROWS} (first, last, step)",
    )
    work = _ladder_work(granularity, policy, groups, lengths)
    require(
        work <= _MAX_WORK,
        f"lengths {lengths.start} to {lengths.stop - 1} by {step} in blocks of {unit} take {work} "
        f"boundaries and blocks; allowed: {_MAX_WORK} (a smaller last, a larger step or block)",
    )
    hashes = [index.to_bytes(4, "big") for index in range(lengths[-1] // unit + 1)]
    found = found_again(granularity, policy, hashes, lengths, groups)
    return tuple(LadderRow(n, found[n], granularity.ceiling_tokens(n)) for n in lengths)


def _ladder_work(
    granularity: HitGranularity, policy: Retention, groups: int, lengths: range
) -> int:
    """Boundaries that the lengths pass, and blocks that the caches of all distinct cases hold."""
    unit = granularity.match_unit
    gaps = [granularity.max_batched_tokens]
    if policy.rule in ("dense", "interval"):
        gaps.append(policy.interval_tokens or unit)
    gap = min((size for size in gaps if size), default=0)
    boundaries = sum(n // gap for n in lengths) if gap else 0
    cases = {(n // unit, (n - 1) // unit) for n in lengths}
    return boundaries + 5 * (1 + groups) * sum(blocks for blocks, _ in cases)


def hit_rate(
    path: str | Path,
    policy: Retention,
    capacity_blocks: int = 5859,
    checkpoint_blocks: int = 0,
    model: str = "kimi-k3",
    tp: int = 8,
) -> HitRateReport:
    """Run the prompts of a Mooncake trace through one prefix cache, in order of arrival.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``.
        policy: where checkpoints are kept.
        capacity_blocks: blocks of 512 tokens; least recently used ones leave.
        checkpoint_blocks: blocks that one checkpoint takes of them; 0 keeps states elsewhere.
        model, tp: whose state is counted in bytes.

    Raises:
        TraceError: the trace cannot be read or has a bad line.
        K3Error: another argument is out of range.
    """
    return workload_hit_rate(
        read_trace(path), policy, capacity_blocks, checkpoint_blocks, model, tp
    )


def workload_hit_rate(
    workload: Workload,
    policy: Retention,
    capacity_blocks: int = 5859,
    checkpoint_blocks: int = 0,
    model: str = "kimi-k3",
    tp: int = 8,
) -> HitRateReport:
    """``hit_rate`` of a trace that is already read."""
    cache = BlockCache(capacity_blocks, policy, checkpoint_blocks)
    state_bytes = RequestMemory(get_preset(model), tp).state_bytes_per_request
    hit_blocks = hit_tokens = reused = peak = 0
    lengths = workload.input_len.tolist()
    for index, num_tokens in enumerate(lengths):
        blocks = workload.path(index)
        matched = cache.match(blocks)
        hit_blocks += matched
        hit_tokens += min(matched * BLOCK_LEN, num_tokens)
        reused += cache.usable(blocks, matched, num_tokens)
        cache.store(blocks, matched, num_tokens)
        peak = max(peak, cache.num_checkpoints)
    text = policy.rule + (f"-{policy.interval_tokens}" if policy.interval_tokens else "")
    if policy.max_per_path is not None:
        text += f"+cap{policy.max_per_path}"
    return HitRateReport(
        policy=text,
        capacity_blocks=capacity_blocks,
        checkpoint_blocks=checkpoint_blocks,
        num_requests=len(lengths),
        hit_blocks=hit_blocks,
        hit_tokens=hit_tokens,
        reused_tokens=reused,
        total_blocks=workload.num_blocks,
        total_tokens=workload.num_tokens,
        num_checkpoints=cache.num_checkpoints,
        checkpoint_bytes=cache.num_checkpoints * state_bytes,
        peak_checkpoint_bytes=peak * state_bytes,
        model=model,
        tp=tp,
    )


def ladder_lines(granularity: HitGranularity, rows: tuple[LadderRow, ...]) -> list[str]:
    """The ladder for a terminal: one line per step."""
    lines = [
        f"physical block {count_text(granularity.physical_block_tokens)}, match unit "
        f"{count_text(granularity.match_unit)}, dropped blocks {granularity.dropped_blocks}",
        f"{'prompt':>9}  {'reused':>9}  {'ceiling':>9}",
    ]
    before: tuple[int, int] | None = None
    for row in rows:
        step = (row.hit_tokens, row.ceiling_tokens)
        if step != before or row is rows[-1]:
            lines.append(f"{row.prompt_len:>9,}  {row.hit_tokens:>9,}  {row.ceiling_tokens:>9,}")
        before = step
    short = sum(row.hit_tokens < row.ceiling_tokens for row in rows)
    return [*lines, f"{count_text(short)} of {count_text(len(rows))} lengths below the ceiling"]


def hit_rate_lines(report: HitRateReport) -> list[str]:
    """The report for a terminal."""

    def share(part: int, whole: int) -> str:
        text = percent_text(part / max(whole, 1), 2)
        return f"{count_text(part)} of {count_text(whole)}, {text}"

    rows = [
        ("policy", f"{report.policy}, {count_text(report.capacity_blocks)} blocks"),
        ("requests", count_text(report.num_requests)),
        ("blocks hit", share(report.hit_blocks, report.total_blocks)),
        ("tokens hit", share(report.hit_tokens, report.total_tokens)),
        ("tokens reused", share(report.reused_tokens, report.total_tokens)),
        (
            "checkpoints",
            f"{count_text(report.num_checkpoints)} at the end, "
            f"{bytes_text(report.checkpoint_bytes)} per rank of {report.model} at TP{report.tp}",
        ),
    ]
    return [f"{name:<14}{text}" for name, text in rows]
