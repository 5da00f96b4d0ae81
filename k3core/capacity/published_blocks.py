"""Published blocks, their padding, and what a block holds."""

from __future__ import annotations

from dataclasses import replace

from k3core.capacity.openings import GridOpening, PlanOpening
from k3core.capacity.planner import Deployment
from k3core.capacity.published_deployments import (
    K3,
    K3_BF16,
    PLAIN,
    QWEN_4B,
    QWEN_27B,
    QWEN_35B,
    QWEN_FLASH,
    TOKENSPEED,
)
from k3core.capacity.records import Published, inferred, stated

FLASH = PlanOpening(QWEN_FLASH)
PLANES = PlanOpening(TOKENSPEED)
DRAFT_PLANES = PlanOpening(replace(TOKENSPEED, drafter_layers=5, drafter_dtype="bfloat16"))
BIG_PROMPT = GridOpening(PLAIN, 8_000)
CHUNK = GridOpening(replace(PLAIN, mla_dtype="bfloat16"), 4_096)
TEST = "TokenSpeed test_kimi_k3_cache_spec"
LOG_27B = "vLLM boot log, 2026-04-25"
LOG_35B = "vLLM boot log, 2026-03-23, ROCm"

BLOCKS = (
    Published(
        "15a", "vLLM, GB300 boot log", "K3 block, TP8, fp8", 1_536, "tokens",
        K3, lambda v: v.blocks.block_tokens,
        stated(page="814,080 B", row="576 B", quantum=128),
    ),
    Published(
        "15b", "vLLM, GB300 boot log", "K3 block, TP8, bf16", 768, "tokens",
        K3_BF16, lambda v: v.blocks.block_tokens, stated(row="1,152 B", quantum=128),
    ),
    Published(
        "15c", "vLLM, GB300 boot log", "padding of the state page", 8.68, "%",
        K3, lambda v: 100 * v.blocks.page_padding, stated(drafts=0), digits=2,
    ),
    Published(
        "19a", "vLLM, 8K prompt split", "first part of 8,000 tokens", 7_680, "tokens",
        BIG_PROMPT, lambda v: v.whole_tokens, stated(block="1,536"),
    ),
    Published(
        "19b", "vLLM, 8K prompt split", "second part", 320, "tokens",
        BIG_PROMPT, lambda v: v.rest_tokens, stated(block="1,536"),
    ),
    Published(
        "20a", "Infera #98", "chunk of a prefill of at most 4,096", 3_840, "tokens",
        CHUNK, lambda v: v.whole_tokens, stated(block=768),
    ),
    Published(
        "20b", "Infera #98", "hashes of that chunk in the MLA group", 5, "",
        CHUNK, lambda v: v.whole_blocks, stated(block=768),
    ),
    Published(
        "22a", "vLLM #54458", "Qwen3.8-Flash-Next block", 1_600, "tokens",
        FLASH, lambda v: v.blocks.block_tokens,
        inferred(value_heads=48, rows=5, row="2,048 B", quantum=16),
    ),
    Published(
        "22b", "vLLM #54458", "padding of its state page", 0.88, "%",
        FLASH, lambda v: 100 * v.blocks.page_padding,
        inferred(value_heads=48, rows=5, row="2,048 B"), digits=2,
    ),
    Published(
        "29", "vLLM #54458", "GLM-5.3-Flash block", 7_808, "tokens",
        PlanOpening(
            Deployment(
                model="glm-rows-of-576", tp=1, mla_dtype="float8", drafts=3,
                rollback="snapshots-align",
            )
        ),
        lambda v: v.blocks.block_tokens, inferred(heads="64 at TP1", rows=6, row="576 B"),
    ),
    Published(
        "30", "vLLM #40696", "Qwen3.5-4B block", 528, "tokens",
        PlanOpening(QWEN_4B), lambda v: v.blocks.block_tokens,
        stated(page="2,146,304 B", row="4,096 B", quantum=16),
    ),
    *(
        Published(
            f"42{letter}", "K3 report 5.4.1", f"physical block at TP{tp}", block, "tokens",
            PlanOpening(replace(PLAIN, tp=tp, mla_dtype="bfloat16", quantum=512)),
            lambda v: v.blocks.block_tokens, inferred(rule="ceil to 512 of page / 1,152 B"),
        )
        for letter, tp, block in (("a", 8, 1024), ("b", 4, 1536), ("c", 2, 3072), ("d", 1, 6144))
    ),
    Published(
        "7a", TEST, "one plane", 884_736, "B",
        PLANES, lambda v: v.blocks.page_bytes, stated(page=128, pack=12, row="576 B"),
    ),
    Published(
        "7b", TEST, "block of 24 planes", 21_233_664, "B",
        PLANES, lambda v: v.blocks.block_bytes, stated(planes=24),
    ),
    Published(
        "7c", TEST, "with 5 bf16 draft planes", 30_081_024, "B",
        DRAFT_PLANES, lambda v: v.blocks.block_bytes, stated(planes="24 + 5"),
    ),
    Published(
        "8a", TEST, "fill of a block by 23 states", 0.882, "",
        PLANES, lambda v: v.blocks.group_fill, stated(states=23), digits=3,
    ),
    Published(
        "8b", TEST, "fill with draft planes", 0.6224, "",
        DRAFT_PLANES, lambda v: v.blocks.group_fill, stated(states=23), digits=4,
    ),
    Published(
        "11", TEST, "parents of 131,072 tokens", 92, "",
        PLANES, lambda v: v.blocks.blocks_per_request(v.planned.deployment.context),
        stated(block="1,536", states=6),
    ),
    Published(
        "61a", LOG_27B, "block", 784, "tokens",
        PlanOpening(QWEN_27B), lambda v: v.blocks.block_tokens,
        inferred(model="Qwen3.5-27B, TP1, bf16", quantum=16),
    ),
    Published(
        "61b", LOG_27B, "padding of the state page", 0.13, "%",
        PlanOpening(QWEN_27B), lambda v: 100 * v.blocks.page_padding,
        inferred(model="Qwen3.5-27B, TP1, bf16"), digits=2,
    ),
    Published(
        "62a", LOG_35B, "block", 1_056, "tokens",
        PlanOpening(QWEN_35B), lambda v: v.blocks.block_tokens,
        inferred(model="Qwen3.5-35B-A3B, TP1", quantum=16),
    ),
    Published(
        "62b", LOG_35B, "padding of the state page", 0.76, "%",
        PlanOpening(QWEN_35B), lambda v: 100 * v.blocks.page_padding,
        inferred(model="Qwen3.5-35B-A3B, TP1"), digits=2,
    ),
)  # fmt: skip
