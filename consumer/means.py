"""What all requests of one consumer share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.broker.contract import ConsumerSession
from headrace.broker.message import Delivery, Lane
from headrace.broker.names import Names
from headrace.broker.queue_policy import QueuePolicy
from headrace.consumer.broker_clock import BrokerClock
from headrace.consumer.neighbours import Neighbours
from headrace.consumer.outage import Outage
from headrace.consumer.placement import Placement
from headrace.consumer.prepare import Preparer
from headrace.consumer.publisher import Publisher
from headrace.consumer.reading_room import ReadingRoom
from headrace.consumer.retries import Retries
from headrace.gpu_engine.api import EngineInfo

ANY_TIME = QueuePolicy()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say. `quarantine_after`: deaths after which a request is tried alone;
    `poison_deaths`: deaths alone that convict it."""

    names: Names
    pool: str
    queue: Mapping[Lane, QueuePolicy]
    quarantine_after: int
    poison_deaths: int

    def policy_of(self, lane: Lane) -> QueuePolicy:
        return self.queue.get(lane, ANY_TIME)

    def published_here(self, delivery: Delivery) -> bool:
        """Whether it was published to our pool: its position stays that of the first publish."""
        home = self.names.requests(delivery.message.lane, self.pool)
        return delivery.position.startswith(f"{home}/")


@dataclass(frozen=True, slots=True)
class Means:
    """`model`: the name that clients see; `info`: what the engine says of model, tokenizer and adapters;
    `clock`: monotonic seconds."""

    session: ConsumerSession
    preparer: Preparer
    room: ReadingRoom
    placement: Placement
    publisher: Publisher
    neighbours: Neighbours
    retries: Retries
    outage: Outage
    rules: Rules
    model: str
    info: EngineInfo
    clock: Callable[[], float]
    broker_clock: BrokerClock
