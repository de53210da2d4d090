"""Publishes the lines of the input that have no answer yet, within the window."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.blobs import BlobRefused, check_in
from headrace.broker.contract import Broker, Published, PublishResult
from headrace.broker.errors import BrokerError, TooLarge
from headrace.broker.lines.output import failure_line, result_id
from headrace.broker.lines.reader import Line, LineReader, grouped
from headrace.broker.lines.request import LineError
from headrace.broker.message import JSON, Message
from headrace.producer.file_run.collector import Arrival, Arrivals
from headrace.producer.file_run.identity import reply_topic, request_id
from headrace.producer.file_run.input_file import InputFile
from headrace.producer.file_run.ledger import Ledger
from headrace.producer.file_run.options import FileRunOptions
from headrace.producer.file_run.outcome import Outcome
from headrace.producer.file_run.retry import persist


@dataclass(frozen=True, slots=True)
class Attempt:
    """A line as it is asked for, for the first time or (see `Rescuer`) again."""

    line: Line
    number: int = 1

    def next(self) -> Attempt:
        return Attempt(self.line, self.number + 1)


class Publisher:
    """`doubtful` receives the attempts that the broker may have known already: their answers may never come.
    `begun`: the run was begun before, so that may be any of them; not every broker says so at the publish."""

    def __init__(
        self, broker: Broker, options: FileRunOptions, ledger: Ledger, arrivals: Arrivals, *, begun: bool
    ) -> None:
        self._broker = broker
        self._options = options
        self._ledger = ledger
        self._arrivals = arrivals
        self._begun = begun
        self.doubtful: asyncio.Queue[Attempt] = asyncio.Queue()

    async def publish_all(self, source: InputFile) -> None:
        """Reads the input to its end; returns once every line is answered or in flight."""
        groups = grouped(LineReader(source.file, max_line_bytes=self._options.max_line_bytes))
        while group := await asyncio.to_thread(next, groups, None):
            source.check_unchanged()
            todo = [line for line in group if not self._ledger.is_answered(line.number)]
            await self._refuse(todo)
            valid = [Attempt(line) for line in todo if not isinstance(line.request, LineError)]
            while valid:
                room = await self._ledger.room()
                await self._start(valid[:room])
                valid = valid[room:]
        source.check_unchanged()

    async def publish(self, attempts: Sequence[Attempt]) -> None:
        """Publishes lines that are in flight, in one round trip."""
        messages = [self._message(attempt) for attempt in attempts]
        try:
            results = await persist(lambda: self._check_in_and_publish(messages), self._options.policy)
        except (TooLarge, BlobRefused) as error:
            await self._publish_apart(attempts, error)
            return
        for attempt, result in zip(attempts, results, strict=True):
            if self._begun or not isinstance(result, Published) or result.duplicate:
                self.doubtful.put_nowait(attempt)

    async def _publish_apart(self, attempts: Sequence[Attempt], error: BrokerError) -> None:
        """One of them is larger than the broker takes: it gets its error line, and disturbs no other."""
        if len(attempts) > 1:
            for attempt in attempts:
                await self.publish([attempt])
        else:
            line = attempts[0].line
            custom_id = line.request.custom_id
            await self._refuse_line(
                line.number, LineError("request_too_large", str(error), None, custom_id, line.number)
            )

    async def _check_in_and_publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        travelling = [await check_in(message, self._options.blobs) for message in messages]
        return await self._broker.publish(travelling)

    async def _start(self, attempts: Sequence[Attempt]) -> None:
        # A line may have been answered while it waited for room: a request of an earlier start.
        open_ones = [each for each in attempts if not self._ledger.is_answered(each.line.number)]
        for each in open_ones:
            self._ledger.start(each.line.number)
        if open_ones:
            await self.publish(open_ones)

    async def _refuse(self, lines: Sequence[Line]) -> None:
        """Sends the error lines of what is no request straight to OUT."""
        for line in lines:
            if isinstance(line.request, LineError):
                await self._refuse_line(line.number, line.request)

    async def _refuse_line(self, number: int, error: LineError) -> None:
        name = request_id(self._ledger.run, number)
        raw = failure_line(error.custom_id, result_id=result_id(name), request_id=name, failed=error)
        await self._arrivals.put(Arrival(raw, Outcome(self._ledger.run, number, failed=True)))

    def _message(self, attempt: Attempt) -> Message:
        return Message(
            body=attempt.line.raw,
            request_id=request_id(self._ledger.run, attempt.line.number, attempt.number),
            lane=self._options.lane,
            content_type=JSON,
            reply_to=reply_topic(self._options.prefix, self._ledger.run),
        )
