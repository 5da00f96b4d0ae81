"""The studies of page 3 run the real pool at production sizes; the page reacts to every control."""

import pandas as pd
import pytest

from k3core.capacity.presets import PRESETS
from k3core.figures import paged_cache as figures
from k3core.studies.paged_cache import (
    lengths,
    most_layers,
    page_choices,
    pages_for,
    paging,
    pool_choices,
    request_sizes,
    run_pool,
    stale_bytes,
    store,
    usual_pool,
)

# sizes


def test_a_k3_page_of_512_tokens_in_fp8_is_288_kib():
    sizes = request_sizes()
    assert (sizes.row_bytes, sizes.page_bytes, sizes.kda_bytes) == (576, 294_912, 814_080)


def test_a_k3_state_fits_one_page_of_1536_tokens():
    """vLLM: 1,536 tokens per page for K3 at TP8 in fp8."""
    assert store(tokens_per_page=1536).num_pages == 1
    assert store(tokens_per_page=1408).num_pages == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"heads": 0}, "heads=0"),
        ({"dk": True}, "dk=True"),
        ({"tokens_per_page": -1}, "tokens_per_page=-1"),
        ({"state_dtype": "int8"}, "state_dtype='int8' is unknown"),
        ({"model": "gpt"}, "model='gpt' is unknown"),
    ],
)
def test_bad_sizes_are_refused_by_name(params, message):
    with pytest.raises(ValueError, match=message):
        request_sizes(**params)


# the run


def stays_of(run, **columns) -> pd.DataFrame:
    stays = run.tables["stays"]
    for name, value in columns.items():
        stays = stays[stays[name] == value]
    return stays


def test_a_request_pays_its_states_at_once_and_its_rows_step_by_step():
    run = run_pool(num_requests=1)
    states = stays_of(run, place="owned", kind="kda")
    assert len(states) == run.slab_pages == 9
    assert set(states["start"]) == {0}
    rows = stays_of(run, place="owned", kind="mla").sort_values("start")
    assert rows["start"].tolist() == list(range(8))


def test_larger_pages_make_a_smaller_slab_and_longer_stairs():
    run = run_pool(num_requests=1, tokens_per_page=1024, pool_pages=24)
    assert run.slab_pages == 6
    assert stays_of(run, place="owned", kind="mla")["start"].tolist() == [0, 2, 4, 6]


def test_everything_written_reads_back():
    run = run_pool()
    assert run.num_wrong == 0
    tokens = run.tables["requests"]["tokens"].sum()
    assert run.bytes_written == tokens * 576 + 6 * 3 * 2 * 814_080


@pytest.mark.parametrize("keep", ["cached", "dropped"])
def test_every_page_has_one_place_at_every_step(keep):
    run = run_pool(keep=keep, pool_pages=32)
    steps = run.tables["by_step"]
    assert (steps[["mla", "kda", "cached", "free"]].sum(axis=1) == 32).all()
    stays = run.tables["stays"]
    for step in steps["step"]:
        here = stays[(stays["start"] <= step) & (stays["stop"] > step)]
        assert here["page"].is_unique
        assert (here["place"] == "owned").sum() == steps["mla"][step] + steps["kda"][step]
        assert (here["place"] == "cached").sum() == steps["cached"][step]


def test_dropped_pages_are_neither_cached_nor_evicted():
    run = run_pool(keep="dropped")
    assert run.num_evicted == 0
    assert stays_of(run, place="cached").empty
    assert run.at(run.num_steps - 1).num_free == run.num_pages


def test_cached_pages_stay_until_somebody_needs_them():
    run = run_pool()
    assert run.num_evicted > 0
    last = run.at(run.num_steps - 1)
    assert (last.num_cached, last.num_mla + last.num_kda) == (48, 0)


def test_requests_wait_until_their_pages_fit():
    run = run_pool(pool_pages=24)
    requests = run.tables["requests"]
    assert (requests["start"] > requests["arrival"]).any()
    assert requests["start"].is_monotonic_increasing
    assert run.num_wrong == 0


def test_scrubbed_pages_hand_over_no_byte():
    run = run_pool()
    assert run.num_retyped > 0
    assert (run.stale_bytes, run.nan_values) == (0, 0)
    assert "leaked" not in set(run.tables["marks"]["mark"])


def test_without_scrubbing_old_bytes_reach_the_next_owner():
    run = run_pool(scrub=False)
    assert run.stale_bytes > 1_000_000
    assert run.nan_values > 0
    assert run.num_wrong == 0  # nobody reads what it did not write


def test_a_request_that_cannot_fit_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="pool_pages=16 cannot hold one request: it needs 17"):
        run_pool(pool_pages=16)


def test_a_buffer_too_large_to_show_is_refused():
    with pytest.raises(ValueError, match="256 MiB"):
        run_pool(pool_pages=256, tokens_per_page=1536, mla_dtype="float32")


@pytest.mark.parametrize(
    "params",
    [
        {"num_requests": 0},
        {"num_requests": 27},
        {"seq_len": -1},
        {"kda_layers": 0},
        {"pool_pages": True},
        {"keep": "burned"},
    ],
)
def test_bad_run_parameters_are_refused_by_name(params):
    (name,) = params
    with pytest.raises(ValueError, match=name):
        run_pool(**params)


def test_the_same_run_twice_is_the_same():
    left, right = run_pool(), run_pool()
    for name, table in left.tables.items():
        pd.testing.assert_frame_equal(table, right.tables[name])


# lengths


