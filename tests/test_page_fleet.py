"""Page 7: scenes, uploaded traces, and links."""

import gzip
import json
from pathlib import Path

import pytest
import streamlit as st
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


def small_page():
    app = AppTest.from_file(PAGE, default_timeout=120)
    for key, value in {"fleet_requests": "600", "fleet_sessions": "300"}.items():
        app.query_params[key] = value
    return app


@pytest.fixture
def page():
    return small_page()


@pytest.fixture(scope="module")
def at_defaults():
    return metrics(small_page())


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
    ("scene", "charts"),
    [("ring", 4), ("failover", 5), ("admission", 4), ("simulation", 8), ("range", 4)],
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
    app = upload(drawn(page), gzip.compress(trace(450), mtime=0), "trace.jsonl.gz")
    assert not app.exception
    assert "Requests: 450" in captions(app)
    assert "none dropped" in captions(app)
    assert "ticks of 3 s" in captions(app)
    assert app.metric[2].value == "0 / 450"


def test_a_trace_without_ticks_says_nothing_of_them(page):
    app = upload(drawn(page), trace(100, per_tick=1))
    assert "Requests: 100" in captions(app)
    assert "ticks of" not in captions(app)


def test_a_bad_line_is_named_and_the_synthetic_requests_stay(page):
    data = trace(20).splitlines()
    data[6] = b'{"timestamp": 1}'
    app = upload(drawn(page), b"\n".join(data))
    assert not app.exception
    assert ["line 7" in error.value for error in app.error] == [True]
    assert "without a trace" in app.error[0].value
    assert app.metric[2].value == "0 / 600"


def test_after_a_bad_file_the_last_good_trace_stays_and_the_page_says_so(page):
    app = upload(drawn(page), trace(450), "good.jsonl")
    app = upload(app, b"nonsense", "bad.jsonl")
    assert not app.exception
    assert "`bad.jsonl` is not replayed" in app.error[0].value
    assert "goes on with `good.jsonl`" in app.error[0].value
    assert app.metric[2].value == "0 / 450"
    app.file_uploader[0].set_value([])
    assert drawn(app).metric[2].value == "0 / 600"


def test_what_a_file_holds_comes_back_short_and_as_plain_text(page):
    time = "`[x](https://example.org)![y](z) " + "*" * 9999
    line = {"timestamp": time, "input_length": 1, "output_length": 1, "hash_ids": [0]}
    app = upload(drawn(page), json.dumps(line).encode(), "`**x**`.jsonl")
    (error,) = app.error
    assert len(error.value) < 500
    marked = error.value.split("`")
    assert len(marked) == 5  # two pieces of code, and nothing foreign outside of them
    assert "[x]" in marked[3]
    assert all(sign not in "".join(marked[::2]) for sign in "[]*")


def test_the_limit_stated_where_a_trace_is_given_is_that_of_the_server(page):
    uploader = drawn(page).file_uploader[0].proto
    assert uploader.max_upload_size_mb == st.get_option("server.maxUploadSize")
    assert f"up to {uploader.max_upload_size_mb} MB" in uploader.help


@pytest.mark.parametrize("over", ["speed", "clusters", "capacity_blocks"])
def test_a_sweep_shows_the_chosen_router_beside_its_references(page, over):
    page.query_params.update(
        {"fleet_scene": "range", "range_over": over, "range_requests": "300"}
        | {"fleet_router": "random"}
    )
    table = next(frame.value for frame in drawn(page).dataframe if "over" in frame.value)
    assert set(table["over"]) == {over}
    assert set(table["router"]) == {
        "session", "session-bounded", "least-loaded", "prefix-load", "random",
    }  # fmt: skip
    assert set(table["num_requests"]) == {300}


def test_the_timeline_of_a_failure_follows_the_router(page):
    page.query_params["fleet_scene"] = "failover"
    titles = []
    for router in ("session", "round-robin"):
        page.query_params["fleet_router"] = router
        titles.append(next(h.value for h in drawn(page).subheader if "belonged" in h.value))
    assert "session ring" in titles[0]
    assert "round robin" in titles[1]
    assert titles[0].split(":", 1)[1] != titles[1].split(":", 1)[1]


