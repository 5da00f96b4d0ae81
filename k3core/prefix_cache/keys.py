"""What belongs to the identity of a prefix besides its tokens: salt, adapter, media.

Each key is written with its tag and the length of every field, so that no two kinds of key can
collide (a LoRA named like a salt) and no key can pass for tokens: the encoding is never a multiple
of 8 bytes long, tokens always are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from k3core.errors import CacheError, K3Error, require, require_count, require_type, shown

ROOT_PARENT = b""
"""Parent of the first block of every chain without extra keys."""


class MediaItem(NamedTuple):
    """An image or another input whose placeholder tokens say nothing about its content.

    Attributes:
        identifier: hash of the content.
        start, stop: tokens that stand for it.
    """

    identifier: str
    start: int
    stop: int


def encode_key(tag: str, *fields: str) -> bytes:
    """A tagged tuple as bytes; equal bytes mean equal tuples."""
    parts = [text.encode() for text in (tag, *fields)]
    encoded = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return encoded + bytes(1 + -len(encoded) % 8)


def root_parent(salt: str | None = None, lora: tuple[str, str] | None = None) -> bytes:
    """Parent of the first block of a tenant's chain.

    The chain carries it, so one salt separates the MLA blocks and, because a checkpoint is named
    by the block that ends at its boundary, the KDA states too (CVE-2025-46570).

    Args:
        salt: tenant secret; prompts with different salts share nothing.
        lora: name and path of an adapter; a name re-pointed to another path shares nothing.

    Raises:
        CacheError: a key is not text.
    """
    keys = b""
    if salt is not None:
        require(isinstance(salt, str), f"salt={shown(salt)} must be text", CacheError)
        keys += encode_key("cache_salt", salt)
    if lora is not None:
        require(
            isinstance(lora, tuple)
            and len(lora) == 2
            and all(isinstance(part, str) for part in lora),
            f"lora={shown(lora)} must be a (name, path)",
            CacheError,
        )
        keys += encode_key("lora", *lora)
    return sha256(keys).digest() if keys else ROOT_PARENT


def require_media(media: object) -> tuple[MediaItem, ...]:
    """``media`` as a tuple of items.

    Raises:
        K3Error: it is no collection of ``MediaItem``, or a field of one is of another type.
    """
    if not isinstance(media, Iterable):
        raise K3Error(f"media={shown(media)} must be a sequence of MediaItem")
    items = tuple(media)
    for item in items:
        require_type("each of media", item, MediaItem)
        require_type("identifier", item.identifier, str)
        require_count("stop", item.stop, require_count("start", item.start))
    return items


def require_hash(name: str, block_hash: object) -> None:
    """Raise CacheError unless ``block_hash`` is bytes."""
    if not isinstance(block_hash, bytes):
        raise CacheError(f"{name}={shown(block_hash)} must be bytes")


def require_hashes(name: str, hashes: object) -> tuple[bytes, ...]:
    """``hashes`` as a tuple of bytes.

    Raises:
        CacheError: it is no collection, or one of them is not bytes.
    """
    if isinstance(hashes, (str, bytes)) or not isinstance(hashes, Iterable):
        raise CacheError(f"{name}={shown(hashes)} must be a sequence of bytes")
    path = tuple(hashes)
    for one in path:
        require_hash(f"each of {name}", one)
    return path


def media_keys(media: Sequence[MediaItem], start: int, stop: int) -> bytes:
    """Keys of the items that overlap tokens ``start..stop``; empty when there are none."""
    return b"".join(
        encode_key("mm", item.identifier, str(item.start - start))
        for item in media
        if item.start < stop and item.stop > start
    )
