"""Several requests on one pool: every page, every step, with the bytes really written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd
import torch

from k3core.errors import K3Error, require, require_count
from k3core.paged_cache import LayerState, PagedCache
from k3core.paged_cache.stats import PageKind
from k3core.studies.paged_cache.sizes import (
    RequestSizes,
    num_different,
    request_sizes,
)
from k3core.studies.paged_cache.watched import KIND_CODES, UnscrubbedPool, WatchedPool

CHUNK_TOKENS = 512  # tokens that a running request adds per step
ARRIVAL_GAP = 3  # steps between two arrivals
IDLE_STEPS = 2  # steps shown after the last request
SHOWN_ORDER = 64  # pages of the free list that are kept after each step
ORDER_COLUMNS = ["step", "place_in_line", "page", "kind", "owner", "part", "holds"]
EVICTION_COLUMNS = ["number", "step", "page", "kind", "owner", "part", "depth"]
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
    model: str = "kimi-k3",
    tp: int = 8,
    state_dtype: str = "float32",
    mla_dtype: str = "float8",
    heads: int = 12,
    dk: int = 128,
    dv: int = 128,
    tokens_per_page: int = 512,
    kda_layers: int = 3,
    pool_pages: int = 48,
    num_requests: int = 6,
    seq_len: int = 4096,
    keep: str = "cached",
    scrub: bool = True,
) -> PoolRun:
    """Serve ``num_requests`` requests, one MLA layer and ``kda_layers`` KDA layers each.

    A request arrives every third step and waits, first come first served, until its pages and
    those that the running ones will still take fit. It stores its states on arrival and again at
    its end, and adds 512 tokens of rows per step. At its end its pages are published and stay
    cached (``keep="cached"``) or are dropped (``keep="dropped"``). Rows and states are read back
    at the end and compared bit for bit.

    Raises:
        K3Error: a size is out of range, or the longest request does not fit into the pool.
    """
    sizes = request_sizes(model, tp, state_dtype, mla_dtype, heads, dk, dv, tokens_per_page)
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
    dtypes = {PageKind.MLA_KV: mla_dtype, PageKind.KDA_STATE: state_dtype}
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
        pool.on_evict = self.note_evicted
        self.rows = sizes.rows(CHUNK_TOKENS + 64, seed=1)
        self.last_state = LayerState(*sizes.state(seed=2))
        self.fresh_state = LayerState(*(torch.zeros_like(part) for part in sizes.state()))
        self.bytes_written = 0
        self.num_wrong = 0
        self.content: dict[int, dict[str, object]] = {}  # page -> owner and what it holds
        self.orders: list[dict[str, object]] = []
        self.evictions: list[dict[str, object]] = []
        self.stays: list[dict[str, object]] = []
        self.open: dict[int, dict[str, object]] = {}
        self.by_step: list[dict[str, int]] = []

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
            self.record(step, running)
            idle = 0 if waiting or running else idle + 1
            step += 1
        self.close(range(self.pool.num_pages), step)
        self.pool.check()
        return step

    def store(self, request: _Request, state: LayerState) -> None:
        for layer in range(self.kda_layers):
            shift = ord(request.name) + layer
            request.states[layer] = LayerState(state.recurrent.roll(shift, -1), state.conv_window)
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
        pages = self.note_content(request)
        if self.keep == "cached":
            self.pool.publish(pages)
        cache.release()

    def note_content(self, request: _Request) -> list[int]:
        """Remember what each page of ``request`` holds; returns its pages."""
        sizes, content = self.sizes, dict[int, dict[str, object]]()
        for index, (page, filled) in enumerate(request.cache.mla_pages):
            first = index * sizes.tokens_per_page
            content[page] = {
                "owner": request.name,
                "holds": f"{first:,}..{first + filled - 1:,}",
                "bytes": filled * sizes.row_bytes,
                "depth": first + filled,
                "part": f"{request.name}{index + 1}",
            }
        for layer, pages in request.cache.kda_pages.items():
            for index, page in enumerate(pages):
                rest = sizes.kda_bytes - index * sizes.page_bytes
                content[page] = {
                    "owner": request.name,
                    "holds": f"{layer + 1}.{index + 1}",
                    "bytes": min(rest, sizes.page_bytes),
                    "depth": request.cache.num_tokens,
                    "part": f"{request.name}·{layer + 1}",
                }
        self.content.update(content)
        return list(content)

    def record(self, step: int, running: Sequence[_Request]) -> None:
        for request in running:
            self.note_content(request)
        for page in range(self.pool.num_pages):
            info = self.pool.page_info(page)
            place = "owned" if info.num_references else "cached" if info.published else "free"
            if info.kind is None or place == "free":
                self.close([page], step)
                continue
            content = self.content[page]
            state = {"place": place, "kind": KIND_CODES[info.kind], "owner": content["owner"]}
            current = self.open.get(page)
            if current is not None and any(current[key] != state[key] for key in state):
                self.close([page], step)
                current = None
            if current is None:
                self.open[page] = current = {"page": page, "start": step, **state}
            current.update({key: content[key] for key in ("owner", "holds", "bytes")})
        self.orders += [
            {"step": step, "place_in_line": place, **self.listed(page)}
            for place, page in enumerate(self.pool.free_order()[:SHOWN_ORDER])
        ]
        stats = self.pool.stats()
        self.by_step.append(
            {
                "step": step,
                "mla": stats.owned[PageKind.MLA_KV],
                "kda": stats.owned[PageKind.KDA_STATE],
                "cached": stats.num_cached,
                "free": stats.num_free,
                "running": len(running),
            }
        )

    def listed(self, page: int) -> dict[str, object]:
        """A page on the free list: cached ones say what they still hold."""
        info = self.pool.page_info(page)
        if info.kind is None or not info.published:
            return {"page": page, "kind": "free", "owner": "", "part": "", "holds": ""}
        content = self.content[page]
        return {
            "page": page,
            "kind": KIND_CODES[info.kind],
            **{key: content[key] for key in ("owner", "part", "holds")},
        }

    def note_evicted(self, pages: Sequence[int]) -> None:
        for page in pages:
            content = self.content[page]
            kind = "kda" if "·" in str(content["part"]) else "mla"
            self.evictions.append(
                {
                    "number": len(self.evictions) + 1,
                    "step": self.pool.step,
                    "page": page,
                    "kind": kind,
                    **{key: content[key] for key in ("owner", "part", "depth")},
                }
            )

    def close(self, pages: Sequence[int], step: int) -> None:
        for page in pages:
            stay = self.open.pop(page, None)
            if stay is not None:
                self.stays.append({**stay, "stop": step})

    def result(self, num_steps: int, requests: Sequence[_Request]) -> PoolRun:
        sizes, pool = self.sizes, self.pool
        stays = pd.DataFrame(self.stays).sort_values(["page", "start"], ignore_index=True)
        per_layer = -(-sizes.kda_bytes // sizes.page_bytes)
        retyped = {(step, page): (stale, nan) for step, page, stale, nan in pool.retyped}
        marks = [
            {
                "step": row["step"],
                "page": row["page"],
                "mark": "evicted",
                "stale_bytes": 0,
                "nan_values": 0,
            }
            for row in self.evictions
        ]
        marks += [
            {
                "step": step,
                "page": page,
                "mark": "retyped" if not stale else "leaked",
                "stale_bytes": stale,
                "nan_values": nan,
            }
            for (step, page), (stale, nan) in retyped.items()
        ]
        columns = ["step", "page", "mark", "stale_bytes", "nan_values"]
        served = [
            {
                "request": request.name,
                "arrival": request.arrival,
                "start": request.start,
                "stop": request.stop,
                "tokens": request.num_tokens,
                "pages": request.num_pages,
            }
            for request in requests
        ]
        return PoolRun(
            tables={
                "stays": stays,
                "marks": pd.DataFrame(marks, columns=columns),
                "owners": _owner_blocks(stays),
                "by_step": pd.DataFrame(self.by_step),
                "requests": pd.DataFrame(served),
                "evictions": pd.DataFrame(self.evictions, columns=EVICTION_COLUMNS),
                "order": pd.DataFrame(self.orders, columns=ORDER_COLUMNS),
                "pool": pd.DataFrame({"pages": [pool.num_pages], "steps": [num_steps]}),
            },
            sizes=sizes,
            num_pages=pool.num_pages,
            num_steps=num_steps,
            num_kda_layers=self.kda_layers,
            pages_per_layer=per_layer,
            num_evicted=len(self.evictions),
            num_retyped=len(pool.retyped),
            stale_bytes=sum(stale for _, _, stale, _ in pool.retyped),
            nan_values=sum(nan for *_, nan in pool.retyped),
            num_wrong=self.num_wrong,
            bytes_written=self.bytes_written,
        )


def _owner_blocks(stays: pd.DataFrame) -> pd.DataFrame:
    """Neighbouring pages with one owner, kind and first step, as one block with its middle."""
    owned = stays[stays["place"] == "owned"].sort_values(["start", "owner", "kind", "page"])
    keys = owned[["start", "owner", "kind"]]
    new_block = (keys != keys.shift()).any(axis=1) | (owned["page"].diff() != 1)
    blocks = owned.assign(block=new_block.cumsum()).groupby("block")
    return blocks.agg(
        owner=("owner", "first"),
        kind=("kind", "first"),
        start=("start", "first"),
        page=("page", "mean"),
        rows=("page", "size"),
    ).reset_index(drop=True)
