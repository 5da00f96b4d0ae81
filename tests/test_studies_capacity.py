"""Studies of capacity and of the first screen, and the pictures made of them."""

import json
import math

import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from k3core.capacity.pools import GIB
from k3core.capacity.presets import PRESETS
from k3core.capacity.profiles import PROFILES, get_profile
from k3core.capacity.schemes import SCHEMES
from k3core.errors import CapacityError
from k3core.figures import capacity as figures
from k3core.figures import home as home_figures
from k3core.figures import style
from k3core.studies.capacity import MAX_TOKENS, drafts, grid, plan, printed, published, read
from k3core.studies.home import two_memories

MIB = 2**20

plans = st.fixed_dictionaries(
    {
        "model": st.sampled_from(list(PRESETS)),
        "tp": st.sampled_from([1, 2, 4, 8, 16]),
        "state_dtype": st.sampled_from(["float32", "bfloat16"]),
        "mla_dtype": st.sampled_from(["float8", "bfloat16"]),
        "draft_len": st.integers(0, 15),
        "rollback_scheme": st.sampled_from(list(SCHEMES)),
        "mean_tokens": st.integers(1, MAX_TOKENS),
        "budget_gib": st.floats(0.001, 500),
        "pool_rule": st.sampled_from(list(PROFILES)),
        "slots_per_request": st.integers(1, 5),
    }
)


# The planner


def test_bill_of_k3_at_8192_tokens():
    """State 69 x 786,432, window 69 x 27,648, MLA 8,192 x 13,824, raw inputs 6,809,472 and seven
    window rows 4,451,328, four reserved slots of 56,171,520."""
    bill = plan().tables["bill"].set_index("part")["bytes"]
    assert bill.to_dict() == {
        "state": 54_263_808,
        "conv_window": 1_907_712,
        "reserved_slots": 224_686_080,
        "rollback": 11_260_800,
        "mla": 113_246_208,
        "padding": 0,
    }


@settings(max_examples=20)
@given(plans)
def test_bill_parts_stack_without_gap_and_sum_to_the_request(params):
    study = plan(**params)
    bill = study.tables["bill"]
    assert (bill["bytes"] >= 0).all()
    assert bill["start"].iloc[0] == 0
    assert (bill["start"].iloc[1:].to_numpy() == bill["end"].iloc[:-1].to_numpy()).all()
    assert bill["end"].iloc[-1] == study.request_bytes
    assert study.max_requests * study.request_bytes <= params["budget_gib"] * GIB


@settings(max_examples=20)
@given(plans)
def test_what_fits_stays_under_every_roof_of_its_pool_rule(params):
    roofs = (
        plan(**params).tables["roofs"].pivot(index="mean_tokens", columns="roof", values="requests")
    )
    split = params["pool_rule"] == "split"
    names = {"state-slots", "mla-cache"} if split else {"one-pool"}
    assert set(roofs) == names | {"both"}
    for name in names:
        assert (roofs["both"] <= roofs[name]).all()
    assert roofs["both"].is_monotonic_decreasing
    if split:
        assert roofs["state-slots"].nunique() == 1
    else:
        assert (roofs["both"] == roofs["one-pool"].map(math.floor)).all()


@pytest.mark.parametrize(("tokens", "admitted"), [(8_192, 116), (65_536, 29)])
def test_in_one_pool_the_demands_add_up_under_one_roof(tokens, admitted):
    study = plan(pool_rule="blocks", mean_tokens=tokens)
    assert study.verdict == "one-pool"
    (roof,) = study.planned.roofs
    assert roof.code == "one-pool"
    assert study.max_requests == math.floor(roof.requests) == admitted
    assert "knee" not in set(study.tables["marks"]["mark"])


@settings(max_examples=20)
@given(plans)
def test_pools_add_up_to_the_budget(params):
    study = plan(**params)
    pools = study.tables["pools"]
    assert (pools["bytes"] >= 0).all()
    assert pools["bytes"].sum() == math.floor(params["budget_gib"] * GIB)
    assert pools.loc[pools["part"] == "idle", "bytes"].sum() == study.idle_bytes


def test_public_boot_log_admits_51_requests():
    """SGLang boot log of K3 at TP8: 257 slots, 5 per request, 51 in flight; knee near 22.6 K."""
    study = plan(
        draft_len=0, rollback_scheme="snapshots-state-only", mean_tokens=9216, budget_gib=28.5
    )
    assert study.max_requests == 51
    assert study.verdict == "state-slots"
    marks = study.tables["marks"].set_index("mark")["mean_tokens"]
    assert marks["knee"] == pytest.approx(22_600, rel=0.02)


def test_knee_is_where_the_verdict_turns():
    knee = plan().tables["marks"].set_index("mark").loc["knee", "mean_tokens"]
    assert plan(mean_tokens=math.floor(knee * 0.9)).verdict == "state-slots"
    assert plan(mean_tokens=math.ceil(knee * 1.1)).verdict == "mla-cache"


