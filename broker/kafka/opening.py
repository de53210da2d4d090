"""Opening a delivery: which epoch it runs under, and what its log holds up to the fence of that epoch."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from kafka.structs import TopicPartition

from headrace.broker.contract import OpenOutcome
from headrace.broker.events import Fence
from headrace.broker.kafka.appender import Appender, Entry
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.group_reader import Bounds, GroupReader
from headrace.broker.kafka.places import log_key
from headrace.broker.kafka.settlements import Settlements
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.message import Delivery


class Opening:
    def __init__(self, reader: GroupReader, appender: Appender, settlements: Settlements) -> None:
        self._reader, self._appender, self._settlements = reader, appender, settlements
        self._turns: WeakValueDictionary[tuple[TopicPartition, str], asyncio.Lock] = WeakValueDictionary()

    async def open(self, tenure: Tenure, delivery: Delivery) -> tuple[OpenOutcome, int]:
        """What the delivery is, and the epoch to run it under.

        Twins take turns: of two that each took an epoch, the one with the lower would run, below the other's
        fence, and all that it wrote would be void.
        """
        log = tenure.partition, log_key(delivery.ref)
        async with self._turns.setdefault(log, asyncio.Lock()):
            return await self._open(tenure, delivery)

    async def _open(self, tenure: Tenure, delivery: Delivery) -> tuple[OpenOutcome, int]:
        if tenure.leaving or await self._settlements.under_way(tenure, delivery) is not None:
            return OpenOutcome.LOST, 0
        if await self._goes_away(tenure, delivery):
            return OpenOutcome.LOST, 0
        outcome = await self._judge(tenure, delivery)
        if outcome is not OpenOutcome.RUN:
            return outcome, 0
        epoch = await self._epoch(tenure, delivery)
        if epoch is None or not tenure.holds(delivery):
            return OpenOutcome.LOST, 0
        # What a zombie wrote after the fence is void, but a terminal record may stand before it, or a move.
        if await self._goes_away(tenure, delivery):
            return OpenOutcome.LOST, 0
        outcome = tenure.judge(delivery)
        if outcome is not OpenOutcome.RUN:
            return outcome, 0
        tenure.start(delivery, epoch)
        tenure.log(delivery)
        return outcome, epoch

    async def _goes_away(self, tenure: Tenure, delivery: Delivery) -> bool:
        """Whether its log says that it moved: that is completed."""
        if not tenure.moved_away(delivery):
            return False
        await self._settlements.complete_move(tenure, delivery)
        return True

    async def _judge(self, tenure: Tenure, delivery: Delivery) -> OpenOutcome:
        outcome = tenure.judge(delivery)
        if outcome is not OpenOutcome.TWIN:
            return outcome
        await self._settlements.runner_under_way(tenure, delivery)
        return tenure.judge(delivery) if tenure.holds(delivery) else OpenOutcome.LOST

    async def _epoch(self, tenure: Tenure, delivery: Delivery) -> int | None:
        """The first time it is that of the partition: the fence already stands.

        Opened again, the request alone gets a new one, so that its neighbours keep theirs: committed first
        (only the rightful owner can, hence no two owners ever hold the same number), then a fence with the
        request's key, then the read, where the log holds more than we know. None: the commit was refused.
        """
        run, key = tenure.run_of(delivery), log_key(delivery.ref)
        if run is None and tenure.logs.departure(key) is None:  # one that came back may have been fenced then
            return tenure.epoch
        tenure.top_epoch += 1
        epoch = tenure.top_epoch
        if not await self._settlements.confirm(tenure):
            return None
        doubtful = tenure.in_doubt(key) or self._appender.is_writing(tenure, key)
        if run is not None:
            run.doubtful = True  # until all of it went well
        await self._appender.append([Entry(tenure, key, Fence(epoch))])
        if doubtful:
            await self._read_again(tenure, key, epoch)
        if run is not None:
            run.doubtful = False
        return epoch

    async def _read_again(self, tenure: Tenure, key: str, epoch: int) -> None:
        """The log up to the fence, behind appends whose fate is unknown."""
        events = TopicPartition(tenure.topics.events, tenure.number)
        start, end = tenure.logs.restore, tenure.logs.end
        read = PartitionLogs(start)
        for record in (await self._reader.read({events: Bounds(start, end)}))[events]:
            read.read(record)
        tenure.logs.replace(key, read.log(key))
