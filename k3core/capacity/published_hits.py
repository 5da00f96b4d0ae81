"""Published reuse of prefixes: hit lengths, chunk ends, tokens that hits spared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from k3core.capacity import blocks
from k3core.capacity.openings import GridOpening, GridView
from k3core.capacity.planner import Deployment
from k3core.capacity.published_deployments import PLAIN, QWEN_27B, QWEN_FP8
from k3core.capacity.records import Published, inferred, stated


def largest_rule_difference(view: GridView) -> int:
    """Largest difference from the rule that vLLM #52244 states, over all lengths to the prompt."""
    unit, dropped = view.grid.effective, view.grid.dropped_blocks
    return max(
        abs(blocks.hit_tokens(n, unit, dropped) - max((n - 1 - unit) // unit * unit, 0))
        for n in range(1, view.prompt_tokens + 1)
    )


REUSE = (
    Published(
        "39", "vLLM #52244", "difference from its rule up to 20,000", 0, "tokens",
        GridOpening(PLAIN, 20_000, dropped_blocks=1), largest_rule_difference,
        stated(rule="max((n - 1 - U) // U * U, 0)", U="1,536"),
    ),
    *(
        Published(
            f"40{letter}", "ATOM #1759", f"{hits} hits of {size:,}", total, "tokens",
            GridOpening(PLAIN, size + 1, block_tokens=size, repeats=hits),
            lambda v: v.spared, stated(hits=hits) + inferred(prompt="a token more than the hit"),
        )
        for letter, hits, size, total in (
            ("a", 119, 2048, 243_712), ("b", 128, 2048, 262_144), ("c", 128, 2304, 294_912)
        )
    ),
    Published(
        "41", "K3 report 5.4.1", "last hash boundary of 2,800 tokens", 2_560, "tokens",
        GridOpening(PLAIN, 2_800, hash_tokens=512, block_tokens=512), lambda v: v.whole_tokens,
        stated(hash_block=512),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class PublishedHit(Published):
    """A published hit length; its opening is a prompt on the token grid.

    Args:
        prompt_tokens, block_tokens, dropped_blocks: prompt, block, blocks that a drafter drops.
    """

    prompt_tokens: int = 0
    block_tokens: int = 0
    dropped_blocks: int = 0


def hit_row(
    code: str,
    source: str,
    tokens: int,
    block: int,
    published: int,
    dropped: int = 0,
    deployment: Deployment = PLAIN,
) -> PublishedHit:
    """Tokens that a repeated prompt reuses; ``deployment`` is the one that was measured."""
    drop = f", {dropped} dropped" if dropped else ""
    opening = GridOpening(deployment, tokens, block_tokens=block, dropped_blocks=dropped)
    return PublishedHit(
        code, source, f"hit of {tokens:,} tokens, block {block:,}{drop}", published, "tokens",
        opening, lambda v: v.hit,
        stated(tokens=f"{tokens:,}", block=f"{block:,}", dropped=dropped),
        prompt_tokens=tokens, block_tokens=block, dropped_blocks=dropped,
    )  # fmt: skip


HITS = (
    hit_row("64", "vLLM #51250", 55_009, 784, 54_880, deployment=QWEN_27B),
    hit_row("65a", "vLLM #53504", 4_481, 1_600, 1_600, 1, replace(QWEN_FP8, drafts=2)),
    hit_row("65b", "vLLM #53504", 4_481, 1_600, 3_200, deployment=replace(QWEN_FP8, drafts=2)),
    hit_row("65c", "vLLM #53504", 4_481, 1_568, 3_136, deployment=QWEN_FP8),
    hit_row("66a", "qwen38 #174", 8_034, 2_176, 6_528),
    hit_row("66b", "qwen38 #174", 15_997, 2_176, 15_232),
    hit_row("66c", "qwen38 #174", 29_932, 2_176, 28_288),
    hit_row("66d", "qwen38 #174", 49_838, 2_176, 47_872),
    hit_row("67a", "vLLM #50235", 3_072, 1_536, 1_536),
    hit_row("67b", "vLLM #50235", 3_073, 1_536, 3_072),
    replace(
        hit_row("67c", "vLLM #50235", 3_073, 1_536, 0),
        what="hit of 3,073 tokens after a prompt of 3,072",
        wrong="a defect: only the state at the end of a chunk was kept, not the rule",
    ),
)
