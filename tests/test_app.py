"""Every page, run by Streamlit's own tester: it draws, each control acts, links reproduce it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from k3core import i18n
from k3core.ui.controls import Choice, Control, Steps, TextBox, Toggle, resolve
from k3core.ui.form import Form
from k3core.ui.navigation import PAGES

ROOT = Path(__file__).resolve().parent.parent
PATHS = ["Home.py", *sorted(f"pages/{path.name}" for path in (ROOT / "pages").glob("*.py"))]
WIDGETS = ("slider", "select_slider", "selectbox", "radio", "toggle", "number_input", "text_area")
NUMBERS = ("metric", "dataframe", "vega_lite_chart")
CLOCK = "cpu_"  # columns of this name hold seconds or milliseconds that passed on this machine
MISSING_TEXT = "⟦"


@dataclass
class Drawn:
    """A control as it was drawn in the last run: its spec, the page's values, its own value."""

    spec: Control
    values: dict[str, Any]
    value: Any

    def moves(self) -> list[Any]:
        """Where the control can be moved: each choice, or both ends of a range."""
        if isinstance(self.spec, Toggle):
            places = [False, True]
        elif isinstance(self.spec, Choice):
            places = list(resolve(self.spec.options, self.values))
        elif isinstance(self.spec, Steps):
            options = list(resolve(self.spec.options, self.values))
            places = [options[0], options[-1]]
        elif isinstance(self.spec, TextBox):
            places = [self.spec.example]
        else:
            places = [resolve(self.spec.low, self.values), resolve(self.spec.high, self.values)]
        return [place for place in places if place != self.value]


