"""Checkpoints of real states equal those of a clean run, whatever runs beside and before.

A quiet cache does not show a poisoned one: it takes A, then B on another prefix, then A again, or
cold prefills that share a step's budget (vLLM #50630).
"""

import random

import pytest

from tests.kda_pages import VOCABULARY, Server


def prompt(length, seed, shared=()):
    rng = random.Random(seed)
    return [*shared, *(rng.randrange(VOCABULARY) for _ in range(length - len(shared)))]


@pytest.mark.parametrize("rule", ["dense", "junction", "replay", "chunk_end"])
@pytest.mark.parametrize("units", [1, 2])
def test_a_then_b_then_a_leaves_clean_states(rule, units):
    server = Server(rule=rule, units=units)
    one, other = prompt(30, 1), prompt(27, 2)
    server.serve("a", one, budget=9)
    server.serve("b", other, budget=9)
    again = server.serve("c", one, budget=9)
    assert again.reused_tokens > 0
    assert server.num_checked > 0


def test_a_then_b_then_a_in_a_pool_that_must_evict():
    server = Server(num_pages=16)
    one, other = prompt(16, 1), prompt(17, 2)
    hits = [server.serve(n, one if n % 2 else other, budget=5).reused_tokens for n in range(8)]
    assert max(hits) < len(other)
    assert server.manager.residency.num_evicted_blocks > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("units", [1, 3])
def test_concurrent_cold_prefills_with_fragmented_budgets(seed, units):
    """Three prompts, two of them on one prefix, share every step's budget by chance."""
    rng = random.Random(seed)
    shared = prompt(13, 100 + seed)
    server = Server(num_pages=300, units=units, rule=rng.choice(["dense", "junction"]))
    manager = server.manager
    prompts = {
        "a": prompt(30, seed, shared),
        "b": prompt(26, 50 + seed, shared),
        "c": prompt(33, 80 + seed),
    }
    for name, tokens in prompts.items():
        server.admit(name, tokens)
    step_budget, waiting = 14, 0
    while any(manager.num_computed(name) < len(tokens) for name, tokens in prompts.items()):
        left = step_budget
        names = [name for name in prompts if manager.num_computed(name) < len(prompts[name])]
        rng.shuffle(names)
        for name in names:
            budget = min(left, rng.randrange(1, step_budget + 1)) if name != names[-1] else left
            at = manager.num_computed(name)
            end = manager.next_chunk_end(name, budget, step_budget)
            waiting += end == at
            if end > at:
                server.compute(name, end)
                left -= end - at
    for name in prompts:
        manager.release(name)
    server.check()
    assert server.num_checked > 20
    assert server.admit("again", prompts["a"]).reused_tokens == 28
