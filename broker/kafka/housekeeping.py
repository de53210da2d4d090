"""What an owner does beside its requests.

It repeats fences, states long logs anew, forwards delays that are due, hands on what blocks a window, and
trims what nobody reads any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from kafka.structs import TopicPartition

from headrace.broker.backoff import Backoff
from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.appender import Appender
from headrace.broker.kafka.codec import Record, letter_head, size_of
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.delays import DelayTenure, Due
from headrace.broker.kafka.holdings import Holdings
from headrace.broker.kafka.items import Item, Settled
from headrace.broker.kafka.results import trim
from headrace.broker.kafka.settle import Settler
from headrace.broker.kafka.settlements import Settlements
from headrace.broker.kafka.tenure import Tenure

logger = logging.getLogger(__name__)

_TICK_S = 1.0
_LOOK_S = 0.25
_TRIM_EVERY = 30  # ticks


class Housekeeping:
    def __init__(
        self,
        connection: Connection,
        holdings: Holdings,
        appender: Appender,
        settlements: Settlements,
        settler: Settler,
    ) -> None:
        self._at, self._holdings, self._appender = connection, holdings, appender
        self._settlements, self._settler = settlements, settler
        self._trimmed: dict[TopicPartition, int] = {}
        self._restores: dict[TopicPartition, int] = {}  # offsets, as they were last committed for their sake
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._keep_logs(), name="headrace kafka logs"),
            asyncio.create_task(self._forward_delays(), name="headrace kafka delays"),
            asyncio.create_task(self._look_now_and_then(), name="headrace kafka looks"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------- logs

    async def _keep_logs(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(_TICK_S)
            tick += 1
            try:
                tenures = list(self._holdings.tenures.values())
                await self._appender.repeat_fences(tenures)
                await self._appender.state_anew(tenures)
                await self._hand_on(tenures)
                if tick % _TRIM_EVERY == 0:
                    self._commit_restores(tenures)
                    await self._trim()
            except BrokerError as error:
                logger.debug("keeping the logs is repeated later: %s", error)

    async def _hand_on(self, tenures: Sequence[Tenure]) -> None:
        for tenure in tenures:
            delivery = tenure.blocking()
            if delivery is not None:
                logger.info("handing on %s, for which a full window waits", delivery.ref.request_id)
                self._holdings.lose(delivery)
                await self._settlements.hand_on(tenure, delivery)
                self._holdings.notify()

    def _commit_restores(self, tenures: Sequence[Tenure]) -> None:
        """Fences go on where nothing is settled, and no settlement tells the group from where on they need
        to be read: the next owner would read those of days."""
        for tenure in tenures:
            restore = tenure.commit().restore
            if restore > self._restores.get(tenure.partition, tenure.committed.restore):
                self._settler.put(Item(tenure, None, []))
                self._restores[tenure.partition] = restore

    async def _trim(self) -> None:
        """Below the commit nobody reads any more."""
        held: list[Settled] = [*self._holdings.tenures.values(), *self._holdings.delays.values()]
        bases = {tenure.partition: tenure.commit().base for tenure in held}
        below = {p: base for p, base in bases.items() if base > self._trimmed.get(p, 0)}
        if below:
            await trim(self._at.clients, below)
            self._trimmed |= below

    # ----------------------------------------------------------------------------------------- delays

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._holdings.tick()

    async def _forward_delays(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._forward_due()
                backoff.reset()
            except BrokerUnavailable as error:
                logger.debug("forwarding is repeated: %s", error)
                await backoff.wait()
            except BrokerError as error:
                logger.error("a delayed delivery cannot be forwarded: %s", error)
                await asyncio.sleep(_TICK_S)
            await self._holdings.changed(self._until_due())

    def _until_due(self) -> float:
        times = (delay.next_due_ms() for delay in self._holdings.delays.values())
        first = min((at_ms for at_ms in times if at_ms is not None), default=None)
        if first is None:
            return 60.0
        return max(0.001, (first - self._at.clock.now_ms()) / 1000)

    async def _forward_due(self) -> None:
        now_ms = self._at.clock.now_ms()
        firsts = {delay: delay.next_due_ms() for delay in self._holdings.delays.values()}
        delays = [delay for delay, at_ms in firsts.items() if at_ms is not None and at_ms <= now_ms]
        # Who was frozen and overtaken finds all of them due when it wakes: others have forwarded them, and
        # run them, so long ago that a twin might not be known any more.
        ours = await asyncio.gather(*(self._settler.add(Item(delay, None, [])) for delay in delays))
        held = [delay for delay, is_ours in zip(delays, ours, strict=True) if is_ours]
        # To the end of each: where one partition takes nothing, the others go on.
        ends = await asyncio.gather(*(self._forward(delay, now_ms) for delay in held), return_exceptions=True)
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    async def _forward(self, delay: DelayTenure, now_ms: int) -> None:
        """Published and acknowledged first, completed after."""
        due = delay.due(now_ms, self._at.settings.max_sent_bytes)
        await self._at.publisher.send([one.forward for one in due if one.forward is not None])
        items = [Item(delay, one.offset, self._letters(one)) for one in due]
        delay.busy = True
        items[-1].done.add_done_callback(lambda _: self._forwarded(delay))
        for one, item in zip(due, items, strict=True):
            item.done.add_done_callback(partial(self._leave_head, delay, one))
            self._settler.put(item)

    def _leave_head(self, delay: DelayTenure, one: Due, done: asyncio.Future[bool]) -> None:
        """Of a letter that the dead letters do not take, as their topic may be set: its neighbours have gone
        on, and it would be completed with them without a word."""
        error = None if done.cancelled() else done.exception()
        if one.letter is None or error is None or isinstance(error, BrokerRefused):
            return
        logger.error("the bytes of record %d of %s are lost: %s", one.offset, delay.partition, error)
        self._settler.put(Item(delay, one.offset, [letter_head(one.letter)]))

    def _letters(self, one: Due) -> list[Record]:
        """Foreign clients may write more than we can send on: of that, only the head is kept."""
        if one.letter is None:
            return []
        fits = size_of(one.letter) <= self._at.settings.max_sent_bytes
        return [one.letter if fits else letter_head(one.letter)]

    def _forwarded(self, delay: DelayTenure) -> None:
        delay.busy = False
        self._holdings.flow()
        self._holdings.notify()
