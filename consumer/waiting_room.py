"""Deliveries that were pulled and wait for their turn: who is served next, whatever order the queue has them
in.

    lanes by strict preference with ageing (`broker.lanes`)
        those in time before those whose queue timeout passed
            the earliest deadline
                weighted fairness between tenants (`fair_queue`)

All this holds among what is in the room, a window of a few times the slots: the queue itself is first in,
first out. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.broker.lanes import PATIENCE, Preference
from headrace.broker.message import Lane
from headrace.consumer.fair_queue import FairQueue, Ticket

LEAD = 20_000.0


class WaitingRoom:
    """`weights`, `lead`: see `FairQueue`, one for each lane. `patience`: how often a lane is passed over for
    higher ones before it has a turn."""

    def __init__(
        self,
        lanes: Sequence[Lane] = tuple(Lane),
        *,
        weights: Mapping[str, float] | None = None,
        patience: int = PATIENCE,
        lead: float = LEAD,
    ) -> None:
        self._queues = {lane: FairQueue(weights or {}, lead) for lane in lanes}
        self._preference = Preference(lanes, patience)
        self._lane_of: dict[Ticket, Lane] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._lane_of)

    def count(self, lane: Lane) -> int:
        return len(self._queues[lane])

    def add(self, ticket: Ticket, lane: Lane) -> None:
        self._queues[lane].add(ticket)
        self._lane_of[ticket] = lane
        self.size += ticket.size

    def remove(self, ticket: Ticket) -> None:
        """It waits no longer; not in the room: nothing happens."""
        lane = self._left(ticket)
        if lane is not None:
            self._queues[lane].remove(ticket)

    def take(self, now_ms: float, *, interactive_only: bool = False) -> Ticket | None:
        """The next one, which then waits no longer. `now_ms`: the broker's unix time. `interactive_only`:
        there is no room but what is reserved for the interactive lane."""
        waiting = [lane for lane, queue in self._queues.items() if len(queue)]
        if len(waiting) == 1:  # there is nothing to prefer, and nobody is passed over
            lane = waiting[0]
            may_go = lane is Lane.INTERACTIVE or not interactive_only
            return self._take_from(lane, now_ms) if may_go else None
        if not waiting:
            return None
        every_lane = len(self._queues)  # one is taken, but an empty lane shall not use up another's turn
        shares = self._preference.plan(every_lane, reserved=every_lane if interactive_only else 0)
        for asked, share in enumerate(shares, start=1):
            ticket = self._take_from(share.lane, now_ms)
            if ticket is not None:
                self._preference.taken({share.lane: 1}, shares[:asked])
                return ticket
        return None

    def charge(self, ticket: Ticket, lane: Lane, cost: float) -> None:
        """What one that went has cost in truth."""
        self._queues[lane].charge(ticket, cost)

    def _take_from(self, lane: Lane, now_ms: float) -> Ticket | None:
        queue = self._queues.get(lane)
        ticket = queue.take(now_ms) if queue is not None else None
        if ticket is not None:
            self._left(ticket)
        return ticket

    def _left(self, ticket: Ticket) -> Lane | None:
        lane = self._lane_of.pop(ticket, None)
        if lane is not None:
            self.size -= ticket.size
        return lane
