"""Where requests come from besides Mooncake traces: CSV files and generators."""

import gzip

import numpy as np
import pytest

from k3core.errors import K3Error, TraceError
from k3core.fleet import (
    GENERATORS,
    FleetSimulator,
    generated_workload,
    hub_workload,
    lognormal_workload,
    parse_trace,
    synthetic_workload,
)
from k3core.fleet.ring import session_key

AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:03.9799600,4808,10
"""
OWN = b"""session_id,arrival_s,input_len,note
a,10,1100,first turn
b,10.5,600,
a,12.25,1700,second turn
,13,1700,alone
"""


# ---- CSV -----------------------------------------------------------------------------------------


def test_azure_columns_are_requests_that_share_nothing():
    workload = parse_trace(gzip.compress(AZURE, mtime=0))
    assert workload.arrival_s.tolist() == pytest.approx([0.0, 0.052])
    assert workload.input_len.tolist() == [4808, 3180]
    assert workload.output_len.tolist() == [10, 8]
    assert len(np.unique(workload.block_ids)) == workload.num_blocks
    assert workload.num_sessions == 2


def test_our_csv_gives_turns_of_a_session_their_common_blocks():
    workload = parse_trace(OWN)
    assert workload.arrival_s.tolist() == [0.0, 0.5, 2.25, 3.0]
    first, other, second, alone = (workload.path(index) for index in range(4))
    assert second[:2] == first[:2]
    assert second[2] != first[2]
    assert not set(alone) & set(first + other + second)
    assert workload.sessions[0] == workload.sessions[2] == session_key("a")
    assert workload.num_sessions == 3
    assert FleetSimulator(2, rule="dense").run(workload).reused_len.tolist() == [0, 0, 1024, 0]


def test_our_csv_takes_blocks_and_service_times_as_they_are():
    text = b"arrival_s,input_len,output_len,block_ids,service_s\n0,600,7,5 9,1.5\n0,512,1,5,0.25\n"
    workload = parse_trace(text)
    assert [workload.path(0), workload.path(1)] == [[5, 9], [5]]
    result = FleetSimulator(1).run(workload)
    assert result.finish_s.tolist() == [1.5, 1.75]
    assert workload.head(1).service_s.tolist() == [1.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"arrival_s,input_len\n1,5\n2,x\n", "line 3: input_len='x'"),
        (b"arrival_s,input_len\n1,0\n", "line 2: input_len='0'"),
        (b"arrival_s,input_len\nnan,5\n", "line 2: arrival_s='nan'"),
        (b"arrival_s,input_len\n-1,5\n", "line 2: arrival_s='-1'"),
        (b"arrival_s,input_len\n1,5,7\n", "line 2: 3 values under 2 columns"),
        (b"arrival_s,input_len,block_ids\n1,600,4\n", "line 2: block_ids has 1 ids"),
        (b"arrival_s,input_len,block_ids\n1,600,4 4\n", "line 2: block_ids must be distinct"),
        (b"arrival_s,input_len,block_ids\n1,600,4 x\n", "line 2: block_ids='4 x'"),
        (b"arrival_s,input_len\n", "no request"),
        (AZURE + b"yesterday,5,5\n", "line 4: TIMESTAMP='yesterday'"),
        (AZURE + b",5,5\n", "line 4"),
    ],
)
def test_a_bad_csv_line_is_named(text, words):
    with pytest.raises(TraceError, match=words):
        parse_trace(text)


# ---- generators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GENERATORS)
def test_every_generator_is_reproducible_and_runs(kind):
    one, two = (generated_workload(kind, 200, 5.0, seed=3) for _ in range(2))
    assert one.block_ids.tobytes() == two.block_ids.tobytes()
    assert one.arrival_s.tobytes() == two.arrival_s.tobytes()
    assert FleetSimulator(2).run(one).num_served() == 200


def test_an_unknown_kind_of_requests_raises():
    with pytest.raises(K3Error, match="generator='storm'"):
        generated_workload("storm")


@pytest.mark.parametrize("cv", [1.0, 3.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(cv):
    gaps = np.diff(synthetic_workload(40_000, rate_per_s=4.0, arrival_cv=cv).arrival_s)
    assert gaps.mean() == pytest.approx(0.25, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_lognormal_lengths_are_those_of_prfaas():
    """Mean about 27K after cutting to [128, 128K]; 1,024 tokens out (arXiv:2604.15039)."""
    workload = lognormal_workload(20_000)
    assert workload.input_len.mean() == pytest.approx(27_000, rel=0.03)
    assert workload.input_len.min() >= 128
    assert workload.input_len.max() <= 131_072
    assert (workload.output_len == 1024).all()


def test_hub_prompts_share_their_hub_and_nothing_else():
    workload = hub_workload(300, num_hubs=3, hub_len=2048)
    paths = [workload.path(index) for index in range(300)]
    assert len({tuple(path[:4]) for path in paths}) == 3
    tails = [block for path in paths for block in path[4:]]
    assert len(tails) == len(set(tails))


@pytest.mark.parametrize(
    "call",
    [
        lambda: hub_workload(num_hubs=0),
        lambda: hub_workload(hub_len=100),
        lambda: lognormal_workload(0),
        lambda: synthetic_workload(arrival_cv=0.0),
    ],
)
def test_impossible_requests_raise(call):
    with pytest.raises(K3Error):
        call()


# ---- byte order mark -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b'{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}\n',
        AZURE,
        OWN,
    ],
    ids=["mooncake", "azure", "own"],
)
@pytest.mark.parametrize("pack", [bytes, lambda data: gzip.compress(data, mtime=0)])
def test_a_byte_order_mark_at_the_start_is_no_content(text, pack):
    plain, marked = parse_trace(text), parse_trace(pack(b"\xef\xbb\xbf" + text))
    assert marked.arrival_s.tolist() == plain.arrival_s.tolist()
    assert marked.block_ids.tolist() == plain.block_ids.tolist()


def test_a_long_bad_value_is_cut_in_the_message():
    with pytest.raises(TraceError, match="line 2: input_len='7") as caught:
        parse_trace(b"arrival_s,input_len\n1," + b"7" * 5000 + b"x\n")
    assert len(str(caught.value)) < 200
