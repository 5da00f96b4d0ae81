"""Uploaded traces, kept parsed under a short key so that studies are called with plain values."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock

from k3core.errors import TraceError, require_type
from k3core.fleet import Workload, parse_trace
from k3core.fleet.trace_files import MAX_TRACE_BYTES
from k3core.units import count_text

_MAX_STORED = 4

_lock = Lock()
_stored: OrderedDict[str, Workload] = OrderedDict()


@dataclass(frozen=True)
class StoredTrace:
    """What a page says about a trace.

    Attributes:
        key: name of the trace for the studies.
        num_requests: all of them; nothing is dropped.
        num_sessions: by the rule of ``sessions_from_blocks``.
        minutes: first to last arrival.
        tick_s: grain of the timestamps, 0 when they have none.
    """

    key: str
    num_requests: int
    num_sessions: int
    minutes: float
    tick_s: float

    @property
    def words(self) -> dict[str, str]:
        """Its numbers as people read them."""
        return {
            "requests": count_text(self.num_requests),
            "sessions": count_text(self.num_sessions),
            "minutes": f"{self.minutes:.1f}",
        }


def store_trace(data: bytes, max_bytes: int = MAX_TRACE_BYTES) -> StoredTrace:
    """Parse a trace and keep it for the studies (the last few are kept).

    Args:
        data: packed or not, of any format that ``parse_trace`` knows.
        max_bytes: how large it may be, packed and unpacked.

    Raises:
        TraceError: a bad line, by number, or a file over the size limit.
    """
    require_type("data", data, bytes, TraceError)
    key = blake2b(data, digest_size=8).hexdigest()
    with _lock:
        known = key in _stored
    if not known:
        workload = parse_trace(data, max_bytes=max_bytes)
        with _lock:
            _stored[key] = workload
            while len(_stored) > _MAX_STORED:
                _stored.popitem(last=False)
    return stored_trace(key)


def stored_trace(key: str) -> StoredTrace:
    """Facts of a stored trace.

    Raises:
        TraceError: the trace is not stored (any more).
    """
    workload = trace_workload(key)
    return StoredTrace(
        key,
        len(workload),
        workload.num_sessions,
        float(workload.arrival_s[-1]) / 60,
        workload.tick_s,
    )


def trace_workload(key: str) -> Workload:
    """The requests of a stored trace.

    Raises:
        TraceError: the trace is not stored (any more).
    """
    with _lock:
        workload = _stored.get(key)
        if workload is None:
            raise TraceError(f"trace={key!r} is not loaded; upload it again")
        _stored.move_to_end(key)
        return workload
