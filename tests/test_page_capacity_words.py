"""What the capacity page claims: one pool, rollback and drafts are worded for their case."""

import pytest

from tests.capacity_page import open_page, shown, texts, values


def test_one_pool_has_words_of_its_own():
    words = " ".join(texts(open_page(pool_rule="blocks")))
    assert "In one pool the demands add up, and 116 requests fit" in words
    for claim in ("lowest roof", "the knee", "both pools", "both roofs"):
        assert claim not in words, claim
    assert "The lowest roof decides" in " ".join(texts(open_page()))


def test_longest_sequence_shows_in_the_metrics_of_two_pools():
    deltas = [shown(open_page(context_len=raw))[0][1][2] for raw in ("131072", "1048576")]
    assert deltas == ["longest: 1.96 GiB, 8 fit", "longest: 13.8 GiB, 1 fit"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "chosen scheme adds 10.7 MiB per request; snapshots in 1 + k slots would add 408.9"),
        (
            {"draft_len": "2", "rollback_scheme": "snapshots-align"},
            "chosen snapshots add 165.6 MiB per request; records would add 3.09 MiB (low-rank",
        ),
        ({"draft_len": "0"}, "7 of 9 schemes add nothing, the chosen one adds 0 B"),
        ({"pool_rule": "blocks"}, "take 30 state blocks and 2 + k slots take 27, records take 6"),
    ],
)
def test_rollback_is_worded_for_its_case(query, words):
    assert words in " ".join(texts(open_page(**query)))


@pytest.mark.parametrize(
    ("query", "words", "gain"),
    [
        ({}, "at 49 requests in flight it loses: 0.94x", "0.94x"),
        ({"budget_gib": "8"}, "pays at 13 requests in flight: 1.18x", "1.18x"),
        ({"budget_gib": "200"}, "was not measured", "-"),
        ({"draft_len": "0"}, "Without drafts a step brings one token, and 51 requests", "-"),
    ],
)
def test_drafts_are_judged_by_the_measured_curve(query, words, gain):
    app = open_page(capacity_scene="drafts", **query)
    assert words in " ".join(texts(app))
    assert values(app)[1] == gain


def test_a_moved_acceptance_is_no_longer_called_published():
    for query, published in (({}, True), ({"acceptance_len": "3.85"}, False)):
        label = shown(open_page(capacity_scene="drafts", **query))[0][0][0]
        assert ("published" in label) == published
