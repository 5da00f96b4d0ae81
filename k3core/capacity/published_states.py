"""Published bytes of states, of rollback schemes and of context-parallel packets."""

from __future__ import annotations

from dataclasses import replace

from k3core.capacity import blocks
from k3core.capacity.openings import PlanOpening, PlanView
from k3core.capacity.planner import Deployment
from k3core.capacity.pools import GIB
from k3core.capacity.published_deployments import (
    K3,
    KIB,
    MIB,
    PLAIN,
    QWEN_4B,
    QWEN_27B,
    QWEN_NEXT,
    RECOVER,
    TOKENSPEED,
)
from k3core.capacity.records import Published, inferred, stated

SPEED = PlanOpening(TOKENSPEED)
NEXT = PlanOpening(QWEN_NEXT)
RECORDS_IN_PAGE = PlanOpening(RECOVER)


def freed_gib(view: PlanView) -> float:
    """GiB that records and windows free where whole slots were kept, for ``view.requests``."""
    cost, count = view.cost, view.requests
    after = count * (cost.record_bytes + cost.drafted.conv_bytes_per_request)
    return (view.memory.slot_bytes(count * (cost.draft_len + 2)) - after) / GIB


STATES = (
    Published(
        "1a", "TokenSpeed #1058", "one KDA layer, state and window", 814_080, "B",
        K3, lambda v: v.memory.kda_bytes_per_layer,
        stated(heads="12 of 128 x 128, fp32", window="3 rows of 4,608, bf16"),
    ),
    Published(
        "1b", "TokenSpeed #1058", "the same row", 795, "KiB",
        K3, lambda v: v.memory.kda_bytes_per_layer / KIB,
    ),
    Published(
        "12", "ATOM #1883", "one slot with a window of 10 rows", 57.81, "MiB",
        PlanOpening(replace(PLAIN, drafts=7, rollback="snapshots")),
        lambda v: v.cost.slot_bytes / MIB,
        stated(drafts=7, rows="3 + 7"), digits=2,
    ),
    Published(
        "14", "SGLang #34441", "one slot of all KDA layers", 53.6, "MiB",
        K3, lambda v: v.memory.state_bytes_per_request / MIB, stated(layers=69, tp=8), digits=1,
        note="printed as 53.6 MB; the number is MiB",
    ),
    Published(
        "37a", "SGLang #36821", "state of one head and step", 64, "KiB",
        K3, lambda v: v.memory.state_bytes_per_head / KIB, stated(state="128 x 128, fp32"),
    ),
    Published(
        "37b", "SGLang #36821", "raw inputs of one head and step", 1, "KiB",
        PlanOpening(replace(PLAIN, drafts=7, rollback="raw-inputs")),
        lambda v: v.cost.record_bytes_per_head / KIB,
        stated(record="k, v bf16; g, beta fp32"), approximate=0.01,
    ),
    Published(
        "43a", "llama.cpp log", "convolution windows R", 2.25, "MiB",
        PlanOpening(replace(QWEN_4B, conv_dtype="float32")),
        lambda v: v.memory.conv_bytes_per_request / MIB,
        stated(layers=24, heads=32) + inferred(window="fp32, 16 key heads"), digits=2,
    ),
    Published(
        "43b", "llama.cpp log", "recurrent states S", 48, "MiB",
        PlanOpening(QWEN_4B), lambda v: v.memory.recurrent_bytes_per_request / MIB,
        stated(layers=24, heads=32),
    ),
    Published(
        "44a", "Atlas #533", "recurrent states of one request", 150_994_944, "B",
        PlanOpening(QWEN_27B), lambda v: v.memory.recurrent_bytes_per_request,
        stated(layers=48, heads=48),
    ),
    Published(
        "44b", "Atlas #533", "288 snapshots with windows", 45_751_468_032, "B",
        PlanOpening(replace(QWEN_27B, conv_dtype="float32", drafts=1), requests=288),
        lambda v: v.cost.drafted.slot_bytes(v.requests),
        stated(blobs=288) + inferred(window="4 rows, fp32"),
    ),
    Published(
        "48", "SGLang #33722", "state of one layer with 16 heads", 4, "MiB",
        PlanOpening(replace(PLAIN, tp=6)), lambda v: v.memory.state_bytes_per_layer / MIB,
        stated(HV=16), approximate=0.05,
        wrong="16 heads of 128 x 128 in fp32 are 1 MiB; 4 MiB would be 64 heads",
    ),
    Published(
        "58a", "SGLang #28730", "Qwen3-Next: recurrent states", 72, "MiB",
        NEXT, lambda v: v.memory.recurrent_bytes_per_request / MIB, stated(layers=36, heads=32),
    ),
    Published(
        "58b", "SGLang #28730", "Qwen3-Next: convolution windows", 1.69, "MiB",
        NEXT, lambda v: v.memory.conv_bytes_per_request / MIB,
        stated(rows="3 of 8,192, bf16"), digits=2,
    ),
    Published(
        "59", "vLLM on Neuron, GLM kv spec", "one KDA layer of GLM-5.3-Flash, TP64", 67_840, "B",
        PlanOpening(
            Deployment(model="glm-5.3-flash", tp=64, drafts=0, rollback="snapshots-align")
        ),
        lambda v: v.memory.kda_bytes_per_layer, stated(tp=64),
    ),
)  # fmt: skip

