"""Published values against the planner: every row, its verdict, and what a difference does."""

import dataclasses
import json

import pytest

from k3core.__main__ import main
from k3core.capacity import published
from k3core.capacity.openings import PlanOpening
from k3core.capacity.planner import Deployment, plan
from k3core.capacity.published import RECORDS, SUBJECTS, Agreement, Published, subject
from k3core.capacity.published_pools import recover_gain

# Rows of the fact base, and how many values each states.
ROWS = {
    1: 2, 2: 2, 3: 1, 5: 1, 6: 1, 7: 3, 8: 2, 11: 1, 12: 1, 14: 1, 15: 3, 19: 2, 20: 2, 21: 3,
    22: 2, 23: 6, 24: 2, 25: 1, 26: 2, 27: 2, 29: 1, 30: 1, 31: 2, 32: 1, 33: 2, 34: 1, 37: 2,
    39: 1, 40: 3, 41: 1, 42: 4, 43: 2, 44: 2, 45: 1, 46: 1, 47: 1, 48: 1, 49: 2, 50: 4, 51: 4,
    52: 2, 55: 2,
}  # fmt: skip
WRONG = {"31b", "46", "47", "48", "67c"}
NOT_UNIQUE = {"6", "23a", "23b", "23c", "23d", "23e", "23f", "27a", "27b", "49a", "49b"}


def number(record: Published) -> int:
    return int(record.code.rstrip("abcdef"))


def test_every_row_of_the_fact_base_is_there_with_all_its_values():
    counts: dict[int, int] = {}
    for record in RECORDS:
        counts[number(record)] = counts.get(number(record), 0) + 1
    assert {row: counts.get(row, 0) for row in ROWS} == ROWS


def test_no_difference_is_unexplained():
    assert [record.code for record in RECORDS if record.unexplained] == []


def test_verdicts_are_the_expected_ones():
    found = {record.code: record.verdict for record in RECORDS}
    assert {c for c, v in found.items() if v is Agreement.PUBLISHED_WRONG} == WRONG
    assert {c for c, v in found.items() if v is Agreement.NOT_UNIQUE} == NOT_UNIQUE
    exact = sum(v is Agreement.EXACT for v in found.values())
    assert exact >= 65


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.code)
def test_record_names_source_and_quantity_and_explains_every_difference(record):
    assert record.source
    assert record.what
    if record.verdict in (Agreement.NOT_UNIQUE, Agreement.PUBLISHED_WRONG):
        assert len(record.reason) > 20


def test_codes_are_distinct_and_every_record_has_a_subject():
    codes = [record.code for record in RECORDS]
    assert len(set(codes)) == len(codes)
    assert {subject(record) for record in RECORDS} == set(SUBJECTS)


def test_inferred_inputs_are_marked():
    text = {record.code: record.inputs_text for record in RECORDS}
    assert "max bs 32 [inferred]" in text["6"]
    assert "[inferred]" not in text["1a"]


def _record(**changes) -> Published:
    row = {
        "code": "1", "source": "vLLM #1", "what": "x", "published": 10.0, "unit": "B",
        "opening": PlanOpening(Deployment()), "read": lambda view: 10.0,
    }  # fmt: skip
    return Published(**(row | changes))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Agreement.EXACT),
        ({"read": lambda view: 11.0}, Agreement.UNEXPLAINED),
        ({"read": lambda view: 9.0}, Agreement.UNEXPLAINED),
        ({"published": 8.68, "read": lambda view: 8.6792, "digits": 2}, Agreement.ROUNDED),
        ({"published": 8.68, "read": lambda view: 8.692, "digits": 2}, Agreement.UNEXPLAINED),
        ({"published": 44.6, "read": lambda view: 44.66, "digits": 1}, Agreement.ROUNDED),
        ({"published": 82, "read": lambda view: 83.9, "approximate": 0.03}, Agreement.ROUNDED),
        ({"published": 82, "read": lambda view: 85.0, "approximate": 0.03}, Agreement.UNEXPLAINED),
        ({"not_unique": "fitted"}, Agreement.NOT_UNIQUE),
        ({"not_unique": "fitted", "read": lambda view: 12.0}, Agreement.UNEXPLAINED),
        ({"wrong": "unit", "read": lambda view: 20.0}, Agreement.PUBLISHED_WRONG),
        ({"wrong": "unit"}, Agreement.UNEXPLAINED),
    ],
)
def test_verdict_follows_from_the_values(changes, verdict):
    assert _record(**changes).verdict is verdict


def test_a_thread_has_a_link_and_a_log_has_none():
    assert _record().link == "https://github.com/vllm-project/vllm/issues/1"
    assert _record(source="SGLang boot log, K3 TP8").link == ""
    assert _record(source="Atlas #533").link == ""


@pytest.mark.parametrize(
    "record", [r for r in RECORDS if r.deployment is not None], ids=lambda r: r.code
)
def test_inputs_of_a_record_open_the_planner(record):
    assert plan(record.deployment).as_dict()["state_bytes_per_layer"] > 0


def test_recover_gain_depends_on_the_unpublished_pool():
    """vLLM #51855: +10.97 % only in a window of 1.5 MiB around 46.476 GiB."""
    assert round(recover_gain(46.4755, 262_144, aligned=True), 2) == 10.97
    assert all(recover_gain(gib, 262_144, aligned=True) < 10.95 for gib in (46.47, 46.48))


def test_command_prints_every_record_and_succeeds(capsys):
    assert main(["published"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{record.code} " in text for record in RECORDS)
    assert f"{len(RECORDS)} values" in text


def test_command_fails_on_an_unexplained_difference(monkeypatch, capsys):
    bad = dataclasses.replace(RECORDS[0], published=RECORDS[0].published + 1)
    monkeypatch.setattr(published, "RECORDS", (bad, *RECORDS[1:]))
    assert main(["published"]) == 1
    assert "UNEXPLAINED" in capsys.readouterr().out


def test_command_prints_json(capsys):
    assert main(["published", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"id", "source", "published", "computed", "verdict", "inputs"} <= set(rows[0])
    assert len(rows) == len(RECORDS)


def test_opened_rows_reproduce_their_own_value():
    """The planner opened with a row's inputs shows the published numbers."""
    by_code = {record.code: plan(record.deployment) for record in RECORDS if record.deployment}
    recipe = by_code["51c"].as_dict()
    assert recipe["printed_tokens"] == 1_887_436
    assert (recipe["blocks_per_request"], recipe["num_blocks"]) == (55, 1584)
    assert by_code["21a"].as_dict()["printed_tokens_2025"] == 75_840
    assert by_code["56e"].pool.state_roof == 51
    assert by_code["1a"].memory.kda_bytes_per_layer == 814_080
    assert by_code["42d"].blocks.quantum == 512
