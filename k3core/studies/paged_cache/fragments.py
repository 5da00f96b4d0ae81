"""Why states live in pages: one buffer filled from both ends strands free bytes, a pool does not.

The other design (SGLang's unified memory, #34441 and #36713): rows grow from one end of a buffer
and whole states from the other. Rows may stand anywhere, a state needs one piece. When a long
request's rows are scattered up to the front, the gap before the states stays too small although
most of the buffer is free; evicting states frees nothing there. A state can also lack an *id* when
the table of states is full, which no bytes help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import pandas as pd

from k3core.errors import require, require_count
from k3core.paged_cache.pool import PagePool
from k3core.paged_cache.stats import PageKind
from k3core.studies.paged_cache.sizes import SizeOptions, request_sizes

NUM_LONG = 3  # requests of the first wave; all but one end before the second wave
GROWTH = 16  # pages that a running request adds per step
UNIT_TOKENS = 64  # a page holds a multiple of this many tokens, all MLA layers
SHORT_OF_IDS, SHORT_OF_BYTES = "short_of_ids", "short_of_bytes"


@dataclass(frozen=True)
class FragmentStudy:
    """The same requests on a buffer filled from both ends and on a pool of pages.

    Attributes:
        tables: ``by_step`` (free pages, largest run that a state could use, need, refused),
            ``map`` (runs of pages of both designs at the step with the most waiting requests),
            ``runs`` (free pages by the length of their run, at that step).
        page_bytes: rows of all MLA layers, at least as large as a state of one KDA layer.
        run_pages: neighbouring pages that a state takes where it must be in one piece.
        state_pages: pages that it takes in a pool, anywhere: one per KDA layer.
        worst_step: where most requests wait.
        num_waiting: requests that wait there for the buffer; 0 wait for the pool.
        num_waiting_pool: requests that wait there for the pool.
        free_pages: free there, in the buffer.
        gap_pages: of them, usable by a state.
        usage: pages in use there over all pages.
        reason: why the first of them waits: ``short_of_ids``, ``short_of_bytes`` or "".
    """

    tables: dict[str, pd.DataFrame]
    page_bytes: int
    run_pages: int
    state_pages: int
    worst_step: int
    num_waiting: int
    num_waiting_pool: int
    free_pages: int
    gap_pages: int
    usage: float
    reason: str


class _TwoEnds:
    """One buffer: rows from page 0 up, whole states of ``run`` pages from the last page down."""

    def __init__(self, num_pages: int, run: int, num_ids: int) -> None:
        self.num_pages, self.run, self.num_ids = num_pages, run, num_ids
        self.rows: dict[int, str] = {}
        self.states: list[str | None] = []  # by slot, counted from the end of the buffer
        self.free_rows: list[int] = []

    @property
    def front(self) -> int:
        """First page above all rows."""
        return max(self.rows, default=-1) + 1

    @property
    def gap(self) -> int:
        """Pages between the rows and the states: where a new state must fit."""
        return self.num_pages - len(self.states) * self.run - self.front

    @property
    def num_free(self) -> int:
        used = len(self.rows) + self.run * sum(owner is not None for owner in self.states)
        return self.num_pages - used

    @property
    def usable_run(self) -> int:
        """Largest piece that a state could take: a free slot or the gap."""
        return max(self.gap, self.run if None in self.states else 0)

    def refuses_state(self) -> str:
        if sum(owner is not None for owner in self.states) >= self.num_ids:
            return SHORT_OF_IDS
        return "" if self.usable_run >= self.run else SHORT_OF_BYTES

    def add_state(self, owner: str) -> None:
        if None in self.states:
            self.states[self.states.index(None)] = owner
        else:
            self.states.append(owner)

    def add_rows(self, owner: str, count: int) -> bool:
        limit = self.num_pages - len(self.states) * self.run
        holes = [page for page in range(limit) if page not in self.rows][:count]
        if len(holes) < count:
            return False
        self.rows.update(dict.fromkeys(holes, owner))
        return True

    def release(self, owner: str) -> None:
        self.rows = {page: who for page, who in self.rows.items() if who != owner}
        self.states = [None if who == owner else who for who in self.states]
        while self.states and self.states[-1] is None:
            self.states.pop()


class _Paged:
    """The pool of this page: the same requests, a state in any pages."""

    def __init__(self, num_pages: int, state_pages: int) -> None:
        self.pool = PagePool(num_pages)
        self.state_pages = state_pages
        self.owned: dict[str, list[int]] = {}

    def add(self, owner: str, kind: PageKind, count: int) -> bool:
        if count > self.pool.num_available:
            return False
        self.owned.setdefault(owner, []).extend(self.pool.alloc(kind, count))
        return True

    def release(self, owner: str) -> None:
        self.pool.free(self.owned.pop(owner)[::-1])


def fragments(
    num_states: int = 16,
    burst: int = 6,
    num_ids: int = 32,
    **options: Unpack[SizeOptions],
) -> FragmentStudy:
    """Two waves of requests: three long ones whose rows interleave, then ``burst`` short ones.

    Two of the long ones end before the second wave comes, the third stays to the end.

    Args:
        num_states: the buffer holds this many states and no rows.
        burst: short requests that arrive together.
        num_ids: entries of the table of states.
        options: sizes, as in ``request_sizes``; the page size follows from them.

    Raises:
        K3Error: a size is out of range, or fewer states fit than the first wave needs.
    """
    sizes = request_sizes(**options)
    for name, value in {"burst": burst, "num_ids": num_ids, "num_states": num_states}.items():
        require_count(name, value, 1)
    require(num_states > NUM_LONG, f"num_states={num_states} must be more than {NUM_LONG}")
    memory = sizes.memory
    row_bytes = memory.mla_bytes_per_token
    tokens = UNIT_TOKENS * -(-sizes.kda_bytes // (UNIT_TOKENS * row_bytes))
    page_bytes = tokens * row_bytes
    run = -(-memory.state_bytes_per_request // page_bytes)
    state_pages: int = memory.model.num_kda_layers
    num_pages = num_states * max(run, state_pages)
    buffer, paged = _TwoEnds(num_pages, run, num_ids), _Paged(num_pages, state_pages)

    waves = {f"L{index + 1}": 0 for index in range(NUM_LONG)}
    for owner in waves:
        buffer.add_state(owner)
        paged.add(owner, PageKind.KDA_STATE, state_pages)
    growth = min(GROWTH, max(run // 4, 1))
    short = max(run // 2, 1)  # pages of rows of a request of the second wave
    steps: list[dict[str, object]] = []
    snapshots: list[tuple[dict[int, str], dict[int, str]]] = []
    waiting: list[str] = []
    waiting_pool: list[str] = []

    def note() -> None:
        refusal = buffer.refuses_state() if waiting else ""
        steps.append(
            {
                "step": len(steps),
                "free": buffer.num_free,
                "usable": buffer.usable_run,
                "available": paged.pool.num_available,
                "waiting": len(waiting),
                "waiting_pool": len(waiting_pool),
                "reason": refusal,
            }
        )
        snapshots.append((_buffer_map(buffer), _pool_map(paged)))

    note()
    while buffer.gap >= run:  # the first wave's rows grow side by side
        if not all(
            buffer.add_rows(owner, growth) & paged.add(owner, PageKind.MLA_KV, growth)
            for owner in waves
        ):
            break
        note()
    for owner in list(waves)[1:]:
        buffer.release(owner)
        paged.release(owner)
        note()
    arrivals = [f"S{index + 1}" for index in range(burst)]
    waiting, waiting_pool = list(arrivals), list(arrivals)
    for _ in range(5):
        while waiting and not buffer.refuses_state() and buffer.num_free >= run + short:
            buffer.add_state(waiting[0])
            if not buffer.add_rows(waiting[0], short):
                buffer.release(waiting[0])
                break
            waiting.pop(0)
        while waiting_pool and paged.pool.num_available >= state_pages + short:
            owner = waiting_pool.pop(0)
            paged.add(owner, PageKind.KDA_STATE, state_pages)
            paged.add(owner, PageKind.MLA_KV, short)
        note()
    paged.pool.check()
    by_step = pd.DataFrame(steps)
    worst = int(by_step["waiting"].to_numpy().argmax()) if waiting else len(steps) - 1
    row = by_step.iloc[worst]
    maps = pd.concat(
        [
            _runs(snapshots[worst][0], num_pages).assign(design="two_ends"),
            _runs(snapshots[worst][1], num_pages).assign(design="paged"),
        ],
        ignore_index=True,
    )
    return FragmentStudy(
        tables={"by_step": _lines(by_step, run), "map": maps, "runs": _free_runs(maps, run)},
        page_bytes=page_bytes,
        run_pages=run,
        state_pages=state_pages,
        worst_step=worst,
        num_waiting=int(row["waiting"]),
        num_waiting_pool=int(row["waiting_pool"]),
        free_pages=int(row["free"]),
        gap_pages=int(row["usable"]),
        usage=1 - int(row["free"]) / num_pages,
        reason=str(row["reason"]),
    )


def _buffer_map(buffer: _TwoEnds) -> dict[int, str]:
    pages = {page: f"mla {owner}" for page, owner in buffer.rows.items()}
    for slot, owner in enumerate(buffer.states):
        if owner is not None:
            stop = buffer.num_pages - slot * buffer.run
            pages.update(dict.fromkeys(range(stop - buffer.run, stop), f"kda {owner}"))
    return pages


def _pool_map(paged: _Paged) -> dict[int, str]:
    return {
        page: f"{'mla' if paged.pool.page_info(page).kind == PageKind.MLA_KV else 'kda'} {owner}"
        for owner, pages in paged.owned.items()
        for page in pages
    }


def _runs(pages: dict[int, str], num_pages: int) -> pd.DataFrame:
    """Neighbouring pages with the same content: ``first_page``, ``stop``, ``kind``, ``owner``."""
    rows: list[dict[str, object]] = []
    for page in range(num_pages):
        kind, _, owner = pages.get(page, "free ").partition(" ")
        if rows and rows[-1]["kind"] == kind and rows[-1]["owner"] == owner:
            rows[-1]["stop"] = page + 1
        else:
            rows.append({"first_page": page, "stop": page + 1, "kind": kind, "owner": owner})
    table = pd.DataFrame(rows)
    return table.assign(pages=table["stop"] - table["first_page"])


def _lines(by_step: pd.DataFrame, run: int) -> pd.DataFrame:
    long = by_step.melt(
        ["step", "waiting", "waiting_pool", "reason"],
        ["free", "usable"],
        var_name="line",
        value_name="pages",
    )
    return long.assign(need=run)


def _free_runs(maps: pd.DataFrame, run: int) -> pd.DataFrame:
    """Free pages by the length of their run, and whether a state in one piece fits in."""
    free = maps[maps["kind"] == "free"].groupby(["design", "pages"]).size()
    table = free.rename("runs").reset_index()
    return table.assign(total=table["pages"] * table["runs"], fits=table["pages"] >= run)
