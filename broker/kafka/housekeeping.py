"""What an owner does beside its requests.

It repeats fences, states long logs anew, forwards delays that are due, hands on what blocks a window, and
trims what nobody reads any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

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
        self._keeping: dict[Tenure, asyncio.Task[None]] = {}
        self._forwarding: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._keep_logs(), name="headrace kafka logs"),
            asyncio.create_task(self._forward_delays(), name="headrace kafka delays"),
            asyncio.create_task(self._look_now_and_then(), name="headrace kafka looks"),
        ]

    async def close(self) -> None:
        tasks = [*self._tasks, *self._keeping.values(), *self._forwarding]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------- logs

    async def _keep_logs(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(_TICK_S)
            tick += 1
            tenures = list(self._holdings.tenures.values())
            for tenure in tenures:
                self._begin_to_keep(tenure)
            if tick % _TRIM_EVERY == 0:
                self._commit_restores(tenures)
                try:
                    await self._trim()
                except BrokerError as error:
                    logger.debug("trimming is repeated later: %s", error)

    def _begin_to_keep(self, tenure: Tenure) -> None:
        """Each by itself: that a partition takes nothing is known only after long, and the fences of others
        are looked for meanwhile."""
        if tenure not in self._keeping:
            self._keeping[tenure] = task = asyncio.create_task(self._keep(tenure), name="headrace kafka log")
            task.add_done_callback(lambda _: self._keeping.pop(tenure, None))

    async def _keep(self, tenure: Tenure) -> None:
        try:
            await self._appender.repeat_fences([tenure])
            await self._appender.state_anew([tenure])
            await self._hand_on(tenure)
        except BrokerError as error:
            logger.debug("keeping the logs of %s is repeated later: %s", tenure.partition, error)

    async def _hand_on(self, tenure: Tenure) -> None:
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
                logger.error("delayed deliveries cannot be forwarded: %s", error)
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
        for delay, is_ours in zip(delays, ours, strict=True):
            if is_ours:
                self._begin_to_forward(delay, now_ms)

    def _begin_to_forward(self, delay: DelayTenure, now_ms: int) -> None:
        """Each by itself: where one partition takes nothing, which is known only after long, the others go
        on."""
        delay.busy = True
        task = asyncio.create_task(self._forward(delay, now_ms), name="headrace kafka forward")
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _forward(self, delay: DelayTenure, now_ms: int) -> None:
        try:
            await self._forward_head(delay, now_ms)
        except Exception as error:  # whatever it is: those behind it are looked at again
            level = logging.DEBUG if isinstance(error, BrokerUnavailable) else logging.ERROR
            logger.log(level, "forwarding of %s is repeated: %r", delay.partition, error)
            await asyncio.sleep(_TICK_S)
        finally:
            delay.busy = False
            self._holdings.flow()
            self._holdings.notify()

    async def _forward_head(self, delay: DelayTenure, now_ms: int) -> None:
        """Published and acknowledged first, completed after; over once all of it is settled."""
        due = delay.due(now_ms, self._at.settings.max_sent_bytes)
        await self._at.publisher.send([one.forward for one in due if one.forward is not None])
        for one, settled in [(one, self._settle(delay, one, self._letters(one))) for one in due]:
            try:
                await asyncio.shield(settled)  # it goes on where this is cancelled
            except BrokerRefused:
                raise
            except BrokerError as error:
                await self._leave_head(delay, one, error)

    async def _leave_head(self, delay: DelayTenure, one: Due, error: BrokerError) -> None:
        """Of a letter that the dead letters do not take, as their topic may be set: its neighbours have gone
        on, and it would be completed with them without a word."""
        if one.letter is None:
            raise error
        logger.error("the bytes of record %d of %s are lost: %s", one.offset, delay.partition, error)
        await asyncio.shield(self._settle(delay, one, [letter_head(one.letter)]))

    def _settle(self, delay: DelayTenure, one: Due, records: Sequence[Record]) -> asyncio.Future[bool]:
        return self._settler.put(Item(delay, one.offset, records))

    def _letters(self, one: Due) -> list[Record]:
        """Foreign clients may write more than we can send on: of that, only the head is kept."""
        if one.letter is None:
            return []
        fits = size_of(one.letter) <= self._at.settings.max_sent_bytes
        return [one.letter if fits else letter_head(one.letter)]