ROLLBACK = (
    Published(
        "2a", "TokenSpeed #1058", "low-rank inputs per token and layer", 9_496, "B",
        SPEED, lambda v: v.cost.record_bytes_per_token_layer,
        stated(numbers="4,608 + 128 + 12, bf16"),
    ),
    Published(
        "2b", "TokenSpeed #1058", "the same", 9.3, "KiB",
        SPEED, lambda v: v.cost.record_bytes_per_token_layer / KIB, digits=1,
    ),
    Published(
        "3", "TokenSpeed #1058", "state row against input row", 86, "x",
        SPEED, lambda v: v.cost.state_to_record,
    ),
    Published(
        "5", "TokenSpeed #1058", "records of 32 requests of 4 tokens", 82, "MB",
        PlanOpening(TOKENSPEED, requests=32), lambda v: v.requests * v.cost.record_bytes / 1e6,
        stated(requests=32, tokens=4, layers=69), approximate=0.03,
        note="83.9 MB or 80.0 MiB: the printed value lies between the units",
    ),
    Published(
        "6", "TokenSpeed #1156", "freed at TP16: 5.27 - 1.18 GiB", 4.09, "GiB",
        PlanOpening(replace(TOKENSPEED, tp=16), requests=32), freed_gib,
        stated(tp=16) + inferred(max_bs=32, tokens=4), digits=2,
        not_unique="batch and width are not published; 32 and 4 fit",
    ),
    Published(
        "34", "ATOM #1871", "windows moved for 4 requests", 7.6, "MB",
        PlanOpening(PLAIN, requests=4),
        lambda v: v.requests * v.memory.conv_bytes_per_request / 1e6,
        stated(layers=69) + inferred(requests=4), digits=1,
    ),
    Published(
        "47", "SGLang #27658", "state snapshots, 70 layers", 560, "MiB",
        PlanOpening(
            Deployment(model="sglang-64-heads", tp=1, drafts=3, rollback="snapshots-state-only")
        ),
        lambda v: v.cost.buffer_bytes / MIB,
        stated(shape="4 x 70 x 64 x 128 x 128, fp32"),
        wrong="the stated shape in fp32 is 1,120 MiB; 560 MiB is bf16",
    ),
    Published(
        "60a", "vLLM #51855", "page of state, window and records", 976_896, "B",
        RECORDS_IN_PAGE, lambda v: v.blocks.page_need_bytes,
        stated(drafts=7, rows="10 of 9,216 B", records="8 of 12,288 B"),
    ),
    Published(
        "60b", "vLLM #51855", "the same page in fp8 tokens", 1_696, "tokens",
        RECORDS_IN_PAGE,
        lambda v: blocks.aligned_block(
            v.blocks.page_need_bytes, v.memory.mla_bytes_per_token_layer, 1
        ),
        stated(row="576 B"),
    ),
)  # fmt: skip

PARALLEL = (
    Published(
        "45", "SGLang #34059", "context-parallel packet, 32 heads", 4, "MiB",
        PlanOpening(
            Deployment(model="kimi-linear-48b", tp=1, drafts=0, rollback="snapshots-align")
        ),
        lambda v: v.memory.context_parallel_bytes_per_layer / MIB,
        stated(shape="32 x 128 x 256, fp32"),
    ),
    Published(
        "46", "SGLang #34059", "the same for Kimi K3, all layers", 34, "MiB",
        K3, lambda v: v.memory.context_parallel_bytes / MIB, stated(tp=8), approximate=0.02,
        wrong="1.5 MiB x 69 layers; 34.5 MiB is 69 x 0.5 MiB, the heads of Kimi-Linear at TP8",
    ),
)  # fmt: skip
