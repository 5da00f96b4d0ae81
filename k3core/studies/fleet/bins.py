"""Time axes of a run: bins of a round number of seconds, as many as a picture can show."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

BIN_SIZES_S = (5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


def bin_size_s(span_s: float, max_bins: int = 60) -> float:
    """The smallest round bin with which ``span_s`` takes at most ``max_bins`` bins."""
    fitting = (size for size in BIN_SIZES_S if span_s / size <= max_bins)
    return next(fitting, math.ceil(span_s / max_bins))


def bin_index(times_s: NDArray[np.float64], size_s: float) -> NDArray[np.int64]:
    """Number of the bin of each time."""
    return (times_s // size_s).astype(np.int64)
