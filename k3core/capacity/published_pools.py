"""Published values about whole pools: blocks per request, printed tokens, state slots."""

from __future__ import annotations

from dataclasses import replace

from k3core.capacity.block_pool import concurrency_gain
from k3core.capacity.openings import PlanOpening, PlanView, PrintedOpening
from k3core.capacity.pools import GIB
from k3core.capacity.printed import PrintedPool
from k3core.capacity.published_deployments import (
    ATOM,
    K3_BF16,
    LINEAR,
    MIB,
    RECOVER,
    SGLANG_K3,
    SGLANG_LING,
    pool_of,
)
from k3core.capacity.records import Published, inferred, stated

LINEAR_LOG = PlanOpening(LINEAR)
RECIPE = PlanOpening(ATOM)
K3_LOG, LING_LOG = PlanOpening(SGLANG_K3), PlanOpening(SGLANG_LING)
SOURCE = "ATOM recipe K3 LMCache"
FITTED = "the number of blocks is fitted to this value; the rule is not"
MULTIPLE = "any common multiple of 115 and 59 gives the same value"
LOG_K3, LOG_LING = "SGLang boot log, K3 TP8", "SGLang boot log, Ling-3.0-tiny"


def gain_percent(view: PlanView) -> float:
    """Per cent of concurrency that a plan has over the one it is compared with."""
    before = view.before or view.planned
    context = view.planned.deployment.context
    return 100 * concurrency_gain(before.blocks, view.blocks, context)


def recover(pool_gib: float, context: int, aligned: bool) -> PlanOpening:
    """RecoverSSM against snapshots, with the rule of mid-2026 or with unaligned pages."""
    records = replace(RECOVER, budget_gib=pool_gib, context=context)
    snapshots = replace(records, rollback="snapshots-align")
    if aligned:
        return PlanOpening(records, before=snapshots)
    return PlanOpening(
        replace(records, quantum=32, state_blocks=3),
        before=replace(snapshots, quantum=32, state_blocks=3 + 7),
    )


def recover_gain(pool_gib: float, context: int, aligned: bool) -> float:
    """Per cent of concurrency that RecoverSSM adds."""
    return gain_percent(recover(pool_gib, context, aligned).open())


def flash_rows(num_blocks: int, limit: int, block: int) -> PrintedOpening:
    """Qwen3.8-Flash-Next of vLLM #54458: 17 blocks of states beside those of the tokens."""
    return PrintedOpening(PrintedPool(num_blocks, limit, block, 17))


FLASH = (
    ("a", "d", 730, 8_192, 1_600, 260_006, 31.74),
    ("b", "e", 744, 262_144, 1_600, 1_077_542, 4.11),
    ("c", "f", 707, 262_144, 3_184, 1_853_358, 7.07),
)
GLM_1M = PrintedOpening(PrintedPool(643, 1_000_000, fixed_blocks=414))
GLM_MULTIPLE = PrintedOpening(PrintedPool(115, 900_000, fixed_blocks=59))

