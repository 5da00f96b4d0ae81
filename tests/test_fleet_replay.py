"""Stored traces, and what ``replay`` reports of them."""

import json
import math

import pytest

from k3core.errors import K3Error, TraceError
from k3core.studies import fleet as studies


def mooncake(*rows):
    lines = (
        {"timestamp": time, "input_length": length, "output_length": 1, "hash_ids": list(ids)}
        for time, length, ids in rows
    )
    return "\n".join(map(json.dumps, lines)).encode()


TICKS = mooncake(*[(3000 * (i // 6), 700, (0, i + 1)) for i in range(120)])


# ---- traces and replay -------------------------------------------------------------------------


def test_a_stored_trace_is_counted_whole():
    stored = studies.store_trace(TICKS)
    assert (stored.num_requests, stored.num_sessions) == (120, 120)
    assert stored == studies.stored_trace(stored.key)


def test_an_upload_is_bounded_and_its_bad_line_named():
    with pytest.raises(TraceError, match="line 2"):
        studies.store_trace(TICKS.split(b"\n")[0] + b"\nnonsense")
    with pytest.raises(TraceError, match="larger than 100 bytes"):
        studies.store_trace(TICKS + b"\n", max_bytes=100)


def test_only_the_last_traces_are_kept():
    first = studies.store_trace(mooncake((0, 10, (1,))))
    for number in range(4):
        studies.store_trace(mooncake((0, 11 + number, (1,))))
    with pytest.raises(TraceError, match="upload it again"):
        studies.stored_trace(first.key)


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(TICKS)
    return path


def test_replay_reports_every_promised_key(trace_file):
    facts = studies.replay_trace(trace_file, clusters=2, capacity_blocks=50).as_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    for key in (
        "num_requests", "num_served", "num_rejected", "total_blocks", "hit_blocks",
        "total_tokens", "hit_tokens", "reused_tokens", "p95_ttft_s", "peak_to_mean_load",
        "requests_per_s", "class_threshold_tokens", "load_unit",
    ):  # fmt: skip
        assert key in facts
    assert (facts["num_requests"], facts["num_served"], facts["num_rejected"]) == (120, 120, 0)
    assert (facts["total_blocks"], facts["total_tokens"]) == (240, 84_000)
    assert facts["p95_ttft_s"]["long"] is None


def test_replay_counts_hits_by_hand(tmp_path):
    """Block 0 is cached from the first request on; the third request finds its checkpoint."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(mooncake(*[(9000 * i, 700, (0, i + 1)) for i in range(4)]))
    facts = studies.replay_trace(path, clusters=1, capacity_blocks=10).as_dict()
    assert (facts["hit_blocks"], facts["hit_tokens"]) == (3, 3 * 512)
    assert facts["reused_tokens"] == 3 * 512  # each leaves one at (700-1)//512 = 1 block
    path.write_bytes(mooncake(*[(9000 * i, 1024, (0, 1)) for i in range(2)]))
    facts = studies.replay_trace(path, clusters=1, capacity_blocks=10).as_dict()
    assert (facts["hit_blocks"], facts["hit_tokens"], facts["reused_tokens"]) == (2, 1024, 512)


def test_replay_is_the_same_but_for_the_clock(trace_file):
    facts = [studies.replay_trace(trace_file, router="least-loaded").as_dict() for _ in range(2)]
    for run in facts:
        del run["requests_per_s"]
    assert json.dumps(facts[0]) == json.dumps(facts[1])


def test_replay_text_states_threshold_unit_and_model(trace_file):
    text = "\n".join(studies.render_text(studies.replay_trace(trace_file)))
    for words in (
        "120 served, 0 rejected", "16,384", "prefill seconds of a cluster", "Kimi K3", "requests/s",
        "routers compare pending prompt tokens", "US dollars", "blocks of 512 tokens",
    ):  # fmt: skip
        assert words in text


# ---- scenarios of wrong values -------------------------------------------------------------------

WRONG = (None, "a", 1.5, True, math.inf, math.nan, -1, [1], 2**70, (), ("a", 1), ((1, "a"),))


SAID = {
    "generate": "generat",
    "decode_ms": "seconds_per_token",
    "class_weights": "weights",
}


@pytest.mark.parametrize("name", studies.Scenario.__dataclass_fields__)
def test_a_wrong_value_in_a_scenario_is_refused_by_name(name):
    """That of its field, or of the argument of the fleet that it becomes."""
    small = {"generate": "sessions", "num_requests": 5, "admission": "queue", "clusters": 2}
    refusals = []
    for value in WRONG:
        try:
            studies.Scenario(**{**small, name: value}).run()
        except K3Error as error:
            refusals.append(str(error))
    assert len(refusals) >= len(WRONG) // 2
    for text in refusals:
        assert name in text or SAID[name] in text


def test_a_scenario_needs_requests():
    with pytest.raises(K3Error, match="neither a trace nor a kind"):
        studies.Scenario().run()
