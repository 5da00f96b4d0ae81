"""Dressing a chart: words for keys, dark palette, labels for codes."""

import altair as alt
import pandas as pd
import pytest

from k3core.figures import style


@pytest.fixture
def chart():
    table = pd.DataFrame({"lane": ["snapshots", "inputs"], "bytes": [4.0, 1.0]})
    return (
        style.labelled(alt.Chart(table), "lane")
        .mark_bar(color=style.MLA)
        .encode(
            alt.X("bytes:Q").title("decode.axis.bytes"),
            alt.Y("lane:N").axis(labelExpr=style.label_expr()),
            tooltip=[alt.Tooltip("lane_text:N", title="decode.axis.lane")],
        )
        .properties(title="decode.panel.tensors")
    )


def test_keys_become_words_in_titles_axes_and_tooltips(chart):
    spec = style.dress(chart, "decode").to_dict()
    assert spec["title"] == "Real tensors of one token: state against inputs"
    assert spec["encoding"]["x"]["title"] == "bytes"
    assert spec["encoding"]["tooltip"][0]["title"] == "memory"


def test_codes_get_their_words_from_the_subsystem(chart):
    spec = style.dress(chart, "decode").to_dict()
    (labels,) = [p["value"] for p in spec["params"] if p["name"] == "labels"]
    assert labels["snapshots"] == "A: every state"


def test_the_dark_theme_moves_lightness_and_makes_text_light(chart):
    spec = style.dress(chart, "decode", dark=True).to_dict()
    assert spec["mark"]["color"] != style.MLA
    assert spec["config"]["text"]["color"].startswith("#E")


def test_the_light_theme_keeps_the_palette(chart):
    assert style.dress(chart, "decode").to_dict()["mark"]["color"] == style.MLA


@pytest.mark.parametrize("dark", [False, True])
def test_zero_of_a_heat_map_and_gaps_stay_near_the_ground_of_the_theme(dark):
    table = pd.DataFrame({"x": [0, 1], "value": [-1.0, 1.0]})
    colour = alt.Color("value:Q").scale(range=[style.MLA, style.MIDDLE, style.KDA])
    chart = alt.Chart(table).mark_rect(stroke=style.GAP).encode(alt.X("x:O"), colour)
    spec = style.dress(chart, "decode", dark=dark).to_dict()
    for shade in (spec["encoding"]["color"]["scale"]["range"][1], spec["mark"]["stroke"]):
        brightness = sum(int(shade[i : i + 2], 16) for i in (1, 3, 5)) / (3 * 255)
        assert brightness < 0.25 if dark else brightness > 0.9


def test_layers_are_dressed_too(chart):
    layered = alt.layer(chart, chart)
    spec = style.dress(layered, "decode").to_dict()
    assert [layer["encoding"]["x"]["title"] for layer in spec["layer"]] == ["bytes", "bytes"]


@pytest.mark.parametrize("high", [1, 1000, 4096, 1_234_567, 60 * 2**20])
def test_linear_byte_ticks_are_multiples_of_a_power_of_two(high):
    values = style.bytes_axis(None, high=high).to_dict()["values"]
    step = values[1] - values[0]
    assert step == 2 ** round(__import__("math").log2(step))
    assert values[-1] >= high
    assert len(values) <= 7


def test_log_byte_ticks_are_powers_of_two_and_few():
    values = style.bytes_axis(None, high=2**30, low=2**10).to_dict()["values"]
    assert values[0] == 2**10
    assert len(values) <= 7
