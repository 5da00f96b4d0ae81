"""Generated workloads: growing conversations, hub prefixes, long-tailed lengths.

``synthetic_workload``: conversations that grow, over system prompts that many share.

Turn t of a session repeats the whole of turn t-1, its answer, and a new message; so the full
blocks of a prompt are shared with the session's earlier turns and its partial last block is not.
Sessions come in two kinds: chats that start short and documents that start long. Turns arrive in
a Poisson stream, each drawn from the sessions with log-normal weights (a few sessions are busy).

``hub_workload``: one-off prompts over a few system prompts, the case that defeats the longest
prefix. ``lognormal_workload``: the length law of PrfaaS (arXiv:2604.15039), nothing shared.

Every generator can be bursty: gaps follow a gamma law whose standard deviation is ``arrival_cv``
times their mean (1: Poisson; the Azure 2023 code trace has 13).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3core.errors import require, require_choice, require_count, require_number, require_type
from k3core.fleet.cache import BLOCK_LEN
from k3core.fleet.columns import MAX_REQUESTS, require_column
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
    arrival_cv: float = 1.0,
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
        arrival_cv: standard deviation of the gaps between arrivals over their mean.

    Raises:
        K3Error: a count or rate that is not positive, or a share outside [0, 1].
    """
    require_count("num_sessions", num_sessions, 1, MAX_REQUESTS)
    require_number("long_share", long_share, least=0, most=1)
    require_count("hub_len", hub_len, 0, MAX_INPUT_LEN)
    rng = _generator(num_requests, seed, long_threshold)
    arrival_s = arrival_times(num_requests, rate_per_s, arrival_cv, rng)

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
    block_ids, block_offsets = session_blocks(session, input_len, num_sessions, num_hub_blocks)
    return Workload(
        arrival_s=arrival_s,
        input_len=input_len,
        output_len=output_len,
        block_ids=block_ids,
        block_offsets=block_offsets,
        sessions=session.astype(np.uint64),
        long_threshold=long_threshold,
    )


def hub_workload(
    num_requests: int = 1800,
    rate_per_s: float = 2.0,
    num_hubs: int = 3,
    hub_len: int = 8 * BLOCK_LEN,
    tail_len: int = 1500,
    seed: int = 0,
    arrival_cv: float = 1.0,
    long_threshold: int = LONG_THRESHOLD,
) -> Workload:
    """One-off prompts, each over one of a few system prompts; hub h is drawn with weight 1/(h+1).

    Args:
        num_requests: requests, each a session of its own.
        rate_per_s: mean arrivals per second.
        num_hubs: system prompts.
        hub_len: tokens of each, rounded down to whole blocks.
        tail_len: median tokens after the hub (log-normal, sigma 0.9).
        seed, arrival_cv, long_threshold: as ``synthetic_workload``.

    Raises:
        K3Error: a count, length or rate out of range.
    """
    require_count("num_hubs", num_hubs, 1, MAX_REQUESTS)
    require_count("hub_len", hub_len, BLOCK_LEN, MAX_INPUT_LEN)
    require_count("tail_len", tail_len, 1, MAX_INPUT_LEN)
    rng = _generator(num_requests, seed, long_threshold)
    arrival_s = arrival_times(num_requests, rate_per_s, arrival_cv, rng)
    weight = 1.0 / np.arange(1, num_hubs + 1)
    hub = rng.choice(num_hubs, num_requests, p=weight / weight.sum())
    tail = np.maximum(1, rng.lognormal(np.log(tail_len), 0.9, num_requests)).astype(np.int64)
    hub_blocks = hub_len // BLOCK_LEN
    input_len = np.minimum(hub_blocks * BLOCK_LEN + tail, MAX_INPUT_LEN)
    ids, offsets = session_blocks(np.arange(num_requests), input_len, num_requests, 0)
    depth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    in_hub = depth < hub_blocks
    ids += num_hubs * hub_blocks
    ids[in_hub] = (np.repeat(hub, np.diff(offsets)) * hub_blocks + depth)[in_hub]
    return Workload(
        arrival_s=arrival_s,
        input_len=input_len,
        output_len=_output_len(num_requests, rng),
        block_ids=ids,
        block_offsets=offsets,
        sessions=np.arange(num_requests).astype(np.uint64),
        long_threshold=long_threshold,
    )


