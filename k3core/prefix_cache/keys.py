"""What belongs to the identity of a prefix besides its tokens: salt, adapter, media.

Each key is written with its tag and the length of every field, so that no two kinds of key can
collide (a LoRA named like a salt) and no key can pass for tokens: the encoding is never a multiple
of 8 bytes long, tokens always are.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from k3core.errors import CacheError, require

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
        require(isinstance(salt, str), f"salt={salt!r} must be text", CacheError)
        keys += encode_key("cache_salt", salt)
    if lora is not None:
        require(
            len(lora) == 2 and all(isinstance(part, str) for part in lora),
            f"lora={lora!r} must be a (name, path)",
            CacheError,
        )
        keys += encode_key("lora", *lora)
    return sha256(keys).digest() if keys else ROOT_PARENT


def media_keys(media: Sequence[MediaItem], start: int, stop: int) -> bytes:
    """Keys of the items that overlap tokens ``start..stop``; empty when there are none."""
    return b"".join(
        encode_key("mm", item.identifier, str(item.start - start))
        for item in media
        if item.start < stop and item.stop > start
    )
