"""Sizes of the number formats that a serving layer stores, by name."""

from __future__ import annotations

from k3core.errors import K3Error, shown

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
}


def dtype_bytes(name: str) -> int:
    """Bytes of one element.

    Raises:
        K3Error: ``name`` is not one of ``DTYPE_BYTES``.
    """
    if not isinstance(name, str) or name not in DTYPE_BYTES:
        raise K3Error(f"dtype={shown(name)} is unknown; allowed: {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name]
