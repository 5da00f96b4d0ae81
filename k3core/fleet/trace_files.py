"""Reader of request traces: Mooncake JSONL, Azure CSV, and a CSV of our own; plain or gzipped.

Mooncake (FAST'25 release): one JSON object per line with ``timestamp`` (ms), ``input_length``,
``output_length`` (tokens) and ``hash_ids``: an integer per block of 512 prompt tokens, equal when
the block and everything before it are equal; the last block may be partial. The CSV formats are
described in ``k3core.fleet.trace_csv``.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from collections.abc import Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from k3core.errors import TraceError, require, require_count, require_type, shown
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.columns import MAX_ID, MAX_TOKENS, offsets_of
from k3core.fleet.trace_csv import is_csv, parse_csv
from k3core.fleet.workload import (
    LONG_THRESHOLD,
    Workload,
    sessions_from_blocks,
)

MAX_TRACE_BYTES = 1 << 30
UTF8_MARK = b"\xef\xbb\xbf"
_decode = json.JSONDecoder().raw_decode
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


def read_trace(
    path: str | Path,
    long_threshold: int = LONG_THRESHOLD,
    max_bytes: int = MAX_TRACE_BYTES,
) -> Workload:
    """Read a trace of any known format, plain or gzipped.

    Every line is a request or an error: nothing is skipped (blank lines hold no request).

    Raises:
        TraceError: the file cannot be read, is larger than ``max_bytes`` when unpacked, holds no
            request, or has a bad line (``error.line`` is its number).
    """
    require_count("long_threshold", long_threshold, 1, error=TraceError)
    return parse_trace(trace_bytes(path, max_bytes), long_threshold, max_bytes)


def trace_bytes(path: str | Path, max_bytes: int = MAX_TRACE_BYTES) -> bytes:
    """The bytes of a trace file, packed or not; one more than ``max_bytes`` of a larger one.

    Raises:
        TraceError: it cannot be read.
    """
    require_count("max_bytes", max_bytes, 0, sys.maxsize - 1, TraceError)
    if not isinstance(path, (str, os.PathLike)):
        raise TraceError(f"path={shown(path)} must be the path of a file")
    try:
        with Path(path).open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise TraceError(f"cannot read {shown(str(path))}: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the name
        raise TraceError(f"cannot read {shown(str(path))}: {error}") from error


def parse_trace(
    data: bytes,
    long_threshold: int = LONG_THRESHOLD,
    max_bytes: int = MAX_TRACE_BYTES,
) -> Workload:
    """Parse the bytes of a trace; gzip is recognised by its first two bytes, CSV by its header.

    Requests are sorted by timestamp, ties in file order; the first one arrives at 0 s.

    Raises:
        TraceError: as ``read_trace``.
    """
    require_type("data", data, bytes, TraceError)
    require_count("long_threshold", long_threshold, 1, error=TraceError)
    require_count("max_bytes", max_bytes, 0, sys.maxsize - 1, TraceError)
    text = _unpack(data, max_bytes).removeprefix(UTF8_MARK)
    if is_csv(text):
        return parse_csv(text, long_threshold)
    rows = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if line := line.strip():
            rows.append(_parse_line(line, number))
    require(bool(rows), "the trace holds no request", TraceError)
    return _columns(rows, long_threshold)


def _unpack(data: bytes, max_bytes: int) -> bytes:
    limit = f"the trace is larger than {max_bytes:,} bytes"
    if not data.startswith(b"\x1f\x8b"):
        if len(data) > max_bytes:
            raise TraceError(limit)
        return data
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as file:
            text = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"the gzip file is damaged: {error}") from error
    if len(text) > max_bytes:
        raise TraceError(f"{limit} when unpacked")
    return text


def _parse_line(line: bytes, number: int) -> dict[str, Any]:
    """The request on one line, or a ``TraceError`` that names the line and the field."""
    try:
        text = line.decode()
        row, end = _decode(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not a JSON object: {getattr(error, 'msg', error)}", number) from error
    if end != len(text):
        raise TraceError("text after the JSON object; one request per line", number)
    if type(row) is not dict:
        raise TraceError(f"a request must be a JSON object, not {type(row).__name__}", number)
    _check_row(row, number)
    return row


def _columns(rows: Sequence[dict[str, Any]], long_threshold: int) -> Workload:
    time_ms = np.array([row["timestamp"] for row in rows], np.float64)
    order = np.argsort(time_ms, kind="stable").tolist()
    rows = [rows[index] for index in order]
    time_ms = time_ms[order]
    block_ids = np.fromiter(chain.from_iterable(row["hash_ids"] for row in rows), np.int64)
    block_offsets = offsets_of([len(row["hash_ids"]) for row in rows])
    return Workload(
        arrival_s=(time_ms - time_ms[0]) / 1000.0,
        input_len=np.array([row["input_length"] for row in rows], np.int64),
        output_len=np.array([row["output_length"] for row in rows], np.int64),
        block_ids=block_ids,
        block_offsets=block_offsets,
        sessions=sessions_from_blocks(block_ids, block_offsets),
        long_threshold=long_threshold,
    )


def _check_row(row: dict[str, Any], number: int) -> None:
    try:
        time, num_in, num_out, ids = map(row.__getitem__, _FIELDS)
    except KeyError as error:
        raise TraceError(f"field {error.args[0]!r} is missing", number) from error
    if type(time) not in (int, float) or not 0 <= time < 1e15:
        raise TraceError(f"timestamp={shown(time)} must be a number of milliseconds >= 0", number)
    if type(num_in) is not int or not 1 <= num_in <= MAX_TOKENS:
        raise TraceError(f"input_length={shown(num_in)} must be an integer >= 1 (tokens)", number)
    if type(num_out) is not int or not 0 <= num_out <= MAX_TOKENS:
        raise TraceError(f"output_length={shown(num_out)} must be an integer >= 0 (tokens)", number)
    if type(ids) is not list:
        raise TraceError(f"hash_ids must be a list, not {type(ids).__name__}", number)
    distinct = set(ids) if set(map(type, ids)) == {int} else set()
    if not distinct or min(distinct) < 0 or max(distinct) > MAX_ID:
        raise TraceError("hash_ids must hold integers 0..2**63-1", number)
    expected = -(-num_in // BLOCK_LEN)
    if len(ids) != expected:
        raise TraceError(
            f"hash_ids has {len(ids)} ids; {num_in} tokens are {expected} blocks of {BLOCK_LEN}",
            number,
        )
    if len(distinct) != expected:
        raise TraceError("hash_ids repeats an id; ids stand for a block and its prefix", number)
