"""Byte accounting against published values; each docstring names the value and its source."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.block_pool import BlockPool
from k3core.capacity.memory import RequestMemory
from k3core.capacity.pools import GIB, SplitPools, Verdict
from k3core.capacity.presets import PRESETS, ModelPreset, get_preset
from k3core.capacity.rollback import rollback_cost
from k3core.capacity.schemes import SCHEMES
from k3core.dtypes import DTYPE_BYTES
from k3core.errors import CapacityError, K3Error

K3 = PRESETS["kimi-k3"]
LINEAR = PRESETS["kimi-linear-48b"]
GLM = PRESETS["glm-5.3-flash"]
TOY = PRESETS["toy"]
K3_TP8 = RequestMemory(K3)
KIB, MIB = 2**10, 2**20


# Presets


def test_k3_has_69_kda_and_24_mla_layers_and_ends_with_two_mla_layers():
    """config.json of Kimi K3: full_attn_layers 4, 8, ..., 92, 93 (1-based) of 93."""
    assert (K3.num_kda_layers, K3.num_mla_layers, K3.num_layers) == (69, 24, 93)
    assert K3.mla_layer_ids[:2] == (4, 8)
    assert K3.mla_layer_ids[-2:] == (92, 93)
    assert K3.kda_layer_ids[0] == 1


def test_kimi_linear_has_20_kda_and_7_mla_layers():
    """config.json of Kimi-Linear-48B-A3B: 27 layers."""
    assert (LINEAR.num_kda_layers, LINEAR.num_mla_layers, LINEAR.num_layers) == (20, 7, 27)


def test_glm_has_34_kda_and_11_mla_layers_and_ends_with_kda():
    """ATOM #2051: 45 trunk layers, MLA at 3, 7, ..., 43 counted from 0; layer 44 is KDA."""
    assert (GLM.num_kda_layers, GLM.num_mla_layers) == (34, 11)
    assert [i - 1 for i in GLM.mla_layer_ids] == list(range(3, 44, 4))
    assert GLM.kda_layer_ids[-1] == 45


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.code)
def test_layer_ids_of_both_kinds_partition_the_layers(preset):
    both = sorted(preset.kda_layer_ids + preset.mla_layer_ids)
    assert both == list(range(1, preset.num_layers + 1))
    assert len(preset.kda_layer_ids) == preset.num_kda_layers


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.code)
def test_every_preset_names_its_source_and_offers_tp8(preset):
    assert preset.source
    assert 8 in preset.valid_tps


def test_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(CapacityError, match=r"kimi-k4.*kimi-k3"):
        get_preset("kimi-k4")


def _model(**changes) -> ModelPreset:
    sizes = {
        "code": "m",
        "title": "M",
        "num_kda_layers": 3,
        "mla_layer_ids": (4,),
        "num_heads": 4,
        "dk": 8,
        "dv": 16,
        "conv_width": 4,
        "mla_latent_dim": 32,
        "mla_dtype": "bfloat16",
        "hidden_size": 64,
        "num_mla_heads": 4,
        "gate_low_rank_dim": 8,
        "source": "test",
    }
    return ModelPreset(**(sizes | changes))


@pytest.mark.parametrize(
    "changes", [{"mla_layer_ids": (0,)}, {"mla_layer_ids": (4, 4)}, {"dk": 0}, {"num_heads": -1}]
)
def test_impossible_model_is_refused(changes):
    """0-based or repeated layer ids are how layer maps go wrong (inference-sim #1635)."""
    with pytest.raises(CapacityError):
        _model(**changes)


# Memory of one request


def test_k3_tp8_state_of_one_layer():
    """786,432 B: 12 heads of 128 x 128 in fp32 (TokenSpeed #1058)."""
    assert K3_TP8.state_bytes_per_layer == 786_432


def test_k3_tp8_convolution_window_of_one_layer():
    """27,648 B: 3 rows of 4,608 channels in bf16 (TokenSpeed #1058)."""
    assert K3_TP8.conv_channels == 4_608
    assert K3_TP8.conv_bytes_per_layer == 27_648


def test_k3_tp8_layer_is_795_kib():
    """814,080 B = 795 KiB (TokenSpeed #1058)."""
    assert K3_TP8.kda_bytes_per_layer == 814_080 == 795 * KIB


