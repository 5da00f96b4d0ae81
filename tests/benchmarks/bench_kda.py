"""KDA against the functions of `transformers`, a textbook loop, and the machine's own limits.

Every ratio comes from calls in turn in one process; results are compared before they are timed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.kimi_linear import modeling_kimi_linear as peer

from k3core import kda
from k3core.decode import DraftProjections, verify_and_replay
from tests.benchmarks.measures import at_least, at_most, note_exponent, note_ratio, race, seconds_of
from tests.helpers import largest_difference, make_sequences, same_bits

CASES = [(8, 2048, 128), (4, 512, 32)]


def inputs(num_heads: int, num_tokens: int, size: int, batch: int = 1):
    return make_sequences(num_tokens, batch, num_heads, size, size, dtype=torch.float32)


def peer_inputs(sequences):
    """`transformers` takes (B, T, H, D) and scales the queries itself."""
    q, k, v, g, beta = (x.transpose(1, 2).contiguous() for x in sequences)
    return q * q.shape[-1] ** 0.5, k, v, g, beta


def textbook(q, k, v, g, beta):
    """Head by head, token by token, as the formula stands in the report."""
    batch, num_heads, num_tokens, dk = k.shape
    out = torch.zeros_like(v)
    state = torch.zeros(batch, num_heads, dk, v.shape[-1])
    for b in range(batch):
        for h in range(num_heads):
            s = state[b, h]
            for t in range(num_tokens):
                s = g[b, h, t].exp()[:, None] * s
                s = s + torch.outer(k[b, h, t], beta[b, h, t] * (v[b, h, t] - s.T @ k[b, h, t]))
                out[b, h, t] = s.T @ q[b, h, t]
            state[b, h] = s
    return out, state


@pytest.mark.benchmark(group="KDA token by token")
@pytest.mark.parametrize("case", CASES, ids=lambda c: "H{}-T{}-d{}".format(*c))
def test_recurrent(benchmark, case):
    sequences = inputs(*case)
    theirs = peer_inputs(sequences)
    state = torch.zeros(1, case[0], case[2], case[2])

    def ours():
        return kda.kda_recurrent(*sequences, state=state)

    def transformers():
        return peer.recurrent_kimi_delta_attention(*theirs, state, True)

    assert largest_difference(ours()[0], transformers()[0].transpose(1, 2)) < 1e-5
    times = race(benchmark, ours, {"transformers": transformers}, rounds=9)
    bound = at_least(1.7 if case == CASES[0] else 2.0)
    note_ratio(benchmark, "transformers / ours", times["transformers"], times["ours"], bound)


@pytest.mark.benchmark(group="KDA token by token")
def test_recurrent_against_a_textbook_loop(benchmark):
    sequences = inputs(4, 512, 32)
    assert largest_difference(kda.kda_recurrent(*sequences)[0], textbook(*sequences)[0]) < 1e-5
    times = race(
        benchmark,
        lambda: kda.kda_recurrent(*sequences),
        {"textbook": lambda: textbook(*sequences)},
        rounds=5,
    )
    note_ratio(benchmark, "textbook / ours", times["textbook"], times["ours"])


@pytest.mark.benchmark(group="KDA in chunks")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_chunk_against_transformers(benchmark, threads, num_threads):
    threads(num_threads)
    sequences = inputs(*CASES[0])
    theirs = peer_inputs(sequences)
    state = torch.zeros(1, 8, 128, 128)

    def transformers():
        return peer.chunk_kimi_delta_attention(*theirs, 64, state, True)

    result = kda.kda_chunk(*sequences, state=state)
    expected = transformers()
    assert largest_difference(result[0], expected[0].transpose(1, 2)) < 1e-5
    assert largest_difference(result[1], expected[1]) < 1e-5
    times = race(
        benchmark,
        lambda: kda.kda_chunk(*sequences, state=state),
        {"transformers": transformers},
        rounds=3,
    )
    note_ratio(benchmark, "transformers / ours", times["transformers"], times["ours"], at_least(25))


def chunk_flops(num_heads: int, num_tokens: int, size: int, chunk_len: int) -> int:
    """``6 T d^2 + 3 T C d + T C^2`` per head (Kimi-Linear report)."""
    per_token = 6 * size**2 + 3 * chunk_len * size + chunk_len**2
    return num_heads * num_tokens * per_token


@pytest.mark.benchmark(group="KDA in chunks")
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("chunk_len", [16, 32, 64, 128])
def test_chunk_against_the_machine(benchmark, threads, num_threads, chunk_len):
    threads(num_threads)
    sequences = inputs(*CASES[0])
    square = torch.randn(1024, 1024)
    room = torch.empty_like(square)
    times = race(
        benchmark,
        lambda: kda.kda_chunk(*sequences, chunk_size=chunk_len),
        {
            "recurrence": lambda: kda.kda_recurrent(*sequences),
            "gemm": lambda: torch.mm(square, square, out=room),
        },
        rounds=9,
    )
    chosen = chunk_len == kda.CHUNK_LEN
    work = chunk_flops(*CASES[0], chunk_len) / (2 * 1024**3)
    for name, scale, bound in (("recurrence", 1.0, 3.0), ("gemm", work, 0.35)):
        note_ratio(
            benchmark,
            "own recurrence / chunk" if name == "recurrence" else "share of the GEMM peak",
            times[name],
            times["ours"],
            at_least(bound) if chosen and (name == "gemm" or num_threads == 2) else None,
            scale,
        )


@pytest.mark.benchmark(group="Rollback")
def test_replay_against_steps_and_snapshots(benchmark):
    """Eight drafts at the geometry of one rank of Kimi K3 (H = 12, K = V = 128)."""
    sequences = inputs(12, 8, 128)
    projections = DraftProjections.from_sequences(*sequences)
    steps = [[x[:, :, t].contiguous() for x in sequences] for t in range(8)]
    committed = torch.randn(1, 12, 128, 128, generator=torch.Generator().manual_seed(0))

    def bare_steps():
        state = committed
        for step in steps:
            _, state = kda.kda_step(*step, state)
        return state

    def snapshots():
        state, kept = committed, []
        for step in steps:
            _, state = kda.kda_step(*step, state)
            kept.append(state.clone())
        return kept[-1]

    def replay():
        return verify_and_replay(committed, projections, 8)[0]

    assert same_bits(replay(), bare_steps())
    assert same_bits(replay(), snapshots())
    peers = {"steps": bare_steps, "snapshots": snapshots}
    times = race(benchmark, replay, peers, rounds=200)
    note_ratio(benchmark, "replay / 8 bare steps", times["ours"], times["steps"], at_most(1.3))
    note_ratio(
        benchmark, "replay / 8 steps with copies", times["ours"], times["snapshots"], at_most(1.0)
    )


SWEEPS = {
    "T": [(8, tokens, 64) for tokens in (256, 512, 1024, 2048)],
    "H": [(heads, 512, 64) for heads in (2, 4, 8, 16)],
    "d": [(4, 512, size) for size in (32, 64, 128, 256)],
}


@pytest.mark.benchmark(group="Growth")
@pytest.mark.parametrize("against", list(SWEEPS))
@pytest.mark.parametrize("function", [kda.kda_recurrent, kda.kda_chunk], ids=lambda f: f.__name__)
def test_growth(benchmark, function, against):
    cases = [inputs(*case) for case in SWEEPS[against]]
    rows = [[seconds_of(lambda x=x: function(*x)) for x in cases] for _ in range(8)]
    benchmark.pedantic(function, args=cases[-1], rounds=3)
    sizes = [case["HTd".index(against)] for case in SWEEPS[against]]
    note_exponent(benchmark, against, sizes, np.asarray(rows[1:]))
