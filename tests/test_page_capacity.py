"""The capacity page in the app: its numbers, its pool rules, its scenes, its notes."""

import json

import pytest
from streamlit.testing.v1 import AppTest

from k3core.capacity.presets import MODELS
from k3core.i18n import has_text
from k3core.ui.planner import planned_of
from tests.capacity_page import open_page, shown, texts, values


@pytest.fixture(scope="module")
def default():
    return shown(open_page())


def test_first_screen_shows_the_published_numbers(default):
    assert [value for _, value, _ in default[0]] == ["49", "386.6 MiB", "53.6 MiB", "4,064 tokens"]


@pytest.mark.parametrize(
    ("scene", "charts"),
    [("plan", 8), ("drafts", 3), ("grid", 2), ("printed", 1), ("paste", 0), ("published", 1)],
)
def test_every_scene_is_drawn_with_words_for_all(scene, charts):
    app = open_page(capacity_scene=scene)
    shown(app)
    assert len(app.get("vega_lite_chart")) == charts


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


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("max_running", "10"), ("target_requests", "7"), ("drafter_layers", "5"),
        ("conv_dtype", "float32"), ("tp", "6"), ("slots_per_request", "1"),
        ("rollback_scheme", "snapshots"),
    ],
)  # fmt: skip
def test_each_further_control_changes_a_number(default, key, raw):
    assert shown(open_page(**{key: raw})) != default


def test_longest_sequence_changes_what_the_engine_prints():
    one, other = (
        shown(open_page(pool_rule="blocks", context_len=raw)) for raw in ("131072", "1048576")
    )
    assert one != other


def test_controls_of_the_other_pool_rule_are_not_offered():
    app = open_page(pool_rule="blocks")
    keys = {widget.key for kind in ("slider", "select_slider") for widget in app.get(kind)}
    assert "block_quantum" in keys
    assert not {"state_pool_ratio", "slots_per_request"} & keys


def test_a_prompt_below_one_block_is_pointed_out():
    assert "1,536" in open_page(mean_tokens="1024").info[0].value
    assert not open_page().info


def test_faults_that_bite_are_listed_with_their_source():
    words = " ".join(texts(open_page(pool_rule="blocks", mean_tokens="1024", drafter_layers="5")))
    assert "Prompts of 1,024 tokens never hit" in words
    assert "The drafter pads the groups" in words
    assert "26.1\u00a0%" in words
    assert "vLLM Ascend #14314" in words


@pytest.mark.parametrize("model", ["qwen3.5-397b", "nemotron-3-super", "lab-stack"])
def test_comparison_models_are_planned(model):
    app = open_page(model=model)
    assert values(app)[2] != "53.6 MiB"
    assert any(MODELS[model].source[:20] in text for text in texts(app))


def test_every_model_says_what_its_sizes_leave_out():
    for code in (*MODELS, "custom"):
        assert has_text(f"capacity.note.{code}"), code


def test_two_configurations_stand_in_one_picture():
    app = open_page(slots_per_request="4")
    app.button(key="_pin").click().run()
    assert "slots_per_request=4" in app.query_params["pin"]
    app.slider(key="slots_per_request").set_value(1).run()
    words = " ".join(texts(app))
    assert "Different in B" in words
    assert "State slots per request S 4" in words
    app.button(key="_unpin").click().run()
    assert "pin" not in app.query_params


def test_a_pinned_link_that_cannot_be_planned_says_so():
    app = open_page(pin="rollback_scheme=flush-ring&pool_rule=blocks&context_len=4096&tp=1")
    assert any("below one block" in warning.value for warning in app.warning)


def test_a_context_below_one_block_is_refused_with_the_remedy():
    app = open_page(pool_rule="blocks", tp="1", context_len="4096")
    assert "use a context of at least" in app.error[0].value


def test_the_plan_is_offered_as_json_and_csv():
    labels = [button.label for button in open_page().get("download_button")]
    assert "Download the plan as JSON" in labels
    assert len(labels) >= 5


def test_published_table_filters_and_opens_the_planner():
    app = open_page(capacity_scene="published")
    assert values(app) == ["106 of 111", "5", "0"]
    assert len(app.dataframe[0].value) == 111
    app.selectbox(key="published_verdict").set_value("published-wrong").run()
    assert len(app.dataframe[0].value) == 5
    app.selectbox(key="published_verdict").set_value("all").run()
    app.text_input(key="published_words").set_value("ATOM recipe").run()
    table = app.dataframe[0].value
    assert set(table["source"]) == {"ATOM recipe K3 LMCache"}
    query = dict(pair.split("=") for pair in table["open"].iloc[0].lstrip("?").split("&"))
    opened = open_page(**query)
    assert not opened.warning
    assert any("1,887,436 tokens" in text for text in texts(opened))


@pytest.mark.parametrize(
    ("words", "row", "reused"),
    [("#51250", "64", "54,880"), ("#53504", "65a", "1,600"), ("#50235", "67b", "3,072")],
)
def test_a_published_hit_opens_the_grid_with_its_own_value(words, row, reused):
    app = open_page(capacity_scene="published")
    app.text_input(key="published_words").set_value(words).run()
    table = app.dataframe[0].value.set_index("id")
    query = dict(pair.split("=") for pair in table.at[row, "open"].lstrip("?").split("&"))
    opened = open_page(**query)
    assert not opened.warning
    assert values(opened)[1] == reused


