"""Traces as CSV, recognised by their header line (any case, any order of columns).

Azure LLM inference traces: ``TIMESTAMP,ContextTokens,GeneratedTokens``; no sessions and no blocks,
so every request is a session of its own and nothing is shared.

Our own format, one request per line:

    arrival_s    seconds, required
    input_len    prompt tokens >= 1, required
    output_len   generated tokens (0 if the column is missing)
    session_id   any text; turns of one session share all full blocks of the shorter prompt;
                 empty or missing: a session of its own
    block_ids    ids of the 512-token blocks separated by spaces, as Mooncake's ``hash_ids``;
                 replaces what follows from ``session_id`` (which then only routes)
    service_s    prefill seconds of this request instead of the cost model's

Other columns are ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3core.errors import TraceError, require, require_count, require_type, shown
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.columns import MAX_TOKENS, offsets_of
from k3core.fleet.ring import session_key
from k3core.fleet.synthetic import session_blocks
from k3core.fleet.workload import LONG_THRESHOLD, Workload, sessions_from_blocks

AZURE_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
OWN_COLUMNS = ("arrival_s", "input_len")


def is_csv(text: bytes) -> bool:
    """Whether the first line is the header of a known CSV format."""
    require_type("text", text, bytes, TraceError)
    header = set(_header(text))
    return set(AZURE_COLUMNS) <= header or set(OWN_COLUMNS) <= header


def parse_csv(text: bytes, long_threshold: int = LONG_THRESHOLD) -> Workload:
    """The requests of a CSV trace, sorted by time; the first one arrives at 0 s.

    Raises:
        TraceError: a bad line, by number, no known header or no request.
    """
    require_count("long_threshold", long_threshold, 1, error=TraceError)
    require(is_csv(text), f"text={shown(text[:40])} must begin with a known header", TraceError)
    try:
        reader = csv.reader(StringIO(text.decode("utf-8-sig")), strict=True)
        table = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"not a CSV file: {error}") from error
    names = [name.strip().lower() for name in table[0][1]]
    lines = table[1:]
    require(bool(lines), "the trace holds no request", TraceError)
    for number, row in lines:
        if len(row) != len(names):
            raise TraceError(f"{len(row)} values under {len(names)} columns", number)
    columns = {name: [row[at].strip() for _, row in lines] for at, name in enumerate(names)}
    numbers = [number for number, _ in lines]
    if set(AZURE_COLUMNS) <= set(names):
        return _azure(columns, numbers, long_threshold)
    return _own(columns, numbers, long_threshold)


def _header(text: bytes) -> list[str]:
    first = text[:4096].lstrip(b"\xef\xbb\xbf\r\n \t").split(b"\n", 1)[0]
    return [name.strip().lower() for name in first.decode(errors="replace").split(",")]


def _azure(columns: dict[str, list[str]], numbers: list[int], long_threshold: int) -> Workload:
    stamps = _convert(
        columns["timestamp"],
        numbers,
        lambda texts: np.array(texts, "datetime64[ns]"),
        "TIMESTAMP",
        "a date and time",
    )
    if bool(np.isnat(stamps).any()):
        raise TraceError("TIMESTAMP is empty", numbers[int(np.flatnonzero(np.isnat(stamps))[0])])
    seconds = (stamps - stamps.min()).astype(np.int64) / 1e9
    order = np.argsort(seconds, kind="stable")
    input_len = _tokens(columns["contexttokens"], numbers, "ContextTokens", 1)[order]
    output_len = _tokens(columns["generatedtokens"], numbers, "GeneratedTokens", 0)[order]
    alone = np.arange(len(order))
    ids, offsets = session_blocks(alone, input_len, len(order), 0)
    return Workload(
        seconds[order], input_len, output_len, ids, offsets, alone.astype(np.uint64), long_threshold
    )


def _own(columns: dict[str, list[str]], numbers: list[int], long_threshold: int) -> Workload:
    num = len(numbers)
    arrival_s = _seconds(columns["arrival_s"], numbers, "arrival_s")
    order = np.argsort(arrival_s, kind="stable")
    input_len = _tokens(columns["input_len"], numbers, "input_len", 1)
    output_len = _tokens(columns.get("output_len", ["0"] * num), numbers, "output_len", 0)
    names = columns.get("session_id", [""] * num)
    service_s = None
    if "service_s" in columns:
        service_s = _seconds(columns["service_s"], numbers, "service_s")[order]
    names_in_order = [names[index] for index in order]
    if "block_ids" in columns:
        paths = [
            _path(columns["block_ids"][index], int(input_len[index]), numbers[index])
            for index in order
        ]
        ids = np.concatenate(paths)
        offsets = offsets_of([len(path) for path in paths])
        sessions = sessions_from_blocks(ids, offsets)
    else:
        unnamed = {name: number for number, name in enumerate(dict.fromkeys(names)) if name}
        number = np.array(
            [
                unnamed.get(name, len(unnamed) + 1 + index)
                for index, name in enumerate(names_in_order)
            ]
        )
        ids, offsets = session_blocks(number, input_len[order], int(number.max()) + 1, 0)
        sessions = number.astype(np.uint64)
    named = np.array([bool(name) for name in names_in_order])
    keys = np.array([session_key(name) if name else 0 for name in names_in_order], np.uint64)
    return Workload(
        arrival_s=arrival_s[order] - arrival_s.min(),
        input_len=input_len[order],
        output_len=output_len[order],
        block_ids=ids,
        block_offsets=offsets,
        sessions=np.where(named, keys, sessions),
        long_threshold=long_threshold,
        service_s=service_s,
    )


def _path(text: str, input_len: int, number: int) -> NDArray[np.int64]:
    expected = -(-input_len // BLOCK_LEN)
    try:
        path = np.array([int(part) for part in text.split()], np.int64)
    except (ValueError, OverflowError) as error:
        raise TraceError(f"block_ids={shown(text)} must be integers", number) from error
    if len(path) != expected:
        raise TraceError(
            f"block_ids has {len(path)} ids; {input_len} tokens are {expected} blocks of "
            f"{BLOCK_LEN}",
            number,
        )
    if len(np.unique(path)) != expected or path.min() < 0:
        raise TraceError("block_ids must be distinct and >= 0", number)
    return path


def _seconds(texts: Sequence[str], numbers: list[int], name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = _convert(
        texts, numbers, lambda part: np.array(part, np.float64), name, "a number of seconds >= 0"
    )
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise TraceError(
            f"{name}={shown(texts[bad[0]])} must be a number of seconds >= 0", numbers[bad[0]]
        )
    return values


def _tokens(texts: Sequence[str], numbers: list[int], name: str, least: int) -> NDArray[np.int64]:
    values: NDArray[np.int64] = _convert(
        texts,
        numbers,
        lambda part: np.array([int(text) for text in part], np.int64),
        name,
        f"an integer >= {least} (tokens)",
    )
    bad = np.flatnonzero((values < least) | (values > MAX_TOKENS))
    if len(bad):
        raise TraceError(
            f"{name}={shown(texts[bad[0]])} must be an integer >= {least} (tokens)", numbers[bad[0]]
        )
    return values


def _convert(
    texts: Sequence[str],
    numbers: list[int],
    convert: Callable[[Sequence[str]], Any],
    name: str,
    allowed: str,
) -> Any:
    """All values at once; on an error one by one, to name the line."""
    try:
        return convert(texts)
    except (ValueError, OverflowError):
        for number, text in zip(numbers, texts, strict=True):
            try:
                convert([text])
            except (ValueError, OverflowError) as error:
                raise TraceError(f"{name}={shown(text)} must be {allowed}", number) from error
        raise
