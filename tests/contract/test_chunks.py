"""Chunks: an answer on its reply topic while it is made."""

from __future__ import annotations

from headrace.broker.message import Message
from tests.contract.case import Case
from tests.contract.steps import BODY, Writer, publish, read_results, start_writer, take


def reply_topic(case: Case) -> str:
    return f"{case.names.prefix}.reply.mine"


def streamed(case: Case) -> Message:
    return Message(BODY, "r", reply_to=reply_topic(case), stream=True, headers={"x-customer": "Zoë"})


async def test_chunks_come_before_the_line_in_their_order_and_are_told_apart_from_it(case: Case) -> None:
    await publish(case.broker, streamed(case))
    writer = await start_writer(case, await case.consume())
    await writer.say("a", "b", chunks=[b"1", b"2"])
    await writer.say("c", chunks=[b"3"])
    assert await writer.finish(b"line")
    results = await read_results(case, reply_topic(case))
    assert [result.line for result in results] == [b"1", b"2", b"3", b"line"]
    assert all({"request-id": "r", "x-customer": "Zoë"}.items() <= r.headers.items() for r in results)
    kinds = [result.headers.get("headrace-kind", "result") for result in results]
    assert kinds == ["chunk", "chunk", "chunk", "result"]


async def test_chunks_go_only_where_a_stream_was_asked_for(case: Case) -> None:
    await publish(
        case.broker, Message(BODY, "a", reply_to=reply_topic(case)), Message(BODY, "b", stream=True)
    )
    session = await case.consume()
    for _ in range(2):
        writer = await start_writer(case, session)
        await writer.say("a", chunks=[b"unwanted"])
        assert await writer.finish(b"line")
    assert [result.line for result in await read_results(case, reply_topic(case))] == [b"line"]
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_chunks_may_come_without_events(case: Case) -> None:
    """Whoever takes an answer over says all so far again, before it has a token of its own."""
    await publish(case.broker, streamed(case))
    writer = await start_writer(case, await case.consume())
    assert await writer.append(chunks=[b"all so far"])
    assert await writer.finish(b"line")
    results = await read_results(case, reply_topic(case))
    assert [result.line for result in results] == [b"all so far", b"line"]


async def test_the_chunks_of_an_overtaken_owner_come_not_at_all_or_before_the_answer_ends(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish(case.broker, streamed(case))
    late = await start_writer(case, *sessions)
    await late.say("a", chunks=[b"1"])
    await case.lapse(late.session)
    session, again = await take(case, sessions[1 - sessions.index(late.session)])
    owner = await Writer.open(session, again)
    late_answer = await late.say("X", chunks=[b"late"])
    await owner.start()
    await owner.say("b", chunks=[b"2"])
    assert await owner.finish(b"line")
    lines = [result.line for result in await read_results(case, reply_topic(case))]
    assert [line for line in lines if line != b"late"] == [b"1", b"2", b"line"]
    if case.emits_chunks_once:
        assert not late_answer
        assert b"late" not in lines
