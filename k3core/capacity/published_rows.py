"""The published values, grouped by what they are about. Every row names its source."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from k3core.capacity import blocks
from k3core.capacity.block_pool import BlockPool, concurrency_gain
from k3core.capacity.hybrids import HYBRIDS
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment
from k3core.capacity.pools import GIB
from k3core.capacity.presets import GLM_5_3_FLASH, KIMI_K3, KIMI_LINEAR_48B
from k3core.capacity.records import Published, inferred, stated
from k3core.capacity.rollback import RollbackCost, rollback_cost

KIB, MIB = 2**10, 2**20
K3_TP8 = RequestMemory(KIMI_K3)
K3_BF16 = RequestMemory(KIMI_K3, mla_dtype="bfloat16")
LINEAR_TP2 = RequestMemory(KIMI_LINEAR_48B, tp=2)
LING_TINY = RequestMemory(HYBRIDS["ling-3.0-tiny"], tp=1)
QWEN_27B = RequestMemory(HYBRIDS["qwen3.5-27b"], tp=1)
QWEN_35B = RequestMemory(HYBRIDS["qwen3.5-35b"], tp=1)
QWEN_NEXT = RequestMemory(HYBRIDS["qwen3-next"], tp=1)
# Small Qwen3.5: 24 GDN layers of 32 value heads and 8 attention layers of 4 KV heads.
QWEN_SMALL = replace(
    HYBRIDS["qwen3.5-35b"],
    num_kda_layers=24,
    mla_layer_ids=tuple(range(4, 33, 4)),
    num_kv_heads=4,
    mla_latent_dim=2 * 4 * 256,
)
QWEN_FLASH_NEXT = replace(HYBRIDS["qwen3.5-27b"], num_kv_heads=2, mla_latent_dim=2 * 2 * 256)
GLM_576 = replace(GLM_5_3_FLASH, mla_latent_dim=576)
SGLANG_64 = replace(KIMI_K3, num_kda_layers=70, mla_layer_ids=(71,), num_heads=64, num_mla_heads=64)

PLAIN = Deployment(tp=8, drafts=0, rollback="snapshots-align")
DSPARK2 = Deployment(
    tp=8, context=65_536, drafts=2, rollback="snapshots-align", drafter_layers=5, budget_gib=37.8501
)
GDN_27B = Deployment(
    model="qwen3.5-27b", tp=1, drafts=0, rollback="snapshots-align", pool_rule="blocks", quantum=16
)
GDN_35B = replace(GDN_27B, model="qwen3.5-35b")
GDN_NEXT = replace(GDN_27B, model="qwen3-next")
RECOVER = Deployment(
    tp=8, context=262_144, rollback="corrections", drafter_layers=5, budget_gib=46.476
)
SGLANG_LOG = Deployment(
    tp=8,
    drafts=0,
    rollback="snapshots-state-only",
    budget_gib=28.53,
    pool_rule="split",
    mean_tokens=9216,
)


def cost(memory: RequestMemory, scheme: str, drafts: int) -> RollbackCost:
    return rollback_cost(memory, scheme, drafts)


def report_block(tp: int) -> int:
    """Tokens of a physical block of the K3 report: bf16, multiples of 512."""
    return RequestMemory(KIMI_K3, tp, mla_dtype="bfloat16").block_tokens(512)


def tokenspeed_freed(max_requests: int, drafts: int) -> float:
    """GiB that TokenSpeed frees at TP16: whole slots against records and windows."""
    memory = RequestMemory(KIMI_K3, tp=16)
    kept = cost(memory, "low-rank-inputs", drafts)
    after = max_requests * (kept.record_bytes + kept.drafted.conv_bytes_per_request)
    return (memory.slot_bytes(max_requests * (drafts + 2)) - after) / GIB


def tokenspeed_pool(draft_layers: int) -> BlockPool:
    """Parents of 12 pages of 128 tokens; the drafter's planes are bf16 beside an fp8 model."""
    memory = RequestMemory(KIMI_K3, drafter_layers=draft_layers, drafter_dtype="bfloat16")
    return BlockPool.of_blocks(cost(memory, "low-rank-inputs", 3), 100, fixed_block=12 * 128)


def atom_pool(num_blocks: int = 1584) -> BlockPool:
    """ATOM recipe: Kimi K3 with a DSpark drafter of 5 layers, two drafts, TP8, fp8."""
    memory = RequestMemory(KIMI_K3, drafter_layers=5)
    return BlockPool.of_blocks(cost(memory, "snapshots-align", 2), num_blocks)


