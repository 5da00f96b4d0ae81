"""Workloads for the tests of the fleet."""

from k3core.fleet import PrefillCost, Request, Workload

UNIT = PrefillCost("unit", linear_s=0.001)  # one second per thousand tokens


def requests(*rows):
    """A workload from (arrival_s, input_len, session) with no shared blocks."""
    next_id, built = 0, []
    for arrival_s, input_len, session in rows:
        num_blocks = -(-input_len // 512)
        path = tuple(range(next_id, next_id + num_blocks))
        built.append(Request(arrival_s, input_len, 1, path, session))
        next_id += num_blocks
    return Workload.from_requests(built)
