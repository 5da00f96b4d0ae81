"""Published values about whole pools: blocks, printed tokens, slots, hits, context parallelism."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from k3core.capacity import blocks
from k3core.capacity.block_pool import BlockPool
from k3core.capacity.blocks import LayerGroups
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment
from k3core.capacity.pools import GIB, SplitPools
from k3core.capacity.presets import KIMI_K3, KIMI_LINEAR_48B
from k3core.capacity.published_rows import (
    DSPARK2,
    GDN_27B,
    K3_BF16,
    K3_TP8,
    LINEAR_TP2,
    LING_TINY,
    MIB,
    PLAIN,
    RECOVER,
    SGLANG_LOG,
    atom_pool,
    cost,
    recover_gain,
)
from k3core.capacity.records import Published, inferred, stated

LINEAR_LOG = Deployment(
    model="kimi-linear-48b",
    tp=2,
    context=120_000,
    drafts=0,
    rollback="snapshots",
    budget_gib=2.299,
    quantum=64,
)
GDN_FP8 = replace(GDN_27B, mla_dtype="float8")
LING_LOG = Deployment(
    model="ling-3.0-tiny",
    tp=1,
    drafts=0,
    rollback="snapshots-state-only",
    budget_gib=23.64,
    pool_rule="split",
    mean_tokens=8192,
)


def linear_pool() -> BlockPool:
    """vLLM #28228: 318 blocks (2.30 GiB as printed hold 318 or 319), quantum 64, no drafts."""
    return BlockPool.of_blocks(cost(LINEAR_TP2, "snapshots", 0), 318, quantum=64)


def sglang_pools(memory: RequestMemory, gib: float) -> SplitPools:
    """Static pools at SGLang's default ratio and five slots per request."""
    return SplitPools(cost(memory, "snapshots-state-only", 0), math.floor(gib * GIB))


def log_rows(
    code: str,
    source: str,
    note: str,
    lengths: tuple[tuple[int, int, int, int, int], ...],
    concurrency: tuple[float, ...] = (),
) -> tuple[Published, ...]:
    """Printed tokens, and printed concurrency where given, of (blocks, L, B, states, tokens)."""
    rows = []
    for letter, (num_blocks, limit, block, states, tokens) in zip("abc", lengths, strict=False):
        each = blocks.request_blocks(limit, block, states)
        inputs = stated(max_model_len=f"{limit:,}", block=block) + inferred(
            blocks=num_blocks, blocks_per_request=each
        )
        rows.append(
            Published(
                f"{code}{letter}", source, f"printed tokens at {limit:,}", tokens, "tokens",
                partial(blocks.printed_tokens, num_blocks, each, limit),
                inputs, not_unique=note,
            )
        )  # fmt: skip
    for letter, (num_blocks, limit, block, states, _), value in zip(
        "def", lengths, concurrency, strict=False
    ):
        each = blocks.request_blocks(limit, block, states)
        rows.append(
            Published(
                f"{code}{letter}", source, f"printed concurrency at {limit:,}", value, "x",
                partial(blocks.printed_concurrency, num_blocks, each),
                inferred(blocks=num_blocks, blocks_per_request=each), digits=2, not_unique=note,
            )
        )  # fmt: skip
    return tuple(rows)


FITTED = "the number of blocks is fitted to this value; the rule is not"