def test_k3_tp8_request_is_53_57_mib():
    """56,171,520 B; SGLang #34441 prints 53.6 with the wrong unit."""
    assert K3_TP8.state_bytes_per_request == 56_171_520
    assert round(K3_TP8.state_bytes_per_request / MIB, 2) == 53.57


def test_seven_drafts_widen_the_window_to_ten_rows():
    """878,592 B per layer and 60,622,848 B = 57.81 MiB per request (ATOM #1883)."""
    memory = RequestMemory(K3, draft_len=7)
    assert memory.conv_rows == 10
    assert memory.kda_bytes_per_layer == 878_592
    assert memory.state_bytes_per_request == 60_622_848
    assert round(memory.state_bytes_per_request / MIB, 2) == 57.81


def test_two_drafts_fit_a_state_entry_of_58_22_mib():
    """ATOM recipe Kimi-K3-LMCache-Byte-Offload: each layer is padded to the page of 1,536 fp8
    tokens, 884,736 B; 69 layers are 61,046,784 B = 58.22 MiB."""
    memory = RequestMemory(K3, draft_len=2)
    assert memory.page_bytes() == 884_736
    assert 69 * memory.page_bytes() == 61_046_784
    assert round(61_046_784 / MIB, 2) == 58.22


@pytest.mark.parametrize(
    ("dtype", "per_token", "tokens"), [("float8", 13_824, 4_063), ("bfloat16", 27_648, 2_032)]
)
def test_k3_mla_bytes_per_token_and_break_even(dtype, per_token, tokens):
    """576 or 1,152 B per token and layer over 24 layers; break-even rounds to 4,063 / 2,032."""
    memory = RequestMemory(K3, mla_dtype=dtype)
    assert memory.mla_bytes_per_token == per_token
    assert round(memory.break_even_len) == tokens


def test_break_even_tokens_is_the_first_length_that_weighs_as_much():
    memory = K3_TP8
    assert memory.break_even_len == pytest.approx(56_171_520 / 13_824, rel=0, abs=0)
    assert memory.break_even_tokens == 4_064
    assert memory.kv_bytes(4_063) < memory.state_bytes_per_request <= memory.kv_bytes(4_064)


def test_mla_dtype_defaults_to_the_preset():
    assert K3_TP8.mla_dtype == "float8"
    assert RequestMemory(LINEAR).mla_dtype == "bfloat16"
    assert RequestMemory(K3, mla_dtype="float8") == K3_TP8


@pytest.mark.parametrize(
    ("tp", "layer"), [(1, 2_170_880), (2, 1_085_440), (4, 542_720), (8, 271_360)]
)
def test_kimi_linear_layer_per_tp(tp, layer):
    """2,170,880 B at TP1 down to 271,360 B at TP8: fp32 state and bf16 window (vLLM #28228)."""
    assert RequestMemory(LINEAR, tp=tp).kda_bytes_per_layer == layer


def test_kimi_linear_tp2_break_even():
    """8,064 B per token in bf16 (7 x 1,152); 2,692 tokens."""
    memory = RequestMemory(LINEAR, tp=2)
    assert memory.mla_bytes_per_token == 8_064
    assert round(memory.break_even_len) == 2_692


TP_TABLE = [
    (1, 96, 6_291_456, 6_512_640, 428.55, 6144, 92.0, 12_582_912, 221_184),
    (2, 48, 3_145_728, 3_256_320, 214.28, 3072, 92.0, 6_291_456, 110_592),
    (4, 24, 1_572_864, 1_628_160, 107.14, 1536, 92.0, 3_145_728, 55_296),
    (8, 12, 786_432, 814_080, 53.57, 1024, 69.0, 1_572_864, 27_648),
    (16, 6, 393_216, 407_040, 26.78, 512, 69.0, 786_432, 13_824),
]


