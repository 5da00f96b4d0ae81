"""Two prompts through a real prefix cache: what the second one finds, and why not more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import PRESETS
from k3core.prefix_cache import PromptHashes
from k3core.studies.prefix_cache.cases import FIRST, Case
from k3core.studies.prefix_cache.scene import flow_table, make_scene, view_tables

_CHAIN_BLOCKS = 5


@dataclass(frozen=True)
class LookupStudy:
    """One lookup of a second prompt that shares a prefix with a first one.

    Attributes:
        tables: ``segments`` (the second prompt: reused, lost, new), ``first`` (the first prompt:
            shared, own), ``kept`` (its boundaries with states), ``blocks`` (full blocks of the
            second prompt with their hashes),
            ``checkpoints`` (group x boundary on the shared path), ``rules`` (usable, deepest, cap),
            ``flow`` (the two stages with this run's numbers), ``chain`` (the first blocks' hashes),
            ``account`` (tokens per reason).
        prompt_len, block_tokens: of the second prompt, in tokens.
        matched_tokens: reused tokens.
        mla_tokens: deepest MLA match.
        registered_tokens: deepest match had every block been ready.
        known_tokens: deepest match had nothing been evicted either.
        cap_tokens: last boundary below the prompt's end.
        reason: why known tokens are not reused, or None.
        gap_tokens: deepest boundary passed over that has some groups, 0 if none.
        gap_groups: the groups missing there.
        kept_boundaries: boundaries at which the first prompt keeps checkpoints, those with a
            missing group included.
        num_states: checkpoints kept, each group counted.
        kept_bytes: those checkpoints for Kimi K3 at TP8 (fp32 state), one rank.
    """

    tables: dict[str, pd.DataFrame]
    prompt_len: int
    block_tokens: int
    matched_tokens: int
    mla_tokens: int
    registered_tokens: int
    known_tokens: int
    cap_tokens: int
    reason: str | None
    gap_tokens: int
    gap_groups: tuple[int, ...]
    kept_boundaries: tuple[int, ...]
    num_states: int
    kept_bytes: int

    @property
    def lost_tokens(self) -> int:
        """Tokens that the cache knows, or knew, and the prompt computes again."""
        return self.known_tokens - self.matched_tokens

    @property
    def computed_tokens(self) -> int:
        return self.prompt_len - self.matched_tokens


@dataclass(frozen=True)
class MissStudy:
    """The two misses of the source text: no checkpoint, and a checkpoint only at the first block.

    Attributes:
        tables: ``segments``, ``blocks``, ``checkpoints``, ``rules``, ``first`` and ``verdicts``,
            all with a column ``scenario`` (``no_checkpoint``, ``partial``).
        partial_tokens: reused in the second scenario.
        mla_tokens: deepest MLA match of both.
    """

    tables: dict[str, pd.DataFrame]
    partial_tokens: int
    mla_tokens: int


@dataclass(frozen=True)
class LadderStudy:
    """Reused tokens against prompt length, prompts being prefixes of the second prompt.

    Attributes:
        tables: ``ladder`` (``num_tokens``, ``series``, ``tokens``; series ``reused``,
            ``deepest_match``, ``ceiling``), a step function: constant up to its series' next row.
        num_lookups: lookups made.
        num_below: of them, those that reuse less than the MLA match allows.
    """

    tables: dict[str, pd.DataFrame]
    num_lookups: int
    num_below: int


def lookup(**case: Any) -> LookupStudy:
    """Register a first prompt, keep its checkpoints, look the second prompt up.

    Args:
        case: fields of ``Case``.

    Raises:
        K3Error: the shared part is longer than the prompt, or an unknown code.
    """
    scene = make_scene(Case(**case))
    told, hit = scene.case, scene.cache.lookup(scene.prompt)
    gap = hit.missing_groups.get(hit.partial_tokens, ())
    views = view_tables(scene, hit)
    account = pd.DataFrame(hit.loss_account().items(), columns=["code", "tokens"])
    num_states = int(views["kept"]["states"].sum())
    full = RequestMemory(PRESETS["kimi-k3"]).state_bytes_per_request
    return LookupStudy(
        tables={
            **views,
            "flow": flow_table(hit),
            "chain": views["blocks"].head(_CHAIN_BLOCKS),
            "account": account.assign(share=account["tokens"] / max(hit.num_tokens, 1)),
        },
        prompt_len=told.prompt_len,
        block_tokens=told.block_tokens,
        matched_tokens=hit.matched_tokens,
        mla_tokens=hit.mla_tokens,
        registered_tokens=hit.registered_tokens,
        known_tokens=max(hit.known_tokens, hit.registered_tokens),
        cap_tokens=hit.cap_tokens,
        reason=hit.reason,
        gap_tokens=hit.partial_tokens if gap else 0,
        gap_groups=gap,
        kept_boundaries=told.kept,
        num_states=num_states,
        kept_bytes=round(full * num_states / told.num_groups),
    )


def misses(
    prompt_len: int = 1536,
    shared_len: int = 1024,
    block_tokens: int = 512,
    num_groups: int = 3,
    seed: int = 0,
) -> MissStudy:
    """The source text's two misses: no checkpoint at all, and one only at the first boundary.

    Raises:
        K3Error: the shared part is longer than the prompt.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    verdicts, hits = [], {}
    for scenario, policy in (("no_checkpoint", "none"), ("partial", FIRST)):
        case = Case(
            prompt_len,
            shared_len,
            block_tokens=block_tokens,
            num_groups=num_groups,
            policy=policy,
            missing_group="none",
            seed=seed,
        )
        scene = make_scene(case)
        hit = hits[scenario] = scene.cache.lookup(scene.prompt)
        for name, table in view_tables(scene, hit).items():
            parts.setdefault(name, []).append(table.assign(scenario=scenario))
        verdicts += [
            (scenario, "verdict_hit" if hit.hit else "verdict_miss", hit.matched_tokens),
            (scenario, "verdict_found", hit.mla_tokens),
            (scenario, "verdict_computed", hit.num_tokens - hit.matched_tokens),
        ]
    tables = {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}
    verdict_table = pd.DataFrame(verdicts, columns=["scenario", "code", "tokens"])
    tables["verdicts"] = verdict_table.assign(
        number=[f"{tokens:,}" for tokens in verdict_table["tokens"]]
    )
    return MissStudy(tables, hits["partial"].matched_tokens, hits["partial"].mla_tokens)


