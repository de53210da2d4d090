"""What a connection consists of: its broker and all of its sessions share it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.clock import BrokerClock
from headrace.broker.kafka.control import Control
from headrace.broker.kafka.history import History
from headrace.broker.kafka.publisher import Publisher
from headrace.broker.kafka.settings import KafkaSettings
from headrace.broker.kafka.topics import Topics
from headrace.broker.names import Names


@dataclass(frozen=True, slots=True)
class Connection:
    """`history` reads topics that no transaction writes to; `committed` the others, as `read_committed`."""

    settings: KafkaSettings
    names: Names
    clients: Clients
    clock: BrokerClock
    publisher: Publisher
    topics: Topics
    control: Control
    history: History
    committed: History

    @classmethod
    def make(cls, settings: KafkaSettings, names: Names) -> Connection:
        """Connects to nothing yet."""
        clients, clock = Clients(settings), BrokerClock()
        publisher = Publisher(clients, clock)
        return cls(
            settings=settings,
            names=names,
            clients=clients,
            clock=clock,
            publisher=publisher,
            topics=Topics(clients, names),
            control=Control(clients, publisher, clock, names),
            history=History(clients),
            committed=History(clients, committed=True),
        )

    async def close(self) -> None:
        await self.control.close()
        await self.history.close()
        await self.committed.close()
        await self.publisher.close()
        await self.clients.close()
