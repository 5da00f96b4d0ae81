"""Figures of the fleet: marks stand where the tables say, and every panel is valid."""

import math

import pandas as pd
import pytest

from k3core.figures import fleet as figures
from k3core.fleet.router import ALL_ROUTERS, ROUTERS
from k3core.studies import fleet as studies

SMALL = {"num_requests": 300, "num_sessions": 100, "clusters": 4, "failures": ()}


@pytest.fixture(scope="module")
def comparison():
    return studies.routers(admission="reject", capacity_blocks=500, checkpoints="replay", **SMALL)


def layers(chart):
    return chart.to_dict()["layer"]


def with_field(chart, channel, field):
    return [
        layer for layer in layers(chart) if layer["encoding"].get(channel, {}).get("field") == field
    ]


def test_belief_is_hollow_and_usable_reuse_filled(comparison):
    chart = figures.main_picture(comparison.choose("session"))
    (belief,) = with_field(chart, "x", "mla_match")
    assert belief["mark"]["filled"] is False
    filled = [x for x in with_field(chart, "x", "reuse") if x["mark"].get("filled")]
    assert filled


def test_the_belief_is_never_below_what_was_usable(comparison):
    table = comparison.tables["routers"]
    assert (table["mla_match"] >= table["reuse"]).all()
    assert (table["mla_match"] > table["reuse"]).any()


def test_spread_marks_appear_only_with_ticks(comparison):
    def has_spread(table):
        chart = figures.main_picture({"routers": table})
        return any("'spread'" in str(layer.get("transform")) for layer in layers(chart))

    raw = comparison.choose("session")["routers"]
    moved = raw.assign(ticks="spread", p95_s=raw["p95_s"] * 1.2)
    assert not has_spread(raw)
    assert has_spread(pd.concat([raw, moved], ignore_index=True))


def test_labels_of_the_main_picture_do_not_share_a_place(comparison):
    chart = figures.main_picture(comparison.choose("session"))
    spec = chart.to_dict()
    rows = next(data for data in spec["datasets"].values() if data and "label_s" in data[0])
    places = {(row["label_left"], round(row["label_reuse"], 3), row["label_s"]) for row in rows}
    assert len(places) == len(ROUTERS)


def test_outcomes_add_up_to_all_requests(comparison):
    chart = figures.fig_fleet_routers(comparison.tables)["outcomes"]
    data = next(iter(chart.to_dict()["datasets"].values()))
    for router in ROUTERS:
        shares = [row["share"] for row in data if row["router"] == router]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= -1e-12


def test_panels_side_by_side_are_valid_and_named(comparison):
    panels = figures.fig_fleet_routers(comparison.tables)
    assert list(panels) == ["waits", "outcomes", "reuse", "balance"]
    for name, chart in panels.items():
        assert chart.to_dict()["title"] == f"fleet.panel.{name}"


def test_a_comparison_stopped_early_still_draws(comparison):
    row = studies.router_run(**SMALL)
    partial = studies.gather([row], **SMALL)
    assert partial.has("session")
    assert not partial.has("random")
    assert figures.main_picture(partial.choose("session")).to_dict()
    assert figures.fig_fleet_routers(partial.tables)["reuse"].to_dict()


def test_on_a_phone_no_label_covers_a_mark_or_another_label():
    """Eleven routers, some at one spot; a plot of 240 by 260 pixels, a label 12 pixels high."""
    rows = pd.DataFrame([studies.router_run(router=code, **SMALL) for code in ALL_ROUTERS])
    crowded = rows.assign(reuse=rows["reuse"].round(1), mla_match=rows["mla_match"].round(1))
    spec = figures.main_picture({"routers": crowded.assign(chosen=False)}).to_dict()
    data = next(data for data in spec["datasets"].values() if "narrow_s" in data[0])
    low, top = spec["layer"][1]["encoding"]["y"]["scale"]["domain"]
    high = spec["layer"][1]["encoding"]["x"]["scale"]["domain"][1]

    def height(seconds):
        return math.log(seconds / low) / math.log(top / low) * 260

    labels, marks = [], []
    for row in data:
        width = 5.2 * (len(row["router"]) + 9 * row["off_scale"])
        x, y = row["narrow_reuse"] / high * 240, height(row["narrow_s"])
        labels.append((x, x + width, y - 6, y + 6))
        x, y = row["reuse"] / high * 240, height(row["shown_s"])
        marks.append((x - 6, x + 6, y - 6, y + 6))
    for at, one in enumerate(labels):
        for other in (*labels[:at], *labels[at + 1 :], *marks):
            apart = one[1] <= other[0] or other[1] <= one[0]
            assert apart or one[3] <= other[2] or other[3] <= one[2], data[at]["router"]


def test_a_range_has_a_line_for_each_router_and_a_thick_one_for_the_chosen():
    tables = studies.load_range("clusters", **SMALL).choose("session")
    panels = figures.fig_fleet_range(tables)
    assert list(panels) == ["p95", "reuse", "goodput", "balance"]
    for chart in panels.values():
        lines = [layer for layer in layers(chart) if layer["mark"]["type"] == "line"]
        assert len(lines) == tables["range"]["router"].nunique()
        assert len({tuple(line["mark"]["strokeDash"]) for line in lines}) == len(lines)
        *thin, thick = sorted(line["mark"]["strokeWidth"] for line in lines)
        assert thick > 2 * max(thin)
