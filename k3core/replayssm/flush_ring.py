"""A ring of raw inputs with deferred flush: the state is written once in several steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from k3core import decode
from k3core.decode import DraftProjections
from k3core.errors import require_count
from k3core.kda import StateT, copy_state
from k3core.replayssm.input_rows import InputRows


@dataclass(frozen=True, eq=False)
class VerifyStep:
    """One verification by a `FlushRing`.

    Attributes:
        outputs: (B, H, T, V) of the tokens in flight.
        num_folded: accepted inputs folded into the state before these were written, 0 for none.
        history_len: accepted inputs in the ring while verifying.
        in_flight_len: T, inputs under verification.
        rows: rows of the history, then of the inputs in flight.
    """

    outputs: Tensor
    num_folded: int
    history_len: int
    in_flight_len: int
    rows: tuple[int, ...]


class FlushRing(Generic[StateT]):
    """Raw inputs with deferred flush: accepted inputs stay in the ring over several steps.

    The state stands before the history. A step first folds the history into the state if fewer
    than `verify_len` places are left in the window, that is if its length is at least
    ``flush_min = window_len - verify_len + 1``; then history and inputs in flight together never
    exceed `window_len`. Fewer writes of the state are paid with a longer replay per step.
    Source: FlashInfer #4864 (window 16, 32 rows).

    Args:
        state: committed (B, H, K, V) state or `KDAState`; copied.
        window_len: W, most inputs read by one step.
        verify_len: T, most inputs in flight, 1 to W.
        num_rows: rows of the ring, >= W; default 2*W, so that a kernel may fold and write at once.

    Raises:
        K3Error: a size is out of range.
    """

    def __init__(
        self,
        state: StateT,
        window_len: int = 16,
        verify_len: int = 8,
        num_rows: int | None = None,
    ) -> None:
        require_count("window_len", window_len, least=1)
        require_count("verify_len", verify_len, least=1, most=window_len)
        num_rows = 2 * window_len if num_rows is None else num_rows
        require_count("num_rows", num_rows, least=window_len)
        self.window_len = window_len
        self.verify_len = verify_len
        self._state: StateT = copy_state(state)
        self._rows = InputRows(num_rows)
        self._base = 0
        self._history_len = 0
        self._in_flight_len = 0

    def verify(self, projections: DraftProjections) -> VerifyStep:
        """Fold if needed, write the inputs in flight, and read their outputs.

        Inputs in flight from a step that was not accepted are dropped.

        Args:
            projections: 1 to `verify_len` inputs.

        Raises:
            K3Error: the count or a shape is wrong; the ring is then unchanged.
        """
        require_count("len(projections)", len(projections), least=1, most=self.verify_len)
        self._rows.check(projections.tensors())
        decode.check_state("state", self._state, projections)
        num_folded = self._fold() if self._history_len >= self.flush_min else 0
        rows = self._rows_from_base(self._history_len + len(projections))
        self._rows.write(rows[self._history_len :], projections)
        self._in_flight_len = len(projections)
        _, outputs = decode.verify_and_replay(self._state, self._rows.read(rows), len(rows))
        return VerifyStep(
            outputs=outputs[:, :, self._history_len :],
            num_folded=num_folded,
            history_len=self._history_len,
            in_flight_len=self._in_flight_len,
            rows=rows,
        )

    def accept(self, num_accepted: int) -> None:
        """Move the first `num_accepted` inputs in flight to the history and drop the others.

        Raises:
            K3Error: more are accepted than are in flight.
        """
        require_count("num_accepted", num_accepted, most=self._in_flight_len)
        self._history_len += num_accepted
        self._in_flight_len = 0

    def flush(self) -> StateT:
        """Fold the whole history now, drop inputs in flight, and return a copy of the state."""
        self._fold()
        self._in_flight_len = 0
        return copy_state(self._state)

    def history(self) -> DraftProjections:
        """Accepted inputs that are not yet in the state, oldest first, as a copy.

        Raises:
            K3Error: nothing was ever verified.
        """
        return self._rows.read(self._rows_from_base(self._history_len))

    @property
    def state(self) -> StateT:
        """A copy of the state, which stands before the history."""
        return copy_state(self._state)

    @property
    def flush_min(self) -> int:
        """History length from which a step folds: W - T + 1."""
        return self.window_len - self.verify_len + 1

    @property
    def history_len(self) -> int:
        return self._history_len

    @property
    def in_flight_len(self) -> int:
        return self._in_flight_len

    @property
    def base(self) -> int:
        """Row of the oldest input of the history."""
        return self._base

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    @property
    def buffer_nbytes(self) -> int:
        """Bytes of all rows."""
        return self._rows.nbytes

    def _fold(self) -> int:
        num_folded = self._history_len
        if num_folded:
            self._state, _ = decode.verify_and_replay(self._state, self.history(), num_folded)
            self._base = (self._base + num_folded) % self.num_rows
            self._history_len = 0
        return num_folded

    def _rows_from_base(self, length: int) -> tuple[int, ...]:
        return tuple((self._base + i) % self.num_rows for i in range(length))
