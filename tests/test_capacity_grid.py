"""The token grid: where every unit has a boundary, and what a prompt then reuses."""

from hypothesis import given
from hypothesis import strategies as st

from k3core.capacity.blocks import hit_tokens
from k3core.capacity.grid import GridUnit, TokenGrid, serving_grid


def test_decode_context_parallel_coarsens_the_grid():
    """DCP8 turns blocks of 1,536 into 12,288 tokens."""
    grid = serving_grid(1536, 512, context_parallel=8)
    assert grid.effective == 12_288
    assert grid.hit(12_288) == 0
    assert grid.hit(12_289) == 12_288


def test_drafter_drop_costs_one_block():
    """vLLM #53504: 4,481 tokens on blocks of 1,600 reuse 3,200, and 1,600 with a drafter."""
    assert serving_grid(1600, 1600).hit(4481) == 3200
    assert serving_grid(1600, 1600, dropped_blocks=1).hit(4481) == 1600


units = st.lists(
    st.builds(GridUnit, st.sampled_from(["hash", "block", "retention"]), st.integers(1, 64)),
    min_size=1, max_size=4,
)  # fmt: skip


@given(units, st.integers(0, 2), st.integers(1, 4000))
def test_every_unit_has_a_boundary_where_a_hit_ends(parts, dropped, tokens):
    grid = TokenGrid(tuple(parts), dropped)
    hit = grid.hit(tokens)
    assert hit <= max(tokens - 1, 0)
    assert all(hit % unit.tokens == 0 for unit in parts)
    assert grid.hit(grid.shortest_hit) > 0
    assert grid.hit(grid.shortest_hit - 1) == 0
    assert all(
        grid.agrees(t) == all(t in grid.ticks(u, t) for u in parts)
        for t in (tokens, grid.effective)
    )


@given(st.integers(1, 100_000), st.integers(1, 5000), st.integers(0, 3))
def test_hits_never_reach_the_last_token_and_grow_with_the_prompt(tokens, block, dropped):
    assert hit_tokens(tokens, block, dropped) < tokens
    assert hit_tokens(tokens + 1, block, dropped) >= hit_tokens(tokens, block, dropped)
    assert hit_tokens(tokens, block, dropped) == max(hit_tokens(tokens, block) - dropped * block, 0)
