"""Page 7: which cluster serves a request, who is let in, and what a failure costs."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from k3core import ui
from k3core.errors import K3Error, TraceError
from k3core.figures import fleet as figures
from k3core.fleet.cost import COST_PRESETS, PrefillCost
from k3core.fleet.router import ALL_ROUTERS, ROUTERS
from k3core.fleet.synthetic import GENERATORS
from k3core.studies import fleet as studies
from k3core.ui.controls import Values
from k3core.units import count_text, percent_text, seconds_text

MAX_REQUESTS = 12_500  # of a trace: every router replays them, twice where timestamps are coarse
RULES = ("dense", "replay", "junction", "none", "every-8", "every-32")
SCENES = ("ring", "failover", "admission", "simulation")

page = ui.frame("fleet")
top, cost_place, middle, scene_place = (st.container() for _ in range(4))


def uploaded_trace() -> studies.StoredTrace | None:
    """The trace of the uploader, or None; a bad one is named and the synthetic one stays."""
    limit = studies.MAX_UPLOAD_MB
    file = st.sidebar.file_uploader(
        page.t("upload.label"),
        key="fleet_trace",
        help=page.t("upload.help", limit=limit),
        max_upload_size=limit,
    )
    if file is None:
        return None
    try:
        return studies.store_trace(file.getvalue())
    except TraceError as error:
        st.sidebar.error(str(error), icon=":material/block:")
        return None


def latex_number(value: float) -> str:
    mantissa, exponent = f"{value:.3e}".split("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


def cost_formula(cost: PrefillCost) -> list[str]:
    fixed = rf"{latex_number(cost.fixed_s)} + " if cost.fixed_s else ""
    return [
        rf"t(n, c) = {fixed}{latex_number(cost.linear_s)}\,(n - c) + "
        rf"{latex_number(cost.quadratic_s)}\,(n^2 - c^2)\ \text{{s}}",
        rf"t(10^5, 0) = {cost.seconds(100_000):.2f}\ \text{{s}},\quad "
        rf"t(10^5, 98{{,}}304) = {cost.seconds(100_000, 98_304):.2f}\ \text{{s}}",
    ]


trace = uploaded_trace()
with middle:
    more = page.body_controls(ui.Toggle("fleet_more", False)).fleet_more
    codes = tuple(ALL_ROUTERS if more else ROUTERS)
    router = page.choice("fleet_router", codes)
with scene_place:
    scene = page.choice("fleet_scene", SCENES)


def request_counts(values: Values) -> tuple[int, ...]:
    if trace is None:
        return (600, 1200, 1800, 3000)
    most = min(trace.num_requests, MAX_REQUESTS)
    return (*(count for count in (600, 1200, 1800, 3000, 6000) if count < most), most)


def run_minutes(values: Values) -> int:
    if trace is not None:
        return max(2, round(trace.minutes))
    return max(2, round(values["fleet_requests"] / values["fleet_rate"] / 60))


def keeps_many(values: Values) -> bool:
    return values["fleet_rule"] != "none"


def decodes(values: Values) -> bool:
    return bool(values["fleet_decode"])


def has_budgets(values: Values) -> bool:
    return scene == "admission" or values["fleet_admission"] != "none"


def has_weights(values: Values) -> bool:
    return has_budgets(values) and values["fleet_weigh"] == "class"


def has_tokens(values: Values) -> bool:
    return has_budgets(values) and values["fleet_weigh"] != "class"


synthetic = trace is None
v = page.controls(
    ui.Choice(
        "fleet_source", "sessions", "workload", options=GENERATORS, shown=lambda values: synthetic
    ),
    ui.Steps("fleet_requests", 1800, "workload", options=request_counts),
    ui.Steps(
        "fleet_sessions",
        1500,
        "workload",
        options=(100, 300, 600, 1000, 1500, 3000),
        shown=lambda values: synthetic and values["fleet_source"] == "sessions",
    ),
    ui.Steps(
        "fleet_rate",
        2.0,
        "workload",
        options=(0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0),
        shown=lambda values: synthetic,
    ),
    ui.Steps(
        "fleet_burstiness",
        1.0,
        "workload",
        options=(0.5, 1.0, 2.0, 4.0, 8.0, 13.0),
        shown=lambda values: synthetic,
    ),
    ui.Steps(
        "fleet_speed",
        1.0,
        "workload",
        options=(0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
        shown=lambda values: not synthetic,
    ),
    ui.Slider("cluster_count", 8, "fleet", low=2, high=32),
    ui.Slider("fleet_servers", 1, "fleet", low=1, high=8),
    ui.Steps("vnodes", 160, "fleet", options=(1, 2, 4, 8, 16, 40, 80, 160, 320)),
    ui.Steps("fleet_bound", 1.25, "fleet", options=(1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)),
    ui.Steps("fleet_blocks", 4000, "fleet", options=(250, 500, 1000, 2000, 4000, 8000, 16000)),
    ui.Choice("fleet_cost", "kimi-k3", "fleet", options=tuple(COST_PRESETS)),
    ui.Choice("fleet_rule", "junction", "retention", options=RULES),
    ui.Steps("fleet_cap", 0, "retention", options=(0, 1, 2, 4, 8, 16), shown=keeps_many),
    ui.Steps("fleet_weight", 0, "retention", options=(0, 1, 2, 4, 8, 16)),
    ui.Toggle("fleet_decode", False, "decode"),
    ui.Steps(
        "decode_tokens",
        4_000_000,
        "decode",
        options=(250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000),
        shown=decodes,
    ),
    ui.Steps("decode_ms", 20, "decode", options=(5, 10, 20, 40, 80), shown=decodes),
    ui.Slider("kill_cluster", 3, "failure", low=0, high=lambda values: values["cluster_count"] - 1),
    ui.Slider("kill_minute", 6, "failure", low=0, high=run_minutes),
    ui.Slider(
        "down_minutes", 4, "failure", low=0, high=30, shown=lambda values: values["kill_minute"] > 0
    ),
    ui.Choice("fleet_admission", "none", "admission", options=("none", "reject", "queue")),
    ui.Choice(
        "fleet_weigh",
        "class",
        "admission",
        options=("class", "total", "uncached"),
        shown=has_budgets,
    ),
    ui.Slider("weight_short", 1, "admission", low=1, high=8, shown=has_weights),
    ui.Slider("weight_long", 3, "admission", low=1, high=16, shown=has_weights),
    ui.Slider(
        "budget_short",
        12,
        "admission",
        low=lambda values: values["weight_short"],
        high=64,
        shown=has_weights,
    ),
    ui.Slider(
        "budget_long",
        12,
        "admission",
        low=lambda values: values["weight_long"],
        high=64,
        shown=has_weights,
    ),
    ui.Steps(
        "tokens_short",
        256,
        "admission",
        options=(64, 128, 256, 512, 1024, 2048),
        shown=has_tokens,
    ),
    ui.Steps(
        "tokens_long",
        1024,
        "admission",
        options=(256, 512, 1024, 2048, 4096, 8192),
        shown=has_tokens,
    ),
    ui.Steps(
        "fleet_overtakes",
        0,
        "admission",
        options=(0, 1, 4, 16, 64, 256),
        shown=lambda values: has_tokens(values) and values["fleet_admission"] != "reject",
    ),
    ui.Choice(
        "fleet_class_by",
        "total",
        "admission",
        options=("total", "uncached"),
    ),
    ui.Steps("fleet_slo", 10, "results", options=(1, 2, 5, 10, 20, 60)),
    ui.Slider("warm_minutes", 0, "results", low=0, high=lambda values: run_minutes(values) // 2),
    ui.SEED,
)


def preset_number(read: Callable[[PrefillCost], float]) -> Callable[[Values], float]:
    """A default that follows the chosen preset."""
    return lambda values: float(f"{read(COST_PRESETS[values['fleet_cost']]):.6g}")


COST_CONSTANTS = (
    ui.Number(
        "cost_linear", preset_number(lambda c: c.linear_flops / 1e9), low=0.0, high=1e5, step=1.0
    ),
    ui.Number(
        "cost_quadratic",
        preset_number(lambda c: c.quadratic_flops / 1e3),
        low=0.0,
        high=1e6,
        step=1.0,
    ),
    ui.Number(
        "cost_peak", preset_number(lambda c: c.peak_flops_per_s / 1e12), low=1.0, high=1e6, step=8.0
    ),
    ui.Number(
        "cost_efficiency", preset_number(lambda c: c.efficiency), low=0.01, high=1.0, step=0.01
    ),
    ui.Number("cost_fixed", 0.0, low=0.0, high=60_000.0, step=1.0),
)
PRICES = (
    ui.Number("price_input", 3.0, low=0.0, high=1000.0, step=0.1),
    ui.Number("price_cached", 0.3, low=0.0, high=lambda values: values["price_input"], step=0.1),
)


MEASURED = ((8_192, 0), (65_536, 0), (65_536, 49_152))  # to type over


def measured_row(number: int) -> tuple[ui.Number, ui.Number, ui.Number]:
    """Boxes of one measurement; its seconds start at what the declared model says."""
    prompt, cached = (f"measured_{name}_{number}" for name in ("prompt", "cached"))

    def declared_s(values: Values) -> float:
        cost = COST_PRESETS[values["fleet_cost"]]
        return float(f"{cost.seconds(values[prompt], values[cached]):.3g}")

    default_len, default_cached = MEASURED[number - 1]
    return (
        ui.Number(prompt, default_len, low=1, high=4_000_000, step=512),
        ui.Number(cached, default_cached, low=0, high=lambda values: values[prompt] - 1, step=512),
        ui.Number(f"measured_s_{number}", declared_s, low=0.0001, high=100_000.0, step=0.001),
    )


def edited_cost() -> PrefillCost:
    """The cost model of the boxes; the preset itself while they stand at its constants."""
    preset = COST_PRESETS[v.fleet_cost]
    with st.container(horizontal=True):
        x = vars(page.body_controls(*COST_CONSTANTS))
    defaults = (
        spec.default(vars(v)) if callable(spec.default) else spec.default for spec in COST_CONSTANTS
    )
    if list(x.values()) == list(defaults):
        return preset
    return PrefillCost.from_flops(
        "custom",
        x["cost_linear"] * 1e9,
        x["cost_quadratic"] * 1e3,
        x["cost_peak"] * 1e12,
        x["cost_efficiency"],
        x["cost_fixed"] / 1e3,
    )


def measured_cost(num: int) -> tuple[PrefillCost | None, pd.DataFrame]:
    """The cost model that fits the typed measurements, beside them; None when none fits."""
    triples = []
    for number in range(1, num + 1):
        with st.container(horizontal=True):
            triples.append(tuple(vars(page.body_controls(*measured_row(number))).values()))
    table = pd.DataFrame(triples, columns=["input_len", "cached_len", "measured_s"])
    try:
        fitted = PrefillCost.calibrated(triples)
    except K3Error as error:
        st.warning(page.t("cost.unfit", error=str(error)), icon=":material/block:")
        return None, table
    table["fitted_s"] = [fitted.seconds(length, cached) for length, cached, _ in triples]
    table["error"] = table["fitted_s"] / table["measured_s"] - 1
    return fitted, table


with cost_place.expander(page.t("cost.title")):
    st.markdown(page.t("cost.about"))
    cost_from = page.choice("cost_from", ("constants", "measured-2", "measured-3"))
    preset_cost = COST_PRESETS[v.fleet_cost]
    if cost_from == "constants":
        cost = edited_cost()
        custom = cost is not preset_cost
        cost_words = page.t("cost.custom" if custom else "cost.declared", source=cost.source)
    else:
        num_measured = int(cost_from.rpartition("-")[2])
        fitted_cost, fit_table = measured_cost(num_measured)
        custom, cost = fitted_cost is not None, fitted_cost or preset_cost
        if custom:
            worst = percent_text(float(fit_table["error"].abs().max()), 1)
            cost_words = page.t("cost.calibrated", num=num_measured, worst=worst)
        else:
            cost_words = page.t("cost.declared", source=cost.source)
        page.data(fit_table, "calibration")
    for line in cost_formula(cost):
        st.latex(line)
    st.markdown(page.t("cost.prices"))
    with st.container(horizontal=True):
        prices = page.body_controls(*PRICES)
params = {
    "trace": trace.key if trace else "",
    "num_requests": v.fleet_requests,
    "num_sessions": v.fleet_sessions,
    "rate_per_s": v.fleet_rate,
    "source": v.fleet_source,
    "arrival_cv": v.fleet_burstiness,
    "speed": v.fleet_speed,
    "num_clusters": v.cluster_count,
    "vnodes": v.vnodes,
    "blocks": v.fleet_blocks,
    "cost": v.fleet_cost,
    "constants": (cost.fixed_s, cost.linear_s, cost.quadratic_s) if custom else (),
    "rule": f"{v.fleet_rule}+cap{v.fleet_cap}" if v.fleet_cap else v.fleet_rule,
    "checkpoint_blocks": v.fleet_weight,
    "servers": v.fleet_servers,
    "decode_tokens": v.decode_tokens if v.fleet_decode else 0,
    "decode_ms": float(v.decode_ms),
    "admission": v.fleet_admission,
    "budget_short": v.budget_short,
    "budget_long": v.budget_long,
    "weight_short": v.weight_short,
    "weight_long": v.weight_long,
    "weigh": v.fleet_weigh,
    "class_by": v.fleet_class_by,
    "max_overtakes": v.fleet_overtakes,
    "load_factor": v.fleet_bound,
    "warm_minutes": float(v.warm_minutes),
    "tokens_short": v.tokens_short * 1024,
    "tokens_long": v.tokens_long * 1024,
    "kill_cluster": v.kill_cluster,
    "kill_minute": v.kill_minute,
    "down_minutes": v.down_minutes,
    "seed": v.seed,
}
whole = {**params, "warm_minutes": 0.0}  # pictures through time show the warm-up too


def with_settings(table: pd.DataFrame) -> bytes:
    """CSV whose rows also say what they were computed for."""
    rows = table.drop(columns=["chosen", "refused_text"])
    settings = {f"set_{name}": str(value) for name, value in params.items() if name != "router"}
    return rows.assign(**settings).to_csv(index=False).encode()


def draw_main() -> studies.RoutersStudy:
    """Metrics of the chosen router, and every router on the same requests."""
    ticks = page.study(studies.tick_variants, **params)
    variants = [{"router": code, "ticks": tick} for tick in ticks for code in codes]
    steps = ui.in_steps(page, studies.router_run, variants, slo_s=float(v.fleet_slo), **params)
    ran = {name: value for name, value in steps.params.items() if name != "slo_s"}
    r = studies.gather(steps.results, **ran)
    shown = router if r.has(router) else steps.results[0]["router"]
    row, most, least = r.row(shown), r.row(r.most_reuse), r.row(r.least_wait)

    def best(value: str, code: str) -> str:
        return page.t("metric.best", value=value, router=page.t(f"option.{code}"))

    def dollars(num_tokens: float, price: float) -> float:
        return num_tokens * price / 1e6

    saved = dollars(row["reused_tokens"], prices.price_input - prices.price_cached)
    page.metrics(
        ui.Metric(
            "reuse",
            percent_text(row["reuse"]),
            delta=best(percent_text(most["reuse"]), r.most_reuse),
        ),
        ui.Metric(
            "p95",
            seconds_text(row["p95_s"]),
            delta=best(seconds_text(least["p95_s"]), r.least_wait),
        ),
        ui.Metric(
            "refused",
            f"{count_text(row['num_refused'])} / {count_text(row['num_arrived'])}",
            delta=page.t(
                "metric.in_time", share=percent_text(row["goodput"]), slo=f"{row['slo_s']:g}"
            ),
        ),
        ui.Metric(
            "balance",
            f"{row['peak_to_mean']:.2f}",
            delta=page.t("metric.cv", cv=f"{row['load_cv']:.2f}"),
        ),
        ui.Metric(
            "saved",
            f"${saved:,.2f}",
            "derived",
            delta=page.t(
                "metric.of_full",
                full=f"${dollars(row['served_tokens'], prices.price_input):,.2f}",
            ),
        ),
    )
    page.main(
        figures.main_picture(r.choose(router)),
        r.tables["routers"].drop(columns=["chosen", "refused_text"]),
        pick="fleet_router",
        requests=count_text(r.num_requests),
        sessions=count_text(r.num_sessions),
        minutes=f"{r.minutes:.1f}",
    )
    if v.fleet_decode:
        st.caption(page.t("results.decode", p95=seconds_text(row["p95_done_s"])))
    if v.warm_minutes:
        st.caption(page.t("results.window", warm=v.warm_minutes, end=f"{r.minutes:.1f}"))
    with st.container(horizontal=True):
        st.download_button(
            page.t("results.routers"),
            data=lambda: with_settings(r.tables["routers"]),
            file_name="fleet_routers.csv",
            mime="text/csv",
            icon=":material/download:",
            on_click="ignore",
        )
        st.download_button(
            page.t("results.requests", router=page.t(f"option.{router}")),
            data=lambda: (
                studies.request_table(router=router, **params).to_csv(index=False).encode()
            ),
            file_name="fleet_requests.csv",
            mime="text/csv",
            icon=":material/download:",
            on_click="ignore",
        )
    if trace:
        st.caption(
            page.t(
                "upload.loaded",
                requests=count_text(trace.num_requests),
                sessions=count_text(trace.num_sessions),
                minutes=f"{trace.minutes:.1f}",
                shown=count_text(r.num_requests),
            )
        )
        if r.tick_s:
            st.caption(page.t("upload.ticks", tick=f"{r.tick_s:.3g}"))
    cost_place.caption(cost_words)
    return r


def draw_strip() -> None:
    """Clusters by time under the chosen router."""
    s = page.study(studies.load_strip, router=router, **whole)
    if s.tables["marks"].empty:
        event = "calm"
    else:
        event = "lost_home" if router.startswith("session") else "cut_off"
    page.section(
        "strip",
        {"strip": figures.load_strip(s.tables)},
        columns=1,
        tables={"strip": s.tables["strip"]},
        router=page.t(f"option.{router}"),
        what=page.t(
            f"strip.{event}",
            failovers=count_text(s.num_failovers),
            moved=count_text(s.num_moved),
            cluster=f"c{v.kill_cluster}",
            tokens=count_text(s.reprefilled_tokens),
        ),
        bin=f"{s.bin_s:g}",
    )


def draw_ring() -> None:
    x = page.body_controls(
        ui.Steps("ring_sessions", 600, options=(100, 300, 600, 2000, 10000)),
    )
    r = page.study(
        studies.hash_ring,
        num_clusters=v.cluster_count,
        vnodes=v.vnodes,
        num_sessions=x.ring_sessions,
    )
    page.section(
        "ring",
        figures.fig_fleet_hash_ring(r.tables),
        formula=r"\mathrm{CV} = \sqrt{\frac{N-1}{N V + 1}} = "
        rf"\sqrt{{\frac{{{r.num_clusters - 1}}}{{{r.num_clusters} \cdot {r.vnodes} + 1}}}}"
        rf" = {r.cv:.3f}",
        tables={name: r.tables[name] for name in ("sessions", "shares", "imbalance")},
        vnodes=r.vnodes,
        clusters=r.num_clusters,
        peak=f"{r.peak_to_mean:.2f}",
        low=f"{r.peak_low:.2f}",
        high=f"{r.peak_high:.2f}",
        sessions=count_text(r.num_sessions),
        most=count_text(r.num_peak_sessions),
    )


def draw_failover() -> None:
    x = page.body_controls(
        ui.Steps("ring_sessions", 600, options=(100, 300, 600, 2000, 10000)),
    )
    f = page.study(studies.minimal_perturbation, num_ring_sessions=x.ring_sessions, **whole)
    panels = figures.fig_fleet_minimal_perturbation(f.tables)
    in_run = ("reuse_through_failure", "p95_through_failure")
    page.section(
        "failover",
        {name: chart for name, chart in panels.items() if name not in in_run},
        columns=3,
        formula=rf"\frac{{\text{{moved}}}}{{\text{{sessions}}}} = \frac{{{f.num_moved}}}"
        rf"{{{f.num_sessions}}} = {f.moved_share:.4f} \approx \frac{{1}}{{N}} = "
        rf"{1 / v.cluster_count:.4f}",
        tables={name: f.tables[name] for name in ("moved", "after", "share")},
        victim=f.victim,
        moved=count_text(f.num_moved),
        sessions=count_text(f.num_sessions),
        collateral=f.num_collateral,
        share=percent_text(f.moved_share),
        low=percent_text(f.share_low),
        high=percent_text(f.share_high),
        heir=percent_text(f.top_heir_share, 0),
        left=f.num_at_removed,
    )
    page.section(
        "failover_run",
        {name: panels[name] for name in in_run},
        tables={"timeline": f.tables["timeline"]},
        victim=f.victim,
        failovers=count_text(f.num_failovers),
        tokens=count_text(f.reprefilled_tokens),
    )


def draw_admission() -> None:
    x = page.body_controls(
        ui.Slider("fleet_burst", 40, low=0, high=200, step=10),
    )
    chosen = {"router": router, "slo_s": float(v.fleet_slo)}
    steps = ui.in_steps(
        page,
        studies.admission_run,
        [{"setting": setting} for setting in studies.SETTINGS],
        burst=x.fleet_burst,
        **chosen,
        **params,
    )
    ran = {name: value for name, value in steps.params.items() if name != "burst"}
    a = studies.gather_admission(steps.results, **ran)
    rules = a.tables["budgets"]
    page.section(
        "admission",
        figures.fig_fleet_budget(a.tables),
        formula=[
            rf"\text{{{row.cls}}}: \left\lfloor \frac{{{row.budget}}}{{{row.weight:g}}}"
            rf" \right\rfloor = {row.held_at_once:g}\ \text{{inside at once}}"
            for row in rules.itertuples()
            if row.unit == "weight"
        ],
        tables={"classes": a.tables["classes"], "budgets": rules},
        burst=x.fleet_burst,
        router=page.t(f"option.{router}"),
        separate=count_text(a.refused_short_separate),
        shared=count_text(a.refused_short_shared),
        slo=v.fleet_slo,
    )


def draw_simulation() -> None:
    r = comparison
    page.section(
        "side",
        figures.fig_fleet_routers(r.tables),
        tables={"routers": r.tables["routers"].drop(columns=["chosen", "refused_text"])},
        requests=count_text(r.num_requests),
        slo=v.fleet_slo,
    )
    s = page.study(studies.simulation, router=router, **params)
    page.section(
        "simulation",
        figures.fig_fleet_simulation(s.tables),
        formula=cost_formula(cost),
        tables={name: s.tables[name] for name in ("load", "summary", "histogram")},
        router=page.t(f"option.{router}"),
        served=count_text(s.num_served),
        reuse=percent_text(s.reuse),
        refused=count_text(s.num_refused),
        match=percent_text(s.mla_match),
        utilisation=percent_text(s.utilisation, 0),
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
    }[scene]()

k3 = COST_PRESETS["kimi-k3"]
page.words(
    long_len=count_text(400_000),
    hit=seconds_text(k3.seconds(404_000, 400_000)),
    miss=seconds_text(k3.seconds(404_000)),
)
