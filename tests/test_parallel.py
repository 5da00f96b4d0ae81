"""Context parallelism: equal to one rank, documents apart, messages of a fixed size."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import K3Error
from k3core.kda import kda_recurrent, l2_normalize, short_convolution
from k3core.parallel import (
    AffineMap,
    KDAContextParallel,
    all_gather_seconds,
    compose,
    merge,
    scan_chain,
    scan_tree,
    transition_and_offset,
)
from tests.helpers import make_sequences

volume = KDAContextParallel.communication_volume


def make_sequence(num_tokens, B=2, H=3, dk=5, dv=7, seed=0, dtype=torch.float64):
    """Inputs of one layer with keys that point almost the same way."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    direction = draw(B, H, 1, dk)
    k = l2_normalize(direction + 0.3 * draw(B, H, num_tokens, dk))
    q = l2_normalize(direction + draw(B, H, num_tokens, dk)) * dk**-0.5
    v = draw(B, H, num_tokens, dv)
    g = -(torch.rand(B, H, num_tokens, dk, generator=rng, dtype=torch.float64) ** 3) * 5
    beta = torch.rand(B, H, num_tokens, generator=rng, dtype=torch.float64)
    return tuple(x.to(dtype) for x in (q, k, v, g, beta))


def run_documents(inputs, document_lens, state=None):
    """Each document on its own, token by token."""
    outputs, states, start = [], [], 0
    for length in document_lens:
        part = [x[:, :, start : start + length] for x in inputs]
        out, state = kda_recurrent(*part, state)
        outputs.append(out)
        states.append(state)
        start, state = start + length, None
    return torch.cat(outputs, dim=2), states


def largest_gap(a, b):
    return (a - b).abs().max().item()


@pytest.mark.parametrize("scan", ["chain", "tree"])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_all_ranks_together_equal_one_rank(world, scan):
    inputs = make_sequence(37)
    outputs, state = kda_recurrent(*inputs)
    result = KDAContextParallel(world, scan).prefill(*inputs)
    assert largest_gap(result.outputs, outputs) < 1e-12
    assert largest_gap(result.final_state, state) < 1e-12


def test_a_given_state_is_continued():
    inputs = make_sequence(23)
    start = make_sequence(9, seed=1)
    _, state = kda_recurrent(*start)
    outputs, final = kda_recurrent(*inputs, state)
    result = KDAContextParallel(4).prefill(*inputs, state)
    assert largest_gap(result.outputs, outputs) < 1e-12
    assert largest_gap(result.final_state, final) < 1e-12
    assert largest_gap(result.initial_states[0], state) == 0


def test_every_rank_starts_from_the_state_of_the_tokens_before_it():
    inputs = make_sequence(31)
    result = KDAContextParallel(5).prefill(*inputs)
    for traffic, initial in zip(result.traffic, result.initial_states, strict=True):
        _, state = kda_recurrent(*(x[:, :, : traffic.start] for x in inputs))
        assert largest_gap(initial, state) < 1e-12


def test_more_ranks_than_tokens():
    inputs = make_sequence(3)
    outputs, state = kda_recurrent(*inputs)
    result = KDAContextParallel(8, "tree").prefill(*inputs)
    assert [traffic.num_tokens for traffic in result.traffic] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert largest_gap(result.outputs, outputs) < 1e-12
    assert largest_gap(result.final_state, state) < 1e-12


def test_chosen_rank_lengths_may_be_uneven_and_zero():
    inputs = make_sequence(20)
    outputs, _ = kda_recurrent(*inputs)
    result = KDAContextParallel(4).prefill(*inputs, rank_lens=(0, 13, 0, 7))
    assert [traffic.num_tokens for traffic in result.traffic] == [0, 13, 0, 7]
    assert largest_gap(result.outputs, outputs) < 1e-12


@pytest.mark.parametrize("scan", ["chain", "tree"])
@pytest.mark.parametrize("document_lens", [(30,), (10, 20), (1, 14, 1, 1, 13), (6, 6, 6, 6, 6)])
def test_documents_equal_separate_runs(document_lens, scan):
    inputs = make_sequence(30)
    outputs, states = run_documents(inputs, document_lens)
    result = KDAContextParallel(5, scan).prefill(*inputs, document_lens=document_lens)
    assert largest_gap(result.outputs, outputs) < 1e-12
    assert len(result.document_states) == len(document_lens)
    for mine, theirs in zip(result.document_states, states, strict=True):
        assert largest_gap(mine, theirs) < 1e-12


