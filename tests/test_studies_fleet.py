"""The studies of page 7 run the real fleet; the replay prints what the command line promises."""

import json
import math

import altair as alt
import numpy as np
import pytest

from k3core.errors import BudgetError, K3Error
from k3core.figures import fleet as figures
from k3core.fleet import FleetSimulator
from k3core.fleet.router import ROUTERS
from k3core.studies import fleet as studies
from k3core.studies.fleet.admission import SETTINGS, with_burst
from k3core.studies.fleet.bins import bin_size_s

SMALL = {"num_requests": 400, "num_sessions": 200, "failures": ((3, 60.0, 120.0),)}
CALM = {"failures": ()}


def mooncake(*rows):
    lines = (
        {"timestamp": time, "input_length": length, "output_length": 1, "hash_ids": list(ids)}
        for time, length, ids in rows
    )
    return "\n".join(map(json.dumps, lines)).encode()


TICKS = mooncake(*[(3000 * (i // 6), 700, (0, i + 1)) for i in range(120)])


# ---- routers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def default_routers():
    return studies.routers()


def test_every_router_serves_the_same_requests(default_routers):
    table = default_routers.tables["routers"]
    assert table["router"].tolist() == list(ROUTERS)
    assert set(table["num_arrived"]) == {1800}


def test_most_reuse_is_not_least_waiting(default_routers):
    ring, bounded = default_routers.row("session"), default_routers.row("session-bounded")
    least, prefix = default_routers.row("least-loaded"), default_routers.row("prefix-load")
    assert ring["reuse"] > 3 * least["reuse"]
    assert ring["p95_s"] > least["p95_s"]
    assert bounded["p95_s"] < ring["p95_s"]
    assert prefix["p95_s"] < least["p95_s"]
    assert default_routers.least_wait == "prefix-load"


def test_longest_prefix_sends_all_to_one_cluster(default_routers):
    """All but what is cut off by the failure of another cluster: the hub holds everyone."""
    row = default_routers.row("longest-prefix")
    assert row["peak_to_mean"] == 8.0
    assert row["p95_s"] > 50 * default_routers.row("prefix-load")["p95_s"]


def test_usable_reuse_never_exceeds_the_mla_match(default_routers):
    table = default_routers.tables["routers"]
    assert (table["reuse"] <= table["mla_match"]).all()


def test_a_trace_with_ticks_runs_raw_and_spread():
    stored = studies.store_trace(TICKS)
    result = studies.routers(generate="", trace=stored.key, **CALM)
    assert result.tick_s == 3.0
    assert result.tables["routers"]["ticks"].value_counts().to_dict() == {"raw": 7, "spread": 7}


def test_choosing_marks_one_router(default_routers):
    chosen = default_routers.choose("random")["routers"]
    assert chosen.loc[chosen["chosen"], "router"].tolist() == ["random"]


def test_strip_holds_all_work_and_none_at_a_cluster_that_is_down():
    p = {**SMALL, "num_requests": 600, "failures": ((2, 60.0, 120.0),)}
    s = studies.load_strip(**p)
    strip = s.tables["strip"]
    down = strip[(strip["cluster"] == "c2") & (strip["minute"] >= 1) & (strip["minute"] < 2)]
    assert len(down) > 3
    assert (down["num_requests"] == 0).all()
    assert strip["num_requests"].sum() == 600
    run = studies.simulation(**p)
    assert (strip["load"] * s.bin_s).sum() == pytest.approx(run.total_s)
    assert s.tables["marks"]["event"].tolist() == ["fails", "returns"]


def test_without_a_failure_nothing_is_marked():
    s = studies.load_strip(**{**SMALL, **CALM})
    assert s.tables["marks"].empty
    assert (s.num_failovers, s.num_moved) == (0, 0)


def test_time_bins_are_round_and_few():
    assert [bin_size_s(span) for span in (1, 300, 301, 3600, 36_000)] == [5, 5, 10, 60, 600]
    assert 1e9 / bin_size_s(1e9) <= 60


# ---- ring and failover -------------------------------------------------------------------------


def test_arcs_of_a_strip_are_the_whole_ring():
    arcs = studies.hash_ring().tables["arcs"]
    for vnodes in (1, 8):
        strip = arcs[arcs["vnodes"] == vnodes]
        assert (strip["end"] - strip["start"]).sum() == pytest.approx(1)


def test_crowded_strips_show_the_extreme_owners_only():
    arcs = studies.hash_ring().tables["arcs"]
    assert set(arcs[arcs["vnodes"] == 160]["role"]) == {"largest", "smallest"}


def test_ring_sessions_add_up_and_follow_the_shares():
    r = studies.hash_ring(vnodes=40, num_sessions=10_000)
    sessions = r.tables["sessions"]
    assert sessions["num_sessions"].sum() == 10_000
    sigma = np.sqrt(10_000 * sessions["share"] * (1 - sessions["share"]))
    assert (np.abs(sessions["num_sessions"] - 10_000 * sessions["share"]) < 4.5 * sigma).all()


def test_more_points_spread_less():
    peaks = studies.hash_ring(num_clusters=16).tables["imbalance"]["mean"]
    assert peaks.is_monotonic_decreasing


@pytest.mark.parametrize("num_clusters", [2, 8, 32])
def test_only_the_victims_sessions_move(num_clusters):
    f = studies.minimal_perturbation(victim=1, **{**SMALL, **CALM}, clusters=num_clusters)
    assert (f.num_collateral, f.num_at_removed) == (0, 0)
    moved = f.tables["moved"].set_index("what")["num_sessions"]
    assert moved.sum() == 600
    after = f.tables["after"].groupby("part")["num_sessions"].sum()
    assert after["inherited"] == after["gone"] == f.num_moved
    assert after["kept"] == 600 - f.num_moved


def test_the_moved_share_is_the_arcs_of_the_victim():
    f = studies.minimal_perturbation(num_ring_sessions=20_000, **SMALL)
    arcs = f.tables["arcs"]
    share = (arcs["end"] - arcs["start"]).sum()
    assert f.moved_share == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 20_000))


def test_failover_shows_in_the_victims_reuse_only():
    f = studies.minimal_perturbation(failures=((3, 360.0, math.inf),))
    calm = studies.minimal_perturbation(**CALM)
    tables = [study.tables["timeline"] for study in (f, calm)]
    before = [table[table["minute"] < 5]["reuse"].tolist() for table in tables]
    assert before[0] == before[1]
    at_failure = [
        table[(table["group"] == "victim") & (table["minute"] == 6)]["reuse"].item()
        for table in tables
    ]
    assert at_failure[0] < at_failure[1]
    assert f.num_failovers > 0
    assert f.reprefilled_tokens > 0


def test_beside_a_failure_stand_the_same_requests_without_one():
    f = studies.minimal_perturbation()
    calm = studies.minimal_perturbation(**CALM)
    assert f.tables["calm"].equals(calm.tables["timeline"])
    assert calm.tables["calm"].empty
    assert not calm.seen
    down = f.tables["while_down"].set_index(["group", "run"])
    assert down.loc[("victim", "failed"), "reuse"] < down.loc[("victim", "calm"), "reuse"] - 0.1
    kept = [down.loc[("others", run), "reuse"] for run in ("failed", "calm")]
    assert kept[0] == pytest.approx(kept[1], abs=0.01)
    assert len(f.seen) == 8


def test_one_cluster_cannot_lose_one():
    with pytest.raises(K3Error, match="clusters=1"):
        studies.minimal_perturbation(victim=0, clusters=1, **CALM)


# ---- sweep of one quantity -----------------------------------------------------------------------


@pytest.mark.parametrize("over", studies.RANGES)
def test_a_range_runs_every_router_at_every_value(over):
    small = {"num_requests": 120, "num_sessions": 60}
    study = studies.load_range(over, router="random", **small)
    rows = study.tables["range"]
    assert sorted(set(rows["value"])) == list(studies.RANGES[over])
    assert rows.groupby("value")["router"].apply(list).map(len).eq(5).all()
    assert (study.low, study.high) == (studies.RANGES[over][0], studies.RANGES[over][-1])


def test_a_point_of_a_range_is_the_run_that_it_says():
    row = studies.range_run("clusters", 4, router="least-loaded", **SMALL)
    run = studies.simulation(clusters=4, router="least-loaded", **{**SMALL, **CALM})
    assert row["p95_all_s"] == run.p95_s["all"]
    assert row["reuse_rate_tokens"] == run.reuse


def test_load_is_relative_to_the_speed_that_is_set():
    once, twice = (
        studies.range_run("speed", value, speed, **SMALL)
        for value, speed in ((2.0, 1.0), (1.0, 2.0))
    )
    assert {**once, "value": 0} == {**twice, "value": 0}


def test_a_range_over_something_else_raises():
    with pytest.raises(K3Error, match="over='colour'"):
        studies.load_range("colour")


def test_the_timeline_is_that_of_the_chosen_router():
    runs = [studies.minimal_perturbation(router=code, **SMALL) for code in ("session", "random")]
    assert runs[0].tables["moved"].equals(runs[1].tables["moved"])
    assert not runs[0].tables["timeline"].equals(runs[1].tables["timeline"])


# ---- admission ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def budgets():
    return studies.admission()


def test_all_settings_see_the_same_arrivals(budgets):
    table = budgets.tables["classes"]
    assert table["setting"].drop_duplicates().tolist() == list(SETTINGS)
    assert set(table[table["cls"] == "short"]["num_arrived"]) == {budgets.num_short}
    served_or_not = table["num_served"] + table["num_refused"]
    assert (served_or_not == table["num_arrived"]).all()


def test_own_budgets_protect_the_short_and_shared_ones_do_not(budgets):
    assert budgets.refused_short_separate < budgets.refused_short_shared
    assert budgets.p95_short_separate < budgets.p95_short_none
    queues = [budgets.value(s, "short", "p95_s") for s in ("separate-queue", "shared-queue")]
    assert queues[0] < queues[1]


def test_a_queue_refuses_nobody(budgets):
    for cls in ("short", "long"):
        assert budgets.value("separate-queue", cls, "num_refused") == 0


def test_the_misleading_percentile_is_infinite_where_many_are_refused(budgets):
    table = budgets.tables["classes"]
    infinite = np.isinf(table["misleading_p95_s"])
    assert (infinite == (table["refused_share"] > 0.05)).all()
    assert infinite.any()
    assert np.isfinite(table["p95_s"]).all()


def test_a_burst_is_inserted_and_nothing_else_changes():
    workload = studies.page_scenario(**SMALL).workload()
    burst, start_s = with_burst(workload, 25, seed=3)
    new = burst.input_len == 100_000
    assert new.sum() == 25
    assert ((burst.arrival_s[new] >= start_s) & (burst.arrival_s[new] <= start_s + 20)).all()
    kept = np.flatnonzero(~new)
    assert [burst.path(i) for i in kept[:50]] == [workload.path(i) for i in range(50)]
    np.testing.assert_array_equal(burst.sessions[~new], workload.sessions)
    assert len(np.unique(burst.sessions[new])) == 25
    assert with_burst(workload, 0, 0)[0] is workload


def test_a_weight_above_its_budget_is_refused():
    with pytest.raises(BudgetError, match="never be admitted"):
        studies.admission(budgets=(12, 2), **SMALL)


# ---- one run -----------------------------------------------------------------------------------


def test_curves_end_at_everyone_and_bins_hold_everyone():
    s = studies.simulation(**SMALL)
    for cls in ("short", "long"):
        curve = s.tables["ecdf"][s.tables["ecdf"]["cls"] == cls]
        assert curve["share"].iloc[-1] == 1.0
        assert curve["ttft_s"].is_monotonic_increasing
    assert s.tables["histogram"]["num_requests"].sum() == s.num_served == 400
    assert s.tables["load"]["num_served"].sum() == 400


def test_a_class_that_is_absent_has_no_percentile():
    stored = studies.store_trace(TICKS)
    s = studies.simulation(generate="", trace=stored.key, **CALM)
    assert math.isnan(s.p95_s["long"])
    assert s.tables["p95"]["cls"].tolist() == ["short"]
    assert figures.fig_fleet_simulation(s.tables)


def test_the_same_parameters_give_the_same_tables():
    first, second = (studies.simulation(**SMALL, admission="queue") for _ in range(2))
    for name, table in first.tables.items():
        assert table.to_csv() == second.tables[name].to_csv()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"admission": "maybe"}, "admission='maybe'"),
        ({"failures": ((8, 1.0, 2.0),)}, "cluster=8"),
        ({"cost": "x"}, "cost='x'"),
        ({"generate": "", "trace": "gone"}, "trace='gone'"),
        ({"budgets": (1, 2, 3)}, r"budgets=\(1, 2, 3\)"),
        ({"warmup_s": -1.0}, "warmup_s=-1.0"),
        ({"slo_s": None}, "slo_s=None"),
        ({"ticks": "even"}, "ticks='even'"),
    ],
)
def test_impossible_parameters_raise(kwargs, words):
    with pytest.raises(K3Error, match=words):
        studies.simulation(**kwargs)