def test_best_ratio_admits_at_least_as_many_as_any_other():
    study = plan(mean_tokens=8192)
    again = plan(mean_tokens=8192, state_pool_ratio=study.best_ratio)
    assert again.max_requests == study.best_ratio_requests
    assert study.best_ratio_requests >= study.max_requests


@settings(max_examples=20)
@given(plans)
def test_best_ratio_is_that_of_the_inverse_and_none_admits_more(params):
    study = plan(**params | {"pool_rule": "split"})
    assert study.best_ratio == pytest.approx(study.target.pool_ratio)
    assert study.best_ratio_requests >= study.tables["ratios"]["requests"].max()


def test_in_one_pool_requests_follow_whole_blocks():
    """The arithmetic: 28.5 GiB over (token blocks + state blocks) and records beside the pool."""
    table = plan(pool_rule="blocks").tables["schemes"].set_index("scheme")
    budget = math.floor(28.5 * GIB)
    assert (table["requests"] == budget // table["request_bytes"]).all()
    align, state_only = table.loc["snapshots-align"], table.loc["snapshots-state-only"]
    assert align["extra_bytes"] > state_only["extra_bytes"]
    assert (align["state_blocks"], state_only["state_blocks"]) == (3 * 9, 3 * (2 + 8))
    assert (align["requests"], state_only["requests"]) == (43, 40)
    assert table.loc["corrections", "block_tokens"] > table.loc["raw-inputs", "block_tokens"]


def test_table_per_degree_is_the_published_one():
    """Kimi K3: 428.55, 214.28, 107.14, 53.57, 26.78 MiB per request and rank, TP1 to TP16."""
    table = plan().tables["by_tp"]
    assert list(table["tp"]) == [1, 2, 4, 8, 16]
    mib = [428.55, 214.28, 107.14, 53.57, 26.78]
    assert list(table["state_bytes_per_request"] / MIB) == pytest.approx(mib, abs=0.006)
    assert set(table["mla_bytes_per_token"]) == {13_824}
    assert list(table["break_even_tokens"]) == [32_507, 16_254, 8_127, 4_064, 2_032]
    assert table.loc[table["chosen"], "tp"].item() == 8


def test_crossings_lie_on_both_lines():
    growth = plan().tables["growth"]
    crossing = growth[growth["memory"] == "crossing"]
    assert list(crossing["bytes"]) == pytest.approx(list(crossing["tokens"] * 13_824))


def test_schemes_stand_side_by_side_with_their_published_bytes():
    table = plan(draft_len=7).tables["schemes"].set_index("scheme")
    assert set(table.index) == set(SCHEMES)
    assert table.loc["snapshots-state-only", "buffer_bytes"] == 414 * MIB
    assert table.loc["raw-inputs", "buffer_bytes"] == 6_809_472
    assert table.loc["low-rank-inputs", "bytes_per_token_layer"] == 9_496
    assert table.loc[table["chosen"]].index.item() == "raw-inputs"
    assert (table["requests"] > 0).all()


def test_cheaper_schemes_never_admit_fewer():
    for rule in PROFILES:
        table = plan(pool_rule=rule, mean_tokens=2048).tables["schemes"]
        records = table[table["keeps"] == "records"]
        states = table[table["keeps"] == "states"]
        assert records["requests"].min() > states["requests"].max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 5}, "tp=5"),
        ({"model": "k9"}, "k9"),
        ({"budget_gib": 0.0}, "budget_gib=0"),
        ({"mean_tokens": 0}, "mean_tokens=0"),
        ({"rollback_scheme": "none"}, "none"),
        ({"pool_rule": "heap"}, "heap"),
        ({"draft_len": 16, "rollback_scheme": "flush-ring"}, "draft_len=16"),
    ],
)
def test_impossible_plans_are_refused_by_name(changes, message):
    with pytest.raises(CapacityError, match=message):
        plan(**changes)


def test_a_budget_below_one_request_says_so():
    study = plan(budget_gib=0.1)
    assert (study.max_requests, study.verdict) == (0, "nothing-fits")


def test_every_profile_is_dated_and_sourced():
    for code, profile in PROFILES.items():
        assert get_profile(code) is profile
        assert profile.date
        assert profile.source


# The first screen


def test_first_screen_crosses_at_4064_whole_tokens():
    study = two_memories()
    assert study.state_bytes_per_request == 56_171_520
    assert study.mla_bytes_per_token == 13_824
    assert study.break_even_len == pytest.approx(4_063.33, abs=0.01)
    assert study.break_even_tokens == 4_064


def test_one_memory_grows_and_one_does_not():
    growth = two_memories().tables["growth"]
    assert growth["kda"].nunique() == 1
    assert (growth["mla"] == growth["tokens"] * 13_824).all()


