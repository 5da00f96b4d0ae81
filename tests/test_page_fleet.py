"""Page 7: scenes, uploaded traces, and links."""

import gzip
import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

PAGE = str(Path(__file__).resolve().parent.parent / "pages" / "7_Fleet.py")


def trace(num_requests, per_tick=5):
    lines = (
        {
            "timestamp": 3000 * (i // per_tick),
            "input_length": 700,
            "output_length": 1,
            "hash_ids": [0, i % 90 + 1],
        }
        for i in range(num_requests)
    )
    return "\n".join(map(json.dumps, lines)).encode()


@pytest.fixture
def page():
    app = AppTest.from_file(PAGE, default_timeout=120)
    for key, value in {"fleet_requests": "600", "fleet_sessions": "300"}.items():
        app.query_params[key] = value
    return app


def drawn(app):
    app.run()
    assert not app.exception
    assert not app.error
    return app


def upload(app, data, name="trace.jsonl"):
    app.file_uploader[0].set_value((name, data, "application/octet-stream"))
    return app.run()


def captions(app):
    return " ".join(caption.value for caption in app.caption)


def num_charts(app):
    return len(app.get("vega_lite_chart"))


@pytest.mark.parametrize(
    ("scene", "charts"), [("ring", 4), ("failover", 5), ("admission", 4), ("simulation", 4)]
)
def test_a_scene_stands_below_the_main_picture_and_the_strip(page, scene, charts):
    page.query_params["fleet_scene"] = scene
    assert num_charts(drawn(page)) == 2 + charts


def test_budgets_are_offered_only_where_they_act(page):
    assert "budget_long" not in [slider.key for slider in drawn(page).slider]
    page.query_params["fleet_admission"] = "reject"
    assert "budget_long" in [slider.key for slider in drawn(page).slider]


def test_a_budget_never_falls_below_its_weight(page):
    page.query_params["fleet_scene"] = "admission"
    page.query_params["weight_long"] = "16"
    app = drawn(page)
    assert app.slider(key="budget_long").value == 16


def test_the_metrics_follow_the_router(page):
    first = [metric.value for metric in drawn(page).metric]
    page.query_params["fleet_router"] = "longest-prefix"
    second = [metric.value for metric in drawn(page).metric]
    assert second[3] == "8.00"
    assert all(a != b for a, b in zip(first, second, strict=True) if "/" not in a)


def test_an_uploaded_trace_is_counted_whole_and_replayed(page):
    app = upload(drawn(page), gzip.compress(trace(450)), "trace.jsonl.gz")
    assert not app.exception
    assert "450 requests of" in captions(app)
    assert "none dropped" in captions(app)
    assert "ticks of 3 s" in captions(app)
    assert app.metric[2].value == "0 / 450"


def test_a_trace_without_ticks_says_nothing_of_them(page):
    app = upload(drawn(page), trace(100, per_tick=1))
    assert "100 requests of" in captions(app)
    assert "ticks of" not in captions(app)


def test_a_bad_line_is_named_and_the_synthetic_requests_stay(page):
    data = trace(20).splitlines()
    data[6] = b'{"timestamp": 1}'
    app = upload(drawn(page), b"\n".join(data))
    assert not app.exception
    assert ["line 7" in error.value for error in app.error] == [True]
    assert app.metric[2].value == "0 / 600"


def test_the_limit_is_stated_where_a_trace_is_given(page):
    assert "16 MB" in drawn(page).file_uploader[0].proto.help


def test_one_failure_minute_zero_leaves_the_run_whole(page):
    page.query_params["kill_minute"] = "0"
    app = drawn(page)
    assert any("nothing fails" in heading.value for heading in app.subheader)
    assert "down_minutes" not in [slider.key for slider in app.slider]
