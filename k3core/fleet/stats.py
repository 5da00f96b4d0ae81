"""Latency statistics that refusals cannot distort: order statistics over served requests."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from k3core.errors import require_count, require_number
from k3core.fleet.columns import MAX_REQUESTS, require_column


def order_statistic(values: NDArray[np.float64], q: float) -> float:
    """The smallest value that at least a share ``q`` of the values do not exceed.

    No interpolation: the result is one of the values, and an infinite value cannot turn the
    percentiles below it into NaN.

    Args:
        values: (N,) floats in any order.
        q: share in (0, 1], for example 0.95.

    Returns:
        the ceil(q N)-th smallest value, or NaN when there is none.

    Raises:
        K3Error: ``q`` outside (0, 1].
    """
    require_number("q", q, above=0, most=1)
    num = len(require_column("values", values, "iuf"))
    if num == 0:
        return math.nan
    # q * N in floating point may exceed a whole number by a rounding error.
    rank = math.ceil(q * num - 1e-9) - 1
    return float(np.partition(values, rank)[rank])


def counting_refusals(values: NDArray[np.float64], num_refused: int, q: float) -> float:
    """The misleading percentile: every refused request counted as an infinite latency.

    It says more about how many were refused than about how long anyone waited; shown only as a
    warning beside ``order_statistic``.
    """
    require_column("values", values, "iuf")
    refused = np.full(require_count("num_refused", num_refused, 0, MAX_REQUESTS), np.inf)
    return order_statistic(np.concatenate((values, refused)), q)
