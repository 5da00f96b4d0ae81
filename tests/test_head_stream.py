"""States as one stream of heads: packed, cut by rank, joined again."""

import pytest
import torch

from k3core.errors import K3Error
from k3core.paged_cache import (
    head_slice,
    pack_heads,
    unpack_heads,
)
from tests.helpers import same_bits


def random_state(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def test_a_packed_head_is_one_run_of_the_stream():
    state = random_state(2, 3, 4, 5)
    flat = pack_heads(state)
    for head in range(3):
        run = head_slice(flat, 3, head, head + 1)
        assert torch.equal(run, state[:, head].reshape(-1))


@pytest.mark.parametrize(("source_ranks", "target_ranks"), [(1, 4), (4, 1), (2, 8), (8, 2), (2, 3)])
def test_resharding_is_cutting_and_joining_streams(source_ranks: int, target_ranks: int):
    state = random_state(2, 24, 4, 3)
    sent = [pack_heads(part) for part in state.chunk(source_ranks, dim=1)]
    whole = torch.cat(sent)
    heads = 24 // target_ranks
    for rank in range(target_ranks):
        part = head_slice(whole, 24, rank * heads, (rank + 1) * heads)
        received = unpack_heads(part, (2, heads, 4, 3))
        assert same_bits(received, state[:, rank * heads : (rank + 1) * heads].contiguous())


def test_packing_does_not_share_memory_with_the_state():
    state = random_state(1, 2, 4, 4)
    before = state.clone()
    flat = pack_heads(state)
    unpack_heads(flat, state.shape).zero_()
    assert torch.equal(flat, pack_heads(before))
    flat.zero_()
    assert torch.equal(state, before)


def test_a_transposed_state_packs_like_its_copy():
    state = random_state(1, 3, 4, 6).transpose(2, 3)
    assert torch.equal(pack_heads(state), pack_heads(state.contiguous()))


@pytest.mark.parametrize("bad", [torch.zeros(4), torch.zeros(1, 2, 3), "state", None])
def test_packing_refuses_what_is_not_a_state(bad: object):
    with pytest.raises(K3Error, match="state"):
        pack_heads(bad)


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 2, 3, 5), (1, 2, 3, -4), (1.0, 2, 3, 4)])
def test_unpacking_refuses_a_shape_that_does_not_fit(shape: tuple):
    with pytest.raises(K3Error, match="shape"):
        unpack_heads(torch.zeros(24), shape)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 5)])
def test_a_head_range_outside_of_the_stream_is_refused(start: int, stop: int):
    with pytest.raises(K3Error, match="outside"):
        head_slice(torch.zeros(24), 4, start, stop)
