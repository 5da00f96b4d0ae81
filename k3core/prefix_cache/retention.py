"""Where a prompt leaves KDA checkpoints: pure functions of lengths.

An MLA block can be reused wherever it is kept; a KDA state only at the boundaries that one of
these rules chose. Re-exported by ``k3core.prefix_cache``; the fleet's cache follows the same rules.

    dense       every block boundary (an upper bound: at TP8 a state weighs eight fp8 MLA blocks)
    interval    one every ``interval_tokens``, and the replay boundary (vLLM retention interval k)
    junction    the replay boundary and the position where the prompt left a known path: the second
                sighting makes a shared prefix reusable (vLLM #45238, SGLang branching states)
    replay      the replay boundary only (vLLM retention interval 0)
    chunk_end   wherever a chunk happens to end: no stop is made for the cache's sake
    none        nowhere
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from k3core.errors import CacheError, require, require_count, require_counts, shown

MAX_TOKENS = 2**40  # of a prompt: beyond it, a list of its boundaries fits into no memory
RETENTION_RULES = ("dense", "interval", "junction", "replay", "chunk_end", "none")


def replay_boundary(num_tokens: int, hash_block_tokens: int = 512, dropped_blocks: int = 0) -> int:
    """Deepest boundary at which the same prompt, sent again, may resume.

    ``(num_tokens - 1) // B * B`` because the last token is always computed, less the blocks that a
    drafter drops (vLLM shifts its last stop by as much).
    """
    require_count("num_tokens", num_tokens)
    require_count("hash_block_tokens", hash_block_tokens, 1)
    require_count("dropped_blocks", dropped_blocks)
    blocks = max(num_tokens - 1, 0) // hash_block_tokens - dropped_blocks
    return max(blocks, 0) * hash_block_tokens


def dense_boundaries(num_tokens: int, hash_block_tokens: int = 512) -> tuple[int, ...]:
    """Every block boundary up to ``num_tokens``."""
    require_count("hash_block_tokens", hash_block_tokens, 1)
    return every_boundaries(num_tokens, hash_block_tokens, hash_block_tokens)


def every_boundaries(
    num_tokens: int, interval_tokens: int, hash_block_tokens: int = 512
) -> tuple[int, ...]:
    """One boundary every ``interval_tokens``, rounded up to whole blocks; none for 0."""
    require_count("num_tokens", num_tokens, 0, MAX_TOKENS, CacheError)
    require_count("interval_tokens", interval_tokens, error=CacheError)
    require_count("hash_block_tokens", hash_block_tokens, 1)
    step = -(-interval_tokens // hash_block_tokens) * hash_block_tokens
    return tuple(range(step, num_tokens + 1, step)) if step else ()


def junction_boundaries(
    junctions: Iterable[int], num_tokens: int, hash_block_tokens: int = 512
) -> tuple[int, ...]:
    """Positions where prompts part, floored to their block; those outside are ignored."""
    block = require_count("hash_block_tokens", hash_block_tokens, 1)
    require_count("num_tokens", num_tokens)
    places = require_counts("junctions", junctions, -MAX_TOKENS)
    kept = {at // block * block for at in places if 0 < at <= num_tokens}
    return tuple(sorted(kept - {0}))


def surplus_boundaries(
    boundaries: Collection[int], max_per_path: int | None, protected: Collection[int] = ()
) -> tuple[int, ...]:
    """What a cap on the states of one path gives up: the shallowest that nothing protects.

    The deepest boundary is always protected; so are forks and states in use, if the caller names
    them (SGLang ``mamba_max_states_per_path``). Ascending; empty without a cap.
    """
    if max_per_path is None:
        return ()
    require_count("max_per_path", max_per_path, 1)
    places = require_counts("boundaries", boundaries)
    kept = {max(places, default=0), *require_counts("protected", protected)}
    surplus = max(len(places) - max_per_path, 0)
    loose = [at for at in sorted(places) if at not in kept]
    return tuple(loose[:surplus])


def retained_boundaries(
    num_tokens: int,
    hash_block_tokens: int = 512,
    interval_blocks: int = 1,
    junctions: Iterable[int] = (),
) -> tuple[int, ...]:
    """Boundaries at which a prompt of ``num_tokens`` leaves KDA checkpoints, ascending.

    The replay boundary is always kept. ``interval_blocks = k > 0`` adds one checkpoint every k
    blocks (1 is dense), 0 adds none; junctions are added as ``junction_boundaries`` says. The rule
    is that of vLLM 0.33 (retention interval).

    Raises:
        CacheError: a negative argument, or ``hash_block_tokens`` below 1.
    """
    require_count("interval_blocks", interval_blocks, error=CacheError)
    require_count("num_tokens", num_tokens, error=CacheError)
    kept = {replay_boundary(num_tokens, hash_block_tokens)}
    kept.update(
        every_boundaries(num_tokens, interval_blocks * hash_block_tokens, hash_block_tokens)
    )
    kept.update(junction_boundaries(junctions, num_tokens, hash_block_tokens))
    kept.discard(0)
    return tuple(sorted(kept))


@dataclass(frozen=True, slots=True)
class Retention:
    """One rule with its parameters.

    Args:
        rule: one of ``RETENTION_RULES``.
        interval_tokens: distance of checkpoints, for ``interval``.
        max_per_path: most checkpoints on one path from the root; None is no cap.

    Raises:
        CacheError: an unknown rule, or ``interval`` without a distance.
        K3Error: a cap below 1.
    """

    rule: str = "junction"
    interval_tokens: int = 0
    max_per_path: int | None = None

    def __post_init__(self) -> None:
        require(
            self.rule in RETENTION_RULES,
            f"rule={self.rule!r} is unknown; allowed: {', '.join(RETENTION_RULES)}",
            CacheError,
        )
        require(
            require_count("interval_tokens", self.interval_tokens) > 0 or self.rule != "interval",
            f"interval_tokens={self.interval_tokens} must be at least 1 for the rule interval",
            CacheError,
        )
        if self.max_per_path is not None:
            require_count("max_per_path", self.max_per_path, 1)

    @property
    def stops(self) -> bool:
        """Whether a prefill is cut at the boundaries that the rule keeps."""
        return self.rule not in ("chunk_end", "none")

    def stop_boundaries(
        self,
        num_tokens: int,
        hash_block_tokens: int = 512,
        junction_tokens: int = 0,
        dropped_blocks: int = 0,
    ) -> tuple[int, ...]:
        """Boundaries of a prompt for whose sake a chunk ends, ascending."""
        require_count("num_tokens", num_tokens, 0, MAX_TOKENS)
        require_count("junction_tokens", junction_tokens)
        require_count("dropped_blocks", dropped_blocks)
        block = require_count("hash_block_tokens", hash_block_tokens, 1)
        if not self.stops:
            return ()
        kept = {replay_boundary(num_tokens, block, dropped_blocks)}
        if self.rule == "dense":
            kept.update(dense_boundaries(num_tokens, block))
        elif self.rule == "interval":
            kept.update(every_boundaries(num_tokens, self.interval_tokens, block))
        elif self.rule == "junction":
            kept.update(junction_boundaries((junction_tokens,), num_tokens, block))
        kept.discard(0)
        surplus = surplus_boundaries(kept, self.max_per_path, {junction_tokens // block * block})
        return tuple(sorted(kept.difference(surplus)))

    def keeps(self, boundary: int, stops: Collection[int]) -> bool:
        """Whether a state that exists at ``boundary`` outlives the next one of its request."""
        require_count("boundary", boundary)
        require(
            isinstance(stops, Collection) and not isinstance(stops, str),
            f"stops={shown(stops)} must be a collection of positions",
        )
        return self.rule in ("dense", "chunk_end") or boundary in stops
