"""Retention policies on the same requests: what they reuse, and what their checkpoints weigh."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import get_preset
from k3core.errors import require, require_count
from k3core.fleet.cache import BLOCK_LEN
from k3core.prefix_cache.granularity import HitGranularity
from k3core.prefix_cache.retention import Retention
from k3core.studies.fleet.traces import trace_workload
from k3core.studies.prefix_cache.command import HitRateReport, workload_hit_rate
from k3core.studies.prefix_cache.traffic import (
    NUM_GROUPS,
    Served,
    SharedPrompt,
    Talk,
    make_manager,
    serve_all,
)

POLICY_CODES = ("chunk_end", "replay", "interval", "junction", "capped", "dense")
TURNS, SHARED, TRACE = "turns", "shared", "trace"


@dataclass(frozen=True)
class PolicyStudy:
    """Every policy on every workload.

    Attributes:
        tables: ``policies`` (workload x policy: hit rate, peak checkpoint bytes and pages, refused
            requests), ``losses`` (workload x policy x reason: tokens).
        block_tokens: physical block of the deployment.
        checkpoint_bytes: one set of states, all KDA layers, one rank.
        num_requests: by workload.
    """

    tables: dict[str, pd.DataFrame]
    block_tokens: int
    checkpoint_bytes: int
    num_requests: dict[str, int]

    def row(self, workload: str, policy: str) -> pd.Series:
        """One row of ``policies``."""
        table = self.tables["policies"].set_index(["workload", "policy"])
        found: pd.Series = table.loc[(workload, policy)]
        return found

    def best(self, workload: str) -> str:
        """Policy with the highest hit rate; of equal ones that with the fewest bytes."""
        table = self.tables["policies"]
        table = table[table["workload"] == workload]
        order = table.sort_values(["hit_rate", "checkpoint_bytes"], ascending=[False, True])
        return str(order["policy"].iloc[0])


def policies(
    model: str = "kimi-k3",
    tp: int = 8,
    mla_dtype: str = "float8",
    num_pages: int = 400,
    interval_blocks: int = 8,
    max_per_path: int = 3,
    max_batched_tokens: int = 8_192,
    drafter_drop: bool = False,
    conversations: int = 4,
    history: str = "resent",
    trace: str = "",
    seed: int = 0,
) -> PolicyStudy:
    """Serve a multi-turn and a shared-prompt workload, and a trace if one is named.

    The trace runs whole, through the fleet's block cache with the same pages: its requests are not
    cut into chunks, so the policy ``chunk_end`` has no row there.

    Args:
        num_pages: pages of the pool; one holds a physical block of MLA rows or a group's state.
        interval_blocks: distance of checkpoints, for the policy ``interval``.
        max_per_path: cap, for ``capped`` (dense otherwise).
        max_batched_tokens: tokens of a prefill step; 0 is no limit.
        trace: key of a stored trace, or "".

    Raises:
        K3Error: a size is out of range. TraceError: the trace is not stored.
    """
    for name, value in {"interval_blocks": interval_blocks, "num_pages": num_pages}.items():
        require_count(name, value, 1)
    granularity = HitGranularity.of_model(model, tp, mla_dtype=mla_dtype, drafter_drop=drafter_drop)
    block = granularity.physical_block_tokens
    rules = {
        "chunk_end": Retention("chunk_end"),
        "replay": Retention("replay"),
        "interval": Retention("interval", interval_blocks * block),
        "junction": Retention("junction"),
        "capped": Retention("dense", max_per_path=max_per_path),
        "dense": Retention("dense"),
    }
    loads: dict[str, Talk | SharedPrompt] = {
        TURNS: Talk(
            conversations, system_len=7_000, opening_len=12_000, history=history, seed=seed
        ),
        SHARED: SharedPrompt(seed=seed),
    }
    weight = RequestMemory(get_preset(model), tp, mla_dtype=mla_dtype).state_bytes_per_request
    rows, losses, counts = [], [], {}
    for workload, load in loads.items():
        requests = list(load.arrivals(granularity.match_unit))
        for policy, retention in rules.items():
            manager = make_manager(num_pages, granularity, retention)
            served = serve_all(manager, requests, max_batched_tokens)
            rows.append(_row(workload, policy, served, weight))
            counts[workload] = served.num_requests
            losses += [
                (workload, policy, reason, tokens) for reason, tokens in served.losses.items()
            ]
    if trace:
        requests_of = trace_workload(trace)
        units = block // BLOCK_LEN
        require(
            block % BLOCK_LEN == 0,
            f"mla_dtype={mla_dtype!r} at tp={tp} gives blocks of {block} tokens; a trace needs "
            f"multiples of {BLOCK_LEN}",
        )
        counts[TRACE] = len(requests_of)
        for policy, retention in rules.items():
            if retention.stops:
                report = workload_hit_rate(
                    requests_of, retention, num_pages * units, NUM_GROUPS * units, model, tp
                )
                rows.append(_traced_row(policy, report, weight, num_pages))
    return PolicyStudy(
        tables={
            "policies": pd.DataFrame(rows),
            "losses": pd.DataFrame(losses, columns=["workload", "policy", "reason", "tokens"]),
        },
        block_tokens=block,
        checkpoint_bytes=weight,
        num_requests=counts,
    )


def _traced_row(
    policy: str, report: HitRateReport, weight: int, num_pages: int
) -> dict[str, object]:
    return {
        "workload": TRACE,
        "policy": policy,
        "hit_rate": report.reused_tokens / max(report.total_tokens, 1),
        "reused_tokens": report.reused_tokens,
        "prompt_tokens": report.total_tokens,
        "checkpoint_bytes": report.peak_checkpoint_bytes,
        "kda": report.peak_checkpoint_bytes // weight * NUM_GROUPS,
        "mla": num_pages - report.peak_checkpoint_bytes // weight * NUM_GROUPS,
        "refused": 0,
    }


def _row(workload: str, policy: str, served: Served, weight: int) -> dict[str, object]:
    return {
        "workload": workload,
        "policy": policy,
        "hit_rate": served.hit_rate,
        "reused_tokens": served.reused_tokens,
        "prompt_tokens": served.prompt_tokens,
        "checkpoint_bytes": served.peak_states * weight // NUM_GROUPS,
        "kda": served.peak_states,
        "mla": served.peak_rows,
        "refused": served.num_refused,
    }
