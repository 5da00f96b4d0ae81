"""Checks of sizes and counts given by callers."""

from __future__ import annotations

import operator

from k3core.errors import K3Error, require


def positive_int(name: str, value: object) -> int:
    """``value`` as an int of at least 1.

    Raises:
        K3Error: ``value`` is a bool, not an integer, or below 1.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise K3Error(f"{name}={value!r} must be an integer of at least 1") from None
    require(number >= 1, f"{name}={number} must be an integer of at least 1")
    return number
