"""The prefix cache's studies and pictures: numbers against hand counts, the cases of the page."""

import json

import numpy as np
import pytest

from k3core.errors import K3Error
from k3core.figures import prefix_cache as figures
from k3core.figures.style import dress, label_map
from k3core.fleet.cost import prefill_cost
from k3core.i18n import catalogue
from k3core.prefix_cache import chained_hash
from k3core.studies import prefix_cache as studies

CASES = {
    "one_short": ({}, 3072, 4096, "group_missing"),
    "healthy": ({"missing_group": "none"}, 4096, 4096, None),
    "no_checkpoint": ({"policy": "none", "missing_group": "none"}, 0, 4096, "no_checkpoint"),
    "last_token": (
        {"prompt_len": 4096, "shared_len": 4096, "missing_group": "none"},
        3584,
        4096,
        "last_token",
    ),
    "not_ready": ({"ready": False, "missing_group": "none"}, 0, 0, "not_ready"),
    "fork": (
        {"first_tail": 900, "policy": "last", "missing_group": "none"},
        0,
        4096,
        "no_checkpoint",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_ends_as_its_name_says(case):
    params, matched, mla, reason = CASES[case]
    found = studies.lookup(**params)
    assert (found.matched_tokens, found.mla_tokens, found.reason) == (matched, mla, reason)


def test_the_default_lookup_is_the_one_of_the_picture():
    segments = studies.lookup().tables["segments"]
    assert list(segments["kind"]) == ["reused", "lost", "new"]
    assert list(segments["tokens"]) == [3072, 1024, 1104]


def test_the_gap_names_its_boundary_and_groups():
    found = studies.lookup()
    assert (found.gap_tokens, found.gap_groups) == (4096, (1,))
    assert studies.lookup(missing_group="all").gap_groups == ()


@pytest.mark.parametrize("case", CASES)
def test_segments_cover_the_prompt_without_gap(case):
    found = studies.lookup(**CASES[case][0])
    segments = found.tables["segments"]
    assert list(segments["start"]) == [0, *segments["end"][:-1]]
    assert segments["end"].iloc[-1] == found.prompt_len
    assert found.tables["account"]["tokens"].sum() == found.prompt_len


def test_shown_hashes_are_the_chain_of_the_real_tokens():
    found = studies.lookup(prompt_len=100, shared_len=64, block_tokens=16, seed=3)
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 163_840, 64)
    parent = b""
    for row in found.tables["blocks"].head(4).itertuples():
        digest = chained_hash(parent, tokens[row.start : row.end])
        assert row.hash == digest.hex()[:12]
        assert row.parent == (parent.hex()[:12] or '""')
        parent = digest


def test_one_full_set_of_checkpoints_weighs_a_k3_state():
    assert studies.lookup(policy="last", missing_group="none").kept_bytes == 56_171_520
    assert studies.lookup().num_states == 11


def test_checkpoints_beyond_the_shared_part_are_not_on_the_second_prompts_path():
    found = studies.lookup(first_tail=900, policy="last", missing_group="none")
    assert list(found.tables["kept"]["boundary"]) == [5120]
    assert len(found.tables["checkpoints"]) == 0


def test_a_missing_group_is_drawn_hollow_where_it_is_missing_only():
    table = studies.lookup().tables["checkpoints"]
    hollow = table[table["status"] == "state_missing"]
    assert [(row.group, row.boundary) for row in hollow.itertuples()] == [(1, 4096)]
    pending = studies.lookup(ready=False, missing_group="none").tables
    assert set(pending["checkpoints"]["status"]) == {"state_pending"}
    assert set(pending["blocks"]["status"]) == {"block_pending", "block_absent"}


@pytest.mark.parametrize(
    "bad",
    [
        {"shared_len": 6000},
        {"first_tail": -1},
        {"policy": "always"},
        {"missing_group": "7"},
        {"block_tokens": 0},
    ],
)
def test_impossible_parameters_are_named(bad):
    with pytest.raises(K3Error, match=next(iter(bad)) if "block_tokens" not in bad else "block"):
        studies.lookup(**bad)


def test_misses_are_the_two_of_the_source_text():
    missed = studies.misses()
    verdicts = missed.tables["verdicts"]
    first = verdicts[verdicts["scenario"] == "no_checkpoint"]
    assert list(first["code"]) == ["verdict_miss", "verdict_found", "verdict_computed"]
    assert list(first["tokens"]) == [0, 1024, 1536]
    partial = verdicts[verdicts["scenario"] == "partial"]
    assert partial["code"].iloc[0] == "verdict_hit"
    assert list(partial["tokens"]) == [512, 1024, 1024]


def test_the_ladder_climbs_at_the_complete_boundaries_only():
    table = studies.ladder(
        prompt_len=75,
        shared_len=60,
        block_tokens=8,
        num_groups=2,
        every_blocks=3,
        missing_group="0",
        missing_boundary=48,
    ).tables["ladder"]
    lines = table.pivot(index="num_tokens", columns="series", values="tokens")
    complete = (24, 56)  # every third block and the replay boundary (60 - 1) // 8 * 8, without 48
    for num_tokens in range(1, 76):
        row = lines[lines.index <= num_tokens].iloc[-1]
        assert row["reused"] == max((at for at in complete if at < num_tokens), default=0)
        assert row["ceiling"] == (num_tokens - 1) // 8 * 8
        assert row["deepest_match"] == min(num_tokens // 8 * 8, 56)


def test_dense_checkpoints_leave_no_step_below_the_match():
    assert studies.ladder(every_blocks=1, missing_group="none").num_below == 0
    assert studies.ladder().num_below > 0


@pytest.mark.parametrize("seed", [0, 7])
def test_independent_hashes_give_a_false_hit_and_chained_ones_do_not(seed):
    hashed = studies.hash_schemes(seed=seed)
    assert hashed.chained_error == 0
    assert hashed.false_tokens == hashed.block_tokens == hashed.true_tokens
    assert hashed.state_error > 0.1
    blocks = hashed.tables["blocks"]
    asked = blocks[(blocks["prompt"] == "asked") & (blocks["index"] == 1)].set_index("scheme")
    assert asked.loc["chained", "status"] == "not_found"
    assert asked.loc["independent", "status"] == "false_match"


def test_cost_of_the_400k_prefix_is_the_formula():
    work = studies.cost()
    linear = 2 * 104.2e9 + 69 * 96 * (6 * 128**2 + 3 * 64 * 128 + 64**2)
    pair = 24 * 96 * (192 + 128)
    assert work.hit_tokens == 400_000 // 512 * 512
    assert work.missed_flops == pytest.approx(linear * 404_000 + pair * 404_000**2)
    reused = work.hit_tokens
    assert work.hit_flops == pytest.approx(
        linear * (404_000 - reused) + pair * (404_000**2 - reused**2)
    )
    assert work.tables["parts"]["flops"].sum() == pytest.approx(work.missed_flops + work.hit_flops)
    assert work.kept_bytes == reused * 13_824 + 56_171_520


def test_cost_ratio_is_the_fleets():
    work, price = studies.cost(), prefill_cost("kimi-k3")
    seconds = price.seconds(404_000), price.seconds(404_000, work.hit_tokens)
    assert work.ratio == pytest.approx(seconds[0] / seconds[1])


def test_a_model_without_published_widths_is_refused():
    with pytest.raises(K3Error, match="toy"):
        studies.cost(model="toy")


# ---- pictures -----------------------------------------------------------------------------------


def _pictures():
    found = studies.lookup()
    yield "main", figures.main_picture(found.tables)
    for figure, result in (
        (figures.fig_prefix_hit, found),
        (figures.fig_prefix_miss, studies.misses()),
        (figures.hash_pictures, studies.hash_schemes()),
        (figures.ladder_picture, studies.ladder()),
        (figures.cost_pictures, studies.cost()),
    ):
        yield from figure(result.tables).items()


def test_every_panel_has_words_for_all_its_keys():
    names = []
    for name, chart in _pictures():
        text = json.dumps(dress(chart, "prefix_cache").to_dict())
        assert "prefix_cache." not in text.replace("k3core", ""), name
        names.append(name)
    assert len(names) == 10


def test_every_code_in_the_data_has_a_word():
    words = label_map("prefix_cache")
    codes = set()
    for case, _, _, _ in CASES.values():
        tables = studies.lookup(**case).tables
        for table, column in (
            ("segments", "code"),
            ("segments", "kind"),
            ("first", "code"),
            ("blocks", "status"),
            ("checkpoints", "status"),
            ("checkpoints", "row"),
            ("rules", "rule"),
            ("flow", "box"),
        ):
            codes |= set(tables[table][column])
    codes |= set(studies.misses().tables["verdicts"]["code"])
    codes |= set(studies.hash_schemes().tables["blocks"]["status"])
    codes |= set(studies.ladder().tables["ladder"]["series"])
    codes |= set(studies.cost().tables["parts"]["part"])
    assert codes <= set(words)


def test_every_reason_has_a_word():
    texts = catalogue("en")
    for reason in ("nothing", *(case[3] for case in CASES.values() if case[3])):
        assert f"prefix_cache.reason.{reason}" in texts


def test_a_prompt_without_a_full_block_still_draws():
    found = studies.lookup(prompt_len=64, shared_len=0, missing_group="none")
    assert found.reason is None
    for chart in (
        figures.main_picture(found.tables),
        *figures.fig_prefix_hit(found.tables).values(),
    ):
        assert dress(chart, "prefix_cache").to_dict()["layer"]
