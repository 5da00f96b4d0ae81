"""Numbers that others have published, computed again by the planner: the whole table.

`k3core.capacity.records` says what a record is, `openings` what it is computed from; rows stand in
`published_states`, `published_blocks`, `published_pools` and `published_hits`, the deployments that
several of them share in `published_deployments`.
"""

from __future__ import annotations

from k3core.capacity.published_blocks import BLOCKS
from k3core.capacity.published_hits import HITS, REUSE
from k3core.capacity.published_pools import POOLS, SLOTS
from k3core.capacity.published_states import PARALLEL, ROLLBACK, STATES
from k3core.capacity.records import Agreement, Published

__all__ = ["BY_CODE", "RECORDS", "SUBJECTS", "Agreement", "Published", "subject"]

SUBJECTS: dict[str, tuple[Published, ...]] = {
    "states": STATES,
    "rollback": ROLLBACK,
    "blocks": BLOCKS,
    "pools": POOLS,
    "slots": SLOTS,
    "hits": (*REUSE, *HITS),
    "parallel": PARALLEL,
}


def _order(record: Published) -> tuple[int, str]:
    digits = record.code.rstrip("abcdef")
    return int(digits), record.code


RECORDS: tuple[Published, ...] = tuple(
    sorted((record for rows in SUBJECTS.values() for record in rows), key=_order)
)


BY_CODE: dict[str, Published] = {record.code: record for record in RECORDS}


def subject(record: Published) -> str:
    """Code of the subject that a record belongs to."""
    return next(code for code, rows in SUBJECTS.items() if record in rows)
