"""Any Redis client is a producer: what a stock XADD may hold, and what becomes of what it may not."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from headrace.broker.contract import Broker, CancelResult, Done, OpenOutcome, Retry
from headrace.broker.errors import BrokerError, ReplyNotAllowed
from headrace.broker.message import JSON, PROTOBUF, Lane, Message, RequestRef
from headrace.broker.names import Names
from tests.integration.redis.steps import (
    BODY,
    LONG_MS,
    PATIENCE_S,
    SHORT_MS,
    entries,
    lines,
    publish,
    run,
    take,
    xadd,
)


async def test_a_body_alone_is_a_request(broker: Broker, client: Redis, names: Names) -> None:
    stream = names.requests(Lane.BATCH)
    entry_id = await xadd(client, stream, {"body": BODY})
    attempt = await run(await broker.consume([Lane.BATCH], LONG_MS))
    delivery = attempt.delivery
    assert delivery.message == Message(BODY, None, Lane.BATCH)
    assert delivery.position == f"{stream}/{entry_id}" == delivery.ref.request_id
    assert delivery.published_ms == int(entry_id.partition("-")[0])
    assert await attempt.finish(b"answer")
    (fields,) = await entries(client, names.results)
    assert fields == {b"body": b"answer", b"request-id": delivery.position.encode()}
    assert await client.xlen(stream) == 0


async def test_all_fields_are_understood_and_unknown_ones_reach_the_result(
    broker: Broker, client: Redis, names: Names
) -> None:
    reply = f"{names.prefix}.reply.mine"
    fields: dict[str, str | bytes] = {
        "body": BODY,
        "request-id": "äöü",
        "tenant": "t",
        "lane": "interactive",  # not believed: it stands in the batch lane
        "deadline": "1790000000000",
        "reply-to": reply,
        "stream": "True",
        "content-type": PROTOBUF,
        "traceparent": "00-1-2-3",
        "x-count": "7",
    }
    await xadd(client, names.requests(Lane.BATCH), fields)
    attempt = await run(await broker.consume([Lane.BATCH], LONG_MS))
    message = attempt.delivery.message
    assert (message.lane, message.deadline_ms, message.stream) == (Lane.BATCH, 1790000000000, True)
    assert (message.content_type, message.reply_to) == (PROTOBUF, reply)
    assert message.headers == {"traceparent": "00-1-2-3", "x-count": "7"}
    assert attempt.delivery.ref == RequestRef("äöü", "t")
    await attempt.finish(b"answer")
    (result,) = await entries(client, reply)
    travelled = {b"traceparent": b"00-1-2-3", b"x-count": b"7"}
    identity = {b"request-id": "äöü".encode(), b"tenant": b"t"}
    assert result == {b"body": b"answer", **travelled, **identity}
    assert await client.xlen(names.results) == 0
    assert 0 < await client.ttl(reply) <= 7 * 86_400


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"text": "x"}, "no field `body`"),
        ({"body": "x", "deadline": "tomorrow"}, "'tomorrow', which is no unix time"),
        ({"body": "x", "deadline": "1.5e3"}, "is no unix time"),
        ({"body": "x", "request-id": ""}, "request id has 0 characters"),
        ({"body": "x", "request-id": "r" * 513}, "request id has 513 characters"),
        ({"body": "x", "stream": "maybe"}, "`true` or `false` is meant"),
        ({"body": "x", "reply-to": "other.key"}, "reply topic 'other.key' is not allowed"),
        ({"body": "x", "reply-to": "{prefix}.results"}, "is not allowed"),
        ({"body": "x", "tenant": b"\xff\xfe"}, "not UTF-8"),
        ({"body": "x", b"\xff": "x"}, "not UTF-8"),
        ({"body": "x", "headrace-position": "nonsense"}, "reserved for retries"),
        ({"body": "x", "headrace-position": "{prefix}.results/1-1"}, "reserved for retries"),
        ({"body": "x", **{f"h{number}": "x" for number in range(300)}}, "301 fields are more than"),
        ({"body": "x", **{f"h{number}": "x" for number in range(9000)}}, "9001 fields are more than"),
    ],
)
async def test_what_is_no_message_goes_to_the_dead_letters_and_its_neighbours_go_on(
    broker: Broker, client: Redis, names: Names, fields: dict[str | bytes, str | bytes], reason: str
) -> None:
    stream = names.requests(Lane.BATCH)
    sent = {_bytes(name, names): _bytes(value, names) for name, value in fields.items()}
    await xadd(client, stream, {"body": "before"})
    entry_id = await xadd(client, stream, sent)
    await xadd(client, stream, {"body": "after"})
    session = await broker.consume([Lane.BATCH], LONG_MS)
    assert [delivery.message.body for delivery in await session.pull(10, 0)] == [b"before", b"after"]
    (dead,) = await broker.dead_letters()
    assert reason in dead.reason
    assert dead.origin == f"{stream}/{entry_id}"
    assert dead.position.startswith(f"{names.dead_letters}/")
    (kept,) = await entries(client, names.dead_letters)
    sent.pop(b"headrace-position", None)  # ours: a redrive must not carry it along
    if len(sent) < 1000:
        assert {name: kept[name] for name in sent} == sent
    assert await client.xlen(stream) == 2
    assert (await broker.stats()).lanes[Lane.BATCH].leased == 2


def _bytes(text: str | bytes, names: Names) -> bytes:
    return text if isinstance(text, bytes) else text.replace("{prefix}", names.prefix).encode()


async def test_a_pull_that_finds_only_dead_letters_goes_on_waiting(
    broker: Broker, client: Redis, names: Names
) -> None:
    stream = names.requests(Lane.BATCH)
    for _ in range(5):
        await xadd(client, stream, {"text": "x"})
    await xadd(client, stream, {"body": "good"})
    session = await broker.consume([Lane.BATCH], LONG_MS)
    assert (await take(session)).message.body == b"good"
    assert len(await broker.dead_letters()) == 5
    assert [letter.origin for letter in await broker.dead_letters(2)] == [
        letter.origin for letter in (await broker.dead_letters())[3:]
    ]


async def test_a_field_called_like_ours_does_not_confuse_the_dead_letters(
    broker: Broker, client: Redis, names: Names
) -> None:
    fields = {"reason": "mine", "origin": "mine too", "body": "x", "deadline": "no"}
    await xadd(client, names.requests(Lane.BATCH), fields)
    await (await broker.consume([Lane.BATCH], LONG_MS)).pull(1, 0)
    (dead,) = await broker.dead_letters()
    assert "unix time" in dead.reason
    assert dead.origin.startswith(names.requests(Lane.BATCH))
    assert dead.body == b"x"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message(BODY, reply_to="elsewhere"), ReplyNotAllowed),
        (Message(BODY, request_id=""), BrokerError),
        (Message(BODY, deadline_ms=-1), BrokerError),
        (Message(BODY, headers={"deadline": "1"}), BrokerError),
        (Message(BODY, headers={"x": "\ud800"}), BrokerError),
        (Message(BODY, headers={f"h{number}": "" for number in range(300)}), BrokerError),
    ],
)
async def test_a_message_that_could_not_be_read_back_is_refused_before_anything_is_sent(
    broker: Broker, client: Redis, names: Names, message: Message, error: type[BrokerError]
) -> None:
    with pytest.raises(error):
        await broker.publish([Message(BODY), message])
    assert await client.keys(f"{names.prefix}*") == []


async def test_a_large_publish_arrives_whole_and_in_order(broker: Broker) -> None:
    bodies = [b"%d" % number for number in range(700)]
    await broker.publish([Message(body, lane=Lane.BATCH, content_type=JSON) for body in bodies])
    session = await broker.consume([Lane.BATCH], LONG_MS)
    assert [delivery.message.body for delivery in await session.pull(1000, 0)] == bodies


async def test_only_reply_topics_can_be_read_or_trimmed_and_trimming_keeps_what_is_behind(
    broker: Broker, client: Redis, names: Names
) -> None:
    topic = f"{names.prefix}.reply.mine"
    for number in range(3):
        await xadd(client, topic, {"body": b"%d" % number})
    results = aiter(broker.results(topic))
    cursors = [(await anext(results)).cursor for _ in range(3)]
    await broker.trim_results(topic, cursors[1])
    assert list(await lines(broker, 1, topic)) == [b"2"]
    with pytest.raises(ReplyNotAllowed):
        await broker.trim_results(names.results, cursors[0])
    with pytest.raises(ReplyNotAllowed):
        await anext(aiter(broker.results(names.control)))
    with pytest.raises(BrokerError, match="names no line"):
        await anext(aiter(broker.results(topic, "nonsense")))


@pytest.mark.parametrize("spoilt", ["no stream", "ids used up"])
async def test_an_answer_whose_reply_topic_takes_no_entry_goes_to_the_results_of_all(
    broker: Broker, client: Redis, names: Names, spoilt: str
) -> None:
    reply = f"{names.prefix}.reply.mine"
    if spoilt == "no stream":
        await client.set(reply, "x")
    else:
        await client.xadd(reply, {"body": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
    fields: dict[str, str | bytes] = {"body": BODY, "reply-to": reply}
    await xadd(client, names.requests(Lane.BATCH), fields)
    attempt = await run(await broker.consume([Lane.BATCH], LONG_MS))
    assert await attempt.finish(b"answer")
    assert await lines(broker, 1) == [b"answer"]
    assert await client.xlen(names.requests(Lane.BATCH)) == 0


async def test_a_control_entry_that_is_not_ours_stops_no_cancellation(
    broker: Broker, client: Redis, names: Names
) -> None:
    (ref,) = await publish(broker, "r")
    session = await broker.consume([Lane.BATCH], LONG_MS)
    await xadd(client, names.control, {"cancel": b"\xff", "tenant": b"\xfe"})
    await xadd(client, names.control, {"other": "x"})
    await broker.cancel(ref)
    async with asyncio.timeout(PATIENCE_S):
        async for cancelled in session.cancellations():
            if cancelled == ref:
                break


async def test_a_cancel_counts_where_entry_ids_run_ahead_of_the_clock(
    broker: Broker, client: Redis, names: Names
) -> None:
    """As they do when the server's clock was set back, or somebody chose an id."""
    await client.xadd(names.requests(Lane.BATCH), {"body": "x"}, id="9999999999999-1")
    (ref,) = await publish(broker, "r")
    assert await broker.cancel(ref) is CancelResult.MARKED
    session = await broker.consume([Lane.BATCH], LONG_MS)
    _, delivery = await session.pull(2, 0)
    assert (await session.open(delivery)).cancelled


