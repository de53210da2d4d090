"""Publishing: what was acknowledged is there, once, and arrives as it was sent."""

from __future__ import annotations

import pytest

from headrace.broker.contract import Conflict, OpenOutcome, Published
from headrace.broker.errors import BrokerError
from headrace.broker.message import JSON, PROTOBUF, Claim, Lane, Message, RequestRef
from tests.contract.case import Case
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

CLAIM = {"headrace-claim": b"blob", "headrace-claim-hash": b"0" * 64, "headrace-claim-size": b"1"}


async def test_a_message_arrives_with_all_that_it_was_published_with(case: Case) -> None:
    sent = Message(
        body=b"\x00\xff not text",
        request_id="träger/1:2 3",
        lane=Lane.BATCH,
        tenant="acme",
        content_type=PROTOBUF,
        deadline_ms=1_999_999_999_999,
        reply_to=f"{case.names.prefix}.reply.mine",
        stream=True,
        headers={"traceparent": "00-ab-cd-01", "x-Büro": "grün"},
        queue_timeout_ms=90_000,
    )
    (ref,) = await publish(case.broker, sent)
    _, delivery = await take(case, await case.consume())
    assert delivery.message == sent
    assert delivery.ref == ref == RequestRef("träger/1:2 3", "acme")


async def test_a_body_in_the_blob_store_is_named_by_its_message(case: Case) -> None:
    whole = Message(b"a large body", content_type=PROTOBUF)
    claim = Claim("s3://bucket/äb c", whole.body_hash, size=12)
    sent = Message(b"", "r", content_type=PROTOBUF, claim=claim)
    await publish(case.broker, sent)
    _, delivery = await take(case, await case.consume())
    assert delivery.message == sent
    assert delivery.message.body_hash == whole.body_hash


async def test_the_same_body_is_the_same_request_wherever_it_lies(case: Case) -> None:
    await publish_one(case.broker)
    claim = Claim("blob", Message(BODY).body_hash, len(BODY))
    (again,) = await case.broker.publish([Message(b"", "r", claim=claim)])
    assert again == Published(RequestRef("r"), duplicate=case.finds_duplicates_at_publish)
    session = await case.consume()
    await start_writer(case, session)
    if not case.finds_duplicates_at_publish:
        assert (await session.open((await take(case, session))[1])).outcome is OpenOutcome.TWIN


async def test_a_message_without_id_gets_its_position_as_id(case: Case) -> None:
    (ref,) = await publish(case.broker, Message(BODY))
    _, delivery = await take(case, await case.consume())
    assert ref.request_id == delivery.ref.request_id == delivery.position
    assert delivery.message.request_id is None


async def test_receipts_come_in_the_order_of_the_messages(case: Case) -> None:
    ids = [f"r-{i}" for i in range(20)]
    refs = await publish(case.broker, *(Message(BODY, i) for i in ids))
    assert [ref.request_id for ref in refs] == ids
    taken = await take_all(case, [await case.consume()], 20)
    assert sorted(d.ref.request_id for _, d in taken) == sorted(ids)


async def test_publishing_nothing_is_allowed(case: Case) -> None:
    assert await case.broker.publish([]) == []


async def test_what_is_published_outlives_the_connection_that_published_it(case: Case) -> None:
    publisher = await case.connect()
    ref = await publish_one(publisher)
    _, delivery = await take(case, await case.consume())
    assert delivery.ref == ref


async def test_a_delivery_tells_when_it_was_published_by_the_brokers_clock(case: Case) -> None:
    await publish_one(case.broker)
    await case.pass_time(50)
    session, delivery = await take(case, await case.consume())
    opened = await session.open(delivery)
    assert 50 <= opened.now_ms - delivery.published_ms < 60_000