POOLS = (
    Published(
        "21a", "vLLM #28228", "printed tokens", 75_840, "tokens",
        lambda: linear_pool().printed_tokens_2025,
        stated(memory="2.30 GiB", groups="7/7/7/6", block=960) + inferred(blocks=318),
        deployment=LINEAR_LOG,
    ),
    Published(
        "21b", "vLLM #28228", "printed concurrency at 120,000", 2.48, "x",
        lambda: linear_pool().concurrency(120_000),
        inferred(blocks=318, blocks_per_request="125 + 3"), digits=2, deployment=LINEAR_LOG,
    ),
    Published(
        "21c", "vLLM #28228", "padding layers", 5.00, "%",
        lambda: 100 * linear_pool().groups.padding_share, stated(layers="20 in 3 x 7"), digits=2,
        deployment=LINEAR_LOG,
    ),
    *log_rows(
        "23", "vLLM #54458", FITTED,
        (
            (730, 8_192, 1_600, 17, 260_006),
            (744, 262_144, 1_600, 17, 1_077_542),
            (707, 262_144, 3_184, 17, 1_853_358),
        ),
        (31.74, 4.11, 7.07),
    ),
    Published(
        "24a", "GLM-EXL3 #94", "printed tokens at 1,000,000", 1_553_140, "tokens",
        lambda: blocks.printed_tokens(643, 414, 1_000_000),
        stated(blocks=643) + inferred(blocks_per_request=414),
    ),
    Published(
        "24b", "GLM-EXL3 #94", "printed concurrency", 1.55, "x",
        lambda: blocks.printed_concurrency(643, 414),
        stated(blocks=643) + inferred(blocks_per_request=414), digits=2,
    ),
    Published(
        "25", "GLM-EXL3 #94", "tokens that stay cached, in thousands", 57, "K",
        lambda: blocks.reusable_tokens(642, 0, 1 + 4 + 33, 3_584) / 1000,
        stated(blocks_per_segment="1 + 4 + 33", segment="3,584"), approximate=0.01,
    ),
    Published(
        "26a", "GLM-EXL3 #13", "printed tokens at 900,000", 1_096_153, "tokens",
        lambda: blocks.printed_tokens(665, 546, 900_000),
        stated(blocks=665) + inferred(blocks_per_request=546),
    ),
    Published(
        "26b", "GLM-EXL3 #13", "share of blocks held by one request", 44.6, "%",
        lambda: 100 / blocks.printed_concurrency(665, 297), stated(held="297 of 665"), digits=1,
        note="44.66, cut, not rounded",
    ),
    Published(
        "27a", "GLM-EXL3 #14", "printed tokens at 900,000", 1_754_237, "tokens",
        lambda: blocks.printed_tokens(115, 59, 900_000),
        inferred(blocks="a multiple of 115", blocks_per_request="of 59"),
        not_unique="any common multiple of 115 and 59 gives the same value",
    ),
    Published(
        "27b", "GLM-EXL3 #14", "printed concurrency", 1.95, "x",
        lambda: blocks.printed_concurrency(115, 59),
        inferred(blocks="a multiple of 115", blocks_per_request="of 59"), digits=2,
        not_unique="any common multiple of 115 and 59 gives the same value",
    ),
    Published(
        "31a", "LMCache log", "bytes per token as logged", 107_136, "B",
        lambda: K3_BF16.every_layer_bytes_per_token, stated(layers=93, row="1,152 B"),
        note="counts the 69 KDA layers as attention; see 31b",
        deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "31b", "LMCache log", "bytes per token of Kimi K3, bf16", 107_136, "B",
        lambda: K3_BF16.mla_bytes_per_token, stated(layers=24, row="1,152 B"),
        wrong="only 24 of 93 layers have a growing cache: 27,648 B",
        deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "32", "inference-sim #1635", "overcount of such a log", 3.875, "x",
        lambda: K3_BF16.every_layer_factor, stated(layers="93 / 24"), digits=3,
        deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "33a", "ATOM #1959, #1871", "waste of keys and values per head", 24, "x",
        lambda: K3_BF16.per_head_pair_factor, stated(lanes="12 x K and V"),
        deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "33b", "ATOM #1959, #1871", "one token of the latent, bf16", 27, "KiB",
        lambda: K3_BF16.mla_bytes_per_token / 1024, stated(layers=24),
        deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "49a", "vLLM #51855", "concurrency that records add, aligned", 10.97, "%",
        lambda: recover_gain(46.476, 262_144, aligned=True),
        stated(memory="46.48 GiB", tp=8, drafts=7)
        + inferred(pool="46.4750-46.4765 GiB", context="262,144", groups=29, states="9 to 2"),
        digits=2,
        not_unique="fits a pool of 46.4750 to 46.4765 GiB only; 49b fits with other rules",
        deployment=RECOVER,
    ),
    Published(
        "49b", "vLLM #51855", "the same, unaligned pages", 10.97, "%",
        lambda: recover_gain(46.48, 262_144, aligned=False),
        stated(memory="46.48 GiB", tp=8, drafts=7)
        + inferred(page="1,696 tokens", context="262,144", states="3 + ns to 3"),
        digits=2, not_unique="the alignment and the state blocks are not published",
    ),
    Published(
        "50a", "ATOM recipe K3 LMCache", "one block", 25_657_344, "B",
        lambda: atom_pool().block_bytes, stated(layers="24 + 5", block="1,536", row="576 B"),
        deployment=DSPARK2,
    ),
    Published(
        "50b", "ATOM recipe K3 LMCache", "one token in a group", 16_704, "B",
        lambda: atom_pool().bytes_per_token, stated(layers=29), deployment=DSPARK2,
    ),
    Published(
        "50c", "ATOM recipe K3 LMCache", "pool of 1,584 blocks", 37.85, "GiB",
        lambda: atom_pool().budget_bytes / GIB, stated(blocks="1,584"), digits=2,
        deployment=DSPARK2,
    ),
    Published(
        "50d", "ATOM recipe K3 LMCache", "leading dimension of a plane", 2_433_024, "rows",
        lambda: atom_pool().pool_rows, stated(blocks="1,584"), deployment=DSPARK2,
    ),
    Published(
        "51a", "ATOM recipe K3 LMCache", "blocks per request", 55, "",
        lambda: atom_pool().blocks_per_request(65_536), stated(context="65,536", drafts=2),
        deployment=DSPARK2,
    ),
    Published(
        "51b", "ATOM recipe K3 LMCache", "printed concurrency", 28.80, "x",
        lambda: atom_pool().concurrency(65_536), stated(blocks="1,584"), digits=2,
        deployment=DSPARK2,
    ),
    Published(
        "51c", "ATOM recipe K3 LMCache", "printed tokens", 1_887_436, "tokens",
        lambda: atom_pool().printed_tokens(65_536), stated(blocks="1,584"), deployment=DSPARK2,
    ),
    Published(
        "51d", "ATOM recipe K3 LMCache", "printed tokens of 320 blocks", 381_300, "tokens",
        lambda: atom_pool(320).printed_tokens(65_536), stated(blocks=320), deployment=DSPARK2,
    ),
    Published(
        "52a", "ATOM recipe K3 LMCache", "state entry of 69 pages", 58.22, "MiB",
        lambda: atom_pool().state_entry_bytes / MIB, stated(page="884,736 B"), digits=2,
        deployment=DSPARK2,
    ),
    Published(
        "52b", "ATOM recipe K3 LMCache", "state entry per token of a block", 39_744, "B",
        lambda: atom_pool().state_entry_bytes / atom_pool().block_tokens,
        stated(layers=69, row="576 B"), deployment=DSPARK2,
    ),
    Published(
        "55a", "ATOM recipe K3 LMCache", "layers of the attention group", 29, "",
        lambda: atom_pool().groups.sizes[0], stated(layers="24 + 5"), deployment=DSPARK2,
    ),
    Published(
        "55b", "ATOM recipe K3 LMCache", "layers of each state group", 23, "",
        lambda: atom_pool().groups.sizes[1], stated(layers="69 in 3"), deployment=DSPARK2,
    ),
    Published(
        "63", "vLLM Ascend #14314", "padding of groups of 29", 26.09, "%",
        lambda: 100 * LayerGroups(29, 69).padding_share, stated(groups="24 to 29"), digits=2,
        deployment=DSPARK2,
    ),
)  # fmt: skip

