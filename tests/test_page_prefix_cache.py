"""The prefix page in the app: presets fill the controls, every control acts, bad links noted."""

import gzip
import json

import pytest

from tests.page_helpers import page_opener

open_page = page_opener("pages/4_Prefix_Cache.py")


def shown(app):
    """Everything on the page that holds a number."""
    assert not app.exception
    assert not app.error
    metrics = [(m.label, m.value, m.delta) for m in app.metric]
    formulas = [m.value for m in app.get("latex")]
    words = [m.value for kind in (app.markdown, app.subheader) for m in kind]
    return metrics, formulas, words


@pytest.fixture(scope="module")
def default():
    return shown(open_page())


def test_first_screen_shows_the_case_of_the_picture(default):
    values = [value for _, value, _ in default[0]]
    assert values == ["3,072 tokens", "1,024 tokens", "2,128 tokens", "196.4 MiB"]


def test_every_chart_is_there_and_no_text_is_missing():
    app = open_page()
    assert len(app.get("vega_lite_chart")) == 11
    texts = [e.value for kind in (app.markdown, app.caption, app.subheader) for e in kind]
    texts += [m.label for m in app.metric] + [m.delta for m in app.metric]
    assert not [text for text in texts if "⟦" in text]


CASES = {
    "healthy": ("4,096 tokens", "0 tokens"),
    "no_checkpoint": ("0 tokens", "4,096 tokens"),
    "last_token": ("3,584 tokens", "512 tokens"),
    "not_ready": ("0 tokens", "4,096 tokens"),
    "fork": ("0 tokens", "4,096 tokens"),
    "drafter": ("3,072 tokens", "1,024 tokens"),
    "evicted": ("3,072 tokens", "1,024 tokens"),
    "salt": ("0 tokens", "0 tokens"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_fills_the_controls(case):
    metrics = shown(open_page(prefix_case=case))[0]
    assert (metrics[0][1], metrics[1][1]) == CASES[case]


def test_choosing_a_case_resets_what_was_moved():
    app = open_page(prefix_prompt="9000")
    assert app.slider(key="prefix_prompt").value == 9000
    app.button_group(key="prefix_case").set_value("healthy").run()
    assert app.slider(key="prefix_prompt").value == 5200
    assert "prefix_prompt" not in app.query_params
    assert app.query_params["prefix_case"] == "healthy"
    assert app.metric[0].value == "4,096 tokens"


def test_a_link_keeps_a_case_and_what_was_moved_after_it():
    app = open_page(prefix_case="healthy", prefix_prompt="9000")
    assert app.slider(key="prefix_prompt").value == 9000


ENDS = {
    "prefix_prompt": ("64", "16384"),
    "prefix_shared": ("0", "5200"),
    "prefix_tail": ("4096",),
    "prefix_ready": ("0",),
    "prefix_block": ("128", "2048"),
    "prefix_groups": ("2", "6"),
    "prefix_policy": ("last", "none"),
    "prefix_every": ("1", "8"),
    "prefix_missing": ("none", "all", "0"),
    "prefix_missing_at": ("1024",),
    "prefix_drop": ("1",),
    "prefix_salt": ("1",),
    "prefix_evicted": ("states", "blocks"),
    "prefix_cost_model": ("kimi-linear-48b", "glm-5.3-flash"),
    "prefix_cost_len": ("4000", "1000000"),
    "prefix_cost_new": ("1", "64000"),
    "seed": ("20",),
}


@pytest.mark.parametrize(("key", "raw"), [(k, raw) for k, ends in ENDS.items() for raw in ends])
def test_each_control_at_its_ends_changes_numbers(default, key, raw):
    app = open_page(**{key: raw})
    assert not app.warning
    assert shown(app) != default


def test_a_single_group_is_all_groups():
    metrics = shown(open_page(prefix_groups="1", prefix_missing="0", prefix_case="one_short"))[0]
    assert metrics[1][1:] == ("1,024 tokens", "no state was kept there")


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("prefix_prompt", "63"),
        ("prefix_block", "500"),
        ("prefix_case", "x"),
        ("prefix_missing", "5"),
        ("prefix_missing_at", "77"),
    ],
)
def test_a_bad_link_falls_back_with_a_note(default, key, raw):
    app = open_page(**{key: raw})
    assert raw in app.warning[0].value
    assert shown(app)[0] == default[0]


def test_controls_that_do_not_act_are_not_offered():
    app = open_page(prefix_case="no_checkpoint")
    keys = {
        widget.key for kind in ("slider", "select_slider", "selectbox") for widget in app.get(kind)
    }
    assert not {"prefix_every", "prefix_missing", "prefix_missing_at"} & keys


