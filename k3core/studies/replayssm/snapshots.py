"""The ring of snapshots under a list of operations, and the same list on a ring without a count."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from k3core import kda
from k3core.errors import require, require_count
from k3core.replayssm import ReplaySSM
from k3core.studies.replayssm.tokens import toy_tokens, zero_state

OPERATION_LISTS = ("refill", "drain", "never_pop")


def operations(ops: str, capacity: int, num_pushes: int) -> tuple[str, ...]:
    """``push`` and ``pop`` words of a named list, at least `num_pushes` pushes long.

    ``refill`` fills the ring, then repeats pop, push (full again), push (overwrites); ``drain``
    fills and empties it by turns; ``never_pop`` only pushes.

    Raises:
        K3Error: the list is unknown or a size is not positive.
    """
    require(ops in OPERATION_LISTS, f"ops={ops!r}; allowed: {', '.join(OPERATION_LISTS)}")
    require_count("capacity", capacity, least=1)
    require_count("num_pushes", num_pushes, least=1)
    if ops == "never_pop":
        return ("push",) * num_pushes
    fill = ["push"] * capacity
    cycle = ["pop", "push", "push"] if ops == "refill" else ["pop"] * capacity + fill
    words: list[str] = []
    pushes_left = num_pushes
    for word in fill + cycle * num_pushes:
        if word == "push":
            if pushes_left == 0:
                break
            pushes_left -= 1
        words.append(word)
    return tuple(words)


class CursorOnlyRing:
    """The fault this study shows: one cursor for both ends, and no count.

    The slot under the cursor is the oldest only while the ring is full. A pop moves the cursor past
    the hole that it left; the next push then overwrites a snapshot that should have stayed.
    """

    def __init__(self, capacity: int) -> None:
        self._slots: list[Tensor | None] = [None] * capacity
        self._cursor = 0

    def push(self, state: Tensor) -> int:
        slot = self._cursor
        self._slots[slot] = state.clone()
        self._cursor = (slot + 1) % len(self._slots)
        return slot

    def pop(self) -> Tensor | None:
        slot = self._cursor
        snapshot, self._slots[slot] = self._slots[slot], None
        self._cursor = (slot + 1) % len(self._slots)
        return snapshot


@dataclass(frozen=True)
class SnapshotStudy:
    """What each ring holds and gives back.

    Tables:
        ops: one row per operation: word, snapshot pushed or popped, slot, snapshots held after it.
        stays: one row per stay of a snapshot in a slot; `end` is popped, overwritten or held.
        cursor_stays: the same for the ring without a count.
        pops: one row per pop (then of a final drain): the oldest snapshot and what the ring without
            a count gave (NaN for an empty slot).
        copies: what the ring holds after the last push of the list, then the source and its copy
            after one more push into the source.
    """

    tables: dict[str, pd.DataFrame]
    num_ops: int
    num_pops: int
    num_wrong_pops: int
    num_overwritten: int
    snapshot_bytes: int

    def held_at(self, head: int) -> tuple[int, ...]:
        """Snapshots held after `head` operations, oldest first."""
        stays = self.tables["stays"]
        held = stays[(stays["start"] < head) & (stays["stop"] >= head)]["snapshot"]
        return tuple(sorted(int(snapshot) for snapshot in held))


def snapshots(
    capacity: int = 4,
    num_pushes: int = 11,
    ops: str = "refill",
    heads: int = 2,
    dk: int = 16,
    dv: int = 16,
    state_dtype: str = "float32",
    seed: int = 0,
) -> SnapshotStudy:
    """Run a list of operations on both rings; the states are those of a real recurrence.

    A snapshot is recognised by its bits, so the tables say what the rings really gave back.

    Args:
        capacity: slots.
        num_pushes: states pushed; state i is the state after i tokens.
        ops: one of `OPERATION_LISTS`.
        heads, dk, dv, state_dtype, seed: the toy states.
    """
    words = operations(ops, capacity, num_pushes)
    states = _states(num_pushes + 1, heads, dk, dv, state_dtype, seed)
    ring: ReplaySSM[Tensor] = ReplaySSM(capacity)
    faulty = CursorOnlyRing(capacity)
    log, faulty_log, copies = _Log(), _Log(), pd.DataFrame()
    rows, pops, next_state = [], [], 0
    for op, word in enumerate(words):
        if word == "push":
            state = states[next_state]
            slot, snapshot = ring.push(state), next_state
            faulty_log.push(op, faulty.push(state), snapshot)
            log.push(op, slot, snapshot)
            next_state += 1
            if next_state == num_pushes:
                copies = _copy_table(ring, states, num_pushes)
        else:
            slot = ring.slots[0]
            snapshot, given = _pop_both(ring, faulty, states)
            pops.append((op, "run", snapshot, given))
            log.pop(op, snapshot)
            faulty_log.pop(op, given)
        rows.append((op, word, snapshot, slot, len(ring)))
    pops += [
        (op, "drain", *_pop_both(ring, faulty, states))
        for op in range(len(words), len(words) + len(ring))
    ]

    pop_table = pd.DataFrame(pops, columns=["op", "phase", "oldest", "cursor_only"])
    pop_table["cursor_only"] = pop_table["cursor_only"].astype("float64")
    pop_table["verdict"] = [
        "empty_slot" if pd.isna(given) else "right" if given == oldest else "wrong_snapshot"
        for oldest, given in zip(pop_table["oldest"], pop_table["cursor_only"], strict=True)
    ]
    snapshot_bytes = states[0].nbytes
    stays = log.table(len(words), snapshot_bytes)
    return SnapshotStudy(
        tables={
            "ops": pd.DataFrame(rows, columns=["op", "word", "snapshot", "slot", "held"]),
            "stays": stays,
            "cursor_stays": faulty_log.table(len(words), snapshot_bytes),
            "pops": pop_table,
            "copies": copies,
        },
        num_ops=len(words),
        num_pops=len(pop_table),
        num_wrong_pops=int((pop_table["verdict"] != "right").sum()),
        num_overwritten=int((stays["end"] == "overwritten").sum()),
        snapshot_bytes=snapshot_bytes,
    )


class _Log:
    """Stays of snapshots in slots, as they begin and end."""

    def __init__(self) -> None:
        self._rows: list[list[object]] = []
        self._by_slot: dict[int, list[object]] = {}

    def push(self, op: int, slot: int, snapshot: int) -> None:
        if slot in self._by_slot:
            self._end(self._by_slot[slot], op, "overwritten")
        row: list[object] = [slot, snapshot, op, None, "held"]
        self._rows.append(row)
        self._by_slot[slot] = row

    def pop(self, op: int, snapshot: int | None) -> None:
        for slot, row in list(self._by_slot.items()):
            if row[1] == snapshot:
                self._end(row, op, "popped")
                del self._by_slot[slot]

    def _end(self, row: list[object], op: int, end: str) -> None:
        row[3:] = [op, end]

    def table(self, num_ops: int, snapshot_bytes: int) -> pd.DataFrame:
        table = pd.DataFrame(self._rows, columns=["slot", "snapshot", "start", "stop", "end"])
        table["stop"] = table["stop"].fillna(num_ops).astype(int)
        return table.assign(bytes=snapshot_bytes)


def _states(count: int, heads: int, dk: int, dv: int, state_dtype: str, seed: int) -> list[Tensor]:
    """The state after 1, 2, ... tokens."""
    t = toy_tokens(count, heads, dk, dv, "float32", seed)
    state, states = zero_state(heads, dk, dv, state_dtype), []
    for i in range(count):
        _, state = kda.kda_step(t.q[i], t.k[i], t.v[i], t.g[i], t.beta[i], state)
        states.append(state)
    return states


def _identify(snapshot: Tensor | None, states: list[Tensor]) -> int | None:
    """Which state a ring gave back, by its bits."""
    if snapshot is None:
        return None
    return next(i for i, state in enumerate(states) if state.equal(snapshot))


def _pop_both(
    ring: ReplaySSM[Tensor], faulty: CursorOnlyRing, states: list[Tensor]
) -> tuple[int, int | None]:
    right = _identify(ring.pop(), states)
    if right is None:
        raise RuntimeError("a ring gave back no state")
    return right, _identify(faulty.pop(), states)


def _copy_table(ring: ReplaySSM[Tensor], states: list[Tensor], new: int) -> pd.DataFrame:
    """Copy the ring, push into the source only, and read both."""
    copy: ReplaySSM[Tensor] = ReplaySSM(ring.capacity)
    source: ReplaySSM[Tensor] = ReplaySSM(ring.capacity)
    source.copy_from(ring)
    copy.copy_from(source)
    rows = [("source_before", *row) for row in _contents(source, states)]
    source.push(states[new])
    rows += [("source_after", *row) for row in _contents(source, states)]
    rows += [("copy_after", *row) for row in _contents(copy, states)]
    return pd.DataFrame(rows, columns=["ring", "position", "snapshot"])


def _contents(ring: ReplaySSM[Tensor], states: list[Tensor]) -> list[tuple[int, int | None]]:
    """(position, snapshot), oldest first; read from a copy, so the ring keeps its contents."""
    reader: ReplaySSM[Tensor] = ReplaySSM(ring.capacity)
    reader.copy_from(ring)
    return [(i, _identify(reader.pop(), states)) for i in range(len(reader))]
