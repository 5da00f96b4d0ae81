"""Page 4: what a second prompt finds of the first one, and what it has to compute again."""

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from k3core import ui
from k3core.figures import prefix_cache as figures
from k3core.studies import prefix_cache as studies
from k3core.studies.prefix_cache import formulas
from k3core.ui.story import sentence, story
from k3core.ui.upload import trace_upload
from k3core.units import bytes_text, count_text, percent_text

Fields = Mapping[str, ui.Control]  # parameter of the study -> the control that sets it


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
    "prompt_len": ui.Slider(
        "prefix_prompt", from_case("prompt_len"), "prompts", low=64, high=16_384
    ),
    "shared_len": ui.Slider(
        "prefix_shared",
        from_case("shared_len"),
        "prompts",
        low=0,
        high=lambda values: values["prefix_prompt"],
    ),
    "first_tail": ui.Slider("prefix_tail", from_case("first_tail"), "prompts", low=0, high=4096),
    "ready": ui.Toggle("prefix_ready", from_case("ready"), "prompts"),
    "salted": ui.Toggle("prefix_salt", from_case("salted"), "prompts"),
    "block_tokens": ui.Steps(
        "prefix_block", 512, "cache", options=(128, 256, 512, 1024, 1536, 2048)
    ),
    "num_groups": ui.Slider("prefix_groups", 3, "cache", low=1, high=6),
    "drafter_drop": ui.Toggle("prefix_drop", from_case("drafter_drop"), "cache"),
    "policy": ui.Choice(
        "prefix_policy",
        from_case("policy"),
        "checkpoints",
        options=studies.POLICIES,
        style="segments",
    ),
    "every_blocks": ui.Slider(
        "prefix_every",
        2,
        "checkpoints",
        low=1,
        high=8,
        shown=lambda values: values["prefix_policy"] == "every",
    ),
    "missing_group": ui.Choice(
        "prefix_missing",
        from_case("missing_group"),
        "checkpoints",
        options=lambda values: ("none", *map(str, range(values["prefix_groups"])), "all"),
        shown=keeps,
    ),
    "missing_boundary": ui.Steps(
        "prefix_missing_at",
        deepest_kept,
        "checkpoints",
        options=kept,
        shown=lambda values: keeps(values) and values["prefix_missing"] != "none",
    ),
    "evicted": ui.Choice(
        "prefix_evicted",
        from_case("evicted"),
        "checkpoints",
        options=studies.EVICTIONS,
        shown=lambda values: values["prefix_ready"],
    ),
}
DEPLOYMENT: Fields = {"model": ui.MODEL, "tp": ui.TP, "mla_dtype": ui.MLA_DTYPE}
HISTORY = ui.Choice("load_history", "resent", "load", options=studies.HISTORIES, style="segments")
BUDGETS = (0, 2048, 4096, 8192, 16_384, 32_768)
COST_LENGTHS = (4_000, 16_000, 32_000, 64_000, 128_000, 200_000, 400_000, 1_000_000)
SCENES: dict[str, Fields] = {
    "lookup": {
        "model": ui.Choice("prefix_cost_model", "kimi-k3", "cost", options=studies.COST_MODELS),
        "prefix_len": ui.Steps("prefix_cost_len", 400_000, "cost", options=COST_LENGTHS),
        "new_len": ui.Steps(
            "prefix_cost_new", 4_000, "cost", options=(1, 100, 1_000, 4_000, 16_000, 64_000)
        ),
    },
    "stairs": {
        **DEPLOYMENT,
        "hash_block_tokens": ui.Steps("grid_hash", 0, "grid", options=(0, 512)),
        "max_batched_tokens": ui.Steps("grid_budget", 0, "grid", options=BUDGETS),
        "context_parallel": ui.Steps("grid_dcp", 1, "grid", options=(1, 2, 4, 8)),
        "draft_len": ui.Steps("grid_drafts", 0, "grid", options=(0, 1, 3, 7, 15)),
        "drafter_drop": ui.Toggle("grid_drop", False, "grid"),
        "rule": ui.Choice("grid_rule", "junction", "grid", options=studies.LADDER_RULES),
    },
    "policies": {
        **DEPLOYMENT,
        "num_pages": ui.Steps(
            "load_pages", 400, "load", options=(50, 100, 200, 400, 800, 1600, 3200)
        ),
        "interval_blocks": ui.Slider("load_interval", 8, "load", low=1, high=32),
        "max_per_path": ui.Slider("load_cap", 3, "load", low=1, high=8),
        "max_batched_tokens": ui.Steps("grid_budget", 8192, "load", options=BUDGETS),
        "drafter_drop": ui.Toggle("grid_drop", False, "load"),
        "conversations": ui.Slider("load_conversations", 4, "load", low=1, high=8),
        "history": HISTORY,
    },
    "cliff": {
        **DEPLOYMENT,
        "pages": ui.Steps(
            "cliff_pages", 180, "load", options=(60, 90, 120, 180, 240, 360, 500, 720)
        ),
        "conversations": ui.Slider("load_alive", 2, "load", low=1, high=8),
        "interval_blocks": ui.Steps("cliff_interval", 8, "load", options=studies.INTERVALS),
        "opening_len": ui.Steps(
            "load_opening", 30_000, "load", options=(8_000, 15_000, 30_000, 60_000)
        ),
        "history": HISTORY,
        "keep_ends": ui.Toggle("cliff_ends", False, "load"),
    },
    "player": {
        "rule": ui.Choice("player_rule", "junction", "player", options=studies.PLAYER_RULES),
        "num_pages": ui.Steps("player_pages", 20, "player", options=(12, 14, 16, 18, 20, 30)),
        "cascade": ui.Toggle("player_cascade", False, "player", shown=plays_eviction),
    },
}

