"""Hit ladder, policies, working set and player: numbers against published and hand-made ones."""

import json

import pandas as pd
import pytest

from k3core.errors import K3Error
from k3core.figures import prefix_cache as figures
from k3core.figures.style import dress, label_map
from k3core.prefix_cache.granularity import HitGranularity
from k3core.prefix_cache.retention import Retention
from k3core.studies import prefix_cache as studies
from k3core.studies.fleet import store_trace
from k3core.studies.prefix_cache import traffic

# ---- ladder -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def k3_stairs():
    return studies.stairs()


def test_every_published_hit_is_found_and_one_is_a_defect(k3_stairs):
    points = k3_stairs.tables["published"]
    assert (points["found"] == points["hit_tokens"]).all()
    off = points[points["verdict"] == "off_stairs"]
    assert list(off["source"]) == ["vLLM #50235"]
    assert (off["first_len"].iloc[0], off["num_tokens"].iloc[0]) == (3072, 3073)
    assert k3_stairs.num_reproduced == k3_stairs.num_published == 11


def test_every_length_of_k3_at_tp8_reaches_the_ceiling(k3_stairs):
    assert (k3_stairs.physical_block, k3_stairs.num_lengths) == (1536, 3 * 1536 + 2)
    assert k3_stairs.num_below == 0
    steps = k3_stairs.tables["stairs"]
    reused = steps[steps["series"] == "reused"]
    assert list(reused["num_tokens"]) == [1536, 1537, 3073, 4609, 6145]
    assert list(reused["tokens"]) == [0, 1536, 3072, 4608, 6144]


def test_states_at_the_prompts_end_only_never_help_the_same_prompt(k3_stairs):
    steps = k3_stairs.tables["stairs"]
    assert (steps[steps["series"] == "chunk_only"]["tokens"] == 0).all()
    assert studies.stairs(rule="chunk_end").num_below == 3 * 1536 + 1


def test_a_drafter_takes_one_block_from_every_step():
    found = studies.stairs(drafter_drop=True)
    assert found.worst_loss == 1536
    assert found.num_below == found.num_lengths - 1


@pytest.mark.parametrize(
    ("deployment", "block"),
    [
        ({"tp": 8, "mla_dtype": "bfloat16"}, 768),
        ({"tp": 16}, 768),
        ({"context_parallel": 8}, 12_288),
        ({"model": "kimi-linear-48b", "tp": 2, "mla_dtype": "bfloat16"}, 1024),
    ],
)
def test_the_granularity_follows_the_deployment(deployment, block):
    assert studies.stairs(**deployment).physical_block == block


def test_a_finer_match_unit_gives_finer_steps():
    found = studies.stairs(hash_block_tokens=512)
    assert (found.match_unit, found.physical_block, found.num_below) == (512, 1536, 0)


def test_the_shared_prefix_of_vllm_45238(k3_stairs):
    assert k3_stairs.sharing_hits("chunk_end", 1600) == 52
    assert k3_stairs.sharing_hits("chunk_end", 1500) == 0
    assert k3_stairs.sharing_hits("junction", 1500) == 52


def test_an_unknown_rule_is_named():
    with pytest.raises(K3Error, match="always"):
        studies.stairs(rule="always")


# ---- traffic ------------------------------------------------------------------------------------


def test_a_history_sent_whole_contains_what_was_generated():
    talk = traffic.Talk(1, turns=2, opening_len=640, message_len=64)
    first, second = talk.arrivals(64)
    grown = first.prompt.copy()
    grown.append(first.output)
    assert second.prompt.block_hashes[: len(grown.block_hashes)] == grown.block_hashes


def test_a_stripped_history_parts_at_the_first_reasoning():
    talk = traffic.Talk(1, turns=2, opening_len=640, message_len=64, history="stripped")
    first, second = talk.arrivals(64)
    grown = first.prompt.copy()
    grown.append(first.output)
    assert second.prompt.block_hashes[:10] == grown.block_hashes[:10]
    assert second.prompt.block_hashes[10] != grown.block_hashes[10]
    assert second.prompt.num_tokens == 640 + talk.answer_len + 64


def test_serving_leaves_the_requests_as_they_were():
    requests = list(traffic.Talk(2, turns=2, opening_len=2_000).arrivals(512))
    before = [arrival.prompt.num_tokens for arrival in requests]
    rates = set()
    for _ in range(2):
        manager = traffic.make_manager(60, HitGranularity(512), Retention("junction"))
        rates.add(traffic.serve_all(manager, requests).reused_tokens)
        manager.check()
    assert [arrival.prompt.num_tokens for arrival in requests] == before
    assert len(rates) == 1


