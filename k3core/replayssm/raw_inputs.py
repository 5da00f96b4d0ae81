"""A ring of raw inputs: causes, replayed into the state at the commit."""

from __future__ import annotations

from torch import Tensor

from k3core import decode
from k3core.decode import DraftProjections
from k3core.errors import require, require_count
from k3core.kda import KDAState, StateT, copy_state
from k3core.replayssm.input_rows import InputRows


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
        require(
            isinstance(state, Tensor | KDAState),
            f"state={type(state).__name__} must be a tensor or a KDAState",
        )
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
            K3Error: `other` is no such ring, or holds more inputs than this one can.
        """
        require(
            isinstance(other, RawInputRing),
            f"other={type(other).__name__} must be a RawInputRing",
        )
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
