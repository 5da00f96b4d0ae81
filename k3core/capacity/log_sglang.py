"""Solve a boot log of SGLang back to rows, slots per request, pool ratio and bytes per token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from k3core.capacity.bootlog import BootLog
from k3core.capacity.log_findings import Solved, deployment_of, told_by
from k3core.capacity.memory import RequestMemory
from k3core.capacity.pools import GIB
from k3core.dtypes import dtype_bytes

_SGLANG_SLOTS = (1, 3, 4, 5)


def solve_sglang(log: BootLog, memory: RequestMemory) -> Solved:
    """Rows, slots per request, ratio and bytes per token; the state pool has one spare row."""
    values: dict[str, float | str] = {}
    candidates: dict[str, tuple[float, ...]] = {}
    missing: dict[str, str] = {}
    contradictions = list(log.conflicts)
    slots, ssm, conv, kv = (log.get(c) for c in ("slots", "ssm_gib", "conv_gib", "kv_gib"))
    tokens, running = log.get("pool_tokens") or log.get("max_total_tokens"), log.get("max_running")
    pool = {log.get("pool_tokens"), log.get("max_total_tokens")} - {None}
    if len(pool) > 1:
        contradictions.append("max_total_tokens")
    draft_gib = log.get("draft_state_gib")
    if slots is None:
        missing["slots"] = "Mamba Cache is allocated. max_mamba_cache_size: N"
    else:
        values["rows"] = int(slots) + 1
        for code, gib, each in (
            ("ssm_gib", ssm, memory.recurrent_bytes_per_request),
            ("conv_gib", conv, memory.conv_bytes_per_request),
        ):
            if gib is None:
                missing[code] = "conv_state size, ssm_state size"
            elif abs((slots + 1) * each / GIB - gib) >= 0.01:
                contradictions.append(code)
        if draft_gib is not None:
            width = draft_gib * GIB / (slots + 1) / memory.recurrent_bytes_per_request
            values["draft_states_per_slot"] = round(width, 2)
    if slots is not None and running is not None:
        fits = [s for s in _SGLANG_SLOTS if int(slots) // s == int(running)]
        if len(fits) == 1:
            values["slots_per_request"] = fits[0]
        elif fits:
            candidates["slots_per_request"] = tuple(float(s) for s in fits)
        else:
            missing["slots_per_request"] = "requests are capped by something else than slots"
    elif running is None:
        missing["slots_per_request"] = "max_running_requests=N"
    if kv is not None and tokens:
        values["bytes_per_token"] = round(kv * GIB / tokens)
        if abs(memory.kv_bytes(int(tokens)) / GIB - kv) >= 0.01:
            contradictions.append("kv_gib")
        if _another_format(log.word("kv_dtype"), int(tokens), kv, memory):
            contradictions.append("kv_dtype")
    else:
        missing["bytes_per_token"] = "KV Cache is allocated. #tokens: N, KV size: X GB"
    if ssm is not None and kv:
        state = ssm + (conv or 0.0)
        values |= {"state_pool_ratio": round(state / kv, 3), "budget_gib": round(state + kv, 2)}
    told: dict[str, Any] = {
        "pool_rule": "split",
        "drafts": log.get("drafts"),
        "rollback": None if draft_gib is None else "snapshots-state-only",
        **{
            name: values.get(name)
            for name in ("budget_gib", "state_pool_ratio", "slots_per_request")
        },
    }
    if {"ssm_gib", "conv_gib", "kv_gib"} & {*log.conflicts}:
        told |= {"budget_gib": None, "state_pool_ratio": None}
    told = told_by(log, told, {"rollback": "draft_state_gib"})
    start = {"drafts": 0, "rollback": "snapshots-state-only"}
    deployment = deployment_of(memory, start | told)
    return Solved(values, candidates, missing, tuple(contradictions), deployment, tuple(told))


_FORMATS = ("float8", "bfloat16", "float32")


def _another_format(word: str, tokens: int, gib: float, memory: RequestMemory) -> bool:
    """Whether the bytes of this model's cache mean another format than the log names."""
    named = word.removeprefix("torch.").replace("fp8", "float8").replace("uint8", "float8")
    width = next((dtype_bytes(f) for f in (*_FORMATS, "float16") if named.startswith(f)), None)
    if width is None:
        return False
    fits = [
        dtype_bytes(f)
        for f in _FORMATS
        if abs(replace(memory, mla_dtype=f, drafter_dtype=f).kv_bytes(tokens) / GIB - gib) < 0.01
    ]
    return bool(fits) and width not in fits