SLOTS = (
    Published(
        "56a", "SGLang boot log, K3 TP8", "ssm states of 258 rows", 13.04, "GiB",
        lambda: 258 * K3_TP8.recurrent_bytes_per_request / GIB,
        stated(max_mamba_cache_size=257) + inferred(rows="257 + 1"), digits=2,
        deployment=SGLANG_LOG,
    ),
    Published(
        "56b", "SGLang boot log, K3 TP8", "conv windows of 258 rows", 0.46, "GiB",
        lambda: 258 * K3_TP8.conv_bytes_per_request / GIB, inferred(rows="257 + 1"), digits=2,
        deployment=SGLANG_LOG,
    ),
    Published(
        "56c", "SGLang boot log, K3 TP8", "cache of 1,167,552 tokens", 15.03, "GiB",
        lambda: K3_TP8.kv_bytes(1_167_552) / GIB, stated(tokens="1,167,552"), digits=2,
        deployment=SGLANG_LOG,
    ),
    Published(
        "56d", "SGLang boot log, K3 TP8", "rows from the static ratio", 258, "rows",
        lambda: sglang_pools(K3_TP8, 13.04 + 0.46 + 15.03).num_slots,
        stated(ratio=0.9, pools="13.04 + 0.46 + 15.03 GiB"), deployment=SGLANG_LOG,
    ),
    Published(
        "56e", "SGLang boot log, K3 TP8", "requests in flight", 51, "",
        lambda: sglang_pools(K3_TP8, 13.04 + 0.46 + 15.03).state_roof,
        stated(slots_per_request=5), deployment=SGLANG_LOG,
    ),
    Published(
        "57a", "SGLang boot log, Ling-3.0-tiny", "ssm states of 615 rows", 10.81, "GiB",
        lambda: 615 * LING_TINY.recurrent_bytes_per_request / GIB,
        stated(max_mamba_cache_size=614, tp=1) + inferred(rows="614 + 1"), digits=2,
        deployment=LING_LOG,
    ),
    Published(
        "57b", "SGLang boot log, Ling-3.0-tiny", "conv windows of 615 rows", 0.38, "GiB",
        lambda: 615 * LING_TINY.conv_bytes_per_request / GIB, inferred(rows="614 + 1"), digits=2,
        deployment=LING_LOG,
    ),
    Published(
        "57c", "SGLang boot log, Ling-3.0-tiny", "cache of 1,933,682 tokens", 12.45, "GiB",
        lambda: LING_TINY.kv_bytes(1_933_682) / GIB, stated(tokens="1,933,682"), digits=2,
        deployment=LING_LOG,
    ),
    Published(
        "57d", "SGLang boot log, Ling-3.0-tiny", "rows from the static ratio", 615, "rows",
        lambda: sglang_pools(LING_TINY, 10.81 + 0.38 + 12.45).num_slots,
        stated(pools="10.81 + 0.38 + 12.45 GiB") + inferred(ratio=0.9), deployment=LING_LOG,
    ),
)  # fmt: skip


