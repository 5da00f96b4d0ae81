"""Scenes beside the plan: what drafts earn, where a prefix may be cut, what an engine prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from k3core.capacity.openings import GridView
from k3core.capacity.planner import plan
from k3core.capacity.printed import PrintedPool
from k3core.capacity.profiles import get_profile
from k3core.figures import capacity as figures
from k3core.studies import capacity as studies
from k3core.studies.capacity import formulas
from k3core.ui.controls import Control, Number, Slider, Steps
from k3core.ui.page import Metric, Page
from k3core.ui.planner.published import row_banner
from k3core.ui.tables import Wide
from k3core.units import bytes_text, count_text, percent_text

GRID_SPECS: tuple[Control, ...] = (
    Number("grid_prompt", 10_000, "", low=2, high=1_048_576),
    Number("grid_repeats", 1, "", low=1, high=1_000_000),
    Steps("grid_hash", 512, "", options=(16, 64, 128, 256, 512, 1024)),
    Number("grid_block", 0, "", low=0, high=1_048_576),
    Steps("grid_dcp", 1, "", options=(1, 2, 4, 8, 16)),
    Steps("grid_retention", 0, "", options=(0, 2048, 4096, 6144, 8192, 12_288, 32_768)),
    Slider("grid_drop", 0, "", low=0, high=2),
)
RECIPE = PrintedPool(1584, 65_536, 1536, 12, 4)


def rule_caption(page: Page, code: str) -> None:
    """The engine rule that made the numbers above."""
    rule = get_profile(code)
    words = {name: getattr(rule, name) for name in ("engine", "version", "date", "source")}
    st.caption(page.t("profile.rule", **words))


def in_cells(page: Page, specs: tuple[Control, ...], width: int) -> dict[str, Any]:
    """Controls of a scene, ``width`` side by side; their values by key."""
    values: dict[str, Any] = {}
    for start in range(0, len(specs), width):
        row = specs[start : start + width]
        for cell, spec in zip(st.columns(width), row, strict=False):
            with cell:
                values |= vars(page.body_controls(spec))
    return values


def drafts_scene(page: Page, inputs: Mapping[str, Any]) -> None:
    """What drafting earns and costs."""
    knob = page.body_controls(Slider("acceptance_len", 3.84, "", low=1.0, high=8.0, step=0.01))
    r = page.study(studies.drafts, acceptance_len=knob.acceptance_len, **inputs)
    found = r.balance
    gain = r.measured_gain
    is_point = found.requests_drafted in {point.concurrency for point in r.curve.points}
    page.metrics(
        Metric(
            "tokens_per_step",
            f"{found.tokens_per_step:.2f}",
            "published" if r.is_published else "derived",
            page.t("unit.verified", count=found.verify_width),
        ),
        Metric(
            "measured_gain",
            "-" if gain is None else f"{gain:.2f}x",
            "published" if is_point else "derived",
            page.t(
                "unit.measured",
                low=r.curve.points[0].concurrency,
                high=r.curve.points[-1].concurrency,
            ),
        ),
        Metric("added", bytes_text(found.added_bytes), "derived"),
        Metric(
            "in_flight_change",
            page.t(
                "unit.instead",
                part=count_text(found.requests_drafted),
                whole=count_text(found.requests_plain),
            ),
            "derived",
        ),
    )
    page.section(
        "drafts",
        figures.fig_drafts(r.tables),
        columns=3,
        formula=rf"\text{{gain}}(c) = E\,\frac{{1 + x c}}{{1 + x T c}},\quad E = "
        rf"{knob.acceptance_len:.2f},\ T = 8,\ x = {r.fitted_row_cost:.4f}",
        tables={
            "counts": Wide(
                r.tables["counts"].drop(columns="chosen"),
                ("drafts", "tokens_per_step", "requests", "gain"),
            ),
            "load": r.tables["load"],
        },
        finding=drafts_finding(page, r),
        even=count_text(r.break_even),
        cost=percent_text(r.fitted_row_cost),
        plain=bytes_text(found.traffic_plain),
        drafted=bytes_text(found.traffic_drafted),
    )
    st.caption(f"{r.source} · {r.golden_source}")
    rule_caption(page, inputs["pool_rule"])


def drafts_finding(page: Page, r: Any) -> str:
    """Tokens per step, and what the measured curve says at the requests in flight."""
    found, gain = r.balance, r.measured_gain
    words = {
        "tokens": f"{found.tokens_per_step:.2f}",
        "requests": count_text(found.requests_drafted),
        "drafts": r.curve.drafts,
    }
    if found.drafts == 0:
        return page.t("drafts.none", **words)
    if gain is None:
        return page.t("drafts.unmeasured", **words)
    return page.t("drafts.pays" if gain >= 1 else "drafts.loses", gain=f"{gain:.2f}", **words)


def grid_scene(page: Page, inputs: Mapping[str, Any]) -> None:
    """Where a prefix may be cut."""
    knobs = in_cells(page, GRID_SPECS, 4)
    r = page.study(
        studies.grid,
        prompt_tokens=int(knobs["grid_prompt"]),
        repeats=int(knobs["grid_repeats"]),
        hash_tokens=knobs["grid_hash"],
        block_tokens=int(knobs["grid_block"]),
        context_parallel=knobs["grid_dcp"],
        retention_tokens=knobs["grid_retention"],
        dropped_blocks=knobs["grid_drop"],
        **inputs,
    )
    view = GridView(r.grid, r.prompt_tokens, r.repeats)
    row_banner(page, view)
    page.metrics(
        Metric("effective", count_text(r.grid.effective), "derived"),
        Metric("hit", count_text(r.hit_tokens), "derived"),
        Metric("spared", count_text(view.spared), "derived"),
        Metric("shortest", count_text(r.grid.shortest_hit), "derived"),
    )
    terms = ",\\ ".join(formulas.num(unit.tokens) for unit in r.grid.units)
    page.section(
        "grid",
        figures.fig_grid(r.tables),
        columns=1,
        formula=rf"\mathrm{{lcm}}({terms}) = {formulas.num(r.grid.effective)},\quad "
        rf"\max\left(\left\lfloor \tfrac{{{formulas.num(r.prompt_tokens)} - 1}}"
        rf"{{{formulas.num(r.grid.effective)}}} \right\rfloor - {r.grid.dropped_blocks},\ 0\right) "
        rf"\cdot {formulas.num(r.grid.effective)} = {formulas.num(r.hit_tokens)}",
        tables={"units": r.tables["units"], "ticks": r.tables["ticks"]},
        effective=count_text(r.grid.effective),
        hit=count_text(r.hit_tokens),
        prompt=count_text(r.prompt_tokens),
        whole=count_text(view.whole_tokens),
        blocks=count_text(view.whole_blocks),
        rest=count_text(view.rest_tokens),
    )
    rule_caption(page, "blocks")


def printed_specs(own: PrintedPool) -> tuple[Control, ...]:
    """Fields for the counts of a pool, starting at those of ``own``."""
    return (
        Number("printed_blocks", own.num_blocks, "", low=1, high=2**31),
        Number("printed_limit", own.limit, "", low=1, high=2**24),
        Number("printed_block", own.block_tokens, "", low=0, high=2**24),
        Number("printed_fixed", own.fixed_blocks, "", low=0, high=2**20),
        Number("printed_groups", own.groups, "", low=1, high=4096),
        Number("printed_running", own.running, "", low=0, high=2**20),
    )


def printed_scene(page: Page, inputs: Mapping[str, Any]) -> None:
    """What a log prints about a pool, from counts that a log or a report states."""
    try:
        planned = plan(studies.deployment(**inputs))
        own = PrintedPool.of(planned.blocks, planned.deployment.context, 1)
    except ValueError:
        own = RECIPE
    knobs = in_cells(page, printed_specs(own), 3)
    r = page.study(
        studies.printed,
        num_blocks=knobs["printed_blocks"],
        limit=knobs["printed_limit"],
        block_tokens=knobs["printed_block"],
        fixed_blocks=knobs["printed_fixed"],
        groups=knobs["printed_groups"],
        running=knobs["printed_running"],
    )
    pool = r.pool
    row_banner(page, pool)
    page.metrics(
        Metric("printed_new", count_text(pool.tokens), "derived"),
        Metric("printed_times", f"{pool.concurrency:,.2f}x", "derived"),
        Metric(
            "printed_old", count_text(pool.tokens_2025) if pool.block_tokens else "-", "derived"
        ),
        Metric(
            "printed_reusable",
            count_text(pool.reusable_tokens) if pool.block_tokens else "-",
            "derived",
        ),
    )
    num, each = formulas.num, pool.blocks_per_request
    quotient = rf"\tfrac{{{num(pool.limit)}}}{{{num(pool.block_tokens)}}}"
    rounded = rf"\left\lceil {quotient} \right\rceil + "
    page.section(
        "printed",
        figures.fig_printed(r.tables) if pool.block_tokens else None,
        columns=1,
        formula=[
            f"x = {rounded if pool.block_tokens else ''}{num(pool.fixed_blocks)} = {num(each)}",
            rf"\left\lfloor \tfrac{{{num(pool.num_blocks)}}}{{{num(each)}}} \cdot "
            rf"{num(pool.limit)} \right\rfloor = {num(pool.tokens)}",
        ],
        tables={"printed": r.tables["numbers"], "lengths": r.tables["lengths"]},
        limit=count_text(pool.limit),
        tokens=count_text(pool.tokens),
        blocks=count_text(each),
        share=percent_text(pool.held_percent / 100),
    )
    rule_caption(page, "blocks")
