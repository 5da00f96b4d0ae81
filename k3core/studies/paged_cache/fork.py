"""Copy on write: one request's pages shared with a fork, and who copies what when both go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import pandas as pd
import torch

from k3core.errors import require_count
from k3core.studies.paged_cache.sizes import SizeOptions, num_different, request_sizes

STAGES = ("alone", "forked", "fork_writes", "first_writes", "first_ends")
WRITTEN = 8  # rows that each side adds after the fork
SHOWN_PAGES = 12  # of a long request, from its end


@dataclass(frozen=True)
class ForkStudy:
    """A request, a fork that adopts its rows, and both going on.

    Attributes:
        tables: ``pages``, one row per stage, request and page: ``place`` in the request, page id,
            references, whether it is ``shared``, ``private`` or ``copied`` by this stage.
        num_tokens: rows of the request when it is forked.
        num_shared: pages that both still share at the end of the writes.
        num_copied: pages copied: the partly filled last one, or none.
        num_pages: pages in use with the fork; without sharing it would be ``num_unshared``.
        num_unshared: pages that two separate copies would take.
        num_wrong: values that differ from what each side wrote, read back at the end.
    """

    tables: dict[str, pd.DataFrame]
    num_tokens: int
    num_shared: int
    num_copied: int
    num_pages: int
    num_unshared: int
    num_wrong: int


def fork(
    num_tokens: int = 1300,
    **options: Unpack[SizeOptions],
) -> ForkStudy:
    """Fork a request of ``num_tokens`` rows; the fork writes first, then the request itself.

    The last page is only partly filled and has two readers, so whoever writes first copies it.

    Args:
        options: sizes, as in ``request_sizes``.

    Raises:
        K3Error: a size is out of range.
    """
    sizes = request_sizes(**options)
    require_count("num_tokens", num_tokens, 1)
    needed = -(-num_tokens // sizes.tokens_per_page)
    pool = sizes.pool(2 * needed + 4)
    first, second = sizes.cache(pool), sizes.cache(pool)
    rows = sizes.rows(num_tokens, seed=3)
    added = {"first": sizes.rows(WRITTEN, seed=4), "second": sizes.rows(WRITTEN, seed=5)}
    caches = {"first": first, "second": second}
    table: list[tuple[object, ...]] = []
    seen: dict[str, dict[int, int]] = {}

    def note(stage: str) -> None:
        for name, cache in caches.items():
            before = seen.get(name, {})
            for place, (page, filled) in enumerate(cache.mla_pages):
                references = pool.page_info(page).num_references
                if place in before and before[place] != page:
                    use = "copied"
                else:
                    use = "shared" if references > 1 else "private"
                table.append((stage, name, place, page, filled, references, use))
            seen[name] = {place: page for place, (page, _) in enumerate(cache.mla_pages)}

    first.append_mla(num_tokens, rows)
    note("alone")
    second.adopt_mla(
        [page for page, _ in first.mla_pages], num_tokens, rows.dtype, tuple(rows.shape[1:])
    )
    note("forked")
    second.append_mla(WRITTEN, added["second"])
    note("fork_writes")
    first.append_mla(WRITTEN, added["first"])
    note("first_writes")
    num_shared = len({p for p, _ in first.mla_pages} & {p for p, _ in second.mla_pages})
    num_pages = pool.num_owned
    num_wrong = sum(
        num_different(cache.read_mla(), torch.cat([rows, added[name]]))
        for name, cache in caches.items()
    )
    num_unshared = sum(len(cache.mla_pages) for cache in caches.values())
    first.release()
    note("first_ends")
    num_wrong += num_different(second.read_mla(), torch.cat([rows, added["second"]]))
    second.release()
    pool.check()
    pages = pd.DataFrame(
        table, columns=["stage", "request", "place", "page", "tokens", "references", "use"]
    )
    return ForkStudy(
        tables={"pages": pages[pages["place"] >= needed + 1 - SHOWN_PAGES].reset_index(drop=True)},
        num_tokens=num_tokens,
        num_shared=num_shared,
        num_copied=int((pages["use"] == "copied").sum()),
        num_pages=num_pages,
        num_unshared=num_unshared,
        num_wrong=num_wrong,
    )
