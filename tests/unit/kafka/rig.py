"""One session over one partition of a lane: real opening, appending and settling, over a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Fence
from headrace.broker.fold import Fold
from headrace.broker.kafka.appender import Appender
from headrace.broker.kafka.burials import Burials
from headrace.broker.kafka.codec import Record, size_of
from headrace.broker.kafka.commits import Committed, decode_metadata
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.failures import too_large
from headrace.broker.kafka.group_reader import Bounds
from headrace.broker.kafka.opening import Opening
from headrace.broker.kafka.places import log_key
from headrace.broker.kafka.session import KafkaSession
from headrace.broker.kafka.settings import KafkaSettings
from headrace.broker.kafka.settle import Settler, SettlerParts
from headrace.broker.kafka.settlements import Settlements
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.kafka.transactions import Outcome
from headrace.broker.message import Delivery, Lane
from headrace.broker.names import Names
from headrace.broker.wire import decode_event
from tests.unit.kafka.records import TOPICS

EPOCH = 5


def stored(record: Record, offset: int) -> Any:
    return SimpleNamespace(
        topic=record.topic,
        partition=record.partition,
        offset=offset,
        timestamp=1_000 + offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
    )


@dataclass
class Publisher:
    """Stores what it is given. `lost`: how many of the next answers do not arrive, though all is stored."""

    events: list[Any] = field(default_factory=list)
    sent: list[Record] = field(default_factory=list)
    lost: int = 0
    most_bytes: int = 8 << 20
    turns: list[asyncio.Event] = field(default_factory=list)  # what the next sends wait for, before storing
    answers: list[asyncio.Event] = field(default_factory=list)  # and what their answers wait for, after it

    async def send(self, records: Sequence[Record]) -> list[Any]:
        if any(size_of(record) > self.most_bytes for record in records):
            raise too_large()
        if self.turns:
            await self.turns.pop(0).wait()
        answers = []
        for record in records:
            if record.topic == TOPICS.events:
                answers.append(stored(record, len(self.events)))
                self.events.append(answers[-1])
            else:
                self.sent.append(record)
                answers.append(stored(record, len(self.sent)))
        await asyncio.sleep(0)
        if self.answers:
            await self.answers.pop(0).wait()
        if self.lost:
            self.lost -= 1
            raise BrokerUnavailable("no answer")
        return answers


@dataclass
class Transactions:
    """Commits all that it is given, once `open` is set. `outcomes`: of the next ones."""

    emitted: list[Record] = field(default_factory=list)
    held: dict[TopicPartition, Committed] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def commit(self, records: Sequence[Record], offsets: Any, membership: Any) -> Outcome:
        self.emitted += records
        self.held |= {p: decode_metadata(o.offset, o.metadata) for p, o in offsets.items()}
        return self.outcomes.pop(0) if self.outcomes else Outcome.COMMITTED

    def ready(self) -> None: ...

    def discard(self) -> None: ...


class Rig:
    """`stalled`: no transaction begins (the session is on its way back into its group). `known`: what the
    group holds can be read."""

    def __init__(self) -> None:
        self.publisher, self.transactions = Publisher(), Transactions()
        self.stalled = False
        self.known = asyncio.Event()
        self.known.set()
        names = Names("x")
        fence = encode_event_record(TOPICS.events, 0, None, Fence(EPOCH))
        self.publisher.events.append(stored(fence, 0))
        logs = PartitionLogs()
        logs.fence(EPOCH, 0)
        self.tenure = Tenure(TOPICS, 0, names, EPOCH, Committed(), logs, 0, "member")
        settings = KafkaSettings(servers=("x",))
        at: Any = SimpleNamespace(
            names=names,
            settings=settings,
            publisher=self.publisher,
            clock=SimpleNamespace(now_ms=lambda: 1_000),
            topics=self,
            control=SimpleNamespace(marked_ms=lambda ref: None),
        )
        self.settler = Settler(
            SettlerParts(
                transactions=cast(Any, self.transactions),
                transactional_id="tx",
                servers="kafka://x",
                membership=lambda: None if self.stalled else SimpleNamespace(member_id="member"),
                committed=self._committed,
                publish=self.publisher.send,
                fatal=lambda error: None,
                topics_again=self.again,
            )
        )
        self.appender = Appender(cast(Any, self.publisher), 1 << 20)
        self.settlements = Settlements(at, self.appender, self.settler)
        self.burials = Burials(self.settler, names)
        session: Any = KafkaSession(at, [Lane.STANDARD], "", 1_000)
        session._holdings = SimpleNamespace(failure=None, notify=lambda: None)
        session._appender, session._settlements = self.appender, self.settlements
        session._opening = Opening(cast(Any, self), self.appender, self.settlements)
        self.session: KafkaSession = session

    async def __aenter__(self) -> Rig:
        self.settler.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.settler.close()

    # ------------------------------------------------------------------ what the parts ask of a cluster

    async def lane(self, lane: Lane, pool: str = "") -> LaneTopics:
        base = f"x.{{}}.{pool}.{lane.value}" if pool else f"x.{{}}.{lane.value}"
        return LaneTopics(lane, pool, base.format("requests"), base.format("events"), (), 1)

    async def reply_to(self, topic: str) -> None: ...

    def doubt(self, topics: Iterable[str]) -> None: ...

    async def again(self, topics: Sequence[str]) -> dict[str, str]:
        return {}

    async def changed(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def read(self, stretches: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, list[Any]]:
        return {p: self.publisher.events[s.start : s.end] for p, s in stretches.items()}

    async def _committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        await self.known.wait()
        return {p: self.transactions.held[p] for p in partitions if p in self.transactions.held}

    # ------------------------------------------------------------------------------- what tests look at

    def take(self, *records: Any) -> list[Delivery]:
        self.tenure.fetched(records)
        return [self.tenure.take() for _ in records]

    def copy(self, record: Record, offset: int) -> Any:
        """A forwarded record as it comes back to the lane."""
        made = stored(record, offset)
        made.topic, made.partition = TOPICS.requests, 0
        return made

    def lines(self) -> list[bytes | None]:
        return [r.value for r in self.transactions.emitted if r.topic == "x.results"]

    def delayed(self) -> list[Record]:
        return [r for r in self.transactions.emitted if r.topic in TOPICS.delayed]

    def readers(self, delivery: Delivery) -> Fold:
        """What readers make of the log."""
        return self._fold(delivery, 0)

    def successor(self, delivery: Delivery) -> Fold:
        """What who takes over now reads."""
        self.tenure.commit()
        read = PartitionLogs(self.tenure.logs.restore)
        for record in self.publisher.events[read.restore :]:
            read.read(record)
        return read.log(log_key(delivery.ref)).fold

    def _fold(self, delivery: Delivery, start: int) -> Fold:
        state, key = Fold(), log_key(delivery.ref).encode()
        for record in self.publisher.events[start:]:
            if record.key in (key, None):
                state.read(decode_event(record.value))
        return state
