"""Reads the run's reply topic, from its start, through every outage of the broker."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TypeAlias

from headrace.broker.contract import Broker
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.lines.output import numbered
from headrace.producer.backoff import Backoff, RetryPolicy
from headrace.producer.file_run.outcome import Outcome, read_outcome
from headrace.producer.file_run.retry import pause

log = logging.getLogger(__name__)

BUSY_WAITS = 4


@dataclass(frozen=True, slots=True)
class Arrival:
    """A line for OUT. `cursor`: its place in the reply topic; empty for a line that we made ourselves."""

    line: bytes
    outcome: Outcome
    cursor: str = ""


# None: the publisher has come to the end of the input.
Arrivals: TypeAlias = "asyncio.Queue[Arrival | None]"


class Collector:
    """Puts the lines of a reply topic into a bounded queue, in order."""

    def __init__(self, broker: Broker, topic: str, arrivals: Arrivals, policy: RetryPolicy) -> None:
        self._broker = broker
        self._topic = topic
        self._arrivals = arrivals
        self._backoff = Backoff(policy)
        self._cursor = ""
        self._seen = 0

    async def run(self) -> None:
        """Reads for ever."""
        while True:
            try:
                await self._read()
            except BrokerUnavailable as error:
                await pause(error, self._backoff)

    async def quiet(self, quiet_s: float) -> None:
        """Waits until nothing has come for `quiet_s` seconds; in a topic that is busy, a few times that."""
        for _ in range(BUSY_WAITS):
            seen = self._seen
            await asyncio.sleep(quiet_s)
            if seen == self._seen:
                return

    async def _read(self) -> None:
        async for result in self._broker.results(self._topic, self._cursor):
            self._backoff.reset()
            self._seen += 1
            outcome = read_outcome(result.line)
            if outcome is None:
                log.warning("the reply topic %s holds a line that is no result; it is skipped", self._topic)
            else:
                line = numbered(result.line, outcome.line) if outcome.failed else result.line
                await self._arrivals.put(Arrival(line, outcome, result.cursor))
            self._cursor = result.cursor
        raise BrokerUnavailable(f"the broker stopped reading {self._topic}")
