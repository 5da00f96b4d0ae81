"""The two-stage prefix cache itself: registrations, ready blocks, checkpoints, lookup."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from k3core.errors import CacheError, require, require_count
from k3core.prefix_cache.block_hash import (
    PromptHashes,
)
from k3core.prefix_cache.hit import (
    GROUP_MISSING,
    LAST_TOKEN,
    NO_CHECKPOINT,
    NOT_READY,
    PrefixHit,
)

_MLA = -1  # slot index of the MLA block itself; KDA groups are 0, 1, ...


class Registration(NamedTuple):
    """Ticket of one ``register`` call; names whose bytes are meant when prompts overlap."""

    number: int
    block_hashes: tuple[bytes, ...]


class Published(NamedTuple):
    """What one ``mark_ready`` made visible of its registration's own payloads.

    Attributes:
        block_hashes: MLA blocks.
        checkpoints: (hash of the block that ends at the boundary, group).
    """

    block_hashes: tuple[bytes, ...]
    checkpoints: tuple[tuple[bytes, int], ...]


class _Slot:
    """One cached thing, an MLA block or a group's checkpoint: ready, or pending per ticket."""

    __slots__ = ("payload", "pending", "ready")

    def __init__(self) -> None:
        self.ready = False
        self.payload: Any = None
        self.pending: dict[int, Any] = {}


