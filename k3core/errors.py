"""The errors that the library raises; all are ``ValueError``, so one ``except`` catches bad input.

Every message names the argument, its value and what is allowed. An error is raised before any
state changes.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


class K3Error(ValueError):
    """Base of all errors raised by k3core."""


class PageError(K3Error):
    """A page id is foreign, free, shared, out of range or of the wrong kind."""


class PoolExhausted(K3Error):
    """A page pool has fewer free pages than an allocation needs; nothing was allocated."""


class CacheError(K3Error):
    """A prefix cache was asked for something its rules forbid."""


class BudgetError(K3Error):
    """An admission budget or weight is impossible, or a ticket is released twice."""


class CapacityError(K3Error):
    """A model, parallel degree or dtype cannot be served as described."""


class TraceError(K3Error):
    """A request trace has a bad line.

    Attributes:
        line: 1-based line number in the (decompressed) file, or None when the whole file is bad.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


def require(condition: bool, message: str, error: type[K3Error] = K3Error) -> None:
    """Raise ``error(message)`` unless ``condition`` holds."""
    if not condition:
        raise error(message)


def require_count(
    name: str,
    value: object,
    least: int = 0,
    most: int | None = None,
    error: type[K3Error] = K3Error,
) -> int:
    """``value`` as an int from ``least`` to ``most``; bools and fractions are no counts.

    Raises:
        K3Error: ``value`` is not such an integer; ``error``, when that is given.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        upper = "" if most is None else f" and <= {most}"
        raise error(f"{name}={shown(value)} must be an integer >= {least}{upper}")
    return number


def require_counts(
    name: str, values: object, least: int = 0, most: int | None = None
) -> tuple[int, ...]:
    """``values`` as a tuple of counts, see ``require_count``; text and mappings are none.

    Raises:
        K3Error: ``values`` is no collection, or an entry is no such integer.
    """
    try:
        if isinstance(values, (str, bytes, dict)):
            raise TypeError
        entries: tuple[object, ...] = tuple(values)  # type: ignore[arg-type]
    except TypeError:
        raise K3Error(f"{name}={shown(values)} must be a sequence of integers") from None
    return tuple(require_count(f"each of {name}", value, least, most) for value in entries)


def require_range(what: str, start: object, stop: object, end: int) -> tuple[int, int]:
    """``start`` and ``stop`` of a range of ``what`` inside of ``0..end``.

    Raises:
        K3Error: one of them is no integer, or the range is outside.
    """
    try:
        first, last = require_count("start", start), require_count("stop", stop)
        require(first <= last <= end, "")
    except K3Error:
        text = f"{what} {shown(start)}..{shown(stop)} are outside of 0..{end} (start..stop)"
        raise K3Error(text) from None
    return first, last


def require_type(name: str, value: object, kind: type[_T], error: type[K3Error] = K3Error) -> _T:
    """``value``, an instance of ``kind``.

    Raises:
        K3Error: it is none; the error names both.
    """
    if not isinstance(value, kind):
        raise error(f"{name}={shown(value)} must be a {kind.__name__}")
    return value


def require_choice(
    name: str, value: object, allowed: Iterable[str], error: type[K3Error] = K3Error
) -> str:
    """``value``, one of the ``allowed`` words.

    Raises:
        K3Error: it is none; the error names all of them.
    """
    words = tuple(allowed)
    if not isinstance(value, str) or value not in words:
        raise error(f"{name}={shown(value)} is unknown; allowed: {', '.join(words)}")
    return value


def shown(value: object) -> str:
    """``value`` for a message: its repr, cut where it would fill the page."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def require_number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    infinite: bool = False,
    error: type[K3Error] = K3Error,
) -> float:
    """``value`` as a finite float within the bounds; bools, strings and None are no numbers.

    Args:
        name: the argument, for the message.
        least, above, most: smallest value, bound that it must exceed, largest value.
        infinite: infinity is a value too (no end).

    Raises:
        K3Error: ``value`` is not such a number; ``error``, when that is given.
    """
    bounds = [
        f" {sign} {bound:g}"
        for sign, bound in ((">=", least), (">", above), ("<=", most))
        if bound is not None
    ]
    kind = "a number, perhaps inf," if infinite else "a finite number"
    message = f"{name}={shown(value)} must be {kind}{' and'.join(bounds)}"
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        with suppress(OverflowError):  # an integer too large for a float
            number = float(value)
    require(
        (math.isfinite(number) or (infinite and number == math.inf))
        and (least is None or number >= least)
        and (above is None or number > above)
        and (most is None or number <= most),
        message,
        error,
    )
    return number
