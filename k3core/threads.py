"""How many threads torch uses for one call: the one place that decides it from the size.

A caller's own setting is the most that is used; it is back when the call returns. Where it is 1
already (the studies set it, see `k3core.studies.single_thread`) nothing is switched at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

ELEMENTS_PER_THREAD = 2**17
"""Elements of the largest operand of one operation for which a further thread pays."""


def thread_count(num_elements: int, most: int) -> int:
    """Threads for operations on `num_elements` elements: 1 for small ones, never above `most`."""
    return max(1, min(most, num_elements // ELEMENTS_PER_THREAD))


@contextmanager
def threads_for(num_elements: int) -> Iterator[int]:
    """Run the block with `thread_count` threads and give the caller's setting back after it.

    Args:
        num_elements: elements of the largest operand of one operation.

    Yields:
        The number of threads inside the block.
    """
    before = torch.get_num_threads()
    inside = thread_count(num_elements, before)
    if inside == before:
        yield inside
        return
    torch.set_num_threads(inside)
    try:
        yield inside
    finally:
        torch.set_num_threads(before)