page = ui.frame("prefix_cache")
page.preset("prefix_case", tuple(studies.CASES), tuple(CASE.values()))
main_place, scene_place = st.container(), st.container()
with scene_place:
    scene = page.choice("prefix_scene", tuple(SCENES))
with st.sidebar:
    v = page.body_controls(*CASE.values(), ui.SEED)
w = page.controls(*SCENES[scene].values())
case, chosen = {**asked(v, CASE), "seed": v.seed}, asked(w, SCENES[scene])
found = page.study(studies.lookup, **case)
reason = page.t(
    f"reason.{found.reason or 'nothing'}",
    groups=", ".join(map(str, found.gap_groups)),
    at=count_text(found.gap_tokens),
)
with main_place:
    tokens = {
        "reused": (
            found.matched_tokens,
            page.t("unit.of_prompt", share=percent_text(found.matched_tokens / found.prompt_len)),
        ),
        "lost": (found.lost_tokens, reason),
        "computed": (
            found.computed_tokens,
            page.t("unit.cap", cap=count_text(found.cap_tokens)),
        ),
    }
    page.metrics(
        *(
            ui.Metric(name, page.t("unit.tokens", count=count_text(count)), "live", note)
            for name, (count, note) in tokens.items()
        ),
        ui.Metric(
            "kept",
            bytes_text(found.kept_bytes),
            "derived",
            page.t("unit.states", states=found.num_states, boundaries=len(found.kept_boundaries)),
        ),
    )
    page.main(figures.main_picture(found.tables), found.tables["blocks"])


def draw_lookup() -> None:
    """The lookup of the main picture: stages, account, misses, hashes, cost."""
    page.section(
        "hit",
        {**figures.fig_prefix_hit(found.tables), **figures.account_picture(found.tables)},
        columns=3,
        formula=formulas.hit_formulas(found),
        tables={"account": found.tables["account"], "checkpoints": found.tables["checkpoints"]},
        mla=count_text(found.mla_tokens),
        usable=count_text(found.matched_tokens),
        reason=reason,
    )
    sizes = ("prompt_len", "shared_len", "block_tokens", "num_groups", "seed")
    missed = page.study(studies.misses, **{name: case[name] for name in sizes})
    page.section(
        "miss",
        figures.fig_prefix_miss(missed.tables),
        tables={"verdicts": missed.tables["verdicts"]},
        mla=count_text(missed.mla_tokens),
        partial=count_text(missed.partial_tokens),
    )
    hashed = page.study(studies.hash_schemes, block_tokens=v.prefix_block, seed=v.seed)
    page.section(
        "hashes",
        figures.hash_pictures(hashed.tables),
        formula=formulas.HASH_FORMULA,
        tables=hashed.tables,
        false=count_text(hashed.false_tokens),
        block=hashed.block_tokens,
        true=count_text(hashed.true_tokens),
        error=percent_text(hashed.state_error, 0),
    )
    steps = page.study(studies.ladder, **case)
    page.section(
        "ladder",
        figures.ladder_picture(steps.tables),
        columns=1,
        tables=steps.tables,
        finding=page.t(
            "ladder.flat" if steps.num_below else "ladder.full",
            below=steps.num_below,
            lookups=steps.num_lookups,
        ),
    )
    work = page.study(studies.cost, **chosen, block_tokens=v.prefix_block)
    page.section(
        "cost",
        figures.cost_pictures(work.tables),
        formula=formulas.cost_formulas(work),
        tables=work.tables,
        ratio=f"{work.ratio:,.1f}",
        prefix=count_text(w.prefix_cost_len),
        new=count_text(w.prefix_cost_new),
        recomputed=count_text(work.prompt_len),
        computed=count_text(work.prompt_len - work.hit_tokens),
        kept=bytes_text(work.kept_bytes),
        model=page.t(f"option.{w.prefix_cost_model}"),
    )


