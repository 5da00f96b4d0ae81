"""Context parallelism of one KDA layer: a sequence over several ranks, one fixed-size message each.

A stretch of tokens acts on the recurrent state as an affine map, ``S -> M S + S_ext`` with
``M = prod (I - beta k k^T) Diag(exp g)``. Every rank runs its own stretch once from nothing, sends
``[M | S_ext]``, merges the maps of the earlier ranks of its document and then knows its true
initial state. The message has ``dk x (dk + dv)`` numbers per head, however long the stretch is.

The short convolution before the recurrence looks W-1 tokens back, so its ranks exchange a halo of
W-1 rows.

Sources: flash-linear-attention #691 (`ops/cp`), Kimi K3 report 5.1.2 equation 17, SGLang #34059.
"""

from __future__ import annotations

from k3core.parallel.affine import (
    AffineMap,
    compose,
    merge,
    scan_chain,
    scan_tree,
    transition_and_offset,
)
from k3core.parallel.layout import Layout, Piece
from k3core.parallel.ranks import KDAContextParallel
from k3core.parallel.traffic import (
    ConvolutionResult,
    PrefillResult,
    RankTraffic,
    all_gather_seconds,
)

__all__ = [
    "KDAContextParallel",
    "PrefillResult",
    "ConvolutionResult",
    "RankTraffic",
    "Layout",
    "Piece",
    "AffineMap",
    "merge",
    "compose",
    "scan_chain",
    "scan_tree",
    "transition_and_offset",
    "all_gather_seconds",
]