async def test_the_same_id_with_the_same_body_is_one_request(case: Case) -> None:
    ref = await publish_one(case.broker)
    (again,) = await case.broker.publish([Message(BODY, ref.request_id)])
    assert again == Published(ref, duplicate=case.finds_duplicates_at_publish)
    session = await case.consume()
    writer = await start_writer(case, session)
    await writer.say("a")
    if not case.finds_duplicates_at_publish:
        _, twin = await take(case, session)
        opened = await session.open(twin)
        assert opened.outcome is OpenOutcome.TWIN
        assert await settle_unopened(session, twin, opened)
    await writer.say("b")
    assert await writer.finish()
    assert (await shown(case.broker, ref)).text == "ab"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_a_request_that_has_ended_is_not_run_again_when_it_is_published_again(case: Case) -> None:
    ref = await publish_one(case.broker)
    session = await case.consume()
    writer = await start_writer(case, session)
    assert await writer.finish()
    (again,) = await case.broker.publish([Message(BODY, ref.request_id)])
    assert again == Published(ref, duplicate=case.finds_duplicates_at_publish)
    if not case.finds_duplicates_at_publish:
        _, twin = await take(case, session)
        opened = await session.open(twin)
        assert opened.outcome is OpenOutcome.ENDED
        assert await settle_unopened(session, twin, opened)
    assert await session.pull(10, 0) == []
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_the_same_id_with_another_body_is_refused_or_dead_lettered_and_never_joins_the_first_ones_log(
    case: Case,
) -> None:
    ref = await publish_one(case.broker)
    (other,) = await case.broker.publish([Message(b"another body", ref.request_id)])
    session = await case.consume()
    writer = await start_writer(case, session)
    if case.finds_duplicates_at_publish:
        assert other == Conflict(ref)
    else:
        _, delivery = await take(case, session)
        opened = await session.open(delivery)
        assert opened.outcome is OpenOutcome.CONFLICT
        assert await settle_unopened(session, delivery, opened)
        assert [letter.body for letter in await case.broker.dead_letters()] == [b"another body"]
    await writer.say("a")
    assert await writer.finish()
    assert (await shown(case.broker, ref)).text == "a"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_the_same_body_under_another_content_type_is_another_body(case: Case) -> None:
    ref = await publish_one(case.broker)
    (other,) = await case.broker.publish([Message(BODY, ref.request_id, content_type=PROTOBUF)])
    session = await case.consume()
    await start_writer(case, session)
    if case.finds_duplicates_at_publish:
        assert other == Conflict(ref)
    else:
        _, delivery = await take(case, session)
        assert (await session.open(delivery)).outcome is OpenOutcome.CONFLICT


async def test_the_same_id_of_two_tenants_is_two_requests(case: Case) -> None:
    refs = await publish(
        case.broker,
        Message(BODY, "r", tenant="a"),
        Message(b"another body", "r", tenant="b"),
        Message(BODY, "r"),
    )
    session = await case.consume()
    for owner, delivery in await take_all(case, [session], 3):
        writer = await Writer.open(owner, delivery)
        await writer.start()
        await writer.say(f"for {delivery.ref.tenant}")
        await writer.finish()
    assert [(await shown(case.broker, ref)).text for ref in refs] == ["for a", "for b", "for "]


@pytest.mark.parametrize("topic", ["{prefix}.results", "{prefix}.reply.", "{prefix}.reply"])
async def test_a_reply_topic_outside_the_allowed_ones_is_refused_and_nothing_is_published(
    case: Case, topic: str
) -> None:
    reply_to = topic.format(prefix=case.names.prefix)
    with pytest.raises(BrokerError, match="reply"):
        await case.broker.publish([Message(BODY, "good"), Message(BODY, "bad", reply_to=reply_to)])
    assert await (await case.consume()).pull(10, 0) == []


async def test_a_bare_entry_of_a_foreign_client_is_a_request_of_the_lane_it_stands_in(case: Case) -> None:
    await case.publish_raw(Lane.BATCH, {"body": BODY})
    session, delivery = await take(case, await case.consume())
    assert delivery.message == Message(BODY, lane=Lane.BATCH, content_type=JSON)
    assert delivery.ref.request_id == delivery.position
    writer = await Writer.open(session, delivery)
    await writer.start()
    await writer.say("answer")
    assert await writer.finish()
    assert (await shown(case.broker, delivery.ref)).text == "answer"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"request-id": b"lost"}, id="no body"),
        pytest.param({"body": b"x", "deadline": b"tomorrow"}, id="a deadline that is no number"),
        pytest.param({"body": b"x", "queue-timeout": b"soon"}, id="a queue timeout that is no number"),
        pytest.param({"body": b"", "headrace-claim": b"blob"}, id="half a claim"),
        pytest.param({"body": b"x", **CLAIM}, id="a claim, and a body beside it"),
        pytest.param({"body": b"x", "tenant": b"\xff\xfe"}, id="a header that is not UTF-8"),
        pytest.param({"body": b"x", "reply-to": b"somebody.elses.topic"}, id="a reply topic not allowed"),
    ],
)
async def test_a_message_that_cannot_be_understood_is_dead_lettered_and_its_neighbours_go_on(
    case: Case, fields: dict[str, bytes]
) -> None:
    await case.publish_raw(Lane.STANDARD, {"body": b"before"})
    await case.publish_raw(Lane.STANDARD, fields)
    await case.publish_raw(Lane.STANDARD, {"body": b"after"})
    session = await case.consume()
    taken = await take_all(case, [session], 2)
    assert [delivery.message.body for _, delivery in taken] == [b"before", b"after"]
    assert await session.pull(10, 0) == []
    (letter,) = await case.broker.dead_letters()
    assert letter.body == fields.get("body", b"")
    assert letter.reason
    assert case.names.requests(Lane.STANDARD) in letter.origin
    assert (await case.broker.stats()).lanes[Lane.STANDARD].waiting == 0
