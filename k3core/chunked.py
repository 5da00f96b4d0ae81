"""The chunked form of the KDA recurrence: many tokens per matrix product (WY form).

With ``G`` the cumulative log-decay inside a chunk of C tokens, ``b`` the diagonal matrix of beta
and ``S`` the state before the chunk::

    A  = b stril(<k_i e^(G_i - G_j), k_j>)        U = (I + A)^-1 b (V - e^G K S)
    O  = e^G Q S + tril(<q_i e^(G_i - G_j), k_j>) U
    S <- e^(G_C) S + (e^(G_C - G) K)^T U

The factors ``e^(G_i - G_j)`` differ per key channel, so they have to go into the operands of the
products, and ``e^(-G_j)`` alone would overflow. Blocks of 1, 2, 4, ... tokens are joined pairwise
instead: the rows of the later block carry the decay from the border up to themselves, those of the
earlier block the decay after themselves up to the border. Each factor is a product of `exp(g)`
over a run of tokens, so it lies in [0, 1] for log-decays <= 0, whatever the gate; each token takes
one exponential per channel; and after the last join the rows are ``e^G K``, ``e^G Q`` and
``e^(G_C - G) K`` themselves.

Source of the form: Kimi-Linear report (arXiv:2510.26692), flash-linear-attention `ops/kda`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SOLVED_LEN = 16
"""Tokens of the blocks that are inverted by substitution; larger ones are joined by products."""

WORKING_ELEMENTS = 2**18
"""Elements of one array of keys that a thread works on at a time, so that its cache holds them."""


class Workspace:
    """Memory for the arrays of one segment, so that the next segment allocates nothing.

    With gradients nothing may be overwritten: then every request gets new memory.

    Args:
        reused: hand out the same memory again for the same name.
    """

    def __init__(self, reused: bool) -> None:
        self.reused = reused
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor | None:
        """A tensor to be written whole by ``out=``; None with gradients."""
        return self._hold(name, like.new_empty, shape) if self.reused else None

    def zeros(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """A tensor that is zero wherever this name has never been written."""
        return self._hold(name, like.new_zeros, shape) if self.reused else like.new_zeros(shape)

    def _hold(
        self, name: str, make: Callable[[tuple[int, ...]], Tensor], shape: tuple[int, ...]
    ) -> Tensor:
        held = self._held.get(name)
        if held is None or held.shape[1:] != shape[1:] or held.shape[0] < shape[0]:
            held = self._held[name] = make(shape)
        return held[: shape[0]]


class Chunks(NamedTuple):
    """What the loop over chunks needs: n chunks of N heads, C tokens each.

    Attributes:
        left: (n, N, 2C, K) rows ``e^G K`` and ``e^G Q`` by turns.
        right: (n, N, K, C) columns ``e^(G_C - G) K``.
        inverse: (n, N, C, C) ``(I + A)^-1 b``.
        products: (n, N, C, C) ``tril(<q_i e^(G_i - G_j), k_j>)``.
        decay: (n, N, K, 1) ``e^(G_C)``.
    """

    left: Tensor
    right: Tensor
    inverse: Tensor
    products: Tensor
    decay: Tensor


def run_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    state: Tensor,
    chunk_len: int,
    in_place: bool,
    num_threads: int = 1,
) -> tuple[Tensor, Tensor]:
    """All tokens of N heads.

    Args:
        q, k, g: (N, T, K), T >= 1, any float dtype.
        v: (N, T, V).
        beta: (N, T).
        state: (N, K, V) in the dtype of the computation; overwritten when `in_place`.
        chunk_len: tokens per chunk.
        in_place: no gradients are wanted, so memory may be written again.
        num_threads: threads that share one operation; the result does not depend on it.

    Returns:
        (out (N, T, V) in the dtype of `v`, state (N, K, V)).
    """
    num_heads, num_tokens, dk = k.shape
    chunk_len = min(chunk_len, num_tokens)
    at_a_time = num_threads * WORKING_ELEMENTS
    per_segment = max(1, at_a_time // (num_heads * chunk_len * dk)) * chunk_len
    room = Workspace(reused=in_place)
    out = v.new_empty(v.shape) if in_place else None
    parts = []
    for start in range(0, num_tokens, per_segment):
        part = slice(start, start + per_segment)
        target = None if out is None else out[:, part]
        sequences = [x[:, part] for x in (q, k, v, g, beta.unsqueeze(-1))]
        written, state = _run_segment(
            *sequences, state=state, chunk_len=chunk_len, out=target, room=room
        )
        parts.append(written)
    return (torch.cat(parts, dim=1) if out is None else out), state


def _run_segment(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    state: Tensor,
    chunk_len: int,
    out: Tensor | None,
    room: Workspace,
) -> tuple[Tensor, Tensor]:
    """A run of chunks; (N, t, V) outputs, written to `out` if given, and the state after it."""
    query, key, value, log_decay, strength = (
        _split(x.to(state.dtype), chunk_len) for x in (q, k, v, g, beta)
    )
    chunks = _prepare(query, key, log_decay, strength.squeeze(-1), room)
    _, num_heads, padded_len, dv = value.shape
    shape = (num_heads, padded_len, dv)
    both_room = room.take("both", state, num_heads, 2 * padded_len, dv)
    error_room, update_room, own_room = (
        room.take(name, state, *shape) for name in ("error", "update", "own")
    )
    targets = [None] * len(value) if out is None else out.split(chunk_len, dim=1)
    outputs = []
    for target, value_n, left, right, inverse, products, decay in zip(
        targets, value.unbind(0), *(x.unbind(0) for x in chunks), strict=True
    ):
        both = torch.bmm(left, state, out=both_room)
        predicted, out_n = both.view(num_heads, padded_len, 2, dv).unbind(2)
        error = torch.sub(value_n, predicted, out=error_room)
        update = torch.bmm(inverse, error, out=update_room)
        own = torch.bmm(products, update, out=own_room)
        if target is None:
            outputs.append((out_n + own)[:, :chunk_len])
        else:
            num_rows = target.shape[1]
            torch.add(out_n[:, :num_rows], own[:, :num_rows], out=target)
        if room.reused:
            state.mul_(decay).baddbmm_(right, update)
        else:
            state = torch.baddbmm(state * decay, right, update)
    if out is None:
        out = torch.cat(outputs, dim=1)[:, : v.shape[1]].to(v.dtype)
    return out, state


def _prepare(
    query: Tensor, key: Tensor, log_decay: Tensor, strength: Tensor, room: Workspace
) -> Chunks:
    """Everything that needs no state, for all chunks at once.

    Args:
        query, key, log_decay: (n, N, C, K), C a power of 2.
        strength: (n, N, C).
    """
    lead, length, dk = key.shape[:2], key.shape[2], key.shape[3]
    num = lead[0] * lead[1]
    decay = torch.exp(log_decay, out=room.take("decay", key, *key.shape))
    left = room.take("left", key, *lead, length, 2, dk)
    right = room.take("right", key, *key.shape)
    if left is None or right is None:
        left, right = torch.stack([key * decay, query * decay], dim=-2), key
    else:
        torch.mul(key, decay, out=left[..., 0, :])
        torch.mul(query, decay, out=left[..., 1, :])
        right.copy_(key)
    # Rows by turns, as in `left`: of keys with keys, of queries with keys.
    scores = room.zeros("scores", key, num, 2 * length, length)
    by_source = scores.view(num, length, 2, length)
    among_keys, products = by_source[:, :, 0], by_source[:, :, 1]
    same_token = torch.mul(query, key, out=room.take("same_token", key, *key.shape)).sum(-1)
    products.diagonal(dim1=1, dim2=2).copy_(same_token.view(num, length))

    total, size = decay, 1
    while size < length:
        num_joins = length // (2 * size)
        halves = left.reshape(num * num_joins, 2, 2 * size, dk)
        earlier = right.reshape(num * num_joins, 2, size, dk)
        totals = total.reshape(num * num_joins, 2, 1, dk)
        crossing = torch.bmm(
            halves[:, 1],
            earlier[:, 0].transpose(1, 2),
            out=room.take(f"crossing{size}", key, num * num_joins, 2 * size, size),
        )
        _diagonal_blocks(scores, 2 * size)[:, :, 2 * size :, :size].copy_(
            crossing.view(num, num_joins, 2 * size, size)
        )
        left = _scale_half(halves, 1, totals[:, 0], room)
        right = _scale_half(earlier, 0, totals[:, 1], room)
        total = torch.mul(
            totals[:, 0],
            totals[:, 1],
            out=room.take(f"total{size}", key, num * num_joins, 1, dk),
        )
        size *= 2

    strength = strength.reshape(num, length)
    lower = torch.mul(
        among_keys, strength.unsqueeze(2), out=room.take("lower", key, num, length, length)
    )
    inverse = torch.mul(
        _inverse(lower, room),
        strength.unsqueeze(1),
        out=room.take("inverse", key, num, length, length),
    )
    return Chunks(
        left.reshape(*lead, 2 * length, dk),
        right.reshape(*lead, length, dk).transpose(2, 3),
        inverse.view(*lead, length, length),
        products.view(*lead, length, length),
        total.reshape(*lead, dk, 1),
    )


def _inverse(lower: Tensor, room: Workspace) -> Tensor:
    """``(I + lower)^-1`` of strictly lower triangular (M, C, C) matrices.

    Diagonal blocks of `SOLVED_LEN` by substitution, then joined: the block under the diagonal of
    the inverse of ``[[A, 0], [X, B]]`` is ``-B^-1 X A^-1``.
    """
    num, length, _ = lower.shape
    size = min(SOLVED_LEN, length)
    eye = torch.eye(size, dtype=lower.dtype, device=lower.device)
    solved = torch.linalg.solve_triangular(
        _diagonal_blocks(lower, size), eye, upper=False, unitriangular=True
    )
    while size < length:
        under = _diagonal_blocks(lower, 2 * size)[:, :, size:, :size].reshape(-1, size, size)
        first, second = solved.reshape(-1, 2, size, size).unbind(1)
        joined = room.zeros(f"joined{size}", lower, first.shape[0], 2, size, 2, size)
        joined[:, 0, :, 0] = first
        joined[:, 1, :, 1] = second
        joined[:, 1, :, 0] = -torch.bmm(second, torch.bmm(under, first))
        solved, size = joined, 2 * size
    return solved.reshape(num, length, length)


def _diagonal_blocks(x: Tensor, size: int) -> Tensor:
    """Diagonal blocks of (M, R, C) matrices: a view (M, n, R // n, size) with n = C // size."""
    num_blocks = x.shape[2] // size
    blocks = x.unflatten(1, (num_blocks, -1)).unflatten(3, (num_blocks, size))
    return blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def _scale_half(x: Tensor, half: int, factor: Tensor, room: Workspace) -> Tensor:
    """Multiply ``x[:, half]`` of (M, 2, rows, K) by (M, 1, K)."""
    if room.reused:
        x[:, half].mul_(factor)
        return x
    halves = list(x.unbind(1))
    halves[half] = halves[half] * factor
    return torch.stack(halves, dim=1)


def _split(x: Tensor, chunk_len: int) -> Tensor:
    """(N, t, D) -> (n, N, C, D), C the power of 2 that holds a chunk; zero rows fill the ends.

    A zero row is inert: it decays by exp(0) and writes nothing. Without filling this is a view.
    """
    num_tokens = x.shape[1]
    padded_len = 1 << (chunk_len - 1).bit_length()
    x = F.pad(x, (0, 0, 0, -num_tokens % chunk_len)) if num_tokens % chunk_len else x
    chunks = x.unflatten(1, (-1, chunk_len))
    if padded_len > chunk_len:
        chunks = F.pad(chunks, (0, 0, 0, padded_len - chunk_len))
    return chunks.transpose(0, 1)
