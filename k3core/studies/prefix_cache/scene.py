"""A first prompt in a real prefix cache, a second one that shares its beginning, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from k3core.errors import require
from k3core.prefix_cache import (
    ROOT_PARENT,
    PrefixCache,
    PrefixHit,
    PromptHashes,
    retained_boundaries,
)
from k3core.prefix_cache.keys import root_parent

POLICIES = ("every", "last", "none")
"""Where the first prompt leaves checkpoints: every k blocks and at its replay boundary, only at
its replay boundary, nowhere."""

EVICTIONS = ("none", "states", "blocks")
"""What left the cache since: nothing, the deepest states, the deepest quarter of the blocks."""

OTHER_TENANT = "tenant-b"
VOCABULARY = 163_840  # Kimi K3
_HEX_DIGITS = 12
_COLUMNS_SEGMENTS = ["code", "kind", "start", "end", "tokens"]


@dataclass(frozen=True)
class Scene:
    """A cache after the first prompt, and the second prompt."""

    cache: PrefixCache
    prompt: PromptHashes
    first_len: int
    shared_len: int
    kept: tuple[int, ...]
    missing: tuple[tuple[int, int], ...]  # (boundary, group)


def kept_boundaries(
    policy: str, every_blocks: int, first_len: int, block_tokens: int
) -> tuple[int, ...]:
    """Boundaries at which the first prompt keeps checkpoints.

    Raises:
        K3Error: unknown policy.
    """
    require(policy in POLICIES, f"policy={policy!r} must be one of {', '.join(POLICIES)}")
    if policy == "none":
        return ()
    return retained_boundaries(first_len, block_tokens, every_blocks if policy == "every" else 0)


def _prompts(
    prompt_len: int, shared_len: int, first_tail: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of both prompts; they part exactly after ``shared_len`` tokens."""
    require(
        0 <= shared_len <= prompt_len,
        f"shared_len={shared_len} must be in 0..prompt_len={prompt_len}",
    )
    require(first_tail >= 0, f"first_tail={first_tail} must not be negative")
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, VOCABULARY, shared_len)
    tail = rng.integers(0, VOCABULARY, first_tail)
    own = rng.integers(0, VOCABULARY, prompt_len - shared_len)
    if first_tail and len(own):
        own[0] = (tail[0] + 1) % VOCABULARY
    return np.concatenate([shared, tail]), np.concatenate([shared, own])


def make_scene(
    prompt_len: int,
    shared_len: int,
    first_tail: int,
    block_tokens: int,
    num_groups: int,
    kept: Sequence[int],
    missing: Sequence[tuple[int, int]],
    ready: bool,
    seed: int,
    dropped_blocks: int = 0,
    evicted: str = "none",
    salted: bool = False,
) -> Scene:
    require(evicted in EVICTIONS, f"evicted={evicted!r} must be one of {', '.join(EVICTIONS)}")
    first, second = _prompts(prompt_len, shared_len, first_tail, seed)
    cache = PrefixCache(block_tokens, num_groups, dropped_blocks=dropped_blocks)
    ticket = cache.register(first)
    for boundary in kept:
        for group in range(num_groups):
            if (boundary, group) not in missing:
                cache.persist_checkpoint(ticket, boundary, group)
    if ready:
        cache.mark_ready(ticket)
        _evict(cache, ticket.block_hashes, kept, missing, evicted)
    root = root_parent(salt=OTHER_TENANT) if salted else ROOT_PARENT
    return Scene(
        cache,
        PromptHashes(second, block_tokens, root),
        len(first),
        shared_len,
        tuple(kept),
        tuple(missing),
    )


def _evict(
    cache: PrefixCache,
    hashes: Sequence[bytes],
    kept: Sequence[int],
    missing: Sequence[tuple[int, int]],
    evicted: str,
) -> None:
    """Take the deepest set of states, or the deepest quarter of the blocks, out of the cache."""
    block = cache.hash_block_tokens
    if evicted == "states" and kept:
        for group in range(cache.num_kda_groups):
            if (kept[-1], group) not in missing:
                cache.evict_checkpoint(hashes[kept[-1] // block - 1], group)
    elif evicted == "blocks":
        for one in reversed(hashes[len(hashes) - len(hashes) // 4 :]):
            cache.evict_block(one)


def missing_states(missing_group: str, boundary: int, num_groups: int) -> list[tuple[int, int]]:
    if missing_group == "none":
        return []
    if missing_group == "all":
        return [(boundary, group) for group in range(num_groups)]
    require(
        missing_group.isdecimal() and int(missing_group) < num_groups,
        f"missing_group={missing_group!r} must be none, all or 0..{num_groups - 1}",
    )
    return [(boundary, int(missing_group))]


def _segments(hit: PrefixHit) -> pd.DataFrame:
    """The account of the lookup, laid along the prompt."""
    rows = [
        (code, code if code in ("reused", "new") else "lost", start, stop, stop - start)
        for code, start, stop in hit.loss_spans()
    ]
    return pd.DataFrame(rows, columns=_COLUMNS_SEGMENTS)


def _first_segments(scene: Scene) -> pd.DataFrame:
    own = scene.first_len - scene.shared_len
    rows = [
        ("shared", "shared", 0, scene.shared_len, scene.shared_len),
        ("own", "own", scene.shared_len, scene.first_len, own),
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
    for boundary in scene.kept:
        if boundary > max(hit.registered_tokens, hit.known_tokens):
            continue
        one = hit.block_hashes[boundary // block - 1]
        visible = scene.cache.checkpoint_groups(one)
        for group in range(hit.num_kda_groups):
            if (boundary, group) in scene.missing:
                status = "state_missing"
            elif group in visible:
                status = "state_kept"
            else:
                status = "state_pending" if boundary > hit.mla_tokens else "state_evicted"
            rows.append((group, f"group_{group}", boundary, status, _digits(one)))
    return pd.DataFrame(rows, columns=["group", "row", "boundary", "status", "hash"])


def _kept(scene: Scene, num_groups: int) -> pd.DataFrame:
    """Boundaries of the first prompt's rule and how many groups left a state there."""
    rows = [
        (at, sum((at, group) not in scene.missing for group in range(num_groups)))
        for at in scene.kept
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
        gone = f"{boundary:,} → {', '.join(map(str, groups))}"
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
        "kept": _kept(scene, hit.num_kda_groups),
        "blocks": _blocks(scene, hit),
        "checkpoints": _checkpoints(scene, hit),
        "rules": _rules(hit),
    }
