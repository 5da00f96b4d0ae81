"""The hit ladder: what a prompt finds when it is sent again, at every length, and what others saw.

Each length is served once by a cold cache (chunks end where the granularity allows, states stay
where the rule keeps them) and looked up again. The ceiling is the deepest boundary below the last
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.capacity.published_hits import HITS
from k3core.errors import require, require_count
from k3core.prefix_cache import PrefixCache, PromptHashes
from k3core.prefix_cache.granularity import HitGranularity
from k3core.prefix_cache.retention import Retention

LADDER_RULES = ("junction", "dense", "replay", "chunk_end", "none")
MAX_BLOCKS = 4  # the ladder ends one token after this many match units
_SIGHTINGS, _AT_ONCE = 64, 12  # vLLM #45238: prompts, and those that start before any is ready


_CAME_BEFORE = {"67c": 3_072}
"""Length of another prompt that came before the published one, by the code of its record."""


@dataclass(frozen=True)
class StairsStudy:
    """Reused tokens against prompt length on one deployment, and the published points.

    Attributes:
        tables: ``stairs`` (``num_tokens``, ``series``, ``tokens``: rows where a step begins;
            ``chunk_only`` keeps states at chunk ends only, where no stop is made for the cache),
            ``published`` (points in blocks of their deployment, whether they stand on the rule,
            and what this code finds), ``rule`` (the rule in blocks, without and with a drafter),
            ``sharing`` (rule x shared length: prompts that hit, of 64).
        physical_block, match_unit: of the deployment, in tokens.
        dropped_blocks: match units that a drafter gives up.
        layer_bytes: state and convolution window of one KDA layer, one rank: a page holds them.
        num_lengths: lengths served and looked up.
        num_below: of them, those below the ceiling.
        worst_loss: largest distance from the ceiling, in tokens.
        num_published, num_off: points, and those off the stairs.
        num_reproduced: points that this code finds too, those off the stairs included.
    """

    tables: dict[str, pd.DataFrame]
    physical_block: int
    match_unit: int
    dropped_blocks: int
    layer_bytes: int
    num_lengths: int
    num_below: int
    worst_loss: int
    num_published: int
    num_off: int
    num_reproduced: int

    def sharing_hits(self, rule: str, shared: int) -> int:
        """Prompts of 64 that hit under ``rule`` with ``shared`` tokens in common."""
        table = self.tables["sharing"].set_index(["rule", "shared"])
        return int(table.loc[(rule, shared), "hits"])


def stairs(
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "float8",
    draft_len: int = 0,
    drafter_drop: bool = False,
    context_parallel: int = 1,
    hash_block_tokens: int = 0,
    max_batched_tokens: int = 0,
    rule: str = "junction",
    num_groups: int = 3,
) -> StairsStudy:
    """Send every prompt of B to 4B + 1 tokens twice.

    Args:
        model, tp, state_dtype, mla_dtype, draft_len, context_parallel: decide the physical block.
        drafter_drop: the drafter gives up the last matched block.
        hash_block_tokens: match unit; 0 is the physical block.
        max_batched_tokens: tokens of a prefill step; 0 is no limit.
        rule: one of ``LADDER_RULES``.
        num_groups: KDA groups.

    Raises:
        K3Error: unknown rule or model, or a hash block that does not divide the physical block.
    """
    require(rule in LADDER_RULES, f"rule={rule!r} must be one of {', '.join(LADDER_RULES)}")
    require_count("num_groups", num_groups, 1)
    granularity = HitGranularity.of_model(
        model,
        tp,
        mla_dtype=mla_dtype,
        state_dtype=state_dtype,
        draft_len=draft_len,
        context_parallel=context_parallel,
        hash_block_tokens=hash_block_tokens,
        drafter_drop=drafter_drop,
        max_batched_tokens=max_batched_tokens,
    )
    memory = RequestMemory(get_preset(model), tp, state_dtype, "bfloat16", mla_dtype, draft_len)
    unit = granularity.match_unit
    hashes = [bytes([index, 0]) for index in range(MAX_BLOCKS + 1)]
    lengths = range(unit, MAX_BLOCKS * unit + 2)
    ceiling = {n: granularity.ceiling_tokens(n) for n in lengths}
    found = found_again(granularity, Retention(rule), hashes, lengths, num_groups)
    chunk_only = found_again(granularity, Retention("chunk_end"), hashes, lengths, num_groups)
    rows = [
        (n, series, values[n])
        for series, values in (
            ("ceiling", ceiling),
            ("reused", found),
            ("chunk_only", chunk_only),
        )
        for n in lengths
        if n in (lengths[0], lengths[-1]) or values[n] != values[n - 1]
    ]
    published = _published()
    return StairsStudy(
        tables={
            "stairs": pd.DataFrame(rows, columns=["num_tokens", "series", "tokens"]),
            "published": published,
            "rule": _rule(int(published["blocks"].max()) + 4),
            "sharing": _sharing(),
        },
        physical_block=granularity.physical_block_tokens,
        match_unit=unit,
        dropped_blocks=granularity.dropped_blocks,
        layer_bytes=memory.kda_bytes_per_layer,
        num_lengths=len(lengths),
        num_below=sum(found[n] < ceiling[n] for n in lengths),
        worst_loss=max(ceiling[n] - found[n] for n in lengths),
        num_published=len(published),
        num_off=int((published["verdict"] == "off_stairs").sum()),
        num_reproduced=int((published["hit_tokens"] == published["found"]).sum()),
    )


def found_again(
    granularity: HitGranularity,
    retention: Retention,
    hashes: list[bytes],
    lengths: range,
    num_groups: int,
) -> dict[int, int]:
    """Reused tokens by length; a cache is asked once per case that it can tell apart."""
    unit = granularity.match_unit
    answers: dict[tuple[object, ...], int] = {}
    found = {}
    for n in lengths:
        kept = granularity.state_boundaries(n, retention)
        case = (kept, n // unit, (n - 1) // unit)
        if case not in answers:
            answers[case] = _served_twice(granularity, kept, hashes, n, num_groups)
        found[n] = answers[case]
    return found


def _served_twice(
    granularity: HitGranularity,
    kept: Sequence[int],
    hashes: list[bytes],
    num_tokens: int,
    groups: int,
) -> int:
    """Tokens that a prompt reuses after a cold cache has served it and kept these states."""
    unit = granularity.match_unit
    prompt = PromptHashes.from_hashes(hashes[: num_tokens // unit], num_tokens, unit)
    cache = PrefixCache(unit, groups, dropped_blocks=granularity.dropped_blocks)
    publish(cache, prompt, kept)
    return cache.lookup(prompt).matched_tokens


def publish(cache: PrefixCache, prompt: PromptHashes, boundaries: Sequence[int]) -> None:
    """A prompt was computed: its blocks become visible, with states at these boundaries."""
    ticket = cache.register(prompt)
    for boundary in boundaries:
        for group in range(cache.num_kda_groups):
            cache.persist_checkpoint(ticket, boundary, group)
    cache.mark_ready(ticket)


def serve(
    cache: PrefixCache, prompt: PromptHashes, granularity: HitGranularity, retention: Retention
) -> None:
    """Look a prompt up and compute the rest of it."""
    hit = cache.lookup(prompt)
    publish(
        cache,
        prompt,
        granularity.state_boundaries(
            prompt.num_tokens, retention, hit.junction_tokens, hit.matched_tokens
        ),
    )


def _published() -> pd.DataFrame:
    """Hits that others measured, the rule's value for each, and what this code finds."""
    rows = []
    for record in HITS:
        if not record.prompt_tokens:
            continue
        block, num_tokens = record.block_tokens, record.prompt_tokens
        granularity = HitGranularity(block, dropped_blocks=record.dropped_blocks)
        first_len = _CAME_BEFORE.get(record.code, 0)
        rule = granularity.hit_tokens(num_tokens)
        rows.append(
            {
                "source": record.source,
                "num_tokens": num_tokens,
                "block": block,
                "dropped": record.dropped_blocks,
                "hit_tokens": int(record.published),
                "first_len": first_len,
                "blocks": num_tokens / block,
                "hit_blocks": record.published / block,
                "rule_tokens": rule,
                "found": _found(granularity, num_tokens, first_len),
                "verdict": "on_stairs" if record.published == rule else "off_stairs",
            }
        )
    return pd.DataFrame(rows)


