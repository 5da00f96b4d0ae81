"""Study of one deployment: the bill of a request, the roofs above it, each scheme, each TP degree.

Everything is arithmetic on published sizes: bytes per rank, no tensors, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.configs import parse_config
from k3core.capacity.memory import RequestMemory
from k3core.capacity.model import ModelPreset
from k3core.capacity.planner import CapacityPlan, Deployment, Pool, Target, inverse
from k3core.capacity.planner import plan as make_plan
from k3core.capacity.pools import SplitPools
from k3core.capacity.profiles import EngineProfile
from k3core.capacity.report import value_text
from k3core.capacity.rollback import RollbackCost
from k3core.capacity.saved_plan import CUSTOM
from k3core.capacity.warnings import PlanWarning, find_warnings
from k3core.errors import CapacityError, require_count
from k3core.studies.capacity.schemes import request_bytes, scheme_table
from k3core.units import bytes_text

MIN_TOKENS, MAX_TOKENS = 512, 2**20
_GRID_STEPS_PER_OCTAVE = 16
TOKEN_GRID = tuple(
    round(MIN_TOKENS * 2 ** (i / _GRID_STEPS_PER_OCTAVE))
    for i in range(_GRID_STEPS_PER_OCTAVE * int(math.log2(MAX_TOKENS // MIN_TOKENS)) + 1)
)
RATIO_GRID = tuple(round(10 ** (i / 20 - 1), 4) for i in range(41))


@dataclass(frozen=True)
class CapacityStudy:
    """One request and the pool it lives in; all bytes are per rank.

    Tables:
        bill: parts of one request's memory at the mean length, stacked from 0.
        roofs: requests in flight against the mean length, one row per roof and length: two roofs
            for two pools, their sum for one pool.
        point: the deployment as it stands: mean length, requests admitted, verdict.
        marks: places of direct labels: the roofs, and the knee or the first whole block.
        by_tp: state, window, MLA, break-even and block per common parallel degree.
        every_tp: the same for every degree that divides the heads.
        growth: memory against length per parallel degree, with the crossing per degree.
        schemes: every rollback scheme at this draft length, what it admits and moves per step;
            state blocks and block length are 0 without blocks.
        pools: used and idle bytes of each pool at the operating point.
        ratios: requests admitted against the pool ratio (empty for one pool of blocks).
        profile: the engine rule behind the roofs.
        limits: every roof at the mean length with its slack.
        numbers: every result and input of the plan, as the command line prints them.

    ``requests_plain`` is how many requests fit when nothing is drafted.
    """

    tables: dict[str, pd.DataFrame]
    planned: CapacityPlan
    warnings: tuple[PlanWarning, ...]
    target: Target
    best_ratio: float
    best_ratio_requests: int
    requests_plain: int

    @property
    def model(self) -> ModelPreset:
        return self.planned.model

    @property
    def memory(self) -> RequestMemory:
        return self.planned.memory

    @property
    def cost(self) -> RollbackCost:
        return self.planned.cost

    @property
    def pool(self) -> Pool:
        return self.planned.pool

    @property
    def profile(self) -> EngineProfile:
        return self.planned.profile

    @property
    def mean_tokens(self) -> int:
        return self.planned.mean_tokens

    @property
    def max_requests(self) -> int:
        return self.planned.max_requests

    @property
    def verdict(self) -> str:
        return self.planned.verdict.value

    @property
    def request_bytes(self) -> int:
        return int(self.tables["bill"]["bytes"].sum())

    @property
    def longest_requests(self) -> int:
        """Requests in flight if all had the longest sequence."""
        return self.pool.max_requests(self.planned.deployment.context)

    @property
    def longest_request_bytes(self) -> int:
        return request_bytes(self.pool, self.planned.deployment.context)

    @property
    def idle_bytes(self) -> int:
        return self.pool.idle_bytes(self.mean_tokens)


def deployment(
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "float8",
    conv_dtype: str = "bfloat16",
    draft_len: int = 7,
    drafter_layers: int = 0,
    drafter_dtype: str = "",
    rollback_scheme: str = "raw-inputs",
    mean_tokens: int = 8192,
    context_len: int = 131_072,
    budget_gib: float = 28.5,
    pool_rule: str = "split",
    state_pool_ratio: float = 0.9,
    slots_per_request: int = 5,
    block_quantum: int = 128,
    state_blocks: int = 0,
    max_running: int = 0,
    config: str = "",
) -> Deployment:
    """The planner's input under the names of the page's controls.

    Args:
        model: code of a model, or ``custom`` for the one in ``config``.
        tp: tensor-parallel degree; divides the heads.
        state_dtype, mla_dtype, conv_dtype: formats by name.
        draft_len: drafts per step, 0 for plain decoding.
        drafter_layers: attention layers of the drafter.
        drafter_dtype: format of its cache, an empty string for that of the model's cache.
        rollback_scheme: code of ``k3core.capacity.schemes.SCHEMES``.
        mean_tokens: mean length of a running request, input and output, in tokens.
        context_len: longest sequence in tokens.
        budget_gib: cache memory of one rank in GiB.
        pool_rule: ``split`` or ``blocks``.
        state_pool_ratio, slots_per_request: act in ``split``.
        block_quantum: acts in ``blocks``; also sizes the blocks of the table per degree.
        state_blocks: blocks per state group in ``blocks``; 0 follows the scheme.
        max_running: the engine's cap on running requests, 0 for none.
        config: text of a ``config.json``; used by the model ``custom`` only.
    """
    require_count("mean_tokens", mean_tokens, 1, None, CapacityError)
    return Deployment(
        model=model,
        tp=tp,
        context=context_len,
        mean_tokens=mean_tokens,
        drafts=draft_len,
        rollback=rollback_scheme,
        budget_gib=budget_gib,
        state_dtype=state_dtype,
        conv_dtype=conv_dtype,
        mla_dtype=mla_dtype,
        drafter_layers=drafter_layers,
        drafter_dtype=drafter_dtype,
        pool_rule=pool_rule,
        quantum=block_quantum,
        state_blocks=state_blocks,
        state_pool_ratio=state_pool_ratio,
        slots_per_request=slots_per_request,
        max_running=max_running,
        preset=parse_config(config).preset if model == CUSTOM else None,
    )


def plan(target_requests: int = 64, **inputs: object) -> CapacityStudy:
    """What one request costs and how many fit; ``inputs`` as in `deployment`.

    Args:
        target_requests: requests in flight for which the inverse is solved.

    Raises:
        CapacityError: a value is impossible; the message names the remedy.
    """
    planned = make_plan(deployment(**inputs))  # type: ignore[arg-type]
    memory, pool, mean = planned.memory, planned.pool, planned.mean_tokens
    ratios = pd.DataFrame(columns=["ratio", "requests"])
    best_ratio, best_requests = 0.0, 0
    if isinstance(pool, SplitPools):
        admitted = [replace(pool, ratio=ratio).max_requests(mean) for ratio in RATIO_GRID]
        ratios = pd.DataFrame({"ratio": RATIO_GRID, "requests": admitted})
        best_ratio = pool.best_ratio(mean)
        best_requests = replace(pool, ratio=best_ratio).max_requests(mean)
    quantum = planned.deployment.quantum
    return CapacityStudy(
        tables={
            "bill": bill_table(pool, mean),
            "roofs": _roof_table(pool, mean),
            "point": _point_table(pool, mean),
            "marks": _mark_table(pool),
            "by_tp": _tp_table(memory, quantum, memory.model.valid_tps),
            "every_tp": _tp_table(memory, quantum, memory.model.all_tps),
            "growth": _growth_table(memory),
            "schemes": scheme_table(planned, lambda cost: replace(pool, cost=cost)),
            "pools": _pool_table(pool, mean),
            "ratios": ratios,
            "ratio_point": pd.DataFrame(
                {
                    "ratio": [planned.deployment.state_pool_ratio],
                    "requests": [pool.max_requests(mean)],
                }
            ),
            "profile": profile_table(planned.profile),
            "numbers": _number_table(planned),
            "limits": pd.DataFrame(
                [(roof.code, roof.requests, roof.slack) for roof in planned.roofs],
                columns=["roof", "requests", "slack"],
            ),
        },
        planned=planned,
        warnings=find_warnings(planned),
        target=inverse(planned, target_requests),
        best_ratio=best_ratio,
        best_ratio_requests=best_requests,
        requests_plain=make_plan(replace(planned.deployment, drafts=0)).max_requests,
    )


def _number_table(planned: CapacityPlan) -> pd.DataFrame:
    """Results, then inputs; values as text, because they are of many kinds."""
    values = planned.as_dict()
    inputs = values.pop("inputs")
    values.pop("engine_rule")
    rows = [("result", name, value_text(value)) for name, value in values.items()]
    rows += [("input", name, value_text(value)) for name, value in inputs.items()]
    return pd.DataFrame(rows, columns=["kind", "name", "value"])


def profile_table(profile: EngineProfile) -> pd.DataFrame:
    """An engine's rule as one row."""
    names = (
        "engine",
        "version",
        "date",
        "block_rule",
        "slots",
        "retention",
        "drafter_drop",
        "source",
    )
    return pd.DataFrame({name: [getattr(profile, name)] for name in names})


