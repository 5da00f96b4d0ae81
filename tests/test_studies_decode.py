"""The studies of page 1 run the mechanism and count production bytes."""

import pytest

from k3core.figures import decode as figures
from k3core.studies.decode import INPUT_SCHEMES, consistency, rollback, snapshot_cost


def test_k3_snapshots_of_eight_tokens_are_414_mib():
    """SGLang keeps eight fp32 states per request: 434,110,464 B for K3 at TP8."""
    assert rollback().snapshot_total_bytes == 434_110_464


def test_k3_low_rank_inputs_of_eight_tokens_are_5_mib():
    """TokenSpeed #1156: 9,496 B per token and layer, 69 layers, 8 tokens."""
    assert rollback(input_scheme="low-rank-inputs").input_total_bytes == 9_496 * 69 * 8


def test_the_default_inputs_are_the_raw_ones():
    """SGLang #36821: 1,028 bytes per head and token, 12 heads; the planner's default too."""
    assert rollback().input_total_bytes == 1_028 * 12 * 69 * 8
    assert rollback().ratio == pytest.approx(65_536 / 1_028)


@pytest.mark.parametrize("scheme", INPUT_SCHEMES)
def test_the_size_sweep_meets_the_real_sizes(scheme):
    study = rollback(input_scheme=scheme)
    at_128 = study.tables["sizes"].set_index(["dk", "kind"]).loc[128, "bytes"]
    assert at_128.to_dict() == {
        "snapshots": study.bytes_per_snapshot,
        "inputs": study.bytes_per_input,
    }


def test_inputs_become_smaller_where_the_formats_say_so():
    """4 n^2 bytes of state against 8 n + 4 of raw inputs: 16 < 20 at 2, 36 > 28 at 3."""
    assert rollback().inputs_smaller_from == 3


def test_the_replay_is_marked_as_work_and_the_inputs_by_their_scheme():
    words = rollback().tables["totals"].set_index("lane")["word"]
    assert (words["replayed"], words["inputs"], words["snapshots"]) == ("work", "raw-inputs", "")


@pytest.mark.parametrize("accepted", range(9))
def test_the_replay_of_every_prefix_is_bit_equal(accepted):
    assert rollback(accepted=accepted).bits_different == 0


def test_rejected_tokens_pollute_the_state():
    assert rollback(accepted=3).polluted_error > 0.05


def test_nothing_is_polluted_when_all_are_accepted():
    assert rollback(accepted=8).polluted_error == 0


def test_only_the_last_accepted_snapshot_is_needed():
    window = rollback(accepted=3).tables["window"]
    kept = window[(window["lane"] == "snapshots") & (window["status"] == "kept")]
    assert kept["position"].tolist() == [2]


def test_more_accepted_than_the_window_is_refused():
    with pytest.raises(ValueError, match=r"accepted=9 must be in 0\.\.8"):
        rollback(accepted=9)


def test_every_accepted_count_passes_both_comparisons():
    study = consistency()
    assert study.num_pass == study.num_cases == 9
    assert 0 < study.worst_oracle_error < 1e-12


@pytest.mark.parametrize(
    ("heads", "dk", "dv", "ratio"), [(16, 32, 32, 1024 / 129), (2, 16, 16, 3.94), (2, 8, 8, 1.94)]
)
def test_the_ratio_is_that_of_the_formula(heads, dk, dv, ratio):
    """Errata 3: 1024/129 = 7.94 for 32 x 32; 3.94 and 1.94 belong to 16 and 8."""
    assert snapshot_cost(heads, dk, dv).ratio == pytest.approx(ratio, abs=0.005)


def test_the_ratio_does_not_depend_on_the_draft_length():
    assert snapshot_cost().tables["by_draft"]["ratio"].nunique() == 1


def test_small_heads_make_snapshots_cheaper():
    by_dk = snapshot_cost(sweep_dv=4).tables["by_dk"].set_index("dk")
    assert by_dk.loc[4, "ratio"] == pytest.approx(16 / 17)
    assert by_dk.loc[4, "cheaper"] == "snapshots"


def test_no_picture_groups_by_a_field_that_the_renderer_keeps_for_itself():
    """Lines grouped by a field named ``count`` lose one of their lines."""
    panels = figures.fig_snapshot_cost(snapshot_cost().tables)
    assert '"field": "count"' not in "".join(
        panel.to_json(indent=None) for panel in panels.values()
    )
