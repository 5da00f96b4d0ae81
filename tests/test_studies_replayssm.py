"""The ring studies run the rings, see their faults, and count production bytes."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core import decode
from k3core.decode import snapshot_cost_ratio
from k3core.errors import K3Error
from k3core.figures import replayssm as figures
from k3core.studies.replayssm import (
    OPERATION_LISTS,
    PATTERNS,
    CursorOnlyRing,
    accepted_counts,
    flush,
    operations,
    raw_inputs,
    rings,
    snapshots,
)

SMALL = {"heads": 1, "dk": 4, "dv": 4}


# --- operations and snapshots -------------------------------------------------------------------


def test_refill_begins_with_full_pop_push():
    words = operations("refill", capacity=3, num_pushes=6)
    assert words == ("push", "push", "push", "pop", "push", "push", "pop", "push")


def test_drain_fills_and_empties_by_turns():
    assert operations("drain", 2, 3) == ("push", "push", "pop", "pop", "push")


@given(
    ops=st.sampled_from(OPERATION_LISTS),
    capacity=st.integers(1, 8),
    num_pushes=st.integers(1, 16),
)
def test_every_list_pushes_as_often_as_asked_and_never_pops_an_empty_ring(
    ops, capacity, num_pushes
):
    words = operations(ops, capacity, num_pushes)
    assert words.count("push") == num_pushes
    held = 0
    for word in words:
        held = min(held + 1, capacity) if word == "push" else held - 1
        assert held >= 0


@pytest.mark.parametrize("ops", OPERATION_LISTS)
@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_the_oldest_snapshot_always_leaves_first(ops, capacity):
    study = snapshots(capacity, 9, ops, **SMALL)
    stays = study.tables["stays"]
    gone = stays[stays["end"] != "held"].sort_values("stop")
    assert gone["snapshot"].is_monotonic_increasing
    assert study.tables["pops"]["oldest"].is_monotonic_increasing


def test_stays_in_one_slot_never_overlap():
    for _, slot in snapshots().tables["stays"].groupby("slot"):
        ordered = slot.sort_values("start")
        assert (ordered["start"].iloc[1:].values >= ordered["stop"].iloc[:-1].values).all()


@pytest.mark.parametrize("head", range(16))
def test_snapshots_held_at_the_play_head_are_those_of_a_queue(head):
    study = snapshots()
    queue, number = [], 0
    for word in operations("refill", 4, 11)[:head]:
        if word == "push":
            queue = [*queue, number][-4:]
            number += 1
        else:
            queue = queue[1:]
    assert study.held_at(head) == tuple(queue)


def test_without_a_count_full_pop_push_pop_skips_the_oldest():
    pops = snapshots(capacity=4, num_pushes=11, ops="refill").tables["pops"]
    assert pops["oldest"].tolist()[:2] == [0, 2]
    assert pops["cursor_only"].tolist()[:2] == [0.0, 3.0]
    assert pops["verdict"].tolist()[:2] == ["right", "wrong_snapshot"]


def test_a_cursor_alone_is_right_while_the_ring_stays_full():
    assert snapshots(capacity=4, num_pushes=11, ops="never_pop").num_wrong_pops == 0


def test_a_cursor_alone_reads_an_empty_slot_before_the_ring_is_full():
    pops = snapshots(capacity=4, num_pushes=2, ops="never_pop").tables["pops"]
    assert pops["verdict"].tolist() == ["empty_slot", "empty_slot"]


def test_the_faulty_ring_overwrites_although_a_slot_is_empty():
    stays = snapshots(capacity=4, num_pushes=5, ops="refill").tables["cursor_stays"]
    lost = stays[stays["snapshot"] == 1].iloc[0]
    assert (lost["end"], lost["slot"]) == ("overwritten", 1)
    assert CursorOnlyRing(2).pop() is None


def test_a_copy_keeps_its_snapshots():
    copies = snapshots().tables["copies"].groupby("ring")["snapshot"].apply(list)
    assert copies["copy_after"] == copies["source_before"] == [7, 8, 9, 10]
    assert copies["source_after"] == [8, 9, 10, 11]


# --- raw inputs ---------------------------------------------------------------------------------


def test_the_window_grows_to_its_capacity_and_then_loses_the_oldest():
    timing = raw_inputs(capacity=4, num_pushes=7, **SMALL).tables["timing"]
    assert timing["held"].tolist() == [1, 2, 3, 4, 4, 4, 4]
    assert timing["lost"].tolist() == [0, 0, 0, 0, 1, 2, 3]
    assert timing["status"].tolist()[2:5] == ["filling", "full", "overwriting"]


def test_window_rows_are_drafts_in_the_order_of_pushing():
    table = raw_inputs(capacity=3, num_pushes=5, **SMALL).tables["layout"]
    assert len(table) == 3 * 2 * 3
    assert table.groupby("draft")["value"].unique().apply(list).tolist() == [[2.0], [3.0], [4.0]]


@pytest.mark.parametrize("input_dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("state_dtype", ["bfloat16", "float32", "float64"])
def test_streamed_and_batch_built_inputs_replay_to_the_same_bits(input_dtype, state_dtype):
    study = raw_inputs(5, 8, input_dtype=input_dtype, state_dtype=state_dtype, **SMALL)
    assert study.elements_different == 0
    assert len(study.tables["replay"]) == 4 * 6


def test_the_ring_agrees_with_the_oracle_to_the_rounding_of_its_format():
    def error(dtype: str) -> float:
        return raw_inputs(6, 6, input_dtype=dtype, state_dtype=dtype, **SMALL).oracle_error

    assert 0 < error("float64") < 1e-14
    assert 1e-9 < error("float32") < 1e-6
    assert 1e-4 < error("bfloat16") < 1e-1


def test_bytes_are_measured_and_their_ratio_is_the_formula_in_one_format():
    study = raw_inputs(heads=2, dk=8, dv=8, input_dtype="float64", state_dtype="float64")
    assert study.byte_ratio == pytest.approx(snapshot_cost_ratio(2, 8, 8))
    assert study.element_ratio == pytest.approx(1.94, abs=0.005)
    table = study.tables["ring_bytes"].pivot_table(index="draft_len", columns="kind")["bytes"]
    assert (table["snapshots"] / table.index == 2 * 8 * 8 * 8).all()
    assert (table["inputs"] / table.index == 2 * (3 * 8 + 8 + 1) * 8).all()


def test_shapes_of_the_window_are_the_chosen_ones():
    shapes = raw_inputs(3, 5, heads=2, dk=8, dv=4).tables["shapes"].set_index("tensor")["shape"]
    assert shapes["q"] == "3 × 1 × 2 × 8"
    assert shapes["v"] == "3 × 1 × 2 × 4"
    assert shapes["beta"] == "3 × 1 × 2"


# --- deferred flush -----------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("draft_len", "window_len"), [(0, 1), (0, 16), (7, 8), (7, 16), (3, 24)])
def test_the_saw_never_crosses_its_ceiling_and_loses_nothing(pattern, draft_len, window_len):
    study = flush(draft_len, window_len, pattern, accepted=1, num_steps=20, **SMALL)
    assert study.largest_fill <= window_len
    assert study.elements_different == 0
    assert study.num_kept == study.tables["steps"]["folded"].sum()


def test_folds_happen_exactly_where_the_history_has_reached_the_threshold():
    steps = flush(num_steps=30, **SMALL).tables["steps"]
    grown = (steps["history"] + steps["kept"]).iloc[:-1].to_numpy()
    folded = steps["folded"].iloc[1:].to_numpy()
    assert ((folded > 0) == (grown >= 9)).all()
    assert (folded[folded > 0] == grown[folded > 0]).all()


def test_deferring_trades_state_writes_for_tokens_computed_again():
    writes = flush(num_steps=30, **SMALL).tables["writes"].set_index("scheme")
    assert writes.loc["snapshots", "writes"] == 30 * 8
    assert writes.loc["every_commit", "writes"] == 30
    assert writes.loc["deferred", "writes"] < 15
    assert writes.loc["deferred", "recomputed"] > writes.loc["every_commit", "recomputed"]
    assert writes.loc["every_commit", "bytes"] == 30 * 54_263_808


def test_kimi_k3_bytes_at_tp8():
    study = flush(num_steps=1, **SMALL)
    assert study.state_bytes == 69 * 786_432
    assert study.record_bytes * 8 == 6_809_472  # SGLang #36821, eight tokens
    assert study.ring_bytes == 32 * study.record_bytes


def test_a_wrong_replay_shows_in_the_numbers(monkeypatch):
    right = decode.verify_and_replay

    def one_too_few(state, projections, num_accepted):
        _, outputs = right(state, projections, num_accepted)
        return right(state, projections, max(num_accepted - 1, 0))[0], outputs

    monkeypatch.setattr(decode, "verify_and_replay", one_too_few)
    assert flush(num_steps=8, **SMALL).elements_different > 0
    assert raw_inputs(4, 4, **SMALL).elements_different > 0


def test_kept_by_chance_is_near_the_published_acceptance():
    counts = accepted_counts("chance", 20_000, verify_len=8, accepted=0, seed=1)
    assert min(counts) == 1
    assert max(counts) == 8
    assert sum(counts) / len(counts) == pytest.approx(3.84, abs=0.06)


def test_same_seed_same_tables():
    first, second = rings(seed=5), rings(seed=5)
    for name, table in first.tables.items():
        pd.testing.assert_frame_equal(table, second.tables[name])
    other = accepted_counts("chance", 50, 8, 0, seed=6)
    assert accepted_counts("chance", 50, 8, 0, seed=5) != other


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: snapshots(capacity=0), "capacity=0"),
        (lambda: snapshots(ops="shuffle"), "ops='shuffle'"),
        (lambda: snapshots(heads=0), "heads=0"),
        (lambda: snapshots(state_dtype="int8"), "dtype='int8'"),
        (lambda: raw_inputs(num_pushes=0), "num_pushes=0"),
        (lambda: flush(draft_len=9, window_len=8), "verify_len=10.*<= 8"),
        (lambda: flush(pattern="constant", accepted=9), "accepted=9.*<= 8"),
        (lambda: flush(pattern="luck"), "pattern='luck'"),
        (lambda: flush(tp=7), "tp=7"),
    ],
)
def test_impossible_settings_are_named(call, message):
    with pytest.raises(K3Error, match=message):
        call()


# --- figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ops", OPERATION_LISTS)
@pytest.mark.parametrize(("capacity", "num_pushes"), [(1, 1), (8, 16)])
def test_every_panel_can_be_drawn(ops, capacity, num_pushes):
    tables = rings(capacity, num_pushes, ops, **SMALL).tables
    panels = figures.fig_replayssm(tables)
    assert list(panels) == [
        "snapshots",
        "cursor_only",
        "pops",
        "copies",
        "timing",
        "layout",
        "replay",
        "ring_bytes",
        "writes",
        "recomputed",
    ]
    for panel in panels.values():
        assert panel.to_dict()["layer"]
    main = figures.main_picture({**tables, "head": pd.DataFrame({"head": [1]})})
    assert main.to_dict()["layer"]


@pytest.mark.parametrize("head", [0, 8, 12, 15])
def test_the_main_picture_names_each_snapshot_on_one_side_of_the_head(head):
    study = rings()
    picture = figures.main_picture({**study.tables, "head": pd.DataFrame({"head": [head]})})
    bars = picture.layer[0].data
    assert sorted(bars[bars["named"]]["snapshot"]) == list(range(11))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_fold_of_the_main_picture_reaches_the_fold_line(pattern):
    study = rings(pattern=pattern)
    picture = figures.main_picture({**study.tables, "head": pd.DataFrame({"head": [15]})})
    stack = picture.layer[1].data
    history = stack[stack["kind"] == "history"]
    narrow = history["right"] - history["left"] < 0.5
    assert narrow.sum() == study.flush.num_folds > 0
    assert (history[narrow]["rows"] >= study.flush.flush_min).all()
    assert (history[~narrow]["rows"] < study.flush.flush_min).all()
