"""Sessions on a real Kafka, in this process and in others that are killed and frozen."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.broker.connect import connect
from headrace.broker.contract import Append, ConsumerSession, Done, OpenOutcome, Retry
from headrace.broker.errors import BrokerRefused, BrokerUnavailable, TooLarge
from headrace.broker.events import Delta, Finished, Handed
from headrace.broker.ids import new_request_id
from headrace.broker.kafka import commits
from headrace.broker.kafka.session import KafkaSession
from headrace.broker.message import Delivery, Lane, Message, RequestRef
from tests.contract.steps import BODY, Writer, publish, publish_one, read_log, shown
from tests.integration.kafka.sessions import LEASE_MS, OPTIONS, Fleet, committed_lines, deliveries
from tests.support.frozen import freeze
from tests.support.kafka_server import running_kafka

pytestmark = pytest.mark.slow


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def fleet(kafka_url: str, prefix: str) -> AsyncIterator[Fleet]:
    made = Fleet(await connect(kafka_url, prefix=prefix, options=OPTIONS))
    yield made
    await made.close()


async def child(url: str, prefix: str, mode: str) -> asyncio.subprocess.Process:
    """A consumer that runs a request in a process of its own, up to its `holding`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.kafka.session_child", url, prefix, mode, str(LEASE_MS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    await said(process, "holding")
    return process


async def said(process: asyncio.subprocess.Process, text: str | None = None) -> str:
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    assert text is None or line == text, line
    return line


# ------------------------------------------------------------------------------------- killed and frozen


async def test_an_owner_killed_in_its_transaction_is_succeeded_within_its_lease_and_two_seconds(
    kafka_url: str, prefix: str, fleet: Fleet
) -> None:
    ref = await publish_one(fleet.broker)
    victim = await child(kafka_url, prefix, "dies")
    await said(victim, "in transaction")
    session = await fleet.consume()
    victim.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    (delivery,) = await deliveries(session, 1)
    assert time.monotonic() - killed < LEASE_MS / 1000 + 2
    assert (await session.open(delivery)).outcome is OpenOutcome.ENDED, "its terminal record stands"
    assert await session.settle(delivery, 0, Done())
    assert (await shown(fleet.broker, ref)).text == "aX"
    assert await committed_lines(kafka_url, f"{prefix}.results") == [b"of the dead"]
    await victim.wait()


async def test_an_owner_frozen_past_its_lease_shows_nothing_when_it_wakes_and_knows_what_it_lost(
    kafka_url: str, prefix: str, fleet: Fleet
) -> None:
    ref = await publish_one(fleet.broker)
    frozen = await child(kafka_url, prefix, "freezes")
    freeze(frozen.pid)
    session = await fleet.consume()
    (delivery,) = await deliveries(session, 1)
    owner = await Writer.open(session, delivery)
    assert owner.fold.text == "a"
    await owner.start()
    frozen.send_signal(signal.SIGCONT)
    assert frozen.stdin is not None
    frozen.stdin.write(b"\n")
    answer = json.loads(await said(frozen))
    assert (answer["settled"], answer["lost"]) == (False, [ref.request_id])
    await owner.say("b")
    assert await owner.finish(b"right")
    assert (await shown(fleet.broker, ref)).text == "ab"
    assert await committed_lines(kafka_url, f"{prefix}.results") == [b"right"]
    await frozen.wait()


async def test_a_process_whose_loop_hangs_gives_its_work_to_others(fleet: Fleet) -> None:
    """kafka-python's own heartbeats would go on."""
    await publish_one(fleet.broker)
    first = await fleet.consume()
    await deliveries(first, 1)
    time.sleep(LEASE_MS / 1000 * 1.5)  # noqa: ASYNC251  that is what is tested
    assert isinstance(first, KafkaSession)
    assert first._owner.membership is None, "it left the group meanwhile"
    second = await fleet.consume()
    async with asyncio.timeout(20):
        while not (again := await second.pull(1, 100) or await first.pull(1, 100)):
            pass
    assert again[0].ref.request_id == "r"
    assert [delivery.ref for delivery in await fleet.hears_of_loss(first)] == [again[0].ref]


