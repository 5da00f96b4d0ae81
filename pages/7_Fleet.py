"""Page 7: which cluster serves a request, who is let in, and what a failure costs."""

from typing import Any

import pandas as pd
import streamlit as st

from k3core import ui
from k3core.figures import fleet as figures
from k3core.fleet.cost import COST_PRESETS
from k3core.fleet.router import ALL_ROUTERS, ROUTERS
from k3core.fleet.synthetic import GENERATORS
from k3core.studies import fleet as studies
from k3core.ui.controls import Control, Values
from k3core.ui.cost_form import cost_form, price_boxes
from k3core.ui.upload import trace_upload
from k3core.units import count_text, seconds_text

MAX_REQUESTS = 12_500  # of a trace: every router replays them, twice where timestamps are coarse
COUNTS = (600, 1200, 1800, 3000, 6000)
SCENES = ("ring", "failover", "admission", "simulation", "range")
START = studies.PAGE
KILLED, KILLED_S, BACK_S = START.failures[0]

page = ui.frame("fleet")
top, cost_place, middle, scene_place = (st.container() for _ in range(4))
trace = trace_upload(page, "fleet_trace")
with middle:
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with right:
        more = page.body_controls(ui.Toggle("fleet_more", False)).fleet_more
    codes = tuple(ALL_ROUTERS if more else ROUTERS)
    with left:
        picked = page.body_controls(ui.Choice("fleet_router", START.router, options=codes))
    router = picked.fleet_router
with scene_place:
    scene = page.choice("fleet_scene", SCENES)


# ---- controls ------------------------------------------------------------------------------------


def request_counts(values: Values) -> tuple[int, ...]:
    if trace is None:
        return COUNTS[:4]
    most = min(trace.num_requests, MAX_REQUESTS)
    return (*(count for count in COUNTS if count < most), most)


def run_minutes(values: Values) -> int:
    if trace is not None:
        return max(2, round(trace.minutes))
    return max(2, round(values["fleet_requests"] / values["fleet_rate"] / 60))


def always(values: Values) -> bool:
    return True


def generated(values: Values) -> bool:
    return trace is None


def decodes(values: Values) -> bool:
    return bool(values["fleet_decode"])


def has_budgets(values: Values) -> bool:
    return scene == "admission" or values["fleet_admission"] != "none"


def has_weights(values: Values) -> bool:
    return has_budgets(values) and values["fleet_weigh"] == "class"


def has_tokens(values: Values) -> bool:
    return has_budgets(values) and values["fleet_weigh"] != "class"


POWERS = (0, 1, 2, 4, 8, 16)
RULES = ("dense", "replay", "junction", "none", "every-8", "every-32")
short_weight, long_weight = START.class_weights
short_budget, long_budget = START.budgets
down = round((BACK_S - KILLED_S) / 60)

