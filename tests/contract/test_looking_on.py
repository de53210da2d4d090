"""Result topics and figures."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.contract import DeadLetter, LaneDepth, Retry
from headrace.broker.errors import UnknownCursor
from headrace.broker.message import Lane, Message
from tests.contract.case import Case
from tests.contract.steps import (
    BODY,
    PATIENCE_S,
    Writer,
    publish,
    read_results,
    take,
    take_all,
)


async def answer(case: Case, count: int, reply_to: str | None = None, first: int = 0) -> None:
    """Publishes and answers requests one after the other; line and id are their numbers."""
    session = await case.consume()
    for i in range(first, first + count):
        await publish(case.broker, Message(BODY, f"{i}", reply_to=reply_to))
        ((_, delivery),) = await take_all(case, [session], 1)
        writer = await Writer.open(session, delivery)
        await writer.start()
        assert await writer.finish(b"%d" % i)
    await case.leave(session)


async def test_results_are_read_from_the_start_and_behind_any_cursor(case: Case) -> None:
    await answer(case, 4)
    whole = await read_results(case)
    assert [result.line for result in whole] == [b"0", b"1", b"2", b"3"]
    for i, result in enumerate(whole[:-1]):
        follower = case.broker.results(cursor=result.cursor)
        assert await asyncio.wait_for(anext(follower), PATIENCE_S) == whole[i + 1]


async def test_a_follower_of_results_waits_for_more(case: Case) -> None:
    topic = f"{case.names.prefix}.reply.mine"
    follower = case.broker.results(topic)
    line = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0.02)
    assert not line.done()
    await answer(case, 1, topic)
    assert (await asyncio.wait_for(line, PATIENCE_S)).line == b"0"
    await answer(case, 1, topic, first=1)
    assert (await asyncio.wait_for(anext(follower), PATIENCE_S)).line == b"1"


async def test_two_followers_get_all_the_results(case: Case) -> None:
    await answer(case, 3)
    first, second = await read_results(case), await read_results(case)
    assert first == [result for result in second if result.headers["request-id"] in {"0", "1", "2"}]


async def test_lines_that_were_stored_can_be_dropped(case: Case) -> None:
    topic = f"{case.names.prefix}.reply.mine"
    await answer(case, 3, topic)
    lines = await read_results(case, topic)
    await case.broker.trim_results(topic, lines[1].cursor)
    left = await asyncio.wait_for(anext(case.broker.results(topic)), PATIENCE_S)
    assert left == lines[2]
    behind = await asyncio.wait_for(anext(case.broker.results(topic, lines[1].cursor)), PATIENCE_S)
    assert behind == lines[2], "a cursor of a dropped line still says where to go on"


async def test_a_result_cursor_of_nowhere_is_an_error(case: Case) -> None:
    await answer(case, 1)
    with pytest.raises(UnknownCursor):
        await asyncio.wait_for(anext(case.broker.results(cursor="nonsense")), PATIENCE_S)


async def test_the_figures_of_an_empty_queue_are_zero(case: Case) -> None:
    stats = await case.broker.stats()
    assert set(stats.lanes) == set(Lane)
    assert all((s.waiting, s.leased, s.oldest_ms) == (0, 0, 0) for s in stats.lanes.values())
    assert (stats.leases, stats.retrying, stats.dead_letters) == ([], 0, 0)


async def test_waiting_leased_retrying_and_dead_add_up(case: Case) -> None:
    count = 12
    session = await case.consume([Lane.BATCH])
    await publish(case.broker, *(Message(BODY, lane=Lane.BATCH) for _ in range(count)))
    await case.pass_time(case.lease_ms // 4)
    taken = [delivery for _, delivery in await take_all(case, [session], 7)]

    async def figures() -> tuple[int, int, int, int]:
        stats = await case.broker.stats()
        lane = stats.lanes[Lane.BATCH]
        assert sum(lease.held for lease in stats.leases) == lane.leased
        return lane.waiting, lane.leased, stats.retrying, stats.dead_letters

    assert await figures() == (5, 7, 0, 0)
    assert await session.settle(taken[0], 0, Retry(10 * case.lease_ms, "busy"))
    assert await figures() == (5, 6, 1, 0)
    assert await session.settle(taken[1], 0, DeadLetter("unwanted"))
    assert await figures() == (5, 5, 1, 1)
    for delivery in taken[2:]:
        writer = await Writer.open(session, delivery)
        await writer.start()
        assert await writer.finish()
    assert await figures() == (5, 0, 1, 1)


async def test_the_figures_name_who_holds_what_and_how_old_the_oldest_is(case: Case) -> None:
    session = await case.consume([Lane.STANDARD])
    await publish(case.broker, Message(BODY), Message(BODY))
    await case.pass_time(case.lease_ms // 2)
    assert len(await session.pull(1, 0)) == 1
    stats = await case.broker.stats()
    (lease,) = stats.leases
    assert (lease.lane, lease.consumer, lease.held) == (Lane.STANDARD, session.name, 1)
    assert 0 <= lease.idle_ms < case.lease_ms
    standard = stats.lanes[Lane.STANDARD]
    assert (standard.waiting, standard.leased) == (1, 1)
    assert case.lease_ms // 2 <= standard.oldest_ms < 60_000


async def test_depths_are_those_of_the_figures(case: Case) -> None:
    session = await case.consume()
    await case.pause(Lane.STANDARD)
    await publish(case.broker, *(Message(BODY, f"r{i}", lane=Lane.BATCH) for i in range(3)))
    await publish(case.broker, Message(BODY, "s", lane=Lane.STANDARD))
    await take(case, session)
    depths, stats = await case.broker.depths(), await case.broker.stats()
    assert depths == {lane: LaneDepth(one.waiting, one.paused) for lane, one in stats.lanes.items()}
    assert (depths[Lane.BATCH], depths[Lane.STANDARD]) == (LaneDepth(2), LaneDepth(1, paused=True))
