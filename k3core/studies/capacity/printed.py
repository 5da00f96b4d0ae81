"""Study of what an engine prints about a pool: the same memory under several sequence limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from k3core.capacity.printed import PrintedPool

LIMITS = tuple(round(2**12 * 2 ** (i / 8)) for i in range(8 * 8 + 1))


@dataclass(frozen=True)
class PrintedStudy:
    """Printed numbers of one pool.

    Tables:
        numbers: every printed number and count, as one row.
        lengths: printed tokens against the longest sequence, by the rules of 2025 and 2026; empty
            where the block is not given.
        point: the pool as it stands.
    """

    tables: dict[str, pd.DataFrame]
    pool: PrintedPool


def printed(
    num_blocks: int = 1584,
    limit: int = 65_536,
    block_tokens: int = 1536,
    fixed_blocks: int = 12,
    groups: int = 4,
    running: int = 1,
) -> PrintedStudy:
    """What a log would print for these counts; the defaults are a public recipe of Kimi K3.

    Raises:
        CapacityError: a count is impossible.
    """
    pool = PrintedPool(num_blocks, limit, block_tokens, fixed_blocks, groups, running)
    rows: list[tuple[str, int, int]] = []
    if block_tokens:
        for length in sorted({*LIMITS, limit}):
            other = replace(pool, limit=length)
            rows += [
                ("printed_2026", length, other.tokens),
                ("printed_2025", length, other.tokens_2025),
            ]
    numbers = {
        "num_blocks": pool.num_blocks,
        "blocks_per_request": pool.blocks_per_request,
        "concurrency": round(pool.concurrency, 4),
        "printed_2026": pool.tokens,
        "printed_2025": pool.tokens_2025,
        "reusable_tokens": pool.reusable_tokens,
    }
    return PrintedStudy(
        tables={
            "numbers": pd.DataFrame([numbers]),
            "lengths": pd.DataFrame(rows, columns=["rule", "limit", "tokens"]),
            "point": pd.DataFrame({"limit": [limit], "tokens": [pool.tokens]}),
        },
        pool=pool,
    )