def bill_table(pool: Pool, mean_tokens: int) -> pd.DataFrame:
    """Parts of one request's memory on one rank; ``start`` and ``end`` stack them from 0."""
    memory = pool.memory
    parts = {
        "state": memory.model.num_kda_layers * memory.state_bytes_per_layer,
        "conv_window": memory.model.num_kda_layers * memory.conv_bytes_per_layer,
        "reserved_slots": pool.reserved_bytes,
        "rollback": pool.cost.extra_bytes,
        "mla": memory.kv_bytes(mean_tokens),
        "padding": pool.padding_bytes(mean_tokens),
    }
    table = pd.DataFrame({"part": list(parts), "bytes": list(parts.values())})
    table["end"] = table["bytes"].cumsum()
    table["start"] = table["end"] - table["bytes"]
    table["share"] = table["bytes"] / table["bytes"].sum()
    table["text"] = [bytes_text(size) for size in table["bytes"]]
    return table


def _roof_table(pool: Pool, mean_tokens: int) -> pd.DataFrame:
    """The axis ends at 1M tokens, or at the power of two above a longer mean."""
    octaves = math.ceil(math.log2(max(mean_tokens, MAX_TOKENS) / MAX_TOKENS))
    more = (MAX_TOKENS * 2 ** (i / 4) for i in range(1, 4 * octaves + 1))
    rows = []
    for tokens in (*TOKEN_GRID, *map(round, more)):
        if isinstance(pool, BlockPool):
            rows.append((tokens, "one-pool", pool.roof(tokens)))
        else:
            rows.append((tokens, "state-slots", float(pool.state_roof)))
            rows.append((tokens, "mla-cache", pool.mla_roof(tokens)))
        rows.append((tokens, "both", float(pool.max_requests(tokens))))
    return pd.DataFrame(rows, columns=["mean_tokens", "roof", "requests"])


