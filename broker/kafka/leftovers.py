"""Transactions that a dead owner left open.

Where one holds offsets, its successor cannot even read them and ends it at once (`restore`). One that had
not come that far keeps nobody from taking over; but readers of result lines would stand before it until the
broker ends it. So whoever takes a partition over looks after the transaction of the last owner, beside its
work: one that stays the same for longer than any takes is ended. Should that owner be alive after all, it
finds its producer fenced, makes a new one and settles again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

import kafka.errors as ke
from kafka import KafkaAdminClient, KafkaProducer

from headrace.broker.errors import BrokerError, BrokerUnavailable
from headrace.broker.kafka.clients import Clients, abandon
from headrace.broker.kafka.transactions import TRANSACTION_MS

logger = logging.getLogger(__name__)

OPEN_S = 0.5  # then an open transaction is taken for a dead owner's
_AGAIN_S = 0.1
_ONGOING = "Ongoing"


class Leftovers:
    """One task for each name that is looked after."""

    def __init__(self, clients: Clients, open_s: float = OPEN_S) -> None:
        self._clients, self._open_s = clients, open_s
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by transactional id

    def look_after(self, names: Iterable[str]) -> None:
        """Transactional ids of former owners. Returns at once."""
        for name in names:
            if name not in self._tasks:
                self._tasks[name] = task = asyncio.create_task(self._end_if_left(name), name=name)
                task.add_done_callback(self._forget)

    async def end(self, name: str) -> None:
        """Ends what is open under that name, and fences whoever still works under it."""
        logger.info("ending the open transaction of %s, which seems to be dead", name)
        await self._clients.run(_end_transaction, self._clients.producer_options(transactional_id=name))

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task.get_name(), None)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_if_left(self, name: str) -> None:
        try:
            async with asyncio.timeout(TRANSACTION_MS / 1000):
                while True:
                    if not await self._left(name):
                        return
                    await asyncio.sleep(_AGAIN_S)
        except (BrokerError, TimeoutError) as error:  # the broker will end it: only later
            logger.debug("the transaction of %s is not looked after: %s", name, error)

    async def _left(self, name: str) -> bool:
        """Whether it has to be looked at again."""
        try:
            began = await self._began(name)
            if began is None:
                return False
            await asyncio.sleep(self._open_s)
            if await self._began(name) == began:
                await self.end(name)
        except BrokerUnavailable:
            return True
        return False

    async def _began(self, name: str) -> tuple[int, int, int] | None:
        """What tells the open transaction of that name from others; None while none is open."""
        return await self._clients.admin(lambda admin: _began(admin, name))


def _began(admin: KafkaAdminClient, name: str) -> tuple[int, int, int] | None:
    try:
        found = admin.describe_transactions([name])[name]
    except (ke.TransactionalIdNotFoundError, ke.UnsupportedVersionError):
        return None
    if found.state.value != _ONGOING:
        return None
    return found.producer_id, found.producer_epoch, found.transaction_start_time_ms


def _end_transaction(options: Mapping[str, object]) -> None:
    producer = KafkaProducer(**options)
    try:
        producer.init_transactions()
    finally:
        abandon(producer)