def recover_gain(pool_gib: float, context: int, aligned: bool) -> float:
    """Per cent of concurrency that RecoverSSM adds, with the rule of mid-2026 or unaligned."""
    memory, budget = RequestMemory(KIMI_K3, drafter_layers=5), math.floor(pool_gib * GIB)
    snapshots, records = cost(memory, "snapshots-align", 7), cost(memory, "corrections", 7)
    if aligned:
        before, after = BlockPool(snapshots, budget), BlockPool(records, budget)
    else:
        before = BlockPool(snapshots, budget, quantum=32, state_blocks=3 + 7)
        after = BlockPool(records, budget, quantum=32, state_blocks=3)
    return 100 * concurrency_gain(before, after, context)


STATES = (
    Published(
        "1a", "TokenSpeed #1058", "one KDA layer, state and window", 814_080, "B",
        lambda: K3_TP8.kda_bytes_per_layer,
        stated(heads="12 of 128 x 128, fp32", window="3 rows of 4,608, bf16"), deployment=PLAIN,
    ),
    Published(
        "1b", "TokenSpeed #1058", "the same row", 795, "KiB",
        lambda: K3_TP8.kda_bytes_per_layer / KIB, deployment=PLAIN,
    ),
    Published(
        "12", "ATOM #1883", "one slot with a window of 10 rows", 57.81, "MiB",
        lambda: cost(K3_TP8, "snapshots", 7).slot_bytes / MIB,
        stated(drafts=7, rows="3 + 7"), digits=2,
        deployment=replace(PLAIN, drafts=7, rollback="snapshots"),
    ),
    Published(
        "14", "SGLang #34441", "one slot of all KDA layers", 53.6, "MiB",
        lambda: K3_TP8.state_bytes_per_request / MIB, stated(layers=69, tp=8), digits=1,
        note="printed as 53.6 MB; the number is MiB", deployment=PLAIN,
    ),
    Published(
        "37a", "SGLang #36821", "state of one head and step", 64, "KiB",
        lambda: K3_TP8.state_bytes_per_head / KIB, stated(state="128 x 128, fp32"),
        deployment=PLAIN,
    ),
    Published(
        "37b", "SGLang #36821", "raw inputs of one head and step", 1, "KiB",
        lambda: cost(K3_TP8, "raw-inputs", 7).record_bytes_per_head / KIB,
        stated(record="k, v bf16; g, beta fp32"), approximate=0.01,
        deployment=replace(PLAIN, drafts=7, rollback="raw-inputs"),
    ),
    Published(
        "43a", "llama.cpp log", "convolution windows R", 2.25, "MiB",
        lambda: RequestMemory(QWEN_SMALL, tp=1, conv_dtype="float32").conv_bytes_per_request / MIB,
        stated(layers=24, heads=32) + inferred(window="fp32, 16 key heads"), digits=2,
    ),
    Published(
        "43b", "llama.cpp log", "recurrent states S", 48, "MiB",
        lambda: RequestMemory(QWEN_SMALL, tp=1).recurrent_bytes_per_request / MIB,
        stated(layers=24, heads=32),
    ),
    Published(
        "44a", "Atlas #533", "recurrent states of one request", 150_994_944, "B",
        lambda: QWEN_27B.recurrent_bytes_per_request, stated(layers=48, heads=48),
        deployment=GDN_27B,
    ),
    Published(
        "44b", "Atlas #533", "288 snapshots with windows", 45_751_468_032, "B",
        lambda: replace(QWEN_27B, conv_dtype="float32", draft_len=1).slot_bytes(288),
        stated(blobs=288) + inferred(window="4 rows, fp32"),
    ),
    Published(
        "48", "SGLang #33722", "state of one layer with 16 heads", 4, "MiB",
        lambda: RequestMemory(KIMI_K3, tp=6).state_bytes_per_layer / MIB,
        stated(HV=16), approximate=0.05,
        wrong="16 heads of 128 x 128 in fp32 are 1 MiB; 4 MiB would be 64 heads",
    ),
    Published(
        "58a", "SGLang #28730", "Qwen3-Next: recurrent states", 72, "MiB",
        lambda: QWEN_NEXT.recurrent_bytes_per_request / MIB, stated(layers=36, heads=32),
        deployment=GDN_NEXT,
    ),
    Published(
        "58b", "SGLang #28730", "Qwen3-Next: convolution windows", 1.69, "MiB",
        lambda: QWEN_NEXT.conv_bytes_per_request / MIB, stated(rows="3 of 8,192, bf16"), digits=2,
        deployment=GDN_NEXT,
    ),
    Published(
        "59", "vLLM on Neuron, GLM kv spec", "one KDA layer of GLM-5.3-Flash, TP64", 67_840, "B",
        lambda: RequestMemory(GLM_5_3_FLASH, tp=64).kda_bytes_per_layer, stated(tp=64),
        deployment=Deployment(model="glm-5.3-flash", tp=8, drafts=0, rollback="snapshots-align"),
    ),
)  # fmt: skip

