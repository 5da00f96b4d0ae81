"""Columns of requests: what an array must be, and how long and how many they may get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3core.errors import K3Error, require, shown

MAX_REQUESTS = 100_000_000
MAX_TOKENS = 2**31 - 1
"""Of one prompt or answer."""
MAX_ID = 2**63 - 1
"""Of a block."""


def require_column(name: str, values: object, kinds: str) -> NDArray[Any]:
    """``values``, a one-dimensional array of one of the ``kinds`` of dtypes (``iu``, ``f``).

    Raises:
        K3Error: it is none.
    """
    allowed = " or ".join({"i": "int", "u": "uint", "f": "float"}[kind] for kind in kinds)
    if not isinstance(values, np.ndarray):
        raise K3Error(f"{name}={shown(values)} must be an array of {allowed}")
    require(
        values.ndim == 1 and (values.dtype.kind in kinds or not values.size),
        f"{name} has {values.ndim} dimensions of {values.dtype}; allowed: one, of {allowed}",
    )
    return values


def require_offsets(offsets: object, block_ids: NDArray[Any]) -> NDArray[Any]:
    """``offsets``, the ends of paths that are ``block_ids`` cut into pieces.

    Raises:
        K3Error: they do not run from 0 to the number of ids.
    """
    column = require_column("block_offsets", offsets, "iu")
    require(
        len(column) > 0
        and column[0] == 0
        and column[-1] == len(block_ids)
        and bool((column[1:] >= column[:-1]).all()),
        "block_offsets must run from 0 to the number of block ids, one more than requests",
    )
    return column


def offsets_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """(N+1,) running sums of N sizes, from 0.

    Raises:
        K3Error: a size is no integer >= 0.
    """
    try:
        column = np.array(sizes)
        good = column.ndim == 1 and (
            not column.size or (column.dtype.kind in "iu" and column.min() >= 0)
        )
    except (ValueError, TypeError):
        good = False
    require(bool(good), f"sizes={shown(sizes)} must be integers >= 0")
    return np.concatenate(([0], np.cumsum(column))).astype(np.int64)
