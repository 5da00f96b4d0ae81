"""The frame of a page: its controls live in the URL."""

import pytest
from streamlit.testing.v1 import AppTest

SCRIPT = """
from k3core import ui
page = ui.frame("decode")
v = page.controls(
    ui.MODEL, ui.TP, ui.MLA_DTYPE, ui.DRAFT_LEN, ui.ACCEPTED,
    ui.Toggle("scrub", True, "run"),
    ui.Choice("mode", "a", "run", options=("a", "b"), style="segments"),
)
import streamlit as st
st.text(repr(sorted(vars(v).items())))
"""


@pytest.fixture
def app():
    return AppTest.from_string(SCRIPT, default_timeout=30)


def values(app):
    assert not app.exception
    return dict(eval(app.text[0].value))


def test_defaults_leave_the_url_empty(app):
    app.run()
    assert values(app)["tp"] == 8
    assert dict(app.query_params) == {}


def test_a_moved_control_is_written_to_the_url_as_a_code(app):
    app.run()
    app.slider(key="draft_len").set_value(5).run()
    app.toggle(key="scrub").set_value(False).run()
    assert app.query_params["draft_len"] == "5"
    assert app.query_params["scrub"] == "0"


def test_a_link_sets_the_controls(app):
    app.query_params["draft_len"] = "2"
    app.query_params["model"] = "kimi-linear-48b"
    app.run()
    got = values(app)
    assert (got["draft_len"], got["model"], got["mla_dtype"]) == (2, "kimi-linear-48b", "bfloat16")


def test_a_new_url_wins_over_the_widgets(app):
    app.run()
    app.slider(key="draft_len").set_value(5).run()
    app.query_params["draft_len"] = "3"
    app.run()
    assert values(app)["draft_len"] == 3


@pytest.mark.parametrize("raw", ["abc", "99", "-1", "2.5", ""])
def test_a_bad_url_value_falls_back_with_a_visible_note(app, raw):
    app.query_params["draft_len"] = raw
    app.run()
    assert values(app)["draft_len"] == 7
    assert raw in app.warning[0].value


@pytest.mark.parametrize("key", ["draft_len", "lang"])
def test_a_bad_url_value_brings_no_markup_and_is_cut(app, key):
    app.query_params[key] = "`![x](http://example.org/x.png)" + "9" * 5000
    app.run()
    note = app.warning[0].value
    assert note.count("`") == 2
    assert len(note) < 300


def test_a_preset_fills_the_controls_that_follow_it(app):
    app.run()
    app.selectbox(key="model").set_value("kimi-linear-48b").run()
    assert values(app)["mla_dtype"] == "bfloat16"
    assert "mla_dtype" not in app.query_params


def test_a_value_moved_off_its_preset_is_called_custom(app):
    app.run()
    app.selectbox(key="mla_dtype").set_value("bfloat16").run()
    assert any("custom, from Kimi K3" in m.value for m in app.markdown)


def test_a_bound_that_shrinks_takes_the_value_along(app):
    app.query_params["accepted"] = "8"
    app.run()
    app.slider(key="draft_len").set_value(1).run()
    assert values(app)["accepted"] == 2


def test_unknown_keys_of_other_pages_stay_in_the_url(app):
    app.query_params["vnodes"] = "40"
    app.run()
    app.slider(key="draft_len").set_value(5).run()
    assert app.query_params["vnodes"] == "40"


def test_reset_returns_to_the_defaults(app):
    app.query_params["draft_len"] = "2"
    app.run()
    app.button(key="_reset").click().run()
    assert values(app)["draft_len"] == 7
    assert dict(app.query_params) == {}


def test_an_unknown_language_is_named(app):
    app.query_params["lang"] = "xx"
    app.run()
    assert "xx" in app.warning[0].value


BROKEN = """
from k3core import ui
page = ui.frame("decode")
v = page.controls(ui.Slider("level", 1, low=0, high=3))

def picky(level):
    if level > 1:
        raise ValueError(f"level={level} must be at most 1")
    return level

import streamlit as st
st.text(str(page.study(picky, level=v.level)))
"""


def test_bad_input_shows_its_remedy_and_keeps_the_last_picture():
    app = AppTest.from_string(BROKEN, default_timeout=30).run()
    app.slider(key="level").set_value(3).run()
    assert not app.exception
    assert "must be at most 1" in app.error[0].value
    assert app.text[0].value == "1"


def test_bad_input_on_the_first_run_stops_without_a_traceback():
    app = AppTest.from_string(BROKEN, default_timeout=30)
    app.query_params["level"] = "3"
    app.run()
    assert not app.exception
    assert app.error
    assert not app.text
