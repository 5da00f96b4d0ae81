"""The capacity page in the app: its numbers, its pool rules, its notes."""

import pytest
from streamlit.testing.v1 import AppTest

from k3core.capacity.presets import PRESETS
from k3core.i18n import has_text

PAGE = "pages/8_Capacity_Planner.py"


def open_page(**query):
    app = AppTest.from_file(f"../{PAGE}", default_timeout=60)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def shown(app):
    """Everything on the page that holds a number."""
    assert not app.exception
    metrics = [(m.label, m.value, m.delta) for m in app.metric]
    formulas = [m.value for m in app.get("latex")] if app.get("latex") else []
    words = [m.value for m in app.markdown]
    return metrics, formulas, words


@pytest.fixture(scope="module")
def default():
    return shown(open_page())


def test_first_screen_shows_the_published_numbers(default):
    values = [value for _, value, _ in default[0]]
    assert values == ["49", "386.6 MiB", "53.6 MiB", "4,063 tokens"]


def test_every_chart_is_there_and_no_text_is_missing():
    app = open_page()
    assert len(app.get("vega_lite_chart")) == 8
    texts = [e.value for kind in (app.markdown, app.caption, app.subheader) for e in kind]
    assert not [text for text in texts if "⟦" in text]


@pytest.mark.parametrize("raw", ["16", "512"])
def test_block_quantum_changes_numbers_of_the_block_pool(raw):
    assert shown(open_page(pool_rule="blocks", block_quantum=raw)) != shown(
        open_page(pool_rule="blocks")
    )


def test_a_moved_slider_changes_the_metrics_and_the_link(default):
    app = open_page()
    app.select_slider(key="mean_tokens").set_value(65536).run()
    assert shown(app)[0] != default[0]
    assert app.query_params["mean_tokens"] == "65536"


def test_controls_of_the_other_pool_rule_are_not_offered():
    app = open_page(pool_rule="blocks")
    keys = {widget.key for kind in ("slider", "select_slider") for widget in app.get(kind)}
    assert "block_quantum" in keys
    assert not {"state_pool_ratio", "slots_per_request"} & keys


def test_a_prompt_below_one_block_is_pointed_out():
    assert "1,536" in open_page(mean_tokens="1024").info[0].value
    assert not open_page().info


def test_every_preset_says_what_its_sizes_leave_out():
    for code in PRESETS:
        assert has_text(f"capacity.note.{code}"), code