@pytest.mark.parametrize("model", PRESETS)
def test_first_screen_is_drawn_for_every_preset(model):
    study = two_memories(model, 8, mla_dtype=PRESETS[model].mla_dtype)
    assert 0 < study.break_even_len < MAX_TOKENS
    assert study.tables["crossing"]["bytes"].item() == study.state_bytes_per_request


# Pictures

TOY_BLOCKS = {"model": "toy", "pool_rule": "blocks", "budget_gib": 0.5, "mla_dtype": "bfloat16"}
CASES = [
    {},
    {"pool_rule": "blocks", "mean_tokens": 2**20},
    {"budget_gib": 0.01, "draft_len": 0},
    TOY_BLOCKS,
]


def all_charts(params):
    tables = plan(**params).tables
    return {
        "bill": figures.bill(tables),
        "main": figures.main_picture(tables),
        **figures.fig_schemes(tables),
        **figures.fig_pools(tables),
        **figures.fig_break_even(tables),
    }


@pytest.mark.parametrize("params", CASES, ids=["default", "blocks", "nothing", "toy"])
def test_every_picture_compiles_with_words_for_every_key(params):
    for name, chart in all_charts(params).items():
        spec = style.dress(chart, "capacity", dark=bool(params)).to_dict()
        assert "capacity." not in json.dumps({k: v for k, v in spec.items() if k != "datasets"})
        assert vl_convert.vegalite_to_vega(spec)["marks"], name


def test_first_picture_compiles_with_words_for_every_key():
    chart = home_figures.main_picture(two_memories().tables)
    spec = style.dress(chart, "home").to_dict()
    assert '"home.' not in json.dumps(spec)
    assert vl_convert.vegalite_to_vega(spec)["marks"]


def test_codes_in_the_tables_have_words():
    words = style.label_map("capacity")
    columns = {
        "bill": ["part"],
        "roofs": ["roof"],
        "point": ["verdict"],
        "marks": ["mark"],
        "schemes": ["scheme", "keeps", "numerics"],
        "pools": ["pool", "part"],
    }
    for params in CASES:
        tables = plan(**params).tables
        for table, names in columns.items():
            for name in names:
                assert set(tables[table][name]) <= set(words), (table, name)


def test_named_panels_follow_the_pool_rule():
    assert set(figures.fig_pools(plan().tables)) == {"pools", "ratios"}
    assert set(figures.fig_pools(plan(pool_rule="blocks").tables)) == {"pools"}


def test_bill_axis_steps_by_powers_of_two():
    limits = set()
    for tokens in range(8192, 65536, 8192):
        axis = figures.bill(plan(mean_tokens=tokens).tables).to_dict()["layer"][0]["encoding"]["x"]
        limits.add(axis["scale"]["domain"][1])
    assert all(math.log2(limit).is_integer() for limit in limits)
    assert len(limits) <= 3


# The other scenes


def test_two_configurations_are_drawn_in_one_picture():
    one, other = plan().tables, plan(slots_per_request=1, mla_dtype="bfloat16").tables
    tables = one | {f"{name}_b": other[name] for name in ("bill", "roofs", "point")}
    for chart in (figures.bill(tables), figures.main_picture(tables)):
        spec = style.dress(chart, "capacity").to_dict()
        assert vl_convert.vegalite_to_vega(spec)["marks"]
    assert set(one["bill"]["part"]) == set(other["bill"]["part"])


def test_every_degree_that_divides_the_heads_has_a_row():
    assert list(plan().tables["every_tp"]["tp"]) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]


def test_drafts_take_requests_and_give_tokens():
    study = drafts(pool_rule="blocks", rollback_scheme="snapshots")
    counts = study.tables["counts"]
    assert counts["tokens_per_step"].is_monotonic_increasing
    assert counts["requests"].is_monotonic_decreasing
    assert counts.loc[0, "gain"] == pytest.approx(1)
    assert (counts["tokens_per_step"] <= counts["drafts"] + 1).all()
    assert counts.loc[counts["chosen"], "drafts"].item() == 7


def test_measured_curve_is_read_at_the_requests_in_flight():
    """49 of 64 on a log scale: between 0.99 and 0.90, so drafting loses there."""
    study = drafts()
    assert study.balance.requests_drafted == 49
    assert study.measured_gain == pytest.approx(0.94, abs=0.005)
    assert study.tables["here"].to_dict("list") == {
        "concurrency": [49],
        "gain": [study.measured_gain],
    }
    few = drafts(budget_gib=8.0)
    assert few.balance.requests_drafted < study.break_even
    assert few.measured_gain > 1
    many = drafts(budget_gib=200.0)
    assert many.measured_gain is None
    assert many.tables["here"].empty
    assert drafts(draft_len=0).measured_gain is None


