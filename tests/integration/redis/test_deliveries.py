"""Deliveries over Redis Streams: leases, twins, retries, releases, and who may write when."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from redis.asyncio import Redis

from headrace.broker.contract import Broker, Done, OpenOutcome, Release, Retry
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.session import RedisSession
from tests.integration.redis.steps import (
    BODY,
    LANES,
    LONG_MS,
    SHORT_MS,
    lines,
    publish,
    run,
    shown,
    take,
)

LAPSE_S = SHORT_MS / 1000 * 1.3


async def test_a_session_frozen_past_its_lease_changes_nothing_when_it_wakes(broker: Broker) -> None:
    (ref,) = await publish(broker, "r")
    late = await run(await broker.consume(LANES, SHORT_MS))
    assert await late.start()
    assert await late.say(0, "one ")
    await asyncio.sleep(LAPSE_S)
    other = await broker.consume(LANES, SHORT_MS)
    owner = await run(other)
    assert owner.state.text == "one "
    assert not await late.say(1, "WRONG")
    assert not await late.finish(b"WRONG")
    assert await owner.start()
    assert await owner.say(1, "two")
    assert await owner.finish()
    assert not await late.say(1, "WRONG")
    assert (await shown(broker, ref)).text == "one two"
    assert await lines(broker, 1) == [b"line"]
    assert await late.session.heartbeat() == []  # it learned of the loss from the refusal


async def test_a_frozen_session_is_refused_as_soon_as_another_has_its_delivery(broker: Broker) -> None:
    await publish(broker, "r")
    late = await run(await broker.consume(LANES, SHORT_MS))
    await asyncio.sleep(LAPSE_S)
    await take(await broker.consume(LANES, SHORT_MS))  # has not opened it yet
    assert not await late.start()


async def test_a_refused_write_of_an_older_open_leaves_the_newer_one_its_lease(broker: Broker) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, SHORT_MS)
    first = await run(session)
    second = await run(session, first.delivery)
    assert second.epoch > first.epoch
    assert not await first.start()
    assert await session.heartbeat() == []
    assert (await broker.stats()).leases[0].held == 1
    assert await second.start()


async def test_a_late_open_of_a_delivery_that_was_lost_does_not_fence_the_one_taken_anew(
    broker: Broker,
) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, SHORT_MS)
    lost = await take(session)
    await asyncio.sleep(LAPSE_S)
    other = await broker.consume(LANES, SHORT_MS)
    assert await other.settle(await take(other), 0, Release())
    while not await session.heartbeat():  # learns that it lost it
        pass
    anew = await run(session)
    assert (await session.open(lost)).outcome is OpenOutcome.LOST
    assert await anew.start()
    assert await anew.finish()


async def test_a_delivery_dropped_after_a_refusal_is_not_renewed_for_ever(broker: Broker) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, SHORT_MS)
    late = await run(session)
    await asyncio.sleep(LAPSE_S)
    dead = await broker.consume(LANES, SHORT_MS)
    await run(dead)  # takes over, and dies
    await asyncio.sleep(LAPSE_S)
    assert await session.pull(1, 0) == []  # sweeps it back, but believes that it still runs it
    assert not await late.start()  # until its epoch is refused
    assert (await take(session, 2_000)).position == late.delivery.position


async def test_a_twin_of_a_request_that_waits_runs_or_is_parked_is_told_so(
    broker: Broker, client: Redis, names: Names
) -> None:
    await publish(broker, "r")
    stream = names.requests(Lane.BATCH)
    session = await broker.consume(LANES, LONG_MS)

    async def twin_outcome() -> OpenOutcome:
        await client.xadd(names.requests(Lane.INTERACTIVE), {"body": BODY, "request-id": "r"})
        twin = await take(session)
        assert twin.message.lane is Lane.INTERACTIVE
        outcome = (await session.open(twin)).outcome
        assert await session.settle(twin, 0, Done())
        return outcome

    assert await twin_outcome() is OpenOutcome.TWIN  # the first delivery still stands in its queue
    first = await run(session)
    assert first.delivery.position.startswith(stream)
    assert await twin_outcome() is OpenOutcome.TWIN
    assert await session.settle(first.delivery, first.epoch, Retry(300, "later"))
    assert await twin_outcome() is OpenOutcome.TWIN
    again = await run(session)
    assert again.delivery.position == first.delivery.position
    assert await twin_outcome() is OpenOutcome.TWIN
    await again.session.settle(again.delivery, again.epoch, Retry(0, "back into its queue"))
    assert await twin_outcome() is OpenOutcome.TWIN
    again = await run(session)
    await again.finish()
    assert await twin_outcome() is OpenOutcome.ENDED
    assert await lines(broker, 1) == [b"line"]


async def test_a_twin_takes_over_when_the_running_delivery_is_gone(
    broker: Broker, client: Redis, names: Names
) -> None:
    (ref,) = await publish(broker, "r")
    stream = names.requests(Lane.BATCH)
    first = await run(await broker.consume(LANES, LONG_MS))
    await first.start()
    await first.say(0, "one ")
    _, _, entry_id = first.delivery.position.rpartition("/")
    await client.xack(stream, names.group, entry_id)
    await client.xdel(stream, entry_id)
    await client.xadd(stream, {"body": BODY, "request-id": "r"})
    second = await run(await broker.consume(LANES, LONG_MS))
    assert second.state.text == "one "
    assert await second.start()
    assert not await first.say(1, "WRONG")
    await second.say(1, "two")
    await second.finish()
    assert (await shown(broker, ref)).text == "one two"


async def test_a_known_request_whose_delivery_is_gone_is_published_anew(
    broker: Broker, client: Redis, names: Names
) -> None:
    await publish(broker, "r")
    await client.xtrim(names.requests(Lane.BATCH), maxlen=0, approximate=False)
    (again,) = await broker.publish([Message(BODY, "r", Lane.BATCH)])
    assert again.duplicate is False  # type: ignore[union-attr]  # a Conflict would fail here too
    assert (await take(await broker.consume(LANES, LONG_MS))).ref == RequestRef("r")


async def test_of_two_raw_entries_with_one_id_one_runs_and_one_body_wins(
    broker: Broker, client: Redis, names: Names
) -> None:
    stream = names.requests(Lane.BATCH)
    for body in (BODY, BODY, b"another body"):
        await client.xadd(stream, {"body": body, "request-id": "r"})
    session = await broker.consume(LANES, LONG_MS)
    deliveries = await session.pull(3, 0)
    outcomes = [(await session.open(delivery)).outcome for delivery in deliveries]
    assert outcomes == [OpenOutcome.RUN, OpenOutcome.TWIN, OpenOutcome.CONFLICT]


async def test_a_release_wakes_a_waiting_consumer_at_once(broker: Broker) -> None:
    (ref,) = await publish(broker, "r")
    leaving, waiting = await broker.consume(LANES, LONG_MS), await broker.consume(LANES, LONG_MS)
    first = await run(leaving)
    await first.start()
    await first.say(0, "one")
    pull = asyncio.create_task(waiting.pull(1, 30_000))
    await asyncio.sleep(0.1)
    began = time.monotonic()
    assert await leaving.settle(first.delivery, first.epoch, Release())
    assert not await first.say(1, "WRONG")
    (taken,) = await pull
    assert time.monotonic() - began < 2.0
    assert taken.position == first.delivery.position
    second = await run(waiting, taken)
    assert second.state.text == "one"
    await second.finish()
    assert (await shown(broker, ref)).text == "one"


async def test_released_work_goes_before_new_work_and_counts_as_waiting(broker: Broker) -> None:
    await publish(broker, "old", "new", "newer")
    leaving = await broker.consume(LANES, LONG_MS)
    first = await run(leaving)
    await leaving.settle(first.delivery, first.epoch, Release())
    stats = (await broker.stats()).lanes[Lane.BATCH]
    assert (stats.waiting, stats.leased) == (3, 0)
    taken = await (await broker.consume(LANES, LONG_MS)).pull(2, 0)
    assert [delivery.ref.request_id for delivery in taken] == ["old", "new"]


async def test_a_retry_comes_when_it_is_due_to_a_consumer_that_only_waits(broker: Broker) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    first = await run(session)
    began = time.monotonic()
    assert await session.settle(first.delivery, first.epoch, Retry(400, "later"))
    assert (await broker.stats()).retrying == 1
    again = await take(session, 10_000)
    assert 0.39 < time.monotonic() - began < 5.0
    assert (again.position, again.published_ms) == (first.delivery.position, first.delivery.published_ms)
    assert again.message == first.delivery.message
    assert again.redelivered
    assert (await broker.stats()).retrying == 0


async def test_a_retry_without_id_keeps_the_position_as_its_id(broker: Broker) -> None:
    (published,) = await broker.publish([Message(BODY, headers={"x": "1"})])
    session = await broker.consume([Lane.STANDARD], LONG_MS)
    for _ in range(3):
        attempt = await run(session)
        assert attempt.delivery.ref == published.ref
        assert attempt.delivery.message.headers == {"x": "1"}
        await session.settle(attempt.delivery, attempt.epoch, Retry(0, "again"))
    assert attempt.epoch == 3


async def test_a_heartbeat_alone_brings_due_retries_back(broker: Broker) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    first = await run(session)
    await session.settle(first.delivery, first.epoch, Retry(0, "again"))
    await publish(broker, "s")
    await take(session)
    await session.heartbeat()
    assert (await broker.stats()).retrying == 0


async def test_a_session_that_pulls_without_heartbeats_loses_what_it_holds(broker: Broker) -> None:
    await publish(broker, "r")
    session, other = await broker.consume(LANES, SHORT_MS), await broker.consume(LANES, SHORT_MS)
    held = await run(session)
    await asyncio.sleep(LAPSE_S)
    assert await session.pull(1, 0) == []  # neither handed out again nor renewed
    assert (await take(other, 0)).position == held.delivery.position
    assert [delivery.ref for delivery in await session.heartbeat()] == [RequestRef("r")]


async def test_a_sweep_goes_on_where_it_stopped(broker: Broker) -> None:
    """With a limit of 1, every look takes one entry; the later ones are reached all the same."""
    await publish(broker, *(f"r{number}" for number in range(40)))
    dead = await broker.consume(LANES, SHORT_MS)
    assert len(await dead.pull(100, 0)) == 40
    await asyncio.sleep(LAPSE_S)
    session = await broker.consume(LANES, SHORT_MS)
    taken = []
    for _ in range(40):
        taken += await session.pull(1, 2_000)
        await session.heartbeat()
    assert {delivery.ref.request_id for delivery in taken} == {f"r{number}" for number in range(40)}


async def test_a_sweep_passes_over_what_the_session_holds_itself_however_much_that_is(broker: Broker) -> None:
    ids = [f"r{number}" for number in range(151)]
    await publish(broker, *ids)
    session, dead = await broker.consume(LANES, SHORT_MS), await broker.consume(LANES, SHORT_MS)
    assert len(await session.pull(150, 0)) == 150
    await take(dead)
    await asyncio.sleep(LAPSE_S)
    assert (await take(session, 0)).ref == RequestRef("r150")


async def test_a_pull_cancelled_while_it_waits_takes_nothing_with_it(broker: Broker) -> None:
    session = await broker.consume(LANES, LONG_MS)
    for number in range(20):
        pull = asyncio.create_task(session.pull(1, 30_000))
        await asyncio.sleep(number % 4 * 0.002)
        pull.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert await asyncio.wait_for(pull, 2.0) == []
    await publish(broker, "r")
    assert (await take(session)).ref == RequestRef("r")


async def test_a_pull_cancelled_just_when_work_arrives_loses_nothing(broker: Broker) -> None:
    """What the server gave to a call that was broken off comes back when the lease lapses."""
    session = await broker.consume(LANES, SHORT_MS)
    ids = [f"r{number}" for number in range(15)]
    seen = set()
    for number, request_id in enumerate(ids):
        pull = asyncio.create_task(session.pull(1, 30_000))
        await asyncio.sleep(0.002)
        await publish(broker, request_id)
        await asyncio.sleep(number % 5 * 0.001)
        pull.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            seen |= {delivery.ref.request_id for delivery in await pull}
    deadline = time.monotonic() + 8
    while len(seen) < len(ids) and time.monotonic() < deadline:
        seen |= {delivery.ref.request_id for delivery in await session.pull(20, 200)}
        await session.heartbeat()
    assert seen == set(ids)


async def test_a_waiting_pull_takes_no_more_than_its_limit_from_several_lanes(broker: Broker) -> None:
    session = await broker.consume(LANES, LONG_MS)
    pull = asyncio.create_task(session.pull(1, 5_000))
    await asyncio.sleep(0.05)
    await broker.publish([Message(BODY, "low", Lane.BATCH), Message(BODY, "high", Lane.INTERACTIVE)])
    assert [delivery.ref.request_id for delivery in await pull] == ["high"]


async def test_names_are_unique_and_empty_ones_do_not_pile_up(
    broker: Broker, client: Redis, names: Names
) -> None:
    sessions = [await broker.consume(LANES, LONG_MS) for _ in range(5)]
    assert len({session.name for session in sessions}) == 5
    await publish(broker, "r")
    for session in sessions:
        await session.pull(1, 0)
    stream = names.requests(Lane.BATCH)
    assert len(await client.xinfo_consumers(stream, names.group)) == 5
    for session in sessions:
        await session.close()
    (left,) = await client.xinfo_consumers(stream, names.group)
    assert left["pending"] == 1  # removing this one would lose its delivery


async def test_a_deleted_stream_is_made_again_and_its_consumers_go_on(
    broker: Broker, client: Redis, names: Names
) -> None:
    session = await broker.consume(LANES, LONG_MS)
    await publish(broker, "r")
    held = await run(session)
    await client.delete(names.requests(Lane.BATCH))
    assert not await held.start()
    assert await session.pull(1, 0) == []
    await publish(broker, "s")
    assert (await take(session)).ref == RequestRef("s")
    assert await session.heartbeat() == []


async def test_a_deleted_stream_strands_nothing_of_the_other_lanes(
    broker: Broker, client: Redis, names: Names
) -> None:
    session = await broker.consume(LANES, LONG_MS)
    [ref] = await publish(broker, "r", lane=Lane.INTERACTIVE)
    await client.delete(names.requests(Lane.BATCH))
    assert [one.ref for one in await session.pull(2, 0)] == [ref]


async def test_what_is_trimmed_away_while_it_is_leased_makes_no_lane_emptier_than_empty(
    broker: Broker, client: Redis, names: Names
) -> None:
    await publish(broker, "a", "b")
    session = await broker.consume(LANES, LONG_MS)
    assert len(await session.pull(2, 0)) == 2
    await client.xtrim(names.requests(Lane.BATCH), maxlen=0, approximate=False)
    assert (await broker.depths())[Lane.BATCH].waiting == 0


async def test_cancellations_between_the_start_of_a_session_and_its_first_read_are_seen(
    broker: Broker,
) -> None:
    session = await broker.consume(LANES, LONG_MS)
    await broker.cancel(RequestRef("early", "tenant:a"))
    async with asyncio.timeout(5):
        async for ref in session.cancellations():
            assert ref == RequestRef("early", "tenant:a")
            break


async def test_a_mark_for_an_unknown_id_hits_what_was_published_before_it_only(
    broker: Broker, client: Redis, names: Names
) -> None:
    stream = names.requests(Lane.BATCH)
    await client.xadd(stream, {"body": BODY, "request-id": "before"})
    await asyncio.sleep(0.005)
    for request_id in ("before", "after", "published"):
        await broker.cancel(RequestRef(request_id))
    await asyncio.sleep(0.005)
    await client.xadd(stream, {"body": BODY, "request-id": "after"})
    await publish(broker, "published")
    session = await broker.consume(LANES, LONG_MS)
    opened = {d.ref.request_id: (await session.open(d)).cancelled for d in await session.pull(3, 0)}
    assert opened == {"before": True, "after": False, "published": False}
    assert not await broker.known(RequestRef("nobody"))


async def test_a_publish_wipes_an_older_mark_even_where_the_clock_went_back(
    broker: Broker, client: Redis, names: Names
) -> None:
    await client.hset(names.index(RequestRef("r")), "cancelled", "9999999999999")
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    assert not (await session.open(await take(session))).cancelled


async def test_logs_live_for_ever_until_they_end_and_then_for_a_while(
    broker: Broker, client: Redis, names: Names
) -> None:
    (ref,) = await publish(broker, "r")
    attempt = await run(await broker.consume(LANES, LONG_MS))
    await attempt.start()
    keys = names.log(ref), names.index(ref)
    assert [await client.ttl(key) for key in keys] == [-1, -1]
    await attempt.finish()
    assert all(86_000 < left <= 86_400 for left in [await client.ttl(key) for key in keys])


async def test_tenants_with_colons_keep_their_requests_apart(broker: Broker) -> None:
    await broker.publish([Message(BODY, "b:c", tenant="a"), Message(b"other", "c", tenant="a:b")])
    session = await broker.consume([Lane.STANDARD], LONG_MS)
    outcomes = [(await session.open(d)).outcome for d in await session.pull(2, 0)]
    assert outcomes == [OpenOutcome.RUN, OpenOutcome.RUN]


@pytest.mark.slow
async def test_hundreds_of_calls_at_once_wait_for_one_another(broker: Broker) -> None:
    ids = [f"r{number}" for number in range(300)]
    await asyncio.gather(*(publish(broker, request_id) for request_id in ids))
    session = await broker.consume(LANES, LONG_MS)
    attempts = await asyncio.gather(*(run(session, held) for held in await session.pull(300, 0)))
    assert all(await asyncio.gather(*(attempt.finish() for attempt in attempts)))
    watches = (shown(broker, RequestRef(request_id)) for request_id in ids)
    assert all(state.ended for state in await asyncio.gather(*watches))
    assert len(await lines(broker, 300)) == 300


@pytest.mark.slow
async def test_many_held_deliveries_are_renewed_together(broker: Broker) -> None:
    count = 600
    await publish(broker, *(f"r{number}" for number in range(count)))
    session = await broker.consume(LANES, LONG_MS)
    assert isinstance(session, RedisSession)
    assert len(await session.pull(count, 0)) == count
    assert await session.heartbeat() == []
    assert (await broker.stats()).lanes[Lane.BATCH].leased == count


async def test_one_with_as_many_headers_as_are_allowed_comes_back_from_a_retry(broker: Broker) -> None:
    headers = {f"x-{n}": "1" for n in range(255)}  # and its id
    await broker.publish([Message(BODY, "r", Lane.BATCH, headers=headers)])
    session = await broker.consume(LANES, LONG_MS)
    first = await run(session)
    assert await session.settle(first.delivery, first.epoch, Retry(0, "busy"))
    again = await session.pull(1, 500)
    assert await broker.dead_letters() == []
    assert len(again) == 1
