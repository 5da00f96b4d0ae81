"""The verification itself: rows, matrix of faults, private copies, command line."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
import torch

from k3core import __main__ as cli
from k3core import kda
from k3core.engine import Engine
from k3core.errors import K3Error
from k3core.i18n import has_text
from k3core.studies import verification as v
from k3core.studies.verification.check import Case, Check, difference
from k3core.studies.verification.inputs import sequences
from k3core.studies.verification.subject import private_subject, real_subject

SOURCE_ROWS = {
    "test_verify_replay_partial_matches_full_recurrence": "decode",
    "test_snapshot_cost_ratio_exceeds_one_and_grows_with_state": "decode",
    "test_verify_replay_accept_all_matches_full": "decode",
    "test_verify_replay_reject_zero_is_identity": "decode",
    "test_ring_evicts_oldest_at_capacity": "replayssm",
    "test_pop_after_refill_returns_oldest": "replayssm",
    "test_copy_from_is_deep_and_independent": "replayssm",
    "test_append_mla_increments_pages_across_boundary": "paged_cache",
    "test_pack_unpack_roundtrip": "paged_cache",
    "test_store_and_load_roundtrip": "paged_cache",
    "test_register_then_lookup_at_same_prefix_hits": "prefix_cache",
    "test_two_stage_uses_longest_checkpoint_boundary": "prefix_cache",
    "test_lookup_without_checkpoint_misses": "prefix_cache",
    "test_checkpoint_atomic_across_groups": "prefix_cache",
    "test_engine_returns_hit_stats": "engine",
    "test_engine_miss_returns_zero": "engine",
    "test_ring_distributes_sessions_uniformly": "fleet",
    "test_remove_cluster_only_affects_few_sessions": "fleet",
    "test_budget_isolates_long_burst_from_short": "fleet",
    "test_simulator_routes_to_primary_on_hit": "fleet",
}
CHECK = {check.id: check for check in v.CHECKS}


@pytest.fixture(scope="module")
def healthy():
    return v.run_checks()


@pytest.fixture(scope="module")
def matrix():
    return v.fault_matrix()


def caught(matrix: v.MatrixResult) -> dict[str, frozenset[str]]:
    cells = matrix.tables["cells"]
    hits = cells[cells["status"] == "caught"]
    return {row: frozenset(hits.loc[hits["check"] == row, "fault"]) for row in v.EXPECTED}


# Rows


def test_the_twenty_rows_of_the_source_text_keep_their_names_and_pages():
    rows = {check.id: check.page for check in v.CHECKS if check.from_source_text}
    assert rows == SOURCE_ROWS


def test_every_row_passes_on_healthy_code(healthy):
    table = healthy.tables["checks"]
    assert list(table.loc[table["verdict"] != "pass", "id"]) == []
    assert healthy.num_pass == healthy.num_checks == len(v.CHECKS) == len(CHECK)
    assert not table["error"].any()


@pytest.mark.parametrize("seed", [1, 5, 20])
def test_rows_pass_for_other_seeds(seed):
    assert v.run_checks(seed=seed).ids("fail") == ()


@pytest.mark.parametrize(("correlated", "dtype"), [(False, "float64"), (True, "float32")])
def test_rows_pass_for_other_keys_and_formats(correlated, dtype):
    assert v.run_checks(correlated=correlated, dtype=dtype).ids("fail") == ()


def test_pages_come_in_reading_order(healthy):
    pages = list(healthy.tables["checks"]["page"].drop_duplicates())
    assert pages == [
        "decode", "replayssm", "paged_cache", "prefix_cache", "engine", "parallel", "fleet",
        "capacity",
    ]  # fmt: skip


def test_rounding_stays_far_below_every_tolerance(healthy):
    table = healthy.tables["checks"]
    loose = table[(table["tolerance"] > 0) & (table["kind"] != "statistics")]
    assert (loose["deviation"] * 50 < loose["tolerance"]).all()


def test_same_arguments_give_the_same_numbers(healthy):
    pd.testing.assert_frame_equal(healthy.tables["checks"], v.run_checks().tables["checks"])


def test_the_seed_changes_the_inputs(healthy):
    other = v.run_checks(seed=3).tables["checks"]
    assert (healthy.tables["checks"]["deviation"] != other["deviation"]).sum() > 10


def test_code_that_raises_fails_its_row_and_says_why():
    def broken(case: Case) -> float:
        raise KeyError("lost")

    reading = Check("broken", "decode", "self", broken).read(Case(real_subject()))
    assert reading.deviation == math.inf
    assert "lost" in reading.error


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"fault": "typo"}, "fault='typo'"),
        ({"seed": -1}, "seed=-1"),
        ({"dtype": "float8"}, "dtype='float8'"),
    ],
)
def test_bad_arguments_are_named(params, message):
    with pytest.raises(K3Error, match=message):
        v.run_checks(**params)


def test_rows_joined_from_two_parts_are_those_of_one_run(healthy, matrix):
    joined = v.verdicts(matrix.columns[v.HEALTHY], v.read_other_checks())
    pd.testing.assert_frame_equal(joined.tables["checks"], healthy.tables["checks"])


def test_rows_are_not_joined_from_different_runs_or_with_gaps(matrix):
    with pytest.raises(K3Error, match="no reading of"):
        v.verdicts(matrix.columns[v.HEALTHY])
    with pytest.raises(K3Error, match="different fault"):
        v.verdicts(matrix.columns["gate_multiplier"], v.read_other_checks())


# Faults


@pytest.mark.parametrize(
    ("seed", "correlated", "dtype"),
    [(7, True, "float64"), (3, False, "float64"), (11, True, "float32")],
)
def test_every_cell_of_the_matrix_is_as_declared(seed, correlated, dtype):
    measured = v.fault_matrix(seed, correlated, dtype)
    assert caught(measured) == dict(v.EXPECTED)
    assert measured.count("broken") == 0


@pytest.mark.parametrize("fault", v.FAULTS)
def test_a_fault_turns_its_rows_red_and_names_the_blind_ones(fault):
    run = v.run_checks(fault)
    must = {row for row, faults in v.EXPECTED.items() if fault in faults}
    assert set(run.ids("caught")) == must
    assert set(run.ids("blind")) == set(v.EXPECTED) - must
    assert run.ids("missed") == run.ids("alarm") == ()
    assert run.num_fail == len(must) > 0


def test_default_matrix_is_as_declared(matrix):
    assert caught(matrix) == dict(v.EXPECTED)


def test_declaration_covers_the_matrix_and_names_known_faults():
    assert list(v.EXPECTED) == [check.id for check in v.MATRIX_CHECKS]
    assert set().union(*v.EXPECTED.values()) == set(v.FAULTS)


def test_every_fault_is_caught_by_an_oracle_and_by_a_self_check(matrix):
    table = matrix.tables["faults"].set_index("fault")
    assert list(table.index) == list(v.FAULTS)
    assert (table["oracle"] >= 3).all()
    assert (table["self"] >= 1).all()
    assert matrix.num_caught_faults == matrix.num_faults == 7


def test_replay_against_its_own_recurrence_is_blind_to_a_wrong_recurrence(matrix):
    cells = matrix.tables["cells"].set_index(["check", "fault"])
    for fault in ("undecayed_delta", "gate_multiplier"):
        own = cells.loc[("test_verify_replay_partial_matches_full_recurrence", fault)]
        assert own["value"] == 0.0
        assert own["status"] == "blind"
        assert cells.loc[("replay_matches_oracle", fault), "status"] == "caught"


@pytest.mark.parametrize("page", ["decode", "replayssm", "engine", "parallel"])
def test_each_page_of_the_matrix_has_a_self_check_and_an_oracle(page):
    kinds = {check.kind for check in v.MATRIX_CHECKS if check.page == page}
    assert kinds == {"self", "oracle"}


def test_catches_lie_far_from_the_tolerance(matrix):
    cells = matrix.tables["cells"]
    assert cells.loc[cells["status"] == "caught", "value"].min() > 1e-5
    assert cells.loc[cells["status"] != "caught", "value"].max() < 1e-13


def test_rounding_faults_would_have_passed_a_usual_tolerance(matrix):
    table = matrix.tables["faults"].set_index("fault")
    for fault in ("beta_bf16_replay", "state_bf16_commit"):
        assert table.loc[fault, "usual"] == table.loc[fault, "oracle"] + table.loc[fault, "self"]
    assert matrix.num_usual == table["usual"].sum() > 10


def test_random_keys_hide_most_of_the_undecayed_delta(matrix):
    cells = matrix.tables["cells"].set_index(["check", "fault"])["value"]
    random = cells["recurrence_matches_oracle_random_keys", "undecayed_delta"]
    correlated = cells["recurrence_matches_oracle_correlated_keys", "undecayed_delta"]
    assert random < v.USUAL_TOLERANCE < correlated / 2


def test_the_error_grows_with_the_likeness_of_keys():
    sweep = v.key_sweep(2)
    table = sweep.tables["keys"]
    assert table["cosine"].is_monotonic_increasing
    assert abs(table["cosine"].iloc[0]) < 0.05
    assert table["cosine"].iloc[-1] == pytest.approx(1.0)
    assert sweep.error_repeated > 5 * sweep.error_random


# Private copies


def test_a_private_copy_without_a_fault_gives_the_same_bits():
    inputs = sequences(9, 0, True, torch.float64)
    private, real = private_subject(), real_subject()
    for ours, theirs in zip(
        private.kda.kda_recurrent(*inputs), real.kda.kda_recurrent(*inputs), strict=True
    ):
        assert torch.equal(ours, theirs)
    for check in v.MATRIX_CHECKS:
        mine, others = check.read(Case(private)), check.read(Case(real))
        assert mine == others, check.id


def test_a_private_copy_is_complete():
    private = private_subject()
    assert private.kda is not kda
    assert private.decode.kda is private.kda
    assert private.replayssm.raw_inputs.decode is private.decode
    assert private.engine.Engine is not Engine
    assert private.kda.require is kda.require  # errors are shared


def test_faults_leave_the_real_modules_alone():
    names = [name for name in sys.modules if name.startswith("k3core.")]
    before = {name: dict(vars(sys.modules[name])) for name in names}
    for fault in v.FAULTS:
        faulty = v.subject_with(fault)
        assert faulty.kda is not sys.modules["k3core.kda"]
        CHECK["decode_loop_matches_oracle"].read(Case(faulty))
    for name, attributes in before.items():
        now = vars(sys.modules[name])
        assert {key for key in now if now[key] is not attributes.get(key)} == set()


def test_two_faults_do_not_meet():
    first, second = v.subject_with("undecayed_delta"), v.subject_with("conv_not_rolled_back")
    assert first.kda.advance_state.__qualname__.startswith("undecayed_delta")
    assert second.kda.advance_state.__qualname__ == "advance_state"
    assert first.decode.advance_window.__qualname__ == "advance_window"


def test_sessions_with_different_faults_run_at_the_same_time(healthy):
    jobs = [v.HEALTHY, "verify_writes_state"]
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(v.run_checks, jobs))
    pd.testing.assert_frame_equal(runs[0].tables["checks"], healthy.tables["checks"])
    alone = v.run_checks(jobs[1])
    pd.testing.assert_frame_equal(runs[1].tables["checks"], alone.tables["checks"])


# The measure


def test_difference_is_zero_for_equal_bits_only():
    x = torch.tensor([0.0, 2.0])
    assert difference(x, x.clone()) == 0.0
    assert difference(-x, x) > 0.0
    assert difference(torch.tensor([-0.0, 2.0]), x) > 0.0
    assert difference(x.double(), x) == math.inf
    assert difference(x[:1], x) == math.inf
    assert difference(torch.tensor([math.nan, 2.0]), x) == math.inf
    assert difference(torch.zeros(0), torch.zeros(0)) == 0.0


def test_difference_is_relative_to_what_is_expected():
    expected = torch.tensor([30.0, 40.0], dtype=torch.float64)
    assert difference(expected + torch.tensor([0.5, 0.0]), expected.numpy()) == pytest.approx(0.01)


# Words and command line


def test_every_row_and_fault_has_its_words():
    keys = [f"verification.check.{check.id}" for check in v.CHECKS]
    keys += [f"verification.label.{check.id}" for check in v.MATRIX_CHECKS]
    keys += [
        f"verification.{table}.{code}" for table in ("option", "fault") for code in v.FAULT_CODES
    ]
    keys += [f"verification.label.{code}" for code in (*v.FAULT_CODES, *v.KINDS)]
    assert [key for key in keys if not has_text(key)] == []


def test_text_has_one_line_per_row_that_ends_in_its_verdict(healthy):
    lines = v.render_text(healthy)
    rows = [line for line in lines if line.endswith(("PASS", "FAIL"))]
    assert [line.split()[1] for line in rows] == [check.id for check in v.CHECKS]
    assert all(line.endswith("PASS") for line in rows)
    assert "1.0e-12" in rows[0]
    assert (
        lines[-1]
        == f"{len(v.CHECKS)} rows: {len(v.CHECKS)} passed, 0 failed (fault: healthy, seed 0)"
    )
    assert not [line for line in lines if "⟦" in line]


def test_command_passes_on_healthy_code(capsys):
    assert cli.main(["verify", "--seed", "2"]) == 0
    assert "0 failed (fault: healthy, seed 2)" in capsys.readouterr().out


def test_command_fails_under_a_fault_and_names_the_blind(capsys):
    assert cli.main(["verify", "--fault", "undecayed_delta"]) == 1
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if " replay_matches_oracle " in line)
    assert row.endswith("caught  FAIL")
    blind = next(line for line in lines if line.startswith("blind"))
    assert "hit_equals_miss" in blind
    assert "engine_matches_oracle" not in blind


def test_command_names_a_bad_fault_in_one_line(capsys):
    assert cli.main(["verify", "--fault", "nonsense"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "undecayed_delta" in error


def test_summary_counts_what_the_matrix_shows(matrix, healthy):
    counts = v.summary()
    assert (counts.num_pass, counts.num_fail) == (healthy.num_pass, 0)
    assert list(counts.blind) == list(v.FAULTS)
    assert sum(counts.blind.values()) == matrix.count("blind")
    assert counts.num_caught_faults == counts.num_faults


def test_counts_of_the_matrix_agree_with_its_cells(matrix):
    assert matrix.num_rows == len(v.MATRIX_CHECKS)
    assert matrix.num_all_seeing == 2
    assert matrix.num_self_blind("undecayed_delta") == 7
    assert matrix.num_self_rows == 9
    assert matrix.count("blind") + matrix.count("caught") == matrix.num_rows * matrix.num_faults
