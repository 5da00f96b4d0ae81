"""A stretch of tokens as an affine map of the recurrent state, and scans over such maps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from k3core import kda
from k3core.checks import require_float, require_shape
from k3core.errors import require, require_type


class AffineMap(NamedTuple):
    """What a stretch of tokens does to the state before it: ``S -> transition @ S + offset``.

    Attributes:
        transition: (B, H, dk, dk), or None when a document starts inside the stretch: then nothing
            from before it may come through, not even as zero times infinity.
        offset: (B, H, dk, dv) state after the stretch when it starts from zeros.
    """

    transition: Tensor | None
    offset: Tensor


def merge(state: Tensor, stretch: AffineMap) -> Tensor:
    """State after `stretch` when `state` (B, H, dk, dv) was the one before it.

    Raises:
        K3Error: no tensor or map, or shapes or dtypes that do not fit each other.
    """
    _require_map("stretch", stretch)
    require_float("state", state)
    require_shape("state", state, tuple(stretch.offset.shape))
    if stretch.transition is None:
        return stretch.offset
    require(
        state.dtype == stretch.offset.dtype,
        f"state has dtype {state.dtype}; allowed: that of the map, {stretch.offset.dtype}",
    )
    return stretch.transition @ state + stretch.offset


def compose(later: AffineMap, earlier: AffineMap) -> AffineMap:
    """One map for `earlier` followed by `later`; associative, so maps may be merged as a tree."""
    _require_map("later", later)
    _require_map("earlier", earlier)
    if later.transition is None:
        return later
    transition = None if earlier.transition is None else later.transition @ earlier.transition
    return AffineMap(transition, merge(earlier.offset, later))


def scan_chain(maps: Sequence[AffineMap], state: Tensor) -> tuple[list[Tensor], int]:
    """States before each map and after the last one, merged one after the other.

    Returns:
        (len(maps) + 1 states, number of dependent merges).
    """
    _require_scan(maps, state)
    return list(accumulate(maps, merge, initial=state)), len(maps)


def scan_tree(maps: Sequence[AffineMap], state: Tensor) -> tuple[list[Tensor], int]:
    """The states of `scan_chain` in ``ceil(log2 n) + 1`` dependent steps (Hillis and Steele 1986).

    In round i, each map takes in the one ``2^i`` places before it; the last step applies each to
    `state`.

    Returns:
        (len(maps) + 1 states, number of dependent steps).
    """
    _require_scan(maps, state)
    prefixes, distance, depth = list(maps), 1, int(bool(maps))
    while distance < len(prefixes):
        prefixes = prefixes[:distance] + [
            compose(later, earlier)
            for earlier, later in zip(prefixes, prefixes[distance:], strict=False)
        ]
        distance, depth = 2 * distance, depth + 1
    return [state, *(merge(state, prefix) for prefix in prefixes)], depth


def transition_and_offset(k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The message of a stretch: the chunked recurrence over the columns of ``[I | 0]``.

    Each column of a state evolves on its own. Columns that start as the identity and have nothing
    to write become the transition; columns that start as zeros and write `v` become the state.

    Args:
        k, g: (B, H, T, dk).
        v: (B, H, T, dv).
        beta: (B, H, T).

    Returns:
        (B, H, dk, dk + dv).

    Raises:
        K3Error: no float tensors, or shapes that do not fit each other.
    """
    require_sequences(k, v, g, beta)
    dk = k.shape[-1]
    identity = torch.eye(dk, dtype=k.dtype, device=k.device).expand(*k.shape[:2], dk, dk)
    start = F.pad(identity, (0, v.shape[-1]))
    return kda.kda_chunk(k, k, F.pad(v, (dk, 0)), g, beta, start)[1]


def require_sequences(k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> None:
    """Raise K3Error unless these are float tensors of one batch, heads and tokens."""
    for name, x in (("k", k), ("v", v), ("g", g), ("beta", beta)):
        require_float(name, x)
    for name, x in (("k", k), ("v", v)):
        require(x.dim() == 4, f"{name} has shape {tuple(x.shape)}; allowed: (B, H, T, D)")
    require_shape("g", g, tuple(k.shape))
    require_shape("v", v, (*k.shape[:3], v.shape[-1]))
    require_shape("beta", beta, tuple(k.shape[:3]))


def _require_map(name: str, stretch: AffineMap) -> None:
    require_type(name, stretch, AffineMap)
    offset = stretch.offset
    require_float(f"{name}.offset", offset)
    require(offset.dim() >= 2, f"{name}.offset has shape {tuple(offset.shape)}; allowed: (…, D, D)")
    if stretch.transition is not None:
        require_float(f"{name}.transition", stretch.transition)
        square = (*offset.shape[:-1], offset.shape[-2])
        require_shape(f"{name}.transition", stretch.transition, square)


def _require_scan(maps: Sequence[AffineMap], state: Tensor) -> None:
    require_type("maps", maps, Sequence)  # type: ignore[type-abstract]
    require_float("state", state)
    for one in maps:
        _require_map("each of maps", one)
