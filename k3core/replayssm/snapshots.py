"""A ring of state snapshots: results, oldest out first."""

from __future__ import annotations

from typing import Generic

from torch import Tensor

from k3core.errors import K3Error, require, require_count
from k3core.kda import KDAState, StateT, copy_state


class ReplaySSM(Generic[StateT]):
    """A ring of state snapshots: a full ring overwrites its oldest, `pop` gives the oldest.

    The position of the oldest snapshot and their number are both kept. A ring with a write cursor
    alone takes the slot under the cursor for the oldest, which is true only while it is full:
    after full, pop, push it would give back a newer snapshot.

    Args:
        capacity: snapshots held at most, >= 1.

    Raises:
        K3Error: ``capacity`` < 1.
    """

    def __init__(self, capacity: int) -> None:
        require_count("capacity", capacity, least=1)
        self._slots: list[StateT | None] = [None] * capacity
        self._oldest = 0
        self._count = 0

    def push(self, state: StateT) -> int:
        """Store a copy of `state`, over the oldest snapshot when the ring is full.

        Args:
            state: (B, H, K, V) tensor or `KDAState`.

        Returns:
            The slot that was written.

        Raises:
            K3Error: `state` is neither.
        """
        require(
            isinstance(state, Tensor | KDAState),
            f"state={type(state).__name__} must be a tensor or a KDAState",
        )
        snapshot = copy_state(state)
        slot = (self._oldest + self._count) % self.capacity
        if self.is_full:
            self._oldest = (self._oldest + 1) % self.capacity
        else:
            self._count += 1
        self._slots[slot] = snapshot
        return slot

    def pop(self) -> StateT:
        """Remove and return the oldest snapshot.

        Raises:
            K3Error: the ring is empty.
        """
        snapshot = self._slots[self._oldest]
        if snapshot is None:
            raise K3Error("pop from an empty ring; allowed: after a push")
        self._slots[self._oldest] = None
        self._oldest = (self._oldest + 1) % self.capacity
        self._count -= 1
        return snapshot

    def copy_from(self, other: ReplaySSM[StateT]) -> None:
        """Become a deep copy of `other`; afterwards the two are independent.

        Raises:
            K3Error: `other` is no such ring, or holds more snapshots than this one can.
        """
        require(
            isinstance(other, ReplaySSM),
            f"other={type(other).__name__} must be a ReplaySSM",
        )
        require(
            len(other) <= self.capacity,
            f"other holds {len(other)} snapshots; allowed: at most capacity={self.capacity}",
        )
        slots: list[StateT | None] = [None] * self.capacity
        for slot, state in enumerate(other._held()):
            slots[slot] = copy_state(state)
        self._oldest, self._count, self._slots = 0, len(other), slots

    def __len__(self) -> int:
        return self._count

    @property
    def capacity(self) -> int:
        return len(self._slots)

    @property
    def is_full(self) -> bool:
        return self._count == self.capacity

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots in use, oldest snapshot first."""
        return tuple((self._oldest + i) % self.capacity for i in range(self._count))

    @property
    def nbytes(self) -> int:
        """Bytes of the snapshots that are held."""
        return sum(
            x.numel() * x.element_size()
            for state in self._held()
            for x in (state if isinstance(state, KDAState) else (state,))
            if x is not None
        )

    def _held(self) -> list[StateT]:
        """Snapshots, oldest first."""
        ordered = (self._slots[slot] for slot in self.slots)
        return [state for state in ordered if state is not None]
