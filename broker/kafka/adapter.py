"""The queue contract over Apache Kafka.

    publish ──► requests.<lane> ──► group ──► session (session.py)
                     ▲                           │ append (events), settle (one transaction)
                     └── retry.<delay>.<lane> ◄──┤
    watch   ◄── events.<lane> (logs.py) ◄────────┤
    results ◄── results, reply.* ◄───────────────┘
    cancel, pause, registry ──► control ──► all sessions

Nobody can look up a key on Kafka: an id that is published twice shows as a twin, or a conflict, when it is
opened. What a connection consists of stands in connection.py; this file puts the contract on top of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from headrace.broker.bounds import LONGEST_LEASE_S
from headrace.broker.contract import (
    CancelResult,
    ConsumerEntry,
    ConsumerSession,
    DeadLettered,
    LaneDepth,
    Published,
    PublishResult,
    QueueStats,
    ResultLine,
    Stray,
)
from headrace.broker.errors import BrokerError
from headrace.broker.events import Logged
from headrace.broker.ids import read_request_id
from headrace.broker.kafka.codec import Record, encode_message, size_of
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.control import Report
from headrace.broker.kafka.failures import too_large
from headrace.broker.kafka.figures import Figures
from headrace.broker.kafka.homes import Homes
from headrace.broker.kafka.letters import DeadLetters
from headrace.broker.kafka.logs import LogReader
from headrace.broker.kafka.partition_reader import PartitionReader
from headrace.broker.kafka.places import LogPlace, Position, java_partition
from headrace.broker.kafka.results import Results
from headrace.broker.kafka.session import KafkaSession
from headrace.broker.kafka.settings import KafkaSettings
from headrace.broker.kafka.tails import Tails
from headrace.broker.message import DEFAULT_POOL, Lane, Message, RequestRef
from headrace.broker.names import POOL, Names


class KafkaBroker:
    """See `Broker`. `warnings` tells what the cluster promises less than it could."""

    def __init__(self, settings: KafkaSettings, names: Names) -> None:
        self.warnings: list[str] = []
        self._settings, self._names = settings, names
        self._at = Connection.make(settings, names)
        margin_ms = settings.reader_margin_ms
        self._tails = Tails(self._at.clients, self._at.history, self._at.clock, names)
        self._homes = Homes(
            self._at.topics, self._at.history, names, margin_ms, settings.log_ms, self._at.clock.now_ms
        )
        reader = PartitionReader(self._tails, self._at.history, names, margin_ms)
        self._results = Results(self._at.clients, self._at.topics, names)
        self._letters = DeadLetters(self._at)
        self._figures = Figures(self._at, self._letters)
        self._logs = LogReader(self._homes, self._tails, reader, names, self._figures.is_finished)
        self._sessions: list[KafkaSession] = []
        self._turns = itertools.count(random.randrange(1 << 14))

    async def start(self) -> None:
        """Looks whether the cluster can be used, and makes the topics that all need; fills `warnings`."""
        await self._at.topics.shared()
        self.warnings = await self._at.topics.weaknesses()

    # -------------------------------------------------------------------------------------- publishing

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """On BrokerUnavailable some of the messages may stand on the queue; sending all of them again is safe
        for those with an id, whose copies are twins."""
        records = [await self._record(message) for message in messages]
        for topic in {message.reply_to for message in messages if message.reply_to is not None}:
            await self._at.topics.reply(topic)
        answers = await self._at.publisher.send(records)
        return [
            self._published(message, answer.partition, answer.offset, answer.timestamp)
            for message, answer in zip(messages, answers, strict=True)
        ]

    async def _record(self, message: Message) -> Record:
        check_pool(message.pool)
        # Looked at before any topic is made: what cannot be published leaves nothing behind.
        record = encode_message(message, self._names, 0)
        if size_of(record) > self._settings.max_message_bytes:
            raise too_large()
        lane = await self._at.topics.lane(message.lane, message.pool)
        return record.at(self._partition(message, lane.partitions))

    def _partition(self, message: Message, count: int) -> int:
        """An id of ours says it; for another one it is where Java's clients put its key."""
        if message.request_id is None:
            return next(self._turns) % count
        own = read_request_id(message.request_id)
        return own.place % count if own else java_partition(message.request_id.encode(), count)

    def _published(self, message: Message, partition: int, offset: int, at_ms: int) -> Published:
        place = LogPlace(message.lane, message.pool, partition)
        request_id = message.request_id or Position(place, offset).text(self._names)
        ref = RequestRef(request_id, message.tenant)
        self._homes.published(ref, place, offset, at_ms)
        return Published(ref)

    def place(self, lane: Lane, pool: str = DEFAULT_POOL) -> int:
        """In turn, out of a few that this process reads: all consumers get work from it, and it does not have
        to read what all the others publish."""
        topics = self._at.topics.seen(lane, pool)
        count = topics.partitions if topics is not None else self._settings.partitions
        read = [p.partition for p in self._tails.read_now() if (p.lane, p.pool) == (lane, pool)]
        turn = next(self._turns)
        if len(read) >= min(count, self._settings.read_partitions):
            return sorted(read)[turn % len(read)]
        return turn % count

    async def cancel(self, ref: RequestRef) -> CancelResult:
        home = await self._homes.find(ref)
        if home is not None and (home.ended or (await self._logs.fold(ref, home)).ended):
            return CancelResult.ENDED
        await self._at.control.mark(ref)
        return CancelResult.UNKNOWN if home is None else CancelResult.MARKED

    # ----------------------------------------------------------------------------------------- reading

    def watch(self, ref: RequestRef, cursor: str = "") -> AsyncIterator[Logged]:
        return self._logs.watch(ref, cursor)

    async def ping(self) -> None:
        await self._at.clients.admin(lambda admin: admin.describe_cluster())

    async def known(self, ref: RequestRef) -> bool:
        return await self._homes.find(ref) is not None

    def results(self, topic: str | None = None, cursor: str = "") -> AsyncIterator[ResultLine]:
        return self._results.read(topic, cursor)

    async def trim_results(self, topic: str, cursor: str) -> None:
        await self._results.trim(topic, cursor)

    # ------------------------------------------------------------------------------------ dead letters

    async def dead_letters(self, limit: int = 100) -> list[DeadLettered]:
        return await self._letters.latest(limit)

    def each_dead_letter(self) -> AsyncGenerator[DeadLettered, None]:
        return self._letters.each()

    async def dead_letter(self, position: str) -> DeadLettered | None:
        return await self._letters.one(position)

    async def replay(self, position: str) -> RequestRef | None:
        """Two steps, since request topics know no transactions: who dies between them leaves the letter."""
        message = await self._letters.again(position)
        if message is None:
            return None
        (result,) = await self.publish([message])
        await self._letters.discard([position])
        return result.ref

    async def discard(self, positions: Sequence[str]) -> int:
        return await self._letters.discard(positions)

    # -------------------------------------------------------------------------------------- looking on

    async def stats(self, pool: str = DEFAULT_POOL) -> QueueStats:
        check_pool(pool)
        return await self._figures.stats(pool, self._own_reports())

    async def consumers(self) -> list[ConsumerEntry]:
        return await self._figures.consumers(self._own_reports())

    async def depths(self, pool: str = DEFAULT_POOL) -> dict[Lane, LaneDepth]:
        return await self._figures.depths(pool, self._own_reports())

    async def pools(self) -> list[str]:
        others = {lane.pool for lane in await self._at.topics.existing()} - {DEFAULT_POOL}
        return [DEFAULT_POOL, *sorted(others)]

    async def strays(self) -> list[Stray]:
        return await self._figures.strays()

    async def pause(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        check_pool(pool)
        await self._at.control.pause(lane, pool)

    async def resume(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        check_pool(pool)
        await self._at.control.resume(lane, pool)

    # ---------------------------------------------------------------------------------------- sessions

    async def consume(
        self, lanes: Sequence[Lane], lease_ms: int, *, pool: str = DEFAULT_POOL
    ) -> ConsumerSession:
        if not lanes or not 0 < lease_ms <= LONGEST_LEASE_S * 1000:
            raise BrokerError(
                "a consumer needs at least one lane, and a lease above 0 ms and of a day at most"
            )
        check_pool(pool)
        session = KafkaSession(self._at, tuple(dict.fromkeys(lanes)), pool, lease_ms)
        await session.start()
        self._sessions = [old for old in self._sessions if not old.closed] + [session]
        return session

    def _own_reports(self) -> dict[str, Report]:
        return {session.name: session.report() for session in self._sessions if not session.closed}

    async def close(self) -> None:
        self._results.close()
        await self._tails.close()
        await self._figures.close()
        await self._at.close()


def check_pool(pool: str) -> None:
    """Raises BrokerError for what is no name of a pool."""
    if pool != DEFAULT_POOL and not POOL.fullmatch(pool):
        raise BrokerError(f"{pool[:80]!r} is no name of a pool: use letters, digits, `-` and `_`")
