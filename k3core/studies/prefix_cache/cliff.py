"""The working-set cliff: conversations that take turns on a pool that is too small for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from k3core.errors import require_count
from k3core.prefix_cache.granularity import HitGranularity
from k3core.prefix_cache.retention import Retention
from k3core.studies.prefix_cache.traffic import NUM_GROUPS, Served, Talk, make_manager, serve_all

INTERVALS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # blocks between two checkpoints
ALIVE = (1, 2, 3, 4, 6, 8, 12)
LOST_BELOW = 0.5  # of the best rate of a line: it has fallen off the cliff


@dataclass(frozen=True)
class CliffStudy:
    """Tokens reused after the first turn.

    Attributes:
        tables: ``interval`` (pool x interval in tokens: share, checkpoint pages), ``alive`` (pool x
            conversations: share).
        block_tokens: physical block.
        pools: pages of each line, smallest first.
        working_set: pages of all conversations at the chosen interval, MLA rows and checkpoints.
        best: highest share of the smallest pool, and ``best_interval`` where it is.
        dense_share, sparse_share: of the smallest pool at both ends of the interval.
        last_alive: most conversations that the middle pool holds above half of its best rate.
    """

    tables: dict[str, pd.DataFrame]
    block_tokens: int
    pools: tuple[int, ...]
    working_set: int
    best: float
    best_interval: int
    dense_share: float
    sparse_share: float
    last_alive: int


def cliff(
    model: str = "kimi-k3",
    tp: int = 8,
    mla_dtype: str = "float8",
    pages: int = 180,
    conversations: int = 2,
    interval_blocks: int = 8,
    opening_len: int = 30_000,
    history: str = "resent",
    keep_ends: bool = False,
    seed: int = 0,
) -> CliffStudy:
    """Conversations of four turns take turns on pools of half, once and twice ``pages``.

    Args:
        pages: pages of the middle pool; one holds a block of MLA rows or a KDA group's state.
        conversations: alive at once, in the picture against the interval.
        interval_blocks: distance of checkpoints, in the picture against conversations.
        opening_len: tokens of a conversation's first message.
        history: one of ``HISTORIES``.
        keep_ends: also keep the state at each prompt's last boundary and at each turn's end.

    Raises:
        K3Error: a size is out of range.
    """
    require_count("interval_blocks", interval_blocks, 1)
    require_count("pages", pages, 2)
    granularity = HitGranularity.of_model(model, tp, mla_dtype=mla_dtype)
    block = granularity.physical_block_tokens
    pools = (pages // 2, pages, 2 * pages)
    talk = Talk(conversations, opening_len=opening_len, history=history, seed=seed)

    requests = {
        alive: list(replace(talk, num_conversations=alive).arrivals(block))
        for alive in {*ALIVE, conversations}
    }

    def run(num_pages: int, alive: int, blocks: int) -> Served:
        rule = Retention("interval", blocks * block) if keep_ends else Retention("chunk_end")
        manager = make_manager(num_pages, granularity, rule)
        every = 0 if keep_ends else blocks * block
        return serve_all(manager, requests[alive], track_every=every)

    by_interval = [
        (pool, blocks * block, served.later_rate, served.peak_states, served.num_refused)
        for pool in pools
        for blocks in INTERVALS
        for served in [run(pool, conversations, blocks)]
    ]
    by_alive = [
        (pool, alive, served.later_rate, served.num_refused)
        for pool in pools
        for alive in ALIVE
        for served in [run(pool, alive, interval_blocks)]
    ]
    ample = run(100 * pages, conversations, interval_blocks)
    interval = pd.DataFrame(
        by_interval, columns=["pages", "interval", "share", "states", "refused"]
    )
    alive = pd.DataFrame(by_alive, columns=["pages", "alive", "share", "refused"])
    small = interval[interval["pages"] == pools[0]].reset_index(drop=True)
    middle = alive[alive["pages"] == pages]
    held = middle[middle["share"] >= LOST_BELOW * max(middle["share"].max(), 1e-9)]
    return CliffStudy(
        tables={"interval": interval, "alive": alive},
        block_tokens=block,
        pools=pools,
        working_set=ample.peak_states + ample.peak_rows + NUM_GROUPS,
        best=float(small["share"].max()),
        best_interval=int(small["interval"].iloc[small["share"].to_numpy().argmax()]),
        dense_share=float(small["share"].iloc[0]),
        sparse_share=float(small["share"].iloc[-1]),
        last_alive=int(held["alive"].max()) if len(held) else 0,
    )
