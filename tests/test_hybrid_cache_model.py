"""10,000 random steps of the cache manager against a naive model: same hits, same victims.

Every page holds what it claims: rows are the tokens themselves, a state is a digest of exactly the
tokens before it. So a hit on wrong bytes, a checkpoint at a wrong position, or a shared page that
was written shows at once (the check that vLLM #50630 asks for).
"""

from hashlib import sha256

import numpy as np
import pytest

from k3core.paged_cache import PagePool
from k3core.prefix_cache import PromptHashes, Retention, root_parent
from k3core.prefix_cache.manager import HybridCacheManager
from tests.naive_cache import NaiveCache

BLOCK, UNITS, GROUPS, PAGES, PAGE_BYTES = 2, 2, 2, 22, 12
SALTS = (None, "tenant")
RULES = (
    (Retention("dense"), False, UNITS),
    (Retention("junction"), False, UNITS),
    (Retention("junction", max_per_path=2), True, UNITS),
    (Retention("replay"), True, 1),
    (Retention("interval", interval_tokens=4), False, 3),
)
STEPS = 2_000


def digest(tokens):
    return np.frombuffer(sha256(repr(tuple(tokens)).encode()).digest()[:PAGE_BYTES], np.uint8)


class Driver:
    """Runs each operation on both and compares everything that can be seen."""

    def __init__(self, seed, retention, cascade, units):
        self.rng = np.random.default_rng(seed)
        self.page_tokens = BLOCK * units
        self.manager = HybridCacheManager(
            PagePool(PAGES, PAGE_BYTES, poison=True),
            hash_block_tokens=BLOCK,
            physical_block_tokens=self.page_tokens,
            num_kda_groups=GROUPS,
            retention=retention,
            cascade=cascade,
        )
        self.pool = self.manager.pool
        self.naive = NaiveCache(PAGES, BLOCK, units, GROUPS, retention, cascade)
        self.count = 0
        self.num_hits = self.num_refused = 0

    def tokens(self):
        """Few different blocks, so that prompts meet; a salt in front names the tenant."""
        blocks = self.rng.integers(0, 2, 8).repeat(BLOCK)[: self.rng.integers(1, 17)]
        return (SALTS[int(self.rng.integers(4) == 0)], *map(int, blocks))

    def hashes(self, tokens):
        return PromptHashes(tokens[1:], BLOCK, root_parent(tokens[0]))

    def some(self, names):
        names = list(names)
        return names[int(self.rng.integers(len(names)))] if names else None

    def check_bytes(self, name):
        """The request's written rows and its states are those of its tokens."""
        request = self.naive.requests[name]
        tokens, computed = request["tokens"][1:], request["computed"]
        for at in range(computed):
            page, row = divmod(at, self.page_tokens)
            view = self.pool.page_bytes_view(self.manager.pages(name)[page])
            assert view[row] == tokens[at]
        expected = digest(request["tokens"][: computed + 1]) if computed else 0
        for page in self.manager.state_pages(name):
            assert (self.pool.page_bytes_view(page) == expected).all()

    def admit(self):
        tokens, name = self.tokens(), self.count
        self.count += 1
        admission = self.manager.admit(name, self.hashes(tokens))
        reused = self.naive.admit(name, tokens)
        assert (None if admission is None else admission.reused_tokens) == reused
        self.num_hits += bool(reused)
        self.num_refused += admission is None
        if admission is not None:
            self.check_bytes(name)

    def step(self):
        """Compute some tokens: write their rows and the states, then publish."""
        name = self.some(self.naive.requests)
        if name is None:
            return
        request = self.naive.requests[name]
        start, length = request["computed"], len(request["tokens"]) - 1
        stop = min(start + int(self.rng.integers(1, 6)), length)
        if self.rng.integers(3) == 0:
            stop = min(-(-(start + 1) // BLOCK) * BLOCK, length)
        if stop <= start:
            return
        growth = self.manager.grow(name, stop)
        assert (growth is not None) == self.naive.grow(name, stop)
        if growth is None:
            return
        for at in range(start, stop):
            page, row = divmod(at, self.page_tokens)
            view = self.pool.page_bytes_view(self.manager.pages(name)[page])
            view[row] = request["tokens"][1 + at]
        for page in self.manager.state_pages(name):
            self.pool.page_bytes_view(page)[:] = digest(request["tokens"][: stop + 1])
        self.manager.computed(name, stop)
        self.naive.computed(name, stop)
        self.check_bytes(name)

    def extend(self):
        name = self.some(self.naive.requests)
        if name is not None:
            added = tuple(int(x) for x in self.rng.integers(0, 2, self.rng.integers(1, 4)))
            self.manager.extend(name, added)
            self.naive.extend(name, added)

    def fork(self):
        name = self.some(self.naive.requests)
        if name is not None:
            new, self.count = self.count, self.count + 1
            assert (self.manager.fork(name, new) is not None) == self.naive.fork(name, new)
            if new in self.naive.requests:
                self.check_bytes(new)

    def release(self):
        name = self.some(self.naive.requests)
        if name is not None:
            self.manager.release(name)
            self.naive.release(name)

    def evict_block(self):
        prefix = self.some(self.naive.blocks)
        if prefix is not None:
            self.manager.residency.drop_block(self.hashes(prefix).block_hashes[-1])
            self.naive.drop_block(prefix)

    def evict_states(self):
        prefix = self.some(self.naive.states)
        if prefix is not None:
            self.manager.residency.drop_boundary(self.hashes(prefix).block_hashes[-1])
            self.naive.drop_states([prefix])

    def reset(self):
        if self.rng.integers(10) == 0:
            for name in list(self.naive.requests):
                self.manager.release(name)
                self.naive.release(name)
        assert self.manager.reset() is self.naive.reset()

    def compare(self):
        self.manager.check()
        assert list(self.pool.free_order()) == self.naive.order
        for page in range(PAGES):
            info = self.pool.page_info(page)
            assert info.num_references == self.naive.references.get(page, 0)
            assert info.published == (page in self.naive.published)
        for name, request in self.naive.requests.items():
            assert list(self.manager.pages(name)) == request["pages"]
            assert list(self.manager.state_pages(name)) == request["states"]
        assert self.manager.cache.num_blocks == len(self.naive.blocks)
        assert self.manager.cache.num_checkpoints == GROUPS * len(self.naive.states)
        assert self.manager.num_skipped_checkpoints == self.naive.num_skipped
        for _ in range(2):
            tokens = self.tokens()
            hit = self.manager.lookup(self.hashes(tokens))
            found = (hit.matched_tokens, hit.mla_tokens, hit.registered_tokens, hit.junction_tokens)
            assert found == tuple(BLOCK * blocks for blocks in self.naive.lookup(tokens))
            assert sum(hit.loss_account().values()) == len(tokens) - 1


@pytest.mark.parametrize("case", range(len(RULES)))
def test_random_operations_equal_the_naive_model(case):
    driver = Driver(case, *RULES[case])
    moves = (
        [driver.admit] * 6
        + [driver.step] * 12
        + [driver.extend, driver.fork, driver.evict_block, driver.evict_states, driver.reset]
        + [driver.release] * 4
    )
    for _ in range(STEPS):
        moves[int(driver.rng.integers(len(moves)))]()
        driver.compare()
    assert driver.num_hits > 10
    assert driver.num_refused > 20
    assert driver.naive.num_skipped > 0
