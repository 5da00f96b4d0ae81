"""Numbers that others have published, computed again by the planner: the whole table.

`k3core.capacity.records` says what a record is; rows stand in `published_rows` (states, rollback,
blocks) and `published_pools` (pools, slots, hits, context parallelism).
"""

from __future__ import annotations

from k3core.capacity.published_pools import HITS, PARALLEL, POOLS, SLOTS
from k3core.capacity.published_rows import BLOCKS, ROLLBACK, STATES
from k3core.capacity.records import Agreement, Published

__all__ = ["RECORDS", "SUBJECTS", "Agreement", "Published", "subject"]

SUBJECTS: dict[str, tuple[Published, ...]] = {
    "states": STATES,
    "rollback": ROLLBACK,
    "blocks": BLOCKS,
    "pools": POOLS,
    "slots": SLOTS,
    "hits": HITS,
    "parallel": PARALLEL,
}


def _order(record: Published) -> tuple[int, str]:
    digits = record.code.rstrip("abcdef")
    return int(digits), record.code


RECORDS: tuple[Published, ...] = tuple(
    sorted((record for rows in SUBJECTS.values() for record in rows), key=_order)
)


def subject(record: Published) -> str:
    """Code of the subject that a record belongs to."""
    return next(code for code, rows in SUBJECTS.items() if record in rows)