async def test_a_settle_under_a_membership_of_the_past_is_refused_and_its_line_seen_by_nobody(
    kafka_url: str, prefix: str, fleet: Fleet
) -> None:
    """The zombie does not know: it goes on with the snapshot that it took when it was a member."""
    await publish_one(fleet.broker)
    zombie = await fleet.consume()
    assert isinstance(zombie, KafkaSession)
    late = await Writer.open(zombie, (await deliveries(zombie, 1))[0])
    await late.start()
    snapshot = zombie._owner.membership
    tenures = dict(zombie._holdings.tenures)
    fleet.freeze(zombie)
    await asyncio.sleep(LEASE_MS / 1000 * 1.3)
    other = await fleet.consume()
    owner = await Writer.open(other, (await deliveries(other, 1))[0])
    await owner.start()
    for tenure in tenures.values():
        tenure.gone = False
        tenure.held[0] = late.delivery
    zombie._owner._membership = snapshot
    settling = asyncio.create_task(late.finish(b"of a zombie"))
    await asyncio.sleep(0.5)
    assert not settling.done(), "refused again and again: it never hears that it is lost"
    for tenure in tenures.values():
        tenure.gone = True
    assert not await settling
    assert await owner.finish(b"right")
    assert await committed_lines(kafka_url, f"{prefix}.results") == [b"right"]


async def test_a_static_twin_ends_the_session_that_it_replaces(kafka_url: str, prefix: str) -> None:
    options = {**OPTIONS, "group_instance_id": "pod-1"}
    broker = await connect(kafka_url, prefix=prefix, options=options)
    fleet = Fleet(broker)
    try:
        await publish_one(broker)
        first = await broker.consume([Lane.STANDARD], LEASE_MS)
        late = await Writer.open(first, (await deliveries(first, 1))[0])
        await late.start()
        second = await fleet.consume()
        (again,) = await deliveries(second, 1)
        with pytest.raises(BrokerRefused, match="group_instance_id"):
            await beat_for_ever(first)
        with pytest.raises(BrokerRefused):
            await late.finish(b"of the twin")
        owner = await Writer.open(second, again)
        await owner.start()
        assert await owner.finish(b"right")
        assert await committed_lines(kafka_url, f"{prefix}.results") == [b"right"]
        await first.close()
    finally:
        await fleet.close()


async def beat_for_ever(session: ConsumerSession) -> None:
    async with asyncio.timeout(10):
        while True:
            await session.heartbeat()
            await asyncio.sleep(0.05)


# -------------------------------------------------------------------------------------------- moving


async def test_a_consumer_that_joins_takes_its_share_and_nothing_else_moves(
    kafka_url: str, prefix: str, fleet: Fleet
) -> None:
    first = await fleet.consume([Lane.STANDARD, Lane.BATCH])
    ids = [f"r{i}" for i in range(24)]
    lanes = [Lane.STANDARD, Lane.BATCH]
    refs = await publish(
        fleet.broker, *(Message(BODY, name, lane=lanes[i % 2]) for i, name in enumerate(ids))
    )
    writers = {}
    for delivery in await deliveries(first, 24):
        writers[delivery.ref] = await Writer.open(first, delivery)
        await writers[delivery.ref].start()
        await writers[delivery.ref].say("a")
    second = await fleet.consume([Lane.STANDARD, Lane.BATCH])
    moved = [await Writer.open(second, delivery) for delivery in await deliveries(second, 1)]
    async with asyncio.timeout(10):
        lost = await fleet.hears_of_loss(first)
        while len(moved) < len(lost):
            moved += [await Writer.open(second, delivery) for delivery in await second.pull(24, 200)]
    assert {w.delivery.ref for w in moved} == {d.ref for d in lost}
    assert 0 < len(moved) < 24
    for writer in moved:
        assert writer.fold.text == "a"
        assert writer.fold.handed is not None, "it was given up in order"
        await writer.start()
        writers[writer.delivery.ref] = writer
    for ref in refs:
        assert await writers[ref].say("b")
        assert await writers[ref].finish(ref.request_id.encode())
    assert [(await shown(fleet.broker, ref)).text for ref in refs] == ["ab"] * 24
    assert sorted(await committed_lines(kafka_url, f"{prefix}.results")) == sorted(i.encode() for i in ids)