SCENES = {
    "stairs": {
        "tp": ("1", "16"),
        "mla_dtype": ("bfloat16",),
        "model": ("kimi-linear-48b",),
        "grid_hash": ("512",),
        "grid_dcp": ("8",),
        "grid_drafts": ("7",),
        "grid_drop": ("1",),
        "grid_rule": ("none", "chunk_end"),
    },
    "policies": {
        "load_pages": ("50", "3200"),
        "load_interval": ("1",),
        "load_cap": ("1", "8"),
        "grid_budget": ("2048",),
        "grid_drop": ("1",),
        "load_conversations": ("1", "8"),
        "load_history": ("stripped",),
        "tp": ("1",),
    },
    "cliff": {
        "cliff_pages": ("60", "720"),
        "load_alive": ("1", "8"),
        "cliff_interval": ("1", "32"),
        "load_opening": ("8000",),
        "load_history": ("stripped",),
        "cliff_ends": ("1",),
    },
    "player": {
        "player_step": ("0", "12"),
        "player_rule": ("dense", "none"),
        "player_pages": ("12", "30"),
        "player_scenario": ("evict", "salt", "full", "abort", "together", "branch"),
    },
}


def specs(app):
    """Every chart with its data."""
    return [chart.proto.spec + str(chart.proto.datasets) for chart in app.get("vega_lite_chart")]


@pytest.fixture(scope="module")
def scenes():
    """What each scene shows as it opens."""
    apps = {name: open_page(prefix_scene=name) for name in SCENES}
    return {name: (shown(app), specs(app)) for name, app in apps.items()}


@pytest.mark.parametrize("name", SCENES)
def test_each_scene_draws_its_own_section_in_words(scenes, name):
    (metrics, _, words), charts = scenes[name]
    assert len(metrics) == 4
    assert 3 <= len(charts) <= 5
    assert not [text for text in words if "⟦" in text]


@pytest.mark.parametrize(
    ("name", "key", "raw"),
    [(n, k, raw) for n, keys in SCENES.items() for k, ends in keys.items() for raw in ends],
)
def test_each_scene_control_acts(scenes, name, key, raw):
    app = open_page(prefix_scene=name, **{key: raw})
    assert not app.warning
    assert (shown(app), specs(app)) != scenes[name]


def test_the_player_steps_back_and_forward_and_keeps_its_place_in_the_link():
    app = open_page(prefix_scene="player")
    start = app.slider(key="player_step").value
    next(b for b in app.button if b.label == "Step forward").click().run()
    assert app.slider(key="player_step").value == start + 1
    assert app.query_params["player_step"] == str(start + 1)
    next(b for b in app.button if b.label == "Step back").click().run()
    assert app.slider(key="player_step").value == start
    assert not app.exception


def test_a_cascade_leaves_no_orphans():
    link = {"prefix_scene": "player", "player_scenario": "evict", "player_step": "10"}
    kept = shown(open_page(**link))[2]
    gone = shown(open_page(**link, player_cascade="1"))[2]
    assert any("; 0 blocks and states are out of reach" in text for text in gone)
    assert not any("; 0 blocks and states are out of reach" in text for text in kept)


def trace_file(turns=3):
    """A conversation in which each turn adds a block."""
    lines = [
        {
            "timestamp": 1000 * turn,
            "input_length": 3000 + 512 * turn,
            "output_length": 10,
            "hash_ids": [*range(5 + turn), 100 + turn],
        }
        for turn in range(turns)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def upload(app, data, name="trace.jsonl"):
    app.file_uploader(key="prefix_trace").set_value((name, data, "application/octet-stream"))
    return app.run()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_uploaded_trace_is_replayed_under_every_policy(scenes, pack):
    app = upload(open_page(prefix_scene="policies"), pack(trace_file()))
    (_, _, words), charts = shown(app), specs(app)
    assert len(charts) == len(scenes["policies"][1]) + 2
    assert any("3 requests of your trace" in text for text in words)


def test_a_bad_trace_is_named_and_the_page_goes_on(scenes):
    app = upload(open_page(prefix_scene="policies"), b"{}\nnot json", "bad.jsonl")
    assert not app.exception
    assert "bad.jsonl" in app.error[0].value
    assert "line 1" in app.error[0].value
    assert specs(app) == scenes["policies"][1]


OWN = {"prefix_scene": "player", "player_scenario": "own"}


def test_the_readers_own_operations_are_played_and_kept_in_the_link():
    app = open_page(**OWN)
    app.text_area(key="player_own").set_value("register Q ab, write Q, end Q, look_up R abc").run()
    assert app.query_params["player_own"].endswith("look_up R abc")
    steps = next(text for text in shown(app)[2] if text.startswith("1. ")).splitlines()
    assert len(steps) == 6
    assert steps[-1] == "6. **Look up R = a b c — finds 1,024 tokens: all that is known of it**"


def test_bad_operations_are_refused_with_what_is_allowed():
    app = open_page(**OWN)
    before = specs(app)
    app.text_area(key="player_own").set_value("register A ab, wriet A").run()
    assert not app.exception
    assert "step 2, 'wriet A'" in app.error[0].value
    assert "allowed: register A abc" in app.error[0].value
    assert specs(app) == before
    assert "step 1, 'x'" in open_page(**OWN, player_own="x").error[0].value
