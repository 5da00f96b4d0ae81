"""The study of page 5: its tables are accounts of the run, and its pictures can be drawn."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from k3core.figures import engine as figures
from k3core.studies.engine import (
    KNEE_TOKENS,
    LANES,
    EngineStudy,
    before_after,
    growth,
    pass_cost,
    render_text,
    token_word,
)


@pytest.fixture(scope="module")
def study() -> EngineStudy:
    return before_after()


def lane(table: pd.DataFrame, name: str) -> pd.DataFrame:
    return table[table["lane"] == name]


def test_defaults_reuse_1024_of_1100_tokens_and_change_no_bit(study: EngineStudy) -> None:
    assert (study.reused_tokens, study.prompt_len) == (1024, 1100)
    assert study.logits_different == 0
    assert study.same_split
    assert study.tables["exact"]["verdict"].tolist() == ["pass", "pass"]


def test_without_cache_the_lanes_of_the_second_request_are_equal() -> None:
    study = before_after(prompt_len=600, shared_len=600, new_tokens=8, use_cache=False)
    steps = study.tables["steps"].drop(columns=["lane", "cpu_ms"])
    names = study.tables["steps"]["lane"]
    cold, warm = (steps[names == name].reset_index(drop=True) for name in LANES[1:])
    pd.testing.assert_frame_equal(cold, warm)
    assert study.share == 1.0
    assert not study.tables["pages"]["place"].eq("cached").any()


def test_the_clock_of_a_lane_has_no_gaps(study: EngineStudy) -> None:
    for name in LANES:
        steps = lane(study.tables["steps"], name)
        assert steps["begin"].iloc[0] == 0
        assert (steps["begin"].iloc[1:].to_numpy() == steps["end"].iloc[:-1].to_numpy()).all()


def test_the_first_token_stands_at_the_end_of_the_prefill(study: EngineStudy) -> None:
    for flag in study.tables["flags"].itertuples():
        steps = lane(study.tables["steps"], flag.lane)
        assert flag.at == steps[steps["kind"] == "prefill"]["end"].max()


def test_a_pass_costs_at_least_one_reading_of_the_weights(study: EngineStudy) -> None:
    steps = study.tables["steps"]
    assert ((steps["end"] - steps["begin"]) >= 1).all()


def test_a_pass_costs_the_larger_of_moving_and_computing() -> None:
    from k3core.engine import Engine
    from k3core.model import HybridModel

    model = HybridModel()
    steps = {s.num_tokens: s for s in Engine(model).generate([1] * 520, 2).steps}
    few, many = steps[1], steps[512]
    weight_bytes = model.num_parameters * 4
    assert pass_cost(few, model) == few.bytes_moved / weight_bytes
    assert pass_cost(many, model) == many.flops / (2 * model.num_parameters * KNEE_TOKENS)
    assert pass_cost(many, model) > many.bytes_moved / weight_bytes


def test_squares_are_the_tokens_of_the_verify_steps(study: EngineStudy) -> None:
    steps = study.tables["steps"]
    verify = steps[steps["kind"] == "verify"]
    squares = study.tables["squares"]
    assert len(squares) == verify["num_tokens"].sum()
    assert (squares["status"] == "rejected").sum() == verify["num_rejected"].sum()


def test_the_strip_covers_each_prompt_once(study: EngineStudy) -> None:
    strip = study.tables["strip"]
    tokens = (strip["end_token"] - strip["first_token"]).groupby(strip["lane"]).sum()
    assert tokens.to_dict() == dict.fromkeys(LANES, 1100)
    assert lane(strip, "with_prefix")["part"].tolist() == ["reused", "computed"]


def test_pages_grow_with_the_text_for_mla_only(study: EngineStudy) -> None:
    first = lane(study.tables["steps"], "first")
    assert first["mla_owned"].iloc[:3].tolist() == [1, 2, 3]
    assert first["kda_owned"].unique().tolist() == [3]
    pages = lane(study.tables["pages"], "first")
    last = pages[pages["step"] == pages["step"].max()]
    assert last["pages"].sum() == last["upper"].max()


def test_kept_and_model_tokens_are_the_output_and_rejected_ones_are_not(
    study: EngineStudy,
) -> None:
    tokens = study.tables["tokens"]
    output = tokens[tokens["status"] != "rejected"]
    assert output["position"].tolist() == list(range(24))
    assert (tokens["status"] == "kept").sum() == study.num_kept_drafts
    assert (tokens["status"] == "rejected").sum() == study.num_drafts - study.num_kept_drafts


@pytest.mark.parametrize("draft_len", [0, 2, 7])
def test_the_draft_sweep_counts_what_the_engine_counted(draft_len: int) -> None:
    study = before_after(prompt_len=300, shared_len=0, new_tokens=20, draft_len=draft_len)
    row = study.tables["by_draft"].set_index("draft_len").loc[draft_len]
    verify = lane(study.tables["steps"], "with_prefix")
    verify = verify[verify["kind"] == "verify"]
    assert row["num_steps"] == len(verify)
    assert row["tokens_per_step"] == study.tokens_per_step
    assert row["rejected_tokens"] == verify["num_rejected"].sum()


def test_expected_tokens_per_step_is_the_geometric_sum(study: EngineStudy) -> None:
    assert math.isclose(study.expected_tokens_per_step, (1 - 0.75**5) / (1 - 0.75))


def test_the_sweep_of_a_perfect_drafter_gives_drafts_plus_one() -> None:
    study = before_after(prompt_len=200, shared_len=0, new_tokens=25, draft_quality=1.0)
    by_draft = study.tables["by_draft"].set_index("draft_len")
    assert by_draft.loc[3, "tokens_per_step"] == 4.0
    assert by_draft.loc[3, "expected"] == 4.0
    assert (by_draft["rejected_tokens"] == 0).all()


def test_comparison_holds_four_measures_of_the_run(study: EngineStudy) -> None:
    compare = study.tables["compare"].set_index("metric")
    assert compare.loc["computed_tokens"].tolist()[:2] == [1100, 76]
    assert compare.loc["new_pages"].tolist()[:2] == [12, 4]
    assert compare.loc["prefill_mflops", "with_prefix"] == study.flops_with / 1e6
    assert compare.loc["first_token", "share"] == study.share


def test_production_curves_are_those_of_k3_at_tp8() -> None:
    table = (
        growth().tables["bytes_by_length"].pivot(index="num_tokens", columns="kind", values="bytes")
    )
    assert table.loc[4096, "mla"] == 4096 * 13_824
    assert table["kda"].unique().tolist() == [56_171_520]
    assert growth().state_equal_tokens == 4_064
    assert table["kcp"].unique().tolist() == [69 * 12 * 128 * 256 * 4]


@pytest.mark.parametrize("world", [1, 2, 8, 16])
def test_a_rank_sends_one_message_and_receives_all_others(world: int) -> None:
    message = growth(world=world).tables["message_by_length"].groupby("way")["bytes"].unique()
    one = 69 * 12 * 128 * 256 * 4
    assert message["sent"].tolist() == [one if world > 1 else 0]
    assert message["received"].tolist() == [(world - 1) * one]


def test_one_rank_sends_no_message(study: EngineStudy) -> None:
    alone = growth(world=1)
    assert alone.message_bytes == 0
    assert (alone.tables["message_by_length"]["bytes"] == 0).all()
    figures.fig_engine_before_after({**study.tables, **alone.tables})


def test_rolled_back_bytes_are_those_of_real_tensors() -> None:
    from k3core.engine import Engine
    from k3core.model import HybridModel, ModelConfig

    study = before_after(prompt_len=100, shared_len=0, new_tokens=2, heads=2, dk=8, dv=16)
    table = study.tables["rollback"].pivot(index="draft_len", columns="scheme", values="bytes")
    serving = Engine(HybridModel(ModelConfig(num_heads=2, dk=8, dv=16)), block_tokens=64)
    request = serving.open([1, 2, 3], 8)
    serving.step(request)
    window = serving.model.verify([1, 2, 3, 4], request.memory)
    states = sum(x.nbytes for state in window.states.values() for x in state)
    assert table.loc[3, "inputs"] == sum(p.nbytes for p in window.projections.values())
    assert table.loc[3, "snapshots"] == 4 * states


def test_a_lost_checkpoint_is_named() -> None:
    study = before_after(
        prompt_len=1600, shared_len=1500, new_tokens=2, chunk_tokens=2048, draft_len=0
    )
    assert study.reused_tokens == 0
    assert study.matched_mla_tokens == 1024
    assert study.loss_reason == "no_checkpoint"


def test_results_do_not_depend_on_the_machine(study: EngineStudy) -> None:
    again = before_after()
    assert again.logits_digest == study.logits_digest
    pd.testing.assert_frame_equal(
        again.tables["steps"].drop(columns="cpu_ms"), study.tables["steps"].drop(columns="cpu_ms")
    )


def test_another_seed_gives_another_text(study: EngineStudy) -> None:
    other = before_after(prompt_len=300, shared_len=0, new_tokens=8, seed=1)
    same = before_after(prompt_len=300, shared_len=0, new_tokens=8, seed=0)
    assert other.logits_digest != same.logits_digest


def test_words_of_different_tokens_differ() -> None:
    assert len({token_word(token) for token in range(256)}) == 256


@pytest.mark.parametrize(
    ("name", "value"),
    [("shared_len", 1101), ("layers", 5), ("prompt_len", 0), ("chunk_tokens", 0)],
)
def test_bad_values_raise(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        before_after(**{name: value})


def test_a_degree_that_does_not_divide_the_heads_raises() -> None:
    with pytest.raises(ValueError, match="5"):
        growth(tp=5)


def test_the_text_report_holds_the_numbers_of_the_run(study: EngineStudy) -> None:
    report = "\n".join(render_text(study))
    for part in ("1,024", "787.06", "× 0.14", "15 of 31", "0 of 6,144", "PASS"):
        assert part in report
    assert "⟦" not in report


def test_facts_are_plain_json(study: EngineStudy) -> None:
    facts = json.loads(json.dumps(study.as_dict(), allow_nan=False))
    assert facts["reused_tokens"] == 1024
    assert facts["compare"][0]["with_prefix"] == 76
    assert facts["exact"][1]["same_tokens"] is True


def test_all_pictures_can_be_drawn_from_the_defaults(study: EngineStudy) -> None:
    panels = figures.fig_engine_before_after(study.tables)
    assert list(panels) == ["reused", "kv_bytes", "kcp", "compare"]
    charts = [
        figures.main_picture(study.tables),
        *panels.values(),
        *figures.draft_pictures(study.tables).values(),
        *figures.exact_picture(study.tables).values(),
    ]
    for chart in charts:
        assert chart.to_dict()["$schema"]


def test_plain_decoding_can_be_drawn() -> None:
    study = before_after(prompt_len=100, shared_len=0, new_tokens=1, draft_len=0)
    figures.main_picture(study.tables).to_dict()
    figures.draft_pictures(study.tables)