def _point_table(pool: Pool, mean_tokens: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "mean_tokens": [mean_tokens],
            "requests": [pool.max_requests(mean_tokens)],
            "verdict": [f"at-{pool.verdict(mean_tokens).value}"],
        }
    )


def _mark_table(pool: Pool) -> pd.DataFrame:
    """Where the names of the lines stand: inside the picture, on the line."""
    left = MIN_TOKENS * 1.15
    if isinstance(pool, BlockPool):
        rows = [("one-pool", left, pool.roof(round(left)))]
        if pool.block_tokens > MIN_TOKENS:
            rows.append(("block", float(pool.block_tokens), 0.0))
        return pd.DataFrame(rows, columns=["mark", "mean_tokens", "requests"])
    knee = pool.knee_tokens
    at_left = knee > MAX_TOKENS / 8
    rows = [("state-slots", left if at_left else float(MAX_TOKENS), float(pool.state_roof))]
    rows.append(("mla-cache", left, pool.mla_roof(round(left))))
    if MIN_TOKENS < knee < MAX_TOKENS:
        rows.append(("knee", knee, float(pool.state_roof)))
    return pd.DataFrame(rows, columns=["mark", "mean_tokens", "requests"])


def _tp_table(memory: RequestMemory, block_quantum: int, tps: tuple[int, ...]) -> pd.DataFrame:
    rows = []
    for tp in tps:
        one = replace(memory, tp=tp)
        rows.append(
            {
                "tp": tp,
                "heads_per_rank": one.num_heads,
                "state_bytes_per_layer": one.state_bytes_per_layer,
                "conv_bytes_per_layer": one.conv_bytes_per_layer,
                "state_bytes_per_request": one.state_bytes_per_request,
                "mla_bytes_per_token": one.mla_bytes_per_token,
                "break_even_tokens": one.break_even_tokens,
                "block_tokens": one.block_tokens(block_quantum),
                "page_fill": one.page_fill(block_quantum),
                "chosen": tp == memory.tp,
            }
        )
    return pd.DataFrame(rows)


def _growth_table(memory: RequestMemory) -> pd.DataFrame:
    """Lines of memory against length: one flat line per degree, one rising line for all."""
    rows: list[tuple[str, int, float, int, bool]] = []
    for tp in memory.model.valid_tps:
        one = replace(memory, tp=tp)
        chosen = tp == memory.tp
        flat = one.state_bytes_per_request
        rows += [("kda", tp, tokens, flat, chosen) for tokens in (64, MAX_TOKENS)]
        rows.append(("crossing", tp, one.break_even_len, flat, chosen))
    for tokens in (64, *TOKEN_GRID[:: _GRID_STEPS_PER_OCTAVE // 2]):
        rows.append(("mla", memory.tp, tokens, memory.kv_bytes(tokens), True))
    return pd.DataFrame(rows, columns=["memory", "tp", "tokens", "bytes", "chosen"])


def _pool_table(pool: Pool, mean_tokens: int) -> pd.DataFrame:
    """Bytes of each pool by what fills them when no further request is admitted."""
    admitted = pool.max_requests(mean_tokens)
    mla_rows = admitted * pool.memory.kv_bytes(mean_tokens)
    states = admitted * (pool.cost.total_bytes + pool.reserved_bytes)
    if isinstance(pool, SplitPools):
        rows = [
            ("state_pool", "states", states),
            ("state_pool", "idle", pool.state_pool_bytes - states),
            ("mla_pool", "mla_rows", mla_rows),
            ("mla_pool", "idle", pool.mla_pool_bytes - mla_rows),
        ]
    else:
        padding = admitted * pool.padding_bytes(mean_tokens)
        rows = [
            ("one_pool", "states", states),
            ("one_pool", "mla_rows", mla_rows),
            ("one_pool", "padding", padding),
            ("one_pool", "idle", pool.idle_bytes(mean_tokens)),
        ]
    return pd.DataFrame(rows, columns=["pool", "part", "bytes"])
