"""Rollback schemes of Kimi K3 at TP8 with seven drafts, against published values."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.memory import RequestMemory
from k3core.capacity.rollback import rollback_cost
from k3core.capacity.schemes import SCHEMES
from k3core.errors import CapacityError
from tests.capacity_helpers import K3, K3_TP8, KIB, MIB, TOY, memories, num_bytes


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
def test_buffers_of_every_scheme_agree_with_real_tensors_at_toy_size(code):
    """Records part by part, or states with their windows slot by slot: 8 heads (TP2), 4 drafts."""
    cost = rollback_cost(RequestMemory(TOY, tp=2), code, 4)
    size = {"dk": (8, 32), "dv": (8, 32), "scalar": (8,), "gate-low-rank": (32,)}
    rows, slots = cost.num_rows, cost.num_slots
    held = sum(num_bytes((rows, *size[p.width.value]), p.dtype) for p in cost.scheme.record)
    held += num_bytes((slots, 8, 32, 32), "float32")
    if cost.scheme.slots_hold_conv:
        held += num_bytes((slots, 3 + 4, 8 * 3 * 32), "bfloat16")
    assert held > 0
    assert cost.buffer_bytes == TOY.num_kda_layers * held


@given(memories, st.sampled_from(list(SCHEMES)), st.integers(1, 15))
def test_ranks_together_hold_the_buffers_of_the_whole_where_shards_are_exact(memory, code, drafts):
    """Only the input of a low-rank gate is one for all heads, so every rank keeps a copy of it."""
    one = rollback_cost(memory, code, drafts)
    whole = rollback_cost(dataclasses.replace(memory, tp=1), code, drafts)
    copies = 0
    if code == "low-rank-inputs":
        gate = num_bytes((one.num_rows, memory.model.gate_low_rank_dim), "bfloat16")
        copies = (memory.tp - 1) * memory.model.num_kda_layers * gate
    assert memory.tp * one.buffer_bytes == whole.buffer_bytes + copies
