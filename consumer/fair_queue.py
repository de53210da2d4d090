"""Who comes next of one lane: those in time first, then the earliest deadline, all within fair shares.

Tenants share by start-time fair queueing (Goyal, Vin, Cheng 1996): each has a virtual start that advances by
cost / weight whenever one of its requests goes, and the smallest one is next. Deadlines come before that, but
only among tenants that are not ahead of their share by more than `lead` (as "eligible" in EEVDF, Stoica
1995): nobody gets more than its share by setting deadlines, and a tenant with a million requests starves
nobody.

    served(a) / weight(a) - served(b) / weight(b)  ≤  2 · (lead + largest cost / weight)

holds over every interval in which both have something waiting that is in time. Costs are estimates when a
request goes, and are put right when it ends (`charge`).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec


class Ticket(msgspec.Struct, frozen=True, eq=False):
    """One delivery that waits. `size`: bytes of its body; `cost`: tokens, as far as can be told. Times are
    the broker's unix milliseconds; from `late_at_ms` on, those in time go before it."""

    tenant: str = ""
    size: int = 0
    cost: float = 1.0
    deadline_ms: int | None = None
    late_at_ms: int | None = None


_Entry: TypeAlias = tuple[float, int, Ticket]  # deadline, order of arrival
_SPARE_TENANTS = 64  # remembered beyond those that wait, before the queue looks whom it may forget


@dataclass(slots=True)
class _Tenant:
    name: str
    weight: float
    start: float = 0.0  # virtual time at which its next request may go
    in_time: list[_Entry] = field(default_factory=list)  # heaps
    late: list[_Entry] = field(default_factory=list)

    def keep(self, waiting: Set[Ticket]) -> None:
        """Forgets those that wait no longer; they may lie deep in the heaps, behind ever more urgent ones."""
        for heap in (self.in_time, self.late):
            heap[:] = [entry for entry in heap if entry[-1] in waiting]
            heapq.heapify(heap)

    @property
    def waits(self) -> bool:
        return bool(self.in_time or self.late)


class FairQueue:
    """`weights`: shares of tenants, 1 where nothing is said; `lead`: in units of cost."""

    def __init__(self, weights: Mapping[str, float], lead: float) -> None:
        self._weights = weights
        self._lead = lead
        self._tenants: dict[str, _Tenant] = {}
        self._waiting: set[Ticket] = set()
        self._virtual = 0.0
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def remembered(self) -> int:
        """Tenants that are known: those that wait, and some that owe."""
        return len(self._tenants)

    def add(self, ticket: Ticket) -> None:
        tenant = self._tenants.get(ticket.tenant)
        if tenant is None:
            weight = self._weights.get(ticket.tenant, 1.0)
            tenant = self._tenants[ticket.tenant] = _Tenant(ticket.tenant, weight)
        if not tenant.waits:  # who was away has saved nothing up
            tenant.start = max(tenant.start, self._virtual)
        deadline = math.inf if ticket.deadline_ms is None else ticket.deadline_ms
        heapq.heappush(tenant.in_time, (deadline, next(self._arrivals), ticket))
        self._waiting.add(ticket)

    def remove(self, ticket: Ticket) -> None:
        """It waits no longer; not in the queue: nothing happens."""
        self._waiting.discard(ticket)
        self._forget_idle()
        tenant, enough = self._tenants.get(ticket.tenant), 2 * len(self._waiting) + _SPARE_TENANTS
        if tenant is not None and len(tenant.in_time) + len(tenant.late) > enough:
            tenant.keep(self._waiting)

    def take(self, now_ms: float) -> Ticket | None:
        """The next one, which then waits no longer."""
        for tenant in self._tenants.values():
            self._sort_out(tenant, now_ms)
        in_time = [(tenant, tenant.in_time) for tenant in self._tenants.values() if tenant.in_time]
        late = [(tenant, tenant.late) for tenant in self._tenants.values() if tenant.late]
        if not (in_time or late):
            return None
        tenant, heap = self._first(in_time or late)
        self._advance(heap[0][-1].cost)
        ticket = heapq.heappop(heap)[-1]
        self._waiting.remove(ticket)
        tenant.start += ticket.cost / tenant.weight
        self._forget_idle()
        return ticket

    def charge(self, ticket: Ticket, cost: float) -> None:
        """What a ticket that went has cost in truth."""
        tenant = self._tenants.get(ticket.tenant)
        if tenant is not None:
            corrected = tenant.start + (cost - ticket.cost) / tenant.weight
            tenant.start = max(self._virtual, corrected)

    def _advance(self, cost: float) -> None:
        """Virtual time goes on as if all who wait were served at once. (The start of the one that is served,
        as in the paper, would let an endless line of newcomers, one request each, starve who came before
        them.)"""
        waiting = [tenant for tenant in self._tenants.values() if tenant.waits]
        passed = cost / sum(tenant.weight for tenant in waiting)
        self._virtual = max(self._virtual + passed, min(tenant.start for tenant in waiting))

    def _first(self, waiting: list[tuple[_Tenant, list[_Entry]]]) -> tuple[_Tenant, list[_Entry]]:
        allowed = min(tenant.start for tenant, _ in waiting) + self._lead

        def order(one: tuple[_Tenant, list[_Entry]]) -> tuple[bool, float, float, int]:
            tenant, heap = one
            deadline, arrival, _ = heap[0]
            return tenant.start > allowed, deadline, tenant.start, arrival

        return min(waiting, key=order)

    def _sort_out(self, tenant: _Tenant, now_ms: float) -> None:
        """Drops what was removed from the heads of a tenant's heaps, and moves what is late."""
        while tenant.in_time:
            late_at = tenant.in_time[0][-1].late_at_ms
            if tenant.in_time[0][-1] not in self._waiting:
                heapq.heappop(tenant.in_time)
            elif late_at is not None and late_at <= now_ms:
                heapq.heappush(tenant.late, heapq.heappop(tenant.in_time))
            else:
                break
        while tenant.late and tenant.late[0][-1] not in self._waiting:
            heapq.heappop(tenant.late)

    def _forget_idle(self) -> None:
        """Nobody waits: a busy period is over, and its debts with it. Else only who owes nothing is
        forgotten."""
        if not self._waiting:
            self._tenants.clear()
            self._virtual = 0.0
        elif len(self._tenants) > len(self._waiting) + _SPARE_TENANTS:
            gone = [t.name for t in self._tenants.values() if not t.waits and t.start <= self._virtual]
            for name in gone:
                del self._tenants[name]
