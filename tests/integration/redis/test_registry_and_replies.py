"""What stands in the registry and on reply topics, as anybody can see it; and dead letters of odd shapes."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from headrace.broker.contract import Append, Broker, DeadLetter, PassOn, Serves
from headrace.broker.errors import BrokerError
from headrace.broker.events import Delta
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.names import Names
from tests.integration.redis.steps import (
    BODY,
    LONG_MS,
    SHORT_MS,
    Run,
    entries,
    lines,
    publish,
    run,
    take,
    xadd,
)

LANES = (Lane.BATCH,)


async def test_a_silent_consumer_leaves_the_registry_and_writes_itself_anew_when_it_wakes(
    broker: Broker, client: Redis, names: Names
) -> None:
    session = await broker.consume(LANES, SHORT_MS)
    await session.announce(Serves(("model",), 4))
    await asyncio.sleep(SHORT_MS / 1000 * 1.3)
    assert await broker.consumers() == []
    assert await client.exists(names.registry) == 0
    await session.heartbeat()
    assert [entry.serves for entry in await broker.consumers()] == [Serves(("model",), 4)]
    await session.close()
    assert await client.exists(names.registry) == 0


async def test_an_entry_that_is_not_ours_is_left_out(broker: Broker, client: Redis, names: Names) -> None:
    session = await broker.consume(LANES, LONG_MS)
    await session.announce(Serves((), 0))
    for number, entry in enumerate(("nonsense", "99999999999999 1000 {}", "99999999999999 1000 [1")):
        await client.hset(names.registry, f"other-{number}", entry)
    assert [entry.name for entry in await broker.consumers()] == [session.name]


# ---------------------------------------------------------------------------------------------- chunks


async def streamed(broker: Broker, names: Names) -> Run:
    reply = f"{names.prefix}.reply.mine"
    await broker.publish([Message(BODY, "r", Lane.BATCH, reply_to=reply, stream=True, tenant="t")])
    attempt = await run(await broker.consume(LANES, LONG_MS))
    assert await attempt.start()
    return attempt


async def say(attempt: Run, seq: int, *chunks: bytes) -> bool:
    delta = Delta(attempt.epoch, seq, (seq,), "x")
    (written,) = await attempt.session.append([Append(attempt.delivery, attempt.epoch, [delta], chunks)])
    return written


async def test_a_chunk_is_an_entry_of_the_reply_topic_which_expires(
    broker: Broker, client: Redis, names: Names
) -> None:
    attempt = await streamed(broker, names)
    assert await say(attempt, 0, b"1", b"2")
    reply = f"{names.prefix}.reply.mine"
    assert 0 < await client.ttl(reply) <= 7 * 86_400
    assert await attempt.finish(b"line")
    first, second, line = await entries(client, reply)
    identity = {b"request-id": b"r", b"tenant": b"t"}
    assert first == {b"body": b"1", b"headrace-kind": b"chunk", **identity}
    assert second[b"body"] == b"2"
    assert line == {b"body": b"line", **identity}


async def test_a_refused_append_emits_no_chunk(broker: Broker, client: Redis, names: Names) -> None:
    attempt = await streamed(broker, names)
    again = await run(attempt.session, attempt.delivery)
    assert not await say(attempt, 0, b"late")
    assert await client.exists(f"{names.prefix}.reply.mine") == 0
    assert await say(again, 0, b"1")
    assert await lines(broker, 1, f"{names.prefix}.reply.mine") == [b"1"]


async def test_a_reply_topic_that_takes_no_entry_costs_its_chunks_only(
    broker: Broker, client: Redis, names: Names
) -> None:
    attempt = await streamed(broker, names)
    await client.set(f"{names.prefix}.reply.mine", "no stream")
    assert await say(attempt, 0, b"1")
    assert await attempt.finish(b"line")
    assert await lines(broker, 1) == [b"line"]
    assert await client.get(f"{names.prefix}.reply.mine") == b"no stream"


# ---------------------------------------------------------------------------------------- dead letters


async def test_a_letter_with_thousands_of_fields_still_shows_its_body(
    broker: Broker, client: Redis, names: Names
) -> None:
    fields: dict[str, str | bytes] = {"body": b"\xffx", **{f"h{number}": "x" for number in range(9000)}}
    await xadd(client, names.requests(Lane.BATCH), fields)
    assert await (await broker.consume(LANES, LONG_MS)).pull(1, 0) == []
    (letter,) = await broker.dead_letters()
    assert letter.body == b"\xffx"
    with pytest.raises(BrokerError, match="cannot be replayed"):
        await broker.replay(letter.position)
    assert await broker.discard([letter.position]) == 1


async def test_a_letter_whose_fields_are_not_utf8_is_shown_all_the_same(
    broker: Broker, client: Redis, names: Names
) -> None:
    await xadd(client, names.requests(Lane.BATCH), {b"body": b"x", b"tenant": b"\xff"})
    assert await (await broker.consume(LANES, LONG_MS)).pull(1, 0) == []
    (letter,) = await broker.dead_letters()
    assert letter.headers == {"tenant": "\ufffd"}


async def test_what_died_in_another_pool_is_replayed_where_it_was_first_published(broker: Broker) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    first = await run(session)
    assert await session.settle(first.delivery, first.epoch, PassOn("large"))
    large = await broker.consume(LANES, LONG_MS, pool="large")
    delivery = await take(large)
    assert await large.settle(delivery, 0, DeadLetter("poison"))
    (letter,) = await broker.dead_letters()
    assert letter.origin == first.delivery.position
    ref = await broker.replay(letter.position)
    assert ref is not None
    assert (await take(session)).ref == ref


async def test_two_who_replay_one_letter_make_one_request(broker: Broker) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    assert await session.settle(await take(session), 0, DeadLetter("poison"))
    (letter,) = await broker.dead_letters()
    await asyncio.gather(*(broker.dead_letter(letter.position) for _ in range(5)))  # connections for all
    refs = await asyncio.gather(*(broker.replay(letter.position) for _ in range(5)))
    (ref,) = [ref for ref in refs if ref is not None]
    assert await broker.known(ref)
    assert [delivery.ref for delivery in await session.pull(5, 0)] == [ref]
    assert await broker.known(RequestRef("r"))
