"""Where sessions live on the hash ring, and who moves when a cluster leaves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd

from k3core.errors import require, require_count
from k3core.fleet import theory
from k3core.fleet.ring import RING_SIZE, ConsistentHashRing
from k3core.studies.fleet.scenario import PAGE, kept_run, page_scenario
from k3core.studies.fleet.through_failure import through_failure
from k3core.units import count_text, percent_text, seconds_text

REFERENCE_VNODES = (1, 8, 40, 160)
MAX_SESSIONS = 1_000_000
_MAX_ARCS = 400  # of a strip; above that only the largest and the smallest owner are drawn


@dataclass(frozen=True)
class RingStudy:
    """Tables ``arcs``, ``shares``, ``imbalance``, ``sessions``.

    Attributes:
        peak_to_mean: largest share of the ring over the mean, at the chosen vnodes.
        peak_low, peak_high: where the theory puts it in nine rings of ten.
        cv: standard deviation of a share over the mean by the theory.
        num_peak_sessions: sessions of the fullest cluster.
    """

    num_clusters: int
    vnodes: int
    num_sessions: int
    peak_to_mean: float
    peak_low: float
    peak_high: float
    cv: float
    num_peak_sessions: int
    tables: dict[str, pd.DataFrame]

    @property
    def words(self) -> dict[str, object]:
        """Its numbers as people read them."""
        return {
            "vnodes": self.vnodes,
            "clusters": self.num_clusters,
            "peak": f"{self.peak_to_mean:.2f}",
            "low": f"{self.peak_low:.2f}",
            "high": f"{self.peak_high:.2f}",
            "sessions": count_text(self.num_sessions),
            "most": count_text(self.num_peak_sessions),
            "ratio": f"{self.num_peak_sessions * self.num_clusters / self.num_sessions:.2f}",
        }


def build_ring(num_clusters: int, vnodes: int) -> ConsistentHashRing:
    """The ring of clusters c0, c1, ..., as the simulator builds it."""
    ring = ConsistentHashRing()
    for index in range(num_clusters):
        ring.add_cluster(f"c{index}", vnodes)
    return ring


def session_names(num_sessions: int) -> list[str]:
    return [f"session-{index}" for index in range(num_sessions)]


def hash_ring(num_clusters: int = 8, vnodes: int = 8, num_sessions: int = 600) -> RingStudy:
    """Shares of the ring against the theory, and the sessions that follow from them.

    Args:
        num_clusters, vnodes: the ring; 1, 8, 40 and 160 vnodes are shown beside it.
        num_sessions: sessions ``session-0``, ``session-1``, ... to place.
    """
    require_count("num_sessions", num_sessions, 1, MAX_SESSIONS)
    arcs, shares, imbalance = [], [], []
    for count in sorted({*REFERENCE_VNODES, vnodes}):
        ring = build_ring(num_clusters, count)
        relative = {str(c): share * num_clusters for c, share in ring.shares().items()}
        band, peak = theory.share_band(num_clusters, count), theory.peak_band(num_clusters, count)
        shares += [
            {
                "vnodes": count,
                "cluster": cluster,
                "relative": value,
                "low": band.low * num_clusters,
                "high": band.high * num_clusters,
            }
            for cluster, value in relative.items()
        ]
        imbalance.append(
            {
                "vnodes": count,
                "peak": max(relative.values()),
                "low": peak.low,
                "mean": peak.mean,
                "high": peak.high,
            }
        )
        arcs += _arc_rows(ring, relative, count)
    ring = build_ring(num_clusters, vnodes)
    owned = Counter(str(ring.route(name).primary) for name in session_names(num_sessions))
    chosen = next(row for row in imbalance if row["vnodes"] == vnodes)
    sessions = pd.DataFrame(
        {
            "cluster": [str(c) for c in ring.clusters],
            "num_sessions": [owned[str(c)] for c in ring.clusters],
            "uniform": num_sessions / num_clusters,
            "share": list(ring.shares().values()),
        }
    )
    return RingStudy(
        num_clusters=num_clusters,
        vnodes=vnodes,
        num_sessions=num_sessions,
        peak_to_mean=chosen["peak"],
        peak_low=chosen["low"],
        peak_high=chosen["high"],
        cv=theory.share_cv(num_clusters, vnodes),
        num_peak_sessions=int(sessions["num_sessions"].max()),
        tables={
            "arcs": pd.DataFrame(arcs),
            "shares": pd.DataFrame(shares),
            "imbalance": pd.DataFrame(imbalance),
            "sessions": sessions,
        },
    )


def _arc_rows(
    ring: ConsistentHashRing, relative: dict[str, float], vnodes: int
) -> list[dict[str, Any]]:
    largest, smallest = max(relative, key=relative.__getitem__), min(relative, key=relative.get)  # type: ignore[arg-type]
    rows = []
    for cluster, start, end in _arcs(ring):
        role = "largest" if cluster == largest else "smallest" if cluster == smallest else "other"
        if role != "other" or ring.num_points <= _MAX_ARCS:
            rows.append(
                {
                    "vnodes": vnodes,
                    "start": start,
                    "end": end,
                    "cluster": cluster,
                    "relative": relative[cluster],
                    "role": role,
                }
            )
    return rows


def _arcs(ring: ConsistentHashRing) -> list[tuple[str, float, float]]:
    """(cluster, start, end) along the unrolled ring 0..1; the arc over its end is cut in two."""
    pieces = []
    for start, end, cluster in ring.arcs():
        if start < end:
            pieces.append((str(cluster), start / RING_SIZE, end / RING_SIZE))
        else:
            pieces.append((str(cluster), start / RING_SIZE, 1.0))
            pieces.append((str(cluster), 0.0, end / RING_SIZE))
    return sorted(pieces, key=lambda piece: piece[1])


@dataclass(frozen=True)
class FailoverStudy:
    """Tables ``moved``, ``after``, ``share``, ``arcs``, and those of ``through_failure``.

    Attributes:
        num_moved, num_collateral: sessions of the victim, and others, that changed cluster.
        num_at_removed: sessions that still point at the removed cluster.
        moved_share: of all sessions; ``share_low`` to ``share_high`` is the theory's nine in ten.
        top_heir_share: part of the victim's sessions that one cluster inherits.
        num_failovers, num_waiting_moved, reprefilled_tokens: what the failure cost in the run.
    """

    num_sessions: int
    victim: str
    router: str
    num_moved: int
    num_collateral: int
    num_at_removed: int
    moved_share: float
    share_low: float
    share_high: float
    top_heir_share: float
    num_failovers: int
    num_waiting_moved: int
    reprefilled_tokens: int
    tables: dict[str, pd.DataFrame]

    @property
    def words(self) -> dict[str, object]:
        """Its numbers as people read them."""
        return {
            "victim": self.victim,
            "moved": count_text(self.num_moved),
            "sessions": count_text(self.num_sessions),
            "collateral": self.num_collateral,
            "share": percent_text(self.moved_share),
            "low": percent_text(self.share_low),
            "high": percent_text(self.share_high),
            "heir": percent_text(self.top_heir_share, 0),
            "left": self.num_at_removed,
            "failovers": count_text(self.num_failovers),
            "tokens": count_text(self.reprefilled_tokens),
        }

    @property
    def seen(self) -> dict[str, str]:
        """Reuse and P95 of both groups while a cluster was down; empty when none was."""
        rows = self.tables["while_down"].set_index(["group", "run"])
        words = {}
        for group in ("victim", "others"):
            for run in ("failed", "calm"):
                if (group, run) not in rows.index:
                    return {}
                row = rows.loc[(group, run)]
                words[f"{group}_{run}_reuse"] = percent_text(row["reuse"])
                words[f"{group}_{run}_p95"] = seconds_text(row["p95_s"])
        return words


def minimal_perturbation(
    num_ring_sessions: int = 600, victim: int = PAGE.failures[0][0], **params: Any
) -> FailoverStudy:
    """Remove one cluster: from the ring of named sessions, and from a running fleet.

    Args:
        num_ring_sessions: sessions placed on the ring before and after.
        victim: number of the cluster that is removed.
        params: fields of ``Scenario``; the timeline is that of its router and its failures.
    """
    p = page_scenario(**params)
    require_count("num_ring_sessions", num_ring_sessions, 1, MAX_SESSIONS)
    require(p.clusters >= 2, f"clusters={p.clusters}: someone must be left after a removal")
    gone = f"c{require_count('victim', victim, 0, p.clusters - 1)}"
    ring = build_ring(p.clusters, p.vnodes)
    names = session_names(num_ring_sessions)
    arcs = _arcs(ring)
    before = [str(ring.route(name).primary) for name in names]
    ring.remove_cluster(gone)
    after = [str(ring.route(name).primary) for name in names]
    pairs = list(zip(before, after, strict=True))
    num_moved = sum(was == gone and now != gone for was, now in pairs)
    num_collateral = sum(was not in (now, gone) for was, now in pairs)
    heirs = Counter(now for was, now in pairs if was == gone)
    kept = Counter(now for was, now in pairs if was == now)
    clusters = [f"c{index}" for index in range(p.clusters)]
    band = theory.share_band(p.clusters, p.vnodes)
    home, _ = build_ring(p.clusters, p.vnodes).route_many(kept_run(p).workload.sessions)
    result, in_run = through_failure(p, victim, home)
    return FailoverStudy(
        num_sessions=num_ring_sessions,
        victim=gone,
        router=p.router,
        num_moved=num_moved,
        num_collateral=num_collateral,
        num_at_removed=sum(now == gone for now in after),
        moved_share=num_moved / num_ring_sessions,
        share_low=band.low,
        share_high=band.high,
        top_heir_share=max(heirs.values()) / num_moved if num_moved else 0.0,
        num_failovers=result.num_failovers,
        num_waiting_moved=result.num_moved,
        reprefilled_tokens=result.reprefilled_tokens,
        tables={
            "moved": pd.DataFrame(
                {
                    "what": ["stays", "moved", "collateral"],
                    "num_sessions": [
                        num_ring_sessions - num_moved - num_collateral,
                        num_moved,
                        num_collateral,
                    ],
                }
            ),
            "after": pd.DataFrame(
                [
                    {"cluster": cluster, "part": part, "num_sessions": number}
                    for cluster in clusters
                    for part, number in (
                        ("kept", kept[cluster]),
                        ("inherited", heirs[cluster]),
                        ("gone", num_moved if cluster == gone else 0),
                    )
                ]
            ),
            "share": pd.DataFrame(
                [
                    {
                        "low": band.low,
                        "mean": band.mean,
                        "high": band.high,
                        "measured": num_moved / num_ring_sessions,
                    }
                ]
            ),
            "arcs": pd.DataFrame(
                [
                    {"cluster": cluster, "start": start, "end": end, "role": "moved"}
                    for cluster, start, end in arcs
                    if cluster == gone
                ]
            ),
            **in_run,
        },
    )
