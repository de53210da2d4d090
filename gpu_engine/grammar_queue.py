"""Requests whose grammar is not compiled yet wait here, as an engine around an engine, whose steps go on.

    add(grammar) ──► known: joins at once
                     new:   waits ┬─► compiled, or refused: joins, and the inner engine says which
                                  └─► takes too long: refused

How much a grammar may cost at all is bounded where it is compiled (`sampling.guide`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import structs

from headrace.gpu_engine.api import (
    CountingEngine,
    EngineError,
    EngineRequest,
    EngineStats,
    Grammar,
    Output,
    id_in_use,
)
from headrace.gpu_engine.around import EngineAround
from headrace.gpu_engine.sampling.compiling import Job, Jobs
from headrace.gpu_engine.sampling.guide import Compiled, Content, GrammarError, content_of

PATIENCE_S: Final = 10.0
LONGEST_WAIT_S: Final = 0.01
"""How long a step waits for a grammar while nothing else is to be done: additions and aborts are to be
heard."""

_LOG: Final = logging.getLogger(__name__)


class CheckingEngine(CountingEngine, Protocol):
    """An engine that says what it would refuse."""

    def check(self, request: EngineRequest) -> EngineError | None:
        """Why `add` would refuse it, but for its grammar."""


class Grammars(Protocol):
    """See `GuideMaker`."""

    def knows(self, grammar: Grammar) -> bool: ...

    def compile(self, grammar: Grammar) -> Compiled: ...

    def keep(self, grammar: Grammar, compiled: Compiled) -> None: ...


@dataclass(slots=True)
class _Waiter:
    request: EngineRequest
    grammar: Grammar
    job: Job[Compiled]


class GrammarQueue(EngineAround[CheckingEngine]):
    """Implements `Engine` over another one, which makes its guides by `grammars`. `clock`: seconds."""

    def __init__(
        self,
        engine: CheckingEngine,
        grammars: Grammars,
        jobs: Jobs[Compiled] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine)
        self._grammars = grammars
        self._clock = clock
        self._jobs = jobs or Jobs(clock)
        self._waiting: dict[str, _Waiter] = {}
        self._compiling: dict[Content, Job[Compiled]] = {}
        self._ended: dict[str, Output] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._ended) or self._engine.has_work

    @property
    def num_waiting(self) -> int:
        return self._engine.num_waiting + len(self._waiting)

    @property
    def stats(self) -> EngineStats:
        return structs.replace(self._engine.stats, waiting=self.num_waiting)

    def add(self, request: EngineRequest) -> EngineError | None:
        grammar = request.params.grammar
        if request.id in self._waiting or request.id in self._ended:
            return id_in_use(request.id)
        if grammar is None or self._grammars.knows(grammar):
            return self._engine.add(request)
        error = self._engine.check(request)
        if error is None:
            self._waiting[request.id] = _Waiter(request, grammar, self._job(grammar))
        return error

    def abort(self, request_id: str) -> None:
        if self._waiting.pop(request_id, None) is None:
            self._engine.abort(request_id)
        else:
            self._ended[request_id] = Output(id=request_id, finish_reason="abort")

    def step(self) -> list[Output]:
        if self._waiting:
            self._take_compiled()
            self._refuse_impatient()
        outputs = self._engine.step() if self._engine.has_work else []
        ended, self._ended = self._ended, {}
        if self._waiting and not (outputs or ended or self._engine.has_work):
            self._jobs.wait(LONGEST_WAIT_S)
        return [*ended.values(), *outputs]

    def _job(self, grammar: Grammar) -> Job[Compiled]:
        """One for all that wait for the same."""
        self._compiling = {content: job for content, job in self._compiling.items() if not job.ended}
        job = self._compiling.get(content_of(grammar))
        if job is None:
            job = self._jobs.submit(lambda: self._grammars.compile(grammar))
            self._compiling[content_of(grammar)] = job
        return job

    def _take_compiled(self) -> None:
        """Those whose grammar is ready join, in the order in which they came."""
        for waiter in [waiter for waiter in self._waiting.values() if waiter.job.ended]:
            del self._waiting[waiter.request.id]
            if not self._grammars.knows(waiter.grammar):  # the first that waited has it kept for all
                self._grammars.keep(waiter.grammar, _compiled(waiter.job))
            error = self._engine.add(waiter.request)
            if error is not None:
                self._ended[waiter.request.id] = Output(id=waiter.request.id, error=error)

    def _refuse_impatient(self) -> None:
        """Ends those whose grammar takes too long."""
        now = self._clock()
        for waiter in list(self._waiting.values()):
            started = waiter.job.started_at
            if started is not None and now - started >= PATIENCE_S:
                del self._waiting[waiter.request.id]
                self._jobs.give_up(waiter.job)
                self._ended[waiter.request.id] = Output(id=waiter.request.id, error=_too_long(waiter.grammar))


def _compiled(job: Job[Compiled]) -> Compiled:
    if job.result is not None:
        return job.result
    _LOG.error("a grammar could not be compiled", exc_info=job.error)
    return GrammarError("the parser failed; simplify it, or leave it out")


def _too_long(grammar: Grammar) -> EngineError:
    message = (
        f"{grammar.param} cannot be used: it was not compiled within {PATIENCE_S:.0f} s; make it smaller, "
        "with fewer alternatives and smaller repetitions."
    )
    return EngineError(code="invalid_request", message=message, param=grammar.param)
