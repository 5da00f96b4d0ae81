"""Chained block hashes: the name of a whole prefix in 32 bytes.

Re-exported by ``k3core.prefix_cache``, which is where users import them from.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from k3core.errors import CacheError, require, require_count
from k3core.prefix_cache.keys import (
    ROOT_PARENT,
    MediaItem,
    media_keys,
    require_hash,
    require_hashes,
    require_media,
)


def token_bytes(tokens: Any) -> memoryview:
    """Token ids as little-endian int64, 8 bytes each; a view where the input already is that.

    Args:
        tokens: one-dimensional; a list, tuple, range, numpy array or torch tensor of integers.

    Raises:
        CacheError: not one-dimensional, not integers, or an id outside int64.
    """
    if isinstance(tokens, (list, tuple, range)):
        try:
            buffer = array("q", tokens)
        except (TypeError, OverflowError) as error:
            raise CacheError(f"tokens must be integers within int64: {error}") from error
        if sys.byteorder == "big":
            buffer.byteswap()
        return memoryview(buffer).cast("B")
    if hasattr(tokens, "detach"):
        tokens = tokens.detach().cpu().numpy()
    ids = np.asarray(tokens)
    require(ids.ndim == 1, f"tokens must have one dimension; shape is {ids.shape}", CacheError)
    require(
        ids.dtype.kind in "iu" or ids.size == 0,
        f"tokens must be integers; dtype is {ids.dtype}",
        CacheError,
    )
    if ids.dtype.kind == "u" and ids.size:
        require(int(ids.max()) < 2**63, f"token id {int(ids.max())} is outside int64", CacheError)
    return np.ascontiguousarray(ids, dtype="<i8").view(np.uint8).data


def chained_hash(parent: bytes, tokens: Any) -> bytes:
    """``sha256(parent + tokens as little-endian int64)``, 32 bytes.

    Because the parent is the hash of everything before, equal hashes mean equal prefixes, not
    merely equal blocks. The root parent is ``b""``. Stable across processes and machines, unlike
    ``hash()``.

    Raises:
        CacheError: ``tokens`` are not one-dimensional integers, or ``parent`` is not bytes.
    """
    require_hash("parent", parent)
    digest = sha256(parent)
    digest.update(token_bytes(tokens))
    return digest.digest()


class PromptHashes:
    """The chained block hashes of one prompt; grows with it and never hashes a block twice.

    Every method of ``PrefixCache`` that takes tokens also takes this object. Only full blocks have
    a hash.

    Args:
        tokens: first token ids, see ``token_bytes``.
        hash_block_tokens: tokens per block.
        root: parent of the first block, see ``root_parent`` (salt, adapter).
        media: inputs behind placeholder tokens; each is part of the hash of the blocks it overlaps.
    """

    __slots__ = ("_hashes", "_media", "_num_tokens", "_root", "_tail", "hash_block_tokens")

    def __init__(
        self,
        tokens: Any = (),
        hash_block_tokens: int = 512,
        root: bytes = ROOT_PARENT,
        media: Sequence[MediaItem] = (),
    ) -> None:
        self.hash_block_tokens = require_count("hash_block_tokens", hash_block_tokens, 1)
        require_hash("root", root)
        self._hashes: list[bytes] = []
        self._num_tokens = 0
        self._root = root
        self._media = require_media(media)
        self._tail: bytes | None = b""
        self.append(tokens)

    @classmethod
    def from_hashes(
        cls, block_hashes: Iterable[bytes], num_tokens: int, hash_block_tokens: int = 512
    ) -> PromptHashes:
        """A prompt known only by the hashes of its full blocks, such as one from a trace.

        Raises:
            CacheError: the count is not ``num_tokens // hash_block_tokens``, or a hash is no bytes.
        """
        prompt = cls((), hash_block_tokens)
        hashes = require_hashes("block_hashes", block_hashes)
        require_count("num_tokens", num_tokens, error=CacheError)
        require(
            len(hashes) == num_tokens // hash_block_tokens,
            f"{len(hashes)} block_hashes given; num_tokens={num_tokens} with "
            f"hash_block_tokens={hash_block_tokens} has {num_tokens // hash_block_tokens}",
            CacheError,
        )
        prompt._hashes = list(hashes)
        prompt._num_tokens = num_tokens
        prompt._tail = None
        return prompt

    def copy(self) -> PromptHashes:
        """The same prompt, to grow on its own."""
        other = PromptHashes((), self.hash_block_tokens, self._root, self._media)
        other._hashes = list(self._hashes)
        other._num_tokens = self._num_tokens
        other._tail = self._tail
        return other

    @property
    def num_tokens(self) -> int:
        """Tokens so far, those of the last partial block included."""
        return self._num_tokens

    @property
    def block_hashes(self) -> tuple[bytes, ...]:
        """One 32-byte hash per full block, in order."""
        return tuple(self._hashes)

    def coarse_hashes(self, block_tokens: int) -> tuple[bytes, ...]:
        """Hashes of blocks of several hash blocks: each is that of its last one, nothing is hashed.

        Raises:
            CacheError: ``block_tokens`` is no multiple of ``hash_block_tokens``.
        """
        require_count("block_tokens", block_tokens, 1, error=CacheError)
        step, rest = divmod(block_tokens, self.hash_block_tokens)
        require(
            rest == 0,
            f"block_tokens={block_tokens} must be a multiple of {self.hash_block_tokens}",
            CacheError,
        )
        return tuple(self._hashes[step - 1 :: step])

    def append(self, tokens: Any) -> None:
        """Adds tokens at the end; hashes only the blocks that they complete.

        Raises:
            CacheError: bad tokens, or the prompt was built by ``from_hashes``.
        """
        require(
            self._tail is not None,
            "a prompt built from hashes cannot grow: the tokens of its last block are unknown",
            CacheError,
        )
        added = token_bytes(tokens)
        view = memoryview(self._tail + added) if self._tail else added
        step = 8 * self.hash_block_tokens
        parent = self._hashes[-1] if self._hashes else self._root
        whole = len(view) // step * step
        first = len(self._hashes) * self.hash_block_tokens
        for start in range(0, whole, step):
            if self._media:
                at = first + start // 8
                parent += media_keys(self._media, at, at + self.hash_block_tokens)
            digest = sha256(parent)
            digest.update(view[start : start + step])
            parent = digest.digest()
            self._hashes.append(parent)
        self._tail = bytes(view[whole:])
        self._num_tokens += len(added) // 8