def hit_row(
    code: str,
    source: str,
    tokens: int,
    block: int,
    published: int,
    dropped: int = 0,
    deployment: Deployment | None = None,
) -> Published:
    """Tokens that a repeated prompt reuses; ``deployment`` has that block."""
    drop = f", {dropped} dropped" if dropped else ""
    return Published(
        code, source, f"hit of {tokens:,} tokens, block {block:,}{drop}", published, "tokens",
        partial(blocks.hit_tokens, tokens, block, dropped),
        stated(tokens=f"{tokens:,}", block=f"{block:,}", dropped=dropped),
        deployment=deployment, prompt_tokens=tokens, block_tokens=block, dropped_blocks=dropped,
    )  # fmt: skip


def largest_rule_difference(limit: int, unit: int) -> int:
    """Largest difference from the rule that vLLM #52244 states, over all lengths to ``limit``."""
    return max(
        abs(blocks.hit_tokens(n, unit, 1) - max((n - 1 - unit) // unit * unit, 0))
        for n in range(1, limit + 1)
    )


HITS = (
    Published(
        "39", "vLLM #52244", "difference from its rule up to 20,000", 0, "tokens",
        lambda: largest_rule_difference(20_000, 1_536),
        stated(rule="max((n - 1 - U) // U * U, 0)", U="1,536"),
    ),
    *(
        Published(
            f"40{letter}", "ATOM #1759", f"{hits} hits of {size:,}", total, "tokens",
            partial(blocks.reused_tokens, hits, size), stated(hits=hits),
        )
        for letter, hits, size, total in (
            ("a", 119, 2048, 243_712), ("b", 128, 2048, 262_144), ("c", 128, 2304, 294_912)
        )
    ),
    Published(
        "41", "K3 report 5.4.1", "last hash boundary of 2,800 tokens", 2_560, "tokens",
        lambda: blocks.aligned_tokens(2_800, 512), stated(hash_block=512),
    ),
    hit_row("64", "vLLM #51250", 55_009, 784, 54_880, deployment=GDN_27B),
    hit_row("65a", "vLLM #53504", 4_481, 1_600, 1_600, 1, replace(GDN_FP8, drafts=2)),
    hit_row("65b", "vLLM #53504", 4_481, 1_600, 3_200, deployment=replace(GDN_FP8, drafts=2)),
    hit_row("65c", "vLLM #53504", 4_481, 1_568, 3_136, deployment=GDN_FP8),
    hit_row("66a", "qwen38 #174", 8_034, 2_176, 6_528),
    hit_row("66b", "qwen38 #174", 15_997, 2_176, 15_232),
    hit_row("66c", "qwen38 #174", 29_932, 2_176, 28_288),
    hit_row("66d", "qwen38 #174", 49_838, 2_176, 47_872),
    hit_row("67a", "vLLM #50235", 3_072, 1_536, 1_536, deployment=PLAIN),
    hit_row("67b", "vLLM #50235", 3_073, 1_536, 3_072, deployment=PLAIN),
    replace(
        hit_row("67c", "vLLM #50235", 3_073, 1_536, 0, deployment=PLAIN),
        what="hit of 3,073 tokens after a prompt of 3,072",
        wrong="a defect: only the state at the end of a chunk was kept, not the rule",
    ),
)  # fmt: skip

PARALLEL = (
    Published(
        "45", "SGLang #34059", "context-parallel packet, 32 heads", 4, "MiB",
        lambda: RequestMemory(KIMI_LINEAR_48B, tp=1).context_parallel_bytes_per_layer / MIB,
        stated(shape="32 x 128 x 256, fp32"),
        deployment=Deployment(
            model="kimi-linear-48b", tp=1, drafts=0, rollback="snapshots-align"
        ),
    ),
    Published(
        "46", "SGLang #34059", "the same for Kimi K3, all layers", 34, "MiB",
        lambda: RequestMemory(KIMI_K3, tp=8).context_parallel_bytes / MIB, stated(tp=8),
        approximate=0.02,
        wrong="1.5 MiB x 69 layers; 34.5 MiB is 69 x 0.5 MiB, the heads of Kimi-Linear at TP8",
        deployment=PLAIN,
    ),
)  # fmt: skip
