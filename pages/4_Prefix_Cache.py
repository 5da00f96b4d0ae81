"""Page 4: what a second prompt finds of the first one, and what it has to compute again."""

from typing import Any

import streamlit as st

from k3core import ui
from k3core.figures import prefix_cache as figures
from k3core.studies import prefix_cache as studies
from k3core.studies.prefix_cache import formulas
from k3core.ui.prefix.columns import COLUMNS
from k3core.ui.prefix.controls import CASE, SCENES, asked
from k3core.ui.prefix.story import sentence, story
from k3core.ui.tables import narrow
from k3core.ui.upload import trace_upload
from k3core.units import bytes_text, count_text, percent_text


def data(section: str, tables: dict[str, Any], *names: str) -> dict[str, Any]:
    """Tables of a section, all or the named ones, with the columns that fit a phone."""
    return narrow({name: tables[name] for name in names or tables}, COLUMNS.get(section, {}))


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
    page.main(figures.main_picture(found.tables), data("main", found.tables)["blocks"])


def draw_lookup() -> None:
    """The lookup of the main picture: stages, account, misses, hashes, cost."""
    page.section(
        "hit",
        {**figures.fig_prefix_hit(found.tables), **figures.account_picture(found.tables)},
        columns=3,
        formula=formulas.hit_formulas(found),
        tables=data("hit", found.tables, "account", "checkpoints"),
        mla=count_text(found.mla_tokens),
        usable=count_text(found.matched_tokens),
        reason=reason,
    )
    sizes = ("prompt_len", "shared_len", "block_tokens", "num_groups", "seed")
    missed = page.study(studies.misses, **{name: case[name] for name in sizes})
    page.section(
        "miss",
        figures.fig_prefix_miss(missed.tables),
        tables=data("miss", missed.tables, "verdicts"),
        mla=count_text(missed.mla_tokens),
        partial=count_text(missed.partial_tokens),
    )
    hashed = page.study(studies.hash_schemes, block_tokens=v.prefix_block, seed=v.seed)
    page.section(
        "hashes",
        figures.hash_pictures(hashed.tables),
        formula=formulas.HASH_FORMULAS,
        tables=data("hashes", hashed.tables),
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
        tables=data("cost", work.tables),
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
        tables=data("stairs", steps.tables, "stairs", "published"),
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
        formula=formulas.policies_formulas(compared),
        tables=data("policies", compared.tables),
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
        formula=formulas.cliff_formulas(fell),
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
        usual, example = (studies.TEXTS[name] for name in ("branch", "evict"))
        own = page.body_controls(ui.TextBox("player_own", usual, example=example)).player_own
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
        tables=data("player", shown.tables),
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
