"""Bytes of one request against published values; each docstring names value and source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.memory import RequestMemory
from k3core.capacity.presets import MODELS, PRESETS
from k3core.capacity.rollback import rollback_cost
from k3core.capacity.schemes import SCHEMES, Commit
from k3core.errors import CapacityError, K3Error
from tests.capacity_helpers import K3, K3_TP8, KIB, LINEAR, MIB, TOY, memories, model, num_bytes


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8"])
def test_bytes_agree_with_real_tensors_at_toy_size(dtype):
    memory = RequestMemory(TOY, 2, dtype, dtype, dtype, draft_len=3)
    assert memory.state_bytes_per_layer == num_bytes((8, 32, 32), dtype)
    assert memory.conv_bytes_per_layer == num_bytes((3 + 3, 8 * (32 + 32 + 32)), dtype)
    assert memory.mla_bytes_per_token_layer == num_bytes((64,), dtype)


def test_key_and_value_sizes_are_not_mixed_up():
    memory = RequestMemory(model(), tp=1)
    assert memory.state_bytes_per_layer == num_bytes((4, 8, 16), "float32")
    assert memory.conv_channels == 4 * (8 + 8 + 16)
    assert memory.context_parallel_bytes_per_layer == num_bytes((4, 8, 8 + 16), "float32")


def test_checkpoint_shares_are_the_published_ones():
    """89 % at one per 512 tokens, 73, 50, 33 and 11 % at 1,536, 4,096, 8 K and 32 K."""
    memory = RequestMemory(PRESETS["kimi-k3"])
    shares = [round(100 * memory.checkpoint_share(n)) for n in (512, 1536, 4096, 8192, 32_768)]
    assert shares == [89, 73, 50, 33, 11]


def test_transfer_sends_every_shard_and_one_latent():
    memory = RequestMemory(PRESETS["kimi-k3"])
    assert memory.transfer_bytes(1000) == 8 * 56_171_520 + 1000 * 13_824
    assert memory.transfer_bytes(1000, latent_copies=8) == 8 * (56_171_520 + 1000 * 13_824)
    gqa = RequestMemory(MODELS["qwen3.5-27b"], 4)
    assert gqa.transfer_bytes(10) == 4 * gqa.total_bytes(10)


def test_context_parallel_volume_breaks_even_at_the_published_lengths():
    """10,923 tokens at TP1 and 1,365 at TP8 (bf16 rows)."""
    for tp, tokens in ((1, 10_923), (8, 1_365)):
        memory = RequestMemory(PRESETS["kimi-k3"], tp, mla_dtype="bfloat16")
        assert round(memory.context_parallel_even_tokens()) == tokens


@pytest.mark.parametrize("code", SCHEMES)
def test_traffic_of_a_step_follows_its_commit(code):
    cost = rollback_cost(RequestMemory(PRESETS["kimi-k3"]), code, 7)
    traffic = cost.step_traffic(3.84)
    state = 69 * 786_432
    written = {
        Commit.POINTER: 8, Commit.COPY: 9, Commit.EAGER: 1, Commit.LAZY: 1, Commit.FOLD: 1 / 3,
    }  # fmt: skip
    assert traffic.state_written == pytest.approx(written[cost.scheme.commit] * state)
    assert traffic.state_read in (state, 2 * state)
    assert (traffic.record_written > 0) == bool(cost.scheme.record)
    with pytest.raises(CapacityError, match="num_committed"):
        cost.step_traffic(9)
