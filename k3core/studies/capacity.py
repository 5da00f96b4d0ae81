"""Study of one deployment: the bill of a request, the roofs above it, each scheme, each TP degree.

Everything is arithmetic on published sizes: bytes per rank, no tensors, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.memory import RequestMemory
from k3core.capacity.pools import GIB, SplitPools
from k3core.capacity.presets import ModelPreset, get_preset
from k3core.capacity.profiles import EngineProfile, get_profile
from k3core.capacity.rollback import RollbackCost, rollback_cost
from k3core.capacity.schemes import SCHEMES
from k3core.errors import CapacityError, require
from k3core.units import bytes_text

Pool = SplitPools | BlockPool

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
        roofs: requests in flight against the mean length, one row per roof and length.
        point: the deployment as it stands: mean length, requests admitted, verdict.
        marks: places of direct labels: both roofs and the knee.
        by_tp: state, window, MLA, break-even and block per parallel degree.
        growth: memory against length per parallel degree, with the crossing per degree.
        schemes: every rollback scheme at this draft length, and what it admits.
        pools: used and idle bytes of each pool at the operating point.
        ratios: requests admitted against the pool ratio (empty for one pool of blocks).
        profile: the engine rule behind the roofs.
    """

    tables: dict[str, pd.DataFrame]
    model: ModelPreset
    memory: RequestMemory
    cost: RollbackCost
    pool: Pool
    profile: EngineProfile
    mean_tokens: int
    max_requests: int
    verdict: str
    request_bytes: int
    idle_bytes: int
    best_ratio: float
    best_ratio_requests: int

    @property
    def reuse_starts_at(self) -> int:
        """Shortest prompt that can hit a prefix of one block: block + 1 (last token recomputed)."""
        return self.memory.block_tokens() + 1


def make_pool(
    cost: RollbackCost,
    budget_bytes: int,
    pool_rule: str,
    state_pool_ratio: float,
    slots_per_request: int,
    block_quantum: int,
) -> Pool:
    """The pool of an engine rule: ``split`` (two static pools) or ``blocks`` (one pool)."""
    if get_profile(pool_rule).code == "split":
        return SplitPools(cost, budget_bytes, state_pool_ratio, slots_per_request)
    return BlockPool(cost, budget_bytes, block_quantum)


