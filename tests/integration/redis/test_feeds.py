"""Feeds: whoever falls off, or arrives in the middle, re-reads the log and misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.errors import BrokerRefused, UnknownCursor
from headrace.broker.events import Delta, Logged
from headrace.broker.fold import fold
from headrace.broker.message import RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams import feeds
from headrace.broker.redis_streams.calls import PAGE
from headrace.broker.redis_streams.feeds import FEEDS, Tail, feed_number
from headrace.broker.redis_streams.settings import Retention
from tests.integration.redis.steps import LANES, LONG_MS, PATIENCE_S, Run, entries, publish, run


@pytest.fixture
async def short_feeds(valkey: EmbeddedValkey, names: Names) -> AsyncIterator[Broker]:
    """Feeds that forget all but the latest entries."""
    made = await connect(valkey.url, prefix=names.prefix, retention=Retention(feed_length=1))
    yield made
    await made.close()


async def started(broker: Broker, request_id: str = "r") -> Run:
    await publish(broker, request_id)
    attempt = await run(await broker.consume(LANES, LONG_MS))
    await attempt.start()
    return attempt


async def read_all(log: AsyncIterator[Logged]) -> list[Logged]:
    async with asyncio.timeout(PATIENCE_S):
        return [logged async for logged in log]


def text(log: list[Logged]) -> str:
    return fold(logged.event for logged in log).text


async def test_a_tail_gives_entries_in_order_and_lapses_when_it_is_full() -> None:
    tail = Tail("feed", "log", length=3)
    tail.put([(b"1-0", b"a"), (b"2-0", b"b")])
    assert await tail.take() == [(b"1-0", b"a"), (b"2-0", b"b")]
    tail.put([(b"3-0", b"c")] * 3)
    tail.put([(b"4-0", b"d")])
    tail.put([(b"5-0", b"e")])  # goes the way of all that came after the lapse: it stands in the log
    assert await tail.take() is None
    tail.put([(b"6-0", b"f")])
    assert await tail.take() == [(b"6-0", b"f")]


async def test_a_tail_passes_on_what_ended_the_feed_reader() -> None:
    tail = Tail("feed", "log")
    tail.fail(RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        await tail.take()


async def test_feed_entries_are_numbered_without_holes(broker: Broker, client: Redis, names: Names) -> None:
    attempt = await started(broker)
    for seq in range(5):
        await attempt.say(seq, "x")
    feed = names.feed(feed_number(names.log(RequestRef("r"))))
    ids = [entry_id for entry_id, _ in await client.xrange(feed) or []]
    assert ids == [b"%d-0" % number for number in range(1, 7)]


async def test_a_reader_that_stops_reading_re_reads_the_log(broker: Broker) -> None:
    """More than a tail holds arrives while the reader does not read."""
    attempt = await started(broker)
    log = aiter(broker.watch(RequestRef("r")))
    first = await anext(log)
    for seq in range(400):
        await attempt.say(seq, f"{seq} ")
    await attempt.finish()
    rest = await read_all(log)
    assert text([first, *rest]) == "".join(f"{seq} " for seq in range(400))
    assert len({logged.cursor for logged in rest}) == 401


async def test_a_feed_that_was_trimmed_before_it_was_read_costs_nothing(short_feeds: Broker) -> None:
    attempt = await started(short_feeds)
    watchers = [asyncio.create_task(read_all(short_feeds.watch(RequestRef("r")))) for _ in range(3)]
    await asyncio.sleep(0.05)
    batch = [Delta(attempt.epoch, seq, (seq,), f"{seq} ") for seq in range(1500)]
    for begin in range(0, 1500, 300):
        assert await attempt.append(*batch[begin : begin + 300])
    await attempt.finish()
    for watcher in watchers:
        assert text(await watcher) == "".join(f"{seq} " for seq in range(1500))


async def test_a_log_longer_than_a_page_is_read_and_opened_whole(broker: Broker) -> None:
    attempt = await started(broker)
    count = 2 * PAGE + 10
    await attempt.append(*(Delta(attempt.epoch, seq, (seq,), "x") for seq in range(count)))
    again = await run(attempt.session, attempt.delivery)
    assert again.state.next_seq == count
    await again.finish()
    assert len(text(await read_all(broker.watch(RequestRef("r"))))) == count


async def test_watchers_come_and_go_on_all_feeds_while_tokens_flow(broker: Broker) -> None:
    ids = [f"r{number}" for number in range(3 * FEEDS)]
    await publish(broker, *ids)
    session = await broker.consume(LANES, LONG_MS)
    waiting = [asyncio.create_task(read_all(broker.watch(RequestRef(i)))) for i in ids]
    attempts = [await run(session, delivery) for delivery in await session.pull(len(ids), 0)]
    for attempt in attempts:
        await attempt.start()
    for seq in range(4):
        passing = [aiter(broker.watch(RequestRef(i))) for i in ids[seq::7]]
        for log in passing:
            await anext(log)
        for attempt in attempts:
            await attempt.say(seq, f"{seq} ")
        for log in passing:
            await log.aclose()  # type: ignore[attr-defined]  # a generator, as adapters' iterators are
    for attempt in attempts:
        await attempt.finish()
    for watcher in waiting:
        assert text(await watcher) == "0 1 2 3 "


async def test_a_server_that_breaks_off_blocking_reads_is_asked_again(broker: Broker, client: Redis) -> None:
    """As one does that becomes a replica, in a failover."""
    attempt = await started(broker)
    log, lines = aiter(broker.watch(RequestRef("r"))), aiter(broker.results())
    await anext(log)
    next_event, next_line = (asyncio.ensure_future(anext(each)) for each in (log, lines))
    broken = 0
    while broken < 2:
        await asyncio.sleep(0.01)
        reading = [each["id"] for each in await client.client_list() if each["cmd"] == "xread"]
        broken += sum([await client.client_unblock(int(number), error=True) for number in reading])
    await attempt.say(0, "x")
    await attempt.finish()
    async with asyncio.timeout(PATIENCE_S):
        await next_event
        await next_line


async def test_a_token_reaches_a_waiting_reader_promptly(broker: Broker) -> None:
    attempt = await started(broker)
    log = aiter(broker.watch(RequestRef("r")))
    await anext(log)
    for seq in range(20):
        await attempt.say(seq, "x")
        async with asyncio.timeout(1.0):
            await anext(log)


@pytest.mark.parametrize("cursor", ["1-1", "0-0", "nonsense", "9" * 30, "-", "+", "$"])
async def test_a_cursor_that_names_no_event_is_refused(broker: Broker, cursor: str) -> None:
    await started(broker)
    with pytest.raises(UnknownCursor):
        await anext(aiter(broker.watch(RequestRef("r"), cursor)))


async def test_watchers_of_a_closed_broker_end(valkey: EmbeddedValkey, names: Names) -> None:
    broker = await connect(valkey.url, prefix=names.prefix)
    watcher = asyncio.create_task(read_all(broker.watch(RequestRef("never"))))
    await asyncio.sleep(0.05)
    await broker.close()
    with pytest.raises(Exception, match="closed"):
        await watcher


async def test_readers_of_a_closed_broker_end_and_calls_are_refused(
    valkey: EmbeddedValkey, names: Names
) -> None:
    broker = await connect(valkey.url, prefix=names.prefix)
    session = await broker.consume(LANES, LONG_MS)
    results = asyncio.create_task(_exhaust(broker.results()))
    cancellations = asyncio.create_task(_exhaust(session.cancellations()))
    await asyncio.sleep(0.05)
    await broker.close()
    async with asyncio.timeout(5):
        await results
        with pytest.raises(BrokerRefused, match="closed by this process"):
            await cancellations
    with pytest.raises(BrokerRefused):
        await broker.stats()


async def _exhaust(iterator: AsyncIterator[object]) -> None:
    async for _ in iterator:
        pass


async def test_a_log_with_foreign_bytes_is_an_error_and_not_silence(
    broker: Broker, client: Redis, names: Names
) -> None:
    await client.xadd(names.log(RequestRef("r")), {"event": b"\xff\xff"})
    with pytest.raises(Exception, match="no event"):
        await anext(aiter(broker.watch(RequestRef("r"))))
    assert len(await entries(client, names.log(RequestRef("r")))) == 1


async def test_a_reader_that_outlives_the_log_is_told_so(broker: Broker, client: Redis, names: Names) -> None:
    attempt = await started(broker)
    log = aiter(broker.watch(RequestRef("r")))
    await anext(log)
    await attempt.append(
        *(Delta(attempt.epoch, seq, (seq,), "x") for seq in range(300))
    )  # no tail holds so many
    await attempt.finish()
    await client.delete(names.log(RequestRef("r")))  # as the end of its retention would
    with pytest.raises(UnknownCursor, match="is gone"):
        await read_all(log)


async def test_readers_go_on_when_the_feeds_were_deleted(
    broker: Broker, client: Redis, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BLOCK_MS", 100)
    attempt = await started(broker)
    for seq in range(5):
        await attempt.say(seq, "x")
    log = aiter(broker.watch(RequestRef("r")))
    for _ in range(6):
        await anext(log)
    await client.delete(*(names.feed(number) for number in range(FEEDS)))
    await attempt.say(5, "y")
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(log)).event == Delta(attempt.epoch, 5, (5,), "y")