@pytest.mark.parametrize("scan", ["chain", "tree"])
def test_a_broken_document_leaves_the_others_bit_for_bit(scan):
    inputs = make_sequence(30)
    parallel, lens = KDAContextParallel(6, scan), (11, 9, 10)
    clean = parallel.prefill(*inputs, document_lens=lens).outputs
    inputs[2][:, :, 11:20] = float("nan")
    broken = parallel.prefill(*inputs, document_lens=lens).outputs
    assert torch.equal(broken[:, :, :11], clean[:, :, :11])
    assert broken[:, :, 11:20].isnan().all()
    assert torch.equal(broken[:, :, 20:], clean[:, :, 20:])


@st.composite
def layouts(draw):
    num_tokens = draw(st.integers(1, 24))
    cuts = draw(st.sets(st.integers(1, num_tokens), max_size=5)) - {num_tokens}
    edges = [0, *sorted(cuts), num_tokens]
    documents = [b - a for a, b in pairwise(edges)]
    marks = sorted(draw(st.lists(st.integers(0, num_tokens), max_size=6)))
    edges = [0, *marks, num_tokens]
    return documents, [b - a for a, b in pairwise(edges)]


@given(layouts(), st.sampled_from(["chain", "tree"]), st.integers(0, 9), st.booleans())
def test_any_cut_into_documents_and_ranks_equals_separate_runs(layout, scan, seed, continued):
    document_lens, rank_lens = layout
    inputs = make_sequence(sum(document_lens), B=1, H=2, dk=3, dv=2, seed=seed)
    state = torch.ones(1, 2, 3, 2, dtype=torch.float64) if continued else None
    outputs, states = run_documents(inputs, document_lens, state)
    result = KDAContextParallel(len(rank_lens), scan).prefill(
        *inputs, state, document_lens=document_lens, rank_lens=rank_lens
    )
    assert largest_gap(result.outputs, outputs) < 1e-12
    assert largest_gap(result.final_state, states[-1]) < 1e-12


def test_message_is_the_product_of_the_steps_and_the_state_from_zeros():
    _, k, v, g, beta = make_sequence(9, B=1, H=1)
    message = transition_and_offset(k, v, g, beta)
    product = torch.eye(5, dtype=torch.float64)
    for t in range(9):
        key = k[0, 0, t]
        erase = torch.eye(5, dtype=torch.float64) - beta[0, 0, t] * torch.outer(key, key)
        product = erase @ torch.diag(g[0, 0, t].exp()) @ product
    _, state = kda_recurrent(k, k, v, g, beta)
    assert largest_gap(message[0, 0, :, :5], product) < 1e-13
    assert largest_gap(message[..., 5:], state) < 1e-13


