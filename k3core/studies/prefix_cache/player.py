"""Scenarios in steps: requests on a small pool, drawn from the real manager after each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from k3core.errors import require_choice, require_count
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.prefix_cache.block_hash import PromptHashes
from k3core.prefix_cache.keys import ROOT_PARENT, root_parent
from k3core.prefix_cache.manager import HybridCacheManager
from k3core.prefix_cache.retention import Retention
from k3core.studies import single_thread  # noqa: F401
from k3core.studies.prefix_cache.scenarios import Script, Step

BLOCK = 512
TAIL = 100  # tokens after the last full block of every prompt
NUM_GROUPS = 2
PLAYER_RULES = ("junction", "dense", "replay", "chunk_end", "none")
_HEX_DIGITS = 6


@dataclass(frozen=True)
class PlayerStudy:
    """A scenario after some of its steps.

    Attributes:
        tables: ``blocks`` (prompt x block: letter, hash, status, page), ``states`` (prompt x
            boundary x group: status), ``pages`` (page: kind, place, references, place in the free
            list, content), ``account`` (of the last lookup: tokens by reason).
        results: one per step done: what came of it, as a code and the numbers for its sentence.
        num_steps: of the scenario.
        num_free, num_cached, num_owned: pages.
        num_orphans: blocks and states that no lookup can reach.
    """

    tables: dict[str, pd.DataFrame]
    steps: tuple[Step, ...]
    results: tuple[tuple[str, dict[str, Any]], ...]
    num_steps: int
    num_free: int
    num_cached: int
    num_owned: int
    num_orphans: int


@dataclass
class _Stage:
    manager: HybridCacheManager
    seed: int
    prompts: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> blocks, salt
    ever_ready: set[bytes] = field(default_factory=set)
    ever_state: set[tuple[bytes, int]] = field(default_factory=set)
    account: dict[str, int] = field(default_factory=dict)
    content: dict[int, str] = field(default_factory=dict)  # page -> what it held last

    def prompt(self, blocks: str, salt: str) -> PromptHashes:
        """Tokens of the letters, and a tail that no other prompt has."""
        tokens = [
            np.random.default_rng([self.seed, ord(letter)]).integers(0, 163_840, BLOCK)
            for letter in blocks
        ]
        root = root_parent(salt=salt) if salt else ROOT_PARENT
        whole = np.concatenate([*tokens, np.arange(TAIL)])
        return PromptHashes(whole, BLOCK, root)

    def known(self, name: str) -> PromptHashes:
        return self.prompt(*self.prompts[name])

    def run(self, step: Step) -> tuple[str, dict[str, Any]]:
        """Do one step; returns the code of its result and the numbers of its sentence."""
        manager = self.manager
        if step.blocks and step.name not in self.prompts:
            self.prompts[step.name] = (step.blocks, step.salt)
        if step.action == "reset":
            return ("reset_done" if manager.reset() else "reset_refused"), {}
        running = step.name in manager.running
        if step.action == "look_up":
            hit = manager.lookup(self.prompt(step.blocks, self.prompts[step.name][1]))
            self.account = hit.loss_account()
            return ("found" if hit.hit else "missed"), {
                "reused": hit.matched_tokens,
                "lost": max(hit.known_tokens, hit.registered_tokens) - hit.matched_tokens,
                "reason": hit.reason or "nothing",
            }
        if step.action == "register":
            if running:
                return "running_already", {}
            admission = manager.admit(step.name, self.known(step.name))
            if admission is None:
                return "refused", {"available": manager.pool.num_available}
            return "admitted", {
                "reused": admission.reused_tokens,
                "pages": len(admission.pages),
                "states": len(admission.state_pages),
                "copies": len(admission.copies),
            }
        if step.action in ("write", "end", "abort") and not running:
            return "not_running", {}
        if step.action == "write":
            return self._write(step)
        if step.action in ("end", "abort"):
            manager.release(step.name)
            return "released", {
                "cached": manager.pool.num_cached,
                "free": manager.pool.num_free,
            }
        one = self.known(step.name).block_hashes[step.upto - 1]
        before = manager.pool.num_cached
        if step.action == "evict_state":
            manager.residency.drop_boundary(one)
        else:
            manager.residency.drop_block(one)
        return "evicted", {"pages": before - manager.pool.num_cached}

    def _write(self, step: Step) -> tuple[str, dict[str, Any]]:
        manager = self.manager
        total = len(step.blocks) * BLOCK + TAIL
        wanted = total if step.upto < 0 else step.upto * BLOCK
        if wanted <= manager.num_computed(step.name):
            return "reused_already", {}
        skipped = manager.num_skipped_checkpoints
        # One chunk: it ends early where the rule wants a state.
        manager.computed(step.name, wanted)
        visible = {"tokens": wanted // BLOCK * BLOCK}  # a lookup finds whole blocks
        if manager.num_skipped_checkpoints > skipped:
            return "skipped", visible
        return "written", visible

    def note(self) -> None:
        """Remember what was visible, so that what is gone can be told from what never was."""
        for name in self.prompts:
            for one in self.known(name).block_hashes:
                if self.manager.cache.block_state(one) == "ready":
                    self.ever_ready.add(one)
                for group in self.manager.cache.checkpoint_groups(one):
                    self.ever_state.add((one, group))
        self.content |= _content(self)


def player(
    scenario: str = "turns",
    step: int = 6,
    rule: str = "junction",
    num_pages: int = 20,
    cascade: bool = False,
    seed: int = 0,
    own: str = "",
) -> PlayerStudy:
    """Run the first ``step`` operations of a scenario on a new pool and cache.

    Args:
        scenario: one of ``SCENARIOS``, or ``own``.
        rule: retention rule, one of ``PLAYER_RULES``.
        num_pages: pages of the pool; one holds a block of MLA rows or a group's state.
        cascade: an evicted block takes along what stands behind it.
        own: operations of the scenario ``own``, see ``scenarios``.

    Raises:
        K3Error: unknown scenario or rule, bad operations, or a step outside of the scenario.
    """
    steps = Script(scenario, own).steps
    require_count("step", step, 0, len(steps))
    require_choice("rule", rule, PLAYER_RULES)
    manager = HybridCacheManager(
        PagePool(num_pages),
        hash_block_tokens=BLOCK,
        num_kda_groups=NUM_GROUPS,
        retention=Retention(rule),
        cascade=cascade,
    )
    stage = _Stage(manager, seed)
    results = []
    for one in steps[:step]:
        results.append(stage.run(one))
        stage.note()
    manager.check()
    stats = manager.pool.stats()
    return PlayerStudy(
        tables={
            "blocks": _blocks(stage),
            "states": _states(stage),
            "pages": _pages(stage),
            "account": pd.DataFrame(stage.account.items(), columns=["code", "tokens"]),
        },
        steps=steps,
        results=tuple(results),
        num_steps=len(steps),
        num_free=stats.num_free,
        num_cached=stats.num_cached,
        num_owned=stats.num_owned,
        num_orphans=manager.cache.num_orphan_blocks + manager.cache.num_orphan_checkpoints,
    )


def _blocks(stage: _Stage) -> pd.DataFrame:
    cache, rows = stage.manager.cache, []
    for name, (letters, salt) in stage.prompts.items():
        for index, one in enumerate(stage.known(name).block_hashes):
            status = {"ready": "block_ready", "pending": "block_pending"}.get(
                cache.block_state(one), "block_evicted" if one in stage.ever_ready else "block_new"
            )
            unit = cache.block_payload(one)
            page = "" if unit is None else str(unit.page)
            digits = one.hex()[:_HEX_DIGITS]
            rows.append((name, salt, index, letters[index], digits, status, page))
    columns = ["name", "salt", "index", "letter", "hash", "status", "page"]
    return pd.DataFrame(rows, columns=columns)


def _states(stage: _Stage) -> pd.DataFrame:
    cache, rows = stage.manager.cache, []
    for name in stage.prompts:
        for index, one in enumerate(stage.known(name).block_hashes):
            visible = cache.checkpoint_groups(one)
            for group in range(NUM_GROUPS):
                if group in visible or (one, group) in stage.ever_state:
                    status = "state_kept" if group in visible else "state_evicted"
                    rows.append((name, index, (index + 1) * BLOCK, group, status))
    return pd.DataFrame(rows, columns=["name", "index", "boundary", "group", "status"])


def _content(stage: _Stage) -> dict[int, str]:
    """What each page holds: a letter, a letter with its group, or the request that writes it.

    Orphans are not found from here; what they hold is remembered from before.
    """
    manager = stage.manager
    content: dict[int, str] = {}
    for name in manager.running:
        content |= dict.fromkeys(manager.pages(name), f"{name}")
        content |= {page: f"{name} S{i}" for i, page in enumerate(manager.state_pages(name))}
    for name, (letters, _) in stage.prompts.items():
        hashes = stage.known(name).block_hashes
        for index, one in enumerate(hashes):
            unit = manager.cache.block_payload(one)
            if unit is not None:
                content[unit.page] = letters[index]
            end = (index + 1) * BLOCK
            hit = manager.cache.lookup(
                PromptHashes.from_hashes(hashes[: index + 1], end + 1, BLOCK)
            )
            for state in hit.checkpoint_payloads if hit.matched_tokens == end else ():
                content |= dict.fromkeys(state.pages, f"{letters[index]}|{state.group}")
    return content


def _pages(stage: _Stage) -> pd.DataFrame:
    pool, content = stage.manager.pool, stage.content
    order = {page: place + 1 for place, page in enumerate(pool.free_order())}
    rows = []
    for page in range(pool.num_pages):
        info = pool.page_info(page)
        place = "owned" if info.num_references else "cached" if info.published else "free"
        kind = "mla" if info.kind is PageKind.MLA_KV else "kda"
        rows.append(
            (
                page,
                "free" if place == "free" else kind,
                place,
                info.num_references,
                info.published,
                order.get(page, 0),
                "" if place == "free" else content.get(page, ""),
            )
        )
    columns = ["page", "kind", "place", "references", "published", "order", "content"]
    return pd.DataFrame(rows, columns=columns)
