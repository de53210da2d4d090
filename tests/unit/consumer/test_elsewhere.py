"""Models that are not served here, large bodies, and what the registry is told."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headrace.broker.blobs import BlobStore, check_in
from headrace.broker.contract import Done, PassOn, Release, Retry, Serves, Settlement
from headrace.broker.errors import BrokerRefused
from headrace.broker.events import Failed, Handed, Moved
from headrace.broker.message import Claim, Delivery, Message
from tests.unit.consumer.fakes import NOW_MS, Rig, delivery, eventually, line, settings_for_tests

OTHER = line(model="other")


def failed(settlement: object) -> Failed:
    assert isinstance(settlement, Done)
    assert isinstance(settlement.terminal, Failed)
    return settlement.terminal


# ---------------------------------------------------------------------------------------------- pools


async def test_a_request_for_a_model_of_another_pool_is_passed_on() -> None:
    async with Rig() as rig:
        rig.registry.enter("large", "other")
        rig.publish(delivery(body=OTHER))
        assert await rig.settled() == PassOn("large")
        await rig.idle()
        assert rig.worker.counters.passed_on == 1
        assert not rig.session.starts()


async def test_a_pool_that_cannot_be_given_a_request_is_no_matter_of_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka: the other pool's topics were changed, or may not be written."""

    async with Rig() as rig:
        settle = rig.session.settle

        async def refusing(one: Delivery, epoch: int, settlement: Settlement) -> bool:
            if isinstance(settlement, PassOn):
                raise BrokerRefused("the topic x.requests.other.standard was changed")
            return await settle(one, epoch, settlement)

        monkeypatch.setattr(rig.session, "settle", refusing)
        rig.registry.enter("other", "gpt-9")
        rig.publish(delivery("elsewhere", body=line(model="gpt-9")), delivery("here"))
        request = await rig.engine.get()
        await eventually(lambda: "elsewhere" in rig.session.settled or rig.task.done())
        assert not rig.task.done(), rig.task
        assert isinstance(await rig.settled("elsewhere"), Retry)
        rig.engine.give(request.id, 66, finish="length")
        await rig.settled("here")


async def test_a_model_that_nobody_serves_fails_with_the_list_of_those_that_are() -> None:
    async with Rig() as rig:
        rig.registry.enter("large", "big-one", "alias-of-it")
        rig.publish(delivery(body=OTHER))
        failure = failed(await rig.settled())
        assert (failure.code, failure.status, failure.param) == ("model_not_found", 404, "model")
        assert "served: 'words', 'alias', 'big-one'" in failure.message


async def test_a_request_that_came_from_another_pool_is_not_passed_on_again() -> None:
    async with Rig() as rig:
        rig.registry.enter("large", "other")
        rig.publish(delivery(body=OTHER, position="headrace.requests.large.standard/3/17"))
        assert failed(await rig.settled()).code == "model_not_found"


async def test_a_log_that_moved_once_moves_no_more() -> None:
    async with Rig() as rig:
        rig.registry.enter("large", "other")
        rig.session.logs["r1"] = [Moved(1, "", "")]
        rig.session.epochs["r1"] = 1
        rig.publish(delivery(body=OTHER))
        assert failed(await rig.settled()).code == "model_not_found"


async def test_a_pool_that_is_just_being_changed_gets_a_second_chance() -> None:
    async with Rig() as rig:
        rig.registry.enter("", "other")
        rig.publish(delivery(body=OTHER))
        settlement = await rig.settled()
        assert isinstance(settlement, Retry)
        assert settlement.reason.startswith("retry 1: ")


async def test_a_registry_that_is_away_makes_the_request_come_back_later() -> None:
    async with Rig() as rig:
        rig.registry.away = True
        rig.session.logs["r1"] = [Handed(1, "retry 4: away")]
        rig.session.epochs["r1"] = 1
        rig.publish(delivery(body=OTHER))
        settlement = await rig.settled()
        assert isinstance(settlement, Retry)
        assert settlement.reason.startswith("retry 5: ")
        assert 0 <= settlement.delay_ms <= 16_000


async def test_a_request_without_a_model_takes_what_there_is() -> None:
    async with Rig() as rig:
        rig.registry.away = True
        rig.publish(delivery(body=line()))
        await rig.engine.get()


# -------------------------------------------------------------------------------------------- registry


