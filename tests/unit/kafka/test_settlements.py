"""No record is completed whose request has no end in its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from headrace.broker.contract import Done
from headrace.broker.errors import BrokerUnavailable, TooLarge
from headrace.broker.events import Fence, Finished
from headrace.broker.kafka.appender import Appender, Entry
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.items import Item
from headrace.broker.kafka.places import log_key
from headrace.broker.kafka.settings import KafkaSettings
from headrace.broker.kafka.settle import Settler
from headrace.broker.kafka.settlements import Settlements
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS, request

EPOCH = 5
DONE = Done(Finished(EPOCH, "stop"), b"line")


class Broker:
    """Acknowledges all that is appended, and commits all that is settled."""

    def __init__(self) -> None:
        self.committed = list[int | None]()
        self._offset = 10

    async def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._offset += 1
            entry.tenure.logs.append(entry.key, entry.event, self._offset, entry.beside)

    def under_way(self, tenure: object, offset: int) -> None: ...

    async def add(self, item: Item) -> bool:
        self.committed.append(item.offset)
        item.done.set_result(True)
        return True


def tenure() -> Tenure:
    logs = PartitionLogs()
    logs.fence(EPOCH, 0)
    made = Tenure(TOPICS, 0, Names("x"), EPOCH, Committed(), logs, 1, "member")
    made.fetched([request(0, "a")])
    return made


def settlements(broker: Broker) -> Settlements:
    connection: Any = type("Connection", (), {"names": Names("x"), "settings": KafkaSettings(("x",))})()
    return Settlements(connection, cast(Appender, broker), cast(Settler, broker))


async def test_an_end_completes_its_record() -> None:
    held, broker = tenure(), Broker()
    delivery = held.take()
    held.start(delivery, EPOCH)
    assert await settlements(broker).settle(held, delivery, EPOCH, DONE)
    assert broker.committed == [0]


async def test_an_end_below_a_higher_fence_does_not_and_is_to_be_opened_again() -> None:
    held, broker = tenure(), Broker()
    delivery = held.take()
    held.start(delivery, EPOCH)
    held.logs.append(log_key(delivery.ref), Fence(EPOCH + 1), 1)
    with pytest.raises(BrokerUnavailable, match="open it again"):
        await settlements(broker).settle(held, delivery, EPOCH, DONE)
    assert broker.committed == []
    run = held.run_of(delivery)
    assert run is not None
    assert run.doubtful


class Narrow(Broker):
    """Its results take no line: an operator chose so."""

    async def add(self, item: Item) -> bool:
        if item.records:
            raise TooLarge("larger than the topic takes")
        return await super().add(item)


async def test_an_end_whose_line_its_topic_never_takes_completes_its_record() -> None:
    """Else every owner would be refused in the same way, one after the other."""
    held, broker = tenure(), Narrow()
    delivery = held.take()
    held.start(delivery, EPOCH)
    assert await settlements(broker).settle(held, delivery, EPOCH, DONE)
    assert broker.committed == [0]
