"""Rings for speculative decoding: one keeps results, the others keep causes.

* `ReplaySSM` keeps snapshots of whole states, oldest out first.
* `RawInputRing` keeps the raw inputs of draft tokens as they arrive; a commit replays the accepted
  ones into the state (SGLang ReplaySSM, fold at every commit).
* `FlushRing` keeps accepted inputs too and folds them into the state only when the window is
  nearly full (FlashInfer #4864, deferred flush).

All replay goes through `k3core.decode.verify_and_replay`, so results are bit-equal to the plain
recurrence. Whatever a ring takes in it copies; whatever it hands out shares no memory with it.
"""

from __future__ import annotations

from typing import Generic

from torch import Tensor

from k3core import decode
from k3core.checks import require_count
from k3core.decode import DraftProjections
from k3core.errors import K3Error, require
from k3core.flush_ring import FlushRing, VerifyStep
from k3core.input_rows import InputRows
from k3core.kda import KDAState, StateT, copy_state

__all__ = ["FlushRing", "RawInputRing", "ReplaySSM", "VerifyStep"]


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
            K3Error: `other` holds more snapshots than this ring can.
        """
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


class RawInputRing:
    """A ring of draft inputs as they stream in; a commit replays the accepted ones.

    The same data as a batch-built `DraftProjections`; only the time of writing differs. A full ring
    overwrites its oldest input, and then `window` no longer begins where the last commit ended:
    `num_overwritten` counts such losses. Choose a capacity of at least the verify width.

    Args:
        capacity: inputs held at most, >= 1.

    Raises:
        K3Error: ``capacity`` < 1.
    """

    def __init__(self, capacity: int) -> None:
        require_count("capacity", capacity, least=1)
        self._capacity = capacity
        self._rows = InputRows(capacity)
        self._oldest = 0
        self._count = 0
        self._num_overwritten = 0

    def push(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        conv_input: Tensor | None = None,
    ) -> int:
        """Store a copy of the inputs of one token, over the oldest when the ring is full.

        Args:
            q, k, g: (B, H, K).
            v: (B, H, V).
            beta: (B, H).
            conv_input: (B, C) raw input of the short convolution; on every push or on none.

        Returns:
            The row that was written.

        Raises:
            K3Error: a shape or dtype is wrong, or differs from earlier pushes.
        """
        named = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "conv_input": conv_input}
        for name, x in named.items():
            require(
                isinstance(x, Tensor) or (x is None and name == "conv_input"),
                f"{name}={type(x).__name__} must be a tensor",
            )
        conv = None if conv_input is None else conv_input.unsqueeze(0)
        q, k, v, g, beta = (x.unsqueeze(0) for x in (q, k, v, g, beta))
        one = DraftProjections(q, k, v, g, beta, conv)
        row = (self._oldest + self._count) % self._capacity
        self._rows.write([row], one)
        if self.is_full:
            self._oldest = (self._oldest + 1) % self._capacity
            self._num_overwritten += 1
        else:
            self._count += 1
        return row

    def window(self) -> DraftProjections:
        """The inputs that are held, oldest first, as a copy.

        Raises:
            K3Error: nothing was ever pushed, so that no shape is known.
        """
        return self._rows.read(self.rows)

    def commit(self, state: StateT, num_accepted: int) -> StateT:
        """Replay the oldest `num_accepted` inputs into a copy of `state`, then empty the ring.

        Accepted inputs are in the new state; the others were rejected and describe tokens that
        never happened. `state` itself stays as it is.

        Args:
            state: the state right before the oldest input of `window`.
            num_accepted: accepted inputs, 0 to ``len(self)``.

        Returns:
            The new state, of the kind that was given.

        Raises:
            K3Error: a shape or `num_accepted` is wrong; the ring is then unchanged.
        """
        require_count("num_accepted", num_accepted, most=len(self))
        new_state: StateT
        if self._rows.is_allocated:
            new_state, _ = decode.verify_and_replay(state, self.window(), num_accepted)
        else:
            new_state = copy_state(state)
        self.clear()
        return new_state

    def clear(self) -> None:
        """Forget all inputs."""
        self._oldest = self._count = self._num_overwritten = 0

    def copy_from(self, other: RawInputRing) -> None:
        """Become a deep copy of `other`; afterwards the two are independent.

        Raises:
            K3Error: `other` holds more inputs than this ring can.
        """
        require(
            len(other) <= self._capacity,
            f"other holds {len(other)} inputs; allowed: at most capacity={self._capacity}",
        )
        self._rows = other._rows.clone(self._capacity, other.rows)
        self._oldest, self._count = 0, len(other)
        self._num_overwritten = other._num_overwritten

    def __len__(self) -> int:
        return self._count

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def is_full(self) -> bool:
        return self._count == self._capacity

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows in use, oldest input first."""
        return tuple((self._oldest + i) % self._capacity for i in range(self._count))

    @property
    def num_overwritten(self) -> int:
        """Inputs lost to overwriting since the last commit."""
        return self._num_overwritten

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs that are held (`window().nbytes`)."""
        return self._count * self._rows.row_bytes

    @property
    def buffer_nbytes(self) -> int:
        """Bytes of the whole buffer, used or not."""
        return self._rows.nbytes
