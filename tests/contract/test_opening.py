"""Opening: fence first, read then. Who opens knows exactly what readers were shown, and writes alone."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.contract import Append, DeadLetter, Done, OpenOutcome, Retry
from headrace.broker.events import Delta, Finished, TokenLogprobs
from headrace.broker.message import Lane, Message
from tests.contract.case import Case
from tests.contract.steps import (
    BODY,
    Writer,
    publish,
    publish_one,
    read_log,
    read_results,
    read_until,
    settle_unopened,
    shown,
    start_writer,
    take,
    take_all,
)


async def test_a_first_open_finds_an_empty_log(case: Case) -> None:
    await publish_one(case.broker)
    session, delivery = await take(case, await case.consume())
    opened = await session.open(delivery)
    assert opened.outcome is OpenOutcome.RUN
    assert opened.epoch >= 1
    assert not opened.cancelled
    assert opened.state is not None
    assert (opened.state.text, opened.state.next_seq, opened.state.ended) == ("", 0, False)


async def test_a_successor_goes_on_where_the_dead_owner_stopped(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    first = await start_writer(case, *sessions)
    await first.say("a", "b")
    await first.say("c")
    await case.lapse(first.session)
    session, again = await take(case, sessions[1 - sessions.index(first.session)])
    second = await Writer.open(session, again)
    assert second.epoch > first.epoch
    assert second.fold.token_ids == [ord(c) for c in "abc"]
    assert (second.fold.text, second.fold.next_seq) == ("abc", 3)
    assert second.fold.started is not None
    assert second.fold.started.seed == 7
    await second.start()
    await second.say("d")
    assert await second.finish()
    whole = await shown(case.broker, ref)
    assert (whole.text, whole.restarts) == ("abcd", 0)


async def test_a_successor_finds_every_answer_and_the_terminal_record_tells_of_all(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    first = await start_writer(case, *sessions)
    score = TokenLogprobs(5, -0.5, ((6, -0.25),))
    await first.append(
        Delta(first.epoch, 0, (97,), "a", prompt_logprobs=(score,)),
        Delta(first.epoch, 1, (98,), "b", choice=2, logprobs=(score,)),
    )
    await case.lapse(first.session)
    session, again = await take(case, sessions[1 - sessions.index(first.session)])
    second = await Writer.open(session, again)
    assert second.fold.answers[2].token_ids == [98]
    assert (second.fold.others[2].logprobs, second.fold.prompt_logprobs) == ([score], [score])
    await second.start(kept=second.fold.num_tokens)
    await second.append(Delta(second.epoch, 2, (99,), "c", choice=2))
    terminal = Finished(second.epoch, "stop", reasons=("stop", "stop", "length"), embeddings=(b"\0" * 4,))
    assert await session.settle(again, second.epoch, Done(terminal, b"line"))
    whole = await shown(case.broker, ref)
    assert {number: answer.text for number, answer in whole.answers.items()} == {0: "a", 2: "bc"}
    assert (whole.terminal, whole.restarts) == (terminal, 0)


async def test_a_successor_that_cannot_resume_begins_anew_and_readers_drop_what_they_showed(
    case: Case,
) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    first = await start_writer(case, *sessions)
    await first.say("a", "b")
    await case.lapse(first.session)
    session, again = await take(case, sessions[1 - sessions.index(first.session)])
    second = await Writer.open(session, again)
    await second.start(kept=0)
    assert second.fold.next_seq == 2, "numbers are never used again"
    await second.say("x")
    assert await second.finish()
    whole = await shown(case.broker, ref)
    assert (whole.text, whole.restarts) == ("x", 1)


async def test_what_an_overtaken_owner_appends_is_seen_by_nobody(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await late.say("a")
    await case.lapse(late.session)
    session, again = await take(case, sessions[1 - sessions.index(late.session)])
    owner = await Writer.open(session, again)
    assert owner.fold.text == "a"
    late_answers = [await late.say("X")]
    await owner.start()
    late_answers.append(await late.say("Y"))
    await owner.say("b")
    late_answers.append(await late.append(late.started()))
    late_answers.append(await late.say("Z"))
    await owner.say("c")
    assert not await late.finish(b"late")
    assert await owner.finish()
    if case.refuses_late_appends:
        assert late_answers == [False] * 4
    whole = await shown(case.broker, ref)
    assert (whole.text, whole.epoch) == ("abc", owner.epoch)
    assert whole.terminal is not None
    assert whole.terminal.epoch == owner.epoch


async def test_what_an_owner_writes_after_its_lease_counts_for_all_or_for_nobody(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await case.lapse(late.session)
    written = await late.say("a")
    session, again = await take(case, sessions[1 - sessions.index(late.session)])
    owner = await Writer.open(session, again)
    found = owner.fold.text
    assert found in (("a" if written else "",) if case.refuses_late_appends else ("", "a"))
    await owner.start()
    await owner.say("b")
    assert await owner.finish()
    assert (await shown(case.broker, ref)).text == found + "b"


async def test_a_reader_and_the_successor_agree_at_the_moment_of_the_take_over(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await late.say("a", "b")
    await case.lapse(late.session)
    session, again = await take(case, sessions[1 - sessions.index(late.session)])
    owner = await Writer.open(session, again)
    await late.say("X")
    await owner.start()
    entries = await read_until(case.broker.watch(ref), lambda state: state.epoch == owner.epoch)
    await late.say("Y")
    assert [e.event.text for e in entries if isinstance(e.event, Delta)][:2] == ["a", "b"]
    assert owner.fold.text == "ab"


async def test_opening_again_raises_the_epoch_and_ends_what_was_written_under_the_old_one(case: Case) -> None:
    ref = await publish_one(case.broker)
    session = await case.consume()
    first = await start_writer(case, session)
    await first.say("a")
    second = await Writer.open(session, first.delivery)
    assert second.epoch > first.epoch
    assert second.fold.text == "a"
    assert not await first.say("X")
    assert not await first.finish(b"late line")
    await second.start()
    await second.say("b")
    third = await Writer.open(session, first.delivery)
    assert third.epoch > second.epoch
    await third.start()
    assert await third.finish()
    whole = await shown(case.broker, ref)
    assert (whole.text, whole.restarts) == ("ab", 0)
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_opening_one_request_again_leaves_its_neighbours_alone(case: Case) -> None:
    refs = await publish(case.broker, *(Message(BODY, f"r{i}") for i in range(12)))
    session = await case.consume()
    writers = {}
    for _, delivery in await take_all(case, [session], 12):
        writer = writers[delivery.ref] = await Writer.open(session, delivery)
        await writer.start()
        await writer.say("a")
    again = await Writer.open(session, writers[refs[0]].delivery)
    await again.start()
    for ref in refs[1:]:
        assert await writers[ref].say("b")
        assert await writers[ref].finish()
        assert (await shown(case.broker, ref)).text == "ab"
    assert await again.finish()


@pytest.mark.slow
async def test_the_epoch_only_rises_whoever_owns_the_request(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    holder, epochs = sessions[0], []
    for _ in range(3):
        writer = await start_writer(case, *sessions)
        holder = writer.session
        epochs.append(writer.epoch)
        epochs.append((await Writer.open(holder, writer.delivery)).epoch)
        await case.lapse(holder)
        sessions = [s for s in sessions if s is not holder] + [await case.consume()]
    assert epochs == sorted(set(epochs))


async def test_a_request_with_a_terminal_record_has_ended(case: Case) -> None:
    session = await case.consume()
    ref = await publish_one(case.broker)
    writer = await start_writer(case, session)
    assert await writer.finish()
    await case.publish_raw(Lane.STANDARD, {"body": BODY, "request-id": ref.request_id.encode()})
    _, again = await take(case, session)
    assert (await session.open(again)).outcome is OpenOutcome.ENDED
    assert await session.settle(again, 0, Done())
    assert await session.pull(10, 0) == []
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_a_late_owner_finds_the_delivery_lost_or_writes_unseen(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late, delivery = await take(case, *sessions)
    await case.lapse(late)
    owner = await start_writer(case, sessions[1 - sessions.index(late)])
    opened = await late.open(delivery)
    if opened.outcome is not OpenOutcome.LOST:
        assert not case.refuses_late_appends
        unseen = Delta(opened.epoch, 0, (88,), "X")
        await late.append([Append(delivery, opened.epoch, [unseen])])
        assert not await late.settle(delivery, opened.epoch, Done(Finished(opened.epoch, "stop"), b"late"))
    await owner.say("a")
    assert await owner.finish()
    assert (await shown(case.broker, ref)).text == "a"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_a_delivery_that_its_session_settled_is_lost_to_it(case: Case) -> None:
    await publish_one(case.broker)
    session = await case.consume()
    writer = await start_writer(case, session)
    assert await writer.finish()
    assert (await session.open(writer.delivery)).outcome is OpenOutcome.LOST


async def test_a_twin_runs_when_the_delivery_that_ran_is_gone_for_good(case: Case) -> None:
    session = await case.consume()
    for _ in range(2):  # a foreign client's entries have passed no check
        await case.publish_raw(Lane.STANDARD, {"body": BODY, "request-id": b"twin"})
    (_, delivery), (_, twin) = await take_all(case, [session], 2)
    first = await Writer.open(session, delivery)
    await first.start()
    await first.say("a")
    assert (await session.open(twin)).outcome is OpenOutcome.TWIN
    assert await session.settle(delivery, first.epoch, DeadLetter("nobody could run it"))
    second = await Writer.open(session, twin)
    await second.start()
    await second.say("b")
    assert await second.finish()
    assert (await shown(case.broker, twin.ref)).text == "ab"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_twins_of_a_foreign_client_give_one_answer_and_one_line(case: Case) -> None:
    sessions = await case.consumers(2)
    for _ in range(3):
        await case.publish_raw(Lane.STANDARD, {"body": BODY, "request-id": b"twin"})
    taken = await take_all(case, sessions, 3)
    session, delivery = taken[0]
    writer = await Writer.open(session, delivery)
    await writer.start()
    await writer.say("a")
    for session, twin in taken[1:]:
        opened = await session.open(twin)
        assert opened.outcome is OpenOutcome.TWIN
        assert await settle_unopened(session, twin, opened)
    assert await writer.finish()
    assert (await shown(case.broker, delivery.ref)).text == "a"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_of_twins_that_are_opened_at_the_same_time_one_runs(case: Case) -> None:
    """After an owner put the request off, both would take it up."""
    session = await case.consume()
    for _ in range(2):
        await case.publish_raw(Lane.STANDARD, {"body": BODY, "request-id": b"twin"})
    (_, delivery), (_, twin) = await take_all(case, [session], 2)
    first = await Writer.open(session, delivery)
    await first.start()
    await first.say("a")
    assert await session.settle(delivery, first.epoch, Retry(1, "busy"))
    await case.pass_time(10)
    _, again = await take(case, session)
    both = [again, twin]
    opened = await asyncio.gather(*(session.open(one) for one in both))
    assert {one.outcome for one in opened} == {OpenOutcome.RUN, OpenOutcome.TWIN}
    runs = [one.outcome for one in opened].index(OpenOutcome.RUN)
    state = opened[runs].state
    assert state is not None
    second = Writer(session, both[runs], opened[runs].epoch, state)
    await second.start()
    await second.say("b")
    assert await settle_unopened(session, both[1 - runs], opened[1 - runs])
    assert await second.finish()
    assert (await shown(case.broker, twin.ref)).text == "ab"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_the_log_of_a_retried_request_goes_on(case: Case) -> None:
    ref = await publish_one(case.broker)
    session = await case.consume()
    first = await start_writer(case, session)
    await first.say("a")
    assert await session.settle(first.delivery, first.epoch, Retry(1, "busy"))
    await case.pass_time(10)
    _, again = await take(case, session)
    second = await Writer.open(session, again)
    assert second.epoch > first.epoch
    assert second.fold.text == "a"
    await second.start()
    await second.say("b")
    assert await second.finish()
    assert [e.event.seq for e in await read_log(case.broker, ref) if isinstance(e.event, Delta)] == [0, 1]
