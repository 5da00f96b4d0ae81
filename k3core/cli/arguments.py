"""Types of arguments: each refuses bad text in one line that says what is allowed."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_TOKENS = 10**9  # of one measured prompt
MAX_SECONDS = 1e6  # of one measured prefill
MAX_SEED = 2**32 - 1  # fits every generator, also after the checks add to it


_OPTIONS = {
    "num_clusters": "clusters",
    "rule": "checkpoints",
    "draft_len": "drafts",
    "generator": "generate",
}
_DESTINATIONS = {"failures": "fail"}
_POSITIONAL = ("command", "run", "trace", "results")


def option_text(message: str, args: argparse.Namespace) -> str:
    """``message`` of a study, behind the option that it speaks of when it begins with one."""
    match = re.match(r"(\w+)[=:]", message)
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
    """SHORT,LONG: two positive integers."""
    with refusing(text, "two integers SHORT,LONG, each at least 1"):
        short, long = (integer(part, 1) for part in text.split(","))
    return short, long


def triple(text: str) -> tuple[int, int, float]:
    """PROMPT,CACHED,SECONDS of a measurement."""
    allowed = f"PROMPT,CACHED,SECONDS: tokens, fewer tokens, and a time of 0 to {MAX_SECONDS:g}"
    with refusing(text, allowed):
        prompt, cached, seconds = text.split(",")
        values = integer(prompt, 1, MAX_TOKENS), integer(cached, 0, MAX_TOKENS), float(seconds)
        if not (values[1] < values[0] and 0 < values[2] <= MAX_SECONDS):
            raise ValueError
    return values


def failure(text: str) -> tuple[int, float, float]:
    """CLUSTER,AT_S[,RETURN_S] of a failure."""
    with refusing(text, "CLUSTER,AT_S or CLUSTER,AT_S,RETURN_S: its number, then seconds"):
        cluster, at_s, *returns = text.split(",")
        (return_s,) = returns or ["inf"]
        return integer(cluster, 0), float(at_s), float(return_s)


@contextmanager
def refusing(text: str, allowed: str) -> Iterator[None]:
    """Turn a failure to read ``text`` into a line that says what is allowed."""
    try:
        yield
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be {allowed}") from None


def writable(text: str) -> Path:
    """A file that can be written, known before anything runs."""
    path = Path(text)
    with refusing(text, "a file in an existing folder that may be written"):
        folder = path.parent
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise ValueError
    return path