async def test_a_session_that_closes_says_so_in_the_logs_of_what_it_held(fleet: Fleet) -> None:
    ref = await publish_one(fleet.broker)
    first = await fleet.consume()
    writer = await Writer.open(first, (await deliveries(first, 1))[0])
    await writer.start()
    fleet.freeze(first)
    await first.close()
    second = await fleet.consume()
    owner = await Writer.open(second, (await deliveries(second, 1))[0])
    assert isinstance(owner.fold.handed, Handed)
    await owner.start()
    assert await owner.finish()
    assert (await shown(fleet.broker, ref)).ended


async def test_a_request_that_runs_for_long_is_handed_on_when_a_full_window_waits_for_it(
    kafka_url: str, prefix: str, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "WINDOW", 16)
    session = await fleet.consume()
    # Ids of ours say where they stand: all of these in one partition.
    ids = [new_request_id(Lane.STANDARD, 0) for _ in range(30)]
    await publish(fleet.broker, *(Message(BODY, name) for name in ids))
    slow = await Writer.open(session, (await deliveries(session, 1))[0])
    await slow.start()
    await slow.say("a")
    for _ in range(29):
        await finish(session, (await deliveries(session, 1))[0])
    assert [delivery.ref for delivery in await fleet.hears_of_loss(session)] == [slow.delivery.ref]
    assert not await slow.say("X")
    (again,) = await deliveries(session, 1)
    assert (again.ref, again.position) == (slow.delivery.ref, slow.delivery.position)
    assert await finish(session, again) == "a"
    lines = await committed_lines(kafka_url, f"{prefix}.results")
    assert sorted(lines) == sorted(name.encode() for name in ids)


async def finish(session: ConsumerSession, delivery: Delivery) -> str:
    """Runs a delivery to its end; returns what its answer was before."""
    writer = await Writer.open(session, delivery)
    text = writer.fold.text
    await writer.start()
    assert await writer.finish(delivery.ref.request_id.encode())
    return text


# ------------------------------------------------------------------------------------------- appending


async def test_a_delta_that_is_appended_twice_is_shown_once(fleet: Fleet) -> None:
    ref = await publish_one(fleet.broker)
    session = await fleet.consume()
    writer = await Writer.open(session, (await deliveries(session, 1))[0])
    await writer.start()
    delta = Delta(writer.epoch, 0, (97,), "a")
    batch = [Append(writer.delivery, writer.epoch, [delta, delta])]
    assert await session.append(batch) == [True]
    assert await session.append(batch) == [True]
    assert await session.settle(writer.delivery, writer.epoch, Done(Finished(writer.epoch, "stop")))
    whole = await read_log(fleet.broker, ref)
    assert sum(isinstance(entry.event, Delta) for entry in whole) == 4
    assert (await shown(fleet.broker, ref)).text == "a"