def test_only_an_unmoved_published_length_is_published():
    assert drafts().is_published
    assert drafts(draft_len=4).is_published
    assert not drafts(acceptance_len=3.85).is_published
    assert not drafts(draft_len=5).is_published


def test_low_acceptance_makes_drafts_lose_on_a_full_replica():
    study = drafts(acceptance_len=1.0, rollback_scheme="snapshots")
    assert (study.tables["counts"]["gain"].iloc[1:] < 1).all()


def test_grid_ticks_agree_only_at_common_multiples():
    study = grid(prompt_tokens=20_000, context_parallel=2)
    ticks = study.tables["ticks"]
    assert study.grid.effective == 3072
    assert set(ticks.loc[ticks["agrees"], "position"] % 3072) == {0}
    assert study.hit_tokens == 18_432
    assert (study.tables["hits"]["hit"] < study.tables["hits"]["tokens"]).all()


def test_long_prompts_keep_the_grid_drawable():
    assert len(grid(prompt_tokens=1_048_576, hash_tokens=16).tables["ticks"]) < 3000


def test_published_filter_keeps_what_it_says():
    assert published().num_shown == published().num_records == 111
    wrong = published(verdict="published-wrong").tables["records"]
    assert set(wrong["id"]) == {"31b", "46", "47", "48", "67c"}
    atom = published(subject_code="pools", words="atom RECIPE")
    assert set(atom.tables["records"]["source"]) == {"ATOM recipe K3 LMCache"}
    assert published(words="nothing of the kind").num_shown == 0


def test_a_paste_is_told_apart():
    assert read("").kind == "nothing"
    assert read("Available KV cache memory: 2.30 GiB").kind == "log"
    with pytest.raises(CapacityError, match="no JSON"):
        read("{")


@pytest.mark.parametrize("dark", [False, True])
def test_pictures_of_the_scenes_compile_with_words_for_every_key(dark):
    charts = {
        **figures.fig_drafts(drafts().tables),
        **figures.fig_grid(grid(context_parallel=8, dropped_blocks=1).tables),
        **figures.fig_published(published().tables),
        **figures.fig_printed(printed().tables),
    }
    for name, chart in charts.items():
        spec = style.dress(chart, "capacity", dark=dark).to_dict()
        assert "capacity." not in json.dumps({k: v for k, v in spec.items() if k != "datasets"})
        assert vl_convert.vegalite_to_vega(spec)["marks"], name


def test_codes_of_the_scenes_have_words():
    words = style.label_map("capacity")
    ticks = grid(context_parallel=2, retention_tokens=4096, dropped_blocks=1).tables["ticks"]
    assert set(ticks["unit"]) <= set(words)
    ratios = published().tables["ratios"]
    assert set(ratios["verdict"]) | set(ratios["subject"]) <= set(words)
    assert set(drafts().tables["load"]["curve"]) <= set(words)
    assert set(printed().tables["lengths"]["rule"]) <= set(words)


def test_printed_tokens_move_with_the_limit_though_the_pool_stays():
    """ATOM recipe: 1,887,436 tokens at 65,536; 24 blocks of attention and 12 of states each."""
    study = printed()
    assert study.pool.tokens == 1_887_436
    lengths = study.tables["lengths"].pivot(index="limit", columns="rule", values="tokens")
    assert lengths["printed_2025"].nunique() == 1
    assert lengths["printed_2026"].nunique() > 10
    assert lengths.loc[65_536, "printed_2026"] == 1_887_436
    assert printed(block_tokens=0, fixed_blocks=59).tables["lengths"].empty


def test_requests_without_drafts_are_those_of_the_plan_without():
    for rule in PROFILES:
        assert plan(pool_rule=rule).requests_plain == plan(pool_rule=rule, draft_len=0).max_requests


def test_a_mean_beyond_the_axis_lengthens_it():
    roofs = plan(mean_tokens=3 * MAX_TOKENS).tables["roofs"]["mean_tokens"]
    assert roofs.max() == 4 * MAX_TOKENS
    assert plan(mean_tokens=MAX_TOKENS).tables["roofs"]["mean_tokens"].max() == MAX_TOKENS


def test_a_fine_grid_over_a_long_prompt_draws_a_picture_s_worth_of_ticks():
    study = grid(prompt_tokens=2**20, hash_tokens=16, block_tokens=1, dropped_blocks=1)
    ticks = study.tables["ticks"]
    assert len(ticks) < 4000
    assert study.hit_tokens == 2**20 - 32
    assert study.tables["hits"].set_index("tokens").at[2**20, "hit"] == 2**20 - 32
    assert (ticks.loc[ticks["hit"], "position"] == study.hit_tokens).all()
    assert ticks["hit"].any()
    assert (ticks["position"] % 16 == 0)[ticks["agrees"]].all()
