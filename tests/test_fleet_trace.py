"""The public conversation trace (Mooncake FAST'25): counts, golden LRU integers, published curves.

Set ``K3_TRACES`` to a directory that holds ``conversation_trace.jsonl.gz``.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from k3core.fleet import FleetSimulator, read_trace
from k3core.fleet.cache import BlockCache

TRACES = os.environ.get("K3_TRACES", "")
TRACE = Path(TRACES) / "conversation_trace.jsonl.gz"
pytestmark = [
    pytest.mark.skipif(not TRACES, reason="K3_TRACES is not set"),
    pytest.mark.skipif(
        bool(TRACES) and not TRACE.is_file(), reason=f"K3_TRACES has no {TRACE.name}"
    ),
]

GOLDEN = {  # capacity in 512-token blocks: (blocks hit, tokens hit) of one LRU, leaf first
    100: (12071, 6180229),
    1000: (12847, 6575459),
    10000: (61046, 31238981),
    30000: (93978, 48093740),
    100000: (104924, 53695979),
    None: (105710, 54098411),
}


@pytest.fixture(scope="module")
def workload():
    return read_trace(TRACE)


def test_nothing_is_lost_in_reading(workload):
    assert len(workload) == 12_031
    assert workload.num_tokens == 144_793_823
    assert int(workload.output_len.sum()) == 4_122_048
    assert workload.num_blocks == 288_500
    assert len(np.unique(workload.block_ids)) == 182_790
    assert workload.arrival_s[-1] == 3536.999


def test_lengths_are_those_of_the_facts(workload):
    assert (workload.input_len.min(), workload.input_len.max()) == (891, 126_195)
    assert np.median(workload.input_len) == 6_909
    assert workload.is_long.mean() == pytest.approx(0.227, abs=5e-4)


def test_timestamps_stand_on_three_second_ticks(workload):
    assert len(np.unique(workload.arrival_s)) == 1_180
    assert workload.tick_s == pytest.approx(3.0, abs=1e-3)
    assert workload.spread().tick_s == 0.0


def test_sessions_follow_from_the_blocks(workload):
    _, turns = np.unique(workload.sessions, return_counts=True)
    assert (len(turns), turns.max()) == (7_373, 43)
    assert np.bincount(turns)[1:8].tolist() == [5114, 1311, 464, 200, 117, 55, 27]


@pytest.mark.parametrize(("capacity", "golden"), GOLDEN.items())
def test_one_cluster_hits_exactly_the_golden_integers(workload, capacity, golden):
    result = FleetSimulator(1, capacity_blocks=capacity).run(workload)
    assert (result.num_hit_blocks, result.num_hit_tokens) == golden


def test_touching_root_first_would_throw_out_the_system_prompt(workload):
    """At 20 blocks the order matters: 4.17 % of the blocks leaf first, 2.60 % root first."""
    leaf, root = BlockCache(20), BlockCache(20)
    hits = [0, 0]
    for index in range(len(workload)):
        path = workload.path(index)
        hits[0] += leaf.match(path)
        leaf._touch(path)
        hits[1] += root.match(path)
        root._touch(path[::-1])
    shares = [hit / workload.num_blocks for hit in hits]
    assert shares == pytest.approx([0.0417, 0.0260], abs=1e-4)


@pytest.mark.parametrize(
    ("capacity", "share"), [(2_048, 0.0824), (5_859, 0.1158), (16_384, 0.1373)]
)
def test_round_robin_reuse_is_that_of_dynosim(workload, capacity, share):
    result = FleetSimulator(8, router="round-robin", capacity_blocks=capacity).run(workload)
    assert result.num_hit_tokens / result.num_served_tokens == pytest.approx(share, abs=0.002)


def test_routers_order_as_fast25_figure_5(workload):
    mean_s = {}
    for router in ("random", "least-loaded", "prefix-load"):
        result = FleetSimulator(
            8, router=router, capacity_blocks=5_859, cost="mooncake-llama3-70b", rule="dense"
        ).run(workload)
        mean_s[router] = result.ttft_s().mean()
    assert mean_s["random"] > mean_s["least-loaded"] > mean_s["prefix-load"]
    assert 1.4 < mean_s["least-loaded"] / mean_s["prefix-load"] < 1.9


def test_one_shared_system_prompt_defeats_longest_prefix(workload):
    result = FleetSimulator(8, router="longest-prefix", capacity_blocks=5_859).run(workload)
    assert result.peak_to_mean_load == 8.0


@pytest.mark.parametrize("router", ["session", "session-bounded", "least-loaded", "prefix-load"])
def test_a_replay_is_reproducible_to_the_byte(workload, router):
    part = workload.head(3000)
    runs = [FleetSimulator(8, router=router, capacity_blocks=500).run(part) for _ in range(2)]
    assert runs[0].finish_s.tobytes() == runs[1].finish_s.tobytes()
    assert runs[0].as_dict() == runs[1].as_dict()