async def test_after_an_append_of_unknown_fate_opening_again_tells_what_stands_in_the_log(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await publish_one(fleet.broker)
    session = await fleet.consume()
    assert isinstance(session, KafkaSession)
    writer = await Writer.open(session, (await deliveries(session, 1))[0])
    await writer.start()
    publisher = session._at.publisher
    send = publisher.send

    async def lose_the_answer(records: list[object]) -> list[object]:
        await send(records)  # type: ignore[arg-type]
        raise BrokerUnavailable("the answer is lost")

    monkeypatch.setattr(type(publisher), "send", lambda _, records: lose_the_answer(records))
    with pytest.raises(BrokerUnavailable):
        await writer.say("a")
    monkeypatch.undo()
    again = await Writer.open(session, writer.delivery)
    assert (again.fold.text, again.fold.next_seq) == ("a", 1)
    assert again.epoch > writer.epoch
    await again.start()
    await again.say("b")
    assert await again.finish()
    assert (await shown(fleet.broker, ref)).text == "ab"


# ----------------------------------------------------------------------------------- the broker restarts


async def test_a_request_goes_on_when_the_broker_restarts_in_its_middle(tmp_path: Path, prefix: str) -> None:
    with running_kafka(tmp_path) as server:
        broker = await connect(server.url, prefix=prefix, options=OPTIONS)
        fleet = Fleet(broker)
        try:
            ref = await publish_one(broker)
            session = await fleet.consume()
            writer = await Writer.open(session, (await deliveries(session, 1))[0])
            await writer.start()
            await writer.say("a")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            await go_on(writer)
            assert (await shown(broker, ref)).text == "ab"
            assert await committed_lines(server.url, f"{prefix}.results") == [b"line"]
        finally:
            await fleet.close()


async def go_on(writer: Writer) -> None:
    """As a consumer does: opens again after each unknown fate, takes it anew if it was lost."""
    async with asyncio.timeout(60):
        while True:
            try:
                opened = await writer.session.open(writer.delivery)
                if opened.outcome is OpenOutcome.LOST:
                    (delivery,) = await deliveries(writer.session, 1)
                    writer = await Writer.open(writer.session, delivery)
                elif opened.outcome is OpenOutcome.ENDED:
                    assert await writer.session.settle(writer.delivery, 0, Done())
                    return
                else:
                    assert opened.state is not None
                    writer = Writer(writer.session, writer.delivery, opened.epoch, opened.state)
                await writer.start()
                if writer.fold.text == "a" and not await writer.say("b"):
                    continue
                if await writer.finish(b"line"):
                    return
            except BrokerUnavailable:
                await asyncio.sleep(0.1)


# ---------------------------------------------------------------------------------------------- delays


async def test_a_retry_is_forwarded_by_whoever_owns_its_delay_to_the_same_index(fleet: Fleet) -> None:
    sessions = [await fleet.consume(), await fleet.consume()]
    refs = await publish(fleet.broker, *(Message(BODY, f"r{i}") for i in range(8)))
    first: dict[RequestRef, Delivery] = {}
    while len(first) < 8:
        for session in sessions:
            for delivery in await session.pull(8, 100):
                first[delivery.ref] = delivery
                assert await session.settle(delivery, 0, Retry(1, "busy"))
    again: dict[RequestRef, Delivery] = {}
    async with asyncio.timeout(20):
        while len(again) < 8:
            for session in sessions:
                for delivery in await session.pull(8, 100):
                    again[delivery.ref] = delivery
    assert {ref: d.position for ref, d in again.items()} == {ref: d.position for ref, d in first.items()}
    assert set(again) == set(refs)
    assert all(delivery.redelivered for delivery in again.values())


async def test_what_waits_for_a_delay_that_is_no_longer_set_comes_all_the_same(
    fleet: Fleet, kafka_url: str, prefix: str
) -> None:
    session = await fleet.consume()
    ref = await publish_one(fleet.broker)
    [delivery] = await deliveries(session, 1)
    assert await session.settle(delivery, 0, Retry(1, "busy"))
    await session.close()
    later = Fleet(await connect(kafka_url, prefix=prefix, options={**OPTIONS, "delays": "1h"}))
    try:
        [again] = await deliveries(await later.consume(), 1)
    finally:
        await later.close()
    assert (again.ref, again.redelivered) == (ref, True)


async def test_a_lease_that_the_brokers_do_not_allow_is_one_clear_sentence(fleet: Fleet) -> None:
    with pytest.raises(BrokerRefused, match=r"group\.min\.session\.timeout\.ms"):
        await fleet.broker.consume([Lane.STANDARD], 100)


async def test_what_is_too_large_is_refused_to_its_writer_alone_and_the_request_can_still_end(
    kafka_url: str, prefix: str
) -> None:
    options = {**OPTIONS, "max_message_bytes": str(64 << 10)}
    fleet = Fleet(await connect(kafka_url, prefix=prefix, options=options))
    try:
        session = await fleet.consume()
        await publish(fleet.broker, Message(BODY, "large"), Message(BODY, "small"))
        writers = {
            each.ref.request_id: await Writer.open(session, each) for each in await deliveries(session, 2)
        }
        for writer in writers.values():
            await writer.start()
        refused, settled = await asyncio.gather(
            writers["large"].finish(line=b"x" * (128 << 10)),
            writers["small"].finish(line=b"y"),
            return_exceptions=True,
        )
        assert isinstance(refused, TooLarge)
        assert settled is True
        again = await Writer.open(session, writers["large"].delivery)
        assert await again.finish()
    finally:
        await fleet.close()
