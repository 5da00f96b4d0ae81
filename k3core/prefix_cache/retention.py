"""Where a prompt leaves KDA checkpoints: pure functions of lengths.

Re-exported by ``k3core.prefix_cache``; the fleet's cache follows the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from k3core.errors import CacheError, require, require_count


def retained_boundaries(
    num_tokens: int,
    hash_block_tokens: int = 512,
    interval_blocks: int = 1,
    junctions: Iterable[int] = (),
) -> tuple[int, ...]:
    """Boundaries at which a prompt of ``num_tokens`` leaves KDA checkpoints, ascending.

    The replay boundary ``(num_tokens - 1) // B * B`` is always kept: it is where the same prompt,
    sent again, resumes. ``interval_blocks = k > 0`` adds one checkpoint every k blocks (1 is
    dense), 0 adds none. A junction (a position where two prompts part) is floored to its block;
    one outside the prompt is ignored. The rule is that of vLLM 0.33 (retention interval).

    Raises:
        CacheError: a negative argument, or ``hash_block_tokens`` below 1.
    """
    require_count("hash_block_tokens", hash_block_tokens, 1)
    for name, value in (("num_tokens", num_tokens), ("interval_blocks", interval_blocks)):
        require(value >= 0, f"{name}={value} must not be negative", CacheError)
    block = hash_block_tokens
    kept = {max(num_tokens - 1, 0) // block * block}
    if interval_blocks:
        kept.update(range(interval_blocks * block, num_tokens + 1, interval_blocks * block))
    kept.update(at // block * block for at in junctions if 0 < at <= num_tokens)
    kept.discard(0)
    return tuple(sorted(kept))