def random_maps(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [
        AffineMap(
            torch.randn(1, 1, 3, 3, generator=rng, dtype=torch.float64),
            torch.randn(1, 1, 3, 2, generator=rng, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def test_maps_compose_associatively():
    a, b, c = random_maps(3)
    left, right = compose(compose(c, b), a), compose(c, compose(b, a))
    assert largest_gap(left.transition, right.transition) < 1e-13
    assert largest_gap(left.offset, right.offset) < 1e-13


def test_a_map_that_forgets_ignores_everything_before_it():
    first, second = random_maps(2)
    second = AffineMap(None, second.offset)
    assert merge(torch.full((1, 1, 3, 2), float("inf")), second) is second.offset
    assert compose(second, first) is second


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 16])
def test_tree_scan_gives_the_states_of_the_chain_in_logarithmic_depth(count):
    maps = random_maps(count)
    start = torch.ones(1, 1, 3, 2, dtype=torch.float64)
    chain, chain_depth = scan_chain(maps, start)
    tree, tree_depth = scan_tree(maps, start)
    assert chain_depth == count
    assert tree_depth == (math.ceil(math.log2(count)) + 1 if count else 0)
    assert len(chain) == len(tree) == count + 1
    for a, b in zip(chain, tree, strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_tokens", [4, 64, 301])
def test_sent_bytes_are_the_volume_and_do_not_depend_on_length(num_tokens):
    inputs = make_sequence(num_tokens, dtype=torch.float32)
    result = KDAContextParallel(4).prefill(*inputs)
    expected = volume(2, 3, 5, 7, world=4)
    assert expected == 2 * 3 * 5 * (5 + 7) * 4
    assert [traffic.sent_bytes for traffic in result.traffic] == [expected] * 4
    assert [traffic.received_bytes for traffic in result.traffic] == [3 * expected] * 4


@pytest.mark.parametrize(
    ("dtype", "itemsize"), [(torch.bfloat16, 4), (torch.float32, 4), (torch.float64, 8)]
)
def test_maps_travel_in_float32_at_least(dtype, itemsize):
    result = KDAContextParallel(2).prefill(*make_sequence(8, dtype=dtype))
    assert result.traffic[0].sent_bytes == volume(2, 3, 5, 7, world=2, itemsize=itemsize)


@pytest.mark.parametrize(
    ("tp", "expected"), [(1, 12_582_912), (2, 6_291_456), (8, 1_572_864), (16, 786_432)]
)
def test_volume_of_a_kimi_k3_layer(tp, expected):
    assert volume(1, 96 // tp, 128, 128, world=8) == expected


def test_a_single_rank_sends_nothing():
    result = KDAContextParallel(1).prefill(*make_sequence(6))
    assert volume(1, 12, 128, 128, world=1) == 0
    (traffic,) = result.traffic
    assert (traffic.sent_bytes, traffic.received_bytes, traffic.used_senders) == (0, 0, ())
    assert result.merge_depth == 0


def test_each_rank_uses_the_earlier_ranks_and_nobody_uses_the_last():
    result = KDAContextParallel(4).prefill(*make_sequence(16))
    assert [traffic.used_senders for traffic in result.traffic] == [(), (0,), (0, 1), (0, 1, 2)]


def test_a_document_boundary_cuts_the_senders():
    result = KDAContextParallel(4).prefill(*make_sequence(16), document_lens=(6, 10))
    assert [traffic.used_senders for traffic in result.traffic] == [(), (0,), (1,), (1, 2)]
    aligned = KDAContextParallel(4).prefill(*make_sequence(16), document_lens=(8, 8))
    assert [traffic.used_senders for traffic in aligned.traffic] == [(), (0,), (), (2,)]


def test_outputs_follow_from_the_message_alone(monkeypatch):
    """Losing the exchanged maps changes every rank behind the first."""
    inputs = make_sequence(24)
    good = KDAContextParallel(3).prefill(*inputs).outputs
    monkeypatch.setattr("k3core.parallel.affine.merge", lambda state, stretch: state)
    bad = KDAContextParallel(3).prefill(*inputs).outputs
    assert torch.equal(bad[:, :, :8], good[:, :, :8])
    assert largest_gap(bad[:, :, 8:], good[:, :, 8:]) > 1e-3


def test_inputs_are_not_changed():
    inputs = make_sequence(10)
    state = torch.ones(2, 3, 5, 7, dtype=torch.float64)
    before = [x.clone() for x in (*inputs, state)]
    KDAContextParallel(3).prefill(*inputs, state, document_lens=(4, 6))
    assert all(torch.equal(a, b) for a, b in zip(before, (*inputs, state), strict=True))


def test_a_gate_at_its_bound_stays_finite_in_float32():
    q, k, v, g, beta = make_sequence(256, dtype=torch.float32)
    result = KDAContextParallel(4, "tree").prefill(q, k, v, torch.full_like(g, -5.0), beta)
    outputs, _ = kda_recurrent(q, k, v, torch.full_like(g, -5.0), beta)
    assert largest_gap(result.outputs, outputs) < 1e-6


def make_convolution(num_tokens, channels=6, width=4, dtype=torch.float64):
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(2, num_tokens, channels, generator=rng, dtype=torch.float64)
    weight = torch.randn(channels, width, generator=rng, dtype=torch.float64)
    window = torch.randn(2, width - 1, channels, generator=rng, dtype=torch.float64)
    return x.to(dtype), weight.to(dtype), window.to(dtype)


@pytest.mark.parametrize("world", [1, 2, 5, 9])
def test_convolution_with_halos_equals_one_rank(world):
    x, weight, window = make_convolution(17)
    outputs, last = short_convolution(x, weight, window)
    result = KDAContextParallel(world).short_convolution(x, weight, window)
    assert largest_gap(result.outputs, outputs) < 1e-14
    assert torch.equal(result.final_window, last)


@given(layouts(), st.integers(1, 5))
def test_convolution_of_any_cut_equals_separate_documents(layout, width):
    document_lens, rank_lens = layout
    x, weight, window = make_convolution(sum(document_lens), width=width)
    outputs, start, before = [], 0, window
    for length in document_lens:
        out, last = short_convolution(x[:, start : start + length], weight, before)
        outputs.append(out)
        start, before = start + length, None
    result = KDAContextParallel(len(rank_lens)).short_convolution(
        x, weight, window, document_lens=document_lens, rank_lens=rank_lens
    )
    assert largest_gap(result.outputs, torch.cat(outputs, dim=1)) < 1e-14
    assert torch.equal(result.final_window, last)


@pytest.mark.parametrize("num_tokens", [16, 160])
def test_halo_is_three_rows_of_a_kimi_k3_layer_whatever_the_length(num_tokens):
    x = torch.zeros(1, num_tokens, 12 * 3 * 128, dtype=torch.bfloat16)
    weight = torch.zeros(12 * 3 * 128, 4, dtype=torch.bfloat16)
    result = KDAContextParallel(4).short_convolution(x, weight)
    assert [traffic.sent_bytes for traffic in result.traffic] == [27_648, 27_648, 27_648, 0]
    assert [traffic.received_bytes for traffic in result.traffic] == [0, 27_648, 27_648, 27_648]


def test_a_halo_longer_than_a_rank_comes_from_several_ranks():
    x, weight, window = make_convolution(4)
    result = KDAContextParallel(4).short_convolution(x, weight, window)
    assert [traffic.used_senders for traffic in result.traffic] == [(), (0,), (0, 1), (0, 1, 2)]


def test_all_gather_time_grows_with_ranks_bytes_and_latency():
    assert all_gather_seconds(10**9, 3, 1e9, 0.5) == pytest.approx(2 * 1.5)
    assert all_gather_seconds(10**9, 1, 1e9, 0.5) == 0


@pytest.mark.parametrize("world", [0, -1, 1.5, True])
def test_a_bad_world_is_refused(world):
    with pytest.raises(K3Error, match="world"):
        KDAContextParallel(world)


def test_an_unknown_scan_is_refused():
    with pytest.raises(K3Error, match=r"scan='ring'.*chain, tree"):
        KDAContextParallel(2, "ring")


@pytest.mark.parametrize(
    "lens",
    [
        {"document_lens": (4, 5)},
        {"document_lens": (0, 8)},
        {"document_lens": ()},
        {"rank_lens": (8,)},
        {"rank_lens": (4, 5)},
        {"rank_lens": (9, -1)},
    ],
)
def test_lengths_that_do_not_fit_are_refused(lens):
    (name,) = lens
    with pytest.raises(K3Error, match=name):
        KDAContextParallel(2).prefill(*make_sequence(8), **lens)


@pytest.mark.parametrize(("index", "name"), [(0, "q"), (2, "v"), (3, "g"), (4, "beta")])
def test_tensors_of_other_lengths_are_refused(index, name):
    inputs = list(make_sequence(8))
    inputs[index] = inputs[index][:, :, :7]
    with pytest.raises(K3Error, match=name):
        KDAContextParallel(2).prefill(*inputs)


def test_a_state_of_another_shape_is_refused():
    with pytest.raises(K3Error, match="state"):
        KDAContextParallel(2).prefill(*make_sequence(8), torch.zeros(2, 3, 7, 5))


def test_volume_refuses_sizes_below_one():
    with pytest.raises(K3Error, match="dk=0"):
        volume(1, 1, 0, 1, world=2)


def test_a_wanted_gradient_is_refused_because_messages_carry_none():
    q, k, v, g, beta = make_sequences(6, 1, 2, 4, 3)
    ranks = KDAContextParallel(2)
    k.requires_grad_()
    with pytest.raises(K3Error, match="requires_grad"):
        ranks.prefill(q, k, v, g, beta)
    with torch.no_grad():
        assert ranks.prefill(q, k, v, g, beta).outputs.shape == v.shape
    rows = torch.randn(1, 6, 5, requires_grad=True)
    with pytest.raises(K3Error, match="requires_grad"):
        ranks.short_convolution(rows, torch.randn(5, 3))
