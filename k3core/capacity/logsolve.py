"""Solve a boot log back to what it does not print: blocks, blocks per request, slots, drafts.

Each result is determined, one of several candidates, or undetermined with the missing line named.
Values that cannot belong to the same start are reported as contradictions. Printed numbers are
rounded or cut, so every comparison allows one unit of the last printed digit.
"""

from __future__ import annotations

from dataclasses import replace

from k3core.capacity.bootlog import BootLog
from k3core.capacity.log_findings import Solved
from k3core.capacity.log_sglang import solve_sglang
from k3core.capacity.log_vllm import VLLMLog
from k3core.capacity.memory import RequestMemory
from k3core.capacity.model import ModelPreset
from k3core.errors import CapacityError, require_type

__all__ = ["Solved", "solve"]


def solve(
    log: BootLog,
    model: ModelPreset,
    tp: int,
    state_dtype: str = "float32",
    mla_dtype: str = "",
) -> Solved:
    """Everything that a log determines of a start of ``model``.

    Args:
        log: recognised lines; a parallel degree that they name takes the place of ``tp``.
        model: the model that was started.
        tp: tensor-parallel degree.
        state_dtype, mla_dtype: formats; an empty ``mla_dtype`` is the model's own.

    Raises:
        CapacityError: the degree does not divide the heads.
    """
    require_type("log", log, BootLog, CapacityError)
    said = log.get("tp")
    memory = RequestMemory(
        model, tp if said is None else int(said), state_dtype, mla_dtype=mla_dtype
    )
    if log.engine == "vllm":
        found = VLLMLog(log, memory).solve()
    elif log.engine == "sglang":
        found = solve_sglang(log, memory)
    else:
        found = Solved(missing={"engine": "no line of a known engine"})
    found = replace(found, impossible=log.impossible)
    if said is None or not log.engine:
        return found
    return replace(
        found,
        values={"tp": memory.tp, **found.values},
        known=found.known if "tp" in log.conflicts else ("tp", *found.known),
    )
