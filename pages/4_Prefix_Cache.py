"""Page 4: what a second prompt finds of the first one, and what it has to compute again."""

from typing import Any

import streamlit as st

from k3core import ui
from k3core.errors import TraceError
from k3core.figures import prefix_cache as figures
from k3core.studies import prefix_cache as studies
from k3core.studies.fleet import MAX_UPLOAD_MB, store_trace
from k3core.units import bytes_text, count_text, percent_text


def plays_eviction(_: Any) -> bool:
    """Whether the player's scenario evicts; the choice stands below the sidebar that asks."""
    chosen = st.session_state.get("player_scenario", st.query_params.get("player_scenario"))
    return chosen == "evict"


BLOCKS = (128, 256, 512, 1024, 1536, 2048)
CASES: dict[str, dict[str, Any]] = {  # what each preset sets; the rest is as in "one_short"
    "one_short": {},
    "healthy": {"missing": "none"},
    "no_checkpoint": {"policy": "none", "missing": "none"},
    "last_token": {"prompt": 4096, "shared": 4096, "missing": "none"},
    "not_ready": {"ready": False, "missing": "none"},
    "fork": {"tail": 900, "policy": "last", "missing": "none"},
    "drafter": {"drop": True, "missing": "none"},
    "evicted": {"evicted": "states", "missing": "none"},
    "salt": {"salt": True, "missing": "none"},
}
SCENES = ("lookup", "stairs", "policies", "cliff", "player")


def preset(name: str, usual: Any) -> Any:
    """Default of a control: what the chosen case sets, else ``usual``."""
    return lambda values: CASES[values["prefix_case"]].get(name, usual)


def kept(values: Any) -> tuple[int, ...]:
    """Boundaries at which the first prompt keeps checkpoints, (0,) when nowhere."""
    return studies.kept_boundaries(
        values["prefix_policy"],
        values["prefix_every"],
        values["prefix_shared"] + values["prefix_tail"],
        values["prefix_block"],
    ) or (0,)


def deepest_shared(values: Any) -> int:
    """The last kept boundary on the shared path: where a missing group hurts most."""
    return max((at for at in kept(values) if at <= values["prefix_shared"]), default=0)


def num(value: float) -> str:
    """A number for a formula; the braces keep the separator from growing a space."""
    return f"{value:,}".replace(",", "{,}")


