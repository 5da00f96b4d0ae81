"""Clusters that go down and perhaps come back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from k3core.errors import K3Error, require, require_count, require_number, shown

NEVER = math.inf


class Failure(NamedTuple):
    """A cluster that goes down at ``at_s`` and comes back, cold, at ``return_s``."""

    cluster: int
    at_s: float
    return_s: float = NEVER


class Change(NamedTuple):
    """One end of a failure; at one instant failures come before returns."""

    at_s: float
    returns: bool
    cluster: int


def checked_failures(
    failures: Sequence[Failure | tuple[int, float, float]], num_clusters: int
) -> tuple[Failure, ...]:
    """The failures in order of time.

    Args:
        failures: at most one per cluster at a time; plain tuples will do.
        num_clusters: of the fleet.

    Raises:
        K3Error: an unknown cluster, an impossible time, or a cluster that fails while it is down.
    """
    require_count("num_clusters", num_clusters, 1)
    if not isinstance(failures, Iterable):
        raise K3Error(f"failures={shown(failures)} must be a sequence of Failure")
    back_s: dict[int, float] = {}
    parsed = [_checked(failure, num_clusters) for failure in failures]
    parsed.sort(key=lambda failure: (failure.at_s, failure.cluster))
    for cluster, at_s, return_s in parsed:
        require(
            at_s >= back_s.get(cluster, 0.0),
            f"failures: cluster {cluster} fails at {at_s} s while it is still down",
        )
        back_s[cluster] = return_s
    return tuple(parsed)


def changes(failures: Sequence[Failure]) -> list[Change]:
    """What happens to the membership of the fleet, in order of time."""
    ends = [
        change
        for failure in failures
        for change in (
            Change(failure.at_s, False, failure.cluster),
            Change(failure.return_s, True, failure.cluster),
        )
    ]
    return sorted(change for change in ends if change.at_s < NEVER)


def _checked(failure: object, num_clusters: int) -> Failure:
    if not isinstance(failure, (tuple, list)) or len(failure) not in (2, 3):
        raise K3Error(f"failures: {shown(failure)} must be a Failure(cluster, at_s, return_s)")
    parsed = Failure(*failure)
    require_count("failures: cluster", parsed.cluster, 0, num_clusters - 1)
    require_number("failures: at_s", parsed.at_s, least=0)
    require_number("failures: return_s", parsed.return_s, above=parsed.at_s, infinite=True)
    return parsed
