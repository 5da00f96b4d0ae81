"""A synthetic workload: conversations that grow, over a system prompt that everyone shares.

Turn t of a session repeats the whole of turn t-1, its answer, and a new message; so the full
blocks of a prompt are shared with the session's earlier turns and its partial last block is not.
Sessions come in two kinds: chats that start short and documents that start long. Turns arrive in
a Poisson stream, each drawn from the sessions with log-normal weights (a few sessions are busy).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3core.errors import require
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.workload import LONG_THRESHOLD, Workload

MAX_INPUT_LEN = 262_144


def synthetic_workload(
    num_requests: int = 1800,
    num_sessions: int = 1500,
    rate_per_s: float = 2.0,
    long_share: float = 0.25,
    hub_len: int = 2 * BLOCK_LEN,
    long_threshold: int = LONG_THRESHOLD,
    seed: int = 0,
) -> Workload:
    """Generate requests of growing sessions; the same arguments give the same bytes.

    Args:
        num_requests: turns in all.
        num_sessions: conversations that they are drawn from (some may never speak).
        rate_per_s: mean arrivals per second.
        long_share: share of sessions that start with a document (median 80K tokens) instead of
            a message (median 1,500 tokens).
        hub_len: tokens of the system prompt, rounded down to whole blocks.
        long_threshold: prompts of at least this many tokens are of class ``long``.
        seed: of every draw.

    Raises:
        K3Error: a count or rate that is not positive, or a share outside [0, 1].
    """
    require(num_requests >= 1, f"num_requests={num_requests} must be >= 1")
    require(num_sessions >= 1, f"num_sessions={num_sessions} must be >= 1")
    require(0 < rate_per_s < np.inf, f"rate_per_s={rate_per_s} must be positive and finite")
    require(0 <= long_share <= 1, f"long_share={long_share} must be in [0, 1]")
    require(hub_len >= 0, f"hub_len={hub_len} must be >= 0")
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, num_requests))

    activity = rng.lognormal(0.0, 1.3, num_sessions)
    session = rng.choice(num_sessions, num_requests, p=activity / activity.sum())
    starts_long = rng.random(num_sessions) < long_share
    opening = np.where(
        starts_long,
        rng.lognormal(np.log(80_000), 0.8, num_sessions),
        rng.lognormal(np.log(1_500), 0.9, num_sessions),
    )
    output_len = np.maximum(1, rng.lognormal(np.log(300), 0.7, num_requests)).astype(np.int64)
    message = np.maximum(1, rng.lognormal(np.log(120), 1.0, num_requests)).astype(np.int64)

    num_hub_blocks = hub_len // BLOCK_LEN
    input_len = num_hub_blocks * BLOCK_LEN + np.maximum(1, opening).astype(np.int64)[session]
    input_len += _earlier_in_session(session, output_len + message)
    input_len = np.minimum(input_len, MAX_INPUT_LEN)
    block_ids, block_offsets = _blocks(session, input_len, num_sessions, num_hub_blocks)
    return Workload(
        arrival_s=arrival_s,
        input_len=input_len,
        output_len=output_len,
        block_ids=block_ids,
        block_offsets=block_offsets,
        sessions=session.astype(np.uint64),
        long_threshold=long_threshold,
    )


def _earlier_in_session(session: NDArray[np.int64], amount: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of ``amount`` over the earlier requests of the same session, per request."""
    order = np.argsort(session, kind="stable")
    before = np.cumsum(amount[order]) - amount[order]
    first = np.flatnonzero(np.diff(session[order], prepend=-1))
    turns = np.diff(first, append=len(session))
    before -= np.repeat(before[first], turns)
    result = np.empty_like(before)
    result[order] = before
    return result


def _blocks(
    session: NDArray[np.int64],
    input_len: NDArray[np.int64],
    num_sessions: int,
    num_hub_blocks: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids of all paths end to end, and their offsets.

    Hub blocks are 0..h-1; each session owns a range for its full blocks; a partial last block is
    unlike any other one.
    """
    num_full = input_len // BLOCK_LEN
    num_blocks = -(-input_len // BLOCK_LEN)
    offsets = np.concatenate(([0], np.cumsum(num_blocks)))
    owner = np.repeat(np.arange(len(session)), num_blocks)
    depth = np.arange(offsets[-1]) - offsets[owner]

    longest = np.zeros(num_sessions, np.int64)
    np.maximum.at(longest, session, num_full)
    base = num_hub_blocks + np.concatenate(([0], np.cumsum(longest)))
    ids = base[session[owner]] + depth - num_hub_blocks
    ids = np.where(depth < num_hub_blocks, depth, ids)
    partial = depth == num_full[owner]
    ids[partial] = base[-1] + np.arange(int(partial.sum()))
    return ids, offsets
