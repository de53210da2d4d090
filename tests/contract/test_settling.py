"""Settling: the end of a delivery, all of it or nothing, and only by its owner."""

from __future__ import annotations

from headrace.broker.contract import DeadLetter, Done, OpenOutcome, Retry
from headrace.broker.events import Delta, Event, Failed, Fence, Finished, Timings, Usage
from headrace.broker.fold import fold
from headrace.broker.message import Lane, Message
from tests.contract.case import Case
from tests.contract.steps import (
    BODY,
    Writer,
    nothing_comes,
    publish,
    publish_one,
    read_log,
    read_results,
    shown,
    start_writer,
    take,
)


async def test_done_ends_the_log_and_emits_the_line_once(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    await writer.say("a")
    terminal = Finished(writer.epoch, "length", Usage(3, 1, 2), Timings(1, 2, 3))
    assert await writer.session.settle(writer.delivery, writer.epoch, Done(terminal, b'{"a": 1}'))
    assert (await read_log(case.broker, ref))[-1].event == terminal
    (result,) = await read_results(case)
    assert (result.line, result.headers["request-id"]) == (b'{"a": 1}', ref.request_id)
    assert (await case.broker.stats()).leases == []


async def test_what_the_log_lacks_comes_before_its_end(case: Case) -> None:
    ref = await publish_one(case.broker)
    session, delivery = await take(case, await case.consume())
    writer = await Writer.open(session, delivery)
    events: list[Event] = [
        writer.started(),
        Delta(writer.epoch, 0, (104,), "h"),
        Delta(writer.epoch, 1, (105,), "i"),
    ]
    terminal = Finished(writer.epoch, "stop")
    assert await session.settle(delivery, writer.epoch, Done(terminal, b"hi", events))
    log = [logged.event for logged in await read_log(case.broker, ref)]
    assert [event for event in log if not isinstance(event, Fence)] == [*events, terminal]
    assert (await shown(case.broker, ref)).text == "hi"
    assert [result.line for result in await read_results(case)] == [b"hi"]


async def test_an_end_that_comes_too_late_brings_nothing_else_in(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    assert await writer.finish()
    late = Done(Finished(writer.epoch, "stop"), b"late", [Delta(writer.epoch, 0, (97,), "a")])
    assert not await writer.session.settle(writer.delivery, writer.epoch, late)
    assert (await shown(case.broker, ref)).text == ""
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_the_events_of_an_overtaken_owners_end_are_invisible(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await case.lapse(late.session)
    owner = await start_writer(case, sessions[1 - sessions.index(late.session)])
    end = Done(Finished(late.epoch, "stop"), b"late", [Delta(late.epoch, 0, (97,), "a")])
    assert not await late.session.settle(late.delivery, late.epoch, end)
    await owner.say("b")
    assert await owner.finish(b"right")
    assert (await shown(case.broker, ref)).text == "b"


async def test_settling_twice_changes_nothing(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    assert await writer.finish(b"first")
    assert not await writer.finish(b"second")
    assert not await writer.say("too late")
    assert isinstance((await shown(case.broker, ref)).terminal, Finished)
    assert [result.line for result in await read_results(case)] == [b"first"]


async def test_a_request_may_end_without_a_line(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    assert await writer.finish(line=None)
    assert (await shown(case.broker, ref)).ended
    assert await read_results(case) == []


async def test_a_request_may_end_before_it_started(case: Case) -> None:
    ref = await publish_one(case.broker)
    session, delivery = await take(case, await case.consume())
    writer = await Writer.open(session, delivery)
    failed = Failed(writer.epoch, "invalid_request", "max_tokens is negative", 400, "max_tokens")
    assert await session.settle(delivery, writer.epoch, Done(failed, b"error line"))
    assert (await shown(case.broker, ref)).terminal == failed
    assert [result.line for result in await read_results(case)] == [b"error line"]


async def test_the_line_goes_to_the_reply_topic_and_not_to_the_default_one(case: Case) -> None:
    topic = f"{case.names.prefix}.reply.mine"
    await publish(case.broker, Message(BODY, "r", reply_to=topic))
    writer = await start_writer(case, await case.consume())
    assert await writer.finish(b"for me")
    assert [result.line for result in await read_results(case, topic)] == [b"for me"]
    assert await read_results(case) == []


async def test_headers_travel_through_to_the_result(case: Case) -> None:
    headers = {"traceparent": "00-1-2-03", "x-customer": "Zoë"}
    await publish(case.broker, Message(BODY, "r", headers=headers, deadline_ms=1_999_999_999_999))
    writer = await start_writer(case, await case.consume())
    assert await writer.finish()
    (result,) = await read_results(case)
    assert headers.items() <= result.headers.items()
    assert not {"deadline", "reply-to", "stream", "body"} & result.headers.keys()


async def test_the_settle_of_an_overtaken_owner_is_refused_and_invisible(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await late.say("a")
    await case.lapse(late.session)
    session, again = await take(case, sessions[1 - sessions.index(late.session)])
    owner = await Writer.open(session, again)
    assert not await late.finish(b"late")
    await owner.start()
    await owner.say("b")
    assert await owner.finish(b"right")
    whole = await shown(case.broker, ref)
    assert (whole.text, whole.terminal) == ("ab", Finished(owner.epoch, "stop"))
    assert [result.line for result in await read_results(case)] == [b"right"]


async def test_a_late_settle_after_the_request_ended_elsewhere_is_refused(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await case.lapse(late.session)
    owner = await start_writer(case, sessions[1 - sessions.index(late.session)])
    assert await owner.finish(b"right")
    assert not await late.finish(b"late")
    for settlement in (Retry(0, "late"), DeadLetter("late"), Done()):
        assert not await late.session.settle(late.delivery, late.epoch, settlement)
    assert [result.line for result in await read_results(case)] == [b"right"]
    stats = await case.broker.stats()
    assert (stats.retrying, stats.dead_letters) == (0, 0)


async def test_an_end_that_was_settled_by_nobody_gives_its_line_once_all_the_same(case: Case) -> None:
    """The lease is gone when the owner settles, but nobody has taken over yet. Refused or not, there is one
    terminal record and one line in the end."""
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await late.say("a")
    await case.lapse(late.session)
    if not await late.finish(b"line"):
        session, again = await take(case, sessions[1 - sessions.index(late.session)])
        opened = await session.open(again)
        if opened.outcome is OpenOutcome.ENDED:
            assert await session.settle(again, 0, Done())
        else:
            owner = await Writer.open(session, again)
            await owner.start()
            assert await owner.finish(b"line")
    assert (await shown(case.broker, ref)).text == "a"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_a_retry_comes_back_after_its_delay_as_the_same_delivery(case: Case) -> None:
    delay_ms = case.lease_ms
    await publish(case.broker, Message(BODY, "r", headers={"a": "b"}, deadline_ms=1_999_999_999_999))
    session = await case.consume()
    writer = await start_writer(case, session)
    first = writer.delivery
    assert await session.settle(first, writer.epoch, Retry(delay_ms, "busy"))
    stats = await case.broker.stats()
    assert (stats.retrying, stats.leases) == (1, [])
    await nothing_comes(case, session, within_ms=delay_ms // 4)
    await case.pass_time(delay_ms)
    _, again = await take(case, session)
    assert (again.position, again.ref, again.message) == (first.position, first.ref, first.message)
    assert again.published_ms == first.published_ms
    assert (await case.broker.stats()).retrying == 0


async def test_an_anonymous_request_keeps_its_id_through_retries(case: Case) -> None:
    (ref,) = await publish(case.broker, Message(BODY))
    session = await case.consume()
    for _ in range(3):
        _, delivery = await take(case, session)
        assert (delivery.ref, delivery.position) == (ref, ref.request_id)
        writer = await Writer.open(session, delivery)
        await writer.start()
        assert await session.settle(delivery, writer.epoch, Retry(1, "busy"))
        await case.pass_time(10)


async def test_a_retry_is_served_by_whoever_is_there_when_it_is_due(case: Case) -> None:
    first = await case.consume()
    ref = await publish_one(case.broker)
    _, delivery = await take(case, first)
    assert await first.settle(delivery, 0, Retry(case.lease_ms, "busy"))
    await case.leave(first)
    second = await case.consume()
    await case.pass_time(case.lease_ms)
    _, again = await take(case, second)
    assert again.ref == ref


async def test_a_dead_letter_keeps_the_bytes_the_reason_and_the_origin(case: Case) -> None:
    body = b"\x00\xff poison"
    await publish(case.broker, Message(body, "r", lane=Lane.BATCH))
    session = await case.consume()
    _, delivery = await take(case, session)
    assert await session.settle(delivery, 0, DeadLetter("it killed three engines"))
    (letter,) = await case.broker.dead_letters()
    assert (letter.body, letter.reason) == (body, "it killed three engines")
    assert case.names.requests(Lane.BATCH) in letter.origin
    lane = (await case.broker.stats()).lanes[Lane.BATCH]
    assert (lane.waiting, lane.leased) == (0, 0)


async def test_a_dead_letter_with_a_terminal_record_ends_the_log_and_emits_the_line(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    await writer.say("a")
    failed = Failed(writer.epoch, "poisoned", "it killed three engines", 500)
    assert await writer.session.settle(
        writer.delivery, writer.epoch, DeadLetter("poisoned", failed, b"error line")
    )
    whole = await shown(case.broker, ref)
    assert (whole.text, whole.terminal) == ("a", failed)
    assert [result.line for result in await read_results(case)] == [b"error line"]
    assert [letter.body for letter in await case.broker.dead_letters()] == [BODY]


async def test_dead_letters_are_given_up_to_a_limit(case: Case) -> None:
    await publish(case.broker, *(Message(b"%d" % i) for i in range(5)))
    session = await case.consume()
    for delivery in await session.pull(5, 0):
        assert await session.settle(delivery, 0, DeadLetter("unwanted"))
    assert len(await case.broker.dead_letters(limit=3)) == 3
    assert {letter.body for letter in await case.broker.dead_letters()} == {b"%d" % i for i in range(5)}


async def test_all_events_of_an_append_stand_in_the_log_in_their_order(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    await writer.say(*"abcdefgh")
    assert await writer.finish()
    events = [entry.event for entry in await read_log(case.broker, ref)]
    assert fold(events).text == "abcdefgh"
    assert fold([*events, *events]) == fold(events), "what comes after the end is void"