@pytest.mark.parametrize(
    ("tp", "heads", "state", "layer", "mib", "block", "fill", "kcp", "halo"), TP_TABLE
)
def test_k3_table_per_tp(tp, heads, state, layer, mib, block, fill, kcp, halo):
    """K3 report 5.4.1: physical blocks of 1,024 to 6,144 tokens at TP8 to TP1 (quantum 512,
    bf16); fla #691: context-parallel packet H x K x (K + V) x 4 and a halo of W-1 rows."""
    memory = RequestMemory(K3, tp=tp, mla_dtype="bfloat16")
    assert memory.num_heads == heads
    assert memory.state_bytes_per_layer == state
    assert memory.kda_bytes_per_layer == layer
    assert round(memory.state_bytes_per_request / MIB, 2) == pytest.approx(mib, abs=0.0101)
    assert memory.block_tokens(512) == block
    assert round(100 * memory.page_fill(512), 1) == fill
    assert memory.context_parallel_bytes_per_layer == kcp
    assert memory.conv_bytes_per_layer == halo


@pytest.mark.parametrize(("dtype", "block"), [("float8", 1536), ("bfloat16", 768)])
def test_k3_tp8_block_of_vllm(dtype, block):
    """vLLM, mid-2026, quantum 128: 1,536 fp8 and 768 bf16 tokens."""
    assert RequestMemory(K3, mla_dtype=dtype).block_tokens() == block


def test_k3_tp8_page_padding_as_in_the_vllm_log():
    """A GB300 boot log prints padding of 8.68 % (884,736 / 814,080 - 1)."""
    assert round(100 * (K3_TP8.page_bytes() / K3_TP8.kda_bytes_per_layer - 1), 2) == 8.68


@pytest.mark.parametrize("tp", [0, -1, 5, 7, 64, 192])
def test_tp_that_does_not_divide_the_heads_is_refused_with_the_remedy(tp):
    with pytest.raises(CapacityError, match=rf"tp={tp} .*96 KDA heads.*1, 2, 3, 4, 6, 8"):
        RequestMemory(K3, tp=tp)


def test_tp_outside_the_usual_degrees_is_allowed_when_it_divides():
    assert RequestMemory(K3, tp=3).num_heads == 32


@pytest.mark.parametrize("field", ["state_dtype", "conv_dtype", "mla_dtype"])
def test_unknown_dtype_is_refused(field):
    with pytest.raises(K3Error, match="int3"):
        RequestMemory(K3, **{field: "int3"})


def test_negative_lengths_are_refused():
    with pytest.raises(CapacityError, match="draft_len=-1"):
        RequestMemory(K3, draft_len=-1)
    with pytest.raises(CapacityError, match="num_tokens=-1"):
        K3_TP8.kv_bytes(-1)
    with pytest.raises(CapacityError, match="quantum=0"):
        K3_TP8.block_tokens(0)


memories = st.builds(
    RequestMemory,
    model=st.sampled_from(list(PRESETS.values())),
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    state_dtype=st.sampled_from(["float32", "bfloat16"]),
    conv_dtype=st.sampled_from(["float32", "bfloat16"]),
    mla_dtype=st.sampled_from(["float8", "bfloat16"]),
    draft_len=st.integers(0, 15),
)


@given(memories)
def test_ranks_together_hold_the_whole_state_and_one_mla_copy_each(memory):
    whole = RequestMemory(
        memory.model, 1, memory.state_dtype, memory.conv_dtype, memory.mla_dtype, memory.draft_len
    )
    assert memory.tp * memory.state_bytes_per_request == whole.state_bytes_per_request
    assert memory.mla_bytes_per_token == whole.mla_bytes_per_token


@given(memories, st.integers(0, 1_000_000))
def test_total_grows_with_the_tokens_only_through_mla(memory, num_tokens):
    step = memory.total_bytes(num_tokens + 1) - memory.total_bytes(num_tokens)
    assert step == memory.mla_bytes_per_token
    assert memory.total_bytes(0) == memory.state_bytes_per_request


@given(memories, st.sampled_from([16, 64, 128, 512]))
def test_a_page_holds_one_kda_layer_and_is_not_a_quantum_too_long(memory, quantum):
    block = memory.block_tokens(quantum)
    assert block % quantum == 0
    row = memory.mla_bytes_per_token_layer
    assert (block - quantum) * row < memory.kda_bytes_per_layer <= block * row
    assert 0 < memory.page_fill(quantum) <= 1


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    name = {"float8": "float8_e4m3fn"}.get(dtype, dtype)
    return torch.empty(shape, dtype=getattr(torch, name)).nbytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8"])
