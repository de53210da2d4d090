"""Keeps an engine running: starts it, pumps its outputs, notices its death or its silence, starts another.

    start ──Ready──► watch ──dead, or silent with work──► judge ──► start …
      │ Unusable                                            │ the engine is sick
      └──► EngineUnusable                                   └──► EngineSick

The requests in flight keep their leases and their epoch meanwhile; the next engine gets them with the
tokens received so far, and readers notice nothing but a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

from headrace.consumer.engine_process import EngineDied, EngineHandle
from headrace.consumer.errors import EngineSick, EngineUnusable
from headrace.consumer.inflight import InFlight
from headrace.consumer.placement import Placement
from headrace.consumer.settings import WatchdogSettings
from headrace.gpu_engine.api import EngineInfo, Ready, Stepped, Unusable

log = logging.getLogger(__name__)

SLICES = 20
PARTING_S = 1.0  # for its last step: all in it was handed back, and who stops us waits 5 s for all


class Health:
    """What the deaths of the engine say: is a request poison, or is the engine itself sick?

    A death with one request in the engine, which brought no token, is explained by that request: after
    `poison_deaths` of them it is guilty. Every other death is unexplained. The engine is sick after
    `max_deaths` unexplained ones within `window_s`, after as many failed starts in a row, and when it
    would take a second guilty request before any was finished. A finished request clears the engine.
    """

    def __init__(self, settings: WatchdogSettings) -> None:
        self._settings = settings
        self._unexplained: deque[float] = deque(maxlen=settings.max_deaths)
        self._failed_starts = 0
        self._guilty = 0
        self.sick = False

    def started(self) -> None:
        self._failed_starts = 0

    def finished(self) -> None:
        self._unexplained.clear()
        self._guilty = 0

    def failed_start(self) -> None:
        """It died, or was silent for too long, before it was ready."""
        self._failed_starts += 1
        self.sick = self.sick or self._failed_starts >= self._settings.max_deaths

    def died(self, now: float, victims: Sequence[InFlight]) -> list[InFlight]:
        """`victims`: the requests that were in it. Returns those that are proved guilty."""
        alone = len(victims) == 1 and victims[0].suspicion.barren
        if not alone:
            self._unexplained.append(now)
        bound = self._settings.poison_deaths
        guilty = [flight for flight in victims if flight.suspicion.deaths.lone >= bound]
        self._guilty += len(guilty)
        often = len(self._unexplained) == self._settings.max_deaths
        if self._guilty > 1 or (often and now - self._unexplained[0] <= self._settings.window_s):
            self.sick = True
            return []
        return guilty


class Watchdog:
    """Owns the engine process. `start` makes one; `on_ready` is told of each that is ready, before it gets
    work. `clock`: monotonic seconds."""

    def __init__(
        self,
        start: Callable[[], EngineHandle],
        placement: Placement,
        settings: WatchdogSettings,
        on_ready: Callable[[EngineInfo, EngineHandle], None],
        clock: Callable[[], float],
    ) -> None:
        self._start = start
        self._placement = placement
        self._settings = settings
        self._on_ready = on_ready
        self._clock = clock
        self._health = Health(settings)
        self._first: EngineInfo | None = None
        self.restarts = 0

    async def run(self) -> NoReturn:
        """Until it is cancelled, which ends the engine. Raises EngineUnusable and EngineSick."""
        while True:
            engine = self._start()
            try:
                await self._live(engine)
            except EngineDied as death:
                log.warning("%s; it had %d requests", death, len(self._placement.in_engine))
            finally:
                await engine.close(PARTING_S)
            self._bury()
            self.restarts += 1

    async def _live(self, engine: EngineHandle) -> NoReturn:
        info = await self._load(engine)
        first = self._first = self._first or info
        if (info.fingerprint, info.adapters) != (first.fingerprint, first.adapters):
            raise EngineSick("the model's files changed while it was served; start the consumer again")
        self._health.started()
        self._on_ready(info, engine)
        self._placement.attach(engine)
        await self._watch(engine)

    async def _load(self, engine: EngineHandle) -> EngineInfo:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.load_s):
                message = await engine.receive()
            match message:
                case Ready(info):
                    return info
                case Unusable(sentence):
                    raise EngineUnusable(sentence)
                case Stepped():
                    raise AssertionError("an engine steps before it is ready")
        log.error("the engine was not ready within %.0f s, it will be killed", self._settings.load_s)
        engine.kill()
        while True:
            await engine.receive()

    async def _watch(self, engine: EngineHandle) -> NoReturn:
        """Pumps outputs. Silence is counted in slices of waiting, not by the clock: when this process itself
        was stopped, the engine is not to blame."""
        silent, last_step = 0, 0
        while True:
            try:
                # Not `wait_for`: under a stream of messages it loses a cancellation (cpython#86296).
                async with asyncio.timeout(self._settings.progress_s / SLICES):
                    message = await engine.receive()
            except TimeoutError:
                silent = silent + 1 if self._placement.has_work else 0
                if silent == SLICES:
                    log.error("no step for %.0f s, last was %d", self._settings.progress_s, last_step)
                    engine.kill()
                continue
            silent = 0
            if isinstance(message, Stepped):
                last_step = message.step
                if self._placement.receive(message.outputs):
                    self._health.finished()

    def _bury(self) -> None:
        if not self._placement.attached:
            self._health.failed_start()
        else:
            for flight in self._health.died(self._clock(), self._placement.detach()):
                log.error("request %s killed its engine and is dead-lettered", flight.request_id)
                self._placement.convict(flight)
        if self._health.sick:
            raise EngineSick("the engine died too often in a short time; its own messages above say why")