def test_the_account_of_a_run_is_all_its_prompt_tokens():
    manager = traffic.make_manager(20, HitGranularity(512), Retention("dense"))
    served = traffic.serve_all(manager, traffic.Talk(3, opening_len=3_000).arrivals(512))
    assert sum(served.losses.values()) == served.prompt_tokens
    assert served.losses["evicted"] > 0


def test_a_request_that_never_fits_is_counted():
    manager = traffic.make_manager(4, HitGranularity(512), Retention("junction"))
    served = traffic.serve_all(manager, traffic.Talk(1, turns=1, opening_len=4_000).arrivals(512))
    assert (served.num_refused, served.reused_tokens) == (1, 0)


# ---- policies -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared():
    return studies.policies()


def test_only_a_junction_or_dense_states_bring_a_shared_prompt_back(compared):
    rates = {code: float(compared.row("shared", code)["hit_rate"]) for code in studies.POLICY_CODES}
    assert rates["replay"] == rates["chunk_end"] == 0
    assert 0.5 < rates["junction"] <= rates["dense"]
    weight = {c: int(compared.row("shared", c)["checkpoint_bytes"]) for c in rates}
    assert weight["junction"] < 0.6 * weight["dense"]


def test_one_checkpoint_weighs_a_k3_request(compared):
    assert compared.checkpoint_bytes == 56_171_520
    table = compared.tables["policies"]
    assert (table["checkpoint_bytes"] == table["kda"] // 3 * 56_171_520).all()


def test_a_cap_holds_the_states_of_a_conversation_down(compared):
    capped, dense = (compared.row("turns", code) for code in ("capped", "dense"))
    assert capped["kda"] < dense["kda"]
    assert studies.policies(max_per_path=1).row("turns", "capped")["kda"] < capped["kda"]


def test_reasoning_that_is_not_sent_again_cannot_be_reused():
    whole = studies.policies().row("turns", "dense")
    stripped = studies.policies(history="stripped").row("turns", "dense")
    assert stripped["reused_tokens"] < whole["reused_tokens"]


# ---- working set --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fell():
    return studies.cliff()


def test_both_ends_of_the_interval_lose_on_a_small_pool(fell):
    assert fell.pools == (90, 180, 360)
    assert max(fell.dense_share, fell.sparse_share) < 0.05
    assert fell.best > 0.9


def test_a_larger_pool_is_never_worse(fell):
    for name, axis in (("interval", "interval"), ("alive", "alive")):
        shares = fell.tables[name].pivot(index=axis, columns="pages", values="share")
        assert (shares[90] <= shares[180] + 1e-12).all(), name
        assert (shares[180] <= shares[360] + 1e-12).all(), name


def test_more_conversations_than_pages_reuse_nothing(fell):
    shares = fell.tables["alive"].pivot(index="alive", columns="pages", values="share")
    assert shares.loc[12, 90] == 0
    assert shares.loc[2, 90] > 0.7


def test_kept_ends_rescue_the_sparse_end(fell):
    assert studies.cliff(keep_ends=True).sparse_share > 0.9 > fell.sparse_share


def test_an_unknown_history_is_named():
    with pytest.raises(K3Error, match="forgotten"):
        studies.cliff(history="forgotten")


# ---- player -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", studies.SCENARIOS)
@pytest.mark.parametrize("pages", [12, 20])
def test_every_step_of_every_scenario_keeps_the_accounts(scenario, pages):
    last = len(studies.SCENARIOS[scenario])
    for step in range(last + 1):
        shown = studies.player(scenario, step, num_pages=pages)  # checks the manager itself
        assert len(shown.results) == step
        assert shown.num_free + shown.num_cached + shown.num_owned == pages
        order = shown.tables["pages"].query("order > 0")["order"]
        assert sorted(order) == list(range(1, shown.num_free + shown.num_cached + 1))


def result(scenario, step, **params):
    return studies.player(scenario, step, **params).results[-1]


def test_nothing_is_found_before_it_is_written():
    assert result("abort", 2) == ("missed", {"reused": 0, "lost": 2048, "reason": "not_ready"})
    assert result("abort", 5)[1]["reused"] == 1024
    assert result("abort", 7) == ("found", {"reused": 1024, "lost": 0, "reason": "nothing"})


def test_a_salt_separates_tenants_in_both_stages():
    assert result("salt", 7) == ("missed", {"reused": 0, "lost": 0, "reason": "nothing"})
    assert result("salt", 8)[1]["reused"] == 1536


def test_the_second_sighting_makes_the_branch_reusable():
    assert result("branch", 8)[0] == "missed"
    assert result("branch", 16) == ("found", {"reused": 1024, "lost": 0, "reason": "nothing"})
    assert result("branch", 16, rule="replay")[0] == "missed"


def test_siblings_leave_together():
    states = studies.player("evict", 8).tables["states"]
    assert set(states[states["boundary"] == 1536]["status"]) == {"state_evicted"}


def test_orphans_are_counted_unless_eviction_cascades():
    assert studies.player("evict", 10, "dense").num_orphans > 0
    assert studies.player("evict", 10, "dense", cascade=True).num_orphans == 0


def test_orphans_keep_their_name_in_the_pool():
    pages = studies.player("evict", 10, "dense").tables["pages"]
    assert sorted(pages[pages["place"] == "cached"]["content"]) == [
        "a|0",
        "a|1",
        "b",
        "b|0",
        "b|1",
        "c",
    ]


def test_blocks_that_two_prompts_share_lie_in_one_page():
    blocks = studies.player("branch", 15).tables["blocks"]
    pages = blocks[blocks["letter"].isin(["a", "b"])].groupby("letter")["page"]
    assert (pages.nunique() == 1).all()


def test_a_step_outside_is_named():
    with pytest.raises(K3Error, match="step=99"):
        studies.player("turns", 99)


# ---- pictures -----------------------------------------------------------------------------------


def pictures():
    yield from figures.stairs_pictures(studies.stairs().tables).items()
    yield from figures.policy_pictures(studies.policies().tables).items()
    yield from figures.cliff_pictures(studies.cliff().tables).items()
    yield from figures.account_picture(studies.lookup().tables).items()
    for step in (0, 8):
        yield from figures.player_pictures(studies.player("branch", step).tables).items()


def test_every_panel_has_words_and_a_valid_schema():
    for name, chart in pictures():
        text = json.dumps(dress(chart, "prefix_cache").to_dict())
        assert "prefix_cache." not in text.replace("k3core", ""), name


def test_every_code_has_a_word():
    words = label_map("prefix_cache")
    tables = studies.stairs().tables
    codes = set(tables["stairs"]["series"]) | set(tables["rule"]["series"])
    codes |= set(tables["published"]["verdict"]) | set(tables["sharing"]["rule"])
    codes |= set(studies.POLICY_CODES)
    for step in range(len(studies.SCENARIOS["full"]) + 1):
        shown = studies.player("full", step).tables
        for table, column in (
            ("blocks", "status"),
            ("states", "status"),
            ("pages", "kind"),
            ("pages", "place"),
        ):
            frame: pd.DataFrame = shown[table]
            codes |= set(frame[column])
    assert codes <= set(words)


# ---- traces -------------------------------------------------------------------------------------


def test_a_trace_is_replayed_whole_under_every_rule_without_chunks():
    lines = [
        json.dumps(
            {
                "timestamp": 1000 * turn,
                "input_length": 3000 + 512 * turn,
                "output_length": 10,
                "hash_ids": [*range(5 + turn), 100 + turn],
            }
        )
        for turn in range(3)
    ]
    key = store_trace("\n".join(lines).encode()).key
    compared = studies.policies(trace=key)
    assert compared.num_requests["trace"] == 3
    traced = compared.tables["policies"].query("workload == 'trace'").set_index("policy")
    assert list(traced.index) == ["replay", "interval", "junction", "capped", "dense"]
    assert traced.loc["dense", "prompt_tokens"] == 3000 + 3512 + 4024
    assert traced.loc["dense", "reused_tokens"] == 5 * 512 + 6 * 512
    assert len(figures.policy_pictures(compared.tables)) == 6


# ---- own operations -----------------------------------------------------------------------------


def test_write_alone_is_block_by_block_and_rest_is_the_whole_prompt():
    steps = studies.parse_steps("register A ab t1;write A\nwrite A 1, write A rest")
    assert [(step.action, step.upto) for step in steps] == [
        ("register", 0),
        *(("write", upto) for upto in (1, 2, -1, 1, -1)),
    ]
    assert {(step.blocks, step.salt) for step in steps if step.action == "register"} == {
        ("ab", "t1")
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no operation"),
        ("register A", "no blocks yet"),
        ("register A abcdef", "step 1"),
        ("register A ab, write A 3", "A has 2 blocks"),
        ("register A ab, look_up A abc", "A is ab; take another letter"),
        ("register A ab, register A ab t2", "A is ab; take another letter"),
        ("evict_state A 1", "no blocks yet"),
        ("reset now", "no such operation"),
        (", ".join(["reset"] * 61), "at most 60"),
        (", ".join(f"look_up {name} a" for name in "ABCDEFG"), "at most 6"),
        (None, "steps=None"),
    ],
)
def test_operations_that_cannot_be_are_named(text, named):
    with pytest.raises(K3Error, match=named):
        studies.parse_steps(text)


def test_a_request_that_runs_is_not_admitted_again():
    own = "register A abc, register A, end A, register A"
    codes = [code for code, _ in studies.player("own", 4, own=own).results]
    assert codes == ["admitted", "running_already", "released", "admitted"]
