"""What a long prefix costs to compute again, and to keep: derived from published sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.errors import require_count
from k3core.fleet.cost import LONG_PREFIX_LEN, LONG_PREFIX_NEW, PrefillCost
from k3core.prefix_cache import retained_boundaries

COST_MODELS = ("kimi-k3", "kimi-linear-48b", "glm-5.3-flash")
_SWEEP = tuple(2**power for power in range(10, 21))


@dataclass(frozen=True)
class CostStudy:
    """A prompt of a long prefix and a few new tokens, prefilled without and with the cache.

    FLOPs of all ranks together: ``linear * computed + quadratic * (n^2 - reused^2)``, where
    ``linear = 2 * active parameters + KDA scan`` and ``quadratic`` is causal MLA attention. The
    fleet's cost model is the same formula.

    Attributes:
        tables: ``parts`` (case x part: FLOPs), ``sweep`` (prefix length x case: FLOPs), ``kept``
            (bytes per rank that make the hit possible).
        prompt_len: prefix and new tokens.
        hit_tokens: reused on a hit, a block boundary.
        missed_flops, hit_flops: of the two cases.
        active_params: parameters one token uses.
        scan_flops: KDA scan of one token, all layers.
        pair_flops: MLA attention per squared token, all layers.
        kept_bytes: MLA latents of the reused tokens and one set of KDA checkpoints, per rank.
    """

    tables: dict[str, pd.DataFrame]
    prompt_len: int
    hit_tokens: int
    missed_flops: float
    hit_flops: float
    active_params: float
    scan_flops: float
    pair_flops: float
    kept_bytes: int

    @property
    def ratio(self) -> float:
        """Work of a miss over work of a hit."""
        return self.missed_flops / self.hit_flops


def cost(
    model: str = "kimi-k3",
    prefix_len: int = LONG_PREFIX_LEN,
    new_len: int = LONG_PREFIX_NEW,
    block_tokens: int = 512,
    tp: int = 8,
) -> CostStudy:
    """FLOPs of a miss and of a hit.

    Args:
        model: one of ``COST_MODELS`` (GLM's sparse attention is not modelled: an upper bound).
        prefix_len: tokens that an earlier prompt left behind.
        new_len: tokens after them.
        block_tokens: reuse ends at a multiple of this.
        tp: ranks, for the bytes kept per rank.

    Raises:
        K3Error: unknown model, a length below 1, or a degree that does not divide the heads.
    """
    for name, value in (("prefix_len", prefix_len), ("new_len", new_len)):
        require_count(name, value, 1)
    preset = get_preset(model)
    per_unit = PrefillCost.from_preset(preset, peak_flops_per_s=1.0, efficiency=1.0)
    active = float(preset.active_params or 0)
    scan, pair = per_unit.linear_s - 2 * active, per_unit.quadratic_s

    def reused(prefix: int) -> int:
        return max(retained_boundaries(prefix + 1, block_tokens, 0), default=0)

    def parts(prefix: int, cached: int) -> dict[str, float]:
        total = prefix + new_len
        computed = total - cached
        return {
            "parameters": 2 * active * computed,
            "attention": pair * (total * total - cached * cached),
            "scan": scan * computed,
        }

    cases = {"missed": 0, "hit": reused(prefix_len)}
    bars = [
        (case, part, flops)
        for case, cached in cases.items()
        for part, flops in parts(prefix_len, cached).items()
    ]
    sweep = [
        (length, case, sum(parts(length, reused(length) if case == "hit" else 0).values()))
        for length in _SWEEP
        for case in cases
    ]
    memory = RequestMemory(preset, tp=tp)
    kept = {
        "mla": memory.kv_bytes(cases["hit"]),
        "kda": memory.state_bytes_per_request if cases["hit"] else 0,
    }
    return CostStudy(
        tables={
            "parts": _work(bars, ["case", "part", "flops"]),
            "sweep": _work(sweep, ["prefix_len", "case", "flops"]),
            "kept": pd.DataFrame(kept.items(), columns=["kind", "bytes"]),
        },
        prompt_len=prefix_len + new_len,
        hit_tokens=cases["hit"],
        missed_flops=sum(parts(prefix_len, 0).values()),
        hit_flops=sum(parts(prefix_len, cases["hit"]).values()),
        active_params=active,
        scan_flops=scan,
        pair_flops=pair,
        kept_bytes=sum(kept.values()),
    )


def _work(rows: list[tuple[Any, ...]], columns: list[str]) -> pd.DataFrame:
    """Operations, exact and in units of 10^15, which a column of a table can hold."""
    table = pd.DataFrame(rows, columns=columns).astype({"flops": float})
    return table.assign(pflops=table["flops"] / 1e15)
