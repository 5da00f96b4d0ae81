"""Two pools and one pool of blocks: what they admit, against published values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.memory import RequestMemory
from k3core.capacity.pools import GIB, SplitPools, Verdict
from k3core.capacity.presets import PRESETS
from k3core.capacity.rollback import rollback_cost
from k3core.capacity.schemes import SCHEMES
from k3core.dtypes import DTYPE_BYTES
from k3core.errors import CapacityError
from tests.capacity_helpers import K3_TP8, LINEAR, memories


def test_split_pools_reproduce_a_public_boot_log():
    """SGLang boot log, K3 TP8: ssm 13.04 + conv 0.46 GiB hold 257 slots, KV 15.03 GiB holds
    1,167,552 tokens; 257 // 5 slots per request = 51 in flight. GiB are rounded to 0.01."""
    state, kv = 13.04 + 0.46, 15.03
    cost = rollback_cost(K3_TP8, "snapshots-state-only", 0)
    pools = SplitPools(cost, round((state + kv) * GIB), state / kv, 5)
    one_slot = SplitPools(cost, round((state + kv) * GIB), state / kv, 1)
    assert one_slot.state_roof == pytest.approx(257, abs=1)
    assert pools.state_roof == 51
    assert pools.mla_pool_tokens == pytest.approx(1_167_552, rel=0.01 / kv)
    assert 22_500 < pools.knee_tokens < 23_000


def test_lazy_buffer_admits_a_quarter_more():
    """SGLang K3 cookbook: slots per request 5 -> 4 gives about +25 %."""
    cost = rollback_cost(K3_TP8, "snapshots-state-only", 0)
    roofs = [SplitPools(cost, 1000 * GIB, 0.9, s).state_roof for s in (5, 4)]
    assert roofs[1] / roofs[0] == pytest.approx(1.25, abs=1e-3)


@pytest.mark.parametrize(
    ("tokens", "verdict"), [(9_216, Verdict.STATE), (65_536, Verdict.MLA), (10**9, "nothing-fits")]
)
def test_split_pools_name_the_roof(tokens, verdict):
    pools = SplitPools(rollback_cost(K3_TP8, "raw-inputs", 0), 28 * GIB)
    assert pools.verdict(tokens) == verdict


def test_split_pools_are_balanced_at_the_knee():
    pools = SplitPools(rollback_cost(K3_TP8, "raw-inputs", 0), 28 * GIB)
    assert pools.verdict(math.floor(pools.knee_tokens)) == Verdict.BALANCED


def test_block_pool_reproduces_kimi_linear_tp2():
    """vLLM #28228: block 960 (quantum 64, bf16), groups 7/7/7/6, 318 blocks of 7,741,440 B,
    2.48x at 120,000 tokens, 21 places for 20 KDA layers: padding 5.00 %."""
    memory = RequestMemory(LINEAR, tp=2)
    pool = BlockPool(rollback_cost(memory, "snapshots", 0), 318 * 7_741_440, 64)
    assert (pool.block_tokens, pool.block_bytes, pool.num_blocks) == (960, 7_741_440, 318)
    assert pool.num_kda_groups == 3
    assert pool.blocks_per_request(120_000) == 128
    assert round(pool.concurrency(120_000), 2) == 2.48
    slots_of_layers = pool.num_kda_groups * pool.layers_per_group
    assert slots_of_layers / LINEAR.num_kda_layers - 1 == pytest.approx(0.05)


def test_block_pool_takes_55_blocks_for_64k_tokens_with_two_drafts():
    """ATOM recipe Kimi-K3-LMCache-Byte-Offload: ceil(65,536 / 1,536) + 3 x (2 + 2) = 55."""
    pool = BlockPool(rollback_cost(K3_TP8, "snapshots-align", 2), 40 * GIB)
    assert pool.block_tokens == 1536
    assert pool.blocks_per_request(65_536) == 55


def test_records_lengthen_the_block_and_free_state_blocks():
    """vLLM #51855: blocks of 1,536 tokens grow to 1,792, state blocks per group fall 9 -> 2."""
    before = BlockPool(rollback_cost(K3_TP8, "snapshots-align", 7), 46 * GIB)
    after = BlockPool(rollback_cost(K3_TP8, "corrections", 7), 46 * GIB)
    assert (before.block_tokens, before.state_blocks_per_group) == (1536, 9)
    assert (after.block_tokens, after.state_blocks_per_group) == (1792, 2)


pools = st.one_of(
    st.builds(
        SplitPools,
        cost=st.builds(rollback_cost, memories, st.sampled_from(list(SCHEMES)), st.integers(0, 15)),
        budget_bytes=st.integers(1, 200 * GIB),
        ratio=st.floats(0.05, 5),
        slots_per_request=st.integers(1, 5),
    ),
    st.builds(
        BlockPool,
        cost=st.builds(rollback_cost, memories, st.sampled_from(list(SCHEMES)), st.integers(0, 15)),
        budget_bytes=st.integers(1, 200 * GIB),
        quantum=st.sampled_from([16, 64, 128, 512]),
    ),
)


@given(pools, st.integers(1, 2_000_000))
def test_what_is_admitted_fits_and_one_more_does_not_pass_both_roofs(pool, mean_tokens):
    admitted = pool.max_requests(mean_tokens)
    per_request = pool.cost.total_bytes + pool.memory.kv_bytes(mean_tokens)
    assert admitted * per_request <= pool.budget_bytes
    assert 0 <= pool.idle_bytes(mean_tokens) <= pool.budget_bytes
    assert admitted <= pool.state_roof
    assert admitted <= pool.mla_roof(mean_tokens)
    assert pool.padding_bytes(mean_tokens) >= 0
    assert (pool.verdict(mean_tokens) == Verdict.NOTHING_FITS) == (admitted == 0)


@given(pools, st.integers(1, 1_000_000))
def test_longer_requests_or_less_memory_never_admit_more(pool, mean_tokens):
    assert pool.max_requests(2 * mean_tokens) <= pool.max_requests(mean_tokens)
    fields = {f: getattr(pool, f) for f in pool.__dataclass_fields__}
    double = type(pool)(**(fields | {"budget_bytes": 2 * pool.budget_bytes}))
    assert double.max_requests(mean_tokens) >= pool.max_requests(mean_tokens)


@pytest.mark.parametrize("changes", [{"budget_bytes": 0}, {"ratio": 0.0}, {"slots_per_request": 0}])
def test_impossible_split_pools_are_refused(changes):
    arguments = {"cost": rollback_cost(K3_TP8, "raw-inputs", 7), "budget_bytes": GIB} | changes
    with pytest.raises(CapacityError, match=next(iter(changes))):
        SplitPools(**arguments)


@pytest.mark.parametrize("changes", [{"budget_bytes": -1}, {"quantum": 0}])
def test_impossible_block_pool_is_refused(changes):
    arguments = {"cost": rollback_cost(K3_TP8, "raw-inputs", 7), "budget_bytes": GIB} | changes
    with pytest.raises(CapacityError, match=next(iter(changes))):
        BlockPool(**arguments)


def test_mean_length_below_one_token_is_refused():
    pool = SplitPools(rollback_cost(K3_TP8, "raw-inputs", 7), GIB)
    with pytest.raises(CapacityError, match="num_tokens=0"):
        pool.max_requests(0)


def test_dtype_table_covers_what_the_presets_use():
    assert {p.mla_dtype for p in PRESETS.values()} <= set(DTYPE_BYTES)
