"""Queries that open the planner: with a deployment, or with the inputs of a published value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

import streamlit as st

from k3core.capacity.openings import GridOpening, PlanOpening, PrintedOpening
from k3core.capacity.planner import Deployment
from k3core.capacity.presets import MODELS, REPORTED
from k3core.capacity.published import BY_CODE
from k3core.capacity.records import Published
from k3core.capacity.saved_plan import CUSTOM
from k3core.ui.page import Page
from k3core.ui.planner.controls import config_text
from k3core.ui.url import quoted

SCENE_OF = {PlanOpening: "plan", GridOpening: "grid", PrintedOpening: "printed"}


def query_of(wanted: Deployment) -> dict[str, str]:
    """The query that opens the planner with exactly this deployment."""
    model = (MODELS | REPORTED).get(wanted.model)
    cache = wanted.mla_dtype or (model.mla_dtype if model else "bfloat16")
    query = {
        "model": wanted.model,
        "tp": str(wanted.tp or (model.default_tp if model else "")),
        "state_dtype": wanted.state_dtype,
        "conv_dtype": wanted.conv_dtype,
        "mla_dtype": cache,
        "mean_tokens": str(wanted.mean_tokens or wanted.context),
        "context_len": str(wanted.context),
        "budget_gib": str(wanted.budget_gib),
        "max_running": str(wanted.max_running),
        "draft_len": str(wanted.drafts),
        "rollback_scheme": wanted.rollback,
        "drafter_layers": str(wanted.drafter_layers),
        "drafter_dtype": wanted.drafter_dtype or cache,
        "pool_rule": wanted.pool_rule,
        "block_quantum": str(wanted.quantum),
        "state_blocks": str(wanted.state_blocks),
        "state_pool_ratio": str(wanted.state_pool_ratio),
        "slots_per_request": str(wanted.slots_per_request),
    }
    return {key: value for key, value in query.items() if value}


_KEYS = {
    "context": "context_len",
    "drafts": "draft_len",
    "rollback": "rollback_scheme",
    "quantum": "block_quantum",
}


def part_of(wanted: Deployment, names: Iterable[str]) -> dict[str, str]:
    """The part of the query that sets these inputs of a deployment and no other."""
    query = query_of(wanted)
    return {key: query[key] for key in (_KEYS.get(name, name) for name in names) if key in query}


def row_query(record: Published) -> dict[str, str]:
    """The query that opens the scene which computes a published value, with its inputs."""
    opening = record.opening
    query = {"row": record.code}
    if isinstance(opening, PrintedOpening):
        pool = opening.pool
        return query | {
            "capacity_scene": "printed",
            "printed_blocks": str(pool.num_blocks),
            "printed_limit": str(pool.limit),
            "printed_block": str(pool.block_tokens),
            "printed_fixed": str(pool.fixed_blocks),
            "printed_groups": str(pool.groups),
            "printed_running": str(pool.running),
        }
    query |= query_of(opening.deployment)
    if isinstance(opening, GridOpening):
        return query | {
            "capacity_scene": "grid",
            "grid_prompt": str(opening.prompt_tokens),
            "grid_hash": str(opening.hash_tokens),
            "grid_block": str(opening.block_tokens),
            "grid_drop": str(opening.dropped_blocks),
            "grid_repeats": str(opening.repeats),
        }
    query["target_requests"] = str(opening.requests)
    if opening.before is not None:
        query["pin"] = urlencode(query_of(opening.before))
    return query


def say_what_a_link_lacks(page: Page) -> None:
    """What a link names and does not bring: its sender's own model, a row that is not there."""
    if st.query_params.get("model") == CUSTOM and not config_text():
        st.info(page.t("paste.lacks"))
    row = page.query.get("row")
    if row is not None and row not in BY_CODE:
        page.note(page.t("row.unknown", raw=quoted(row)))


def open_with(page: Page, query: Mapping[str, str]) -> None:
    """Open the planner with these controls; the URL decides on the next run."""
    lang = page.query.get("lang")
    st.query_params.from_dict({**query, **({"lang": lang} if lang else {})})
    st.rerun()
