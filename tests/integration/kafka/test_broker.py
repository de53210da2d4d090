"""The broker's half of the Kafka adapter on a real node: topics, logs and where they are found, dead letters.

Events are written here as a session would write them, but without one.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from msgspec import structs

from headrace.broker.connect import connect
from headrace.broker.contract import CancelResult, Stray
from headrace.broker.errors import BrokerError, BrokerRefused, UnknownCursor
from headrace.broker.events import Delta, Event, Fence, Finished, Logged, Moved, Started
from headrace.broker.fold import fold
from headrace.broker.ids import new_request_id, read_request_id
from headrace.broker.kafka.adapter import KafkaBroker
from headrace.broker.kafka.address import parse_address
from headrace.broker.kafka.codec import Record, dead_letter_record, result_record
from headrace.broker.kafka.commits import Committed, encode_metadata
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.places import (
    LogPlace,
    Position,
    java_partition,
    librdkafka_partition,
    log_key,
)
from headrace.broker.kafka.topics import group_of
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.names import Names

PATIENCE_S = 15
OPTIONS = {"partitions": "4", "delays": "500ms 10m", "ring_bytes": str(1 << 16), "read_partitions": "2"}
BODY = b'{"body": {"prompt": "Hello"}}'


class Site:
    """One installation on the node, and a hand that writes into its topics."""

    def __init__(self, url: str, broker: KafkaBroker, prefix: str) -> None:
        self.url, self.broker, self.names = url, broker, Names(prefix)
        self.connection = Connection.make(parse_address(url, OPTIONS), self.names)
        self.others: list[KafkaBroker] = []

    async def another(self, **options: str) -> KafkaBroker:
        broker = await connect(self.url, prefix=self.names.prefix, options={**OPTIONS, **options})
        assert isinstance(broker, KafkaBroker)
        self.others.append(broker)
        return broker

    async def write(self, place: LogPlace, ref: RequestRef | None, *events: Event) -> None:
        """Appends events of a request, or fences of a partition."""
        key = None if ref is None else log_key(ref)
        topic = self.names.events(place.lane, place.pool)
        records = [encode_event_record(topic, place.partition, key, event) for event in events]
        await self.connection.publisher.send(records)

    async def close(self) -> None:
        await self.connection.close()
        for broker in [self.broker, *self.others]:
            await broker.close()


async def new_site(kafka_url: str) -> Site:
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    broker = await connect(kafka_url, prefix=prefix, options=OPTIONS)
    assert isinstance(broker, KafkaBroker)
    return Site(kafka_url, broker, prefix)


@pytest.fixture
async def site(kafka_url: str) -> AsyncIterator[Site]:
    made = await new_site(kafka_url)
    yield made
    await made.close()


def started(epoch: int, kept: int = 0) -> Started:
    return Started(epoch, "me", "here", 7, b"hash", "model", kept)


def deltas(epoch: int, *texts: str, first: int = 0) -> list[Delta]:
    return [Delta(epoch, first + i, (ord(text[0]),), text) for i, text in enumerate(texts)]


async def read(broker: KafkaBroker, ref: RequestRef, cursor: str = "") -> list[Logged]:
    """A log that ends."""
    async with asyncio.timeout(PATIENCE_S):
        return [logged async for logged in broker.watch(ref, cursor)]


def text_of(entries: Sequence[Logged]) -> str:
    return fold(entry.event for entry in entries).text


async def commit(site: Site, place: LogPlace, committed: Committed) -> None:
    """As the consumers of the default pool would."""
    partition = TopicPartition(site.names.requests(place.lane, place.pool), place.partition)
    offsets = {partition: OffsetAndMetadata(committed.base, encode_metadata(committed), -1)}
    thread = await site.connection.clients.consumer(group_id=group_of(site.names))
    await thread.call(lambda consumer: consumer.commit(offsets))
    await thread.close()


async def published(site: Site, message: Message) -> tuple[RequestRef, LogPlace]:
    """Publishes, and looks where an id of ours says that it lies."""
    (result,) = await site.broker.publish([message])
    own = read_request_id(result.ref.request_id)
    assert own is not None
    return result.ref, LogPlace(message.lane, message.pool, own.place)


# --------------------------------------------------------------------------------------------- publishing


async def test_an_id_of_ours_stands_in_the_partition_that_it_names(site: Site) -> None:
    ids = [new_request_id(Lane.BATCH, place) for place in range(4)]
    await site.broker.publish([Message(BODY, i, Lane.BATCH) for i in ids])
    connection = site.connection
    lane = await connection.topics.lane(Lane.BATCH)
    parts = [TopicPartition(lane.requests, i) for i in range(4)]
    records = await connection.history.all(await connection.history.bounds(parts))
    assert {r.partition: r.key.decode() for r in records} == dict(enumerate(ids))


async def test_a_process_spreads_its_requests_over_the_few_partitions_that_it_reads(site: Site) -> None:
    assert {site.broker.place(Lane.BATCH) for _ in range(40)} == {0, 1, 2, 3}
    readers = []
    for number in (1, 3):
        request_id = new_request_id(Lane.BATCH, number)
        ref, place = await published(site, Message(BODY, request_id, Lane.BATCH))
        await site.write(place, ref, started(1))
        readers.append(site.broker.watch(ref))
        await anext(readers[-1])
    assert {site.broker.place(Lane.BATCH) for _ in range(40)} == {1, 3}


async def test_a_message_that_no_topic_takes_is_refused_before_anything_is_sent(site: Site) -> None:
    small = await site.another(max_message_bytes=str(1 << 16))
    with pytest.raises(BrokerError, match="claim check"):
        await small.publish([Message(BODY, "good"), Message(b"x" * (1 << 16), "large")])
    assert not await small.known(RequestRef("good"))


async def test_an_auto_created_topic_is_refused_with_what_is_wrong_with_it(site: Site) -> None:
    topic = site.names.requests(Lane.STANDARD)
    made = {topic: {"num_partitions": 4, "replication_factor": 1}}
    await site.connection.clients.admin(lambda admin: admin.create_topics(made))
    with pytest.raises(BrokerRefused, match=rf"{topic}.*retention\.ms=604800000 and needs retention\.ms=-1"):
        await site.broker.publish([Message(BODY, "r")])


async def test_topics_that_nobody_reads_are_named_with_what_they_hold(site: Site) -> None:
    await site.broker.publish([Message(BODY, pool="gpu")])
    assert await site.broker.strays() == []
    base = site.names.request_base
    made = {
        name: {"num_partitions": 2, "replication_factor": 1} for name in (f"{base}.foo", f"{base}.a.b.batch")
    }
    await site.connection.clients.admin(lambda admin: admin.create_topics(made))
    await site.connection.publisher.send([Record(f"{base}.foo", BODY, partition=i) for i in (0, 1, 1)])
    assert await site.broker.strays() == [Stray(f"{base}.a.b.batch", 0), Stray(f"{base}.foo", 3)]


async def test_topics_of_another_width_than_their_lane_are_refused(site: Site) -> None:
    await site.broker.publish([Message(BODY, "r", Lane.BATCH)])
    topic = site.names.events(Lane.BATCH)
    await site.connection.clients.admin(lambda admin: admin.create_partitions({topic: 5}))
    with pytest.raises(BrokerRefused, match="5 partitions and needs 4"):
        await (await site.another()).publish([Message(BODY, "r", Lane.BATCH)])


async def test_the_width_of_a_lane_is_that_of_its_topic_whatever_the_settings_say(site: Site) -> None:
    await site.broker.publish([Message(BODY, "r", Lane.BATCH)])
    wider = await site.another(partitions="9")
    await wider.publish([Message(BODY, new_request_id(Lane.BATCH, 7), Lane.BATCH)])
    assert {wider.place(Lane.BATCH) for _ in range(40)} == {0, 1, 2, 3}


# ------------------------------------------------------------------------------------------------- logs


async def test_fences_before_a_request_are_shown_as_the_one_in_force_to_every_reader(site: Site) -> None:
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH))
    live = asyncio.create_task(read(site.broker, ref))
    await site.write(place, None, Fence(1), Fence(3), Fence(2))
    await site.write(place, ref, started(2), *deltas(2, "Y"))  # that owner has slept, and does not know
    await site.write(place, ref, started(3), *deltas(3, "a"))
    await site.write(place, None, Fence(3), Fence(4))
    await site.write(place, ref, started(4, kept=1), *deltas(3, "X", first=1), *deltas(4, "b", first=1))
    await site.write(place, ref, Finished(4, "stop"))
    whole = await live
    assert [type(entry.event) for entry in whole[:3]] == [Fence, Started, Delta]
    assert whole[0].event == Fence(3)
    assert text_of(whole) == "ab"
    other = await site.another()
    assert await read(other, ref) == whole
    for entry in whole:
        assert await read(other, ref, entry.cursor) == whole


async def test_a_reader_that_comes_to_a_partition_already_read_starts_from_the_ring(site: Site) -> None:
    first, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH))
    await site.write(place, None, Fence(5), Fence(4))
    await site.write(place, first, started(5))
    watcher = site.broker.watch(first)
    assert (await anext(watcher)).event == Fence(5)
    await asyncio.sleep(1.1)  # by so much the times of ids may be wrong
    ref, _ = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH))
    await site.write(
        place, ref, started(4), *deltas(4, "X"), started(5), *deltas(5, "a"), Finished(5, "stop")
    )
    whole = await read(site.broker, ref)
    assert whole[0].event == Fence(5), "the fence in force stands below the ring"
    assert text_of(whole) == "a"
    assert await read(await site.another(), ref) == whole


async def test_a_reader_that_falls_off_the_ring_reads_on_in_the_topic(site: Site) -> None:
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 0), Lane.BATCH))
    await site.write(place, ref, started(0))
    slow = site.broker.watch(ref)
    await anext(slow)
    others, _ = await published(site, Message(BODY, new_request_id(Lane.BATCH, 0), Lane.BATCH))
    texts = [chr(97 + i % 26) for i in range(600)]
    for i in range(0, 600, 100):
        await site.write(place, ref, *deltas(0, *texts[i : i + 100], first=i))
        await site.write(place, others, *deltas(0, *("noise" * 40 for _ in range(100))))
    await site.write(place, ref, Finished(0, "stop"))
    await asyncio.sleep(0.3)
    async with asyncio.timeout(PATIENCE_S):
        rest = [entry async for entry in slow]
    assert text_of(rest) == "".join(texts)


async def test_a_log_is_followed_into_the_pool_that_it_was_passed_to(site: Site) -> None:
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 3), Lane.BATCH))
    await site.connection.topics.lane(Lane.BATCH, "gpu")
    there = LogPlace(Lane.BATCH, "gpu", 3)
    live = asyncio.create_task(read(site.broker, ref))
    await site.write(place, None, Fence(7))
    await site.write(place, ref, Moved(7, "gpu", there.text))
    await site.write(there, None, Fence(1), Fence(2))
    await site.write(place, ref, started(7), *deltas(7, "X"))
    await site.write(there, ref, started(2), *deltas(2, "a", "b"), Finished(2, "stop"))
    whole = await live
    assert text_of(whole) == "ab"
    assert await read(await site.another(), ref, whole[-1].cursor) == whole
    assert await site.broker.cancel(ref) is CancelResult.ENDED


async def test_a_log_that_comes_back_is_read_on_where_it_was_left(site: Site) -> None:
    ref, here = await published(site, Message(BODY, new_request_id(Lane.BATCH, 3), Lane.BATCH))
    await site.connection.topics.lane(Lane.BATCH, "gpu")
    there = LogPlace(Lane.BATCH, "gpu", 3)
    await site.write(here, None, Fence(7))
    await site.write(here, ref, Moved(7, "gpu", there.text))
    await site.write(there, None, Fence(2))
    await site.write(there, ref, Moved(2, "", here.text))
    await site.write(here, ref, started(6), *deltas(6, "X"))
    await site.write(here, ref, started(7), *deltas(7, "a"), Finished(7, "stop"))
    whole = await read(site.broker, ref)
    assert text_of(whole) == "a"
    other = await site.another()
    assert await other.cancel(ref) is CancelResult.ENDED
    assert await read(other, ref) == whole


@pytest.mark.parametrize("by_hash", [True, False])
async def test_the_log_of_a_foreign_id_is_found_wherever_its_publisher_put_it(
    site: Site, by_hash: bool
) -> None:
    lane = await site.connection.topics.lane(Lane.BATCH)
    ref = RequestRef("theirs")
    crc = librdkafka_partition(b"theirs", 4)
    place = LogPlace(Lane.BATCH, "", crc if by_hash else (crc + 1) % 4)
    waiting = asyncio.create_task(read(site.broker, ref))
    await asyncio.sleep(0.1)
    producer = await site.connection.clients.producer()
    headers = [("request-id", b"theirs")]
    await site.connection.clients.acknowledged(
        [producer.send(lane.requests, BODY, headers=headers, partition=place.partition)]
    )
    await site.connection.clients.close_producer(producer)
    assert await (await site.another()).known(ref)
    assert not await site.broker.known(RequestRef("theirs", "somebody else"))
    await site.write(place, ref, started(0), *deltas(0, "a"), Finished(0, "stop"))
    assert text_of(await waiting) == "a"
    assert text_of(await read(await site.another(), ref)) == "a"


@pytest.mark.parametrize("of_ours", [True, False])
@pytest.mark.parametrize("ended", [True, False])
async def test_who_publishes_it_again_elsewhere_is_shown_what_began_long_before(
    site: Site, of_ours: bool, ended: bool
) -> None:
    message = Message(BODY, new_request_id(Lane.BATCH, 2) if of_ours else "theirs", Lane.BATCH)
    [first] = await site.broker.publish([message])
    place = LogPlace(Lane.BATCH, "", 2 if of_ours else java_partition(b"theirs", 4))
    await site.write(place, first.ref, started(0), *deltas(0, "a", "b"))
    if ended:
        await site.write(place, first.ref, Finished(0, "stop"))
    await asyncio.sleep(1.5)
    other = await site.another(reader_margin_ms="100")
    [again] = await other.publish([message])
    reading = asyncio.create_task(read(other, again.ref))
    await commit(site, place, Committed(base=2))  # the copy is a twin: its consumer says nothing of it
    if not ended:
        await asyncio.sleep(0.5)
        await site.write(place, first.ref, *deltas(0, "c", first=2), Finished(0, "stop"))
    assert text_of(await reading) == ("ab" if ended else "abc")


async def test_who_publishes_a_new_request_under_an_id_of_his_own_is_shown_it(site: Site) -> None:
    [result] = await site.broker.publish([Message(BODY, "theirs", Lane.BATCH)])
    place = LogPlace(Lane.BATCH, "", java_partition(b"theirs", 4))
    reading = asyncio.create_task(read(site.broker, result.ref))
    own = structs.replace(started(0), delivery=Position(place, 0).text(site.names))
    await site.write(place, result.ref, own, *deltas(0, "a"), Finished(0, "stop"))
    assert text_of(await reading) == "a"


@pytest.mark.parametrize("wrong_by_ms", [-2 * 60 * 60 * 1000, 2 * 60 * 1000])
async def test_an_id_whose_maker_has_a_wrong_clock_is_found_by_every_connection(
    site: Site, wrong_by_ms: int
) -> None:
    made_ms = time.time_ns() // 1_000_000 + wrong_by_ms
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2, made_ms), Lane.BATCH))
    await site.write(place, ref, started(0), *deltas(0, "a"), Finished(0, "stop"))
    other = await site.another()
    assert await other.known(ref)
    assert text_of(await read(other, ref)) == "a"


async def test_a_cursor_of_another_log_is_unknown(site: Site) -> None:
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 1), Lane.BATCH))
    other, _ = await published(site, Message(BODY, new_request_id(Lane.BATCH, 1), Lane.BATCH))
    for one in (ref, other):
        await site.write(place, one, started(0), Finished(0, "stop"))
    theirs = (await read(site.broker, other))[0].cursor
    for cursor in (theirs, "batch/1/999", "batch/9/0", "gpu.batch/1/0", "batch/1", "/1/0"):
        with pytest.raises(UnknownCursor):
            await read(site.broker, ref, cursor)


async def test_bytes_of_somebody_else_in_an_events_topic_end_nobodys_log(site: Site) -> None:
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 1), Lane.BATCH))
    producer = await site.connection.clients.producer()
    topic = site.names.events(Lane.BATCH)
    for key in (log_key(ref).encode(), b"\xff", b"x"):
        producer.send(topic, b"\xff\xff", key=key, partition=1)
    await site.connection.clients.close_producer(producer)
    await site.write(place, ref, started(0), *deltas(0, "a"), Finished(0, "stop"))
    assert text_of(await read(site.broker, ref)) == "a"


# -------------------------------------------------------------------------------- results, dead letters


def in_transactions(site: Site, lines: Sequence[tuple[str, bool]]) -> None:
    """One transaction a line, some of them aborted."""
    options = site.connection.clients.producer_options(transactional_id=f"{site.names.prefix}-t")
    producer = KafkaProducer(**options)
    producer.init_transactions()
    for text, commits in lines:
        producer.begin_transaction()
        record = result_record(Message(BODY), RequestRef(text), text.encode(), site.names)
        letter = dead_letter_record(
            _Buried(text), f"{site.names.requests(Lane.BATCH)}/0/0", "why", site.names
        )
        for one in (record, letter):
            producer.send(one.topic, one.value, key=one.key, headers=one.headers)
        (producer.commit_transaction if commits else producer.abort_transaction)()
    producer.close(timeout=5)


class _Buried:
    def __init__(self, text: str) -> None:
        self.value, self.key, self.headers = text.encode(), None, [("request-id", text.encode())]


async def test_lines_of_aborted_transactions_are_never_seen(site: Site) -> None:
    await asyncio.to_thread(in_transactions, site, [("a", True), ("b", False), ("c", True)])
    lines = site.broker.results()
    async with asyncio.timeout(PATIENCE_S):
        assert [(await anext(lines)).line for _ in range(2)] == [b"a", b"c"]
    assert [letter.body for letter in await site.broker.dead_letters()] == [b"a", b"c"]
    assert (await site.broker.stats()).dead_letters == 2


async def test_the_latest_dead_letters_are_found_among_marks_and_discarded_ones(site: Site) -> None:
    await asyncio.to_thread(in_transactions, site, [(f"{i}", i % 3 > 0) for i in range(12)])
    letters = await site.broker.dead_letters()
    bodies = [letter.body for letter in letters]
    assert bodies == [b"1", b"2", b"4", b"5", b"7", b"8", b"10", b"11"]
    assert [letter.body for letter in await site.broker.dead_letters(2)] == bodies[-2:]
    gone = [letters[0].position, letters[1].position, letters[4].position]
    assert await site.broker.discard([*gone, gone[0], "nowhere/0/1"]) == 3
    other = await site.another()
    assert [letter.body for letter in await other.dead_letters()] == [b"4", b"5", b"8", b"10", b"11"]
    assert await other.dead_letter(gone[2]) is None
    left = await other.dead_letters()
    assert await other.discard([letter.position for letter in left]) == 5
    state = await site.connection.control.read_to_end()
    assert not state.discarded, "what is really deleted needs no marks"
    assert await site.broker.dead_letters() == []


async def test_a_letter_is_replayed_as_a_new_request_that_names_the_old_one(site: Site) -> None:
    await site.connection.topics.lane(Lane.BATCH)
    await asyncio.to_thread(in_transactions, site, [("old", True)])
    (letter,) = await site.broker.dead_letters()
    ref = await site.broker.replay(letter.position)
    assert ref is not None
    assert ref.request_id != "old"
    assert await site.broker.replay(letter.position) is None
    lane = await site.connection.topics.lane(Lane.BATCH)
    history = site.connection.history
    (record,) = await history.all(await history.bounds([TopicPartition(lane.requests, 0)]))
    headers = {name: value.decode() for name, value in record.headers}
    assert record.value == b"old"
    assert (headers["request-id"], headers["replay-of"]) == (ref.request_id, "old")


# ------------------------------------------------------------------------------------------ looking on


async def test_figures_follow_the_commits_with_their_bitmaps(site: Site) -> None:
    await site.broker.publish([Message(BODY, new_request_id(Lane.BATCH, 1), Lane.BATCH) for _ in range(10)])
    await commit(site, LogPlace(Lane.BATCH, "", 1), Committed(base=2, beyond=frozenset({4, 5})))
    lane = (await site.broker.stats()).lanes[Lane.BATCH]
    assert (lane.waiting, lane.leased) == (6, 0)
    assert 0 < lane.oldest_ms < 60_000


async def test_a_pause_is_durable_and_known_to_every_connection(site: Site) -> None:
    await site.broker.pause(Lane.BATCH, "gpu")
    other = await site.another()
    assert (await other.stats("gpu")).lanes[Lane.BATCH].paused
    assert not (await other.stats()).lanes[Lane.BATCH].paused
    await other.resume(Lane.BATCH, "gpu")
    assert not (await site.broker.stats("gpu")).lanes[Lane.BATCH].paused


async def test_a_name_that_is_no_pool_is_refused_everywhere(site: Site) -> None:
    for call in (
        site.broker.stats("a.b"),
        site.broker.pause(Lane.BATCH, "ü"),
        site.broker.publish([Message(BODY, pool="a b")]),
        site.broker.consume([Lane.BATCH], 1_000, pool="/"),
    ):
        with pytest.raises(BrokerError, match="no name of a pool"):
            await call
