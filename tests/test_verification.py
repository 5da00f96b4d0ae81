"""The verification itself: every row can fail, every fault is noticed, nothing leaks."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from streamlit.testing.v1 import AppTest

from k3core import __main__ as cli
from k3core import decode, kda
from k3core.capacity.memory import RequestMemory
from k3core.engine import Engine, RequestResult
from k3core.errors import K3Error
from k3core.figures import verification as figures
from k3core.figures.style import dress
from k3core.fleet import (
    ROUTERS,
    BudgetController,
    ConsistentHashRing,
    FleetResult,
    FleetSimulator,
)
from k3core.i18n import has_text, t
from k3core.paged_cache import PagedCache, PagePool
from k3core.parallel import KDAContextParallel
from k3core.replayssm import RawInputRing, ReplaySSM
from k3core.studies import verification as v
from k3core.studies.verification import checks_memory
from k3core.studies.verification.check import Case, Check, difference
from k3core.studies.verification.inputs import sequences
from k3core.studies.verification.subject import private_subject, real_subject

PAGE = "pages/9_Verification.py"
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


# Every row can fail: the mechanism is broken, and the row must see it.


def wrapped(owner, name, change):
    real = getattr(owner, name)

    def replacement(*args, **kwargs):
        return change(real(*args, **kwargs))

    return owner, name, replacement


def fixed(owner, name, value):
    """An attribute that always reads as ``value``."""
    return owner, name, property(lambda self: value, lambda self, given: None)


def share_memory(self, other):
    self.__dict__.update(other.__dict__)


def free_of_any_kind(real):
    return lambda self, pages, kind=None: real(self, pages)


def more_bytes(result):
    return replace(
        result, traffic=tuple(replace(t, sent_bytes=t.sent_bytes + 8) for t in result.traffic)
    )


def ready_at_once(cache_type):
    class Eager(cache_type):
        def register(self, tokens, block_payloads=None):
            ticket = super().register(tokens, block_payloads)
            self.mark_ready(ticket)
            return ticket

    return Eager


def lookup_with(cache_type, **changes):
    class Changed(cache_type):
        def lookup(self, tokens):
            hit = super().lookup(tokens)
            return replace(hit, **{name: change(hit) for name, change in changes.items()})

    return Changed


def replacing(cache_type):
    class Replacing(cache_type):
        def persist_checkpoint(self, tokens, boundary, group, payload=None):
            end = self.hashes(tokens)[boundary // self.hash_block_tokens - 1]
            if group in self.checkpoint_groups(end):
                self.evict_checkpoint(end, group)
            return super().persist_checkpoint(tokens, boundary, group, payload)

    return Replacing


def looks_ahead(real):
    def kda_chunk(q, k, v, g, beta, *rest):
        out, state = real(q, k, v, g, beta, *rest)
        return out + 1e-12 * v.sum(2, keepdim=True), state

    return kda_chunk


def in_checks(name, change):
    """The name as ``checks_memory`` sees it, replaced by ``change`` of it."""
    return checks_memory, name, change(getattr(checks_memory, name))


SABOTAGE = {
    "chunk_matches_oracle": lambda: wrapped(kda, "kda_chunk", lambda r: (r[0], r[1] * 1.0001)),
    "chunk_survives_gate_at_bound": lambda: wrapped(
        kda, "kda_chunk", lambda r: (r[0] * math.nan, r[1])
    ),
    "chunk_is_causal": lambda: (kda, "kda_chunk", looks_ahead(kda.kda_chunk)),
    "gates_match_oracle": lambda: wrapped(kda, "kda_gate", lambda g: g * (1 + 1e-9)),
    "convolution_matches_oracle": lambda: wrapped(
        kda, "short_convolution", lambda r: (r[0], torch.zeros_like(r[1]))
    ),
    "test_snapshot_cost_ratio_exceeds_one_and_grows_with_state": lambda: (
        decode,
        "snapshot_cost_ratio",
        lambda heads, dk, dv, draft_len=1: 4.0,
    ),
    "figure_bytes_come_from_mechanism": lambda: wrapped(decode, "snapshot_bytes", lambda x: x + 1),
    "test_ring_evicts_oldest_at_capacity": lambda: wrapped(ReplaySSM, "pop", lambda s: s * 1.01),
    "test_pop_after_refill_returns_oldest": lambda: wrapped(ReplaySSM, "pop", lambda s: s + 3),
    "test_copy_from_is_deep_and_independent": lambda: (ReplaySSM, "copy_from", share_memory),
    "ring_window_equals_batch": lambda: wrapped(RawInputRing, "window", lambda w: w[:-1]),
    "test_append_mla_increments_pages_across_boundary": lambda: wrapped(
        PagedCache, "read_mla", lambda rows: rows * 0
    ),
    "test_pack_unpack_roundtrip": lambda: in_checks(
        "pack_heads", lambda real: lambda state: state.reshape(-1).clone()
    ),
    "test_store_and_load_roundtrip": lambda: wrapped(
        PagedCache, "load_kda", lambda s: s._replace(conv_window=s.conv_window.flip(1))
    ),
    "page_sets_stay_disjoint": lambda: wrapped(PagePool, "free_order", lambda x: x[:-1]),
    "bad_page_calls_raise": lambda: (PagePool, "free", free_of_any_kind(PagePool.free)),
    "retyped_page_leaks_no_bytes": lambda: wrapped(
        PagePool, "page_bytes_view", lambda view: view | 1
    ),
    "test_register_then_lookup_at_same_prefix_hits": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: 0)
    ),
    "test_two_stage_uses_longest_checkpoint_boundary": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.cap_tokens)
    ),
    "test_lookup_without_checkpoint_misses": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, hit=lambda hit: True)
    ),
    "test_checkpoint_atomic_across_groups": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.cap_tokens)
    ),
    "entry_invisible_until_ready": lambda: in_checks("PrefixCache", ready_at_once),
    "last_token_is_computed": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.mla_tokens)
    ),
    "published_checkpoint_never_changes": lambda: in_checks("PrefixCache", replacing),
    "hash_names_whole_prefix": lambda: in_checks(
        "chained_hash", lambda real: lambda parent, tokens: real(b"", tokens)
    ),
    "lookup_matches_brute_force": lambda: in_checks(
        "PrefixCache", lambda real: lookup_with(real, matched_tokens=lambda hit: hit.mla_tokens)
    ),
    "test_engine_returns_hit_stats": lambda: fixed(Engine, "use_cache", False),
    "test_engine_miss_returns_zero": lambda: fixed(RequestResult, "reused_tokens", 512),
    "checkpoint_matches_oracle": lambda: wrapped(kda, "kda_chunk", lambda r: (r[0], r[1] * 1.0001)),
    "pages_survive_eviction": lambda: wrapped(
        PagePool, "stats", lambda s: replace(s, num_free=s.num_free - 1)
    ),
    "conv_halo_matches_oracle": lambda: wrapped(
        KDAContextParallel,
        "short_convolution",
        lambda r: replace(r, outputs=r.outputs.roll(1, dims=1)),
    ),
    "message_bytes_do_not_grow": lambda: wrapped(KDAContextParallel, "prefill", more_bytes),
    "test_ring_distributes_sessions_uniformly": lambda: (
        ConsistentHashRing,
        "route",
        lambda self, session: self.clusters[:2],
    ),
    "test_remove_cluster_only_affects_few_sessions": lambda: wrapped(
        ConsistentHashRing, "route", lambda route: route._replace(secondary=route.primary)
    ),
    "test_budget_isolates_long_burst_from_short": lambda: wrapped(
        BudgetController, "admit", lambda ticket: None
    ),
    "test_simulator_routes_to_primary_on_hit": lambda: (
        ROUTERS["session"],
        "choose",
        lambda self, request, now: request % 2,
    ),
    "requests_are_conserved": lambda: wrapped(FleetResult, "num_served", lambda n: n + 1),
    "same_seed_gives_same_bytes": lambda: (
        FleetResult,
        "as_dict",
        lambda self: {"id": str(np.random.default_rng().random())},
    ),
    "cluster_cache_matches_plain_lru": lambda: fixed(FleetSimulator, "capacity_blocks", 250),
    "state_bytes_match_real_tensors": lambda: fixed(RequestMemory, "kda_bytes_per_layer", 786_432),
    "break_even_matches_published_sizes": lambda: fixed(RequestMemory, "break_even_len", 4064.0),
}


@pytest.mark.parametrize("row", SABOTAGE)
def test_a_row_sees_its_mechanism_broken(row, monkeypatch):
    check = CHECK[row]
    assert check.read(Case(real_subject())).deviation <= check.tolerance
    owner, name, replacement = SABOTAGE[row]()
    monkeypatch.setattr(owner, name, replacement, raising=False)
    assert check.read(Case(real_subject())).deviation > check.tolerance


def test_a_row_sees_time_that_nobody_spent():
    case, check = Case(real_subject()), CHECK["littles_law_holds"]
    assert check.read(case).deviation <= check.tolerance
    next(iter(case._memo.values())).area_s[0] *= 1.001
    assert check.read(case).deviation > check.tolerance


def test_every_row_is_broken_here_or_by_a_fault_or_declared_blind():
    outside = {check.id for check in v.CHECKS if not check.in_matrix}
    assert outside == set(SABOTAGE) | {"littles_law_holds"}


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


# Words, command line, pictures


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


@pytest.mark.parametrize("fault", ["healthy", "gate_multiplier"])
@pytest.mark.parametrize("width", [1000, 250])
def test_pictures_compile_on_a_desktop_and_on_a_phone(matrix, fault, width):
    import vl_convert

    tables = {**matrix.tables, "selected": pd.DataFrame({"fault": [fault]})}
    charts = {
        "main": figures.main_picture(tables),
        **figures.fig_break_it(tables),
        **figures.fig_blind_spots(tables),
        **figures.fig_keys(v.key_sweep().tables),
    }
    for name, chart in charts.items():
        chart.title = ""
        spec = dress(chart.properties(width=width), "verification").to_dict()
        svg = vl_convert.vegalite_to_svg(spec)
        assert "verification." not in svg, name
        assert svg.count("<path") + svg.count("<text") > 15, name


def test_main_picture_has_a_cell_for_every_row_and_fault(matrix):
    spec = figures.main_picture(matrix.tables).to_dict()
    largest = max(spec["datasets"].values(), key=len)
    assert len(largest) == len(v.MATRIX_CHECKS) * len(v.FAULT_CODES)


# The page


def open_page(**query):
    app = AppTest.from_file(f"../{PAGE}", default_timeout=120)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def metrics(app):
    assert not app.exception
    return [metric.value for metric in app.metric]


def test_page_shows_the_counts(matrix, healthy):
    shown = metrics(open_page())
    assert shown[:3] == [f"{healthy.num_pass} / {healthy.num_checks}", "0", "7 / 7"]
    assert shown[3] == f"{matrix.count('blind')} / {matrix.num_rows * matrix.num_faults}"


def test_choosing_a_fault_runs_the_checks_again_and_adds_the_broken_values():
    before = open_page()
    app = open_page(fault="commit_off_by_one")
    assert metrics(app)[:2] == ["52 / 60", "8"]
    assert len(app.get("vega_lite_chart")) == len(before.get("vega_lite_chart")) + 1
    assert t("verification.fault.commit_off_by_one") in [c.value for c in app.caption]


def test_rows_can_be_narrowed_to_the_failed_ones():
    app = open_page(fault="conv_not_rolled_back", check_rows="failed")
    tables = [frame.value for frame in app.dataframe if "claim" in frame.value.columns]
    assert set(tables[0]["id"]) == {
        row for row, faults in v.EXPECTED.items() if "conv_not_rolled_back" in faults
    }
    assert (tables[0]["verdict"] == t("verification.label.fail")).all()
    assert "Speculative_Replay?" in tables[0]["open"].iloc[0]
    assert "fault=conv_not_rolled_back" in tables[0]["open"].iloc[0]


def test_no_row_of_a_kind_is_said_in_words():
    app = open_page(check_rows="failed")
    assert t("verification.rows.none") in [c.value for c in app.caption]


def test_format_and_keys_change_the_numbers():
    def cells(**query):
        app = open_page(**query)
        assert not app.exception
        return next(f.value for f in app.dataframe if "tolerance" in f.value.columns)

    plain = cells()
    assert not plain.equals(cells(check_dtype="float32"))
    assert not plain.equals(cells(check_keys="random"))


def test_an_unknown_fault_in_the_link_is_noted():
    app = open_page(fault="gremlins")
    assert any("gremlins" in warning.value for warning in app.warning)
    assert metrics(app)[1] == "0"