def test_sessions_set_and_sessions_seen_are_told_apart(page):
    app = drawn(page)
    spoke = next(text.value for text in app.caption if "speak in these requests" in text.value)
    assert "of 300 set" in spoke


def test_one_failure_minute_zero_leaves_the_run_whole(page):
    page.query_params["kill_minute"] = "0"
    app = drawn(page)
    assert any("nothing fails" in heading.value for heading in app.subheader)
    assert "down_minutes" not in [slider.key for slider in app.slider]


def metrics(app):
    return [metric.value for metric in drawn(app).metric]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fleet_source", "hubs"),
        ("fleet_source", "lognormal"),
        ("fleet_burstiness", "8.0"),
        ("fleet_servers", "3"),
        ("fleet_blocks", "250"),
        ("fleet_rule", "none"),
        ("fleet_cost", "kimi-linear-48b"),
        ("cost_efficiency", "0.3"),
        ("cost_fixed", "500.0"),
        ("price_input", "6.0"),
        ("price_cached", "1.5"),
        ("warm_minutes", "2"),
    ],
)
def test_each_control_changes_a_metric(page, at_defaults, key, value):
    page.query_params[key] = value
    assert metrics(page) != at_defaults


def test_checkpoints_that_weigh_leave_less_room_for_blocks(page):
    page.query_params["fleet_blocks"] = "500"
    first = metrics(page)
    page.query_params["fleet_weight"] = "16"
    assert float(metrics(page)[0].split()[0]) < float(first[0].split()[0])


def test_the_bound_acts_on_the_bounded_ring(page):
    page.query_params["fleet_router"] = "session-bounded"
    first = metrics(page)
    page.query_params["fleet_bound"] = "4.0"
    assert metrics(page) != first


def test_a_decode_stage_shows_its_controls(page):
    assert "decode_ms" not in [slider.key for slider in drawn(page).select_slider]
    page.query_params["fleet_decode"] = "1"
    assert "decode_ms" in [slider.key for slider in drawn(page).select_slider]


def test_goodput_stands_beside_the_refused(page):
    shares = []
    for slo in ("1", "60"):
        page.query_params["fleet_slo"] = slo
        delta = drawn(page).metric[2].delta
        words, share = delta.removesuffix("\u00a0%").split(": ")
        assert words.endswith(f" in {slo} s")
        shares.append(float(share))
    assert shares[0] < shares[1]


def test_the_saved_prefill_is_reused_tokens_times_the_price_difference(page):
    app = drawn(page)
    table = app.dataframe[0].value
    row = table[table["router"] == "session"].iloc[0]
    assert app.metric[4].value == f"${row['reused_tokens'] * 2.7 / 1e6:,.2f}"
    assert app.metric[4].delta == f"of ${row['served_tokens'] * 3 / 1e6:,.2f} without reuse"


def test_the_cached_price_never_exceeds_the_full_one(page):
    page.query_params["price_input"] = "0.2"
    app = drawn(page)
    assert app.number_input(key="price_cached").value == 0.2
    assert app.metric[4].value == "$0.00"


def test_seconds_are_labelled_by_where_they_come_from(page):
    assert "declared model: Kimi K3" in captions(drawn(page))
    page.query_params["cost_peak"] = "1000.0"
    assert "changed by hand" in captions(drawn(page))


def test_constants_follow_the_chosen_preset(page):
    page.query_params["fleet_cost"] = "mooncake-llama3-70b"
    app = drawn(page)
    assert app.number_input(key="cost_peak").value == 8 * 312
    assert "LLaMA3-70B" in captions(app)


def test_three_measurements_replace_the_declared_constants(page, at_defaults):
    page.query_params["cost_from"] = "measured-3"
    for number, (prompt, cached) in enumerate(((8192, 0), (65536, 0), (65536, 49152)), 1):
        seconds = 0.1 + 1e-4 * (prompt - cached) + 2e-10 * (prompt**2 - cached**2)
        page.query_params[f"measured_s_{number}"] = f"{seconds:.6f}"
    app = drawn(page)
    assert "fitted to your 3 measurements" in captions(app)
    fitted = next(frame.value for frame in app.dataframe if "fitted_s" in frame.value)
    assert fitted["error"].abs().max() < 1e-4
    assert metrics(app) != at_defaults