async def test_a_cancel_older_than_a_raw_entry_never_counts_however_often_it_is_opened(
    broker: Broker, client: Redis, names: Names
) -> None:
    assert await broker.cancel(RequestRef("r")) is CancelResult.UNKNOWN
    await asyncio.sleep(0.002)
    fields: dict[str, str | bytes] = {"body": BODY, "request-id": "r"}
    await xadd(client, names.requests(Lane.BATCH), fields)
    session = await broker.consume([Lane.BATCH], LONG_MS)
    delivery = await take(session)
    for _ in range(2):
        assert not (await session.open(delivery)).cancelled


async def test_copies_of_a_retried_entry_are_twins_whoever_takes_them(
    broker: Broker, client: Redis, names: Names
) -> None:
    """A retried entry carries its position; somebody sends all its fields again."""
    stream = names.requests(Lane.BATCH)
    await xadd(client, stream, {"body": BODY})
    one, other = [await broker.consume([Lane.BATCH], SHORT_MS) for _ in range(2)]
    first = await run(one)
    assert await one.settle(first.delivery, first.epoch, Retry(0, "for its position"))
    again = await run(one)
    (fields,) = await entries(client, stream)
    await xadd(client, stream, fields)
    assert await one.pull(1, 0) == []  # else one of the two would be dropped, and its lease renewed for ever
    for _ in range(20):
        assert await one.heartbeat() == []
        if taken := await other.pull(1, SHORT_MS // 4):
            break
    assert (await other.open(taken[0])).outcome is OpenOutcome.TWIN
    assert await other.settle(taken[0], 0, Done())
    assert await again.start()
    assert await again.finish(b"answer")
    assert await lines(broker, 1) == [b"answer"]
    assert await client.xlen(stream) == 0
