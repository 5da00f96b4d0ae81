"""Admission by budgets: each class of requests may hold only so much of the fleet at once.

K3 report 5.4.3: one request costs anything from under 2K to 1M tokens, so admission counts weight,
not requests, and separate budgets keep a burst of one class from starving another. The report
gives no numbers; every budget and weight here is declared by the caller.

A request that does not fit is refused (``mode="reject"``) or waits (``mode="queue"``). Waiting is
first in, first out within a class, and a class never waits behind another one. Where weights differ
within a class (tokens, for example), a heavy head would hold back light ones that fit:
``max_overtakes`` lets so many of them pass each head, and no more, so that nobody starves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from k3core.errors import BudgetError, require, require_choice, require_count, require_type, shown

MODES = ("reject", "queue")


class Ticket(NamedTuple):
    """Proof of admission; hand it back to ``release`` exactly once."""

    number: int
    cls: str
    weight: int
    item: object = None


@dataclass(slots=True)
class _Waiting:
    order: int
    weight: int
    item: object
    num_overtaken: int = 0


class BudgetController:
    """Counts the admitted weight of each class against its budget.

    Args:
        budgets: weight that may be held at once, per lane.
        weights: weight of one request, per class.
        mode: ``"reject"`` or ``"queue"``.
        lanes: the lane whose budget a class draws on; without it every class has its own lane,
            of its own name. Two classes in one lane share one budget (no isolation).
        max_overtakes: later requests of its class that may enter before a waiting one.

    Raises:
        BudgetError: a budget or weight is not a positive integer, a class has no lane, a lane
            has no class, or a weight exceeds its budget (such a request could never enter).
    """

    def __init__(
        self,
        budgets: Mapping[str, int],
        weights: Mapping[str, int],
        mode: str = "reject",
        lanes: Mapping[str, str] | None = None,
        max_overtakes: int = 0,
    ) -> None:
        require_choice("mode", mode, MODES, BudgetError)
        require_count("max_overtakes", max_overtakes, error=BudgetError)
        for name, table in (("budgets", budgets), ("weights", weights)):
            for key, value in _table(name, table).items():
                require_count(f"{name}[{key!r}]", value, 1, error=BudgetError)
        require(bool(weights), "weights must name at least one class", BudgetError)
        lanes = {cls: cls for cls in weights} if lanes is None else lanes
        for key, lane in _table("lanes", lanes).items():
            require_type(f"lanes[{key!r}]", lane, str, BudgetError)
        require(
            set(lanes) == set(weights),
            f"lanes name the classes {sorted(lanes)}, weights name {sorted(weights)}",
            BudgetError,
        )
        require(
            set(lanes.values()) == set(budgets),
            f"budgets are given for {sorted(budgets)}, the lanes in use are "
            f"{sorted(set(lanes.values()))}",
            BudgetError,
        )
        for cls, weight in weights.items():
            limit = budgets[lanes[cls]]
            require(
                weight <= limit,
                f"weights[{cls!r}]={weight} exceeds its budget {limit}: it could never be admitted",
                BudgetError,
            )
        self.mode = mode
        self.budgets = dict(budgets)
        self.weights = dict(weights)
        self.lanes = dict(lanes)
        self.max_overtakes = max_overtakes
        self._usage = dict.fromkeys(budgets, 0)
        self._held: dict[int, Ticket] = {}
        self._queues: dict[str, deque[_Waiting]] = {cls: deque() for cls in weights}
        self._rejected = dict.fromkeys(weights, 0)
        self._next_number = 0
        self._next_order = 0

    def fresh(self) -> BudgetController:
        """An empty controller with the same budgets, weights, mode and lanes."""
        return BudgetController(
            self.budgets, self.weights, self.mode, self.lanes, self.max_overtakes
        )

    def admit(self, cls: str, weight: int | None = None, item: object = None) -> Ticket | None:
        """Ask for admission of one request.

        Args:
            cls: class of the request.
            weight: its weight, instead of the weight of its class.
            item: anything that the caller wants back with the ticket.

        Returns:
            a ticket; or None: refused in mode ``"reject"``, waiting in mode ``"queue"`` (then a
            later ``release`` returns its ticket).

        Raises:
            BudgetError: unknown class, or a weight that is not positive or exceeds the budget.
        """
        self._require_known(cls)
        if weight is None:
            weight = self.weights[cls]
        else:
            require_count("weight", weight, 1, error=BudgetError)
            limit = self.budgets[self.lanes[cls]]
            require(
                weight <= limit,
                f"weight={weight} exceeds the budget {limit} of class {cls!r}: "
                "it could never be admitted",
                BudgetError,
            )
        queue = self._queues[cls]
        if self._fits(cls, weight) and (not queue or queue[0].num_overtaken < self.max_overtakes):
            for waiting in queue:
                waiting.num_overtaken += 1
            return self._grant(cls, weight, item)
        if self.mode == "reject":
            self._rejected[cls] += 1
        else:
            self._queues[cls].append(_Waiting(self._next_order, weight, item))
            self._next_order += 1
        return None

    def release(self, ticket: Ticket) -> list[Ticket]:
        """Give back exactly what the ticket holds.

        Returns:
            the tickets of waiting requests that enter now, in the order in which they arrived
            (always empty in mode ``"reject"``).

        Raises:
            BudgetError: the ticket was released already, or was not issued here.
        """
        require(
            isinstance(ticket, Ticket),
            f"ticket={shown(ticket)} must be a Ticket that admit returned",
            BudgetError,
        )
        held = self._held.get(ticket.number) if isinstance(ticket.number, int) else None
        require(
            held is not None and held is ticket,
            f"ticket {ticket.number} of class {ticket.cls!r} is not held here: "
            "released already, or issued by another controller",
            BudgetError,
        )
        del self._held[ticket.number]
        lane = self.lanes[ticket.cls]
        self._usage[lane] -= ticket.weight
        return self._let_in(lane) if self.mode == "queue" else []

    def usage(self, cls: str) -> int:
        """Weight held in the lane of ``cls``."""
        self._require_known(cls)
        return self._usage[self.lanes[cls]]

    def num_held(self, cls: str) -> int:
        """Requests of ``cls`` that hold a ticket."""
        self._require_known(cls)
        return sum(ticket.cls == cls for ticket in self._held.values())

    def num_waiting(self, cls: str) -> int:
        self._require_known(cls)
        return len(self._queues[cls])

    def num_rejected(self, cls: str) -> int:
        self._require_known(cls)
        return self._rejected[cls]

    def _require_known(self, cls: object) -> None:
        if not isinstance(cls, str) or cls not in self.weights:
            require_choice("cls", cls, sorted(self.weights), BudgetError)

    def _fits(self, cls: str, weight: int) -> bool:
        lane = self.lanes[cls]
        return self._usage[lane] + weight <= self.budgets[lane]

    def _grant(self, cls: str, weight: int, item: object) -> Ticket:
        ticket = Ticket(self._next_number, cls, weight, item)
        self._next_number += 1
        self._held[ticket.number] = ticket
        self._usage[self.lanes[cls]] += weight
        return ticket

    def _let_in(self, lane: str) -> list[Ticket]:
        """Admit waiting requests of one lane: the oldest that may enter and fits, repeatedly.

        A head that does not fit holds back its own class only (all but ``max_overtakes`` of it).
        In a lane shared by classes, light requests can therefore overtake a heavy head for as long
        as they keep coming: that is what sharing costs.
        """
        granted: list[Ticket] = []
        classes = [cls for cls in self.weights if self.lanes[cls] == lane]
        while True:
            ready = [
                (self._queues[cls][at].order, cls, at)
                for cls in classes
                if (at := self._first_that_may(cls)) is not None
            ]
            if not ready:
                return granted
            _, cls, at = min(ready)
            queue = self._queues[cls]
            chosen = queue[at]
            del queue[at]
            for index in range(at):
                queue[index].num_overtaken += 1
            granted.append(self._grant(cls, chosen.weight, chosen.item))

    def _first_that_may(self, cls: str) -> int | None:
        """Place of the first waiting request that fits; None when it would pass too many."""
        queue = self._queues[cls]
        if not queue:
            return None
        if self._fits(cls, queue[0].weight):
            return 0
        # The head has been overtaken at least as often as anyone behind it.
        if queue[0].num_overtaken >= self.max_overtakes:
            return None
        free = self.budgets[self.lanes[cls]] - self._usage[self.lanes[cls]]
        return next((at for at, waiting in enumerate(queue) if waiting.weight <= free), None)


def _table(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BudgetError(f"{name}={shown(value)} must map names to values")
    return value