async def test_the_registry_is_told_once_the_engine_is_ready_and_when_something_changed() -> None:
    rig = Rig(settings_for_tests(model="public", aliases=["also"]))
    rig.first_words = None
    async with rig:
        await asyncio.sleep(0.005)
        assert not rig.session.announced
        rig.session.fail("announce", lands=False)
        rig.first_words = ready = Rig().first_words
        assert ready is not None
        rig.engine.say(ready)
        await eventually(lambda: bool(rig.session.announced))
        assert rig.session.announced == [Serves(("public", "words", "also"), 4)]
        rig.engine.die()
        await rig.next_engine(2)
        await asyncio.sleep(0.01)
        assert len(rig.session.announced) == 1, "nothing changed"
        rig.first_words = Rig(batch_size=9).first_words
        rig.engine.die()
        await eventually(lambda: len(rig.session.announced) == 2)
        assert rig.session.announced[1].slots == 9


# ---------------------------------------------------------------------------------------- claim check


@pytest.fixture
def store() -> BlobStore:
    return BlobStore("memory://consumer-tests", threshold=10)


async def test_a_body_in_the_store_is_fetched_before_it_is_parsed(store: BlobStore) -> None:
    message = await check_in(Message(line("claimed"), "r1"), store)
    async with Rig(store=store) as rig:
        rig.publish(delivery(body=b"", claim=message.claim))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65, finish="stop")
        settlement = await rig.settled()
        assert isinstance(settlement, Done)
        assert b'"custom_id":"claimed"' in (settlement.line or b"")
        assert rig.session.starts()[0].body_hash == Message(line("claimed")).body_hash


async def test_a_body_that_is_gone_is_a_clear_failure(store: BlobStore) -> None:
    digest = Message(b"never put there").body_hash
    claim = Claim(f"{digest.hex()[:2]}/{digest.hex()}", digest, 15)
    async with Rig(store=store) as rig:
        rig.publish(delivery(body=b"", claim=claim))
        failure = failed(await rig.settled())
        assert (failure.code, failure.status) == ("body_unavailable", 400)
        assert "is not in memory://consumer-tests" in failure.message


async def test_a_consumer_without_a_store_says_so(store: BlobStore) -> None:
    message = await check_in(Message(line(), "r1"), store)
    async with Rig() as rig:
        rig.publish(delivery(body=b"", claim=message.claim))
        assert "was given none" in failed(await rig.settled()).message


async def test_a_store_that_does_not_answer_makes_the_request_come_back_later(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = await check_in(Message(line(), "r1"), store)

    def broken(*args: object) -> bytes:
        raise OSError("no route to the store")

    monkeypatch.setattr(store, "_read", broken)
    async with Rig(store=store) as rig:
        rig.publish(delivery(body=b"", claim=message.claim))
        settlement = await rig.settled()
        assert isinstance(settlement, Retry)
        assert "no route to the store" in settlement.reason
        fold = rig.session.fold()
        assert fold.put_off is not None
        assert fold.put_off.reason.startswith("retry 1: ")


@pytest.mark.parametrize("why", ["cancelled", "expired", "drained", "lost"])
async def test_a_store_that_hangs_holds_up_nobody_whose_time_is_over(
    why: str, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = await check_in(Message(line(), "r1"), store)
    begun, gate = threading.Event(), threading.Event()

    def hangs(*args: object) -> bytes:
        begun.set()
        gate.wait(60)
        return line()

    monkeypatch.setattr(store, "_read", hangs)
    async with Rig(settings_for_tests(grace_s=0.05), store=store) as rig:
        try:
            deadline_ms = NOW_MS + 200 if why == "expired" else None
            rig.publish(delivery(body=b"", claim=message.claim, deadline_ms=deadline_ms))
            await eventually(begun.is_set, "the fetch")
            if why == "cancelled":
                rig.session.cancel("r1")
            elif why == "drained":
                rig.drain.request()
            elif why == "lost":
                rig.session.lost = [rig.session.pulled["r1"]]
            await rig.idle()
        finally:
            gate.set()
        if why in ("cancelled", "expired"):
            assert failed(await rig.settled()).code == why
        elif why == "drained":
            assert isinstance(await rig.settled(), Release)


# --------------------------------------------------------------------------------------------- chunks


async def test_a_stream_on_a_reply_topic_gets_its_chunks_beside_the_events() -> None:
    async with Rig() as rig:
        rig.publish(delivery(reply_to="headrace.reply.me"))
        request = await rig.engine.get()
        rig.engine.give(request.id, 72)
        await rig.logged("H")
        rig.engine.give(request.id, 105, finish="stop")
        await rig.settled()
        chunks = [chunk for batch in rig.session.appends for item in batch for chunk in item.chunks]
        assert [b'"content":"H"' in chunks[0], b'"content":"i"' in chunks[1]] == [True, True]
        assert b'"model":"words"' in chunks[0]
