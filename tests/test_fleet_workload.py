"""Workloads: columns, synthetic sessions, and traces read line by line without loss."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3core.errors import K3Error, TraceError
from k3core.fleet import Request, Workload, parse_trace, read_trace, synthetic_workload
from k3core.fleet.workload import sessions_from_blocks


def row(timestamp=0, input_length=600, output_length=5, hash_ids=(0, 1), **extra):
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": list(hash_ids),
        **extra,
    }


def trace(*rows):
    return "\n".join(json.dumps(r) for r in rows).encode()


def test_a_trace_becomes_columns():
    workload = parse_trace(trace(row(1000), row(4000, 1500, 9, (0, 7, 8))))
    assert workload.arrival_s.tolist() == [0.0, 3.0]
    assert workload.input_len.tolist() == [600, 1500]
    assert workload.output_len.tolist() == [5, 9]
    assert [workload.path(i) for i in range(2)] == [[0, 1], [0, 7, 8]]
    assert (workload.num_blocks, workload.num_tokens) == (5, 2100)


def test_gzip_is_recognised_by_its_bytes_not_its_name(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_bytes(gzip.compress(trace(row(), row(5))))
    assert len(read_trace(path)) == 2


def test_ties_keep_file_order_and_late_lines_are_sorted_in():
    rows = [row(9, hash_ids=(0, 1)), row(3, hash_ids=(0, 2)), row(9, hash_ids=(0, 3))]
    workload = parse_trace(trace(*rows))
    assert [workload.path(i)[1] for i in range(3)] == [2, 1, 3]
    assert workload.arrival_s.tolist() == [0.0, 0.006, 0.006]


def test_blank_lines_windows_ends_and_unknown_fields_are_harmless():
    data = b"\n" + trace(row(note="x"), row()).replace(b"\n", b"\r\n\r\n") + b"\n\n"
    assert len(parse_trace(data)) == 2


BAD_LINES = {
    "not json": (b"{oops", "not a JSON object"),
    "cut off": (b'{"timestamp": 0, "input_length": 5', "not a JSON object"),
    "two on a line": (trace(row()) + trace(row()), "text after"),
    "a list": (b"[1, 2]", "must be a JSON object, not list"),
    "deep nesting": (b"[" * 100_000, "not a JSON object"),
    "no utf-8": (b'{"timestamp": "\xff"}', "not a JSON object"),
    "missing field": (trace({"timestamp": 0, "input_length": 5, "hash_ids": [1]}), "output_length"),
    "time is text": (trace(row("0")), "timestamp='0'"),
    "time is negative": (trace(row(-1)), "timestamp=-1"),
    "time is not a number": (
        trace(row()).replace(b'"timestamp": 0', b'"timestamp": NaN'), "timestamp=nan",
    ),
    "time is a boolean": (trace(row(True)), "timestamp=True"),
    "no tokens": (trace(row(input_length=0, hash_ids=())), "input_length=0"),
    "half tokens": (trace(row(input_length=600.5)), "input_length=600.5"),
    "negative output": (trace(row(output_length=-1)), "output_length=-1"),
    "ids are no list": (
        trace(row()).replace(b"[0, 1]", b'"01"'), "hash_ids must be a list",
    ),
    "an id is text": (trace(row(hash_ids=(0, "1"))), "hash_ids must hold integers"),
    "an id is negative": (trace(row(hash_ids=(0, -1))), "hash_ids must hold integers"),
    "an id is too large": (trace(row(hash_ids=(0, 2**63))), "hash_ids must hold integers"),
    "an id is a list": (trace(row(hash_ids=(0, [1]))), "hash_ids must hold integers"),
    "a block is missing": (trace(row(input_length=1200)), "2 ids; 1200 tokens are 3 blocks"),
    "a block repeats": (trace(row(hash_ids=(1, 1))), "repeats an id"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "words"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named(line, words):
    with pytest.raises(TraceError, match="line 4") as caught:
        parse_trace(trace(row(), row()) + b"\n\n" + line + b"\n" + trace(row()))
    assert caught.value.line == 4
    assert words in str(caught.value)


def test_lines_that_only_together_are_json_are_refused():
    data = trace(row()) + b'\n{"timestamp": 0, "x": [{}\n{}]}'
    with pytest.raises(TraceError, match="line 2"):
        parse_trace(data)


@pytest.mark.parametrize("data", [b"", b"\n\n", gzip.compress(b"", mtime=0)])
def test_an_empty_trace_raises(data):
    with pytest.raises(TraceError, match="no request"):
        parse_trace(data)


def test_a_damaged_gzip_raises():
    data = gzip.compress(trace(*[row()] * 50))
    for bad in (data[:-9], data[:20] + b"\0\0" + data[22:], b"\x1f\x8b"):
        with pytest.raises(TraceError, match="damaged"):
            parse_trace(bad)


def test_the_size_limit_counts_unpacked_bytes():
    data = trace(*[row()] * 100)
    assert len(parse_trace(data, max_bytes=len(data))) == 100
    with pytest.raises(TraceError, match="larger than"):
        parse_trace(data, max_bytes=len(data) - 1)
    with pytest.raises(TraceError, match="when unpacked"):
        parse_trace(gzip.compress(data, mtime=0), max_bytes=len(data) - 1)


def test_a_file_that_is_not_there_is_a_trace_error(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "absent.jsonl")
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path)


def sessions(*paths, hub_children=50):
    offsets = np.cumsum([0, *map(len, paths)])
    return sessions_from_blocks(np.concatenate(paths), offsets, hub_children).tolist()


def test_a_hub_is_stripped_and_the_next_block_names_the_session():
    hub = [[0, 10 + i] for i in range(50)]
    assert sessions(*hub, [0, 10, 99])[-1] == 10


def test_below_the_hub_threshold_the_first_block_names_the_session():
    assert sessions([0, 1], [0, 2], [0, 3]) == [0, 0, 0]
    assert sessions([0, 1], [0, 2], [0, 3], hub_children=3) == [1, 2, 3]


def test_hubs_are_stripped_at_every_depth():
    second = [[0, 1, 100 + i] for i in range(50)]
    first = [[0, 200 + i] for i in range(49)]
    named = sessions(*second, *first)
    assert named == [100 + i for i in range(50)] + [200 + i for i in range(49)]


def test_a_request_that_is_all_hub_is_named_by_its_last_block():
    hub = [[0, 10 + i] for i in range(50)]
    assert sessions(*hub, [0])[-1] == 0


def test_repeats_of_one_child_do_not_make_a_hub():
    assert set(sessions(*[[0, 1, 2]] * 200)) == {0}


def test_ticks_are_found_and_spread_in_order():
    rows = [row(3000 * (i // 10), hash_ids=(0, i + 1)) for i in range(100)]
    workload = parse_trace(trace(*rows))
    assert workload.tick_s == 3.0
    spread = workload.spread(seed=1)
    assert spread.tick_s == 0.0
    assert (np.diff(spread.arrival_s) > 0).all()
    np.testing.assert_array_equal(spread.arrival_s // 3.0, workload.arrival_s // 3.0)
    np.testing.assert_array_equal(spread.block_ids, workload.block_ids)
    assert not np.array_equal(spread.arrival_s, workload.spread(seed=2).arrival_s)


def test_a_workload_without_ticks_is_not_spread():
    workload = synthetic_workload(100)
    assert workload.tick_s == 0.0
    assert workload.spread() is workload


def test_faster_shrinks_time_and_nothing_else():
    workload = synthetic_workload(50)
    np.testing.assert_allclose(workload.faster(2).arrival_s * 2, workload.arrival_s)
    with pytest.raises(K3Error, match="factor=0"):
        workload.faster(0)


def test_requests_go_in_and_come_out():
    requests = [
        Request(1.0, 600, 3, (0, 1), 5),
        Request(0.5, 100, 2, (7,), "name"),
        Request(1.0, 513, 0, (0, 2), 6),
    ]
    workload = Workload.from_requests(requests)
    assert [workload.request(i).block_ids for i in range(3)] == [(7,), (0, 1), (0, 2)]
    assert workload.request(1) == requests[0]
    assert len(workload.head(2)) == 2
    assert workload.head(2).num_blocks == 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Request(0.0, 600, 1, (0,), 1), "blocks"),
        (Request(0.0, 0, 1, (), 1), "input_len"),
        (Request(0.0, 5, -1, (0,), 1), "output_len"),
        (Request(float("nan"), 5, 1, (0,), 1), "finite"),
        (Request(0.0, 5, 1, (0,), -1), "session_id=-1"),
    ],
)
def test_a_bad_request_raises(bad, words):
    with pytest.raises(K3Error, match=words):
        Workload.from_requests([bad])


def test_a_synthetic_workload_is_the_same_for_the_same_seed():
    first, again, other = (synthetic_workload(300, seed=s) for s in (4, 4, 5))
    for name in ("arrival_s", "input_len", "output_len", "block_ids", "sessions"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
    assert first.arrival_s.tobytes() != other.arrival_s.tobytes()


def test_synthetic_arrivals_are_poisson():
    gaps = np.diff(synthetic_workload(20_000, rate_per_s=5.0).arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)


def test_a_synthetic_session_grows_and_shares_its_full_blocks():
    workload = synthetic_workload(800, num_sessions=40, hub_len=1024)
    for session in range(40):
        turns = np.flatnonzero(workload.sessions == session)
        for before, after in pairwise(turns):
            num_full = int(workload.input_len[before]) // 512
            assert workload.input_len[after] >= workload.input_len[before]
            first, second = workload.path(before), workload.path(after)
            assert first[:num_full] == second[:num_full]
            assert first[num_full:] != second[num_full : num_full + 1] or not first[num_full:]


def test_synthetic_sessions_share_the_system_prompt_and_nothing_else():
    workload = synthetic_workload(500, num_sessions=50, hub_len=1024)
    owners = {}
    for index in range(len(workload)):
        path = workload.path(index)
        assert path[:2] == [0, 1]
        for block in path[2:]:
            assert owners.setdefault(block, workload.sessions[index]) == workload.sessions[index]


@given(
    st.integers(1, 200), st.integers(1, 50), st.floats(0, 1), st.integers(0, 3000),
    st.integers(0, 5),
)  # fmt: skip
def test_any_synthetic_workload_is_a_prefix_tree(num, num_sessions, share, hub_len, seed):
    workload = synthetic_workload(num, num_sessions, 1.0, share, hub_len, seed=seed)
    parents, depths = {}, {}
    for index in range(num):
        path = workload.path(index)
        assert len(set(path)) == len(path) == -(-int(workload.input_len[index]) // 512)
        for depth, block in enumerate(path):
            assert parents.setdefault(block, path[depth - 1] if depth else None) == (
                path[depth - 1] if depth else None
            )
            assert depths.setdefault(block, depth) == depth


def test_both_classes_occur_at_the_defaults():
    share = synthetic_workload().is_long.mean()
    assert 0.1 < share < 0.5


@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_requests": 0}, {"num_sessions": 0}, {"rate_per_s": 0.0}, {"long_share": 1.5},
        {"hub_len": -1}, {"long_threshold": 0},
    ],
)  # fmt: skip
def test_impossible_workloads_raise(kwargs):
    name, value = next(iter(kwargs.items()))
    with pytest.raises(K3Error, match=f"{name}={value}"):
        synthetic_workload(**kwargs)
