"""Consistent hashing of sessions to clusters, with a distinct secondary for every session.

K3 report 5.4.3: a session is bound to a primary cluster (which holds its prefix cache) and to a
pre-assigned secondary that re-prefills when the primary fails. The ring gives both in one binary
search, and the property that makes failover affordable: removing a cluster moves its own
sessions, each to its secondary, and nobody else's (Karger et al. 1997).

Every cluster puts ``vnodes`` points on a circle of 2**64 positions. A session belongs to the
owner of the first point at or after its own position; its secondary is the next owner clockwise
that is another cluster. All hashes are 64 bits wide and independent of the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from k3core.errors import K3Error, require, require_count, shown

ClusterId = str | int
SessionId = str | bytes | int

RING_SIZE = 2**64
MAX_VNODES = 1 << 20
MAX_CLUSTERS = 4096
_MASK = RING_SIZE - 1
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_ROUTE_CHUNK = 1 << 16


def stable_hash64(key: str | bytes) -> int:
    """64-bit hash of a name: the same in every process and on every machine (blake2b)."""
    if not isinstance(key, (str, bytes)):
        raise K3Error(f"key={shown(key)} must be a str or bytes")
    data = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(blake2b(data, digest_size=8, person=b"k3-session").digest(), "little")


def session_key(session_id: SessionId) -> int:
    """The uint64 that stands for a session: integers are their own key, names are hashed.

    Raises:
        K3Error: an integer outside 0..2**64-1, or another type.
    """
    if isinstance(session_id, (str, bytes)):
        return stable_hash64(session_id)
    if isinstance(session_id, (int, np.integer)) and not isinstance(session_id, bool):
        key = int(session_id)
        require(0 <= key < RING_SIZE, f"session_id={key} must be in 0..2**64-1")
        return key
    raise K3Error(f"session_id={shown(session_id)} must be a str, bytes or an integer of 64 bits")


def mix64(key: int) -> int:
    """Position of a session key on the ring: a bijection of 64-bit integers (splitmix64)."""
    if type(key) is not int or not 0 <= key <= _MASK:
        key = require_count("key", key, 0, _MASK)
    key = ((key ^ (key >> 30)) * _MIX_1) & _MASK
    key = ((key ^ (key >> 27)) * _MIX_2) & _MASK
    return key ^ (key >> 31)


def mix64_many(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``mix64`` of every element, shape kept."""
    is_keys = isinstance(keys, np.ndarray) and keys.dtype == np.uint64
    require(is_keys, "keys must be an array of uint64")
    mixed = keys ^ (keys >> np.uint64(30))
    mixed *= np.uint64(_MIX_1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_MIX_2)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _encode(cluster: ClusterId) -> bytes:
    """Bytes of a cluster id; ``3`` and ``"3"`` are two clusters."""
    if isinstance(cluster, int):
        return b"i%d" % cluster
    return b"s" + cluster.encode(errors="surrogatepass")


def _check_points(name: str, cluster: object, vnodes: object) -> None:
    is_id = isinstance(cluster, (str, int)) and not isinstance(cluster, bool)
    require(is_id and cluster != "", f"{name}={shown(cluster)} must be a non-empty str or an int")
    require_count("vnodes", vnodes, 1, MAX_VNODES)


def vnode_positions(cluster: ClusterId, vnodes: int) -> list[int]:
    """Ring positions of one cluster's points; they depend on the cluster alone."""
    _check_points("cluster", cluster, vnodes)
    encoded = _encode(cluster)
    return [
        int.from_bytes(
            blake2b(
                encoded + index.to_bytes(8, "little"), digest_size=8, person=b"k3-vnode"
            ).digest(),
            "little",
        )
        for index in range(vnodes)
    ]


class Route(NamedTuple):
    """Where a session lives and where it goes when that cluster fails."""

    primary: ClusterId
    secondary: ClusterId | None  # None when the ring has a single cluster


class Arc(NamedTuple):
    """One piece of the ring: positions in (start, end] belong to ``cluster``; wraps past 0."""

    start: int
    end: int
    cluster: ClusterId


