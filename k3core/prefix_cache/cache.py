"""The two-stage prefix cache itself: registrations, ready blocks, checkpoints, lookup."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from k3core.errors import CacheError, require, require_count, shown
from k3core.prefix_cache.block_hash import PromptHashes
from k3core.prefix_cache.entries import CacheEntries, Registration
from k3core.prefix_cache.hit import (
    DRAFTER_DROP,
    EVICTED,
    GROUP_MISSING,
    LAST_TOKEN,
    NO_CHECKPOINT,
    NOT_READY,
    PrefixHit,
)
from k3core.prefix_cache.tree import MLA


class Published(NamedTuple):
    """What one ``mark_ready`` made visible of its registration's own payloads.

    Attributes:
        block_hashes: MLA blocks.
        checkpoints: (hash of the block that ends at the boundary, group).
    """

    block_hashes: tuple[bytes, ...]
    checkpoints: tuple[tuple[bytes, int], ...]


class PrefixCache(CacheEntries):
    """Which prefixes are cached, and where a prompt can resume.

    Wherever a method takes ``tokens`` it takes token ids (list, tuple, numpy, torch) or a
    ``PromptHashes``; the methods that follow ``register`` also take the ``Registration`` that it
    returned. Two prompts in flight may share blocks: each keeps its own pending payload, and the
    first to become ready stays. Given token ids instead of a ticket, the oldest pending
    registration of the deepest pending block is meant.

    Args:
        hash_block_tokens: tokens per block, the unit of both stages.
        num_kda_groups: KDA groups that must be restored together; 0 is a model without KDA layers,
            which resumes wherever its MLA blocks end.
        dropped_blocks: matched blocks that a drafter gives up (vLLM with EAGLE or MTP: 1).
        record_events: keep events for ``take_events``.
        num_remembered: evicted entries that a lookup can still tell from new ones.
    """

    def hashes(self, tokens: Any) -> tuple[bytes, ...]:
        """Chained hashes of the full blocks of ``tokens``.

        Raises:
            CacheError: bad tokens, a ``PromptHashes`` with another block size, or a
                ``Registration`` of another cache.
        """
        if isinstance(tokens, Registration):
            self._require_own(tokens)
            return tokens.block_hashes
        return self._prompt(tokens).block_hashes

    def lookup(self, tokens: Any) -> PrefixHit:
        """The longest reusable prefix of a prompt. Changes nothing."""
        prompt = self._prompt(tokens)
        hashes, block = prompt.block_hashes, self.hash_block_tokens
        nodes = self._tree.nodes

        payloads: list[Any] = []
        for one in hashes:
            node = nodes.get(one)
            slot = None if node is None else node.slots[0]
            if slot is None or not slot.ready:
                break
            payloads.append(slot.payload)
        matched = len(payloads)
        registered = matched
        while registered < len(hashes) and self._tree.slot(hashes[registered], MLA) is not None:
            registered += 1
        known = registered
        while known < len(hashes) and self._was_known(hashes[known]):
            known += 1

        allowed = min(matched, max(prompt.num_tokens - 1, 0) // block)
        candidate = usable = max(allowed - self.dropped_blocks, 0)
        missing: dict[int, tuple[int, ...]] = {}
        evicted = 0
        while usable:
            gone = self._missing_groups(hashes[usable - 1])
            if not gone:
                break
            missing[usable * block] = gone
            if not evicted and all(self._journal.was_evicted(hashes[usable - 1], g) for g in gone):
                evicted = usable * block
            usable -= 1

        reason: str | None = None
        if usable < candidate:
            some = any(len(gone) < self.num_kda_groups for gone in missing.values())
            reason = GROUP_MISSING if some else EVICTED if evicted else NO_CHECKPOINT
        elif usable < allowed:
            reason = DRAFTER_DROP
        elif usable < matched:
            reason = LAST_TOKEN
        elif matched < registered:
            reason = NOT_READY
        elif registered < known:
            reason = EVICTED
        return PrefixHit(
            hit=usable > 0,
            matched_tokens=usable * block,
            checkpoint=usable * block if usable else None,
            mla_tokens=matched * block,
            reason=reason,
            num_tokens=prompt.num_tokens,
            registered_tokens=registered * block,
            hash_block_tokens=block,
            num_kda_groups=self.num_kda_groups,
            missing_groups=MappingProxyType(missing),
            block_hashes=hashes,
            block_payloads=tuple(payloads[:usable]),
            checkpoint_payloads=self._checkpoints_at(hashes[usable - 1]) if usable else (),
            dropped_blocks=self.dropped_blocks,
            known_tokens=known * block,
            evicted_states=evicted,
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
        payloads = (None,) * len(hashes) if block_payloads is None else block_payloads
        require(
            isinstance(payloads, Sequence) and not isinstance(payloads, (str, bytes)),
            f"block_payloads={shown(block_payloads)} must be a sequence",
            CacheError,
        )
        require(
            len(payloads) == len(hashes),
            f"block_payloads has {len(payloads)} entries; the prompt has {len(hashes)} full blocks",
            CacheError,
        )
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tree.add_path(hashes)
        for index, one in enumerate(hashes):
            slot = self._tree.slot(one, MLA)
            if slot is None or not slot.ready:
                self._add_pending((one, MLA), ticket, payloads[index])
        return Registration(ticket, hashes, self._identity)

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
            require_count("num_tokens", num_tokens, error=CacheError)
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
            if self._publish((one, MLA), ticket):
                blocks.append(one)
            checkpoints += [
                (one, group)
                for group in range(self.num_kda_groups)
                if self._publish((one, group), ticket)
            ]
        self._tell_stored(blocks, checkpoints)
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
            CacheError: boundary inside of a block or beyond the last one, unknown group, or a
                block up to the boundary that is not registered. Nothing is stored.
        """
        hashes = self.hashes(tokens)
        block = self.hash_block_tokens
        require_count("boundary", boundary, error=CacheError)
        require(
            0 < boundary <= len(hashes) * block and boundary % block == 0,
            f"boundary={boundary} must be a multiple of {block} in {block}..{len(hashes) * block}",
            CacheError,
        )
        group = self._require_group(group)
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
        slot = self._tree.slot(*key)
        if slot is not None and slot.ready:
            return False
        if not visible:
            if slot is not None and ticket in slot.pending:
                return False
            self._add_pending(key, ticket, payload)
        else:
            slot = self._tree.make_slot(*key)
            slot.ready, slot.payload = True, payload
            self._tell_stored((), (key,))
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
            slot = self._tree.make_slot(*key)
            dropped.append(slot.pending.pop(ticket))
            self._tree.clean(*key)
        return tuple(dropped)

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

    def _require_registered(self, hashes: Sequence[bytes], action: str) -> None:
        for index, one in enumerate(hashes):
            require(
                self._tree.slot(one, MLA) is not None,
                f"{action}: the block that ends at {(index + 1) * self.hash_block_tokens} "
                "is not registered",
                CacheError,
            )

    def _ticket_of(self, tokens: Any, hashes: Sequence[bytes]) -> int:
        if isinstance(tokens, Registration):
            return tokens.number
        for one in reversed(hashes):
            slot = self._tree.slot(one, MLA)
            if slot is not None and slot.pending:
                return min(slot.pending)
        return -1
