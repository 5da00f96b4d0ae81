"""Study of the token grid: boundaries of each unit on one axis, and where all of them agree."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from k3core.capacity.grid import TokenGrid, serving_grid
from k3core.capacity.planner import plan
from k3core.errors import CapacityError, require_count
from k3core.studies.capacity.plan import deployment

MAX_TICKS = 256


@dataclass(frozen=True)
class GridStudy:
    """Units of one server.

    Tables:
        ticks: one row per unit and boundary: whether every unit agrees, whether it is the hit.
        units: distance of the boundaries of each unit.
        hits: reused tokens against the length of a repeated prompt.
        marks: the prompt's end and the hit.
    """

    tables: dict[str, pd.DataFrame]
    grid: TokenGrid
    prompt_tokens: int
    repeats: int
    hit_tokens: int
    limit: int


def grid(
    prompt_tokens: int = 10_000,
    hash_tokens: int = 512,
    context_parallel: int = 1,
    retention_tokens: int = 0,
    dropped_blocks: int = 0,
    block_tokens: int = 0,
    repeats: int = 1,
    **inputs: object,
) -> GridStudy:
    """The grid of the deployment of ``inputs`` (as in `deployment`).

    Args:
        prompt_tokens: a prompt that is sent again ``repeats`` times.
        hash_tokens, context_parallel, retention_tokens, dropped_blocks: as in `serving_grid`.
        block_tokens: physical block, 0 for the deployment's own.

    Raises:
        CapacityError: a value is impossible; the message names the remedy.
    """
    planned = plan(deployment(**inputs))  # type: ignore[arg-type]
    require_count("prompt_tokens", prompt_tokens, 1, None, CapacityError)
    require_count("repeats", repeats, 0, None, CapacityError)
    block = block_tokens or planned.blocks.block_tokens
    units = serving_grid(block, hash_tokens, context_parallel, retention_tokens, dropped_blocks)
    hit = units.hit(prompt_tokens)
    limit = max(prompt_tokens, block)
    common = _places(units.effective, limit, hit)
    rows = []
    for unit in units.units:
        own = sorted({*_places(unit.tokens, limit, hit), *common})
        rows += [(unit.code, place, units.agrees(place), place == hit) for place in own]
    rows += [("all", place, True, place == hit) for place in common]
    if dropped_blocks:
        last = units.effective * ((prompt_tokens - 1) // units.effective - dropped_blocks)
        rows += [("drafter-drop", place, True, place == hit) for place in common if place <= last]
    step = max(limit // 200, 1)
    lengths = sorted({*range(step, limit + 1, step), prompt_tokens})
    return GridStudy(
        tables={
            "ticks": pd.DataFrame(rows, columns=["unit", "position", "agrees", "hit"]),
            "units": pd.DataFrame(
                [(u.code, u.tokens) for u in units.units] + [("all", units.effective)],
                columns=["unit", "tokens"],
            ),
            "hits": pd.DataFrame({"tokens": lengths, "hit": [units.hit(n) for n in lengths]}),
            "marks": pd.DataFrame({"mark": ["prompt", "reused"], "position": [prompt_tokens, hit]}),
        },
        grid=units,
        prompt_tokens=prompt_tokens,
        repeats=repeats,
        hit_tokens=hit,
        limit=limit,
    )


def _places(distance: int, limit: int, hit: int) -> list[int]:
    """Multiples of ``distance`` up to ``limit``, thinned to what a picture holds, and the hit."""
    stride = -(-(limit // distance) // MAX_TICKS) or 1
    found = set(range(distance * stride, limit + 1, distance * stride))
    return sorted(found | ({hit} if hit else set()))
