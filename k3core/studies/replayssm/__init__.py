"""Studies of the rings: snapshots, raw inputs, deferred flush."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from k3core.studies import single_thread  # noqa: F401
from k3core.studies.replayssm.flush import (
    DRAFT_CHANCE,
    PATTERNS,
    FlushStudy,
    accepted_counts,
    flush,
)
from k3core.studies.replayssm.raw_inputs import RawInputStudy, raw_inputs
from k3core.studies.replayssm.snapshots import (
    OPERATION_LISTS,
    CursorOnlyRing,
    SnapshotStudy,
    operations,
    snapshots,
)

__all__ = [
    "DRAFT_CHANCE",
    "OPERATION_LISTS",
    "PATTERNS",
    "CursorOnlyRing",
    "FlushStudy",
    "RawInputStudy",
    "RingStudy",
    "SnapshotStudy",
    "accepted_counts",
    "flush",
    "operations",
    "raw_inputs",
    "rings",
    "snapshots",
]


@dataclass(frozen=True)
class RingStudy:
    """The tables of the three ring studies side by side."""

    tables: dict[str, pd.DataFrame]
    snapshots: SnapshotStudy
    raw_inputs: RawInputStudy
    flush: FlushStudy


def rings(
    capacity: int = 4,
    num_pushes: int = 11,
    ops: str = "refill",
    draft_len: int = 7,
    window_len: int = 16,
    pattern: str = "chance",
    accepted: int = 3,
    model: str = "kimi-k3",
    tp: int = 8,
    heads: int = 2,
    dk: int = 16,
    dv: int = 16,
    input_dtype: str = "bfloat16",
    state_dtype: str = "float32",
    seed: int = 0,
) -> RingStudy:
    """All three studies; the deferred flush makes as many steps as the ring has operations."""
    first = snapshots(capacity, num_pushes, ops, heads, dk, dv, state_dtype, seed)
    second = raw_inputs(capacity, num_pushes, heads, dk, dv, input_dtype, state_dtype, seed)
    third = flush(
        draft_len=draft_len,
        window_len=window_len,
        pattern=pattern,
        accepted=accepted,
        num_steps=first.num_ops,
        model=model,
        tp=tp,
        heads=heads,
        dk=dk,
        dv=dv,
        input_dtype=input_dtype,
        state_dtype=state_dtype,
        seed=seed,
    )
    return RingStudy({**first.tables, **second.tables, **third.tables}, first, second, third)