def power(value: float) -> str:
    """A large number for a formula in scientific form."""
    mantissa, exponent = f"{value:.3e}".split("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


CONTROLS = (
    ui.Slider("prefix_prompt", preset("prompt", 5200), "prompts", low=64, high=16_384),
    ui.Slider(
        "prefix_shared",
        preset("shared", 4300),
        "prompts",
        low=0,
        high=lambda values: values["prefix_prompt"],
    ),
    ui.Slider("prefix_tail", preset("tail", 0), "prompts", low=0, high=4096),
    ui.Toggle("prefix_ready", preset("ready", True), "prompts"),
    ui.Toggle("prefix_salt", preset("salt", False), "prompts"),
    ui.Steps("prefix_block", 512, "cache", options=BLOCKS),
    ui.Slider("prefix_groups", 3, "cache", low=1, high=6),
    ui.Toggle("prefix_drop", preset("drop", False), "cache"),
    ui.Choice(
        "prefix_policy",
        preset("policy", "every"),
        "checkpoints",
        options=studies.POLICIES,
        style="segments",
    ),
    ui.Slider(
        "prefix_every",
        2,
        "checkpoints",
        low=1,
        high=8,
        shown=lambda values: values["prefix_policy"] == "every",
    ),
    ui.Choice(
        "prefix_missing",
        preset("missing", "1"),
        "checkpoints",
        options=lambda values: ("none", *map(str, range(values["prefix_groups"])), "all"),
        shown=lambda values: values["prefix_policy"] != "none",
    ),
    ui.Steps(
        "prefix_missing_at",
        deepest_shared,
        "checkpoints",
        options=kept,
        shown=lambda values: (
            values["prefix_missing"] != "none" and values["prefix_policy"] != "none"
        ),
    ),
    ui.Choice(
        "prefix_evicted",
        preset("evicted", "none"),
        "checkpoints",
        options=studies.EVICTIONS,
        shown=lambda values: values["prefix_ready"],
    ),
    ui.SEED,
)
NUM_FILLED = 13  # the first controls, those that a case fills
SCENE_CONTROLS: dict[str, tuple[ui.Control, ...]] = {
    "lookup": (
        ui.Choice("prefix_cost_model", "kimi-k3", "cost", options=studies.COST_MODELS),
        ui.Steps(
            "prefix_cost_len",
            400_000,
            "cost",
            options=(4_000, 16_000, 32_000, 64_000, 128_000, 200_000, 400_000, 1_000_000),
        ),
        ui.Steps("prefix_cost_new", 4_000, "cost", options=(1, 100, 1_000, 4_000, 16_000, 64_000)),
    ),
    "stairs": (
        ui.MODEL,
        ui.TP,
        ui.MLA_DTYPE,
        ui.Steps("grid_hash", 0, "grid", options=(0, 512)),
        ui.Steps("grid_budget", 0, "grid", options=(0, 2048, 4096, 8192, 16_384, 32_768)),
        ui.Steps("grid_dcp", 1, "grid", options=(1, 2, 4, 8)),
        ui.Steps("grid_drafts", 0, "grid", options=(0, 1, 3, 7, 15)),
        ui.Toggle("grid_drop", False, "grid"),
        ui.Choice("grid_rule", "junction", "grid", options=studies.LADDER_RULES),
    ),
    "policies": (
        ui.MODEL,
        ui.TP,
        ui.MLA_DTYPE,
        ui.Steps("load_pages", 400, "load", options=(50, 100, 200, 400, 800, 1600, 3200)),
        ui.Slider("load_interval", 8, "load", low=1, high=32),
        ui.Slider("load_cap", 3, "load", low=1, high=8),
        ui.Steps("grid_budget", 8192, "load", options=(0, 2048, 4096, 8192, 16_384, 32_768)),
        ui.Toggle("grid_drop", False, "load"),
        ui.Slider("load_conversations", 4, "load", low=1, high=8),
        ui.Choice("load_history", "resent", "load", options=studies.HISTORIES, style="segments"),
    ),
    "cliff": (
        ui.MODEL,
        ui.TP,
        ui.MLA_DTYPE,
        ui.Steps("cliff_pages", 180, "load", options=(60, 90, 120, 180, 240, 360, 500, 720)),
        ui.Slider("load_alive", 2, "load", low=1, high=8),
        ui.Steps("cliff_interval", 8, "load", options=studies.INTERVALS),
        ui.Steps("load_opening", 30_000, "load", options=(8_000, 15_000, 30_000, 60_000)),
        ui.Choice("load_history", "resent", "load", options=studies.HISTORIES, style="segments"),
        ui.Toggle("cliff_ends", False, "load"),
    ),
    "player": (
        ui.Choice("player_rule", "junction", "player", options=studies.PLAYER_RULES),
        ui.Steps("player_pages", 20, "player", options=(12, 14, 16, 18, 20, 30)),
        ui.Toggle("player_cascade", False, "player", shown=plays_eviction),
    ),
}

page = ui.frame("prefix_cache")
page.preset("prefix_case", tuple(CASES), CONTROLS[:NUM_FILLED])
main_place, scene_place = st.container(), st.container()
with scene_place:
    scene = page.choice("prefix_scene", SCENES)
with st.sidebar:
    v = page.body_controls(*CONTROLS)
w = page.controls(*SCENE_CONTROLS[scene])
params: dict[str, Any] = {
    "prompt_len": v.prefix_prompt,
    "shared_len": v.prefix_shared,
    "first_tail": v.prefix_tail,
    "block_tokens": v.prefix_block,
    "num_groups": v.prefix_groups,
    "policy": v.prefix_policy,
    "every_blocks": v.prefix_every,
    "missing_group": v.prefix_missing if v.prefix_policy != "none" else "none",
    "missing_boundary": v.prefix_missing_at,
    "ready": v.prefix_ready,
    "drafter_drop": v.prefix_drop,
    "evicted": v.prefix_evicted if v.prefix_ready else "none",
    "salted": v.prefix_salt,
    "seed": v.seed,
}
found = page.study(studies.lookup, **params)
reason = page.t(
    f"reason.{found.reason or 'nothing'}",
    groups=", ".join(map(str, found.gap_groups)),
    at=count_text(found.gap_tokens),
)
with main_place:
    page.metrics(
        ui.Metric(
            "reused",
            page.t("unit.tokens", count=count_text(found.matched_tokens)),
            "live",
            page.t("unit.of_prompt", share=percent_text(found.matched_tokens / found.prompt_len)),
        ),
        ui.Metric(
            "lost",
            page.t("unit.tokens", count=count_text(found.lost_tokens)),
            "live",
            reason,
        ),
        ui.Metric(
            "computed",
            page.t("unit.tokens", count=count_text(found.computed_tokens)),
            "live",
            page.t("unit.cap", cap=count_text(found.cap_tokens)),
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
    first = found.tables["blocks"].head(2)
    chain = [
        rf"H_{{{row.index + 1}}} = \mathrm{{sha256}}(\text{{{row.parent}}} \,\|\, "
        rf"t_{{{row.start}..{row.end - 1}}}) = \text{{{row.hash}…}}"
        for row in first.itertuples(index=False)
    ]
    page.section(
        "hit",
        {**figures.fig_prefix_hit(found.tables), **figures.account_picture(found.tables)},
        columns=3,
        formula=[
            rf"\text{{cap}} = \left\lfloor \tfrac{{n - 1}}{{B}} \right\rfloor B = \left\lfloor "
            rf"\tfrac{{{num(v.prefix_prompt - 1)}}}{{{num(v.prefix_block)}}} \right\rfloor "
            rf"\cdot {num(v.prefix_block)} = {num(found.cap_tokens)}",
            *chain,
        ],
        tables={"account": found.tables["account"], "checkpoints": found.tables["checkpoints"]},
        mla=count_text(found.mla_tokens),
        usable=count_text(found.matched_tokens),
        reason=reason,
    )
    missed = page.study(
        studies.misses,
        prompt_len=v.prefix_prompt,
        shared_len=v.prefix_shared,
        block_tokens=v.prefix_block,
        num_groups=v.prefix_groups,
        seed=v.seed,
    )
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
        formula=[
            r"\text{chained: } H_i = \mathrm{sha256}(H_{i-1} \,\|\, t_i) \qquad "
            r"\text{independent: } H_i = \mathrm{sha256}(t_i)"
        ],
        tables=hashed.tables,
        false=count_text(hashed.false_tokens),
        block=hashed.block_tokens,
        true=count_text(hashed.true_tokens),
        error=percent_text(hashed.state_error, 0),
    )
    steps = page.study(studies.ladder, **params)
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
    work = page.study(
        studies.cost,
        model=w.prefix_cost_model,
        prefix_len=w.prefix_cost_len,
        new_len=w.prefix_cost_new,
        block_tokens=v.prefix_block,
    )
    page.section(
        "cost",
        figures.cost_pictures(work.tables),
        formula=[
            r"F(n, r) = (2A + s)(n - r) + a\,(n^2 - r^2)",
            rf"A = {power(work.active_params)},\quad "
            rf"s = \text{{KDA scan}} = {power(work.scan_flops)},\quad "
            rf"a = L_\text{{MLA}} H (d_{{qk}} + d_v) = {num(round(work.pair_flops))}",
            rf"F({num(work.prompt_len)},\, 0) = {power(work.missed_flops)}\ \text{{FLOP}}",
            rf"F({num(work.prompt_len)},\, {num(work.hit_tokens)}) = {power(work.hit_flops)}"
            r"\ \text{FLOP}",
        ],
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
    steps = page.study(
        studies.stairs,
        model=w.model,
        tp=w.tp,
        mla_dtype=w.mla_dtype,
        hash_block_tokens=w.grid_hash,
        max_batched_tokens=w.grid_budget,
        context_parallel=w.grid_dcp,
        draft_len=w.grid_drafts,
        drafter_drop=w.grid_drop,
        rule=w.grid_rule,
    )
    pictures = figures.stairs_pictures(steps.tables)
    page.section(
        "stairs",
        {name: pictures[name] for name in ("stairs", "published")},
        formula=[
            r"\text{hit} = \max\left(0,\ \left(\left\lfloor \tfrac{n - 1}{B} \right\rfloor"
            r" - d\right) B\right)",
            rf"B = {num(steps.match_unit)},\quad d = {int(w.grid_drop)}",
        ],
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


def uploaded_trace() -> str:
    """Key of the uploaded trace, "" without one; a bad one is named."""
    file = st.sidebar.file_uploader(
        page.t("upload.label"),
        key="prefix_trace",
        help=page.t("upload.help", limit=MAX_UPLOAD_MB),
        max_upload_size=MAX_UPLOAD_MB,
    )
    if file is None:
        return ""
    try:
        return store_trace(file.getvalue()).key
    except TraceError as error:
        st.sidebar.error(str(error), icon=":material/block:")
        return ""


def draw_policies() -> None:
    """Every retention policy on the same requests."""
    compared = page.study(
        studies.policies,
        model=w.model,
        tp=w.tp,
        mla_dtype=w.mla_dtype,
        num_pages=w.load_pages,
        interval_blocks=w.load_interval,
        max_per_path=w.load_cap,
        max_batched_tokens=w.grid_budget,
        drafter_drop=w.grid_drop,
        conversations=w.load_conversations,
        history=w.load_history,
        trace=uploaded_trace(),
        seed=v.seed,
    )
    junction, dense = (compared.row("shared", code) for code in ("junction", "dense"))
    page.section(
        "policies",
        figures.policy_pictures(compared.tables),
        formula=rf"\text{{one checkpoint}} = {num(compared.checkpoint_bytes)}\ \text{{B}},"
        rf"\quad B = {num(compared.block_tokens)}\ \text{{tokens}}",
        tables=compared.tables,
        replay=percent_text(compared.row("shared", "replay")["hit_rate"]),
        junction=percent_text(junction["hit_rate"]),
        junction_bytes=bytes_text(junction["checkpoint_bytes"]),
        dense=percent_text(dense["hit_rate"]),
        dense_bytes=bytes_text(dense["checkpoint_bytes"]),
        turns=compared.num_requests["turns"],
        shared=compared.num_requests["shared"],
        traced=page.t("policies.traced", requests=count_text(compared.num_requests.get("trace", 0)))
        if "trace" in compared.num_requests
        else "",
        pages=count_text(w.load_pages),
        block=count_text(compared.block_tokens),
        best=page.t(f"label.{compared.best('turns')}"),
    )


def draw_cliff() -> None:
    """Conversations that do not fit."""
    fell = page.study(
        studies.cliff,
        model=w.model,
        tp=w.tp,
        mla_dtype=w.mla_dtype,
        pages=w.cliff_pages,
        conversations=w.load_alive,
        interval_blocks=w.cliff_interval,
        opening_len=w.load_opening,
        history=w.load_history,
        keep_ends=w.cliff_ends,
        seed=v.seed,
    )
    page.section(
        "cliff",
        figures.cliff_pictures(fell.tables),
        formula=rf"\text{{working set}} = {num(fell.working_set)}\ \text{{pages}},\quad "
        rf"\text{{pools}} = {', '.join(num(pool) for pool in fell.pools)}",
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


def step_text(step: Any) -> str:
    """One operation in words."""
    rest = "rest" if step.action == "write" and step.upto < 0 else step.action
    return page.t(
        f"player.{rest}",
        name=step.name,
        blocks=" ".join(step.blocks),
        tokens=count_text(max(step.upto, 0) * 512),
        salt=page.t("player.salted", salt=step.salt) if step.salt else "",
    )


def result_text(result: tuple[str, dict[str, Any]]) -> str:
    """What came of it."""
    code, numbers = result
    texts = {
        name: page.t(f"reason.{value}_short") if name == "reason" else count_text(value)
        for name, value in numbers.items()
    }
    return page.t(f"player.{code}", **texts)


def draw_player() -> None:
    """A scenario, step by step, drawn from the real pool and cache."""
    name = page.choice("player_scenario", tuple(studies.SCENARIOS))
    last = studies.num_steps(name)
    at = page.body_controls(
        ui.Slider("player_step", studies.first_lookup(name), low=0, high=last)
    ).player_step
    back, forward, _ = st.columns([1, 1, 4])
    back.button(
        page.t("player.back"), on_click=move_player, args=(-1,), disabled=at == 0, width="stretch"
    )
    forward.button(
        page.t("player.forward"),
        on_click=move_player,
        args=(1,),
        disabled=at == last,
        width="stretch",
    )
    shown = page.study(
        studies.player,
        scenario=name,
        step=at,
        rule=w.player_rule,
        num_pages=w.player_pages,
        cascade=w.player_cascade,
        seed=v.seed,
    )
    lines = []
    for index, step in enumerate(shown.steps):
        words = step_text(step)
        if index < at:
            words += f" — {result_text(shown.results[index])}"
        marked = f":gray[{words}]" if index >= at else f"**{words}**" if index == at - 1 else words
        lines.append(f"{index + 1}. {marked}")
    page.section(
        "player",
        figures.player_pictures(shown.tables),
        tables=shown.tables,
        step=at,
        steps=last,
        now=f"{step_text(shown.steps[at - 1])} — {result_text(shown.results[-1])}"
        if at
        else page.t("player.start"),
        free=shown.num_free,
        cached=shown.num_cached,
        owned=shown.num_owned,
        orphans=shown.num_orphans,
    )
    st.markdown("\n".join(lines))


DRAWN = {
    "lookup": draw_lookup,
    "stairs": draw_stairs,
    "policies": draw_policies,
    "cliff": draw_cliff,
    "player": draw_player,
}
DRAWN[scene]()
page.words()