def test_bytes_agree_with_real_tensors_at_toy_size(dtype):
    memory = RequestMemory(TOY, 2, dtype, dtype, dtype, draft_len=3)
    assert memory.state_bytes_per_layer == _nbytes((8, 32, 32), dtype)
    assert memory.conv_bytes_per_layer == _nbytes((3 + 3, 8 * (32 + 32 + 32)), dtype)
    assert memory.mla_bytes_per_token_layer == _nbytes((64,), dtype)


def test_key_and_value_sizes_are_not_mixed_up():
    memory = RequestMemory(_model(), tp=1)
    assert memory.state_bytes_per_layer == _nbytes((4, 8, 16), "float32")
    assert memory.conv_channels == 4 * (8 + 8 + 16)
    assert memory.context_parallel_bytes_per_layer == _nbytes((4, 8, 8 + 16), "float32")


# Rollback schemes, K3 TP8 with 7 drafts


@pytest.mark.parametrize(
    ("scheme", "num_bytes"),
    [
        ("snapshots", 484_982_784),
        ("snapshots-align", 545_605_632),
        ("snapshots-state-only", 434_110_464),
        ("raw-inputs", 6_809_472),
        ("low-rank-inputs", 5_241_792),
        ("corrections", 6_782_976),
        ("flush-ring", 27_131_904),
        ("compact", 10_174_464),
        ("fp32-inputs", 11_893_392),
    ],
)
def test_k3_tp8_buffers_with_seven_drafts(scheme, num_bytes):
    """vLLM 1+ns = 8 slots (462.5 MiB) and 2+ns = 9 (520.3); SGLang 8 states (414); SGLang #36821
    raw inputs; TokenSpeed #1058 low-rank (5.00 MiB); vLLM #51855 corrections; FlashInfer #4864
    32-row ring; SGLang #27658 compact; TensorRT-LLM #18294 fp32 inputs."""
    assert rollback_cost(K3_TP8, scheme, 7).buffer_bytes == num_bytes


def test_state_snapshots_take_414_mib_and_low_rank_inputs_five():
    assert rollback_cost(K3_TP8, "snapshots-state-only", 7).buffer_bytes == 414 * MIB
    assert round(rollback_cost(K3_TP8, "low-rank-inputs", 7).buffer_bytes / MIB, 2) == 5.00


def test_eight_vllm_slots_weigh_as_much_as_35083_tokens():
    """Eight slots with 10-row windows against 13,824 B per token: 35,083 tokens (rounded up)."""
    buffer = rollback_cost(K3_TP8, "snapshots", 7).buffer_bytes
    assert math.ceil(buffer / K3_TP8.mla_bytes_per_token) == 35_083


@pytest.mark.parametrize(
    ("scheme", "per_head"), [("raw-inputs", 1028), ("corrections", 1024), ("compact", 1536)]
)
def test_record_bytes_per_head_and_token(scheme, per_head):
    """SGLang #36821: 256+256+512+4; vLLM #51855: 256+256+512; SGLang #27658: 3 x 128 x 4."""
    cost = rollback_cost(K3_TP8, scheme, 7)
    assert cost.record_bytes_per_token_layer == 12 * per_head


def test_low_rank_record_keeps_one_gate_input_per_rank():
    """TokenSpeed #1058: (4,608 + 128 + 12) x 2 = 9,496 B per token and layer, 9.3 KiB."""
    cost = rollback_cost(K3_TP8, "low-rank-inputs", 7)
    assert cost.record_bytes_per_token_layer == 9_496
    assert round(cost.record_bytes_per_token_layer / KIB, 1) == 9.3


def test_one_state_weighs_86_low_rank_records():
    """TokenSpeed #1058 says 86x; 814,080 / 9,496 = 85.7."""
    cost = rollback_cost(K3_TP8, "low-rank-inputs", 7)
    ratio = K3_TP8.kda_bytes_per_layer / cost.record_bytes_per_token_layer
    assert round(ratio, 1) == 85.7


def test_raw_inputs_are_63_75_times_smaller_than_state_snapshots():
    """SGLang #36821: 65,536 B against about 1 KiB per head and step."""
    snapshots = rollback_cost(K3_TP8, "snapshots-state-only", 7).buffer_bytes
    inputs = rollback_cost(K3_TP8, "raw-inputs", 7).buffer_bytes
    assert K3_TP8.state_bytes_per_head == 65_536
    assert round(snapshots / inputs, 2) == 63.75


