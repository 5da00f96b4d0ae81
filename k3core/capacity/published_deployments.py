"""Deployments of the sources of published values: what the planner opens with for their rows."""

from __future__ import annotations

from dataclasses import replace

from k3core.capacity.openings import PlanOpening
from k3core.capacity.planner import Deployment
from k3core.capacity.pools import GIB

KIB, MIB = 2**10, 2**20

PLAIN = Deployment(tp=8, drafts=0, rollback="snapshots-align")
K3 = PlanOpening(PLAIN)
K3_BF16 = PlanOpening(replace(PLAIN, mla_dtype="bfloat16"))
# TokenSpeed #1058, #1156 and its cache test: four verified tokens, low-rank inputs.
TOKENSPEED = replace(PLAIN, drafts=3, rollback="low-rank-inputs")
# ATOM recipe Kimi-K3-LMCache-Byte-Offload: 1,584 blocks of 25,657,344 B.
ATOM = Deployment(
    tp=8, context=65_536, drafts=2, rollback="snapshots-align", drafter_layers=5, budget_gib=37.8501
)
# vLLM #28228: 2.30 GiB as printed are 318 blocks (319 would fit as well).
LINEAR = Deployment(
    model="kimi-linear-48b", tp=2, context=120_000, drafts=0, rollback="snapshots",
    budget_gib=2.299, quantum=64,
)  # fmt: skip
QWEN_27B = Deployment(model="qwen3.5-27b", tp=1, drafts=0, rollback="snapshots-align", quantum=16)
QWEN_FP8 = replace(QWEN_27B, mla_dtype="float8")
QWEN_35B = replace(QWEN_27B, model="qwen3.5-35b")
QWEN_4B = replace(QWEN_27B, model="qwen3.5-4b")
QWEN_NEXT = replace(QWEN_27B, model="qwen3-next")
QWEN_FLASH = replace(QWEN_27B, model="qwen3.8-flash-next", drafts=2)
# vLLM RecoverSSM #51855, with the drafter's five layers.
RECOVER = Deployment(
    tp=8, context=262_144, rollback="corrections", drafter_layers=5, budget_gib=46.476
)
SGLANG_K3 = Deployment(
    tp=8, drafts=0, rollback="snapshots-state-only", budget_gib=28.53,
    pool_rule="split", mean_tokens=9216,
)  # fmt: skip
SGLANG_LING = replace(SGLANG_K3, model="ling-3.0-tiny", tp=1, budget_gib=23.64, mean_tokens=8192)


def pool_of(deployment: Deployment, num_blocks: int) -> Deployment:
    """The deployment with a budget of ``num_blocks`` blocks and half a block more."""
    block = PlanOpening(deployment).open().blocks.block_bytes
    return replace(deployment, budget_gib=round((num_blocks + 0.5) * block / GIB, 4))
