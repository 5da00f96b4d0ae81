"""JSON of a reader: refused where it is none, names a field twice, or holds endless numbers."""

from __future__ import annotations

import json
from typing import Any

from k3core.errors import CapacityError, K3Error, require, shown

MAX_CONFIG_CHARS = 2_000_000
_MAX_DIGITS = 100


class ConfigError(CapacityError):
    """A ``config.json`` cannot be read, is of no known family, or contradicts itself."""


class _Digits(str):
    """A whole number too long to be one."""


def _number(digits: str) -> int | _Digits:
    return int(digits) if len(digits) <= _MAX_DIGITS else _Digits(digits)


def load_json(text: str, what: str, error: type[K3Error] = ConfigError) -> Any:
    """The value of a JSON text.

    Args:
        text: the text.
        what: what it should be, for messages: ``the config``.
        error: what to raise.

    Raises:
        K3Error: no JSON, too long, a field named twice, a whole number of more than 100 digits, or
            text with half of a surrogate pair, which cannot be shown; ``error``, when given.
    """
    require(
        len(text) <= MAX_CONFIG_CHARS,
        f"{what} has {len(text)} characters; at most {MAX_CONFIG_CHARS} are read",
        error,
    )

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            require(name not in found, f"{what} names {shown(name)} twice", error)
            for entry in value if isinstance(value, list) else [value]:
                require(
                    not isinstance(entry, _Digits),
                    f"{shown(name)[1:-1]}={str(entry)[:20]}… has {len(str(entry))} digits; "
                    f"at most {_MAX_DIGITS} are read",
                    error,
                )
            found[name] = value
        return found

    try:
        value = json.loads(text, object_pairs_hook=fields, parse_int=_number)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (json.JSONDecodeError, RecursionError) as bad:
        raise error(f"{what} is no JSON: {bad}") from None
    except UnicodeEncodeError as bad:
        raise error(f"{what} holds half of a surrogate pair: {bad.reason}") from None
    return value
