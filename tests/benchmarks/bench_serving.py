"""Replayed fleets against their size, and the engine before and after a prefix is cached."""

from __future__ import annotations

import numpy as np
import pytest

from k3core.engine import Engine
from k3core.fleet import FleetSimulator, synthetic_workload
from k3core.model import HybridModel
from tests.benchmarks.measures import note_exponent, note_ratio, race, seconds_of
from tests.helpers import same_bits


@pytest.mark.benchmark(group="Fleet")
@pytest.mark.parametrize("against", ["requests", "capacity"])
def test_growth_of_a_replay(benchmark, against):
    if against == "requests":
        sizes = [5_000, 10_000, 20_000, 40_000]
        runs = [
            (FleetSimulator(8, capacity_blocks=5859), synthetic_workload(n, n // 2, 3.0))
            for n in sizes
        ]
    else:
        sizes = [500, 1_000, 2_000, 4_000, 8_000]
        workload = synthetic_workload(10_000, 5_000, 3.0)
        runs = [(FleetSimulator(8, capacity_blocks=size), workload) for size in sizes]
    rows = [[seconds_of(lambda r=r: r[0].run(r[1])) for r in runs] for _ in range(4)]
    benchmark.pedantic(runs[-1][0].run, args=(runs[-1][1],), rounds=2)
    note_exponent(benchmark, against, sizes, rows[1:])


@pytest.mark.benchmark(group="Engine")
@pytest.mark.parametrize("shared_len", [1024, 2048])
def test_first_token_before_and_after_its_prefix_is_cached(benchmark, shared_len):
    """Prompts of 2,100 tokens on a toy stack: `shared_len` of them cached, and on a new engine."""
    model = HybridModel()
    rng = np.random.default_rng(0)

    def tokens(count):
        return rng.integers(model.config.vocab_size, size=count).tolist()

    shared = tokens(shared_len)
    engine = Engine(model, 200)
    engine.generate([*shared, *tokens(1)], 1)

    def cold(prompt):
        return Engine(model, 200).generate(prompt, 1)

    prompt = [*shared, *tokens(2100 - shared_len)]
    warm = engine.generate(prompt, 1)
    assert warm.reused_tokens == shared_len
    assert same_bits(warm.logits, cold(prompt).logits)
    times = race(
        benchmark,
        lambda: engine.generate([*shared, *tokens(2100 - shared_len)], 1),
        {"cold": lambda: cold(prompt)},
        rounds=7,
    )
    note_ratio(benchmark, "cold / with prefix", times["cold"], times["ours"])