def test_k3_weighs_the_same_at_4064_whole_tokens_in_bytes_and_4097_in_pages():
    study = lengths()
    assert study.tables["break_even"]["length"].tolist() == pytest.approx([4063.33, 4097], abs=0.01)
    assert study.tables["break_even"]["text"].tolist() == ["4,064", "4,097"]
    by_length = study.tables["by_length"].query("scope == 'request'")
    pages = by_length.pivot(index="length", columns="kind", values="pages")
    assert pages[pages["mla"] >= pages["kda"]].index[0] == 4097


@pytest.mark.parametrize("tokens_per_page", [128, 512, 768])
def test_mla_pages_are_the_ceiling_of_the_tokens(tokens_per_page):
    table = lengths(tokens_per_page=tokens_per_page, pool_pages=128).tables["by_length"]
    layer = table[(table["scope"] == "layer") & (table["kind"] == "mla")]
    assert (layer["pages"] == -(-layer["length"] // tokens_per_page)).all()
    assert layer["length"].max() == 2**20


def test_kda_pages_do_not_know_the_length():
    table = lengths().tables["by_length"]
    assert table[table["kind"] == "kda"].groupby("scope")["pages"].unique().to_dict() == {
        "layer": [3],
        "request": [207],
    }


def test_the_pool_is_empty_before_and_after_a_request():
    phases = lengths().tables["phases"]
    counts = phases.groupby(["phase", "kind"]).size().to_dict()
    assert counts == {
        ("initial", "free"): 48,
        ("allocated", "kda"): 9,
        ("allocated", "mla"): 8,
        ("allocated", "free"): 31,
        ("released", "free"): 48,
    }
    assert pages_for(request_sizes(), 3, 4096) == 17


# storage


def test_600_tokens_fill_512_and_88():
    study = paging()
    assert study.tables["fill"]["tokens"].tolist() == [512, 88]
    assert study.num_wrong_rows == 0


@pytest.mark.parametrize("to_tp", [1, 2, 3, 8, 16])
def test_heads_move_between_parallel_degrees_without_loss(to_tp):
    study = paging(to_tp=to_tp)
    assert (study.num_different, study.max_difference) == (0, 0.0)
    to = study.tables["heads"].query("side == 'to'")
    assert len(to) == to_tp
    assert to["stop"].max() == 96


def test_ranks_that_do_not_divide_the_heads_are_refused():
    with pytest.raises(ValueError, match="to_tp=5 does not divide the 96 heads"):
        paging(to_tp=5)


def test_a_k3_state_takes_three_small_pages_and_pads_the_last():
    study = store()
    assert (study.num_pages, study.num_bytes, study.padding_bytes) == (3, 814_080, 70_656)
    assert study.num_different == study.padding_not_zero == 0
    parts = study.tables["pages"].groupby("part")["bytes"].sum().to_dict()
    assert parts == {"state": 786_432, "window": 27_648, "padding": 70_656}


@pytest.mark.parametrize("state_dtype", ["float64", "bfloat16", "float8"])
def test_a_state_comes_back_in_every_format(state_dtype):
    assert store(state_dtype=state_dtype, dk=64, dv=32).num_different == 0
    assert (store().tables["formats"]["different"] == 0).all()


# stale bytes


def test_a_scrubbed_page_is_clean_in_both_directions():
    study = stale_bytes()
    for direction in ("state_to_rows", "rows_to_state"):
        for column in ("stale_bytes", "nan_values", "wrong_values"):
            assert study.found(direction, "scrubbed", column) == 0


def test_zero_times_nan_spoils_the_attention_of_an_unscrubbed_page():
    study = stale_bytes()
    assert study.found("state_to_rows", "unscrubbed", "nan_values") > 0
    assert study.found("state_to_rows", "unscrubbed", "wrong_values") > 100
    assert study.found("rows_to_state", "unscrubbed", "wrong_values") > 100_000
    rows = study.tables["rows"]
    assert (rows[rows["row"] < 3]["status"] == "written").all()


# figures


@pytest.mark.parametrize(
    ("figure", "study", "panels"),
    [
        (figures.fig_page_pool, lengths, ["request", "layer", "phases"]),
        (figures.fig_mla_paging, paging, ["fill", "roundtrip", "heads"]),
        (figures.fig_kda_store, store, ["flow_store", "flow_load", "pages", "formats"]),
        (figures.stale_pictures, stale_bytes, ["stale_rows", "stale_readers"]),
    ],
)
def test_a_figure_draws_its_panels_from_the_tables_alone(figure, study, panels):
    charts = figure(study().tables)
    assert list(charts) == panels
    for chart in charts.values():
        assert chart.to_dict()["title"].startswith("paged_cache.panel.")


def test_the_main_picture_has_one_bar_per_stay():
    run = run_pool()
    chart = figures.main_picture({**run.tables, "playhead": run.at(5).playhead}).to_dict()
    stays = run.tables["stays"]
    assert any(
        len(rows) == len(stays) and "place" in rows[0] for rows in chart["datasets"].values()
    )


@pytest.mark.parametrize("model", PRESETS)
@pytest.mark.parametrize("mla_dtype", ["float8", "float32"])
@pytest.mark.parametrize("seq_len", [512, 16384])
def test_what_is_offered_holds_the_longest_request(model, mla_dtype, seq_len):
    """At one rank with the most heads, the largest state there is."""
    largest = {"model": model, "tp": 1, "state_dtype": "float64", "heads": 128}
    sizes = request_sizes(**largest, mla_dtype=mla_dtype)
    layers = most_layers(sizes, seq_len)
    pages = page_choices(sizes, layers, seq_len)
    assert pages
    for tokens in pages:
        sizes = request_sizes(**largest, mla_dtype=mla_dtype, tokens_per_page=tokens)
        pools = pool_choices(sizes, layers, seq_len)
        assert usual_pool(sizes, layers, seq_len) in pools
        assert pools[0] >= pages_for(sizes, layers, seq_len)
        sizes.require_buffer(pools[-1])
