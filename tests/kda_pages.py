"""Real KDA states in the pages of a cache manager: three groups of one small layer each."""

import numpy as np
import torch

from k3core.kda import kda_gate, kda_recurrent, l2_normalize
from k3core.paged_cache import PagePool
from k3core.prefix_cache import Retention
from k3core.prefix_cache.manager import HybridCacheManager

GROUPS, DK, DV, WINDOW = 3, 6, 5, 3
VOCABULARY = 40
ROW_BYTES = 8
STATE_BYTES = 4 * (DK * DV + WINDOW * (2 * DK + DV))


class Layers:
    """Projections of the three layers by token; a state is a recurrent part and the last inputs."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        width = 3 * DK + DV + 1
        self.table = torch.randn(GROUPS, VOCABULARY, width, generator=generator)

    def advance(self, group, state, tokens):
        """State and window after ``tokens``, from those before; one token after the other."""
        recurrent, window = state
        rows = self.table[group, torch.tensor(tokens)]
        q, k, v, f, b = rows.split([DK, DK, DV, DK, 1], dim=-1)
        shape = (1, 1, len(tokens), -1)
        _, recurrent = kda_recurrent(
            l2_normalize(q).view(shape),
            l2_normalize(k).view(shape),
            v.reshape(shape),
            kda_gate(f.reshape(shape)),
            torch.sigmoid(b).view(1, 1, -1),
            recurrent,
        )
        inputs = torch.cat([window, rows[:, : 2 * DK + DV]])
        return recurrent, inputs[-WINDOW:]

    def clean(self, tokens):
        """Bytes of every group's state after exactly ``tokens``, from zero in one go."""
        states = []
        for group in range(GROUPS):
            state = (torch.zeros(1, 1, DK, DV), torch.zeros(WINDOW, 2 * DK + DV))
            states.append(to_bytes(self.advance(group, state, tokens) if tokens else state))
        return states


def to_bytes(state):
    return b"".join(part.contiguous().numpy().tobytes() for part in state)


def from_bytes(raw):
    values = torch.from_numpy(np.frombuffer(raw, np.float32).copy())
    recurrent, window = values.split([DK * DV, WINDOW * (2 * DK + DV)])
    return recurrent.view(1, 1, DK, DV), window.view(WINDOW, 2 * DK + DV)


class Server:
    """Runs prompts on a manager; rows of MLA pages are the tokens and their positions."""

    def __init__(self, num_pages=200, block=4, units=1, rule="dense", **kwargs):
        self.layers = Layers()
        self.page_tokens = block * units
        page_bytes = max(STATE_BYTES, self.page_tokens * ROW_BYTES)
        self.manager = HybridCacheManager(
            PagePool(num_pages, page_bytes, poison=True),
            hash_block_tokens=block,
            physical_block_tokens=self.page_tokens,
            num_kda_groups=GROUPS,
            retention=Retention(rule),
            **kwargs,
        )
        self.prompts = {}
        self.num_checked = 0

    def state(self, page):
        return self.manager.pool.page_bytes_view(page)[:STATE_BYTES].tobytes()

    def admit(self, name, tokens):
        admission = self.manager.admit(name, tokens)
        if admission is not None:
            self.prompts[name] = list(tokens)
            assert self.states(name) == self.layers.clean(tokens[: admission.reused_tokens])
        return admission

    def states(self, name):
        return [self.state(page) for page in self.manager.state_pages(name)]

    def compute(self, name, stop):
        """Read the states from their pages, run the tokens, write rows and states, publish."""
        manager, pool = self.manager, self.manager.pool
        start, tokens = manager.num_computed(name), self.prompts[name]
        assert manager.grow(name, stop) is not None
        for at in range(start, stop):
            page, row = divmod(at, self.page_tokens)
            view = pool.page_bytes_view(manager.pages(name)[page])
            view[row * ROW_BYTES :][:ROW_BYTES] = np.array([at, tokens[at]], np.int32).view(
                np.uint8
            )
        for group, page in enumerate(manager.state_pages(name)):
            state = self.layers.advance(group, from_bytes(self.state(page)), tokens[start:stop])
            pool.page_bytes_view(page)[:STATE_BYTES] = np.frombuffer(to_bytes(state), np.uint8)
        manager.computed(name, stop)
        self.check()

    def run(self, name, tokens, budget=10_000):
        admission = self.admit(name, tokens)
        assert admission is not None
        while self.manager.num_computed(name) < len(tokens):
            self.compute(name, self.manager.next_chunk_end(name, budget))
        return admission

    def serve(self, name, tokens, budget=10_000):
        admission = self.run(name, tokens, budget)
        self.manager.release(name)
        return admission

    def check(self):
        """Accounts, rows of every hit, and every checkpoint against a clean run, bit for bit."""
        manager = self.manager
        manager.check()
        for tokens in self.prompts.values():
            for end in range(manager.hash_block_tokens, len(tokens) + 1, manager.hash_block_tokens):
                found = manager.lookup(tokens[: end + 1] if end < len(tokens) else [*tokens, 0])
                if found.matched_tokens != end:
                    continue
                pages = [state.pages[0] for state in found.checkpoint_payloads]
                assert [self.state(page) for page in pages] == self.layers.clean(tokens[:end])
                self.num_checked += 1
                for index, unit in enumerate(found.block_payloads):
                    at = index * manager.hash_block_tokens
                    row = at % self.page_tokens * ROW_BYTES
                    raw = manager.pool.page_bytes_view(unit.page)[row : row + ROW_BYTES]
                    assert raw.view(np.int32).tolist() == [at, tokens[at]]
