"""Eviction order, forks and fragmentation of page 3, read off the real pool."""

import json

import pytest

from k3core.errors import K3Error
from k3core.figures import paged_cache as figures
from k3core.figures.style import dress
from k3core.studies import paged_cache as studies


def test_the_free_list_at_the_playhead_is_the_pools_own_order():
    run = studies.run_pool()
    view = run.at(13)
    assert len(view.order) == min(view.num_cached + view.num_free, 64)
    assert list(view.order["place_in_line"]) == list(range(len(view.order)))
    free = view.order["kind"] == "free"
    assert free.sum() == view.num_free
    assert free.head(view.num_free).all()


def test_a_request_leaves_from_its_deep_end_with_its_states_last():
    evictions = studies.run_pool().tables["evictions"]
    first = evictions[evictions["owner"] == "A"]
    rows = first[first["kind"] == "mla"]["depth"]
    assert list(rows) == sorted(rows, reverse=True)
    assert first["kind"].iloc[-1] == "kda"
    assert list(first["kind"]) == sorted(first["kind"], reverse=True)


def test_evictions_of_the_run_are_the_next_pages_of_the_order_before():
    run = studies.run_pool()
    evictions = run.tables["evictions"]
    for step, pages in evictions.groupby("step")["page"]:
        before = list(run.at(int(step) - 1).order["page"])
        assert set(pages) <= set(before)
        assert list(pages) == [page for page in before if page in set(pages)]


def test_a_buffer_filled_from_both_ends_strands_free_pages_and_a_pool_does_not():
    stuck = studies.fragments()
    assert stuck.run_pages == 64
    assert stuck.state_pages == 69
    assert stuck.reason == "short_of_bytes"
    assert stuck.free_pages > 5 * stuck.run_pages > stuck.gap_pages * 5
    assert stuck.num_waiting > 0 == stuck.num_waiting_pool


def test_a_full_table_of_states_refuses_although_bytes_are_there():
    stuck = studies.fragments(num_ids=3)
    assert stuck.reason == "short_of_ids"
    assert stuck.gap_pages >= stuck.run_pages
    assert stuck.num_waiting_pool == 0


def test_a_few_requests_fit_in_both_designs():
    fits = studies.fragments(burst=1)
    assert (fits.num_waiting, fits.num_waiting_pool, fits.reason) == (0, 0, "")


def test_both_designs_hold_the_same_rows_and_every_page_once():
    maps = studies.fragments(burst=1).tables["map"]
    for _, part in maps.groupby("design"):
        assert list(part["first_page"]) == [0, *part["stop"][:-1]]
    rows = maps[maps["kind"] == "mla"].groupby("design")["pages"].sum()
    assert rows["two_ends"] == rows["paged"]


def test_a_fork_copies_the_partly_filled_page_only():
    forked = studies.fork(num_tokens=1300)
    assert (forked.num_shared, forked.num_copied, forked.num_wrong) == (2, 1, 0)
    assert (forked.num_pages, forked.num_unshared) == (4, 6)
    written = forked.tables["pages"].query("stage == 'fork_writes' and use == 'copied'")
    assert list(written["request"]) == ["second"]


def test_a_fork_at_a_page_boundary_copies_nothing():
    forked = studies.fork(num_tokens=1024)
    assert (forked.num_shared, forked.num_copied, forked.num_wrong) == (2, 0, 0)


@pytest.mark.parametrize(
    ("study", "bad"),
    [
        (studies.fork, {"num_tokens": 0}),
        (studies.fragments, {"burst": 0}),
        (studies.fragments, {"num_states": 3}),
    ],
)
def test_impossible_sizes_of_a_life_are_named(study, bad):
    with pytest.raises(K3Error, match=next(iter(bad))):
        study(**bad)


def test_pictures_of_a_pages_life_have_words():
    run = studies.run_pool()
    panels = {
        **figures.order_pictures({"order": run.at(13).order, **run.tables}),
        **figures.fork_picture(studies.fork().tables),
        **figures.fragment_pictures(studies.fragments().tables),
    }
    for name, chart in panels.items():
        text = json.dumps(dress(chart, "paged_cache").to_dict())
        assert "paged_cache." not in text.replace("k3core", ""), name
