"""Two prompts and what the cache kept of the first one: all that decides a lookup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from k3core.errors import require, require_choice, require_count
from k3core.prefix_cache import retained_boundaries

POLICIES = ("every", "last", "none")
"""Where the first prompt leaves checkpoints: every k blocks and at its replay boundary, only at
its replay boundary, nowhere."""

FIRST = "first"
"""A policy that no reader is offered: only at the first boundary, as in the source text."""

EVICTIONS = ("none", "states", "blocks")
"""What left the cache since: nothing, the deepest states, the deepest quarter of the blocks."""


@dataclass(frozen=True)
class Case:
    """A second prompt that shares its beginning with a first one.

    Args:
        prompt_len: tokens of the second prompt.
        shared_len: tokens that both prompts begin with.
        first_tail: tokens of the first prompt after the shared part.
        block_tokens: tokens per hash block.
        num_groups: KDA groups.
        policy: one of ``POLICIES``.
        every_blocks: distance of checkpoints in blocks, for the policy ``every``.
        missing_group: group without a checkpoint at ``missing_boundary``: a number, ``none`` or
            ``all``.
        missing_boundary: token position.
        ready: whether the first prompt's bytes are written.
        seed: of the token ids.
        drafter_drop: a drafter gives up the last matched block.
        evicted: one of ``EVICTIONS``: what has left the cache since.
        salted: the second prompt is another tenant's.

    Raises:
        K3Error: the shared part is longer than the prompt, or an unknown code.
    """

    prompt_len: int = 5200
    shared_len: int = 4300
    first_tail: int = 0
    block_tokens: int = 512
    num_groups: int = 3
    policy: str = "every"
    every_blocks: int = 2
    missing_group: str = "1"
    missing_boundary: int = 4096
    ready: bool = True
    seed: int = 0
    drafter_drop: bool = False
    evicted: str = "none"
    salted: bool = False

    def __post_init__(self) -> None:
        require(
            0 <= self.shared_len <= self.prompt_len,
            f"shared_len={self.shared_len} must be in 0..prompt_len={self.prompt_len}",
        )
        require_count("first_tail", self.first_tail)
        require_count("num_groups", self.num_groups, 1)
        require_choice("policy", self.policy, (*POLICIES, FIRST))
        require_choice("evicted", self.evicted, EVICTIONS)
        groups = map(str, range(self.num_groups))
        require_choice("missing_group", self.missing_group, ("none", "all", *groups))

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Boundaries at which the first prompt keeps checkpoints."""
        return kept_boundaries(
            self.policy, self.every_blocks, self.shared_len + self.first_tail, self.block_tokens
        )

    @cached_property
    def missing(self) -> tuple[tuple[int, int], ...]:
        """(boundary, group) without a checkpoint."""
        if self.missing_group == "none":
            return ()
        whole = range(self.num_groups)
        groups = whole if self.missing_group == "all" else (int(self.missing_group),)
        return tuple((self.missing_boundary, group) for group in groups)


CASES: Mapping[str, Mapping[str, Any]] = {  # what each sets; the rest is as in "one_short"
    "one_short": {},
    "healthy": {"missing_group": "none"},
    "no_checkpoint": {"policy": "none", "missing_group": "none"},
    "last_token": {"prompt_len": 4096, "shared_len": 4096, "missing_group": "none"},
    "not_ready": {"ready": False, "missing_group": "none"},
    "fork": {"first_tail": 900, "policy": "last", "missing_group": "none"},
    "drafter": {"drafter_drop": True, "missing_group": "none"},
    "evicted": {"evicted": "states", "missing_group": "none"},
    "salt": {"salted": True, "missing_group": "none"},
}


def case_value(case: str, field: str) -> Any:
    """What the case ``case`` of ``CASES`` sets ``field`` to."""
    usual = {one.name: one.default for one in fields(Case)}
    return CASES[case].get(field, usual[field])


def kept_boundaries(
    policy: str, every_blocks: int, first_len: int, block_tokens: int
) -> tuple[int, ...]:
    """Boundaries at which a first prompt of ``first_len`` tokens keeps checkpoints.

    Raises:
        K3Error: unknown policy.
    """
    require_choice("policy", policy, (*POLICIES, FIRST))
    if policy == "none":
        return ()
    if policy == FIRST:
        return (block_tokens,) if first_len >= block_tokens else ()
    return retained_boundaries(first_len, block_tokens, every_blocks if policy == "every" else 0)


def deepest_kept(kept: Iterable[int], shared_len: int) -> int:
    """The last of the boundaries ``kept`` on the shared path, 0 if none is."""
    return max((at for at in kept if at <= shared_len), default=0)
