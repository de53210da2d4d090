"""Steps of one session that overlap or fail in their middle, on a real node; `tests/unit/kafka` has more."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.structs import TopicPartition

from headrace.broker.connect import connect
from headrace.broker.contract import OpenOutcome, PassOn, Retry
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Delta
from headrace.broker.kafka import group_reader
from headrace.broker.kafka.claims import claim_of
from headrace.broker.kafka.ended import TOLD_AFTER
from headrace.broker.kafka.group_reader import Bounds
from headrace.broker.kafka.places import java_partition
from headrace.broker.kafka.transactions import Outcome
from headrace.broker.message import Lane, Message
from tests.contract.kafka_case import OPTIONS, KafkaCase, kafka_case
from tests.contract.steps import (
    BODY,
    Writer,
    publish,
    publish_one,
    read_results,
    settle_unopened,
    shown,
    start_writer,
    take,
    take_all,
)

pytestmark = pytest.mark.slow


@pytest.fixture
async def kafka(kafka_url: str) -> AsyncIterator[KafkaCase]:
    made = await kafka_case(kafka_url, f"test-{uuid.uuid4().hex[:12]}")
    yield made
    await made.close()


async def finish(case: KafkaCase, session: Any) -> None:
    """What a consumer does with the next delivery."""
    _, delivery = await take(case, session)
    opened = await session.open(delivery)
    if opened.outcome is OpenOutcome.RUN:
        writer = Writer(session, delivery, opened.epoch, opened.state)
        await writer.start()
        assert await writer.finish()
    else:
        assert await settle_unopened(session, delivery, opened)


async def test_a_retry_whose_caller_was_cancelled_is_run_again(kafka: KafkaCase) -> None:
    ref = await publish_one(kafka.broker)
    session: Any = await kafka.consume()
    writer = await start_writer(kafka, session)
    transactions = session._settler._parts.transactions
    commit, began = transactions.commit, asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(*args: Any) -> Any:
        loop.call_soon_threadsafe(began.set)
        return commit(*args)

    transactions.commit = told
    settling = asyncio.create_task(session.settle(writer.delivery, writer.epoch, Retry(1, "busy")))
    await began.wait()
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)
    await finish(kafka, session)
    assert [result.line for result in await read_results(kafka)] == [b"line"]
    assert (await shown(kafka.broker, ref)).ended


async def test_a_move_whose_answer_was_lost(kafka: KafkaCase) -> None:
    await publish_one(kafka.broker)
    session: Any = await kafka.consume()
    _, delivery = await take(kafka, session)
    opened = await session.open(delivery)
    there = await kafka.consume(pool="large")
    publisher = session._appender._publisher

    class Lossy:
        async def send(self, records: Any) -> Any:
            await publisher.send(records)
            session._appender._publisher = publisher
            raise BrokerUnavailable("the answer was lost")

    session._appender._publisher = Lossy()
    with pytest.raises(BrokerUnavailable):
        await session.settle(delivery, opened.epoch, PassOn("large"))
    again = await session.open(delivery)
    if again.outcome is not OpenOutcome.LOST:
        assert await settle_unopened(session, delivery, again)
    await finish(kafka, there)
    assert [result.line for result in await read_results(kafka)] == [b"line"]


async def test_a_transaction_of_unknown_fate_while_a_neighbour_is_opened_again(kafka: KafkaCase) -> None:
    await publish(kafka.broker, Message(BODY, "r"), Message(BODY, "r2"))
    session: Any = await kafka.consume()
    taken = await take_all(kafka, [session], 2)
    writers = [await Writer.open(session, delivery) for _, delivery in taken]
    for writer in writers:
        await writer.start()
    tenures = {claim_of(writer.delivery).tenure for writer in writers}
    transactions = session._settler._parts.transactions
    commit, began, go = transactions.commit, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def unknown(*args: Any) -> Any:
        transactions.commit = commit
        outcome = commit(*args)
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return Outcome.UNKNOWN if outcome is Outcome.COMMITTED else outcome

    transactions.commit = unknown
    finishing = asyncio.create_task(writers[0].finish())
    await began.wait()
    if len(tenures) == 1:
        again = asyncio.create_task(session.open(writers[1].delivery))
    else:
        next(t for t in tenures if t is claim_of(writers[0].delivery).tenure).top_epoch += 1
        again = asyncio.create_task(asyncio.sleep(0))
    await asyncio.sleep(0.05)
    go.set()
    assert await finishing
    await again
    assert [result.line for result in await read_results(kafka)] == [b"line"]


async def test_a_bad_message_that_no_topic_takes_again_does_not_stop_its_neighbours(kafka: KafkaCase) -> None:
    """Compressed it fits; a dead letter, which is not, does not."""
    await kafka._make_topics(Lane.STANDARD)

    def send() -> None:
        producer = KafkaProducer(
            bootstrap_servers=kafka._servers(),
            compression_type="gzip",
            max_request_size=64 << 20,
        )
        headers = [("deadline", b"soon"), ("request-id", b"raw")]
        producer.send(kafka.names.requests(Lane.STANDARD), b"x" * (9 << 20), key=b"raw", headers=headers).get(
            20
        )
        producer.close(timeout=5)

    await asyncio.to_thread(send)
    await kafka.publish_raw(Lane.STANDARD, {"body": BODY, "request-id": b"raw"})
    session: Any = await kafka.consume()
    pulled: Any = None
    for _ in range(20):
        pulled = pulled or await session.pull(1, 200)
    assert pulled


async def test_readers_of_a_request_whose_move_was_repeated_and_that_came_back(kafka: KafkaCase) -> None:
    ref = await publish_one(kafka.broker)
    session: Any = await kafka.consume()
    _, delivery = await take(kafka, session)
    opened = await session.open(delivery)
    settlements = session._settlements
    confirm = settlements.confirm

    async def unavailable(tenure: Any) -> bool:
        settlements.confirm = confirm
        raise BrokerUnavailable("the coordinator is away")

    settlements.confirm = unavailable
    with pytest.raises(BrokerUnavailable):
        await session.settle(delivery, opened.epoch, PassOn("large"))
    assert await session.settle(delivery, opened.epoch, PassOn("large"))
    there: Any = await kafka.consume(pool="large")
    _, moved = await take(kafka, there)
    at_large = await there.open(moved)
    assert await there.settle(moved, at_large.epoch, PassOn(""))
    await finish(kafka, session)
    assert (await shown(kafka.broker, ref)).ended


async def test_one_that_comes_back_while_its_departure_is_being_completed(kafka: KafkaCase) -> None:
    ref = await publish_one(kafka.broker)
    session: Any = await kafka.consume()
    there: Any = await kafka.consume(pool="large")
    _, delivery = await take(kafka, session)
    opened = await session.open(delivery)
    transactions = session._settler._parts.transactions
    commit, seen, go = transactions.commit, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(records: Any, offsets: Any, membership: Any) -> Any:
        if any(o.offset > claim_of(delivery).offset for o in offsets.values()):
            loop.call_soon_threadsafe(seen.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return commit(records, offsets, membership)

    transactions.commit = slowly
    passing = asyncio.create_task(session.settle(delivery, opened.epoch, PassOn("large")))
    await seen.wait()  # it stands there, and is not completed here
    _, moved = await take(kafka, there)
    at_large = await there.open(moved)
    assert await there.settle(moved, at_large.epoch, PassOn(""))
    _, back = await take(kafka, session)
    opening = asyncio.create_task(session.open(back))
    await asyncio.sleep(0.1)
    go.set()
    again = await opening
    assert await passing
    if again.outcome is OpenOutcome.RUN:
        writer = Writer(session, back, again.epoch, again.state)
        assert await writer.start()
        assert await writer.finish()
    else:
        assert await settle_unopened(session, back, again)
    assert [result.line for result in await read_results(kafka)] == [b"line"]
    assert (await shown(kafka.broker, ref)).ended


async def test_a_twin_that_waits_while_owners_change_gives_no_second_line(kafka: KafkaCase) -> None:
    others = [
        name for n in range(20) if java_partition((name := f"o{n}").encode(), 2) == java_partition(b"r", 2)
    ]
    for request_id in (b"r", b"r", others[0].encode()):
        await kafka.publish_raw(Lane.STANDARD, {"body": BODY, "request-id": request_id})
    first: Any = await kafka.consume()
    writer = await start_writer(kafka, first)
    assert await writer.finish()
    await kafka.leave(first)
    second: Any = await kafka.consume()
    _, (_, other) = await take_all(kafka, [second], 2)  # the twin waits for its turn
    neighbour = await Writer.open(second, other)
    await neighbour.start()
    await neighbour.append(*(Delta(neighbour.epoch, n, (1,), "x") for n in range(TOLD_AFTER + 10)))
    assert await neighbour.finish()
    await kafka.leave(second)
    third: Any = await kafka.consume()
    await finish(kafka, third)
    lines = [result.headers["request-id"] for result in await read_results(kafka)]
    assert sorted(lines) == sorted(["r", others[0]])


async def test_a_pool_that_has_fewer_partitions_is_followed_by_readers(kafka: KafkaCase) -> None:
    small = await connect(kafka._url, prefix=kafka.names.prefix, options={**OPTIONS, "partitions": "1"})
    kafka._brokers.append(small)
    there: Any = await small.consume([Lane.STANDARD], kafka.lease_ms, pool="large")
    kafka._alive.append(there)
    kafka._sessions.append(there)
    request_id = next(f"r{n}" for n in range(20) if java_partition(f"r{n}".encode(), 2) == 1)
    ref = await publish_one(kafka.broker, request_id)
    session: Any = await kafka.consume()
    _, delivery = await take(kafka, session)
    opened = await session.open(delivery)
    assert await session.settle(delivery, opened.epoch, PassOn("large"))
    await finish(kafka, there)
    assert (await shown(kafka.broker, ref)).ended


async def test_a_restore_that_took_too_long_does_not_spoil_the_next_one(
    kafka: KafkaCase, monkeypatch: Any
) -> None:
    session: Any = await kafka.consume()
    events = [TopicPartition(kafka.names.events(Lane.STANDARD, ""), n) for n in range(2)]
    reader, bounds = session._reader, await session._reader.bounds(events)
    assert all(b.start < b.end for b in bounds.values()), "the fences"
    monkeypatch.setattr(group_reader, "_READ_S", 1.0)
    with pytest.raises(BrokerUnavailable):
        # As of a node that does not answer for one of them.
        await reader.read({events[0]: bounds[events[0]], events[1]: Bounds(bounds[events[1]].start, 1 << 30)})
    read = await reader.read(bounds)
    assert all(read[partition] for partition in events)
