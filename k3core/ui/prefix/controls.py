"""The controls of the prefix page: two prompts, and the parameters of each scene below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from k3core.studies import prefix_cache as studies
from k3core.ui.controls import Choice, Control, Slider, Steps, Toggle
from k3core.ui.shared import MLA_DTYPE, MODEL, TP

Fields = Mapping[str, Control]  # parameter of the study -> the control that sets it


def from_case(field: str) -> Callable[[Any], Any]:
    """Default of a control: what the chosen case sets."""
    return lambda values: studies.case_value(values["prefix_case"], field)


def kept(values: Any) -> tuple[int, ...]:
    """Boundaries at which the first prompt keeps checkpoints, (0,) when nowhere."""
    return studies.kept_boundaries(
        values["prefix_policy"],
        values["prefix_every"],
        values["prefix_shared"] + values["prefix_tail"],
        values["prefix_block"],
    ) or (0,)


def deepest_kept(values: Any) -> int:
    """Where a missing group hurts most."""
    return studies.deepest_kept(kept(values), values["prefix_shared"])


def keeps(values: Any) -> bool:
    return bool(values["prefix_policy"] != "none")


def plays_eviction(_: Any) -> bool:
    """Whether the scenario can evict; the choice stands below the sidebar that asks."""
    chosen = st.session_state.get("player_scenario", st.query_params.get("player_scenario"))
    return chosen in ("evict", studies.OWN)


def asked(values: Any, fields: Fields) -> dict[str, Any]:
    """Arguments of a study from the values of its controls."""
    return {name: getattr(values, control.key) for name, control in fields.items()}


CASE: Fields = {
    "prompt_len": Slider("prefix_prompt", from_case("prompt_len"), "prompts", low=64, high=16_384),
    "shared_len": Slider(
        "prefix_shared",
        from_case("shared_len"),
        "prompts",
        low=0,
        high=lambda values: values["prefix_prompt"],
    ),
    "first_tail": Slider("prefix_tail", from_case("first_tail"), "prompts", low=0, high=4096),
    "ready": Toggle("prefix_ready", from_case("ready"), "prompts"),
    "salted": Toggle("prefix_salt", from_case("salted"), "prompts"),
    "block_tokens": Steps("prefix_block", 512, "cache", options=(128, 256, 512, 1024, 1536, 2048)),
    "num_groups": Slider("prefix_groups", 3, "cache", low=1, high=6),
    "drafter_drop": Toggle("prefix_drop", from_case("drafter_drop"), "cache"),
    "policy": Choice(
        "prefix_policy",
        from_case("policy"),
        "checkpoints",
        options=studies.POLICIES,
        style="segments",
    ),
    "every_blocks": Slider(
        "prefix_every",
        2,
        "checkpoints",
        low=1,
        high=8,
        shown=lambda values: values["prefix_policy"] == "every",
    ),
    "missing_group": Choice(
        "prefix_missing",
        from_case("missing_group"),
        "checkpoints",
        options=lambda values: ("none", *map(str, range(values["prefix_groups"])), "all"),
        shown=keeps,
    ),
    "missing_boundary": Steps(
        "prefix_missing_at",
        deepest_kept,
        "checkpoints",
        options=kept,
        shown=lambda values: keeps(values) and values["prefix_missing"] != "none",
    ),
    "evicted": Choice(
        "prefix_evicted",
        from_case("evicted"),
        "checkpoints",
        options=studies.EVICTIONS,
        shown=lambda values: values["prefix_ready"],
    ),
}
DEPLOYMENT: Fields = {"model": MODEL, "tp": TP, "mla_dtype": MLA_DTYPE}
HISTORY = Choice("load_history", "resent", "load", options=studies.HISTORIES, style="segments")
BUDGETS = (0, 2048, 4096, 8192, 16_384, 32_768)
COST_LENGTHS = (4_000, 16_000, 32_000, 64_000, 128_000, 200_000, 400_000, 1_000_000)
SCENES: dict[str, Fields] = {
    "lookup": {
        "model": Choice("prefix_cost_model", "kimi-k3", "cost", options=studies.COST_MODELS),
        "prefix_len": Steps("prefix_cost_len", 400_000, "cost", options=COST_LENGTHS),
        "new_len": Steps(
            "prefix_cost_new", 4_000, "cost", options=(1, 100, 1_000, 4_000, 16_000, 64_000)
        ),
    },
    "stairs": {
        **DEPLOYMENT,
        "hash_block_tokens": Steps("grid_hash", 0, "grid", options=(0, 512)),
        "max_batched_tokens": Steps("grid_budget", 0, "grid", options=BUDGETS),
        "context_parallel": Steps("grid_dcp", 1, "grid", options=(1, 2, 4, 8)),
        "draft_len": Steps("grid_drafts", 0, "grid", options=(0, 1, 3, 7, 15)),
        "drafter_drop": Toggle("grid_drop", False, "grid"),
        "rule": Choice("grid_rule", "junction", "grid", options=studies.LADDER_RULES),
    },
    "policies": {
        **DEPLOYMENT,
        "num_pages": Steps("load_pages", 400, "load", options=(50, 100, 200, 400, 800, 1600, 3200)),
        "interval_blocks": Slider("load_interval", 8, "load", low=1, high=32),
        "max_per_path": Slider("load_cap", 3, "load", low=1, high=8),
        "max_batched_tokens": Steps("grid_budget", 8192, "load", options=BUDGETS),
        "drafter_drop": Toggle("grid_drop", False, "load"),
        "conversations": Slider("load_conversations", 4, "load", low=1, high=8),
        "history": HISTORY,
    },
    "cliff": {
        **DEPLOYMENT,
        "pages": Steps("cliff_pages", 180, "load", options=(60, 90, 120, 180, 240, 360, 500, 720)),
        "conversations": Slider("load_alive", 2, "load", low=1, high=8),
        "interval_blocks": Steps("cliff_interval", 8, "load", options=studies.INTERVALS),
        "opening_len": Steps(
            "load_opening", 30_000, "load", options=(8_000, 15_000, 30_000, 60_000)
        ),
        "history": HISTORY,
        "keep_ends": Toggle("cliff_ends", False, "load"),
    },
    "player": {
        "rule": Choice("player_rule", "junction", "player", options=studies.PLAYER_RULES),
        "num_pages": Steps("player_pages", 20, "player", options=(12, 14, 16, 18, 20, 30)),
        "cascade": Toggle("player_cascade", False, "player", shown=plays_eviction),
    },
}