def test_a_filter_without_matches_says_so():
    app = open_page(capacity_scene="published")
    app.text_input(key="published_words").set_value("no such words").run()
    assert not app.exception
    assert app.info


@pytest.mark.parametrize(
    ("scene", "key", "raw"),
    [
        ("grid", "grid_dcp", "8"), ("grid", "grid_drop", "1"), ("grid", "grid_hash", "64"),
        ("grid", "grid_retention", "8192"), ("grid", "grid_prompt", "40000"),
        ("grid", "grid_block", "2048"), ("grid", "grid_repeats", "9"),
        ("printed", "printed_blocks", "100"), ("printed", "printed_limit", "4096"),
        ("printed", "printed_block", "784"), ("printed", "printed_fixed", "99"),
        ("printed", "printed_groups", "38"), ("printed", "printed_running", "3"),
        ("drafts", "acceptance_len", "2.5"), ("drafts", "draft_len", "2"),
    ],
)  # fmt: skip
def test_controls_of_a_scene_change_its_numbers(scene, key, raw):
    assert (
        shown(open_page(capacity_scene=scene, **{key: raw}))[:2]
        != shown(open_page(capacity_scene=scene))[:2]
    )


def test_a_bad_value_in_the_link_is_noted():
    assert open_page(grid_dcp="3", capacity_scene="grid").warning


def test_drafter_format_is_offered_with_a_drafter_and_shown():
    plain = open_page()
    assert "drafter_dtype" not in {box.key for box in plain.selectbox}
    app = open_page(drafter_layers="5", drafter_dtype="bfloat16")
    assert any("keep their cache in bf16: 5.62 KiB per token" in text for text in texts(app))
    assert values(app)[1] != values(open_page(drafter_layers="5"))[1]


def test_indexer_keys_stand_beside_the_bill_of_a_model_that_has_them():
    found = [text for text in texts(open_page(model="glm-5.3-flash")) if "indexer keys" in text]
    assert "132 B per 4 tokens in 11 layers" in found[0]
    assert "363 B per token" in found[0]
    assert not any("indexer keys" in text for text in texts(open_page()))


def test_requests_without_drafts_stand_beside_those_with():
    """The same 51 that the plan shows when nothing is drafted."""
    assert "51 without drafts" in shown(open_page())[0][0][2]
    assert values(open_page(draft_len="0"))[0] == "51"


def test_state_blocks_and_quantum_of_another_rule_can_be_set():
    one, other = (
        values(open_page(pool_rule="blocks", block_quantum="32", state_blocks=raw))
        for raw in ("0", "10")
    )
    assert one[0] != other[0]


def own_model():
    app = open_page(capacity_scene="paste")
    app.button(key="_example_config").click().run()
    return app.button(key="_use_config").click().run()


def test_a_model_of_one_s_own_is_said_to_stay_here_and_can_be_taken_along():
    app = own_model()
    assert any("lives in this session only" in text for text in texts(app))
    labels = [button.label for button in app.get("download_button")]
    assert "Download this config.json" in labels


def test_tables_have_titles_in_words():
    app = open_page()
    for frame in app.dataframe:
        columns = json.loads(frame.proto.columns)
        assert all("_" not in column.get("label", "") for column in columns.values()), columns


@pytest.mark.parametrize(
    "query",
    [
        {"draft_len": "0", "mean_tokens": "16384", "rollback_scheme": "snapshots-state-only"},
        {"pool_rule": "blocks", "drafter_layers": "5", "tp": "16"},
        {},
    ],
)
def test_home_s_count_of_requests_is_the_one_of_this_page(query):
    assert values(open_page(**query))[0] == f"{planned_of(query).max_requests:,}"


def test_home_names_the_requests_of_its_public_log():
    app = AppTest.from_file("../Home.py", default_timeout=60).run()
    labels = [link.proto.label for link in app.get("page_link")]
    assert any("51 requests, no drafts" in text for text in (*labels, *texts(app)))


def test_a_link_to_a_model_of_somebody_else_says_what_it_lacks():
    app = open_page(model="custom")
    assert any("a link does not carry" in info.value for info in app.info)
    assert values(app)[0] == "49"


def test_the_degrees_of_a_grouped_query_model_have_their_own_words():
    assert any("doubling the ranks halves it" in text for text in texts(open_page()))
    words = texts(open_page(model="nemotron-3-super"))
    assert not any("doubling the ranks halves it" in text for text in words)
    assert any("until each holds one" in text for text in words)
    assert any("stand for the Mamba-2 and the attention layers" in text for text in words)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"pin": "tp=7"}, "Tensor parallel degree = `7`"),
        ({"pin": "rollback_scheme=zzz"}, "= `zzz`, which is not offered"),
        ({"pin": "zzz"}, "pins `zzz`"),
        ({"pin": "tp="}, "= ``"),
        ({"row": "Z999"}, "row `Z999`"),
        ({"row": "Z999", "capacity_scene": "grid"}, "row `Z999`"),
    ],
)
def test_what_a_link_names_and_is_not_there_is_noted(query, words):
    app = open_page(**query)
    assert not app.exception
    assert any(words.lower() in note.value.lower() for note in app.warning)
    known = open_page(**(query | ({"pin": "tp=4"} if "pin" in query else {"row": "1a"})))
    assert not any("`" in note.value for note in known.warning)
