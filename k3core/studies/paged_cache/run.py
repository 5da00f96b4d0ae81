"""Several requests on one pool: every page, every step, with the bytes really written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Unpack

import pandas as pd
import torch

from k3core.errors import K3Error, require, require_count
from k3core.paged_cache import LayerState, PagedCache
from k3core.paged_cache.stats import PageKind
from k3core.studies.paged_cache.history import PageHistory
from k3core.studies.paged_cache.sizes import (
    RequestSizes,
    SizeOptions,
    num_different,
    request_sizes,
)
from k3core.studies.paged_cache.watched import UnscrubbedPool, WatchedPool

CHUNK_TOKENS = 512  # tokens that a running request adds per step
ARRIVAL_GAP = 3  # steps between two arrivals
IDLE_STEPS = 2  # steps shown after the last request
REQUEST_COLUMNS = ["request", "arrival", "start", "stop", "tokens", "pages"]
LENGTHS = (1.0, 0.75, 0.5, 1.0, 0.25, 0.75, 1.0, 0.5)  # of the sequence length, by request


@dataclass
class _Request:
    """One request on its way through the pool."""

    name: str
    arrival: int
    num_tokens: int
    num_pages: int
    cache: PagedCache
    states: dict[int, LayerState] = field(default_factory=dict)
    start: int = -1
    stop: int = -1

    @property
    def pages_to_come(self) -> int:
        return (
            self.num_pages
            - len(self.cache.mla_pages)
            - sum(len(pages) for pages in self.cache.kda_pages.values())
        )


@dataclass(frozen=True)
class RunView:
    """The pool at one step."""

    step: int
    num_mla: int
    num_kda: int
    num_cached: int
    num_free: int
    num_running: int
    playhead: pd.DataFrame
    order: pd.DataFrame


@dataclass(frozen=True)
class PoolRun:
    """What every page did in one run.

    Tables:
        stays: one row per stay of a page: page, start, stop, place, kind, owner, tokens, bytes.
        marks: pages that were evicted or changed kind, at the step where it happened.
        by_step: pages by place and kind after each step.
        owners: one row per block of neighbouring pages that one request took in one step.
        requests: arrival, start, stop, tokens and pages of each request.
        evictions: cached pages in the order in which they were reused, and what they held.
        order: the first pages of the free list after each step: which one is taken next.
        pool: pages and steps of the run.
    """

    tables: dict[str, pd.DataFrame]
    sizes: RequestSizes
    num_pages: int
    num_steps: int
    num_kda_layers: int
    pages_per_layer: int
    num_evicted: int
    num_retyped: int
    stale_bytes: int
    nan_values: int
    num_wrong: int
    bytes_written: int

    @property
    def slab_pages(self) -> int:
        """KDA pages that a request takes at once."""
        return self.num_kda_layers * self.pages_per_layer

    def at(self, step: int) -> RunView:
        """The pool after ``step``."""
        step = min(max(step, 0), self.num_steps - 1)
        row = self.tables["by_step"].iloc[step]
        return RunView(
            step,
            num_mla=int(row["mla"]),
            num_kda=int(row["kda"]),
            num_cached=int(row["cached"]),
            num_free=int(row["free"]),
            num_running=int(row["running"]),
            playhead=pd.DataFrame({"step": [step + 0.5], "shown": [step]}),
            order=self.tables["order"].query("step == @step").reset_index(drop=True),
        )


def pages_for(sizes: RequestSizes, kda_layers: int, seq_len: int) -> int:
    """Pages of the longest request of a run: KDA slab and MLA rows."""
    slab = kda_layers * -(-sizes.kda_bytes // sizes.page_bytes)
    return slab + -(-seq_len // sizes.tokens_per_page)


def run_pool(
    kda_layers: int = 3,
    pool_pages: int = 48,
    num_requests: int = 6,
    seq_len: int = 4096,
    keep: str = "cached",
    scrub: bool = True,
    **options: Unpack[SizeOptions],
) -> PoolRun:
    """Serve ``num_requests`` requests, one MLA layer and ``kda_layers`` KDA layers each.

    A request arrives every third step and waits, first come first served, until its pages and
    those that the running ones will still take fit. It stores its states on arrival and again at
    its end, and adds 512 tokens of rows per step. At its end its pages are published and stay
    cached (``keep="cached"``) or are dropped (``keep="dropped"``). Rows and states are read back
    at the end and compared bit for bit.

    Args:
        options: sizes, as in ``request_sizes``.

    Raises:
        K3Error: a size is out of range, or the longest request does not fit into the pool.
    """
    sizes = request_sizes(**options)
    for name, value in {
        "kda_layers": kda_layers,
        "pool_pages": pool_pages,
        "num_requests": num_requests,
        "seq_len": seq_len,
    }.items():
        require_count(name, value, 1)
    require(num_requests <= 26, f"num_requests={num_requests} must be at most 26")
    require(keep in ("cached", "dropped"), f"keep={keep!r} must be cached or dropped")
    sizes.require_buffer(pool_pages)
    longest = pages_for(sizes, kda_layers, seq_len)
    if longest > pool_pages:
        raise K3Error(
            f"pool_pages={pool_pages} cannot hold one request: it needs {longest} pages; use more "
            f"pages, larger pages, fewer KDA layers or a shorter sequence"
        )
    make: type[WatchedPool] = WatchedPool if scrub else UnscrubbedPool
    memory = sizes.memory
    dtypes = {PageKind.MLA_KV: memory.mla_dtype, PageKind.KDA_STATE: memory.state_dtype}
    pool = make(pool_pages, sizes.page_bytes, dtypes)
    requests = []
    for index in range(num_requests):
        num_tokens = max(int(seq_len * LENGTHS[index % len(LENGTHS)]), 1)
        requests.append(
            _Request(
                name=chr(ord("A") + index),
                arrival=index * ARRIVAL_GAP,
                num_tokens=num_tokens,
                num_pages=pages_for(sizes, kda_layers, num_tokens),
                cache=sizes.cache(pool),
            )
        )
    run = _Run(sizes, pool, kda_layers, keep)
    return run.result(run.serve(requests), requests)


class _Run:
    def __init__(self, sizes: RequestSizes, pool: WatchedPool, kda_layers: int, keep: str) -> None:
        self.sizes, self.pool, self.kda_layers, self.keep = sizes, pool, kda_layers, keep
        self.history = PageHistory(sizes, pool)
        self.rows = sizes.rows(CHUNK_TOKENS + 64, seed=1)
        self.last_state = LayerState(*sizes.state(seed=2))
        self.fresh_state = LayerState(*(torch.zeros_like(part) for part in sizes.state()))
        self.bytes_written = 0
        self.num_wrong = 0

    def serve(self, requests: Sequence[_Request]) -> int:
        """Run until every request has ended; returns the number of steps."""
        waiting, running = list(requests), list[_Request]()
        step, idle = 0, 0
        while idle < IDLE_STEPS:
            self.pool.step = step
            for request in [r for r in running if r.cache.num_tokens == r.num_tokens]:
                self.finish(request)
                running.remove(request)
            while waiting and waiting[0].arrival <= step:
                promised = sum(request.pages_to_come for request in running)
                if waiting[0].num_pages + promised > self.pool.num_available:
                    break
                running.append(waiting.pop(0))
                running[-1].start = step
                self.store(running[-1], self.fresh_state)
            for request in running:
                self.extend(request)
            self.history.record(step, {one.name: one.cache for one in running})
            idle = 0 if waiting or running else idle + 1
            step += 1
        self.history.close(range(self.pool.num_pages), step)
        self.pool.check()
        return step

    def store(self, request: _Request, state: LayerState) -> None:
        for layer in range(self.kda_layers):
            request.states[layer] = state
            if state is self.last_state:  # every request and layer ends with another one
                rolled = state.recurrent.roll(ord(request.name) + layer, -1)
                request.states[layer] = LayerState(rolled, state.conv_window)
            request.cache.store_kda(layer, request.states[layer])
            self.bytes_written += self.sizes.kda_bytes

    def extend(self, request: _Request) -> None:
        count = min(CHUNK_TOKENS, request.num_tokens - request.cache.num_tokens)
        request.cache.append_mla(count, self.rows_of(request, count))
        self.bytes_written += count * self.sizes.row_bytes

    def rows_of(self, request: _Request, count: int) -> torch.Tensor:
        first = ord(request.name) % 32
        return self.rows[first : first + count]

    def finish(self, request: _Request) -> None:
        request.stop = self.pool.step
        cache = request.cache
        self.store(request, self.last_state)
        for start in range(0, cache.num_tokens, CHUNK_TOKENS):
            stop = min(start + CHUNK_TOKENS, cache.num_tokens)
            rows = cache.read_mla(start, stop)
            self.num_wrong += num_different(rows, self.rows_of(request, stop - start))
        for layer, stored in request.states.items():
            for part, back in zip(stored, cache.load_kda(layer), strict=True):
                if part is not None:
                    self.num_wrong += num_different(back, part)
        request.states.clear()
        pages = self.history.note_content(request.name, cache)
        if self.keep == "cached":
            self.pool.publish(pages)
        cache.release()

    def result(self, num_steps: int, requests: Sequence[_Request]) -> PoolRun:
        sizes, pool = self.sizes, self.pool
        served = [
            (one.name, one.arrival, one.start, one.stop, one.num_tokens, one.num_pages)
            for one in requests
        ]
        return PoolRun(
            tables={
                **self.history.tables(num_steps),
                "requests": pd.DataFrame(served, columns=REQUEST_COLUMNS),
            },
            sizes=sizes,
            num_pages=pool.num_pages,
            num_steps=num_steps,
            num_kda_layers=self.kda_layers,
            pages_per_layer=-(-sizes.kda_bytes // sizes.page_bytes),
            num_evicted=len(self.history.evictions),
            num_retyped=len(pool.retyped),
            stale_bytes=sum(stale for _, _, stale, _ in pool.retyped),
            nan_values=sum(nan for *_, nan in pool.retyped),
            num_wrong=self.num_wrong,
            bytes_written=self.bytes_written,
        )
