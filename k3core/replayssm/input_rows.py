"""Row storage for the inputs of the recurrence, shared by the input rings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from k3core.decode import DraftProjections
from k3core.errors import require


class InputRows:
    """Preallocated rows for recurrence inputs; the first write fixes shapes and dtypes.

    Args:
        num_rows: rows, >= 1.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._buffers: dict[str, Tensor] = {}

    @property
    def is_allocated(self) -> bool:
        return bool(self._buffers)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, used or not."""
        return sum(x.numel() * x.element_size() for x in self._buffers.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of the inputs of one token; 0 before the first write."""
        return self.nbytes // self.num_rows

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise K3Error unless rows of these tensors, (n, B, H, ...), fit the earlier ones."""
        if not self.is_allocated:
            return
        require(
            set(self._buffers) == set(tensors),
            f"inputs {sorted(tensors)} do not match the ring's {sorted(self._buffers)}; "
            "allowed: a convolution input on every push or on none",
        )
        for name, buffer in self._buffers.items():
            given, wanted = tuple(tensors[name].shape[1:]), tuple(buffer.shape[1:])
            dtype = tensors[name].dtype
            require(
                given == wanted,
                f"{name} has shape {given}; allowed: {wanted}, as pushed before",
            )
            require(
                dtype == buffer.dtype,
                f"{name} has dtype {dtype}; allowed: {buffer.dtype}, as pushed before",
            )

    def write(self, rows: Iterable[int], projections: DraftProjections) -> None:
        """Copy draft i of `projections` into the i-th of `rows`."""
        tensors = projections.tensors()
        self.check(tensors)
        if not self.is_allocated:
            self._buffers = {
                name: x.new_empty((self.num_rows, *x.shape[1:])) for name, x in tensors.items()
            }
        index = torch.tensor(list(rows), dtype=torch.long)
        for name, x in tensors.items():
            self._buffers[name][index] = x.detach()

    def read(self, rows: Iterable[int]) -> DraftProjections:
        """The inputs in `rows`, in that order, as a copy."""
        require(self.is_allocated, "no input has been pushed; allowed: after the first push")
        index = torch.tensor(list(rows), dtype=torch.long)
        return DraftProjections(**{name: x[index] for name, x in self._buffers.items()})

    def clone(self, num_rows: int, kept: Iterable[int]) -> InputRows:
        """A deep copy with `num_rows` rows; row i holds what the i-th of `kept` holds here."""
        rows = InputRows(num_rows)
        index = torch.tensor(list(kept), dtype=torch.long)
        for name, x in self._buffers.items():
            buffer = x.new_empty((num_rows, *x.shape[1:]))
            buffer[: len(index)] = x[index]
            rows._buffers[name] = buffer
        return rows
