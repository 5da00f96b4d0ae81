"""Solve a boot log of vLLM back to blocks, blocks per request and drafts."""

from __future__ import annotations

import math
from typing import Any

from k3core.capacity import blocks
from k3core.capacity.block_pool import BlockPool
from k3core.capacity.bootlog import BootLog
from k3core.capacity.log_findings import Solved, deployment_of, told_by
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment
from k3core.capacity.pools import GIB
from k3core.capacity.rollback import rollback_cost

MAX_DRAFTS = 15
_MAX_STATE_BLOCKS = 64


class VLLMLog:
    """The steps of solving a vLLM log; each fills a part of the result."""

    def __init__(self, log: BootLog, memory: RequestMemory) -> None:
        self.log, self.memory = log, memory
        self.values: dict[str, float | str] = {}
        self.candidates: dict[str, tuple[float, ...]] = {}
        self.missing: dict[str, str] = {}
        self.contradictions: list[str] = list(log.conflicts)

    def solve(self) -> Solved:
        self._drafts()
        self._groups()
        self._blocks()
        deployment, known = self._plan()
        return Solved(
            self.values,
            self.candidates,
            self.missing,
            tuple(self.contradictions),
            deployment,
            known,
        )

    @property
    def block(self) -> int | None:
        value = self.log.get("block_tokens")
        return None if value is None else int(value)

    def _pool(self, drafts: int, scheme: str = "snapshots-align", layers: int = 0) -> BlockPool:
        memory = RequestMemory(
            self.memory.model,
            self.memory.tp,
            self.memory.state_dtype,
            mla_dtype=self.memory.mla_dtype,
            drafter_layers=layers,
        )
        return BlockPool(rollback_cost(memory, scheme, drafts), GIB, fixed_block=self.block or 0)

    def _drafts(self) -> None:
        """Rows of the window from block and padding: the page holds state and W-1 + ns rows."""
        said, padding = self.log.get("drafts"), self.log.get("page_padding")
        if self.block is None:
            self.missing["drafts"] = "Setting attention block size to N tokens"
            fits = range(MAX_DRAFTS + 1) if said is None else [int(said)]
        elif padding is None:
            fits = [n for n in range(MAX_DRAFTS + 1) if self._block_fits(n)]
        else:
            fits = [
                n
                for n in range(MAX_DRAFTS + 1)
                if abs(100 * self._pool(n).page_padding - padding) < 0.01
            ]
        if said is not None:
            if self.block is not None and int(said) not in fits:
                self.contradictions.append("drafts")
            self.values["drafts"] = int(said)
        elif len(fits) == 1:
            self.values["drafts"] = fits[0]
        elif not fits:
            self.contradictions.append("page_padding" if padding is not None else "block_tokens")
        else:
            self.candidates["drafts"] = tuple(fits)
            self.missing.setdefault("drafts", "Padding mamba page size by X %")

    def _block_fits(self, drafts: int) -> bool:
        pool, block = self._pool(drafts), self.block or 0
        need = pool.page_need_bytes
        row = self.memory.mla_bytes_per_token_layer
        return any(blocks.aligned_block(need, row, q) == block for q in (16, 32, 64, 128, 512))

    def _groups(self) -> None:
        """The drafter's layers, from the padding of the groups: their share and their count."""
        share, count = self.log.get("layer_padding"), self.log.get("padding_layers")
        groups = [self._pool(0, layers=layers).groups for layers in range(9)]
        fits = [
            layers
            for layers, group in enumerate(groups)
            if share is None or abs(100 * group.padding_share - share) < 0.01
        ]
        likely = fits
        if not fits:
            self.contradictions.append("layer_padding")
        elif count is not None:
            fits = [layers for layers in fits if groups[layers].padding_layers == count]
            if not fits:
                self.contradictions.append("padding_layers")
        said = share is not None or count is not None
        self.drafter_layers = likely[0] if likely else 0
        self.values["num_groups"] = groups[self.drafter_layers].num_groups
        if said and len(fits) == 1:
            self.values["drafter_layers"] = fits[0]
        elif said and fits:
            self.candidates["drafter_layers"] = tuple(fits)

    def _blocks(self) -> None:
        """Blocks of the pool and of a request, from the printed tokens and concurrency."""
        tokens, limit = self.log.get("printed_tokens"), self.log.get("max_model_len")
        times = self.log.get("concurrency")
        for code, value, line in (
            ("printed_tokens", tokens, "GPU KV cache size: N tokens"),
            ("concurrency", times, "Maximum concurrency for N tokens per request: X x"),
            ("max_model_len", limit, "Maximum concurrency for N tokens per request: X x"),
            ("cache_gib", self.log.get("cache_gib"), "Available KV cache memory: X GiB"),
        ):
            if value is None:
                self.missing[code] = line
        if tokens is None or limit is None or times is None:
            return
        new_rule = abs(tokens / limit - times) < 0.01 + 1e-9
        block = self.block
        groups = int(self.values["num_groups"])
        old_rule = block is not None and tokens % block == 0 and not new_rule
        if not new_rule and not old_rule:
            self.contradictions.append("printed_tokens")
            return
        self.values["print_rule"] = "2026" if new_rule else "2025"
        found = self._pairs(tokens, limit, times, groups, new_rule)
        self._choose(found)

    def _pairs(
        self, tokens: float, limit: float, times: float, groups: int, new_rule: bool
    ) -> list[tuple[int, int, int]]:
        """(blocks, blocks per request, state blocks) that print exactly these numbers."""
        block = self.block
        known = self.log.get("num_blocks")
        found: list[tuple[int, int, int]] = []
        if block is None:
            return found
        per_tokens = -(-int(limit) // block)
        options: range | tuple[int] = range(1, _MAX_STATE_BLOCKS + 1)
        if self.mode == "all":  # a state at every block of the longest sequence
            options = (per_tokens * self._pool(0, layers=self.drafter_layers).groups.state_groups,)
        for states in options:
            each = per_tokens + states
            if new_rule:
                low = math.ceil(tokens * each / limit)
                counts = [n for n in (low - 1, low, low + 1) if n > 0]
            else:
                first = int(tokens) // block * groups
                counts = list(range(first, first + groups))
            for count in counts:
                if known is not None and count != known:
                    continue
                if abs(blocks.printed_concurrency(count, each) - times) >= 0.01:
                    continue
                if new_rule and blocks.printed_tokens(count, each, int(limit)) != tokens:
                    continue
                if self._memory_allows(count):
                    found.append((count, each, states))
        return found

    def _memory_allows(self, count: int) -> bool:
        """Whether so many blocks fill the logged memory, within its last printed digit."""
        gib = self.log.get("cache_gib")
        if gib is None:
            return True
        each = self._pool(0, layers=self.drafter_layers).block_bytes
        slack = 0.6 * self.log.step("cache_gib")
        return (gib - slack) * GIB < (count + 1) * each and count * each <= (gib + slack) * GIB

    def _choose(self, found: list[tuple[int, int, int]]) -> None:
        groups = self._pool(0, layers=self.drafter_layers).groups.state_groups
        drafts = self.values.get("drafts")
        plausible = [row for row in found if row[2] % groups == 0]
        if isinstance(drafts, int | float) and self.mode != "all":
            rule = {groups * n for n in (1 + int(drafts), 2 + int(drafts), 1, 2, 3)}
            plausible = [row for row in plausible if row[2] in rule] or plausible
        if not found:
            if self.block is not None:
                self.contradictions.append("concurrency")
            else:
                self.missing["num_blocks"] = "Setting attention block size to N tokens"
            return
        rows = plausible or found
        for place, code in enumerate(("num_blocks", "blocks_per_request", "state_blocks")):
            options = tuple(sorted({row[place] for row in rows}))
            if len(options) == 1:
                self.values[code] = options[0]
            else:
                self.candidates[code] = options[:12]
                line = (
                    "num_gpu_blocks" if self.log.get("cache_gib") else "Available KV cache memory"
                )
                self.missing[code] = line

    @property
    def mode(self) -> str:
        return self.log.word("cache_mode")

    def _rollback(self) -> str:
        """The scheme, from the cache mode or from the state blocks; empty when neither tells."""
        if self.mode:
            self.values["cache_mode"] = self.mode
            return {"none": "snapshots", "align": "snapshots-align"}.get(self.mode, "")
        states, drafts = self.values.get("state_blocks"), self.values.get("drafts")
        if states is None or drafts is None:
            return ""
        groups = self._pool(0, layers=self.drafter_layers).groups.state_groups
        each = float(states) / groups - float(drafts)
        return {1.0: "snapshots", 2.0: "snapshots-align"}.get(each, "")

    def _plan(self) -> tuple[Deployment, tuple[str, ...]]:
        told: dict[str, Any] = {
            "pool_rule": "blocks",
            "context": self.log.get("max_model_len"),
            "budget_gib": self.log.get("cache_gib"),
            "drafts": self.values.get("drafts"),
            "drafter_layers": self.values.get("drafter_layers"),
            "rollback": self._rollback() or None,
        }
        codes = {"context": "max_model_len", "budget_gib": "cache_gib", "rollback": "cache_mode"}
        told = told_by(self.log, told, codes)
        start = {"drafts": 0, "rollback": "snapshots-align"}
        return deployment_of(self.memory, start | told), tuple(told)
