"""Plans and published numbers as lines of text, for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from k3core.capacity.configs import ParsedConfig
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import CapacityPlan
from k3core.errors import shown
from k3core.i18n import t

if TYPE_CHECKING:
    from k3core.capacity.records import Published

MAX_UNKNOWN = 20
AT_CONTEXT = frozenset({"blocks_per_request", "max_concurrency", "printed_tokens"})
AT_MEAN = frozenset(
    {"max_requests", "reusable_prefix_tokens", "roofs", "transfer_bytes_per_request", "verdict"}
)
OF_BLOCKS = frozenset(
    {
        "block_tokens",
        "block_bytes",
        "layer_groups",
        "state_blocks_per_request",
        "blocks_per_request",
        "num_blocks",
        "page_padding",
        "reusable_prefix_tokens",
        "longest_context",
        "checkpoint_share_per_block",
        "printed_tokens",
        "printed_tokens_2025",
    }
)


def plan_lines(planned: CapacityPlan) -> Iterator[str]:
    """Results with what they are for, then every input and default, then the engine's rule."""
    values = planned.as_dict()
    inputs, rule = values.pop("inputs"), values.pop("engine_rule")
    yield f"{planned.model.title}, TP{planned.memory.tp}: per rank, all layers unless per layer"
    for name, value in values.items():
        yield f"  {name:<40}{value_text(value):>20}  {number_scope(planned, name)}".rstrip()
    yield "inputs (defaults included)"
    for name, value in inputs.items():
        yield f"  {name:<40}{value_text(value):>20}"
    yield "rule: {engine} {version}, {date} ({source})".format(**rule)
    yield f"sizes: {planned.model.source}"
    if planned.model.note:
        yield f"note: {planned.model.note}"


def number_scope(planned: CapacityPlan, name: str) -> str:
    """What a number of the plan is for: a length, or the pool rule that was not chosen."""
    scope = []
    if name in AT_CONTEXT:
        scope.append(f"at --context {planned.deployment.context:,}")
    if name in AT_MEAN:
        scope.append(f"at --mean-tokens {planned.mean_tokens:,}")
    if name in OF_BLOCKS and planned.deployment.pool_rule != "blocks":
        scope.append("were it one pool of blocks")
    return ", ".join(scope)


def config_lines(parsed: ParsedConfig) -> Iterator[str]:
    """What was read from a config.json, what was not understood, and what the sizes leave out."""
    base = "" if parsed.index_base is None else f", layers counted from {parsed.index_base}"
    yield f"config.json: family {parsed.family}{base}"
    for name in parsed.unknown[:MAX_UNKNOWN]:
        yield f"config.json: field {shown(name)[1:-1]} is unknown; nothing was assumed of it"
    if len(parsed.unknown) > MAX_UNKNOWN:
        yield f"config.json: {len(parsed.unknown) - MAX_UNKNOWN:,} more fields are unknown"
    indexer = RequestMemory(parsed.preset, 1).indexer_bytes_per_token
    for note in parsed.notes:
        text = t(f"capacity.paste.note.{note}", count=value_text(indexer))
        yield f"config.json: {text}"


def published_lines(records: Sequence[Published]) -> Iterator[str]:
    """One line per record, then the counts."""
    yield f"{'id':<5}{'source':<34}{'value':<46}{'published':>22}{'computed':>22}  verdict"
    for record in records:
        yield (
            f"{record.code:<5}{record.source[:33]:<34}{record.what[:45]:<46}"
            f"{record.published_text:>22}{record.computed_text:>22}  {record.verdict.value}"
        )
        if record.reason:
            yield f"     {record.reason}"
    counts: dict[str, int] = {}
    for record in records:
        counts[record.verdict.value] = counts.get(record.verdict.value, 0) + 1
    yield f"{len(records)} values: " + ", ".join(f"{n} {name}" for name, n in counts.items())


def value_text(value: object) -> str:
    """A value of a plan as people read it: separators, four decimals at most."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4f}".rstrip("0").rstrip(".")
    if isinstance(value, dict):
        return ", ".join(f"{k} {value_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value) or "-"
