"""Types of arguments: each refuses bad text in one line that says what is allowed."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

MAX_SEED = 2**32 - 1  # fits every generator, also after the checks add to it


_OPTIONS = {"num_clusters": "clusters", "rule": "checkpoints", "draft_len": "drafts"}
_DESTINATIONS = {"failures": "fail"}
_POSITIONAL = ("command", "run", "trace", "results")


def option_text(message: str, args: argparse.Namespace) -> str:
    """``message`` of a study, behind the option that it speaks of when it begins with one."""
    match = re.match(r"(\w+)=", message)
    name = _OPTIONS.get(match[1], match[1]) if match else ""
    if name not in vars(args) or name in _POSITIONAL:
        return message
    return f"argument --{_DESTINATIONS.get(name, name).replace('_', '-')}: {message}"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def integer(text: str, least: int, most: int | None = None) -> int:
    allowed = f"at least {least}" if most is None else f"{least} to {most}"
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be an integer, {allowed}")
    return number


def positive(text: str) -> int:
    return integer(text, 1)


def count(text: str) -> int:
    return integer(text, 0)


def seed(text: str) -> int:
    return integer(text, 0, MAX_SEED)


def list_of(convert: Any) -> Any:
    """A parser of values separated by commas."""

    def values(text: str) -> list[Any]:
        return [convert(part.strip()) for part in text.split(",")]

    return values


def pair(text: str) -> tuple[int, int]:
    short, long = text.split(",")
    return int(short), int(long)


def triple(text: str) -> tuple[int, int, float]:
    prompt, cached, seconds = text.split(",")
    return int(prompt), int(cached), float(seconds)


def failure(text: str) -> tuple[int, float, float]:
    cluster, at_s, *returns = text.split(",")
    (return_s,) = returns or ["inf"]
    return int(cluster), float(at_s), float(return_s)
