"""What one request of the engine holds in pages, and what it leaves behind for others.

- MLA rows: one page per block and MLA layer; full blocks can be shared.
- KDA states: private pages, rewritten after every step.
- Checkpoints: copies of one KDA group's states in pages of their own, never written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from k3core.kda import KDAState
from k3core.model import TORCH_DTYPES, ModelConfig
from k3core.paged_cache import PagedCache, PagePool


@dataclass
class CachedBlock:
    """MLA pages of one hash block, one per MLA layer. Empty until the block is written."""

    pages: tuple[int, ...] = ()


class Checkpoint:
    """States and convolution windows of one KDA group, as they were when it was made.

    The maker's reference is dropped by ``unpin``; from then on the pages live as long as they are
    published and nobody needs them for something else.
    """

    def __init__(self, pool: PagePool, states: dict[int, KDAState]) -> None:
        self._pool = pool
        self._cache = PagedCache(pool, 1, 1)
        try:
            for layer, state in states.items():
                self._cache.store_kda(layer, state)
        except BaseException:
            self._cache.release()
            raise

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages of all layers of the group."""
        return tuple(page for pages in self._cache.kda_pages.values() for page in pages)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the group."""
        return tuple(self._cache.kda_pages)

    def load(self, layer: int) -> KDAState:
        """A copy of the state of ``layer``."""
        state: KDAState = self._cache.load_kda(layer)
        return state

    def pin(self) -> None:
        """Take a reference, so that no allocation reuses the pages."""
        self._pool.retain(self.pages)

    def unpin(self) -> None:
        """Drop a reference."""
        self._pool.free(self.pages)


@dataclass
class PagedMemory:
    """Pages of one request; what :class:`~k3core.model.HybridModel` reads and writes.

    Args:
        pool: where pages come from.
        config: sizes of the model.
        block_tokens: tokens per MLA page and hash block.
    """

    pool: PagePool
    config: ModelConfig
    block_tokens: int
    num_shared_mla_pages: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._kda = PagedCache(self.pool, 1, 1)
        self._mla = {
            layer: PagedCache(self.pool, self.block_tokens, self.config.mla_row_bytes)
            for layer in self.config.mla_layers
        }

    # life of a request: start -> (load, store, append, read, cut)* -> release

    def start(self, blocks: Sequence[CachedBlock], checkpoints: Sequence[Checkpoint]) -> None:
        """Begin behind a cached prefix, or from nothing when both are empty.

        Pages of the prefix are pinned before anything is allocated. MLA pages are shared; states
        are copied into private pages.

        Raises:
            PoolExhausted: too few pages for the states; nothing stays pinned or allocated.
        """
        pinned: list[Checkpoint] = []
        try:
            for index, layer in enumerate(self.config.mla_layers):
                if blocks:
                    self._mla[layer].adopt_mla(
                        [block.pages[index] for block in blocks],
                        len(blocks) * self.block_tokens,
                        TORCH_DTYPES[self.config.dtype],
                        (self.config.mla_row_width,),
                    )
            for checkpoint in checkpoints:
                checkpoint.pin()
                pinned.append(checkpoint)
            for layer in self.config.kda_layers:
                self.store_kda(layer, self.config.zero_state())
            for checkpoint in checkpoints:
                for layer in checkpoint.layers:
                    self.store_kda(layer, checkpoint.load(layer))
            self.num_shared_mla_pages = len(blocks) * len(self._mla)
        except BaseException:
            self.release()
            raise
        finally:
            for checkpoint in pinned:
                checkpoint.unpin()

    def load_kda(self, layer: int) -> KDAState:
        state: KDAState = self._kda.load_kda(layer)
        return state

    def store_kda(self, layer: int, state: KDAState) -> None:
        self._kda.store_kda(layer, state)

    def append_mla(self, layer: int, rows: Tensor) -> None:
        self._mla[layer].append_mla(rows.shape[0], rows)

    def read_mla(self, layer: int) -> Tensor:
        return self._mla[layer].read_mla()

    def cut_mla(self, layer: int, num_tokens: int) -> None:
        self._mla[layer].truncate_mla(num_tokens)

    def block_pages(self, index: int) -> tuple[int, ...]:
        """MLA pages of block ``index``, one per MLA layer."""
        return tuple(cache.mla_pages[index].page for cache in self._mla.values())

    def checkpoints(self, groups: Iterable[Iterable[int]]) -> list[Checkpoint]:
        """Copy the present states of each group of layers into new pages.

        Raises:
            PoolExhausted: too few pages for all groups; nothing stays allocated.
        """
        made: list[Checkpoint] = []
        try:
            for layers in groups:
                states = {layer: self.load_kda(layer) for layer in layers}
                made.append(Checkpoint(self.pool, states))
        except BaseException:
            for checkpoint in made:
                checkpoint.unpin()
            raise
        return made

    @property
    def num_mla_pages(self) -> int:
        """MLA pages in use, shared ones included."""
        return sum(len(cache.mla_pages) for cache in self._mla.values())

    @property
    def num_state_pages(self) -> int:
        """Private KDA pages."""
        return sum(len(pages) for pages in self._kda.kda_pages.values())

    def release(self) -> None:
        """Give every page back, the deepest MLA page first. A second call does nothing."""
        self._kda.release()
        for cache in self._mla.values():
            cache.release()
