"""Where the chunks of a prefill end: a KDA state exists nowhere else.

A state is written when a chunk ends. A chunk that ends inside a physical block leaves a state that
belongs to no boundary; published under the next boundary it would be wrong (vLLM #34587). So a
chunk ends at a physical block, at a stop that the retention rule asks for, or at the prompt's end.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, repeat

from k3core.errors import CacheError, require, require_count, require_counts
from k3core.prefix_cache.retention import MAX_TOKENS


def next_chunk_end(
    start: int,
    num_tokens: int,
    budget: int,
    block_tokens: int,
    stops: Collection[int] = (),
    max_budget: int | None = None,
) -> int:
    """End of the chunk that begins at ``start``, or ``start`` when the request has to wait.

    Args:
        start: tokens computed so far, anywhere.
        num_tokens: length of the prompt.
        budget: tokens that this step has left.
        block_tokens: physical block, the scheduler's alignment.
        stops: further positions at which a state is wanted.
        max_budget: tokens of a whole step; None is ``budget``. Only where a block exceeds it, a
            chunk may end inside the block: no later step could reach the boundary at once.

    Raises:
        CacheError: ``start`` is not inside of the prompt.
        K3Error: a count below its least.
    """
    require_count("block_tokens", block_tokens, 1)
    require_count("budget", budget)
    require_count("num_tokens", num_tokens, 0, MAX_TOKENS)
    require_count("start", start, error=CacheError)
    if max_budget is not None:
        require_count("max_budget", max_budget)
    require(
        start < num_tokens,
        f"start={start} is outside of a prompt of {num_tokens} tokens",
        CacheError,
    )
    places = require_counts("stops", stops)
    whole = budget if max_budget is None else max_budget
    return _chunk_end(start, num_tokens, budget, block_tokens, places, whole)


def _chunk_end(
    start: int, num_tokens: int, budget: int, block_tokens: int, stops: Collection[int], whole: int
) -> int:
    reach = min(start + budget, num_tokens)
    last_block = (num_tokens - 1) // block_tokens * block_tokens
    boundary = (start // block_tokens + 1) * block_tokens
    if start >= last_block:
        end = num_tokens
    elif start % block_tokens:
        end = boundary
    else:
        end = min(last_block, max(reach // block_tokens * block_tokens, boundary))
    end = min([end, *(at for at in stops if start < at < end)])
    if end <= reach:
        return end
    # The rest of the block does not fit into this step.
    return reach if end - start > whole and reach > start else start


def chunk_ends(
    num_tokens: int,
    max_batched_tokens: int,
    block_tokens: int,
    stops: Collection[int] = (),
    start: int = 0,
) -> tuple[int, ...]:
    """Ends of all chunks of a prefill that has every step for itself."""
    whole = require_count("max_batched_tokens", max_batched_tokens, 1)
    return fragmented_chunk_ends(num_tokens, (whole,), block_tokens, stops, start)


def fragmented_chunk_ends(
    num_tokens: int,
    budgets: Collection[int],
    block_tokens: int,
    stops: Collection[int] = (),
    start: int = 0,
) -> tuple[int, ...]:
    """Chunk ends when the first steps are shared; afterwards the request is alone.

    The largest budget counts as a whole step. A step that cannot end a chunk well adds no end.
    """
    require_count("num_tokens", num_tokens, 0, MAX_TOKENS)
    require_count("block_tokens", block_tokens, 1)
    places = require_counts("stops", stops)
    steps = require_counts("budgets", budgets)
    whole = max([*steps, 1])
    ends: list[int] = []
    at = require_count("start", start)
    left = chain(steps, repeat(whole))
    while at < num_tokens:
        end = _chunk_end(at, num_tokens, next(left), block_tokens, places, whole)
        if end > at:
            ends.append(end)
        at = end
    return tuple(ends)