def lognormal_workload(
    num_requests: int = 1800,
    rate_per_s: float = 2.0,
    seed: int = 0,
    arrival_cv: float = 1.0,
    long_threshold: int = LONG_THRESHOLD,
) -> Workload:
    """Prompts of PrfaaS: log-normal (mu 9.90, sigma 1.00) cut to [128, 128K], 1,024 tokens out.

    Lengths outside the range are drawn again. Nothing is shared between requests.

    Raises:
        K3Error: a count or rate out of range.
    """
    rng = _generator(num_requests, seed, long_threshold)
    arrival_s = arrival_times(num_requests, rate_per_s, arrival_cv, rng)
    length = rng.lognormal(9.90, 1.00, num_requests)
    while len(outside := np.flatnonzero((length < 128) | (length > 131_072))):
        length[outside] = rng.lognormal(9.90, 1.00, len(outside))
    input_len = length.astype(np.int64)
    ids, offsets = session_blocks(np.arange(num_requests), input_len, num_requests, 0)
    return Workload(
        arrival_s=arrival_s,
        input_len=input_len,
        output_len=np.full(num_requests, 1024, np.int64),
        block_ids=ids,
        block_offsets=offsets,
        sessions=np.arange(num_requests).astype(np.uint64),
        long_threshold=long_threshold,
    )


GENERATORS = ("sessions", "hubs", "lognormal")


def generated_workload(
    kind: str,
    num_requests: int = 1800,
    rate_per_s: float = 2.0,
    arrival_cv: float = 1.0,
    seed: int = 0,
    long_threshold: int = LONG_THRESHOLD,
    num_sessions: int | None = None,
) -> Workload:
    """A workload of one of the ``GENERATORS``, otherwise with its defaults.

    Args:
        kind: ``sessions`` (``synthetic_workload``), ``hubs`` or ``lognormal``.
        num_sessions: of the kind ``sessions``; None: five for every six requests.

    Raises:
        K3Error: an unknown kind or a number out of range.
    """
    require_choice("generator", kind, GENERATORS)
    require_count("num_requests", num_requests, 1, MAX_REQUESTS)
    common = {"arrival_cv": arrival_cv, "seed": seed, "long_threshold": long_threshold}
    if kind == "hubs":
        return hub_workload(num_requests, rate_per_s, **common)  # type: ignore[arg-type]
    if kind == "lognormal":
        return lognormal_workload(num_requests, rate_per_s, **common)  # type: ignore[arg-type]
    if num_sessions is None:
        num_sessions = max(1, num_requests * 5 // 6)
    return synthetic_workload(num_requests, num_sessions, rate_per_s, **common)  # type: ignore[arg-type]


def _generator(num_requests: int, seed: int, long_threshold: int) -> np.random.Generator:
    """The source of every draw, after a look at what all kinds of workload take."""
    require_count("num_requests", num_requests, 1, MAX_REQUESTS)
    require_count("long_threshold", long_threshold, 1)
    return np.random.default_rng(require_count("seed", seed))


def arrival_times(
    num: int, rate_per_s: float, arrival_cv: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(num,) seconds, a renewal process of gamma gaps; Poisson when ``arrival_cv`` is 1.

    Raises:
        K3Error: a rate or variation that is not positive and finite.
    """
    require_count("num", num, 0, MAX_REQUESTS)
    require_number("rate_per_s", rate_per_s, above=0)
    require_number("arrival_cv", arrival_cv, least=1e-3, most=1e3)
    require_type("rng", rng, np.random.Generator)
    mean_s = 1.0 / rate_per_s
    if arrival_cv == 1.0:
        return np.cumsum(rng.exponential(mean_s, num))
    shape = arrival_cv**-2
    return np.cumsum(rng.gamma(shape, mean_s / shape, num))


def _output_len(num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.maximum(1, rng.lognormal(np.log(300), 0.7, num)).astype(np.int64)


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


def session_blocks(
    session: NDArray[np.int64],
    input_len: NDArray[np.int64],
    num_sessions: int,
    num_hub_blocks: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids of all paths end to end, and their offsets.

    Hub blocks are 0..h-1; each session owns a range for its full blocks; a partial last block is
    unlike any other one.

    Raises:
        K3Error: a session outside 0..num_sessions-1, or lengths that are no columns of one size.
    """
    require_column("session", session, "iu")
    require_column("input_len", input_len, "iu")
    require(len(session) == len(input_len), "session and input_len must have the same length")
    require_count("num_sessions", num_sessions, int(session.max(initial=-1)) + 1, MAX_REQUESTS)
    require_count("num_hub_blocks", num_hub_blocks, 0, MAX_INPUT_LEN // BLOCK_LEN)
    require(bool((input_len >= 1).all()), "input_len must be >= 1")
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
