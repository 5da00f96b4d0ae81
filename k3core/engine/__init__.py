"""A small serving engine over one page pool and one prefix cache."""

from k3core.engine.demo import RunOnce, run_once
from k3core.engine.drafters import Drafter, NoisyReplayDrafter, PromptLookupDrafter
from k3core.engine.memory import CachedBlock, Checkpoint, PagedMemory
from k3core.engine.request import (
    PREFILL,
    VERIFY,
    PoolUse,
    Request,
    RequestResult,
    Step,
    next_chunk_end,
)
from k3core.engine.serving import Engine

__all__ = [
    "PREFILL",
    "VERIFY",
    "CachedBlock",
    "Checkpoint",
    "Drafter",
    "Engine",
    "NoisyReplayDrafter",
    "PoolUse",
    "PromptLookupDrafter",
    "Request",
    "PagedMemory",
    "RequestResult",
    "RunOnce",
    "Step",
    "next_chunk_end",
    "run_once",
]
