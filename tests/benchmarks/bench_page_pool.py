"""Cost of the page pool, accounting only.

Unhashed pages unless a name says otherwise. The growth from 1,000 to 1,000,000 pages is what the
caches of the machine make of arrays that no longer fit into them.

vLLM's BlockPool beside it (published measurement, Python 3.11, another machine): construction of
100,000 blocks 260-290 ms; alloc and free of 100 blocks 0.84-0.98 us per block. It keeps an object
per block, a null block and event hooks; this pool keeps four arrays, kinds and checks every page
of a call.
"""

import numpy as np
import pytest

from k3core.paged_cache import PageKind, PagePool
from k3core.prefix_cache import Retention
from k3core.prefix_cache.manager import HybridCacheManager
from tests.benchmarks.measures import at_most, note_exponent, note_value, seconds_of

MLA, KDA = PageKind.MLA_KV, PageKind.KDA_STATE
pytestmark = pytest.mark.benchmark(group="Page pool", disable_gc=True)


def sample(benchmark, call, rounds):
    """Seconds of each round."""
    benchmark.pedantic(call, rounds=rounds, warmup_rounds=1)
    return np.asarray(benchmark.stats.stats.data)


def test_construction_of_100_000_pages(benchmark):
    seconds = sample(benchmark, lambda: PagePool(100_000), 60)
    note_value(benchmark, "ms", seconds * 1e3, at_most(50))


@pytest.mark.parametrize("count", [1, 16, 100, 1000])
def test_alloc_and_free(benchmark, count):
    pool, repeat = PagePool(100_000), max(1, 500 // count)

    def run():
        for _ in range(repeat):
            pool.free(pool.alloc(MLA, count))

    seconds = sample(benchmark, run, 100)
    bound = at_most(1.0) if count == 100 else None
    note_value(benchmark, "µs per page", seconds * 1e6 / (count * repeat), bound)


def evicting_pool(num_pages):
    """A full pool of published pages, freed in a random order."""
    pool = PagePool(num_pages)
    pages = np.array(pool.alloc(MLA, num_pages))
    pool.publish(pages.tolist())
    pool.free(np.random.default_rng(0).permutation(pages).tolist())
    return pool


def turn_over(pool):
    taken = pool.alloc(MLA, 100)
    pool.publish(taken)
    pool.free(taken)


def test_cost_by_pool_size(benchmark):
    """Evict, publish and free 100 pages, drawn from all over the pool."""
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    pools = [evicting_pool(size) for size in sizes]
    rows = [[seconds_of(lambda p=pool: turn_over(p)) for pool in pools] for _ in range(1000)]
    benchmark.pedantic(turn_over, args=(pools[-1],), rounds=1000)
    note_exponent(benchmark, "pages", sizes, rows)
    best = np.min(rows, axis=0)
    note_value(benchmark, "1,000,000 pages / 1,000 pages", [best[-1] / best[0]], at_most(5))


def test_a_hit_takes_pages_out_of_the_middle_of_a_long_free_list(benchmark):
    pool = PagePool(200_000)
    pages = pool.alloc(MLA, 100_100)
    pool.publish(pages)
    pool.free(pages)
    hit = pages[50_000:50_100]

    def run():
        pool.retain(hit)
        pool.free(hit)

    note_value(benchmark, "µs per page", sample(benchmark, run, 100) * 1e6 / len(hit), at_most(2.0))


def test_admission_of_a_cached_prompt(benchmark):
    """Lookup, pin, take, copy, register, release: 100 blocks, three KDA groups."""
    manager = HybridCacheManager(PagePool(2_000), num_kda_groups=3, retention=Retention("replay"))
    prompt = manager.prompt(np.arange(51_201))
    manager.admit("first", prompt)
    manager.computed("first", 51_200)
    manager.release("first")
    assert manager.lookup(prompt).matched_tokens == 51_200

    def run():
        manager.admit("again", prompt)
        manager.release("again")

    note_value(benchmark, "ms", sample(benchmark, run, 60) * 1e3)
    manager.check()