def test_fp32_inputs_record_and_window():
    """TensorRT-LLM #18294: 24,624 B per token and layer; fp32 window 12,718,080 B over layers."""
    memory = RequestMemory(K3, conv_dtype="float32", draft_len=7)
    assert rollback_cost(memory, "fp32-inputs", 7).record_bytes_per_token_layer == 24_624
    assert 69 * memory.conv_bytes_per_layer == 12_718_080


def test_one_slot_with_corrections_is_64_28_mib():
    """vLLM #51855: running state, 10-row window and records: 67,405,824 B."""
    cost = rollback_cost(K3_TP8, "corrections", 7)
    assert cost.total_bytes == 67_405_824
    assert round(cost.total_bytes / MIB, 2) == 64.28


def test_recoverssm_page_is_exactly_1696_fp8_tokens():
    """vLLM #51855: window 92,160 + state 786,432 + records 98,304 = 976,896 B."""
    cost = rollback_cost(K3_TP8, "corrections", 7)
    assert cost.record_bytes_per_layer == 98_304
    assert cost.drafted.conv_bytes_per_layer == 92_160
    page = cost.drafted.kda_bytes_per_layer + cost.record_bytes_per_layer
    assert page == 976_896 == 1696 * K3_TP8.mla_bytes_per_token_layer


def test_extra_bytes_count_draft_rows_and_leave_out_the_running_state():
    raw = rollback_cost(K3_TP8, "raw-inputs", 7)
    assert raw.extra_bytes == raw.record_bytes + raw.conv_draft_bytes == 6_809_472 + 4_451_328
    slots = rollback_cost(K3_TP8, "snapshots", 7)
    assert slots.extra_bytes == 484_982_784 - 56_171_520


@given(memories, st.sampled_from(list(SCHEMES)), st.integers(1, 14))
def test_every_further_draft_costs_the_same_and_never_less(memory, scheme, draft_len):
    costs = [rollback_cost(memory, scheme, draft_len + i).total_bytes for i in (0, 1)]
    step = costs[1] - costs[0]
    assert step > 0
    if draft_len > 1:
        before = rollback_cost(memory, scheme, draft_len - 1).total_bytes
        if scheme not in ("snapshots", "snapshots-align"):
            assert costs[0] - before == step
        else:
            assert 0 < costs[0] - before < step


@given(memories, st.sampled_from(list(SCHEMES)))
def test_cost_does_not_depend_on_the_draft_length_inside_the_memory(memory, scheme):
    plain = RequestMemory(
        memory.model, memory.tp, memory.state_dtype, memory.conv_dtype, memory.mla_dtype
    )
    a, b = rollback_cost(memory, scheme, 3), rollback_cost(plain, scheme, 3)
    assert (a.total_bytes, a.extra_bytes) == (b.total_bytes, b.extra_bytes)


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"snapshots-align", "flush-ring"}))
def test_without_drafts_nothing_extra_is_kept(scheme):
    assert rollback_cost(K3_TP8, scheme, 0).extra_bytes == 0


def test_ring_refuses_a_step_longer_than_its_window():
    assert rollback_cost(K3_TP8, "flush-ring", 15).num_rows == 32
    with pytest.raises(CapacityError, match=r"draft_len=16.*at most 15"):
        rollback_cost(K3_TP8, "flush-ring", 16)


def test_bad_scheme_and_negative_drafts_are_refused():
    with pytest.raises(CapacityError, match=r"magic.*snapshots"):
        rollback_cost(K3_TP8, "magic", 7)
    with pytest.raises(CapacityError, match="draft_len=-2"):
        rollback_cost(K3_TP8, "snapshots", -2)


@pytest.mark.parametrize("code", SCHEMES)
def test_records_agree_with_real_tensors_at_toy_size(code):
    """Every part of a record as a tensor of 8 heads (TP2), 4 drafts."""
    cost = rollback_cost(RequestMemory(TOY, tp=2), code, 4)
    size = {"dk": (8, 32), "dv": (8, 32), "scalar": (8,), "gate-low-rank": (32,)}
    tensors = [
        _nbytes((cost.num_rows, *size[part.width.value]), part.dtype) for part in cost.scheme.record
    ]
    assert cost.record_bytes == TOY.num_kda_layers * sum(tensors)


# Pools


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
