"""What waits in a consumer: who comes next, and what becomes of those that never do."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from headrace.broker.contract import Done, LaneDepth, OpenOutcome, Release
from headrace.broker.events import Delta, Failed, Finished, Started
from headrace.broker.message import Lane
from headrace.broker.queue_policy import QueuePolicy
from headrace.consumer.intake import FULL_WAIT_MS, PULL_WAIT_MS
from headrace.consumer.settings import ConsumerSettings
from tests.unit.consumer.fakes import FINGERPRINT, NOW_MS, Rig, delivery, eventually, settings_for_tests

BACKLOG = {Lane.BATCH: LaneDepth(1000), Lane.STANDARD: LaneDepth(1000)}


def settings(*, slots: int = 1, reserve: int = 0, times: int = 8, **changes: object) -> ConsumerSettings:
    window = {"times": times, "interactive_reserve": reserve, "interactive_poll_s": 0.002}
    return settings_for_tests(max_in_flight=slots, window=window, **changes)


async def busy(rig: Rig, *names: str, lane: Lane = Lane.STANDARD) -> None:
    """All slots are taken, and the consumer knows of a backlog, so that it holds more than it serves."""
    rig.registry.lanes = BACKLOG
    rig.publish(*(delivery(name, lane=lane) for name in names))
    await rig.engine.get(len(names))
    await eventually(lambda: rig.session.pulls[-1] > 1, "a pull for the room")


async def finish(rig: Rig, number: int = -1) -> None:
    """Ends what is in the engine; the next one comes in."""
    count = len(rig.engine.added)
    rig.engine.give(rig.engine.added[number].id, 65, finish="stop")
    if rig.worker.in_flight > 1:
        await rig.engine.get(count + 1)


def failed(settlement: object) -> Failed:
    assert isinstance(settlement, Done)
    assert isinstance(settlement.terminal, Failed)
    return settlement.terminal


async def started(rig: Rig, *names: str) -> None:
    """These were started, in this order, and no others."""
    await eventually(lambda: len(rig.session.begun) >= len(names), f"the start of {names}")
    assert rig.session.begun == list(names)


# ------------------------------------------------------------------------------------------ who is next


async def test_those_that_wait_are_neither_opened_nor_started() -> None:
    async with Rig(settings()) as rig:
        await busy(rig, "first")
        rig.publish(delivery("a"), delivery("b"))
        await eventually(lambda: rig.worker.in_flight == 3)
        await asyncio.sleep(0.005)
        assert set(rig.session.epochs) == {"first"}
        assert len(rig.engine.added) == 1


async def test_a_small_backlog_is_left_to_the_peers() -> None:
    async with Rig(settings(slots=2)) as rig:
        rig.registry.lanes = {Lane.STANDARD: LaneDepth(3)}
        rig.registry.enter("", "words")
        rig.registry.enter("", "words")
        rig.publish(*(delivery(f"r{n}") for n in range(5)))
        await rig.engine.get(2)
        await asyncio.sleep(0.02)
        assert len(rig.session.queue) == 3


async def test_the_next_one_is_chosen_by_lane_deadline_and_tenant() -> None:
    async with Rig(settings(times=9)) as rig:
        await busy(rig, "first")
        rig.publish(
            delivery("many 1", lane=Lane.BATCH, tenant="many"),
            delivery("few 1", lane=Lane.BATCH, tenant="few"),
            delivery("many 2", lane=Lane.BATCH, tenant="many"),
            delivery("many 3", lane=Lane.BATCH, tenant="many"),
            delivery("few 2", lane=Lane.BATCH, tenant="few"),
            delivery("later", deadline_ms=NOW_MS + 90_000),
            delivery("sooner", deadline_ms=NOW_MS + 60_000),
            delivery("interactive", lane=Lane.INTERACTIVE),
        )
        await eventually(lambda: rig.worker.in_flight == 9)
        for _ in range(9):
            await finish(rig)
        await rig.idle()
        order = ("many 1", "few 1", "many 2", "few 2", "many 3")
        await started(rig, "first", "interactive", "sooner", "later", *order)


async def test_of_what_is_all_alike_little_is_held() -> None:
    async with Rig(settings()) as rig:
        await busy(rig, "first")
        rig.publish(*(delivery(f"r{n}") for n in range(6)))
        await eventually(lambda: rig.worker.in_flight == 3)
        await asyncio.sleep(0.01)
        assert len(rig.session.queue) == 4
        rig.session.queue[0] = delivery("other", tenant="other")
        await finish(rig)
        await eventually(lambda: not rig.session.queue, "a room for all, now that there is a choice")


async def test_an_interactive_request_gets_in_though_all_slots_are_taken_and_a_batch_one_does_not() -> None:
    async with Rig(settings(reserve=1)) as rig:
        await busy(rig, "first", lane=Lane.BATCH)
        rig.publish(delivery("batch", lane=Lane.BATCH))
        await eventually(lambda: rig.worker.in_flight == 2)
        rig.publish(delivery("now", lane=Lane.INTERACTIVE), delivery("next", lane=Lane.INTERACTIVE))
        request = await rig.engine.get(2)
        assert request.priority == 0
        await asyncio.sleep(0.01)
        await started(rig, "first", "now")  # the margin is one
        await finish(rig)
        await started(rig, "first", "now", "next")


async def test_without_a_backlog_an_interactive_request_is_still_pulled_when_all_is_full() -> None:
    async with Rig(settings(reserve=1)) as rig:
        rig.publish(delivery("first", lane=Lane.BATCH), delivery("second", lane=Lane.BATCH))
        await rig.engine.get()
        await asyncio.sleep(0.01)
        rig.publish(delivery("now", lane=Lane.INTERACTIVE))
        await rig.engine.get(2)
        assert [one.ref.request_id for one in rig.session.queue] == ["second"]


async def test_while_no_slot_becomes_free_the_pull_itself_waits_for_interactive_work() -> None:
    async with Rig(settings(slots=2, reserve=1)) as rig:
        rig.publish(delivery("first"), delivery("second"), delivery("third"))
        await rig.engine.get(2)
        await eventually(lambda: rig.session.waits[-1] == FULL_WAIT_MS, "a pull that waits")
        count = len(rig.session.waits)
        await finish(rig)
        await eventually(lambda: 0 <= min(rig.session.waits[count:]) < FULL_WAIT_MS, "one that does not")
        assert max(rig.session.waits[count:]) == PULL_WAIT_MS, "there was a slot"


async def test_large_bodies_fill_the_room() -> None:
    window = {"times": 8, "interactive_reserve": 0, "max_bytes": 100}
    async with Rig(settings_for_tests(max_in_flight=1, window=window)) as rig:
        await busy(rig, "first")
        rig.publish(delivery("large"))
        await eventually(lambda: rig.worker.in_flight == 2)
        await asyncio.sleep(0.01)
        rig.publish(delivery("left"))
        await asyncio.sleep(0.01)
        assert rig.worker.in_flight == 2


# --------------------------------------------------------------------------- those that never get a slot


async def test_a_cancel_ends_one_that_waits() -> None:
    async with Rig(settings()) as rig:
        await busy(rig, "first")
        rig.publish(delivery())
        await eventually(lambda: rig.worker.in_flight == 2)
        rig.session.cancel("r1")
        assert failed(await rig.settled()).code == "cancelled"
        assert rig.worker.in_flight == 1


async def test_a_deadline_ends_one_that_waits() -> None:
    async with Rig(settings()) as rig:
        await busy(rig, "first")
        rig.publish(delivery(deadline_ms=NOW_MS + 20))
        assert failed(await rig.settled()).code == "expired"
        assert len(rig.engine.added) == 1


async def test_a_deadline_that_only_our_clock_sees_pass_makes_it_wait_on() -> None:
    async with Rig(settings()) as rig:
        await busy(rig, "first")
        rig.session.now_ms = NOW_MS - 10_000  # the broker's clock was set back
        rig.publish(delivery(deadline_ms=NOW_MS + 20))
        await eventually(lambda: "r1" in rig.session.epochs, "the opening out of its turn")
        await asyncio.sleep(0.01)
        assert not rig.session.settled
        assert len(rig.engine.added) == 1, "it still has no slot"
        await finish(rig)
        await started(rig, "first", "r1")


async def test_a_lease_that_is_lost_ends_one_that_waits_and_its_place_is_free() -> None:
    async with Rig(settings()) as rig:
        await busy(rig, "first")
        rig.publish(delivery())
        await eventually(lambda: rig.worker.in_flight == 2)
        rig.session.lost = [rig.session.pulled["r1"]]
        await eventually(lambda: rig.worker.counters.fenced == 1)
        await finish(rig)
        await rig.idle()
        await started(rig, "first")


async def test_a_drain_hands_those_that_wait_back_at_once_and_unopened() -> None:
    async with Rig(settings(grace_s=1000)) as rig:
        await busy(rig, "first")
        rig.publish(delivery("a"), delivery("b"))
        await eventually(lambda: rig.worker.in_flight == 3)
        rig.drain.request()
        assert await rig.settled("a") == await rig.settled("b") == Release()
        assert set(rig.session.epochs) == {"first"}
        await finish(rig)
        await asyncio.wait_for(rig.task, 5)
        assert isinstance(rig.session.fold("first").terminal, Finished)


async def test_those_that_wait_of_a_lane_that_is_paused_go_back() -> None:
    async with Rig(settings()) as rig:
        await busy(rig, "first")
        rig.registry.lanes = {**BACKLOG, Lane.BATCH: LaneDepth(1000, paused=True)}
        rig.publish(delivery("batch", lane=Lane.BATCH), delivery("standard"))
        assert await rig.settled("batch") == Release()
        assert rig.worker.in_flight == 2


# -------------------------------------------------------------------------------------- queue timeouts


def policy(timeout_ms: int, on_timeout: Literal["reject", "delay"] = "reject") -> dict[Lane, QueuePolicy]:
    return {Lane.STANDARD: QueuePolicy(timeout_ms=timeout_ms, on_timeout=on_timeout)}


async def test_one_that_waited_too_long_in_the_queue_is_refused_with_the_numbers() -> None:
    async with Rig(settings(queue=policy(2000))) as rig:
        rig.publish(delivery(published_ms=NOW_MS - 3000))
        failure = failed(await rig.settled())
        assert (failure.code, failure.status) == ("queue_timeout", 429)
        assert "waited 3.0 s" in failure.message
        assert not rig.engine.added


async def test_one_that_waits_too_long_for_a_slot_is_refused() -> None:
    async with Rig(settings(queue=policy(60))) as rig:
        await busy(rig, "first")
        rig.publish(delivery())
        assert failed(await rig.settled()).code == "queue_timeout"


async def test_a_request_may_ask_for_less_but_not_where_it_must_not() -> None:
    stern = {Lane.BATCH: QueuePolicy(may_shorten=False)}
    async with Rig(settings(slots=2, queue=stern)) as rig:
        rig.publish(
            delivery("own", published_ms=NOW_MS - 3000, queue_timeout_ms=1000),
            delivery("batch", published_ms=NOW_MS - 3000, queue_timeout_ms=1000, lane=Lane.BATCH),
        )
        assert failed(await rig.settled("own")).code == "queue_timeout"
        await rig.engine.get()
        await started(rig, "batch")


async def test_one_that_has_begun_before_is_never_refused_for_its_wait() -> None:
    async with Rig(settings(queue=policy(2000))) as rig:
        body_hash = delivery().message.body_hash
        started = Started(1, "old", "d", 1, body_hash, FINGERPRINT)
        rig.session.logs["r1"], rig.session.epochs["r1"] = [started, Delta(1, 0, (65,), "A")], 1
        rig.publish(delivery(published_ms=NOW_MS - 3000))
        assert (await rig.engine.get()).output_ids == [65]


async def test_where_the_policy_says_delay_the_late_ones_go_behind_those_in_time() -> None:
    async with Rig(settings(queue=policy(2000, "delay"))) as rig:
        await busy(rig, "first")
        rig.publish(delivery("late", published_ms=NOW_MS - 3000), delivery("in time"))
        await eventually(lambda: rig.worker.in_flight == 3)
        for _ in range(3):
            await finish(rig)
        await rig.idle()
        await started(rig, "first", "in time", "late")


@pytest.mark.parametrize("outcome", [OpenOutcome.TWIN, OpenOutcome.LOST])
async def test_what_is_not_to_be_run_frees_its_slot(outcome: OpenOutcome) -> None:
    async with Rig(settings()) as rig:
        rig.session.outcomes["r1"] = outcome
        rig.publish(delivery(), delivery("other"))
        await rig.engine.get()
        await started(rig, "other")
