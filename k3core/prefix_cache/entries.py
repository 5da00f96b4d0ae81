"""The entries of a prefix cache: what is pending, what is visible, and how it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from k3core.errors import CacheError, require, require_count, require_type
from k3core.prefix_cache.journal import CacheEvent, Journal
from k3core.prefix_cache.keys import require_hash
from k3core.prefix_cache.tree import MLA, PrefixTree, Slot

MAX_GROUPS = 4096  # every block has a place per group


class Registration(NamedTuple):
    """Ticket of one ``register`` call; names whose bytes are meant when prompts overlap.

    Attributes:
        number: counts the registrations of its cache.
        block_hashes: of the full blocks.
        owner: the cache that gave the ticket; no other one takes it.
    """

    number: int
    block_hashes: tuple[bytes, ...]
    owner: object


class CacheEntries:
    """Blocks and checkpoints by hash; arguments as in ``PrefixCache``, which adds the prompts."""

    def __init__(
        self,
        hash_block_tokens: int = 512,
        num_kda_groups: int = 1,
        *,
        dropped_blocks: int = 0,
        record_events: bool = False,
        num_remembered: int = 65_536,
    ) -> None:
        self.hash_block_tokens = require_count("hash_block_tokens", hash_block_tokens, 1)
        self.num_kda_groups = require_count("num_kda_groups", num_kda_groups, 0, MAX_GROUPS)
        self.dropped_blocks = require_count("dropped_blocks", dropped_blocks)
        require_type("record_events", record_events, bool)
        require_count("num_remembered", num_remembered)
        self._identity = object()
        self._tree = PrefixTree(self.num_kda_groups)
        self._journal = Journal(record_events, num_remembered)
        self._tickets: dict[int, dict[tuple[bytes, int], None]] = {}  # its pending slots
        self._next_ticket = 0

    def evict_block(self, block_hash: bytes) -> Any:
        """Removes one ready MLA block, whose bytes are about to be overwritten.

        Deeper blocks and all checkpoints stay, out of reach until the block is back (vLLM does
        the same): orphans. ``evict_subtree`` takes them along.

        Returns:
            Its payload.

        Raises:
            CacheError: no such block is ready.
        """
        require_hash("block_hash", block_hash)
        return self._evict((block_hash, MLA), "block")

    def evict_subtree(self, block_hash: bytes) -> tuple[Any, ...]:
        """Removes a block with all that needs it: deeper blocks and every checkpoint below.

        What is registered there and not ready stays with its registration.

        Returns:
            The payloads, the deepest first; empty when nothing was visible.
        """
        require_hash("block_hash", block_hash)
        dropped: list[Any] = []
        kinds = (*range(self.num_kda_groups), MLA)
        for node in tuple(self._tree.below(block_hash)):
            dropped += [
                self._evict((node.block_hash, kind), "entry") for kind in kinds if node.ready(kind)
            ]
        return tuple(dropped)

    def evict_boundary(self, block_hash: bytes) -> tuple[Any, ...]:
        """Removes the checkpoints of all groups at one boundary: a state is useless without its
        siblings, so they go together (K3 report 5.4.1).

        Returns:
            Their payloads, by group; empty when none was visible.
        """
        return tuple(
            self._evict((block_hash, group), f"checkpoint of group {group}")
            for group in self.checkpoint_groups(block_hash)
        )

    def evict_checkpoint(self, block_hash: bytes, group: int) -> Any:
        """Removes one group's checkpoint at the boundary that ``block_hash`` ends.

        For one group's bytes that are lost (a failed load): the boundary is unusable from now on,
        although the other groups' checkpoints stay. See ``evict_boundary``.

        Returns:
            Its payload.

        Raises:
            CacheError: no such checkpoint is visible, or the group is unknown.
        """
        require_hash("block_hash", block_hash)
        group = self._require_group(group)
        return self._evict((block_hash, group), f"checkpoint of group {group}")

    def reset(self) -> bool:
        """Forgets everything, as new weights demand; refused while a registration is pending.

        Returns:
            Whether the cache is empty now. Nothing changes otherwise.
        """
        if self._tickets:
            return False
        self._tree = PrefixTree(self.num_kda_groups)
        self._journal.cleared()
        return True

    def take_events(self) -> tuple[CacheEvent, ...]:
        """What became visible or vanished since the last call, in order."""
        return self._journal.take()

    @property
    def num_blocks(self) -> int:
        """Ready MLA blocks."""
        return self._tree.count_ready()[0]

    @property
    def num_pending_blocks(self) -> int:
        """MLA blocks registered by someone and not ready."""
        return self._tree.count_ready()[1]

    @property
    def num_checkpoints(self) -> int:
        """Visible checkpoints, each group counted."""
        return self._tree.count_ready()[2]

    @property
    def num_orphan_blocks(self) -> int:
        """Ready blocks out of reach because a block before them was evicted."""
        return self._tree.orphans()[0]

    @property
    def num_orphan_checkpoints(self) -> int:
        """Visible checkpoints out of reach, each group counted."""
        return self._tree.orphans()[1]

    def checkpoint_groups(self, block_hash: bytes) -> tuple[int, ...]:
        """Groups with a visible checkpoint at the boundary that ``block_hash`` ends."""
        require_hash("block_hash", block_hash)
        gone = self._missing_groups(block_hash)
        return tuple(group for group in range(self.num_kda_groups) if group not in gone)

    def has_checkpoint(self, block_hash: bytes) -> bool:
        """Whether every group has one at the boundary that ``block_hash`` ends."""
        require_hash("block_hash", block_hash)
        return not self._missing_groups(block_hash)

    def is_fork(self, block_hash: bytes) -> bool:
        """Whether known prompts part at the end of this block."""
        require_hash("block_hash", block_hash)
        node = self._tree.nodes.get(block_hash)
        return node is not None and len(node.children) > 1

    def holds(self, ticket: Registration, block_hash: bytes) -> bool:
        """Whether the block is pending for this registration."""
        self._require_own(require_type("ticket", ticket, Registration, CacheError))
        require_hash("block_hash", block_hash)
        return self._holds(block_hash, ticket.number)

    def block_payload(self, block_hash: bytes) -> Any:
        """Payload of a ready block, None otherwise."""
        require_hash("block_hash", block_hash)
        slot = self._tree.slot(block_hash, MLA)
        return slot.payload if slot is not None and slot.ready else None

    def block_state(self, block_hash: bytes) -> str:
        """``ready``, ``pending`` or ``absent``."""
        require_hash("block_hash", block_hash)
        slot = self._tree.slot(block_hash, MLA)
        return "absent" if slot is None else "ready" if slot.ready else "pending"

    def check(self) -> None:
        """Verifies that tickets and entries agree, and the links of the tree.

        Raises:
            CacheError: naming what is wrong.
        """
        owned = {(ticket, key) for ticket, keys in self._tickets.items() for key in keys}
        held = {
            (ticket, (one, index - 1))
            for one, node in self._tree.nodes.items()
            for index, slot in enumerate(node.slots)
            if slot is not None
            for ticket in slot.pending
        }
        require(owned == held, f"tickets and slots disagree about {owned ^ held}", CacheError)
        self._tree.check()

    def _was_known(self, block_hash: bytes) -> bool:
        present = self._tree.slot(block_hash, MLA) is not None
        return present or self._journal.was_evicted(block_hash, MLA)

    def _missing_groups(self, block_hash: bytes) -> tuple[int, ...]:
        node = self._tree.nodes.get(block_hash)
        if node is None:
            return tuple(range(self.num_kda_groups))
        return tuple(
            group for group, slot in enumerate(node.slots[1:]) if slot is None or not slot.ready
        )

    def _checkpoints_at(self, block_hash: bytes) -> tuple[Any, ...]:
        slots = self._tree.nodes[block_hash].slots[1:]
        return tuple(slot.payload for slot in slots if slot is not None)

    def _require_group(self, group: int) -> int:
        return require_count("group", group, 0, self.num_kda_groups - 1, CacheError)

    def _require_own(self, ticket: Registration) -> None:
        require(
            ticket.owner is self._identity,
            f"registration {ticket.number} is of another cache",
            CacheError,
        )

    def _holds(self, block_hash: bytes, ticket: int) -> bool:
        slot = self._tree.slot(block_hash, MLA)
        return slot is not None and ticket in slot.pending

    def _add_pending(self, key: tuple[bytes, int], ticket: int, payload: Any) -> None:
        slot = self._tree.make_slot(*key)
        if ticket not in slot.pending:
            slot.pending[ticket] = payload
            self._tickets.setdefault(ticket, {})[key] = None

    def _publish(self, key: tuple[bytes, int], ticket: int) -> bool:
        slot = self._tree.slot(*key)
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

    def _tell_stored(
        self, blocks: Sequence[bytes], checkpoints: Sequence[tuple[bytes, int]]
    ) -> None:
        """One event per run of blocks that follow each other, then one per checkpoint."""
        run: list[bytes] = []
        for one in blocks:
            parent = self._tree.nodes[one].parent
            if run and (parent is None or parent.block_hash != run[-1]):
                self._tell_run(run)
                run = []
            run.append(one)
        if run:
            self._tell_run(run)
        for one, group in checkpoints:
            self._journal.stored((one,), group, None)

    def _tell_run(self, run: Sequence[bytes]) -> None:
        parent = self._tree.nodes[run[0]].parent
        self._journal.stored(tuple(run), MLA, None if parent is None else parent.block_hash)

    def _evict(self, key: tuple[bytes, int], name: str) -> Any:
        slot: Slot | None = self._tree.slot(*key)
        if slot is None or not slot.ready:
            raise CacheError(f"no {name} is visible under hash {key[0].hex()[:12]}")
        payload, slot.ready, slot.payload = slot.payload, False, None
        self._tree.clean(*key)
        self._journal.removed(*key)
        return payload
