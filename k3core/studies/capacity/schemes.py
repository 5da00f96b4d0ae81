"""Rollback schemes side by side in one deployment, and the bytes of a request in its pool."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.planner import CapacityPlan, Pool
from k3core.capacity.rollback import RollbackCost, rollback_cost
from k3core.capacity.schemes import SCHEMES
from k3core.units import bytes_text


def request_bytes(pool: Pool, num_tokens: int) -> int:
    """What a request of this length takes on one rank, reserved slots and padding included."""
    held = pool.cost.total_bytes + pool.reserved_bytes + pool.memory.kv_bytes(num_tokens)
    return held + pool.padding_bytes(num_tokens)


def scheme_table(planned: CapacityPlan, pool_for: Callable[[RollbackCost], Pool]) -> pd.DataFrame:
    """Every scheme at the plan's drafts: bytes, requests that then fit, traffic, numerics.

    Traffic is per step in which half of the drafts, rounded down, and the bonus are kept.
    """
    memory, drafts = planned.memory, planned.deployment.drafts
    rows = []
    for code, scheme in SCHEMES.items():
        cost = rollback_cost(memory, code, drafts)
        pool = pool_for(cost)
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
                "step_bytes": cost.step_traffic(1 + drafts // 2).total,
                "request_bytes": request_bytes(pool, planned.mean_tokens),
                "state_blocks": pool.state_blocks_per_request if isinstance(pool, BlockPool) else 0,
                "block_tokens": pool.block_tokens if isinstance(pool, BlockPool) else 0,
                "requests": pool.max_requests(planned.mean_tokens),
                "numerics": scheme.numerics.value,
                "commit": scheme.commit.value,
                "rounded": ", ".join(scheme.rounded),
                "engine": scheme.engine,
                "source": scheme.source,
                "chosen": code == planned.deployment.rollback,
            }
        )
    return pd.DataFrame(rows)