class PrefixCache:
    """Which prefixes are cached, and where a prompt can resume.

    Wherever a method takes ``tokens`` it takes token ids (list, tuple, numpy, torch) or a
    ``PromptHashes``; the methods that follow ``register`` also take the ``Registration`` that it
    returned. Two prompts in flight may share blocks: each keeps its own pending payload, and the
    first to become ready stays. Given token ids instead of a ticket, the oldest pending
    registration of the deepest pending block is meant.

    Args:
        hash_block_tokens: tokens per block, the unit of both stages.
        num_kda_groups: KDA groups that must be restored together.
    """

    def __init__(self, hash_block_tokens: int = 512, num_kda_groups: int = 1) -> None:
        require_count("hash_block_tokens", hash_block_tokens, 1)
        require_count("num_kda_groups", num_kda_groups, 1)
        self.hash_block_tokens = hash_block_tokens
        self.num_kda_groups = num_kda_groups
        self._slots: dict[tuple[bytes, int], _Slot] = {}
        self._tickets: dict[int, dict[tuple[bytes, int], None]] = {}  # its pending slots
        self._next_ticket = 0

    def hashes(self, tokens: Any) -> tuple[bytes, ...]:
        """Chained hashes of the full blocks of ``tokens``.

        Raises:
            CacheError: bad tokens, or a ``PromptHashes`` with another block size.
        """
        if isinstance(tokens, Registration):
            return tokens.block_hashes
        return self._prompt(tokens).block_hashes

    def lookup(self, tokens: Any) -> PrefixHit:
        """The longest reusable prefix of a prompt. Changes nothing."""
        prompt = self._prompt(tokens)
        hashes = prompt.block_hashes
        slots, block = self._slots, self.hash_block_tokens

        matched_blocks = 0
        for one in hashes:
            slot = slots.get((one, _MLA))
            if slot is None or not slot.ready:
                break
            matched_blocks += 1
        known_blocks = matched_blocks
        while known_blocks < len(hashes) and (hashes[known_blocks], _MLA) in slots:
            known_blocks += 1

        cap_blocks = max(prompt.num_tokens - 1, 0) // block
        missing: dict[int, tuple[int, ...]] = {}
        usable = min(matched_blocks, cap_blocks)
        while usable:
            gone = self._missing_groups(hashes[usable - 1])
            if not gone:
                break
            missing[usable * block] = gone
            usable -= 1

        if usable < min(matched_blocks, cap_blocks):
            some = any(len(gone) < self.num_kda_groups for gone in missing.values())
            reason: str | None = GROUP_MISSING if some else NO_CHECKPOINT
        elif usable < matched_blocks:
            reason = LAST_TOKEN
        else:
            reason = NOT_READY if known_blocks > matched_blocks else None
        return PrefixHit(
            hit=usable > 0,
            matched_tokens=usable * block,
            checkpoint=usable * block if usable else None,
            mla_tokens=matched_blocks * block,
            reason=reason,
            num_tokens=prompt.num_tokens,
            registered_tokens=known_blocks * block,
            hash_block_tokens=block,
            num_kda_groups=self.num_kda_groups,
            missing_groups=MappingProxyType(missing),
            block_hashes=hashes,
            block_payloads=tuple(slots[one, _MLA].payload for one in hashes[:usable]),
            checkpoint_payloads=tuple(
                slots[hashes[usable - 1], group].payload for group in range(self.num_kda_groups)
            )
            if usable
            else (),
        )

    def register(self, tokens: Any, block_payloads: Sequence[Any] | None = None) -> Registration:
        """Announces the full blocks of a prompt whose bytes are about to be written.

        Nothing becomes visible, and a block that is ready stays ready.

        Args:
            block_payloads: one per full block; None stores None.

        Raises:
            CacheError: bad tokens, or a wrong number of payloads.
        """
        hashes = self.hashes(tokens)
        require(
            block_payloads is None or len(block_payloads) == len(hashes),
            f"block_payloads has {len(block_payloads or ())} entries; "
            f"the prompt has {len(hashes)} full blocks",
            CacheError,
        )
        ticket = self._next_ticket
        self._next_ticket += 1
        for index, one in enumerate(hashes):
            slot = self._slots.get((one, _MLA))
            if slot is None or not slot.ready:
                self._add_pending(
                    (one, _MLA), ticket, None if block_payloads is None else block_payloads[index]
                )
        return Registration(ticket, hashes)

    def mark_ready(self, tokens: Any, num_tokens: int | None = None) -> Published:
        """Makes a registration's blocks visible, after their bytes are written.

        Checkpoints that the same registration persisted at these blocks appear with them.

        Args:
            num_tokens: only the blocks that end at or before this position; None is all.

        Returns:
            The blocks and checkpoints that now serve this registration's payload. Where another
            registration was ready first, its payload stays and this one's is dropped.

        Raises:
            CacheError: a block is not registered, the registration was aborted, or ``num_tokens``
                is negative. Nothing changes.
        """
        hashes = self.hashes(tokens)
        if num_tokens is not None:
            require(num_tokens >= 0, f"num_tokens={num_tokens} must not be negative", CacheError)
            hashes = hashes[: num_tokens // self.hash_block_tokens]
        ticket = self._ticket_of(tokens, hashes)
        if isinstance(tokens, Registration):
            held = [self._holds(one, ticket) for one in hashes]
            require(
                any(held) or all(self.block_state(one) == "ready" for one in hashes),
                f"mark_ready: registration {ticket} holds no block (aborted?)",
                CacheError,
            )
        else:
            self._require_registered(hashes, "mark_ready")
        blocks, checkpoints = [], []
        for one in hashes:
            if self._publish((one, _MLA), ticket):
                blocks.append(one)
            checkpoints += [
                (one, group)
                for group in range(self.num_kda_groups)
                if self._publish((one, group), ticket)
            ]
        return Published(tuple(blocks), tuple(checkpoints))

    def persist_checkpoint(
        self, tokens: Any, boundary: int, group: int, payload: Any = None
    ) -> bool:
        """Stores the state of one KDA group after exactly ``boundary`` tokens.

        Call it after the state's bytes are written. A published checkpoint is immutable: if the
        group has one at this boundary, it stays.

        Args:
            boundary: token position, a multiple of ``hash_block_tokens``.
            group: KDA group, 0 .. num_kda_groups - 1.
            payload: the caller's handle of the state (and its convolution window).

        Returns:
            True when the payload was kept, False when an equal checkpoint already stood there.

        Raises:
            CacheError: boundary off the grid or beyond the full blocks, unknown group, or a block
                up to the boundary that is not registered. Nothing is stored.
        """
        hashes = self.hashes(tokens)
        block = self.hash_block_tokens
        require(
            boundary > 0 and boundary % block == 0 and boundary <= len(hashes) * block,
            f"boundary={boundary} must be a multiple of {block} in {block}..{len(hashes) * block}",
            CacheError,
        )
        self._require_group(group)
        path = hashes[: boundary // block]
        ticket = self._ticket_of(tokens, path)
        visible = self.block_state(path[-1]) == "ready"
        if isinstance(tokens, Registration):
            require(
                visible or self._holds(path[-1], ticket),
                f"persist_checkpoint: registration {ticket} holds no block that ends at {boundary}",
                CacheError,
            )
        else:
            self._require_registered(path, "persist_checkpoint")
        key = (path[-1], group)
        slot = self._slots.get(key)
        if slot is not None and slot.ready:
            return False
        if not visible:
            if slot is not None and ticket in slot.pending:
                return False
            self._add_pending(key, ticket, payload)
        else:
            slot = self._slots.setdefault(key, _Slot())
            slot.ready, slot.payload = True, payload
        return True

    def abort(self, tokens: Any) -> tuple[Any, ...]:
        """Forgets what a registration has not made ready, as if it had never been registered.

        Blocks and checkpoints that are visible stay. Aborting twice does nothing.

        Returns:
            The payloads forgotten, blocks and checkpoints.
        """
        hashes = self.hashes(tokens)
        ticket = self._ticket_of(tokens, hashes)
        dropped = []
        for key in self._tickets.pop(ticket, {}):
            slot = self._slots[key]
            dropped.append(slot.pending.pop(ticket))
            self._drop_if_empty(key)
        return tuple(dropped)

    def evict_block(self, block_hash: bytes) -> Any:
        """Removes one ready MLA block, whose bytes are about to be overwritten.

        Deeper blocks and all checkpoints stay, out of reach until the block is back (vLLM does
        the same).

        Returns:
            Its payload.

        Raises:
            CacheError: no such block is ready.
        """
        return self._evict((block_hash, _MLA), "block")

    def evict_checkpoint(self, block_hash: bytes, group: int) -> Any:
        """Removes one group's checkpoint at the boundary that ``block_hash`` ends.

        The boundary is then unusable, although the other groups' checkpoints stay.

        Returns:
            Its payload.

        Raises:
            CacheError: no such checkpoint is visible, or the group is unknown.
        """
        self._require_group(group)
        return self._evict((block_hash, group), f"checkpoint of group {group}")

    @property
    def num_blocks(self) -> int:
        """Ready MLA blocks."""
        return sum(slot.ready for (_, kind), slot in self._slots.items() if kind == _MLA)

    @property
    def num_pending_blocks(self) -> int:
        """MLA blocks registered by someone and not ready."""
        return sum(not slot.ready for (_, kind), slot in self._slots.items() if kind == _MLA)

    @property
    def num_checkpoints(self) -> int:
        """Visible checkpoints, each group counted."""
        return sum(slot.ready for (_, kind), slot in self._slots.items() if kind != _MLA)

    def checkpoint_groups(self, block_hash: bytes) -> tuple[int, ...]:
        """Groups with a visible checkpoint at the boundary that ``block_hash`` ends."""
        gone = self._missing_groups(block_hash)
        return tuple(group for group in range(self.num_kda_groups) if group not in gone)

    def block_state(self, block_hash: bytes) -> str:
        """``ready``, ``pending`` or ``absent``."""
        slot = self._slots.get((block_hash, _MLA))
        return "absent" if slot is None else "ready" if slot.ready else "pending"

    def check(self) -> None:
        """Verifies that tickets and slots agree.

        Raises:
            CacheError: naming what is wrong.
        """
        owned = {(ticket, key) for ticket, keys in self._tickets.items() for key in keys}
        held = {(ticket, key) for key, slot in self._slots.items() for ticket in slot.pending}
        require(owned == held, f"tickets and slots disagree about {owned ^ held}", CacheError)
        empty = [key for key, slot in self._slots.items() if not slot.ready and not slot.pending]
        require(not empty, f"slots without content: {empty}", CacheError)

    def _prompt(self, tokens: Any) -> PromptHashes:
        if not isinstance(tokens, PromptHashes):
            return PromptHashes(tokens, self.hash_block_tokens)
        require(
            tokens.hash_block_tokens == self.hash_block_tokens,
            f"tokens are hashed in blocks of {tokens.hash_block_tokens}; "
            f"this cache has hash_block_tokens={self.hash_block_tokens}",
            CacheError,
        )
        return tokens

    def _missing_groups(self, block_hash: bytes) -> tuple[int, ...]:
        slots = self._slots
        return tuple(
            group
            for group in range(self.num_kda_groups)
            if (slot := slots.get((block_hash, group))) is None or not slot.ready
        )

    def _require_registered(self, hashes: Sequence[bytes], action: str) -> None:
        for index, one in enumerate(hashes):
            require(
                (one, _MLA) in self._slots,
                f"{action}: the block that ends at {(index + 1) * self.hash_block_tokens} "
                "is not registered",
                CacheError,
            )

    def _require_group(self, group: int) -> None:
        require(
            group in range(self.num_kda_groups),
            f"group={group!r} must be an integer in 0..{self.num_kda_groups - 1}",
            CacheError,
        )

    def _holds(self, block_hash: bytes, ticket: int) -> bool:
        slot = self._slots.get((block_hash, _MLA))
        return slot is not None and ticket in slot.pending

    def _ticket_of(self, tokens: Any, hashes: Sequence[bytes]) -> int:
        if isinstance(tokens, Registration):
            return tokens.number
        for one in reversed(hashes):
            slot = self._slots.get((one, _MLA))
            if slot is not None and slot.pending:
                return min(slot.pending)
        return -1

    def _add_pending(self, key: tuple[bytes, int], ticket: int, payload: Any) -> None:
        slot = self._slots.setdefault(key, _Slot())
        if ticket not in slot.pending:
            slot.pending[ticket] = payload
            self._tickets.setdefault(ticket, {})[key] = None

    def _publish(self, key: tuple[bytes, int], ticket: int) -> bool:
        slot = self._slots.get(key)
        if slot is None or ticket not in slot.pending:
            return False
        payload = slot.pending.pop(ticket)
        keys = self._tickets[ticket]
        del keys[key]
        if not keys:
            del self._tickets[ticket]
        if slot.ready:
            return False
        slot.ready, slot.payload = True, payload
        return True

    def _evict(self, key: tuple[bytes, int], name: str) -> Any:
        slot = self._slots.get(key)
        if slot is None or not slot.ready:
            raise CacheError(f"no {name} is visible under hash {key[0].hex()[:12]}")
        payload, slot.ready, slot.payload = slot.payload, False, None
        self._drop_if_empty(key)
        return payload

    def _drop_if_empty(self, key: tuple[bytes, int]) -> None:
        slot = self._slots[key]
        if not slot.ready and not slot.pending:
            del self._slots[key]
