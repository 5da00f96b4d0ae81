"""A first prompt in a real prefix cache, a second one that shares its beginning, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from k3core.prefix_cache import (
    ROOT_PARENT,
    PrefixCache,
    PrefixHit,
    PromptHashes,
    root_parent,
)
from k3core.studies.prefix_cache.cases import Case

OTHER_TENANT = "tenant-b"
VOCABULARY = 163_840  # Kimi K3
_HEX_DIGITS = 12
_COLUMNS_SEGMENTS = ["code", "kind", "start", "end", "tokens"]


@dataclass(frozen=True)
class Scene:
    """A cache after the first prompt, and the second prompt."""

    case: Case
    cache: PrefixCache
    prompt: PromptHashes


def make_scene(case: Case) -> Scene:
    """Register the first prompt, keep its checkpoints, and evict what has left since."""
    first, second = _prompts(case)
    cache = PrefixCache(case.block_tokens, case.num_groups, dropped_blocks=int(case.drafter_drop))
    ticket = cache.register(first)
    for boundary in case.kept:
        for group in range(case.num_groups):
            if (boundary, group) not in case.missing:
                cache.persist_checkpoint(ticket, boundary, group)
    if case.ready:
        cache.mark_ready(ticket)
        _evict(cache, ticket.block_hashes, case)
    root = root_parent(salt=OTHER_TENANT) if case.salted else ROOT_PARENT
    return Scene(case, cache, PromptHashes(second, case.block_tokens, root))


def _prompts(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of both prompts; they part exactly after ``shared_len`` tokens."""
    rng = np.random.default_rng(case.seed)
    shared = rng.integers(0, VOCABULARY, case.shared_len)
    tail = rng.integers(0, VOCABULARY, case.first_tail)
    own = rng.integers(0, VOCABULARY, case.prompt_len - case.shared_len)
    if len(tail) and len(own):
        own[0] = (tail[0] + 1) % VOCABULARY
    return np.concatenate([shared, tail]), np.concatenate([shared, own])


def _evict(cache: PrefixCache, hashes: Sequence[bytes], case: Case) -> None:
    """Take the deepest set of states, or the deepest quarter of the blocks, out of the cache."""
    if case.evicted == "states" and case.kept:
        cache.evict_boundary(hashes[case.kept[-1] // case.block_tokens - 1])
    elif case.evicted == "blocks":
        for one in reversed(hashes[len(hashes) - len(hashes) // 4 :]):
            cache.evict_block(one)


def _segments(hit: PrefixHit) -> pd.DataFrame:
    """The account of the lookup, laid along the prompt."""
    rows = [
        (code, code if code in ("reused", "new") else "lost", start, stop, stop - start)
        for code, start, stop in hit.loss_spans()
    ]
    return pd.DataFrame(rows, columns=_COLUMNS_SEGMENTS)


def _first_segments(scene: Scene) -> pd.DataFrame:
    shared, own = scene.case.shared_len, scene.case.first_tail
    rows = [
        ("shared", "shared", 0, shared, shared),
        ("own", "own", shared, shared + own, own),
    ]
    return pd.DataFrame([row for row in rows if row[-1]], columns=_COLUMNS_SEGMENTS)


def _blocks(scene: Scene, hit: PrefixHit) -> pd.DataFrame:
    block, rows, parent = hit.hash_block_tokens, [], ROOT_PARENT
    for index, one in enumerate(hit.block_hashes):
        end = (index + 1) * block
        state = scene.cache.block_state(one)
        if state == "ready":
            status = "block_reused" if end <= hit.matched_tokens else "block_lost"
        else:
            status = "block_pending" if state == "pending" else "block_absent"
            if state == "absent" and end <= hit.known_tokens:
                status = "block_evicted"
        rows.append((index, end - block, end, status, _digits(one), _digits(parent)))
        parent = one
    return pd.DataFrame(rows, columns=["index", "start", "end", "status", "hash", "parent"])


def _digits(digest: bytes) -> str:
    return digest.hex()[:_HEX_DIGITS] if digest else '""'


def _checkpoints(scene: Scene, hit: PrefixHit) -> pd.DataFrame:
    """Every (group, boundary) of the first prompt's rule that lies on the shared path."""
    block, rows = hit.hash_block_tokens, []
    for boundary in scene.case.kept:
        if boundary > max(hit.registered_tokens, hit.known_tokens):
            continue
        one = hit.block_hashes[boundary // block - 1]
        visible = scene.cache.checkpoint_groups(one)
        for group in range(hit.num_kda_groups):
            if (boundary, group) in scene.case.missing:
                status = "state_missing"
            elif group in visible:
                status = "state_kept"
            else:
                status = "state_pending" if boundary > hit.mla_tokens else "state_evicted"
            rows.append((group, f"group_{group}", boundary, status, _digits(one)))
    return pd.DataFrame(rows, columns=["group", "row", "boundary", "status", "hash"])


def _kept(case: Case) -> pd.DataFrame:
    """Boundaries of the first prompt's rule and how many groups left a state there."""
    rows = [
        (at, sum((at, group) not in case.missing for group in range(case.num_groups)))
        for at in case.kept
    ]
    return pd.DataFrame([row for row in rows if row[1]], columns=["boundary", "states"])


def _rules(hit: PrefixHit) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "rule": ["usable", "deepest", "cap"],
            "tokens": [hit.matched_tokens, hit.mla_tokens, hit.cap_tokens],
            "order": [0, 1, 2],
            "num_groups": hit.num_kda_groups,
        }
    )


def flow_table(hit: PrefixHit) -> pd.DataFrame:
    block = hit.hash_block_tokens
    blocks, matched = len(hit.block_hashes), hit.mla_tokens // block
    candidates = hit.junction_tokens // block
    passed = len(hit.missing_groups)
    stopped = f"{matched * block:,}" if matched < blocks else "–"
    gone = "–"
    if passed:
        boundary, groups = next(iter(hit.missing_groups.items()))
        gone = f"{boundary:,} → KDA {', '.join(map(str, groups))}"
    rows = [
        ("flow_prompt", f"{hit.num_tokens:,}", "neutral"),
        ("flow_match", f"{matched:,} / {blocks:,}", "mla"),
        ("flow_break", stopped, "rejected" if matched < blocks else "neutral"),
        ("flow_candidates", f"{hit.junction_tokens:,} … {block:,}" if candidates else "–", "kda"),
        ("flow_gone", gone, "rejected" if passed else "neutral"),
        ("flow_passed", f"{passed:,}", "neutral"),
        ("flow_hit", f"{hit.matched_tokens:,}", "accepted")
        if hit.hit
        else ("flow_miss", "0", "rejected"),
    ]
    table = pd.DataFrame(rows, columns=["box", "number", "kind"])
    return table.assign(step=range(len(rows)))


def view_tables(scene: Scene, hit: PrefixHit) -> dict[str, pd.DataFrame]:
    return {
        "segments": _segments(hit),
        "first": _first_segments(scene),
        "kept": _kept(scene.case),
        "blocks": _blocks(scene, hit),
        "checkpoints": _checkpoints(scene, hit),
        "rules": _rules(hit),
    }