def draw_stairs() -> None:
    """The hit ladder of one deployment, with the published points."""
    steps = page.study(studies.stairs, **chosen)
    pictures = figures.stairs_pictures(steps.tables)
    page.section(
        "stairs",
        {name: pictures[name] for name in ("stairs", "published")},
        formula=formulas.stairs_formulas(steps),
        tables={"stairs": steps.tables["stairs"], "published": steps.tables["published"]},
        finding=page.t(
            "stairs.below" if steps.num_below else "stairs.on",
            below=count_text(steps.num_below),
            lengths=count_text(steps.num_lengths),
            worst=count_text(steps.worst_loss),
            unit=count_text(steps.match_unit),
        ),
        physical=count_text(steps.physical_block),
        layer=bytes_text(steps.layer_bytes),
        unit=count_text(steps.match_unit),
        points=steps.num_published,
        off=steps.num_off,
        reproduced=steps.num_reproduced,
    )
    page.section(
        "sharing",
        {"sharing": pictures["sharing"]},
        columns=1,
        tables={"sharing": steps.tables["sharing"]},
        many=steps.sharing_hits("chunk_end", 1600),
        few=steps.sharing_hits("chunk_end", 1500),
        saved=steps.sharing_hits("junction", 1500),
    )


def draw_policies() -> None:
    """Every retention policy on the same requests."""
    trace = trace_upload(page, "prefix_trace")
    compared = page.study(studies.policies, **chosen, trace=trace.key if trace else "", seed=v.seed)
    traced = compared.num_requests.get("trace", 0)
    junction, dense = (compared.row("shared", code) for code in ("junction", "dense"))
    page.section(
        "policies",
        figures.policy_pictures(compared.tables),
        formula=formulas.policies_formula(compared),
        tables=compared.tables,
        replay=percent_text(compared.row("shared", "replay")["hit_rate"]),
        junction=percent_text(junction["hit_rate"]),
        junction_bytes=bytes_text(junction["checkpoint_bytes"]),
        dense=percent_text(dense["hit_rate"]),
        dense_bytes=bytes_text(dense["checkpoint_bytes"]),
        turns=compared.num_requests["turns"],
        shared=compared.num_requests["shared"],
        traced=page.t("policies.traced", requests=count_text(traced)) if traced else "",
        pages=count_text(w.load_pages),
        block=count_text(compared.block_tokens),
        best=page.t(f"label.{compared.best('turns')}"),
    )


def draw_cliff() -> None:
    """Conversations that do not fit."""
    fell = page.study(studies.cliff, **chosen, seed=v.seed)
    page.section(
        "cliff",
        figures.cliff_pictures(fell.tables),
        formula=formulas.cliff_formula(fell),
        tables=fell.tables,
        pool=count_text(fell.pools[0]),
        dense=percent_text(fell.dense_share, 0),
        best=percent_text(fell.best, 0),
        best_at=count_text(fell.best_interval),
        sparse=percent_text(fell.sparse_share, 0),
        alive=w.load_alive,
        interval=count_text(w.cliff_interval * fell.block_tokens),
        working=count_text(fell.working_set),
        middle=count_text(fell.pools[1]),
        holds=fell.last_alive,
        block=count_text(fell.block_tokens),
    )


def move_player(by: int) -> None:
    """The buttons: one step back or forward."""
    st.session_state["player_step"] += by


def draw_player() -> None:
    """A scenario, step by step, drawn from the real pool and cache."""
    name = page.choice("player_scenario", (*studies.SCENARIOS, studies.OWN))
    own = ""
    if name == studies.OWN:
        own = page.body_controls(ui.TextBox("player_own", studies.TEXTS["branch"])).player_own
    script = page.study(studies.script, scenario=name, own=own)
    last = len(script.steps)
    at = page.body_controls(
        ui.Slider("player_step", script.first_lookup, low=0, high=last)
    ).player_step
    back, forward, _ = st.columns([1, 1, 4])
    for place, by, text in ((back, -1, "player.back"), (forward, 1, "player.forward")):
        place.button(
            page.t(text),
            on_click=move_player,
            args=(by,),
            disabled=not 0 <= at + by <= last,
            width="stretch",
        )
    shown = page.study(
        studies.player, scenario=script.scenario, own=script.own, step=at, **chosen, seed=v.seed
    )
    done = len(shown.results)
    page.section(
        "player",
        figures.player_pictures(shown.tables),
        tables=shown.tables,
        step=done,
        steps=shown.num_steps,
        now=sentence(page, shown.steps[done - 1], shown.results[-1])
        if done
        else page.t("player.start"),
        free=shown.num_free,
        cached=shown.num_cached,
        owned=shown.num_owned,
        orphans=shown.num_orphans,
    )
    st.markdown(story(page, shown.steps, shown.results))


{
    "lookup": draw_lookup,
    "stairs": draw_stairs,
    "policies": draw_policies,
    "cliff": draw_cliff,
    "player": draw_player,
}[scene]()
page.words()
