"""The cached things by prefix: a tree of blocks, each with the checkpoints at its end.

Ancestors that lost their content stay as empty nodes as long as something hangs below them, so
what an eviction cut off can still be found and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from k3core.errors import CacheError, require

MLA = -1
"""Kind of the MLA block itself; KDA groups are 0, 1, ..."""


class Slot:
    """One cached thing, an MLA block or a group's checkpoint: ready, or pending per ticket."""

    __slots__ = ("payload", "pending", "ready")

    def __init__(self) -> None:
        self.ready = False
        self.payload: Any = None
        self.pending: dict[int, Any] = {}


class Node:
    """One block of one prefix: slot 0 is the block, slot 1 + g the checkpoint of group g."""

    __slots__ = ("block_hash", "children", "parent", "slots")

    def __init__(self, block_hash: bytes, parent: Node | None, num_slots: int) -> None:
        self.block_hash = block_hash
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.slots: list[Slot | None] = [None] * num_slots

    @property
    def is_empty(self) -> bool:
        return not any(self.slots)

    def ready(self, kind: int) -> bool:
        slot = self.slots[kind + 1]
        return slot is not None and slot.ready


class PrefixTree:
    """Nodes by block hash.

    Args:
        num_kda_groups: checkpoints per boundary.
    """

    def __init__(self, num_kda_groups: int) -> None:
        self.num_kda_groups = num_kda_groups
        self.nodes: dict[bytes, Node] = {}

    def slot(self, block_hash: bytes, kind: int) -> Slot | None:
        node = self.nodes.get(block_hash)
        return None if node is None else node.slots[kind + 1]

    def add_path(self, hashes: Sequence[bytes]) -> None:
        """Make sure that every block of a prefix has a node."""
        parent: Node | None = None
        for one in hashes:
            node = self.nodes.get(one)
            if node is None:
                node = self.nodes[one] = Node(one, parent, self.num_kda_groups + 1)
                if parent is not None:
                    parent.children[one] = node
            parent = node

    def make_slot(self, block_hash: bytes, kind: int) -> Slot:
        """The slot of a node that exists, made when missing."""
        slots = self.nodes[block_hash].slots
        slot = slots[kind + 1]
        if slot is None:
            slot = slots[kind + 1] = Slot()
        return slot

    def clean(self, block_hash: bytes, kind: int) -> None:
        """Drop a slot without content, and the nodes that nothing needs any more."""
        node: Node | None = self.nodes[block_hash]
        if node is None:
            return
        slot = node.slots[kind + 1]
        if slot is not None and not slot.ready and not slot.pending:
            node.slots[kind + 1] = None
        self._prune(node)

    def prune_path(self, hashes: Sequence[bytes]) -> None:
        """Drop the empty end of a path."""
        if hashes and hashes[-1] in self.nodes:
            self._prune(self.nodes[hashes[-1]])

    def _prune(self, node: Node | None) -> None:
        while node is not None and not node.children and node.is_empty:
            del self.nodes[node.block_hash]
            if node.parent is not None:
                del node.parent.children[node.block_hash]
            node = node.parent

    def below(self, block_hash: bytes) -> Iterator[Node]:
        """Nodes of the subtree of a block, deepest first, the block itself last."""
        top = self.nodes.get(block_hash)
        if top is None:
            return
        order, stack = [], [top]
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(node.children.values())
        yield from reversed(order)

    def orphans(self) -> tuple[int, int]:
        """Ready blocks, and ready checkpoints, that no lookup can reach: an ancestor is gone."""
        blocks = states = 0
        stack = [(node, True) for node in self.nodes.values() if node.parent is None]
        while stack:
            node, reachable = stack.pop()
            here = node.ready(MLA)
            if not reachable:
                blocks += here
            reachable = reachable and here
            if not reachable:
                states += sum(node.ready(group) for group in range(self.num_kda_groups))
            stack.extend((child, reachable) for child in node.children.values())
        return blocks, states

    def count_ready(self) -> tuple[int, int, int]:
        """Ready blocks, blocks registered and not ready, visible checkpoints."""
        ready = pending = states = 0
        for node in self.nodes.values():
            if node.slots[0] is not None:
                ready += node.slots[0].ready
                pending += not node.slots[0].ready
            states += sum(node.ready(group) for group in range(self.num_kda_groups))
        return ready, pending, states

    def check(self) -> None:
        """Verify the links.

        Raises:
            CacheError: a slot or a leaf without content, or a link that one side lacks.
        """
        for one, node in self.nodes.items():
            name = one.hex()[:12]
            empty = [s for s in node.slots if s is not None and not s.ready and not s.pending]
            require(not empty, f"slots without content: {len(empty)} of {name}", CacheError)
            require(bool(node.children) or not node.is_empty, f"empty leaf: {name}", CacheError)
            if node.parent is not None:
                require(
                    self.nodes.get(node.parent.block_hash) is node.parent
                    and node.parent.children.get(one) is node,
                    f"the parent of {name} does not know it",
                    CacheError,
                )