def plan(
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "float8",
    conv_dtype: str = "bfloat16",
    draft_len: int = 7,
    rollback_scheme: str = "raw-inputs",
    mean_tokens: int = 8192,
    budget_gib: float = 28.5,
    pool_rule: str = "split",
    state_pool_ratio: float = 0.9,
    slots_per_request: int = 5,
    block_quantum: int = 128,
) -> CapacityStudy:
    """What one request costs and how many fit.

    Args:
        model: code of a preset.
        tp: tensor-parallel degree; divides the KDA heads.
        state_dtype, mla_dtype, conv_dtype: formats by name.
        draft_len: drafts per step, 0 for plain decoding.
        rollback_scheme: code of ``k3core.capacity.rollback.SCHEMES``.
        mean_tokens: mean length of a running request, input and output, in tokens.
        budget_gib: cache memory of one rank in GiB.
        pool_rule: ``split`` or ``blocks``.
        state_pool_ratio, slots_per_request: act in ``split``.
        block_quantum: acts in ``blocks``; also sizes the blocks of the table per degree.

    Raises:
        CapacityError: a value is impossible; the message names the remedy.
    """
    require(mean_tokens >= 1, f"mean_tokens={mean_tokens} must be at least 1 token", CapacityError)
    require(budget_gib > 0, f"budget_gib={budget_gib} must be positive", CapacityError)
    preset, profile = get_preset(model), get_profile(pool_rule)
    memory = RequestMemory(preset, tp, state_dtype, conv_dtype, mla_dtype)
    cost = rollback_cost(memory, rollback_scheme, draft_len)
    budget = math.floor(budget_gib * GIB)

    def pool_for(some: RollbackCost, ratio: float = state_pool_ratio) -> Pool:
        return make_pool(some, budget, pool_rule, ratio, slots_per_request, block_quantum)

    pool = pool_for(cost)
    bill = bill_table(pool, mean_tokens)
    ratios = pd.DataFrame(columns=["ratio", "requests"])
    best_ratio, best_requests = 0.0, 0
    if pool_rule == "split":
        admitted = [pool_for(cost, ratio).max_requests(mean_tokens) for ratio in RATIO_GRID]
        ratios = pd.DataFrame({"ratio": RATIO_GRID, "requests": admitted})
        best_requests = max(admitted)
        best_ratio = RATIO_GRID[admitted.index(best_requests)]
    return CapacityStudy(
        tables={
            "bill": bill,
            "roofs": _roof_table(pool),
            "point": _point_table(pool, mean_tokens),
            "marks": _mark_table(pool),
            "by_tp": _tp_table(memory, block_quantum),
            "growth": _growth_table(memory),
            "schemes": _scheme_table(memory, rollback_scheme, draft_len, mean_tokens, pool_for),
            "pools": _pool_table(pool, mean_tokens),
            "ratios": ratios,
            "ratio_point": pd.DataFrame(
                {"ratio": [state_pool_ratio], "requests": [pool.max_requests(mean_tokens)]}
            ),
            "profile": pd.DataFrame(
                {
                    "engine": [profile.engine],
                    "version": [profile.version],
                    "date": [profile.date],
                    "source": [profile.source],
                }
            ),
        },
        model=preset,
        memory=memory,
        cost=cost,
        pool=pool,
        profile=profile,
        mean_tokens=mean_tokens,
        max_requests=pool.max_requests(mean_tokens),
        verdict=pool.verdict(mean_tokens).value,
        request_bytes=int(bill["bytes"].sum()),
        idle_bytes=pool.idle_bytes(mean_tokens),
        best_ratio=best_ratio,
        best_ratio_requests=best_requests,
    )


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


def _roof_table(pool: Pool) -> pd.DataFrame:
    rows = []
    for tokens in TOKEN_GRID:
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
    knee = pool.knee_tokens
    at_left = knee > MAX_TOKENS / 8
    rows = [("state-slots", left if at_left else float(MAX_TOKENS), float(pool.state_roof))]
    rows.append(("mla-cache", left, pool.mla_roof(round(left))))
    if MIN_TOKENS < knee < MAX_TOKENS:
        rows.append(("knee", knee, float(pool.state_roof)))
    if isinstance(pool, BlockPool) and pool.block_tokens > MIN_TOKENS:
        rows.append(("block", float(pool.block_tokens), 0.0))
    return pd.DataFrame(rows, columns=["mark", "mean_tokens", "requests"])


def _tp_table(memory: RequestMemory, block_quantum: int) -> pd.DataFrame:
    rows = []
    for tp in memory.model.valid_tps:
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


def _scheme_table(
    memory: RequestMemory,
    chosen: str,
    draft_len: int,
    mean_tokens: int,
    pool_for: Callable[[RollbackCost], Pool],
) -> pd.DataFrame:
    rows = []
    for code, scheme in SCHEMES.items():
        cost = rollback_cost(memory, code, draft_len)
        rows.append(
            {
                "scheme": code,
                "keeps": "records" if scheme.record else "states",
                "buffer_bytes": cost.buffer_bytes,
                "extra_bytes": cost.extra_bytes,
                "text": bytes_text(cost.extra_bytes),
                "bytes_per_token_layer": cost.record_bytes_per_token_layer
                or memory.state_bytes_per_layer,
                "rows_or_slots": cost.num_rows or cost.num_slots,
                "requests": pool_for(cost).max_requests(mean_tokens),
                "numerics": scheme.numerics.value,
                "engine": scheme.engine,
                "source": scheme.source,
                "chosen": code == chosen,
            }
        )
    return pd.DataFrame(rows)


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
