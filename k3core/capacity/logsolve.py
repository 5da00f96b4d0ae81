"""Solve a boot log back to what it does not print: blocks, blocks per request, slots, drafts.

Each result is determined, one of several candidates, or undetermined with the missing line named.
Values that cannot belong to the same start are reported as contradictions. Printed numbers are
rounded or cut, so every comparison allows one unit of the last printed digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from k3core.capacity import blocks
from k3core.capacity.block_pool import BlockPool
from k3core.capacity.bootlog import BootLog
from k3core.capacity.memory import RequestMemory
from k3core.capacity.model import ModelPreset
from k3core.capacity.planner import Deployment
from k3core.capacity.pools import GIB
from k3core.capacity.rollback import rollback_cost
from k3core.errors import CapacityError, require_type

MAX_DRAFTS = 15
_MAX_STATE_BLOCKS = 64
_SGLANG_SLOTS = (1, 3, 4, 5)


@dataclass(frozen=True)
class Solved:
    """What follows from a log and a model.

    Attributes:
        values: what is determined, by code: ``num_blocks``, ``blocks_per_request``,
            ``state_blocks``, ``drafts``, ``num_groups``, ``slots_per_request``, ``rows``,
            ``state_pool_ratio``, ``budget_gib``, ``bytes_per_token``, ``print_rule``, ``tp``,
            ``drafter_layers``, ``draft_states_per_slot``.
        candidates: values that fit equally well, by code.
        missing: codes that stay undetermined, with the log line that would tell.
        contradictions: codes of values that do not fit together.
        deployment: inputs for the planner as far as known.
    """

    values: dict[str, float | str] = field(default_factory=dict)
    candidates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()
    deployment: Deployment = field(default_factory=Deployment)


def solve(
    log: BootLog,
    model: ModelPreset,
    tp: int,
    state_dtype: str = "float32",
    mla_dtype: str = "",
) -> Solved:
    """Everything that a log determines of a start of ``model``.

    Args:
        log: recognised lines; a parallel degree that they name takes the place of ``tp``.
        model: the model that was started.
        tp: tensor-parallel degree.
        state_dtype, mla_dtype: formats; an empty ``mla_dtype`` is the model's own.

    Raises:
        CapacityError: the degree does not divide the heads.
    """
    require_type("log", log, BootLog, CapacityError)
    said = log.get("tp")
    memory = RequestMemory(
        model, tp if said is None else int(said), state_dtype, mla_dtype=mla_dtype
    )
    if log.engine == "vllm":
        found = _VLLM(log, memory).solve()
    elif log.engine == "sglang":
        found = _solve_sglang(log, memory)
    else:
        return Solved(missing={"engine": "no line of a known engine"})
    return found if said is None else replace(found, values={"tp": memory.tp, **found.values})


class _VLLM:
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
        return Solved(
            self.values, self.candidates, self.missing, tuple(self.contradictions), self._plan()
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
        padding = self.log.get("layer_padding")
        fits = [
            layers
            for layers in range(9)
            if padding is None
            or abs(100 * self._pool(0, layers=layers).groups.padding_share - padding) < 0.01
        ]
        if not fits:
            self.contradictions.append("layer_padding")
            fits = [0]
        self.drafter_layers = fits[0]
        self.values["num_groups"] = self._pool(0, layers=fits[0]).groups.num_groups
        if padding is not None:
            self.values["drafter_layers"] = fits[0]

    def _blocks(self) -> None:
        """Blocks of the pool and of a request, from the printed tokens and concurrency."""
        tokens, limit = self.log.get("printed_tokens"), self.log.get("max_model_len")
        times = self.log.get("concurrency")
        for code, value, line in (
            ("printed_tokens", tokens, "GPU KV cache size: N tokens"),
            ("concurrency", times, "Maximum concurrency for N tokens per request: X x"),
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
        for states in range(1, _MAX_STATE_BLOCKS + 1):
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
        return (gib - 0.006) * GIB < (count + 1) * each and count * each <= (gib + 0.006) * GIB

    def _choose(self, found: list[tuple[int, int, int]]) -> None:
        groups = self._pool(0, layers=self.drafter_layers).groups.state_groups
        drafts = self.values.get("drafts")
        plausible = [row for row in found if row[2] % groups == 0]
        if isinstance(drafts, int | float):
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

    def _plan(self) -> Deployment:
        gib = self.log.get("cache_gib")
        limit, drafts = self.log.get("max_model_len"), self.values.get("drafts", 0)
        mode = self.log.word("cache_mode")
        return Deployment(
            model=self.memory.model.code,
            tp=self.memory.tp,
            context=int(limit) if limit else 131_072,
            drafts=int(drafts),
            rollback="snapshots" if mode == "none" else "snapshots-align",
            budget_gib=gib if gib else Deployment.budget_gib,
            state_dtype=self.memory.state_dtype,
            mla_dtype=self.memory.mla_dtype,
            drafter_layers=self.drafter_layers if self.log.get("layer_padding") else 0,
            pool_rule="blocks",
            preset=self.memory.model if self.memory.model.code == "custom" else None,
        )


def _solve_sglang(log: BootLog, memory: RequestMemory) -> Solved:
    """Rows, slots per request, ratio and bytes per token; the state pool has one spare row."""
    values: dict[str, float | str] = {}
    candidates: dict[str, tuple[float, ...]] = {}
    missing: dict[str, str] = {}
    contradictions = list(log.conflicts)
    slots, ssm, conv, kv = (log.get(c) for c in ("slots", "ssm_gib", "conv_gib", "kv_gib"))
    tokens, running = log.get("pool_tokens") or log.get("max_total_tokens"), log.get("max_running")
    if slots is None:
        missing["slots"] = "Mamba Cache is allocated. max_mamba_cache_size: N"
    else:
        values["rows"] = int(slots) + 1
        for code, gib, each in (
            ("ssm_gib", ssm, memory.recurrent_bytes_per_request),
            ("conv_gib", conv, memory.conv_bytes_per_request),
        ):
            if gib is None:
                missing[code] = "conv_state size, ssm_state size"
            elif abs((slots + 1) * each / GIB - gib) >= 0.01:
                contradictions.append(code)
        draft_gib = log.get("draft_state_gib")
        if draft_gib is not None:
            width = draft_gib * GIB / (slots + 1) / memory.recurrent_bytes_per_request
            values["draft_states_per_slot"] = round(width, 2)
    if slots is not None and running is not None:
        fits = [s for s in _SGLANG_SLOTS if int(slots) // s == int(running)]
        if len(fits) == 1:
            values["slots_per_request"] = fits[0]
        elif fits:
            candidates["slots_per_request"] = tuple(float(s) for s in fits)
        else:
            missing["slots_per_request"] = "requests are capped by something else than slots"
    elif running is None:
        missing["slots_per_request"] = "max_running_requests=N"
    if kv is not None and tokens:
        values["bytes_per_token"] = round(kv * GIB / tokens)
        if abs(memory.kv_bytes(int(tokens)) / GIB - kv) >= 0.01:
            contradictions.append("kv_gib")
    else:
        missing["bytes_per_token"] = "KV Cache is allocated. #tokens: N, KV size: X GB"
    budget = None
    if ssm is not None and kv:
        state = ssm + (conv or 0.0)
        budget = round(state + kv, 2)
        values |= {"state_pool_ratio": round(state / kv, 3), "budget_gib": budget}
    deployment = Deployment(
        model=memory.model.code,
        tp=memory.tp,
        drafts=int(log.get("drafts") or 0),
        rollback="snapshots-state-only",
        budget_gib=budget or Deployment.budget_gib,
        state_dtype=memory.state_dtype,
        mla_dtype=memory.mla_dtype,
        pool_rule="split",
        state_pool_ratio=float(values.get("state_pool_ratio", 0.9)),
        slots_per_request=int(values.get("slots_per_request", 5)),
        preset=memory.model if memory.model.code == "custom" else None,
    )
    return Solved(values, candidates, missing, tuple(contradictions), deployment)
