"""Numbers as people read them: bytes in binary units, counts with separators."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(num_bytes: float) -> str:
    """``60_622_848`` -> ``"57.8 MiB"``; below 1 KiB the exact number of bytes."""
    value, unit = float(num_bytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{value:,.0f} B"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{digits}f} {_UNITS[unit]}"


def count_text(value: float) -> str:
    """``4063.33`` -> ``"4,063"``."""
    return f"{value:,.0f}"


def percent_text(share: float, digits: int = 1) -> str:
    """``0.366`` -> ``"36.6 %"``."""
    return f"{share * 100:.{digits}f} %"


def seconds_text(seconds: float) -> str:
    """``0.0123`` -> ``"12.3 ms"``; three significant digits, from microseconds to seconds."""
    magnitude = abs(seconds)
    if magnitude >= 1:
        factor, unit = 1.0, "s"
    else:
        factor, unit = (1e3, "ms") if magnitude >= 1e-3 else (1e6, "µs")
    value = seconds * factor
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.3g} {unit}"


def error_text(max_abs_error: float) -> str:
    """``0.0`` -> ``"0"`` (bit-equal), otherwise two significant digits in scientific form."""
    return "0" if max_abs_error == 0 else f"{max_abs_error:.1e}"


def tex_number(value: float) -> str:
    """``4096`` -> ``"4{,}096"`` for a formula: braces keep the separator tight."""
    return f"{value:,}".replace(",", "{,}")


def tex_power(value: float) -> str:
    """A large number for a formula in scientific form: ``1.234 \\cdot 10^{9}``."""
    mantissa, exponent = f"{value:.3e}".split("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"