# fmt: off
CONTROLS = (  # key, kind, group, options or (low, high), when shown, then
    # the field of the scenario that it sets (and at whose value it starts), or where it starts
    ("fleet_source", ui.Choice, "workload", GENERATORS, generated, None, START.generate),
    ("fleet_requests", ui.Steps, "workload", request_counts, always, "num_requests"),
    ("fleet_sessions", ui.Steps, "workload", (100, 300, 600, 1000, 1500, 3000),
     lambda values: trace is None and values["fleet_source"] == "sessions", "num_sessions"),
    ("fleet_rate", ui.Steps, "workload", (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0), generated,
     "rate_per_s"),
    ("fleet_burstiness", ui.Steps, "workload", (0.5, 1.0, 2.0, 4.0, 8.0, 13.0), generated,
     "arrival_cv"),
    ("fleet_speed", ui.Steps, "workload", (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
     lambda values: trace is not None, None, START.speed),
    ("cluster_count", ui.Slider, "fleet", (2, 32), always, "clusters"),
    ("fleet_servers", ui.Slider, "fleet", (1, 8), always, "servers"),
    ("vnodes", ui.Steps, "fleet", (1, 2, 4, 8, 16, 40, 80, 160, 320), always, "vnodes"),
    ("fleet_bound", ui.Steps, "fleet", (1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0), always,
     "load_factor"),
    ("fleet_blocks", ui.Steps, "fleet", (250, 500, 1000, 2000, 4000, 8000, 16000), always,
     "capacity_blocks"),
    ("fleet_cost", ui.Choice, "fleet", tuple(COST_PRESETS), always, "cost"),
    ("fleet_rule", ui.Choice, "retention", RULES, always, None, START.checkpoints),
    ("fleet_cap", ui.Steps, "retention", POWERS, lambda values: values["fleet_rule"] != "none",
     None, 0),
    ("fleet_weight", ui.Steps, "retention", POWERS, always, "checkpoint_blocks"),
    ("fleet_decode", ui.Toggle, "decode", None, always, None, False),
    ("decode_tokens", ui.Steps, "decode",
     (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000), decodes, None, 4_000_000),
    ("decode_ms", ui.Steps, "decode", (5, 10, 20, 40, 80), decodes, "decode_ms"),
    ("kill_cluster", ui.Slider, "failure", (0, lambda values: values["cluster_count"] - 1),
     always, None, KILLED),
    ("kill_minute", ui.Slider, "failure", (0, run_minutes), always, None, round(KILLED_S / 60)),
    ("down_minutes", ui.Slider, "failure", (0, 30), lambda values: values["kill_minute"] > 0,
     None, down),
    ("fleet_admission", ui.Choice, "admission", ("none", "reject", "queue"), always, "admission"),
    ("fleet_weigh", ui.Choice, "admission", ("class", "total", "uncached"), has_budgets,
     "admission_by"),
    ("weight_short", ui.Slider, "admission", (1, 8), has_weights, None, short_weight),
    ("weight_long", ui.Slider, "admission", (1, 16), has_weights, None, long_weight),
    ("budget_short", ui.Slider, "admission", (lambda values: values["weight_short"], 64),
     has_weights, None, short_budget),
    ("budget_long", ui.Slider, "admission", (lambda values: values["weight_long"], 64),
     has_weights, None, long_budget),
    ("tokens_short", ui.Steps, "admission", (64, 128, 256, 512, 1024, 2048), has_tokens, None, 256),
    ("tokens_long", ui.Steps, "admission", (256, 512, 1024, 2048, 4096, 8192), has_tokens, None,
     1024),
    ("fleet_overtakes", ui.Steps, "admission", (0, 1, 4, 16, 64, 256),
     lambda values: has_tokens(values) and values["fleet_admission"] != "reject", "max_overtakes"),
    ("fleet_class_by", ui.Choice, "admission", ("total", "uncached"), always, "class_by"),
    ("fleet_slo", ui.Steps, "results", (1, 2, 5, 10, 20, 60), always, "slo_s"),
    ("warm_minutes", ui.Slider, "results", (0, lambda values: run_minutes(values) // 2), always,
     None, 0),
)
# fmt: on


def made(
    key: str, kind: Any, group: str, allowed: Any, shown: Any, field: str | None, start: Any = None
) -> Control:
    """The control of one row of the table."""
    start = getattr(START, field) if field else start
    if isinstance(start, float) and start.is_integer() and start in allowed:
        start = allowed[allowed.index(start)]  # as the options write it: 10, not 10.0
    options = {} if allowed is None else {"options": allowed}
    if kind is ui.Slider:
        options = dict(zip(("low", "high"), allowed, strict=True))
    return kind(key, start, group, shown=shown, **options)


v = page.controls(*(made(*row) for row in CONTROLS), ui.SEED)


# ---- the run -------------------------------------------------------------------------------------


with cost_place.expander(page.t("cost.title")):
    chosen = cost_form(page, v.fleet_cost, "fleet_cost")
    prices = price_boxes(page, START.price, START.cached_price)
base = {row[5]: getattr(v, row[0]) for row in CONTROLS if row[5]} | {
    "seed": v.seed,
    "generate": "" if trace else v.fleet_source,
    "trace": trace.key if trace else "",
    "speed": v.fleet_speed if trace else START.speed,
    "constants": chosen.constants,
    "checkpoints": f"{v.fleet_rule}+cap{v.fleet_cap}" if v.fleet_cap else v.fleet_rule,
    "decode_tokens": v.decode_tokens if v.fleet_decode else 0,
    "class_weights": (v.weight_short, v.weight_long),
    "budgets": (v.budget_short, v.budget_long),
    "failures": (),
    "warmup_s": 60.0 * v.warm_minutes,
    "price": prices.price_input,
    "cached_price": prices.price_cached,
}
if v.fleet_weigh != "class":
    base["budgets"] = (v.tokens_short * 1024, v.tokens_long * 1024)
if v.kill_minute:
    base["failures"] = (studies.failure_of(v.kill_cluster, v.kill_minute, v.down_minutes),)
params = {**base, "router": router}
whole = {**params, "warmup_s": 0.0}  # pictures through time show the warm-up too
name = page.t(f"option.{router}")


def tables_of(study: Any, *names: str) -> dict[str, pd.DataFrame]:
    return {key: study.tables[key] for key in names}


def draw_metrics(r: studies.RoutersStudy) -> None:
    for_page = []
    for key, (value, words) in r.headline(router).items():
        if "router" in words:
            words = {**words, "router": page.t(f"option.{words['router']}")}
        evidence = "derived" if key == "saved" else "live"
        for_page.append(ui.Metric(key, value, evidence, page.t(f"metric.{key}_delta", **words)))
    page.metrics(*for_page)


def draw_notes(r: studies.RoutersStudy) -> None:
    """What the picture above does not say by itself, where it matters."""
    if trace:
        shown = count_text(r.num_requests)
        st.caption(page.t("upload.loaded", **trace.words, shown=shown))
    elif v.fleet_source == "sessions":
        pool, speak = count_text(v.fleet_sessions), count_text(r.num_sessions)
        st.caption(page.t("results.sessions", pool=pool, sessions=speak))
    if r.tick_s:
        st.caption(page.t("upload.ticks", tick=f"{r.tick_s:.3g}"))
    if r.any_refused:
        st.caption(page.t("results.refused"))
    if v.fleet_decode:
        st.caption(page.t("results.decode", p95=seconds_text(r.row(router)["p95_done_s"])))
    if v.warm_minutes:
        end = f"{r.minutes:.1f}"
        st.caption(page.t("results.window", warm=v.warm_minutes, end=end))


def draw_main() -> studies.RoutersStudy:
    """Metrics of the chosen router, and every router on the same requests."""
    ticks = page.study(studies.tick_variants, **params)
    variants = [{"router": code, "ticks": tick} for tick in ticks for code in codes]
    done = ui.in_steps(page, studies.router_run, variants, **base)
    r = studies.gather(done.results, **done.params)
    draw_metrics(r)
    page.main(
        figures.main_picture(r.choose(router)),
        r.shown,
        pick="fleet_router",
        requests=count_text(r.num_requests),
        minutes=f"{r.minutes:.1f}",
    )
    draw_notes(r)
    files = {
        "routers": lambda: r.csv(**base),
        "requests": lambda: studies.request_table(**params).to_csv(index=False).encode(),
    }
    with st.container(horizontal=True):
        for what, csv in files.items():
            st.download_button(
                page.t(f"results.{what}", router=name),
                data=csv,
                file_name=f"fleet_{what}.csv",
                mime="text/csv",
                icon=":material/download:",
                on_click="ignore",
            )
    cost_place.caption(chosen.words)
    return r


def draw_strip() -> None:
    """Clusters by time under the chosen router."""
    s = page.study(studies.load_strip, **whole)
    event = "lost_home" if router.startswith("session") else "cut_off"
    page.section(
        "strip",
        {"strip": figures.load_strip(s.tables)},
        columns=1,
        tables=tables_of(s, "strip"),
        router=name,
        what=page.t(
            "strip.calm" if s.tables["marks"].empty else f"strip.{event}",
            cluster=f"c{v.kill_cluster}",
            **s.words,
        ),
        bin=f"{s.bin_s:g}",
    )


# ---- scenes --------------------------------------------------------------------------------------

RING_SESSIONS = ui.Steps("ring_sessions", 600, options=(100, 300, 600, 2000, 10000))


def draw_ring() -> None:
    x = page.body_controls(RING_SESSIONS)
    sizes = {"num_clusters": v.cluster_count, "vnodes": v.vnodes}
    r = page.study(studies.hash_ring, num_sessions=x.ring_sessions, **sizes)
    page.section(
        "ring",
        figures.fig_fleet_hash_ring(r.tables),
        formula=r"\frac{\text{std}}{\text{mean}}\text{ of a share} = \sqrt{\frac{N-1}{N V + 1}} = "
        rf"\sqrt{{\frac{{{r.num_clusters - 1}}}{{{r.num_clusters} \cdot {r.vnodes} + 1}}}}"
        rf" = {r.cv:.3f}",
        tables=tables_of(r, "sessions", "shares", "imbalance"),
        **r.words,
    )


def draw_failover() -> None:
    x = page.body_controls(RING_SESSIONS)
    f = page.study(
        studies.minimal_perturbation,
        num_ring_sessions=x.ring_sessions,
        victim=v.kill_cluster,
        **whole,
    )
    panels = figures.fig_fleet_minimal_perturbation(f.tables)
    in_run = {key: panels.pop(key) for key in ("reuse_through_failure", "p95_through_failure")}
    page.section(
        "failover",
        panels,
        columns=3,
        formula=rf"\frac{{\text{{moved}}}}{{\text{{sessions}}}} = \frac{{{f.num_moved}}}"
        rf"{{{f.num_sessions}}} = {f.moved_share:.4f} \approx \frac{{1}}{{N}} = "
        rf"{1 / v.cluster_count:.4f}",
        tables=tables_of(f, "moved", "after", "share"),
        **f.words,
    )
    page.section(
        "failover_run",
        in_run,
        tables=tables_of(f, "timeline", "calm", "while_down"),
        router=name,
        seen=page.t("failover_run.seen", victim=f.victim, **f.seen) if f.seen else "",
        **f.words,
    )


def draw_admission() -> None:
    x = page.body_controls(ui.Slider("fleet_burst", 40, low=0, high=200, step=10))
    settings = [{"setting": setting} for setting in studies.SETTINGS]
    done = ui.in_steps(page, studies.admission_run, settings, burst=x.fleet_burst, **params)
    a = studies.gather_admission(done.results, **done.params)
    page.section(
        "admission",
        figures.fig_fleet_budget(a.tables),
        formula=[
            rf"\text{{{row.cls}}}: \left\lfloor \frac{{{row.budget}}}{{{row.weight:g}}}"
            rf" \right\rfloor = {row.held_at_once:g}\ \text{{inside at once}}"
            for row in a.tables["budgets"].itertuples()
            if row.unit == "weight"
        ],
        tables=tables_of(a, "classes", "budgets"),
        router=name,
        **a.words,
    )


def draw_simulation() -> None:
    page.section(
        "side",
        figures.fig_fleet_routers(comparison.tables),
        tables={"routers": comparison.shown},
        requests=count_text(comparison.num_requests),
        slo=v.fleet_slo,
    )
    s = page.study(studies.simulation, **params)
    page.section(
        "simulation",
        figures.fig_fleet_simulation(s.tables),
        formula=chosen.formula,
        tables=tables_of(s, "load", "summary", "histogram"),
        router=name,
        **s.words,
    )


def draw_range() -> None:
    x = page.body_controls(
        ui.Choice("range_over", "speed", options=tuple(studies.RANGES), style="segments"),
        ui.Steps("range_requests", 600, options=(300, 600, 900)),
    )
    fixed = {**base, "num_requests": x.range_requests, "over": x.range_over}
    points = studies.range_points(x.range_over, router)
    done = ui.in_steps(page, studies.range_run, points, **fixed)
    r = studies.gather_range(done.results)
    page.section(
        "range",
        figures.fig_fleet_range(r.choose(router)),
        tables=tables_of(r, "range"),
        over=page.t(f"range.{r.over}"),
        what=page.t(
            "range.same" if r.low_router == r.high_router else "range.changes",
            low_router=page.t(f"option.{r.low_router}"),
            high_router=page.t(f"option.{r.high_router}"),
            **r.words,
        ),
        **r.words,
    )


with top:
    comparison = draw_main()
with middle:
    draw_strip()
with scene_place:
    {
        "ring": draw_ring,
        "failover": draw_failover,
        "admission": draw_admission,
        "simulation": draw_simulation,
        "range": draw_range,
    }[scene]()

page.words(**studies.long_prefix_words())
