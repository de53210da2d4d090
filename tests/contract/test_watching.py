"""Watching: every reader, wherever it attaches, is shown the same text."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.errors import UnknownCursor
from headrace.broker.events import Delta, Logged
from headrace.broker.fold import Fold, fold
from headrace.broker.message import Lane, Message, RequestRef
from tests.contract.case import Case
from tests.contract.steps import (
    BODY,
    PATIENCE_S,
    Writer,
    publish,
    publish_one,
    read_log,
    read_until,
    shown,
    start_writer,
    take,
    take_all,
)


def watch(case: Case, ref: RequestRef, cursor: str = "") -> asyncio.Task[list[Logged]]:
    return asyncio.create_task(read_until(case.broker.watch(ref, cursor)))


def text_of(entries: list[Logged]) -> str:
    return fold(entry.event for entry in entries).text


async def a_broken_answer(case: Case) -> RequestRef:
    """An answer in two parts, with a late owner that writes between and after."""
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await late.say("a")
    await late.say("b", "c")
    await case.lapse(late.session)
    session, again = await take(case, sessions[1 - sessions.index(late.session)])
    owner = await Writer.open(session, again)
    await late.say("X")
    await owner.start()
    await late.say("Y")
    await owner.say("d")
    await late.finish(b"late")
    await owner.say("e")
    assert await owner.finish()
    return ref


async def test_a_reader_may_come_before_the_request_is_published(case: Case) -> None:
    reader = watch(case, RequestRef("r"))
    await asyncio.sleep(0.02)
    await publish_one(case.broker, "r")
    writer = await start_writer(case, await case.consume())
    await writer.say("a", "b")
    assert await writer.finish()
    assert text_of(await reader) == "ab"


async def test_a_reader_may_come_while_the_request_waits(case: Case) -> None:
    ref = await publish_one(case.broker)
    reader = watch(case, ref)
    await asyncio.sleep(0.02)
    writer = await start_writer(case, await case.consume())
    await writer.say("a", "b")
    assert await writer.finish()
    assert text_of(await reader) == "ab"


async def test_a_reader_may_come_in_the_middle_or_after_the_end(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    await writer.say("a")
    middle = watch(case, ref)
    await asyncio.sleep(0.02)
    await writer.say("b")
    assert await writer.finish()
    assert text_of(await middle) == "ab"
    assert text_of(await read_log(case.broker, ref)) == "ab"


async def test_tokens_are_shown_as_they_are_appended(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    log, state = case.broker.watch(ref), Fold()
    for text in ("a", "b", "c"):
        await writer.say(text)
        async with asyncio.timeout(PATIENCE_S):
            while not state.text.endswith(text):
                state.read((await anext(log)).event)
    assert await writer.finish()
    async with asyncio.timeout(PATIENCE_S):
        async for entry in log:
            state.read(entry.event)
    assert (state.text, state.ended) == ("abc", True)


async def test_all_events_are_given_in_order_with_cursors_of_their_own(case: Case) -> None:
    ref = await a_broken_answer(case)
    entries = await read_log(case.broker, ref)
    assert len({entry.cursor for entry in entries}) == len(entries)
    assert text_of(entries) == "abcde"
    state = Fold()
    valid = [entry.event for entry in entries if state.read(entry.event)]
    assert [event.seq for event in valid if isinstance(event, Delta)] == [0, 1, 2, 3, 4]
    assert state.ended, "the last entry is the terminal record"
    assert not fold(entry.event for entry in entries[:-1]).ended


async def test_a_reader_that_comes_back_with_any_cursor_is_shown_the_same(case: Case) -> None:
    ref = await a_broken_answer(case)
    whole = await read_log(case.broker, ref)
    other = await case.connect()
    for entry in whole:
        assert await read_until(other.watch(ref, entry.cursor)) == whole


async def test_two_readers_are_shown_the_same(case: Case) -> None:
    ref = await publish_one(case.broker)
    readers = [watch(case, ref), watch(case, ref)]
    writer = await start_writer(case, await case.consume())
    await writer.say("a")
    readers.append(watch(case, ref))
    await writer.say("b")
    assert await writer.finish()
    assert [text_of(entries) for entries in await asyncio.gather(*readers)] == ["ab"] * 3


async def test_readers_of_many_requests_are_not_mixed_up(case: Case) -> None:
    refs = await publish(case.broker, *(Message(BODY, f"r{i}") for i in range(12)))
    readers = [watch(case, ref) for ref in refs]
    session = await case.consume()
    writers = []
    for _, delivery in await take_all(case, [session], 12):
        writers.append(await Writer.open(session, delivery))
        await writers[-1].start()
    for _ in range(2):
        for writer in writers:
            await writer.say(f"{writer.delivery.ref.request_id};")
    for writer in writers:
        assert await writer.finish()
    texts = [text_of(entries) for entries in await asyncio.gather(*readers)]
    assert texts == [f"{ref.request_id};" * 2 for ref in refs]


async def test_a_reader_that_leaves_in_the_middle_disturbs_nobody(case: Case) -> None:
    ref = await publish_one(case.broker)
    leaver, stayer = watch(case, ref), watch(case, ref)
    writer = await start_writer(case, await case.consume())
    await writer.say("a")
    leaver.cancel()
    await writer.say("b")
    assert await writer.finish()
    assert text_of(await stayer) == "ab"


@pytest.mark.slow
async def test_a_slow_reader_misses_nothing(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    log, state = case.broker.watch(ref), Fold()
    await writer.say("a")  # Kafka: only the first token proves where the log of an id of one's own begins
    state.read((await anext(log)).event)
    for i in range(1, 600):
        await writer.say(chr(97 + i % 26))
    assert await writer.finish()
    async with asyncio.timeout(PATIENCE_S):
        async for entry in log:
            state.read(entry.event)
    assert state.text == "".join(chr(97 + i % 26) for i in range(600))


async def test_a_cursor_of_nowhere_is_an_error(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    assert await writer.finish()
    for cursor in ("nonsense", "99999999-0", "standard/0/99999999"):
        with pytest.raises(UnknownCursor):
            await read_until(case.broker.watch(ref, cursor))


async def test_a_broker_that_is_there_answers_a_ping(case: Case) -> None:
    await case.broker.ping()


async def test_a_request_is_known_from_its_publish_to_after_its_end(case: Case) -> None:
    assert not await case.broker.known(RequestRef("r"))
    ref = await publish_one(case.broker)
    assert await case.broker.known(ref)
    assert not await case.broker.known(RequestRef("r", "another tenant"))
    writer = await start_writer(case, await case.consume())
    assert await case.broker.known(ref)
    assert await writer.finish()
    assert await case.broker.known(ref)


async def test_a_restart_is_shown_to_readers_wherever_they_attach(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish(case.broker, Message(BODY, "r", lane=Lane.INTERACTIVE))
    first = await start_writer(case, *sessions)
    await first.say("a", "b")
    await case.lapse(first.session)
    session, again = await take(case, sessions[1 - sessions.index(first.session)])
    second = await Writer.open(session, again)
    await second.start(kept=0)
    await second.say("c")
    assert await second.finish()
    whole = await read_log(case.broker, again.ref)
    for entry in whole:
        state = fold(e.event for e in await read_until(case.broker.watch(again.ref, entry.cursor)))
        assert (state.text, state.restarts, state.next_seq) == ("c", 1, 3)
    assert (await shown(case.broker, again.ref)).text == "c"