def test_measurements_that_fit_nothing_leave_the_declared_model_in_force(page, at_defaults):
    page.query_params["cost_from"] = "measured-2"
    page.query_params["measured_prompt_2"] = "8192"
    page.run()
    assert not page.exception
    assert "too much alike" in page.warning[0].value
    assert "declared model" in captions(page)
    assert [metric.value for metric in page.metric] == at_defaults


def test_published_routers_join_on_request(page):
    assert "mooncake" not in drawn(page).dataframe[0].value["router"].tolist()
    page.query_params["fleet_more"] = "1"
    page.query_params["fleet_router"] = "mooncake"
    app = drawn(page)
    assert {"mooncake", "dynamo", "sglang", "least-loaded-stale"} <= set(
        app.dataframe[0].value["router"]
    )


def test_token_budgets_replace_weights(page):
    page.query_params["fleet_scene"] = "admission"
    page.query_params["fleet_weigh"] = "total"
    page.query_params["tokens_long"] = "256"
    app = drawn(page)
    keys = [slider.key for slider in (*app.slider, *app.select_slider)]
    assert "tokens_long" in keys
    assert "weight_long" not in keys


def test_uncached_tokens_let_more_in_than_all_tokens(page):
    page.query_params["fleet_scene"] = "admission"
    page.query_params["tokens_short"] = "64"
    page.query_params["tokens_long"] = "256"
    refused = {}
    for weigh in ("total", "uncached"):
        page.query_params["fleet_weigh"] = weigh
        app = drawn(page)
        classes = next(frame.value for frame in app.dataframe if "setting" in frame.value)
        refused[weigh] = classes.set_index(["setting", "cls"])["num_refused"]["separate-reject"]
    assert refused["uncached"].sum() < refused["total"].sum()


def test_an_azure_trace_is_replayed(page):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:{i // 60:02}:{i % 60:02}.0,{500 + i},7" for i in range(200)]
    app = upload(drawn(page), "\n".join(lines).encode(), "azure.csv")
    assert not app.exception
    assert "Requests: 200, none dropped; sessions: 200" in captions(app)


def test_a_csv_of_our_own_is_replayed(page):
    lines = ["arrival_s,input_len,session_id"]
    lines += [f"{i},{1500 + 20 * i},user-{i % 5}" for i in range(100)]
    app = upload(drawn(page), "\n".join(lines).encode(), "own.csv")
    assert not app.exception
    assert "Requests: 100, none dropped; sessions: 5;" in captions(app)


def test_a_stopped_comparison_shows_what_is_done_and_can_go_on(page, monkeypatch):
    from k3core.studies import fleet as studies

    whole = studies.router_run

    def router_run(**params):  # the reader presses the button during the third run
        if params["router"] == "round-robin":
            st.session_state["_steps_fleet_router_run"]["stopped"] = True
        return whole(**params)

    monkeypatch.setattr(studies, "router_run", router_run)
    app = drawn(page)
    assert "3 of 7 runs" in app.warning[0].value
    assert app.dataframe[0].value["router"].tolist() == [
        "session",
        "session-bounded",
        "round-robin",
    ]
    app.button(key="_steps_fleet_router_run_resume").click().run()
    assert not app.exception
    assert not app.warning
    assert len(app.dataframe[0].value) == 7


def test_results_can_be_taken_away(page):
    labels = [button.proto.label for button in drawn(page).get("download_button")]
    assert "Routers and settings (CSV)" in labels
    assert "Every request, session ring (CSV)" in labels


def test_a_decode_stage_says_when_answers_are_complete(page):
    page.query_params["fleet_decode"] = "1"
    first = next(text.value for text in drawn(page).caption if "whole answer" in text.value)
    page.query_params["decode_ms"] = "80"
    assert first not in [text.value for text in drawn(page).caption]


def test_a_measurement_never_has_more_cached_than_prompt(page):
    page.query_params["cost_from"] = "measured-2"
    page.query_params["measured_prompt_1"] = "100"
    page.query_params["measured_cached_1"] = "500"
    app = drawn(page)
    assert app.number_input(key="measured_cached_1").value == 0
