"""The study of context parallelism: published byte counts, and an exchange that really runs."""

import math

import pandas as pd
import pytest

from k3core.errors import K3Error
from k3core.figures import parallel as figures
from k3core.figures.parallel import ranks
from k3core.studies.engine.growth import growth
from k3core.studies.parallel import TOLERANCE, document_lens, exchange, merge_check


def test_message_of_kimi_k3_does_not_depend_on_the_length():
    messages = {exchange(num_tokens=n).message_bytes for n in (4_096, 65_536, 1_048_576)}
    assert messages == {1_572_864}


@pytest.mark.parametrize(
    ("tp", "row_dtype", "expected"),
    [(8, "bfloat16", 1_365), (1, "bfloat16", 10_923), (8, "float8", 2_731)],
)
def test_message_and_rows_weigh_the_same_at_the_published_length(tp, row_dtype, expected):
    assert round(exchange(tp=tp, row_dtype=row_dtype).equal_tokens) == expected


def test_the_whole_model_weighs_the_same_where_its_layers_say():
    """Kimi K3: 69 KDA and 24 MLA layers, 1365.33 * 69 / 24 = 3925.33."""
    study = exchange(tp=8, row_dtype="bfloat16")
    assert study.equal_tokens_of_model == pytest.approx(3_925.33, abs=0.01)


def test_the_crossing_is_that_of_the_engine_page_in_the_same_format():
    there = growth(tp=8, mla_dtype="float8", world=8)
    here = exchange(tp=8, row_dtype="float8", ranks=8)
    assert there.message_equal_tokens == math.ceil(here.equal_tokens_of_model) == 7_851


def test_rows_grow_with_the_tokens_of_a_rank():
    study = exchange(num_tokens=65_536, ranks=4)
    assert study.rows_sent_bytes == 16_384 * 1_152
    assert exchange(num_tokens=131_072, ranks=4).rows_sent_bytes == 2 * study.rows_sent_bytes


def test_convolution_halo_of_kimi_k3():
    assert exchange(tp=8).halo_bytes == 27_648
    assert exchange(tp=1).halo_bytes == 221_184


def test_one_rank_sends_nothing_and_takes_no_time():
    study = exchange(ranks=1)
    assert (study.message_bytes, study.rows_sent_bytes, study.halo_bytes) == (0, 0, 0)
    assert (study.kda_seconds, study.mla_seconds, study.num_gathered) == (0, 0, 0)
    assert (study.tables["squares"]["bytes"] == 0).all()


def test_ruler_covers_the_text_without_gaps():
    ruler = exchange(num_tokens=65_536, ranks=7).tables["ruler"]
    assert ruler["num_tokens"].sum() == 65_536
    assert (ruler["start"].iloc[1:].to_numpy() == ruler["end"].iloc[:-1].to_numpy()).all()


def test_bandwidth_and_latency_both_enter_the_time():
    base = exchange(bandwidth_gb=50, latency_us=10)
    assert base.kda_seconds == pytest.approx(3 * (10e-6 + 1_572_864 / 50e9))
    assert exchange(bandwidth_gb=100).kda_seconds < base.kda_seconds
    assert exchange(latency_us=100).mla_seconds == pytest.approx(base.mla_seconds + 3 * 90e-6)


def test_without_documents_every_earlier_message_is_used():
    study = exchange(ranks=6)
    assert (study.num_used, study.num_gathered) == (15, 30)
    pairs = study.tables["pairs"]
    assert set(pairs["status"][pairs["sender"] == 5]) == {"later", "own"}


def test_document_borders_take_messages_out_of_use():
    whole, cut = exchange(ranks=6), exchange(ranks=6, documents=4)
    assert cut.num_used < whole.num_used
    assert "other_document" in set(cut.tables["pairs"]["status"])
    assert len(cut.tables["cuts"]) == 3


def test_the_seed_moves_document_borders():
    assert document_lens(1000, 3, seed=0) != document_lens(1000, 3, seed=1)
    assert sum(document_lens(1000, 3, seed=0)) == 1000


@pytest.mark.parametrize("count", [0, 33])
def test_a_bad_number_of_documents_is_refused(count):
    with pytest.raises(K3Error, match=f"num_documents={count}"):
        document_lens(32, count, seed=0)


@pytest.mark.parametrize("options", [{}, {"ranks": 7, "documents": 3, "dk": 8, "toy_len": 48}])
def test_all_ranks_together_equal_one_rank(options):
    study = merge_check(**options)
    assert study.output_error < TOLERANCE
    assert study.state_error < TOLERANCE
    assert study.scan_gap < TOLERANCE


def test_measured_bytes_are_those_of_the_formula_at_every_length():
    measured = merge_check(heads=3, dk=8, dv=4).tables["measured"]
    assert set(measured["sent_bytes"]) == {3 * 8 * (8 + 4) * 8}
    assert measured["num_tokens"].is_unique


def test_a_coarser_chain_makes_a_larger_error():
    errors = merge_check(ranks=4).tables["error_by_rank"]
    worst = errors.groupby("chain_dtype")["error"].max()
    assert worst["float64"] < 1e-12 < 1e-8 < worst["float32"] < 1e-5 < worst["bfloat16"] < 0.1


def test_toy_states_carry_over_from_rank_to_rank():
    """A state that has forgotten everything would hide a wrong merge."""
    errors = merge_check(ranks=4).tables["error_by_rank"]
    last = errors[(errors["chain_dtype"] == "bfloat16") & (errors["rank"] == 3)]
    assert last["error"].item() > 1e-4


def test_tree_needs_fewer_merges_in_a_row_than_the_chain():
    depth = (
        merge_check(toy_len=32)
        .tables["depth"]
        .pivot(index="ranks", columns="scan", values="merges")
    )
    assert depth.loc[16, "chain"] == 15
    assert depth.loc[16, "tree"] == 5
    assert (depth["tree"] <= depth["chain"]).all()


def all_charts():
    tables = {**exchange(documents=2).tables, **merge_check(documents=2).tables}
    groups = (
        {"main": figures.main_picture(tables), "crossing": figures.crossing_picture(tables)},
        figures.partner_pictures(tables),
        figures.merge_pictures(tables),
        figures.time_pictures(tables),
        figures.length_pictures(tables),
    )
    return {name: chart for group in groups for name, chart in group.items()}


@pytest.mark.parametrize(("name", "chart"), list(all_charts().items()))
def test_every_chart_compiles(name, chart):
    spec = chart.to_dict()
    assert spec.get("layer") or spec.get("mark")
    assert all(len(rows) > 0 for rows in spec["datasets"].values())


@pytest.mark.parametrize(("world", "num_tokens"), [(4, 65_536), (16, 1_048_576), (11, 524_288)])
def test_squares_never_meet_on_a_desktop_page(world, num_tokens):
    tables = exchange(tp=1, ranks=world, num_tokens=num_tokens).tables
    cells = ranks._cells(tables["squares"], world)
    for _, row in cells.groupby("kind"):
        gap = row["every"] * ranks._RULER_WIDTH / world
        assert (row["area"] ** 0.5 < gap).all()
        assert row["has_text"].any()


def test_area_of_a_square_is_in_proportion_to_its_bytes():
    tables = exchange(tp=8, num_tokens=65_536, ranks=4).tables
    spec = figures.main_picture(tables).to_dict()
    rows = next(
        pd.DataFrame(rows) for rows in spec["datasets"].values() if rows and "area" in rows[0]
    )
    per_byte = rows["area"] / rows["bytes"]
    assert per_byte.max() == pytest.approx(per_byte.min())