def test_a_window_and_a_service_level_count_anew_without_a_new_run(monkeypatch):
    whole = studies.router_run(**SMALL)
    monkeypatch.setattr(FleetSimulator, "run", None)
    late = studies.router_run(**SMALL, warmup_s=60.0, slo_s=1.0, price=6.0)
    assert late["num_served"] < whole["num_served"]
    assert late["goodput"] < whole["goodput"]


# ---- pictures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "panels",
    [
        lambda: {"main": figures.main_picture(studies.routers(**SMALL).choose("session"))},
        lambda: {"main": figures.main_picture(studies.routers(**SMALL, admission="reject").tables)},
        lambda: {"strip": figures.load_strip(studies.load_strip(**SMALL).tables)},
        lambda: figures.fig_fleet_hash_ring(studies.hash_ring(num_clusters=32).tables),
        lambda: figures.fig_fleet_minimal_perturbation(
            studies.minimal_perturbation(**SMALL).tables
        ),
        lambda: figures.fig_fleet_range(
            studies.load_range(num_requests=120, num_sessions=60).choose("session")
        ),
        lambda: figures.fig_fleet_budget(studies.admission(**SMALL).tables),
        lambda: figures.fig_fleet_simulation(studies.simulation(**SMALL).tables),
    ],
)
def test_panels_are_single_valid_charts(panels):
    with alt.data_transformers.enable("default", max_rows=None):
        for name, chart in panels().items():
            assert isinstance(chart, (alt.Chart, alt.LayerChart)), name
            assert chart.to_dict()["title"].startswith("fleet.panel.")


def test_labels_of_routers_keep_apart():
    """Marks at one spot get labels at different heights, or on different sides."""
    tables = studies.routers(**SMALL).choose("session")
    rows = tables["routers"].head(4).assign(reuse=0.2, mla_match=0.2, p95_s=4.0)
    chart = figures.main_picture({"routers": rows}).to_dict()
    data = next(iter(chart["datasets"].values()))
    assert len({(row["label_left"], row["label_s"]) for row in data}) == 4


def test_a_long_prefix_is_worth_the_same_on_both_pages_that_price_it():
    from k3core.studies.prefix_cache import cost

    assert studies.long_prefix_words()["ratio"] == f"{cost().ratio:.1f}"
