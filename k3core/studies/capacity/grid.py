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
    rows = []
    for unit in units.units:
        ticks = units.ticks(unit, limit)
        stride = -(-len(ticks) // MAX_TICKS)
        rows += [
            (unit.code, position, units.agrees(position), position == hit)
            for i, position in enumerate(ticks)
            if i % stride == 0 or units.agrees(position)
        ]
    rows += [
        ("all", position, True, position == hit)
        for position in range(units.effective, limit + 1, units.effective)
    ]
    if dropped_blocks:
        top = (prompt_tokens - 1) // units.effective
        rows += [
            ("drafter-drop", units.effective * i, True, units.effective * i == hit)
            for i in range(1, top - dropped_blocks + 1)
        ]
    step = max(limit // 200, 1)
    lengths = range(step, limit + 1, step)
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
