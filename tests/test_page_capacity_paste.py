"""The paste scene of the capacity page: logs, configs and plans of the reader's own."""

import json
import re

import pytest

from k3core.capacity import bootlog
from k3core.capacity.logsolve import Solved
from k3core.capacity.planner import plan
from k3core.capacity.saved_plan import save_plan
from k3core.i18n import has_text
from k3core.studies import capacity as studies
from k3core.ui.planner.paste import EXAMPLE_CONFIG
from tests.capacity_page import open_page, shown, values


def paste(text, **query):
    app = open_page(capacity_scene="paste", **query)
    app.text_area(key="capacity_text").set_value(text).run()
    assert not app.exception
    return app


def test_a_pasted_log_fills_the_planner():
    app = open_page(capacity_scene="paste")
    app.button(key="_example_log").click().run()
    shown(app)
    table = app.dataframe[1].value
    found = dict(zip(table["code"], table["value"], strict=True))
    assert found["num_blocks"] == "1,584"
    assert found["blocks_per_request"] == "55"
    app.button(key="_fill").click().run()
    assert app.query_params["pool_rule"] == "blocks"
    assert app.query_params["draft_len"] == "2"
    assert app.query_params["drafter_layers"] == "5"
    assert "capacity_scene" not in app.query_params
    assert not app.exception


def test_a_pasted_config_becomes_a_model():
    app = open_page(capacity_scene="paste")
    app.button(key="_example_config").click().run()
    assert "20 layers with a state, 7 with a cache" in app.success[0].value
    app.button(key="_use_config").click().run()
    assert app.query_params["model"] == "custom"
    assert values(app)[2] == "5.18 MiB"


@pytest.mark.parametrize(
    ("text", "words"),
    [("{broken", "no JSON"), (json.dumps({"model_type": "llama"}), "no known hybrid")],
)
def test_a_text_that_is_no_config_is_refused_with_the_reason(text, words):
    app = open_page(capacity_scene="paste")
    app.text_area(key="capacity_text").set_value(text).run()
    assert words in app.error[0].value


def test_a_text_without_known_lines_is_answered():
    app = open_page(capacity_scene="paste")
    app.text_area(key="capacity_text").set_value("hello").run()
    assert "No known line" in app.info[0].value


def test_a_downloaded_plan_opens_again_with_its_model_in_a_new_session():
    deployment = studies.deployment(
        "custom", tp=4, budget_gib=31.0, mean_tokens=12_345, config=EXAMPLE_CONFIG
    )
    text = save_plan(plan(deployment), EXAMPLE_CONFIG)
    app = open_page(capacity_scene="paste")
    app.text_area(key="capacity_text").set_value(text).run()
    assert "A plan of kimi_linear" in app.success[0].value
    app.button(key="_open_plan").click().run()
    assert not app.exception
    assert not app.warning
    assert app.query_params["model"] == "custom"
    assert app.query_params["mean_tokens"] == "12345"
    assert app.number_input(key="budget_gib").value == 31.0
    assert values(app)[2] == "10.4 MiB"


@pytest.mark.parametrize(
    "broken",
    ['{"engine_rule": 1', '{"engine_rule": {}}', '{"engine_rule": {}, "inputs": {"tp": 8}}',
     '{"engine_rule": {}, "inputs": {"model": "custom"}}',
     '{"engine_rule": {}, "inputs": {"model": "kimi-k3", "tp": "8"}}'],
)  # fmt: skip
def test_a_broken_plan_is_refused_with_the_reason(broken):
    app = open_page(capacity_scene="paste")
    app.text_area(key="capacity_text").set_value(broken).run()
    assert not app.exception
    assert app.error


def test_a_log_is_told_in_words():
    app = open_page(capacity_scene="paste")
    app.button(key="_example_log").click().run()
    lines, found = (frame.value for frame in app.dataframe)
    assert dict(zip(found["meaning"], found["value"], strict=True))["blocks of the pool"] == "1,584"
    assert dict(zip(lines["meaning"], lines["value"], strict=True))["tokens per block"] == "1,536"


def test_every_code_of_a_log_has_words():
    codes = {code for code, *_ in bootlog._PATTERNS}
    codes |= set(re.findall(r"``(\w+)``", str(Solved.__doc__)))
    for code in sorted(codes):
        assert has_text(f"capacity.found.{code}"), code


def test_a_log_of_another_model_says_what_contradicts_in_words():
    app = open_page(capacity_scene="paste", model="kimi-linear-48b")
    app.button(key="_example_log").click().run()
    assert "padding of the state page" in app.warning[0].value
    shown(app)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps({"layer_group_size": 8, "architectures": 5}), "architectures=5"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", "num_hidden_layers=9"),
        ('{"linear_attn_config": {}, "num_hidden_layers": "**7**"}', "`num_hidden_layers='**7**'"),
        ('{"engine_rule": 1, "inputs": {"model": "kimi-k3", "tp": ' + "9" * 5000 + "}}", "tp=9"),
        ('{"engine_rule": 1, "inputs": {"model": "kimi-k3", "mla_dtype": "x"}}', "'x'"),
        ("tensor_parallel_size=7\nSetting attention block size to 64 tokens", "tp=7"),
    ],
)
def test_what_cannot_be_used_is_an_error_and_no_crash(text, words):
    assert words in paste(text).error[0].value


def test_lines_that_cannot_be_are_shown_and_left_out():
    app = paste("Setting attention block size to 0 tokens\nAvailable KV cache memory: 1.2 TiB")
    assert "`1: Setting attention block size to 0 tokens`" in app.warning[0].value
    app.button(key="_fill").click().run()
    assert app.query_params["budget_gib"] == "1228.8"


@pytest.mark.parametrize("line", ["", "Available KV cache memory: lots"])
def test_filling_leaves_alone_what_the_log_does_not_say(line):
    text = f"Setting attention block size to 1536 tokens\n{line}"
    app = paste(text, budget_gib="100.0", context_len="65536", mean_tokens="4096")
    app.button(key="_fill").click().run()
    assert not app.exception
    found = {k: app.query_params[k] for k in ("budget_gib", "context_len", "mean_tokens")}
    assert found == {"budget_gib": "100.0", "context_len": "65536", "mean_tokens": "4096"}
    assert app.query_params["pool_rule"] == "blocks"
    assert "draft_len" not in app.query_params


def test_foreign_names_stand_as_code_and_do_not_fill_the_page():
    fields = {f"**{i}** [x](http://x)": 1 for i in range(20_000)}
    app = paste(json.dumps(json.loads(EXAMPLE_CONFIG) | fields))
    words = app.warning[0].value
    assert len(words) < 1000
    assert "`**0** [x](http://x)`" in words
    assert "and 19,988 more" in words
    types = {"layer_types": ["<b>**x**</b>"] * 27}
    app = paste(json.dumps(json.loads(EXAMPLE_CONFIG) | types))
    assert app.error[0].value.count("`") == 2
