"""What every page of a pool did, step by step: stays, evictions, the free list, the counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from k3core.paged_cache import PagedCache
from k3core.paged_cache.stats import PageKind
from k3core.studies.paged_cache.sizes import RequestSizes
from k3core.studies.paged_cache.watched import KIND_CODES, WatchedPool

SHOWN_ORDER = 64  # pages of the free list that are kept after each step
ORDER_COLUMNS = ["step", "place_in_line", "page", "kind", "owner", "part", "holds"]
EVICTION_COLUMNS = ["number", "step", "page", "kind", "owner", "part", "depth"]
MARK_COLUMNS = ["step", "page", "mark", "stale_bytes", "nan_values"]


class PageHistory:
    """Watches one pool while a run moves its requests."""

    def __init__(self, sizes: RequestSizes, pool: WatchedPool) -> None:
        self.sizes, self.pool = sizes, pool
        pool.on_evict = self.note_evicted
        self.content: dict[int, dict[str, object]] = {}  # page -> owner and what it holds
        self.orders: list[dict[str, object]] = []
        self.evictions: list[dict[str, object]] = []
        self.stays: list[dict[str, object]] = []
        self.open: dict[int, dict[str, object]] = {}
        self.by_step: list[dict[str, int]] = []

    def record(self, step: int, running: Mapping[str, PagedCache]) -> None:
        """The pool at the end of a step."""
        for name, cache in running.items():
            self.note_content(name, cache)
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

    def note_content(self, name: str, cache: PagedCache) -> list[int]:
        """Remember what each page of a request holds; returns its pages."""
        sizes, content = self.sizes, dict[int, dict[str, object]]()
        for index, (page, filled) in enumerate(cache.mla_pages):
            first = index * sizes.tokens_per_page
            content[page] = {
                "owner": name,
                "holds": f"{first:,}..{first + filled - 1:,}",
                "bytes": filled * sizes.row_bytes,
                "depth": first + filled,
                "part": f"{name}{index + 1}",
            }
        for layer, pages in cache.kda_pages.items():
            for index, page in enumerate(pages):
                rest = sizes.kda_bytes - index * sizes.page_bytes
                content[page] = {
                    "owner": name,
                    "holds": f"{layer + 1}.{index + 1}",
                    "bytes": min(rest, sizes.page_bytes),
                    "depth": cache.num_tokens,
                    "part": f"{name}·{layer + 1}",
                }
        self.content.update(content)
        return list(content)

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

    def tables(self, num_steps: int) -> dict[str, pd.DataFrame]:
        """``stays``, ``marks``, ``owners``, ``by_step``, ``evictions``, ``order``, ``pool``."""
        stays = pd.DataFrame(self.stays).sort_values(["page", "start"], ignore_index=True)
        marks: list[tuple[object, ...]] = [
            (row["step"], row["page"], "evicted", 0, 0) for row in self.evictions
        ]
        retyped = {(step, page): found for step, page, *found in self.pool.retyped}
        marks += [
            (step, page, "leaked" if stale else "retyped", stale, nan)
            for (step, page), (stale, nan) in retyped.items()
        ]
        return {
            "stays": stays,
            "marks": pd.DataFrame(marks, columns=MARK_COLUMNS),
            "owners": _owner_blocks(stays),
            "by_step": pd.DataFrame(self.by_step),
            "evictions": pd.DataFrame(self.evictions, columns=EVICTION_COLUMNS),
            "order": pd.DataFrame(self.orders, columns=ORDER_COLUMNS),
            "pool": pd.DataFrame({"pages": [self.pool.num_pages], "steps": [num_steps]}),
        }


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
