"""The in-memory log keeps Kafka's rules, where the contract alone does not show them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headrace.broker.contract import Append, Done, OpenOutcome, Retry
from headrace.broker.events import Delta, Fence, Finished
from headrace.broker.message import Lane, Message
from tests.contract.memory_case import MemoryCase, memory_case
from tests.contract.steps import (
    BODY,
    Writer,
    publish,
    publish_one,
    read_log,
    read_results,
    shown,
    start_writer,
    take,
    take_all,
)
from tests.support.memory_cluster import MemoryCluster
from tests.support.memory_log import MemoryLog
from tests.support.memory_topics import Committed, Partition


@pytest.fixture
async def case() -> AsyncIterator[MemoryCase]:
    made = memory_case("rules")
    yield made
    await made.close()


def only_partition(case: MemoryCase) -> Partition:
    """The one partition that holds requests."""
    (partition,) = (p for p in case.cluster.partitions.values() if p.requests.end)
    return partition


async def break_off(case: MemoryCase, writer: Writer, hops: int) -> None:
    """Lets a settle go on for a number of hops, and then its process dies."""
    settle = asyncio.create_task(writer.finish())
    for _ in range(hops):
        await asyncio.sleep(0)
    settle.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await settle
    await case.lapse(writer.session)


async def test_the_commit_is_a_contiguous_prefix_and_a_set_beyond_it(case: MemoryCase) -> None:
    first, second = await case.consumers(2)
    for _ in range(5):
        await case.publish_raw(Lane.BATCH, {"body": BODY})
    taken = await take_all(case, [first, second], 5)
    for session, delivery in [taken[i] for i in (1, 2, 4)]:
        writer = await Writer.open(session, delivery)
        assert await writer.finish()
    committed = only_partition(case).committed
    assert (committed.base, committed.beyond) == (0, frozenset({1, 2, 4}))
    holder = taken[0][0]
    await case.lapse(holder)
    again = await take_all(case, [second if holder is first else first], 2)
    assert {d.position for _, d in again} == {taken[0][1].position, taken[3][1].position}
    for session, delivery in again:
        assert await (await Writer.open(session, delivery)).finish()
    committed = only_partition(case).committed
    assert (committed.base, committed.beyond) == (5, frozenset())


def test_finishing_moves_the_base_over_all_that_is_finished() -> None:
    committed = Committed().finish(2).finish(0)
    assert (committed.base, committed.beyond) == (1, frozenset({2}))
    assert [committed.finished(offset) for offset in range(4)] == [True, False, True, False]
    assert committed.finish(1) == Committed(base=3)


async def test_a_joining_consumer_gets_partitions_when_their_owner_lets_go_and_answers_go_on_there(
    case: MemoryCase,
) -> None:
    first = await case.consume()
    refs = await publish(case.broker, *(Message(BODY, f"r{i}") for i in range(12)))
    writers = {}
    for session, delivery in await take_all(case, [first], 12):
        writer = writers[delivery.ref] = await Writer.open(session, delivery)
        await writer.start()
        await writer.say("a")
    second = await case.consume()
    assert await second.pull(12, 0) == [], "the owner has not heard of it yet"
    lost = await first.heartbeat()
    assert 0 < len(lost) < 12
    moved = await take_all(case, [second], len(lost))
    assert {d.ref for _, d in moved} == {d.ref for d in lost}
    for session, delivery in moved:
        writer = writers[delivery.ref] = await Writer.open(session, delivery)
        assert writer.fold.text == "a"
        await writer.start()
    for ref in refs:
        await writers[ref].say("b")
        assert await writers[ref].finish()
        assert (await shown(case.broker, ref)).text == "ab"


async def test_a_rebalance_that_leaves_a_partition_alone_does_not_refuse_its_owner(case: MemoryCase) -> None:
    first = await case.consume([Lane.BATCH])
    (batch_ref,) = await publish(case.broker, Message(BODY, "b", lane=Lane.BATCH))
    writer = await start_writer(case, first)
    await case.consume([Lane.STANDARD])  # another generation, the same owner
    assert await writer.finish()
    assert (await shown(case.broker, batch_ref)).ended


async def test_a_late_append_is_stored_and_void(case: MemoryCase) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await case.lapse(late.session)
    owner = await start_writer(case, sessions[1 - sessions.index(late.session)])
    assert await late.say("X"), "nobody fences a plain append"
    assert await owner.finish()
    events = [entry.event for entry in await read_log(case.broker, ref)]
    assert any(isinstance(event, Delta) and event.text == "X" for event in events)
    assert (await shown(case.broker, ref)).text == ""


@pytest.mark.parametrize("hops", range(1, 8))
async def test_an_owner_that_dies_anywhere_in_its_settle_leaves_one_end_and_one_line(
    case: MemoryCase, hops: int
) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    writer = await start_writer(case, *sessions)
    await writer.say("a")
    await break_off(case, writer, hops)
    other = sessions[1 - sessions.index(writer.session)]
    for delivery in await other.pull(1, 0):
        opened = await other.open(delivery)
        if opened.outcome is OpenOutcome.ENDED:
            assert await other.settle(delivery, 0, Done())
        else:
            successor = await Writer.open(other, delivery)
            await successor.start()
            assert await successor.finish()
    assert (await shown(case.broker, ref)).text == "a"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_a_twin_does_not_emit_the_line_that_a_dead_owner_left(case: MemoryCase) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    await publish_one(case.broker)  # the twin
    taken = await take_all(case, sessions, 2)
    writer = await Writer.open(*taken[0])
    await writer.start()
    await break_off(case, writer, 3)
    other = sessions[1 - sessions.index(writer.session)]
    again = sorted(await other.pull(2, 0), key=lambda delivery: delivery.position, reverse=True)
    assert [(await other.open(delivery)).outcome for delivery in again] == [OpenOutcome.ENDED] * 2
    assert await other.settle(again[0], 0, Done())
    assert case.cluster.topic(case.names.results).end == 0
    assert await other.settle(again[1], 0, Done())
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_a_delivery_that_was_forwarded_twice_is_its_own_twin(case: MemoryCase) -> None:
    session = await case.consume()
    ref = await publish_one(case.broker)
    writer = await start_writer(case, session)
    await writer.say("a")
    assert await session.settle(writer.delivery, writer.epoch, Retry(1, "busy"))
    partition = only_partition(case)
    (_, delayed), *_ = partition.delayed()
    case.cluster.append(partition.requests, delayed)  # forwarded by an owner that died before it said so
    await case.pass_time(10)
    (_, first), (_, second) = await take_all(case, [session], 2)
    assert first.position == second.position == writer.delivery.position
    again = await Writer.open(session, first)
    assert (await session.open(second)).outcome is OpenOutcome.TWIN
    assert await session.settle(second, 0, Done())
    await again.start()
    await again.say("b")
    assert await again.finish()
    assert (await shown(case.broker, ref)).text == "ab"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_an_owner_whose_predecessors_commits_were_lost_finds_the_epoch_in_the_log(
    case: MemoryCase,
) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await late.say("a")
    late = await Writer.open(late.session, late.delivery)  # an epoch of its own
    await late.start()
    partition = only_partition(case)
    partition.committed = replace(partition.committed, epoch=0)
    await case.lapse(late.session)
    owner = await start_writer(case, sessions[1 - sessions.index(late.session)])
    assert owner.epoch > late.epoch
    assert owner.fold.text == "a"


async def test_fences_are_repeated_for_readers_that_start_later(case: MemoryCase) -> None:
    session = await case.consume()
    await publish_one(case.broker)
    writer = await start_writer(case, session)
    before = only_partition(case).events.end
    await case.pass_time(2 * case.lease_ms)
    fences = [record.key for _, record in only_partition(case).events.read(before)]
    assert fences
    assert set(fences) == {None}
    await writer.say("a")
    assert await writer.finish()
    entries = await read_log(case.broker, writer.delivery.ref)
    assert {entry.event.epoch for entry in entries if isinstance(entry.event, Fence)} == {writer.epoch}


async def test_a_request_under_another_hash_is_found_by_a_scan(case: MemoryCase) -> None:
    """As of a publisher whose client library hashes keys otherwise."""
    await case.publish_raw(Lane.STANDARD, {"body": BODY, "request-id": b"r"})
    partition = only_partition(case)
    elsewhere = next(p for p in case.cluster.partitions.values() if p is not partition)
    elsewhere.requests, partition.requests = partition.requests, elsewhere.requests
    session, delivery = await take(case, await case.consume(tuple(Lane)))
    writer = await Writer.open(session, delivery)
    await writer.start()
    await writer.say("a")
    assert await writer.finish()
    assert (await shown(case.broker, delivery.ref)).text == "a"


async def test_a_dead_consumers_report_is_not_believed(case: MemoryCase) -> None:
    session = await case.consume()
    await publish(case.broker, *(Message(BODY) for _ in range(3)))
    await take_all(case, [session], 2)
    assert sum(lease.held for lease in (await case.broker.stats()).leases) == 2
    await case.lapse(session)
    stats = await case.broker.stats()
    assert stats.leases == []
    assert stats.lanes[Lane.STANDARD].waiting == 3


async def test_it_runs_by_the_systems_clock_too() -> None:
    log = MemoryLog(MemoryCluster(prefix="clock"))
    first, second = await log.consume([Lane.STANDARD], 40), await log.consume([Lane.STANDARD], 40)
    (ref,) = await publish(log, Message(BODY, "r"))
    mine, theirs = await first.pull(1, 0), await second.pull(1, 0)
    holder, other = (first, second) if mine else (second, first)
    (delivery,) = [*mine, *theirs]
    opened = await holder.open(delivery)
    assert opened.outcome is OpenOutcome.RUN
    (again,) = await asyncio.wait_for(other.pull(1, 5_000), 5)  # comes when the lease lapses, not before
    taken_over = await other.open(again)
    assert taken_over.epoch > opened.epoch
    terminal = Finished(taken_over.epoch, "stop")
    assert await other.append([Append(again, taken_over.epoch, [])]) == [True]
    assert await other.settle(again, taken_over.epoch, Done(terminal, b"line"))
    assert not await holder.settle(delivery, opened.epoch, Done(Finished(opened.epoch, "stop"), b"late"))
    assert (await shown(log, ref)).terminal == terminal
