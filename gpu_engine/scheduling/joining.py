"""Lets requests of the line join the running ones, while there are slots, memory and tokens for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.admission import Admission
from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.prefixes import Prefixes
from headrace.gpu_engine.scheduling.request import Request
from headrace.gpu_engine.scheduling.roster import Roster

LOOKAHEAD = 8
"""How many waiting requests that do not fit now are looked past in one step."""


class Joining:
    """Walks along the line, once a step. `clock` (seconds) serves ageing and the batching policy."""

    def __init__(
        self,
        roster: Roster,
        memory: KVMemory,
        admission: Admission,
        budget: StepBudget,
        clock: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._prefixes = Prefixes(memory)
        self._admission = admission
        self._budget = budget
        self._clock = clock
        self._gaps = Gaps(())

    def let_join(self, *, in_short_supply: bool) -> None:
        """What is free belongs to the one that is due, or to running requests where memory is in short
        supply. Others then join only in the place of lower lanes."""
        now = self._clock()
        line, running = self._roster.line, self._roster.running
        self._roster.let_in(now)
        line.age(now)
        self._look()
        blocked = 0
        for request in line.candidates(max(0, self._admission.max_running - len(running)) + LOOKAHEAD):
            due = line.due()
            in_place = in_short_supply or due not in (None, request)
            if self._may_join(request, in_place):
                if self._join(request, in_place, now):
                    continue
            elif request is not due:
                return
            blocked += 1
            if blocked == LOOKAHEAD:
                return

    def _may_join(self, request: Request, in_place: bool) -> bool:
        """Two cheap tests: of slots, and whether it would get tokens in this step, after all whose turn is
        before its own. To join earlier would only hold memory, and miss what others are about to put into the
        prefix cache."""
        running = self._roster.running
        if not self._admission.has_slot(request, running, in_place=in_place):
            return False
        ahead = self._gaps.ahead_of(request)
        gives_way = in_place or len(running) >= self._admission.max_running
        return ahead - gives_way < self._budget.tokens

    def _join(self, request: Request, in_place: bool, now: float) -> bool:
        """Whether it joined; those of lower lanes whose place it takes have left then."""
        known = self._prefixes.find(request)
        victims = self._admission.make_room(request, known.blocks, self._roster.running, in_place=in_place)
        if victims is None:
            return False
        for victim in victims:
            self._roster.preempt(victim)
        if victims:
            self._look()
        self._roster.join(request, known, now)
        self._admission.joined(request)
        self._gaps.joined(request)
        return True

    def _look(self) -> None:
        """At those that run now; what is found out about them holds until one loses its place."""
        self._admission.look(self._roster.running)
        self._gaps = Gaps(self._roster.running)


class Gaps:
    """What running requests have to compute, in the order in which a step serves them.

    `running` is the live list, counted when somebody asks, since most steps have no place to give.
    """

    def __init__(self, running: Sequence[Request]) -> None:
        self._running = running
        self._is_counted = False
        self._decodes = 0
        self._longer: list[tuple[tuple[int, float, int], int]] = []

    def joined(self, request: Request) -> None:
        """It is among the running ones now."""
        if self._is_counted:
            self._count(request)

    def ahead_of(self, request: Request) -> int:
        """Tokens that are served before any of `request`: a decode's always are."""
        if not self._is_counted:
            self._is_counted = True
            for other in self._running:
                self._count(other)
        order = request.turn.order
        return self._decodes + sum(gap for other, gap in self._longer if other < order)

    def _count(self, request: Request) -> None:
        if request.gap == 1:
            self._decodes += 1
        else:
            self._longer.append((request.turn.order, request.gap))
