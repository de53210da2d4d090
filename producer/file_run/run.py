"""A file of requests goes in, a file of result lines comes out, each line once, however often it is killed.

    IN ──► publisher ──► queue ··· consumers ··· reply topic ──► collector ──► writer ──► OUT
              │ invalid lines                                                     ▲
              └───────────────────────────────────────────────────────────────────┘

| killed …                          | the next start …                                                   |
|-----------------------------------|--------------------------------------------------------------------|
| before a publish                  | publishes the line                                                 |
| after it                          | publishes it again, under the same id: a duplicate, which adds none |
| with the result in the topic only | reads it from the topic                                            |
| in the middle of writing it       | cuts the torn line off and reads it from the topic                 |
| before the topic was trimmed      | drops the duplicate by its line number                             |

The topic is trimmed only behind what `fsync` has made durable. Limits: IN must not change meanwhile (it is
refused), and OUT belongs to one run at a time (it is locked).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Self

from headrace.broker.contract import Broker
from headrace.broker.errors import BrokerUnavailable
from headrace.producer.file_run.collector import Arrival, Arrivals, Collector
from headrace.producer.file_run.identity import reply_topic
from headrace.producer.file_run.input_file import InputFile
from headrace.producer.file_run.ledger import Ledger
from headrace.producer.file_run.mark import remove_mark, write_mark
from headrace.producer.file_run.options import FileRunOptions, Progress, Summary
from headrace.producer.file_run.output_file import OutputFile
from headrace.producer.file_run.publisher import Publisher
from headrace.producer.file_run.recover import recover
from headrace.producer.file_run.rescuer import Rescuer
from headrace.producer.file_run.retry import persist


async def run_file(
    broker: Broker, options: FileRunOptions, progress: Callable[[Progress], None] = lambda _: None
) -> Summary:
    """Runs IN to its end and returns what came of it; see `FileRun`. Blocks while it surveys IN."""
    with FileRun.open(options) as run:
        return await run.answer(broker, progress)


class FileRun:
    """A run whose files are open: IN is surveyed, OUT is held, and what it holds already is known.

    All that can be wrong with the files is told before a broker or an engine is needed.
    """

    def __init__(self, options: FileRunOptions, source: InputFile, out: OutputFile) -> None:
        self._options = options
        self._source = source
        self._out = out
        self._ledger, self._begun = recover(options, source, out)
        self._resumed = self._ledger.done + self._ledger.failed
        self._held = contextlib.ExitStack()

    @classmethod
    def open(cls, options: FileRunOptions) -> Self:
        """Opens IN and OUT; FileRunError says what is wrong with them, and leaves both as they are."""
        with contextlib.ExitStack() as held:
            source = held.enter_context(InputFile.open(options.input))
            source.check_unlike(options.output)
            out = held.enter_context(OutputFile.open(options.output))
            run = cls(options, source, out)
            run._held = held.pop_all()
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the files. An OUT that was made for a run that never began goes with it."""
        self._held.close()

    @property
    def complete(self) -> bool:
        """Whether every line has its answer, so that nothing is left to ask."""
        return self._ledger.done + self._ledger.failed >= self._source.survey.requests

    async def answer(self, broker: Broker, report: Callable[[Progress], None] = lambda _: None) -> Summary:
        """Answers what is left; `report` is called after each group of lines.

        Cancel it to stop: what is in OUT and on the queue stays, and the next run goes on from there.
        Raises FileRunError when a file cannot be read or written any more (a full disk included) or the
        broker stays away, and BrokerError for what the broker refuses.
        """
        began = time.monotonic()
        if not self.complete:
            write_mark(self._options.output, self._ledger.run)
            self._out.keep()
            tasks = _Tasks(broker, self._options, self._source, self._out, self._ledger)
            await tasks.answer_the_rest(self._begun, lambda: report(self._progress(began)))
        return self.finish(began)

    def finish(self, began: float | None = None) -> Summary:
        """Ends a complete run. `began`: when this start did, by the monotonic clock; None: only now."""
        self._out.keep()
        remove_mark(self._options.output)
        progress = self._progress(time.monotonic() if began is None else began)
        return Summary(**asdict(progress), run_id=self._ledger.run)

    def _progress(self, began: float) -> Progress:
        ledger = self._ledger
        return Progress(
            total=self._source.survey.requests,
            done=ledger.done,
            failed=ledger.failed,
            resumed=self._resumed,
            prompt_tokens=ledger.prompt_tokens,
            completion_tokens=ledger.completion_tokens,
            elapsed_s=time.monotonic() - began,
        )


class _Tasks:
    """The tasks of one start, side by side."""

    def __init__(
        self, broker: Broker, options: FileRunOptions, source: InputFile, out: OutputFile, ledger: Ledger
    ) -> None:
        self._broker = broker
        self._options = options
        self._source = source
        self._out = out
        self._ledger = ledger
        self._topic = reply_topic(options.prefix, ledger.run)
        self._arrivals: Arrivals = asyncio.Queue(2 * options.window)

    async def answer_the_rest(self, begun: bool, report: Callable[[], None]) -> None:
        """The first task that fails ends them all with its error."""
        report()
        collector = Collector(self._broker, self._topic, self._arrivals, self._options.policy)
        publisher = Publisher(self._broker, self._options, self._ledger, self._arrivals, begun=begun)
        rescuer = Rescuer(self._broker, self._options, self._ledger, publisher, collector)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish(publisher, collector, begun))
                lasting = (collector.run(), rescuer.run(), self._feel_pulse())
                endless = [tasks.create_task(each) for each in lasting]
                await self._write(report)
                for task in endless:
                    task.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _publish(self, publisher: Publisher, collector: Collector, begun: bool) -> None:
        if begun:  # what earlier requests have brought meanwhile need not be asked for again
            await collector.quiet(self._options.quiet_s)
        await publisher.publish_all(self._source)
        await self._arrivals.put(None)

    async def _feel_pulse(self) -> None:
        """Ends the run with a sentence when the broker stays away: a reader of results only waits for it."""
        while True:
            await asyncio.sleep(self._options.pulse_s)
            await persist(self._broker.ping, self._options.policy)

    async def _write(self, report: Callable[[], None]) -> None:
        """Writes what arrives, until everything is published and nothing is in flight."""
        published = False
        while not published or self._ledger.in_flight:
            group = [await self._arrivals.get()]
            while not self._arrivals.empty():
                group.append(self._arrivals.get_nowait())
            published = published or None in group
            if await self._keep([arrival for arrival in group if arrival is not None]):
                report()

    async def _keep(self, group: list[Arrival]) -> bool:
        """Makes a group of lines durable; only then drops them from the reply topic. False: none was new."""
        new = [arrival.line for arrival in group if self._ledger.take(arrival.outcome)]
        if new:
            await asyncio.to_thread(self._out.append, new)
        cursors = [arrival.cursor for arrival in group if arrival.cursor]
        if cursors:
            with contextlib.suppress(BrokerUnavailable):  # the trim of the next group includes this one
                await self._broker.trim_results(self._topic, cursors[-1])
        return bool(new)
