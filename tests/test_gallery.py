"""The gallery: the 14 figures of the source text, each drawn from a live study."""

import subprocess
import sys

import altair as alt
import pytest

from k3core.figures.sheet import TITLE_LENGTH
from k3core.gallery import GALLERY, export, figure_spec

NAMES = [
    "fig_replay_principle",
    "fig_snapshot_cost",
    "fig_replay_consistency",
    "fig_replayssm",
    "fig_page_pool",
    "fig_mla_paging",
    "fig_kda_store",
    "fig_prefix_hit",
    "fig_prefix_miss",
    "fig_engine_before_after",
    "fig_fleet_hash_ring",
    "fig_fleet_minimal_perturbation",
    "fig_fleet_budget",
    "fig_fleet_simulation",
]


def strings(node):
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from strings(value)


def test_the_gallery_holds_the_fourteen_figures_in_the_order_of_the_source_text():
    assert list(GALLERY) == NAMES


@pytest.fixture(scope="module", params=NAMES)
def figure(request):
    entry = GALLERY[request.param]
    result = entry.run()
    return entry, result, entry.panels(result)


def test_every_panel_is_a_valid_single_chart(figure):
    _, _, panels = figure
    with alt.data_transformers.enable("default", max_rows=None):
        for name, panel in panels.items():
            assert isinstance(panel, alt.Chart | alt.LayerChart), name
            panel.to_dict()


def test_a_figure_changes_nothing_in_the_tables_of_its_study(figure):
    entry, result, _ = figure
    before = {name: table.copy() for name, table in result.tables.items()}
    entry.panels(result)
    for name, table in result.tables.items():
        assert table.equals(before[name]), name


def test_the_words_of_a_figure_are_all_in_the_catalogue(figure):
    entry, _, _ = figure
    spec = figure_spec(entry.name)
    spec.pop("datasets")
    known_prefixes = (f"{entry.subsystem}.", "common.")
    leftover = [
        text
        for text in strings(spec)
        if text.startswith(known_prefixes) and " " not in text and not text.endswith(".")
    ]
    assert leftover == []


def test_no_title_of_a_panel_is_longer_than_the_panel(figure):
    entry, _, panels = figure
    titles = [panel["title"] for panel in figure_spec(entry.name)["concat"]]
    assert len(titles) == len(panels)
    assert max(len(line) for lines in titles for line in lines) <= TITLE_LENGTH


def test_listing_the_figures_loads_no_chart_library_and_no_torch():
    code = (
        "import sys, k3core.gallery; "
        "print([m for m in ('altair', 'pandas', 'streamlit', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_seed_figure_is_written_as_png_and_svg(tmp_path):
    png, svg = export(tmp_path / "new", names=("fig_snapshot_cost",))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_an_unknown_figure_is_refused_with_the_names_that_exist():
    with pytest.raises(ValueError, match="fig_nothing"):
        figure_spec("fig_nothing")


@pytest.mark.parametrize(
    "bad",
    [{"names": ("fig_mla_paging", "fig_nothing")}, {"lang": "xx"}],
)
def test_a_refused_export_writes_nothing(tmp_path, bad):
    with pytest.raises(ValueError, match=r"fig_nothing|lang='xx'"):
        export(tmp_path / "new", **bad)
    assert not (tmp_path / "new").exists()