def ladder(**case: Any) -> LadderStudy:
    """Look up the second prompt cut to every length; parameters as in ``lookup``.

    Lengths between k·B + 1 and (k + 1)·B find the same, so those two ends of each step are asked.

    Raises:
        K3Error: the shared part is longer than the prompt, or an unknown code.
    """
    scene = make_scene(Case(**case))
    prompt_len, block_tokens = scene.case.prompt_len, scene.case.block_tokens
    hashes = scene.prompt.block_hashes
    ends = range(block_tokens, prompt_len + 1, block_tokens)
    lengths = sorted({1, prompt_len, *ends, *(end + 1 for end in ends if end < prompt_len)})
    rows, num_below = [], 0
    for num_tokens in lengths:
        hit = scene.cache.lookup(
            PromptHashes.from_hashes(hashes[: num_tokens // block_tokens], num_tokens, block_tokens)
        )
        num_below += hit.matched_tokens < hit.junction_tokens
        rows += [
            (num_tokens, "ceiling", hit.cap_tokens),
            (num_tokens, "deepest_match", hit.mla_tokens),
            (num_tokens, "reused", hit.matched_tokens),
        ]
    table = pd.DataFrame(rows, columns=["num_tokens", "series", "tokens"])
    return LadderStudy({"ladder": table}, len(lengths), num_below)
