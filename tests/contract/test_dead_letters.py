"""Dead letters: looked at, replayed as new requests, discarded."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from headrace.broker.contract import DeadLetter, DeadLettered
from headrace.broker.errors import BrokerError
from headrace.broker.events import Failed
from headrace.broker.ids import read_request_id
from headrace.broker.message import PROTOBUF, Lane, Message, RequestRef
from tests.contract.case import Case
from tests.contract.steps import BODY, eventually, publish, read_results, shown, start_writer, take

POISON = Message(
    body=b"\x00\xff poison",
    request_id="r",
    lane=Lane.BATCH,
    tenant="acme",
    content_type=PROTOBUF,
    headers={"x-customer": "Zoë"},
)


async def bury(
    case: Case, message: Message = POISON, reason: str = "it killed three engines"
) -> DeadLettered:
    """Publishes a request, and lets it end among the dead letters."""
    await publish(case.broker, message)
    session = await case.consume(pool=message.pool)
    writer = await start_writer(case, session)
    failed = Failed(writer.epoch, "poisoned", reason, 500)
    assert await session.settle(writer.delivery, writer.epoch, DeadLetter(reason, failed, b"error line"))
    await case.leave(session)
    return (await case.broker.dead_letters())[-1]


async def test_a_letter_tells_all_of_its_message(case: Case) -> None:
    letter = await bury(case)
    assert (letter.body, letter.reason) == (POISON.body, "it killed three engines")
    assert letter.origin.startswith(case.names.requests(Lane.BATCH))
    expected = {"request-id": "r", "tenant": "acme", "content-type": PROTOBUF, "x-customer": "Zoë"}
    assert expected.items() <= letter.headers.items()
    assert not {"body", "reason", "origin"} & letter.headers.keys()
    await publish(case.broker, Message(BODY, "later"))
    _, later = await take(case, await case.consume())
    assert 0 <= later.published_ms - letter.at_ms < 60_000


async def test_a_letter_is_found_by_its_position_and_no_other(case: Case) -> None:
    letter = await bury(case)
    assert await case.broker.dead_letter(letter.position) == letter
    for nowhere in ("", "nonsense", f"{case.names.dead_letters}/99999999-0", f"{case.names.results}/0-1"):
        assert await case.broker.dead_letter(nowhere) is None
        assert await case.broker.replay(nowhere) is None


async def test_a_replayed_letter_is_a_new_request_with_the_same_bytes(case: Case) -> None:
    letter = await bury(case)
    ref = await case.broker.replay(letter.position)
    assert ref is not None
    assert (ref.tenant, read_request_id(ref.request_id) is not None) == ("acme", True)
    writer = await start_writer(case, await case.consume())
    message = writer.delivery.message
    assert writer.delivery.ref == ref
    assert (message.body, message.content_type, message.lane) == (POISON.body, PROTOBUF, Lane.BATCH)
    assert message.headers == {"x-customer": "Zoë", "replay-of": "r"}
    await writer.say("a")
    assert await writer.finish(b"at last")
    assert (await shown(case.broker, ref)).text == "a"
    results = await read_results(case)
    assert [result.line for result in results] == [b"error line", b"at last"]
    assert results[1].headers["replay-of"] == "r"
    assert (await shown(case.broker, RequestRef("r", "acme"))).terminal is not None


async def test_a_replayed_letter_is_gone(case: Case) -> None:
    letter = await bury(case)
    assert await case.broker.replay(letter.position) is not None
    assert await case.broker.replay(letter.position) is None
    assert await case.broker.dead_letter(letter.position) is None
    assert await case.broker.dead_letters() == []
    assert (await case.broker.stats()).dead_letters == 0
    session = await case.consume()
    await take(case, session)
    assert await session.pull(5, 0) == [], "once"


async def test_a_request_without_id_is_replayed_under_one_that_names_its_position(case: Case) -> None:
    letter = await bury(case, Message(BODY))
    assert await case.broker.replay(letter.position) is not None
    _, delivery = await take(case, await case.consume())
    assert delivery.message.headers == {"replay-of": letter.origin}
    assert delivery.message.request_id == delivery.ref.request_id != letter.origin


async def test_a_letter_of_another_pool_is_replayed_there(case: Case) -> None:
    letter = await bury(case, Message(BODY, "r", pool="large"))
    assert await case.broker.replay(letter.position) is not None
    _, delivery = await take(case, await case.consume(pool="large"))
    assert delivery.message.headers == {"replay-of": "r"}


async def test_what_is_no_message_is_not_replayed_and_stays(case: Case) -> None:
    await case.publish_raw(Lane.STANDARD, {"request-id": b"no body"})
    session = await case.consume()

    async def buried() -> bool:
        assert await session.pull(5, 0) == []
        return len(await case.broker.dead_letters()) == 1

    await eventually(case, buried)
    (letter,) = await case.broker.dead_letters()
    assert letter.headers["request-id"] == "no body"
    with pytest.raises(BrokerError, match="cannot be replayed"):
        await case.broker.replay(letter.position)
    assert await case.broker.dead_letters() == [letter]


async def test_discarded_letters_are_gone_and_the_others_stay(case: Case) -> None:
    letters = [await bury(case, Message(BODY, f"r{i}")) for i in range(3)]
    positions = [letters[0].position, letters[2].position, letters[0].position, "nonsense"]
    assert await case.broker.discard(positions) == 2
    assert await case.broker.dead_letters() == [letters[1]]
    assert (await case.broker.stats()).dead_letters == 1
    assert await case.broker.discard(positions) == 0
    assert await (await case.connect()).dead_letters() == [letters[1]]


async def test_of_many_letters_the_latest_are_given_oldest_first(case: Case) -> None:
    letters = [await bury(case, Message(BODY, f"r{i}")) for i in range(3)]
    assert await case.broker.dead_letters(limit=2) == letters[1:]


async def test_all_letters_come_oldest_first_but_for_those_that_are_buried_meanwhile(case: Case) -> None:
    letters = [await bury(case, Message(BODY, f"r{i}")) for i in range(3)]
    assert await case.broker.discard([letters[1].position]) == 1
    async with aclosing(case.broker.each_dead_letter()) as each:
        found = [await anext(each)]
        await bury(case, Message(BODY, "late"))
        found += [letter async for letter in each]
    assert found == [letters[0], letters[2]]


async def test_all_letters_can_be_dealt_with_as_they_come(case: Case) -> None:
    for number in range(3):
        await bury(case, Message(BODY, f"r{number}"))
    async for letter in case.broker.each_dead_letter():
        assert await case.broker.replay(letter.position) is not None
    assert await case.broker.dead_letters() == []
    assert [letter async for letter in case.broker.each_dead_letter()] == []