@dataclass
class Reader:
    """Somebody at one page of the app."""

    path: str
    drawn: dict[str, Drawn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.app = AppTest.from_file(str(ROOT / "Home.py"), default_timeout=120)
        if self.path != "Home.py":
            self.app.switch_page(self.path)

    def run(self) -> Reader:
        self.drawn.clear()
        self.app.run()
        return self

    def faults(self) -> list[str]:
        """What a reader should never see."""
        texts = [
            str(element.value)
            for kind in ("title", "markdown", "caption", "subheader", "warning", "error")
            for element in self.app.get(kind)
        ]
        return [
            *(f"exception: {element.message}" for element in self.app.exception),
            *(f"error: {element.value}" for element in self.app.error),
            *(f"missing text: {text}" for text in texts if MISSING_TEXT in text),
        ]

    def widget(self, key: str) -> Any:
        """The widget with this key, or None when the page draws none."""
        for kind in WIDGETS:
            for element in getattr(self.app, kind):
                if element.key == key:
                    return element
        return next(
            (element for element in self.app.get("button_group") if element.key == key), None
        )

    def offers(self) -> dict[str, list[Any]]:
        """What each control on the page offers now."""
        return {key: drawn.moves() for key, drawn in self.drawn.items()}

    def numbers(self) -> dict[tuple[str, int], bytes]:
        """Numbers and chart data on the page, the sidebar and readings of a clock aside."""
        return {
            (kind, index): content(element.proto)
            for kind in NUMBERS
            for index, element in enumerate(self.app.main.get(kind))
        }


def content(proto: Any) -> bytes:
    """What an element shows, without its identity and without readings of a clock."""
    shown = type(proto)()
    shown.CopyFrom(proto)
    for name in ("id", "element_id"):
        if name in shown.DESCRIPTOR.fields_by_name:
            shown.ClearField(name)
    if "datasets" in shown.DESCRIPTOR.fields_by_name:  # a chart: its data are named by their hash
        for index, dataset in enumerate(shown.datasets):
            shown.spec = shown.spec.replace(dataset.name, str(index))
            dataset.name = str(index)
            dataset.data.data = timeless(dataset.data.data)
    elif "arrow_data" in shown.DESCRIPTOR.fields_by_name:
        shown.arrow_data.data = timeless(shown.arrow_data.data)
    return shown.SerializeToString(deterministic=True)


def timeless(data: bytes) -> bytes:
    """The values of an Arrow table without the columns that hold readings of a clock.

    Values, not bytes: a table from the cache has tighter buffers than one that was just made.
    """
    table = pa.ipc.open_stream(data).read_all()
    clocks = [name for name in table.column_names if name.startswith(CLOCK)]
    return repr(table.drop_columns(clocks).to_pydict()).encode()


def arrow_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.fixture(autouse=True)
def recorded_controls(monkeypatch):
    """Let the readers know which controls their page has drawn."""
    readers: list[Reader] = []
    draw = Form.draw

    def record(form: Form, specs: Any) -> dict[str, Any]:
        values = draw(form, specs)
        for spec in specs:
            if spec.shown(form.values) and spec.key != "lang":
                for reader in readers:
                    reader.drawn[spec.key] = Drawn(spec, dict(form.values), values[spec.key])
        return values

    monkeypatch.setattr(Form, "draw", record)
    return readers


@pytest.fixture
def open_page(recorded_controls):
    def opened(path: str, **query: str) -> Reader:
        reader = Reader(path)
        recorded_controls[:] = [reader]
        for key, value in query.items():
            reader.app.query_params[key] = value
        return reader.run()

    return opened


@dataclass
class Walk:
    """Moves every control of a page and keeps what was wrong."""

    reader: Reader
    complaints: list[str] = field(default_factory=list)
    walked: set[str] = field(default_factory=set)

    def move(self, key: str, place: Any) -> None:
        self.reader.widget(key).set_value(place)
        self.reader.run()
        faults = [f"{key}={place}: {fault}" for fault in self.reader.faults()]
        assert not self.reader.app.exception, faults
        self.complaints += faults

    def controls(self, keys: set[str], start: dict[tuple[str, int], bytes]) -> None:
        """Move each control everywhere and put it back; then those that only a choice brings."""
        brought: dict[tuple[str, Any], set[str]] = {}
        offers, query = self.reader.offers(), dict(self.reader.app.query_params)
        before = {name: drawn.value for name, drawn in self.reader.drawn.items()}
        self.walked |= keys
        for key in sorted(keys):
            drawn, acts = self.reader.drawn[key], False
            for place in drawn.moves():
                self.move(key, place)
                numbers = self.reader.numbers()
                acts = acts or numbers != start
                brought[key, place] = set(self.reader.drawn) - set(offers)
            if drawn.moves() and not acts:
                self.complaints.append(f"{key} changes no number and no picture")
            now = {name: drawn.value for name, drawn in self.reader.drawn.items()}
            if {**now, key: 0} != {**before, key: 0}:  # a bound took another control along
                self.reader.app.query_params.clear()
                self.reader.app.query_params.update(query)
                self.reader.run()
                continue
            self.reader.widget(key).set_value(drawn.value)
            if {**self.reader.offers(), key: 0} != {**offers, key: 0}:
                self.reader.run()  # the next move needs the options of the old value
        self.reader.run()
        for (key, place), new in brought.items():
            if new - self.walked:
                value = self.reader.drawn[key].value
                self.move(key, place)
                self.controls(new - self.walked, self.reader.numbers())
                self.move(key, value)


def test_the_navigation_names_the_files_of_the_app():
    assert {page.path for page in PAGES} >= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_draws_pictures_and_numbers_without_faults(open_page, path):
    reader = open_page(path)
    assert reader.faults() == []
    assert len(reader.app.get("vega_lite_chart")) >= 1
    assert len(reader.app.metric) >= 3
    assert len(reader.app.title) == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_page_computed_again_shows_the_same_numbers(open_page, path):
    reader = open_page(path)
    start = reader.numbers()
    st.cache_data.clear()
    assert reader.run().numbers() == start


def test_readings_of_a_clock_are_no_numbers_of_a_page():
    table = pd.DataFrame({"lane": ["first"], "cpu_ms": [1.5]})

    def written(frame):
        return arrow_bytes(pa.Table.from_pandas(frame))

    later, other = table.assign(cpu_ms=9.0), table.assign(lane="second")
    assert timeless(written(table)) == timeless(written(later))
    assert timeless(written(table)) != timeless(written(other))


@pytest.mark.parametrize("path", PATHS)
def test_every_control_moved_to_both_ends_changes_what_is_shown(open_page, path):
    reader = open_page(path)
    walk = Walk(reader)
    walk.controls(set(reader.drawn), reader.numbers())
    assert walk.complaints == []


@pytest.mark.parametrize("path", PATHS)
def test_bad_url_values_are_named_in_notes_and_replaced(open_page, path):
    reader = open_page(path)
    start, keys = reader.numbers().keys(), list(reader.drawn)
    other = open_page(path, **dict.fromkeys(keys, "no-such-value"))
    assert other.faults() == []
    notes = [note.value for note in other.app.warning if "no-such-value" in note.value]
    assert len(notes) == len(keys)
    assert other.numbers().keys() == start


@pytest.mark.parametrize("path", PATHS)
def test_a_link_reproduces_the_page(open_page, path):
    reader = open_page(path)
    for key, drawn in reader.drawn.items():
        if key != "model" and drawn.moves():
            reader.widget(key).set_value(drawn.moves()[0])
    reader.run()
    assert not reader.app.exception
    query = {key: reader.app.query_params[key] for key in reader.app.query_params}
    query = {key: value[0] if isinstance(value, list) else value for key, value in query.items()}
    values = {key: drawn.value for key, drawn in reader.drawn.items()}
    linked = open_page(path, **query)
    assert not linked.app.warning
    assert {key: drawn.value for key, drawn in linked.drawn.items()} == values


def test_a_model_of_one_page_survives_a_visit_to_a_page_without_it(open_page):
    planner, engine = "pages/8_Capacity_Planner.py", "pages/5_Engine.py"
    reader = open_page(planner, model="qwen3-next")
    assert reader.drawn["model"].value == "qwen3-next"
    reader.app.switch_page(engine)
    reader.run()
    assert reader.drawn["model"].value == "kimi-k3"
    assert not reader.app.warning
    reader.widget("engine_drafts").set_value(0)
    reader.run()
    assert reader.drawn["engine_drafts"].value == 0
    reader.app.switch_page(planner)
    reader.run()
    assert reader.drawn["model"].value == "qwen3-next"


@pytest.fixture
def two_languages(tmp_path, monkeypatch):
    """The real catalogues, and a second language in which every page has another title."""
    shutil.copytree(i18n.LOCALES_DIR, tmp_path / "locales")
    second = tmp_path / "locales" / "zh"
    if not second.exists():
        second.mkdir()
        for path in (tmp_path / "locales" / "en").glob("*.toml"):
            (second / path.name).write_text('title = "第二种语言"\n', encoding="utf-8")
    monkeypatch.setattr(i18n, "LOCALES_DIR", tmp_path / "locales")
    for cache in (i18n.languages, i18n.catalogue):
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in (i18n.languages, i18n.catalogue):
        cache.cache_clear()


@pytest.mark.parametrize("path", PATHS)
def test_another_language_keeps_the_state(open_page, two_languages, path):
    reader = open_page(path)
    title = reader.app.title[0].value
    for key, drawn in list(reader.drawn.items())[:2]:
        if drawn.moves():
            reader.widget(key).set_value(drawn.moves()[0])
            reader.run()
    values = {key: drawn.value for key, drawn in reader.drawn.items()}
    reader.widget("lang").set_value("zh")
    reader.run()
    assert reader.faults() == []
    assert reader.app.title[0].value != title
    assert {key: drawn.value for key, drawn in reader.drawn.items()} == values
    query = reader.app.query_params["lang"]
    assert query in ("zh", ["zh"])
