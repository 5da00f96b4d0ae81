"""What a solved boot log says, and the planner's inputs that it determines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from k3core.capacity.bootlog import BootLog, Line
from k3core.capacity.memory import RequestMemory
from k3core.capacity.planner import Deployment


@dataclass(frozen=True)
class Solved:
    """What follows from a log and a model.

    Attributes:
        values: what is determined, by code: ``num_blocks``, ``blocks_per_request``,
            ``state_blocks``, ``drafts``, ``num_groups``, ``slots_per_request``, ``rows``,
            ``state_pool_ratio``, ``budget_gib``, ``bytes_per_token``, ``print_rule``, ``tp``,
            ``drafter_layers``, ``draft_states_per_slot``, ``cache_mode``.
        candidates: values that fit equally well, by code.
        missing: codes that stay undetermined, with the log line that would tell.
        contradictions: codes of values that do not fit together; ``also-vllm`` and ``also-sglang``
            are lines of the other engine.
        deployment: inputs for the planner; what the log does not determine stands at a default.
        known: names of the inputs that the log does determine.
        impossible: lines whose value cannot be; none of them was used.
    """

    values: dict[str, float | str] = field(default_factory=dict)
    candidates: dict[str, tuple[float, ...]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    contradictions: tuple[str, ...] = ()
    deployment: Deployment = field(default_factory=Deployment)
    known: tuple[str, ...] = ()
    impossible: tuple[Line, ...] = ()


def told_by(log: BootLog, values: dict[str, Any], codes: dict[str, str]) -> dict[str, Any]:
    """What a log says without contradicting itself; ``codes`` name the lines behind the inputs."""
    return {
        name: int(value) if name in ("context", "drafts") else value
        for name, value in values.items()
        if value is not None and codes.get(name, name) not in log.conflicts
    }


def deployment_of(memory: RequestMemory, inputs: dict[str, Any]) -> Deployment:
    return Deployment(
        model=memory.model.code,
        tp=memory.tp,
        state_dtype=memory.state_dtype,
        mla_dtype=memory.mla_dtype,
        preset=memory.model if memory.model.code == "custom" else None,
        **inputs,
    )
