"""The frame of a page: its controls live in the URL."""

import json

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


def test_a_key_that_no_page_reads_is_named_once(app):
    app.query_params.update({"router": "ring", "vnodes": "40", "`foo": "1"})
    app.run()
    (note,) = app.warning
    assert "`router`, `'foo`" in note.value
    assert "vnodes" not in note.value
    app.slider(key="draft_len").set_value(5).run()
    assert not app.warning


def walk_to(script, **query):
    """The state of a reader's browser after a page that offers other values of the same keys."""
    app = AppTest.from_string(ELSEWHERE, default_timeout=30)
    for key, value in query.items():
        app.query_params[key] = value
    app.run()
    assert not app.warning
    other = AppTest.from_string(script, default_timeout=30)
    other.session_state["_url_saved"] = app.session_state["_url_saved"]
    for key, value in app.query_params.items():
        other.query_params[key] = value
    return other.run()


ELSEWHERE = """
from k3core import ui
page = ui.frame("capacity")
page.controls(
    ui.Choice("model", "kimi-k3", options=("kimi-k3", "another-model")),
    ui.Slider("draft_len", 7, low=0, high=40),
)
"""


def test_a_value_brought_from_a_page_that_offers_it_needs_no_note(app):
    app = walk_to(SCRIPT, model="another-model", draft_len="40")
    got = values(app)
    assert (got["model"], got["draft_len"]) == ("kimi-k3", 7)
    assert not app.warning
    captions = [c.value for c in app.caption]
    assert any("another-model" in c and "Kimi K3" in c for c in captions)


def test_a_value_of_another_page_stays_in_the_links_until_the_reader_moves_the_control():
    app = walk_to(SCRIPT, model="another-model")
    app.toggle(key="scrub").set_value(False).run()
    assert app.query_params["model"] == "another-model"
    app.selectbox(key="model").set_value("kimi-linear-48b").run()
    assert app.query_params["model"] == "kimi-linear-48b"
    assert not [c for c in app.caption if "another-model" in c.value]


def test_a_bad_value_beside_values_from_another_page_gets_its_note():
    app = walk_to(SCRIPT, model="another-model")
    app.query_params["tp"] = "no-such-tp"
    app.run()
    (note,) = app.warning
    assert "no-such-tp" in note.value


GROUPS = """
from k3core import ui
page = ui.frame("decode")
page.controls(ui.MODEL, ui.DRAFT_LEN, ui.TP, ui.SEED, ui.INPUT_DTYPE)
"""


def test_controls_of_one_group_stand_together_whatever_their_order():
    app = AppTest.from_string(GROUPS, default_timeout=30).run()
    assert not app.exception
    order = [e.value if e.type == "markdown" else e.key for e in app.sidebar]
    order = [name for name in order if name and not name.startswith(("_", "#", ":"))]
    assert order == [
        *("**Model and formats**", "model", "tp", "input_dtype"),
        *("**One step**", "draft_len"),
        *("**Run**", "seed"),
    ]


TABLE = """
import pandas as pd
from k3core import ui
page = ui.frame("engine")
table = pd.DataFrame(
    {"mflops": [1.5e-9, 0.25], "num_layers": [1, 123456], "what_ever": ["a", "b" * 50]}
)
page.data(table, "some")
"""


def test_a_table_has_titles_in_words_and_numbers_with_separators_or_digits_that_count():
    app = AppTest.from_string(TABLE, default_timeout=30).run()
    assert not app.exception
    (frame,) = app.dataframe
    assert list(frame.value.columns) == ["mflops", "num_layers", "what_ever"]  # codes for the CSV
    columns = json.loads(frame.proto.columns)
    assert [columns[name]["label"] for name in frame.value] == [
        "million operations",
        "layers",
        "what ever",
    ]
    assert columns["num_layers"]["type_config"]["format"] == "localized"
    assert columns["mflops"]["type_config"]["format"] == "%.4g"
    assert columns["what_ever"]["width"] == "medium"


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