ROLLBACK = (
    Published(
        "2a", "TokenSpeed #1058", "low-rank inputs per token and layer", 9_496, "B",
        lambda: cost(K3_TP8, "low-rank-inputs", 3).record_bytes_per_token_layer,
        stated(numbers="4,608 + 128 + 12, bf16"),
        deployment=replace(PLAIN, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "2b", "TokenSpeed #1058", "the same", 9.3, "KiB",
        lambda: cost(K3_TP8, "low-rank-inputs", 3).record_bytes_per_token_layer / KIB, digits=1,
        deployment=replace(PLAIN, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "3", "TokenSpeed #1058", "state row against input row", 86, "x",
        lambda: cost(K3_TP8, "low-rank-inputs", 3).state_to_record,
        deployment=replace(PLAIN, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "5", "TokenSpeed #1058", "records of 32 requests of 4 tokens", 82, "MB",
        lambda: 32 * cost(K3_TP8, "low-rank-inputs", 3).record_bytes / 1e6,
        stated(requests=32, tokens=4, layers=69), approximate=0.03,
        note="83.9 MB or 80.0 MiB: the printed value lies between the units",
        deployment=replace(PLAIN, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "6", "TokenSpeed #1156", "freed at TP16: 5.27 - 1.18 GiB", 4.09, "GiB",
        lambda: tokenspeed_freed(32, 3), stated(tp=16) + inferred(max_bs=32, tokens=4), digits=2,
        not_unique="batch and width are not published; 32 and 4 fit",
        deployment=Deployment(tp=16, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "34", "ATOM #1871", "windows moved for 4 requests", 7.6, "MB",
        lambda: 4 * K3_TP8.conv_bytes_per_request / 1e6,
        stated(layers=69) + inferred(requests=4), digits=1,
        deployment=PLAIN,
    ),
    Published(
        "47", "SGLang #27658", "state snapshots, 70 layers", 560, "MiB",
        lambda: cost(RequestMemory(SGLANG_64, tp=1), "snapshots-state-only", 3).buffer_bytes / MIB,
        stated(shape="4 x 70 x 64 x 128 x 128, fp32"),
        wrong="the stated shape in fp32 is 1,120 MiB; 560 MiB is bf16",
    ),
    Published(
        "60a", "vLLM #51855", "page of state, window and records", 976_896, "B",
        lambda: BlockPool(cost(K3_TP8, "corrections", 7), GIB).page_need_bytes,
        stated(drafts=7, rows="10 of 9,216 B", records="8 of 12,288 B"), deployment=RECOVER,
    ),
    Published(
        "60b", "vLLM #51855", "the same page in fp8 tokens", 1_696, "tokens",
        lambda: BlockPool(cost(K3_TP8, "corrections", 7), GIB, quantum=1).block_tokens,
        stated(row="576 B"), deployment=RECOVER,
    ),
)  # fmt: skip

BLOCKS = (
    Published(
        "15a", "vLLM, GB300 boot log", "K3 block, TP8, fp8", 1_536, "tokens",
        lambda: K3_TP8.block_tokens(), stated(page="814,080 B", row="576 B", quantum=128),
        deployment=PLAIN,
    ),
    Published(
        "15b", "vLLM, GB300 boot log", "K3 block, TP8, bf16", 768, "tokens",
        lambda: K3_BF16.block_tokens(), stated(row="1,152 B", quantum=128),
        deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "15c", "vLLM, GB300 boot log", "padding of the state page", 8.68, "%",
        lambda: 100 * BlockPool(cost(K3_TP8, "snapshots-align", 0), GIB).page_padding,
        stated(drafts=0), digits=2, deployment=PLAIN,
    ),
    Published(
        "19a", "vLLM, 8K prompt split", "first part of 8,000 tokens", 7_680, "tokens",
        lambda: blocks.aligned_tokens(8_000, K3_TP8.block_tokens()), stated(block="1,536"),
        deployment=PLAIN,
    ),
    Published(
        "19b", "vLLM, 8K prompt split", "second part", 320, "tokens",
        lambda: 8_000 - blocks.aligned_tokens(8_000, K3_TP8.block_tokens()), stated(block="1,536"),
        deployment=PLAIN,
    ),
    Published(
        "20a", "Infera #98", "chunk of a prefill of at most 4,096", 3_840, "tokens",
        lambda: blocks.aligned_tokens(4_096, K3_BF16.block_tokens()), stated(block=768),
        deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "20b", "Infera #98", "hashes of that chunk in the MLA group", 5, "",
        lambda: blocks.request_blocks(
            blocks.aligned_tokens(4_096, K3_BF16.block_tokens()), K3_BF16.block_tokens(), 0
        ),
        stated(block=768), deployment=replace(PLAIN, mla_dtype="bfloat16"),
    ),
    Published(
        "22a", "vLLM #54458", "Qwen3.8-Flash-Next block", 1_600, "tokens",
        lambda: RequestMemory(QWEN_FLASH_NEXT, 1, draft_len=2).block_tokens(16),
        inferred(value_heads=48, rows=5, row="2,048 B", quantum=16),
    ),
    Published(
        "22b", "vLLM #54458", "padding of its state page", 0.88, "%",
        lambda: 100
        * BlockPool(
            cost(RequestMemory(QWEN_FLASH_NEXT, 1), "snapshots-align", 2), GIB, quantum=16
        ).page_padding,
        inferred(value_heads=48, rows=5, row="2,048 B"), digits=2,
    ),
    Published(
        "29", "vLLM #54458", "GLM-5.3-Flash block", 7_808, "tokens",
        lambda: RequestMemory(GLM_576, 1, mla_dtype="float8", draft_len=3).block_tokens(),
        inferred(heads="64 at TP1", rows=6, row="576 B"),
    ),
    Published(
        "30", "vLLM #40696", "Qwen3.5-4B block", 528, "tokens",
        lambda: RequestMemory(QWEN_SMALL, 1).block_tokens(16),
        stated(page="2,146,304 B", row="4,096 B", quantum=16),
    ),
    *(
        Published(
            f"42{letter}", "K3 report 5.4.1", f"physical block at TP{tp}", block, "tokens",
            partial(report_block, tp),
            inferred(rule="ceil to 512 of page / 1,152 B"),
            deployment=Deployment(
                tp=tp, mla_dtype="bfloat16", quantum=512, drafts=0, rollback="snapshots-align"
            ),
        )
        for letter, tp, block in (("a", 8, 1024), ("b", 4, 1536), ("c", 2, 3072), ("d", 1, 6144))
    ),
    Published(
        "7a", "TokenSpeed test_kimi_k3_cache_spec", "one plane", 884_736, "B",
        lambda: tokenspeed_pool(0).page_bytes, stated(page=128, pack=12, row="576 B"),
        deployment=Deployment(tp=8, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "7b", "TokenSpeed test_kimi_k3_cache_spec", "block of 24 planes", 21_233_664, "B",
        lambda: tokenspeed_pool(0).block_bytes, stated(planes=24),
        deployment=Deployment(tp=8, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "7c", "TokenSpeed test_kimi_k3_cache_spec", "with 5 bf16 draft planes", 30_081_024, "B",
        lambda: tokenspeed_pool(5).block_bytes, stated(planes="24 + 5"),
    ),
    Published(
        "8a", "TokenSpeed test_kimi_k3_cache_spec", "fill of a block by 23 states", 0.882, "",
        lambda: tokenspeed_pool(0).group_fill, stated(states=23), digits=3,
        deployment=Deployment(tp=8, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "8b", "TokenSpeed test_kimi_k3_cache_spec", "fill with draft planes", 0.6224, "",
        lambda: tokenspeed_pool(5).group_fill, stated(states=23), digits=4,
    ),
    Published(
        "11", "TokenSpeed test_kimi_k3_cache_spec", "parents of 131,072 tokens", 92, "",
        lambda: tokenspeed_pool(0).blocks_per_request(131_072), stated(block="1,536", states=6),
        deployment=Deployment(tp=8, drafts=3, rollback="low-rank-inputs"),
    ),
    Published(
        "61a", "vLLM boot log, 2026-04-25", "block", 784, "tokens",
        lambda: QWEN_27B.block_tokens(16), inferred(model="Qwen3.5-27B, TP1, bf16", quantum=16),
        deployment=GDN_27B,
    ),
    Published(
        "61b", "vLLM boot log, 2026-04-25", "padding of the state page", 0.13, "%",
        lambda: 100 * BlockPool(cost(QWEN_27B, "snapshots", 0), GIB, quantum=16).page_padding,
        inferred(model="Qwen3.5-27B, TP1, bf16"), digits=2,
        deployment=GDN_27B,
    ),
    Published(
        "62a", "vLLM boot log, 2026-03-23, ROCm", "block", 1_056, "tokens",
        lambda: QWEN_35B.block_tokens(16), inferred(model="Qwen3.5-35B-A3B, TP1", quantum=16),
        deployment=GDN_35B,
    ),
    Published(
        "62b", "vLLM boot log, 2026-03-23, ROCm", "padding of the state page", 0.76, "%",
        lambda: 100 * BlockPool(cost(QWEN_35B, "snapshots", 0), GIB, quantum=16).page_padding,
        inferred(model="Qwen3.5-35B-A3B, TP1"), digits=2,
        deployment=GDN_35B,
    ),
)  # fmt: skip