POOLS = (
    Published(
        "21a", "vLLM #28228", "printed tokens", 75_840, "tokens",
        LINEAR_LOG, lambda v: v.blocks.printed_tokens_2025,
        stated(memory="2.30 GiB", groups="7/7/7/6", block=960) + inferred(blocks=318),
    ),
    Published(
        "21b", "vLLM #28228", "printed concurrency at 120,000", 2.48, "x",
        LINEAR_LOG, lambda v: v.planned.max_concurrency,
        inferred(blocks=318, blocks_per_request="125 + 3"), digits=2,
    ),
    Published(
        "21c", "vLLM #28228", "padding layers", 5.00, "%",
        LINEAR_LOG, lambda v: 100 * v.blocks.groups.padding_share,
        stated(layers="20 in 3 x 7"), digits=2,
    ),
    *(
        Published(
            f"23{letter}", "vLLM #54458", f"printed tokens at {limit:,}", tokens, "tokens",
            flash_rows(count, limit, block), lambda v: v.tokens,
            stated(max_model_len=f"{limit:,}", block=block)
            + inferred(blocks=count, blocks_per_request=-(-limit // block) + 17),
            not_unique=FITTED,
        )
        for letter, _, count, limit, block, tokens, _ in FLASH
    ),
    *(
        Published(
            f"23{letter}", "vLLM #54458", f"printed concurrency at {limit:,}", times, "x",
            flash_rows(count, limit, block), lambda v: v.concurrency,
            inferred(blocks=count, blocks_per_request=-(-limit // block) + 17),
            digits=2, not_unique=FITTED,
        )
        for _, letter, count, limit, block, _, times in FLASH
    ),
    Published(
        "24a", "GLM-EXL3 #94", "printed tokens at 1,000,000", 1_553_140, "tokens",
        GLM_1M, lambda v: v.tokens, stated(blocks=643) + inferred(blocks_per_request=414),
    ),
    Published(
        "24b", "GLM-EXL3 #94", "printed concurrency", 1.55, "x",
        GLM_1M, lambda v: v.concurrency,
        stated(blocks=643) + inferred(blocks_per_request=414), digits=2,
    ),
    Published(
        "25", "GLM-EXL3 #94", "tokens that stay cached, in thousands", 57, "K",
        PrintedOpening(PrintedPool(642, 1_000_000, 3_584, groups=1 + 4 + 33)),
        lambda v: v.reusable_tokens / 1000,
        stated(blocks_per_segment="1 + 4 + 33", segment="3,584"), approximate=0.01,
    ),
    Published(
        "26a", "GLM-EXL3 #13", "printed tokens at 900,000", 1_096_153, "tokens",
        PrintedOpening(PrintedPool(665, 900_000, fixed_blocks=546)), lambda v: v.tokens,
        stated(blocks=665) + inferred(blocks_per_request=546),
    ),
    Published(
        "26b", "GLM-EXL3 #13", "share of blocks held by one request", 44.6, "%",
        PrintedOpening(PrintedPool(665, 900_000, fixed_blocks=297)), lambda v: v.held_percent,
        stated(held="297 of 665"), digits=1, note="44.66, cut, not rounded",
    ),
    Published(
        "27a", "GLM-EXL3 #14", "printed tokens at 900,000", 1_754_237, "tokens",
        GLM_MULTIPLE, lambda v: v.tokens,
        inferred(blocks="a multiple of 115", blocks_per_request="of 59"), not_unique=MULTIPLE,
    ),
    Published(
        "27b", "GLM-EXL3 #14", "printed concurrency", 1.95, "x",
        GLM_MULTIPLE, lambda v: v.concurrency,
        inferred(blocks="a multiple of 115", blocks_per_request="of 59"), digits=2,
        not_unique=MULTIPLE,
    ),
    Published(
        "31a", "LMCache log", "bytes per token as logged", 107_136, "B",
        K3_BF16, lambda v: v.memory.every_layer_bytes_per_token,
        stated(layers=93, row="1,152 B"),
        note="counts the 69 KDA layers as attention; see 31b",
    ),
    Published(
        "31b", "LMCache log", "bytes per token of Kimi K3, bf16", 107_136, "B",
        K3_BF16, lambda v: v.memory.mla_bytes_per_token, stated(layers=24, row="1,152 B"),
        wrong="only 24 of 93 layers have a growing cache: 27,648 B",
    ),
    Published(
        "32", "inference-sim #1635", "overcount of such a log", 3.875, "x",
        K3_BF16, lambda v: v.memory.every_layer_factor, stated(layers="93 / 24"), digits=3,
    ),
    Published(
        "33a", "ATOM #1959, #1871", "waste of keys and values per head", 24, "x",
        K3_BF16, lambda v: v.memory.per_head_pair_factor, stated(lanes="12 x K and V"),
    ),
    Published(
        "33b", "ATOM #1959, #1871", "one token of the latent, bf16", 27, "KiB",
        K3_BF16, lambda v: v.memory.mla_bytes_per_token / 1024, stated(layers=24),
    ),
    Published(
        "49a", "vLLM #51855", "concurrency that records add, aligned", 10.97, "%",
        recover(46.476, 262_144, aligned=True), gain_percent,
        stated(memory="46.48 GiB", tp=8, drafts=7)
        + inferred(pool="46.4750-46.4765 GiB", context="262,144", groups=29, states="9 to 2"),
        digits=2,
        not_unique="fits a pool of 46.4750 to 46.4765 GiB only; 49b fits with other rules",
    ),
    Published(
        "49b", "vLLM #51855", "the same, unaligned pages", 10.97, "%",
        recover(46.48, 262_144, aligned=False), gain_percent,
        stated(memory="46.48 GiB", tp=8, drafts=7)
        + inferred(page="1,696 tokens", context="262,144", states="3 + ns to 3"),
        digits=2, not_unique="the alignment and the state blocks are not published",
    ),
    Published(
        "50a", SOURCE, "one block", 25_657_344, "B",
        RECIPE, lambda v: v.blocks.block_bytes,
        stated(layers="24 + 5", block="1,536", row="576 B"),
    ),
    Published(
        "50b", SOURCE, "one token in a group", 16_704, "B",
        RECIPE, lambda v: v.blocks.bytes_per_token, stated(layers=29),
    ),
    Published(
        "50c", SOURCE, "pool of 1,584 blocks", 37.85, "GiB",
        RECIPE, lambda v: v.blocks.num_blocks * v.blocks.block_bytes / GIB,
        stated(blocks="1,584"), digits=2,
    ),
    Published(
        "50d", SOURCE, "leading dimension of a plane", 2_433_024, "rows",
        RECIPE, lambda v: v.blocks.pool_rows, stated(blocks="1,584"),
    ),
    Published(
        "51a", SOURCE, "blocks per request", 55, "",
        RECIPE, lambda v: v.blocks.blocks_per_request(v.planned.deployment.context),
        stated(context="65,536", drafts=2),
    ),
    Published(
        "51b", SOURCE, "printed concurrency", 28.80, "x",
        RECIPE, lambda v: v.planned.max_concurrency, stated(blocks="1,584"), digits=2,
    ),
    Published(
        "51c", SOURCE, "printed tokens", 1_887_436, "tokens",
        RECIPE, lambda v: v.blocks.printed_tokens(v.planned.deployment.context),
        stated(blocks="1,584"),
    ),
    Published(
        "51d", SOURCE, "printed tokens of 320 blocks", 381_300, "tokens",
        PlanOpening(pool_of(ATOM, 320)),
        lambda v: v.blocks.printed_tokens(v.planned.deployment.context), stated(blocks=320),
    ),
    Published(
        "52a", SOURCE, "state entry of 69 pages", 58.22, "MiB",
        RECIPE, lambda v: v.blocks.state_entry_bytes / MIB, stated(page="884,736 B"), digits=2,
    ),
    Published(
        "52b", SOURCE, "state entry per token of a block", 39_744, "B",
        RECIPE, lambda v: v.blocks.state_entry_bytes / v.blocks.block_tokens,
        stated(layers=69, row="576 B"),
    ),
    Published(
        "55a", SOURCE, "layers of the attention group", 29, "",
        RECIPE, lambda v: v.blocks.groups.sizes[0], stated(layers="24 + 5"),
    ),
    Published(
        "55b", SOURCE, "layers of each state group", 23, "",
        RECIPE, lambda v: v.blocks.groups.sizes[1], stated(layers="69 in 3"),
    ),
    Published(
        "63", "vLLM Ascend #14314", "padding of groups of 29", 26.09, "%",
        RECIPE, lambda v: 100 * v.blocks.groups.padding_share,
        stated(groups="24 to 29"), digits=2,
    ),
)  # fmt: skip

SLOTS = (
    Published(
        "56a", LOG_K3, "ssm states of 258 rows", 13.04, "GiB",
        K3_LOG, lambda v: v.pool.num_slots * v.memory.recurrent_bytes_per_request / GIB,
        stated(max_mamba_cache_size=257) + inferred(rows="257 + 1"), digits=2,
    ),
    Published(
        "56b", LOG_K3, "conv windows of 258 rows", 0.46, "GiB",
        K3_LOG, lambda v: v.pool.num_slots * v.memory.conv_bytes_per_request / GIB,
        inferred(rows="257 + 1"), digits=2,
    ),
    Published(
        "56c", LOG_K3, "cache of 1,167,552 tokens", 15.03, "GiB",
        PlanOpening(replace(SGLANG_K3, mean_tokens=1_167_552)),
        lambda v: v.memory.kv_bytes(v.planned.mean_tokens) / GIB,
        stated(tokens="1,167,552"), digits=2,
    ),
    Published(
        "56d", LOG_K3, "rows from the static ratio", 258, "rows",
        K3_LOG, lambda v: v.pool.num_slots,
        stated(ratio=0.9, pools="13.04 + 0.46 + 15.03 GiB"),
    ),
    Published(
        "56e", LOG_K3, "requests in flight", 51, "",
        K3_LOG, lambda v: v.pool.state_roof, stated(slots_per_request=5),
    ),
    Published(
        "57a", LOG_LING, "ssm states of 615 rows", 10.81, "GiB",
        LING_LOG, lambda v: v.pool.num_slots * v.memory.recurrent_bytes_per_request / GIB,
        stated(max_mamba_cache_size=614, tp=1) + inferred(rows="614 + 1"), digits=2,
    ),
    Published(
        "57b", LOG_LING, "conv windows of 615 rows", 0.38, "GiB",
        LING_LOG, lambda v: v.pool.num_slots * v.memory.conv_bytes_per_request / GIB,
        inferred(rows="614 + 1"), digits=2,
    ),
    Published(
        "57c", LOG_LING, "cache of 1,933,682 tokens", 12.45, "GiB",
        PlanOpening(replace(SGLANG_LING, mean_tokens=1_933_682)),
        lambda v: v.memory.kv_bytes(v.planned.mean_tokens) / GIB,
        stated(tokens="1,933,682"), digits=2,
    ),
    Published(
        "57d", LOG_LING, "rows from the static ratio", 615, "rows",
        LING_LOG, lambda v: v.pool.num_slots,
        stated(pools="10.81 + 0.38 + 12.45 GiB") + inferred(ratio=0.9),
    ),
)  # fmt: skip