def _found(granularity: HitGranularity, num_tokens: int, first_len: int) -> int:
    """What this code reuses for a published case; behind another prompt with the faulty rule.

    The fault: the boundary that is kept, ``(n - 1) // B * B``, is not one where a chunk ends.
    """
    block = granularity.match_unit
    hashes = [index.to_bytes(4, "big") for index in range(num_tokens // block)]
    cache = PrefixCache(block, 1, dropped_blocks=granularity.dropped_blocks)
    before = first_len or num_tokens
    kept = granularity.state_boundaries(before, Retention("replay"))
    if first_len:
        ends = granularity.chunk_ends(before, Retention("chunk_end"))
        kept = tuple(at for at in kept if at in ends)
    publish(cache, PromptHashes.from_hashes(hashes[: before // block], before, block), kept)
    return cache.lookup(PromptHashes.from_hashes(hashes, num_tokens, block)).matched_tokens


def _rule(last: int) -> pd.DataFrame:
    """The stairs in blocks: (n - 1) // B, and one block less; a step begins after a boundary."""
    blocks = np.arange(0, last + 1)
    table = pd.DataFrame(
        {
            "blocks": np.tile(blocks, 2),
            "series": np.repeat(["ceiling", "with_drafter"], len(blocks)),
            "hit_blocks": np.concatenate([blocks, np.maximum(blocks - 1, 0)]),
        }
    )
    return table


def _sharing() -> pd.DataFrame:
    """vLLM #45238: 64 prompts of 2,200 tokens share their first 1,600 or 1,500; block 528."""
    granularity = HitGranularity(528, max_batched_tokens=2_048)
    rows = []
    for shared in (1_600, 1_500):
        for rule in ("replay", "chunk_end", "junction"):
            retention = Retention(rule)
            cache, waiting, hits = PrefixCache(granularity.match_unit, 1), [], 0
            for number in range(_SIGHTINGS):
                common = shared // granularity.match_unit
                hashes = [bytes([0, index]) for index in range(common)]
                hashes += [bytes([1, number, index]) for index in range(common, 4)]
                prompt = PromptHashes.from_hashes(hashes, 2_200, granularity.match_unit)
                hits += cache.lookup(prompt).hit
                waiting.append(prompt)
                if number + 1 >= _AT_ONCE:
                    for one in waiting:
                        serve(cache, one, granularity, retention)
                    waiting = []
            rows.append((shared, rule, hits, _SIGHTINGS))
    return pd.DataFrame(rows, columns=["shared", "rule", "hits", "prompts"])