class ConsistentHashRing:
    """Sessions to clusters by consistent hashing.

    Two points at the same position are ordered by cluster id, so the routes do not depend on the
    order in which clusters were added. The tables are built once after a change of membership
    (O(P log P) for P points in all); then ``route`` is one binary search.
    """

    def __init__(self) -> None:
        self._points: dict[ClusterId, list[int]] = {}
        self._clusters: tuple[ClusterId, ...] = ()
        self._stale = True

    def add_cluster(self, id: ClusterId, vnodes: int = 8) -> None:
        """Put a cluster on the ring with ``vnodes`` points; more points, more sessions.

        Raises:
            K3Error: the cluster is on the ring already, its id is not a name or an integer,
                or ``vnodes`` < 1.
        """
        _check_points("id", id, vnodes)
        require(id not in self._points, f"id={id!r} is on the ring already")
        self._points[id] = vnode_positions(id, vnodes)
        self._membership_changed()

    def remove_cluster(self, cluster: ClusterId) -> None:
        """Take a cluster off the ring; only its own sessions move, each to its secondary.

        Raises:
            K3Error: the cluster is not on the ring.
        """
        self._require_known(cluster)
        del self._points[cluster]
        self._membership_changed()

    def route(self, session_id: SessionId) -> Route:
        """(primary, secondary) of one session: two different clusters.

        With a single cluster on the ring there is no one to fail over to: secondary is None.

        Raises:
            K3Error: the ring is empty, or the session id is not valid.
        """
        slot = self._slot(session_id)
        secondary = self._secondary_list[slot]
        return Route(
            self._clusters[self._owner_list[slot]],
            None if secondary < 0 else self._clusters[secondary],
        )

    def route_many(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Routes of many sessions at once.

        Args:
            keys: (S,) uint64 session keys (see ``session_key``).

        Returns:
            primary and secondary, each (S,) int32 indices into ``clusters``; a secondary is -1
            when the ring has a single cluster.

        Raises:
            K3Error: the ring is empty, or ``keys`` is not an array of uint64.
        """
        self._build()
        require(
            isinstance(keys, np.ndarray) and keys.dtype == np.uint64 and keys.ndim == 1,
            "keys must be a one-dimensional array of uint64",
        )
        primary = np.empty(len(keys), np.int32)
        secondary = np.empty(len(keys), np.int32)
        # In chunks: the temporaries of one chunk stay in the processor's cache.
        for start in range(0, len(keys), _ROUTE_CHUNK):
            chunk = slice(start, start + _ROUTE_CHUNK)
            slots = np.searchsorted(self._positions, mix64_many(keys[chunk]))
            # Slot P (past the last point) is a copy of slot 0: the ring closes there.
            np.take(self._owner, slots, out=primary[chunk])
            np.take(self._secondary, slots, out=secondary[chunk])
        return primary, secondary

    def successors(self, session_id: SessionId) -> Iterator[ClusterId]:
        """All clusters in the order in which this session would fall back to them."""
        slot = self._slot(session_id)
        owners, num_points = self._owner_list, self.num_points
        seen: set[int] = set()
        for place in chain(range(slot, num_points), range(slot)):
            owner = owners[place]
            if owner not in seen:
                seen.add(owner)
                yield self._clusters[owner]
                if len(seen) == len(self._clusters):
                    return

    @property
    def clusters(self) -> tuple[ClusterId, ...]:
        """Cluster ids in the order in which they were added."""
        return self._clusters

    @property
    def num_points(self) -> int:
        return sum(map(len, self._points.values()))

    def vnodes(self, cluster: ClusterId) -> int:
        """Points of one cluster."""
        self._require_known(cluster)
        return len(self._points[cluster])

    def arcs(self) -> list[Arc]:
        """Every piece of the ring in order of its end; together they are the whole circle."""
        self._build()
        positions = self._position_list
        return [
            Arc(positions[index - 1], end, self._clusters[self._owner_list[index]])
            for index, end in enumerate(positions)
        ]

    def shares(self) -> dict[ClusterId, float]:
        """Part of the ring that each cluster owns; sums to 1.

        With V points on each of N clusters a share follows Beta(V, (N-1)V).
        """
        arcs = self.arcs()
        owned = dict.fromkeys(self._clusters, 0)
        for arc in arcs:
            owned[arc.cluster] += (arc.end - arc.start) % RING_SIZE
        if not any(owned.values()):  # all points in one place: its first owner has the circle
            owned[arcs[0].cluster] = RING_SIZE
        return {cluster: width / RING_SIZE for cluster, width in owned.items()}

    def __len__(self) -> int:
        return len(self._points)

    def __contains__(self, cluster: object) -> bool:
        return isinstance(cluster, (str, int)) and cluster in self._points

    def _require_known(self, cluster: object) -> None:
        known = cluster in self and not isinstance(cluster, bool)
        members = list(self._points)[:8]
        require(known, f"cluster={shown(cluster)} is not on the ring; on it: {members}")

    def _slot(self, session_id: SessionId) -> int:
        key = session_key(session_id)
        self._build()
        return bisect_left(self._position_list, mix64(key))

    def _membership_changed(self) -> None:
        self._clusters = tuple(self._points)
        self._stale = True

    def _build(self) -> None:
        """Bring the tables up to date with the membership; nothing to do between changes."""
        if not self._stale:
            return
        require(bool(self._clusters), "the ring has no cluster")
        rank = {c: i for i, c in enumerate(sorted(self._clusters, key=_encode))}
        points = sorted(
            (position, rank[cluster], index)
            for index, cluster in enumerate(self._clusters)
            for position in self._points[cluster]
        )
        owners = [index for _, _, index in points]
        secondaries = _next_other(owners)
        # One more slot than points: a position past the last point belongs to the first one.
        self._position_list = [position for position, _, _ in points]
        self._owner_list = owners + owners[:1]
        self._secondary_list = secondaries + secondaries[:1]
        self._positions = np.array(self._position_list, np.uint64)
        self._owner = np.array(self._owner_list, np.int32)
        self._secondary = np.array(self._secondary_list, np.int32)
        self._stale = False


def _next_other(owners: list[int]) -> list[int]:
    """For every point the next owner clockwise that differs from its own; -1 when none does."""
    following = [-1] * len(owners)
    # Two rounds backwards: the first one learns what lies behind the wrap.
    for index in reversed(range(2 * len(owners))):
        here, after = index % len(owners), (index + 1) % len(owners)
        if owners[after] != owners[here]:
            following[here] = owners[after]
        else:
            following[here] = following[after]
    return following
