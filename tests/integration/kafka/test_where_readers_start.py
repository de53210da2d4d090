"""Where readers start, on a real node: who comes late is shown what all others were."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from headrace.broker.contract import CancelResult
from headrace.broker.errors import BrokerError
from headrace.broker.events import Failed, Fence, Finished, Handed, Moved
from headrace.broker.ids import new_request_id
from headrace.broker.kafka import clock, homes
from headrace.broker.kafka.places import LogPlace, Position, java_partition
from headrace.broker.message import Lane, Message, RequestRef
from tests.integration.kafka.test_broker import (
    BODY,
    PATIENCE_S,
    Site,
    deltas,
    new_site,
    published,
    read,
    started,
    text_of,
)

FAR_MS = 300  # further back than `NEAR_MS`
NEAR_MS = "100"


@pytest.fixture
async def site(kafka_url: str) -> AsyncIterator[Site]:
    made = await new_site(kafka_url)
    yield made
    await made.close()


async def busy(site: Site, place: LogPlace) -> None:
    """Much is written for others, for a while."""
    await asyncio.sleep(FAR_MS / 1000)
    await site.write(place, RequestRef("another"), *deltas(0, *"x" * 100))


ENDS = [  # of an id that is not ours, one that has ended further back than a scan is not found
    *(("theirs", False), ("ours", False), ("ours", True)),
    *(("ours in two pools", False), ("ours in two pools", True)),
]


@pytest.mark.parametrize(("kind", "ended"), ENDS)
async def test_a_log_that_began_before_the_newest_records_is_shown_from_its_beginning(
    site: Site, monkeypatch: pytest.MonkeyPatch, kind: str, ended: bool
) -> None:
    monkeypatch.setattr(homes, "_MOST_RECORDS", 40)
    if kind == "ours in two pools":
        await site.connection.topics.lane(Lane.BATCH, "gpu")
    request_id = "theirs" if kind == "theirs" else new_request_id(Lane.BATCH, 2)
    [result] = await site.broker.publish([Message(BODY, request_id, Lane.BATCH)])
    place = LogPlace(Lane.BATCH, "", java_partition(b"theirs", 4) if kind == "theirs" else 2)
    for _ in range(100):
        await site.broker.publish([Message(BODY, new_request_id(Lane.BATCH, place.partition), Lane.BATCH)])
    await site.write(place, result.ref, started(0), *deltas(0, "a", "b"))
    if ended:
        await site.write(place, result.ref, Finished(0, "stop"))
    await busy(site, place)
    other = await site.another(reader_margin_ms=NEAR_MS)
    if not ended:
        await site.write(place, result.ref, *deltas(0, "c", first=2))
    assert await other.known(result.ref)
    if not ended:
        await site.write(place, result.ref, Finished(0, "stop"))
    assert text_of(await read(other, result.ref)) == ("ab" if ended else "abc")


async def test_a_log_that_moved_is_shown_from_its_beginning_to_who_comes_after_its_end(site: Site) -> None:
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 3), Lane.BATCH))
    await site.connection.topics.lane(Lane.BATCH, "gpu")
    there = LogPlace(Lane.BATCH, "gpu", 3)
    await site.write(place, ref, started(0), Handed(0), Moved(0, "gpu", there.text))
    await site.write(there, ref, started(0), *deltas(0, "a"), Finished(0, "stop"))
    whole = await read(site.broker, ref)
    assert await read(site.broker, ref, whole[0].cursor) == whole
    assert await site.broker.cancel(ref) is CancelResult.ENDED


@pytest.mark.parametrize("kept", [2, 0])
async def test_who_publishes_again_what_was_put_off_is_shown_what_it_had_before(
    site: Site, kept: int
) -> None:
    """Its first record waits in a delay topic; the copy resumes it, or begins it anew."""
    message = Message(BODY, "theirs", Lane.BATCH)
    place = LogPlace(Lane.BATCH, "", java_partition(b"theirs", 4))
    [first] = await site.broker.publish([message])
    await site.write(place, first.ref, started(0), *deltas(0, "a", "b"), Handed(0, "retry 1: busy"))
    await asyncio.sleep(FAR_MS / 1000)
    other = await site.another(reader_margin_ms=NEAR_MS)
    [again] = await other.publish([message])
    own = structs.replace(started(0, kept), delivery=Position(place, 1).text(site.names))
    await site.write(place, first.ref, own, *deltas(0, "c", first=2), Finished(0, "stop"))
    assert text_of(await read(other, again.ref)) == ("abc" if kept else "c")


async def test_a_reader_whose_clock_is_slow_misses_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, place = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH))
    await site.write(place, ref, started(0), *deltas(0, "a"), Finished(0, "stop"))
    right = clock.local_ms
    monkeypatch.setattr(clock, "local_ms", lambda: right() - 5_000)
    other = await site.another()
    assert await other.known(ref)
    assert text_of(await read(other, ref)) == "a"


@pytest.mark.parametrize("in_a_ring", [True, False])
async def test_the_epoch_in_force_is_known_though_nobody_repeated_it_for_long(
    site: Site, in_a_ring: bool
) -> None:
    """All owners died long before the request was made; one that had been overtaken wakes first."""
    place = LogPlace(Lane.BATCH, "", 2)
    early, _ = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH))
    await site.write(place, None, Fence(5), Fence(6))
    await asyncio.sleep(FAR_MS / 1000)
    other = await site.another(reader_margin_ms=NEAR_MS)
    watching = asyncio.create_task(read(other, early))
    await asyncio.sleep(1.5 if in_a_ring else 0)
    [result] = await other.publish([Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH)])
    await site.write(place, None, Fence(5))
    await site.write(place, result.ref, started(5), *deltas(5, "X", "Y"))
    await site.write(place, None, Fence(7))
    await site.write(place, result.ref, started(7), *deltas(7, "a", "b", "c"), Finished(7, "stop"))
    assert text_of(await read(other, result.ref)) == "abc"
    await site.write(place, early, Finished(7, "stop"))
    await watching


async def test_a_pool_whose_topics_are_deleted_ends_nobodys_search(site: Site) -> None:
    ref, _ = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH))
    gone = await site.connection.topics.lane(Lane.BATCH, "gone")
    other = await site.another()
    assert await other.known(ref)
    names = [gone.requests, gone.events, *gone.delayed]
    await site.connection.clients.admin(lambda admin: admin.delete_topics(names))
    later, _ = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(BrokerError):
                if await other.known(later):
                    break
            await asyncio.sleep(0.1)
    assert await other.pools() == [""]


async def test_a_pool_whose_topics_are_made_anew_is_read_from_its_new_beginning(site: Site) -> None:
    """By who still reads it where the old ones ended."""
    place = LogPlace(Lane.BATCH, "gone", 2)
    old, _ = await published(site, Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH, pool="gone"))
    reading = asyncio.create_task(read(site.broker, old))
    await asyncio.sleep(0.5)
    await site.write(place, old, started(0), *deltas(0, *"a" * 50), Finished(0, "stop"))
    await reading
    gone = await site.connection.topics.lane(Lane.BATCH, "gone")
    names = [gone.requests, gone.events, *gone.delayed]
    await site.connection.clients.admin(lambda admin: admin.delete_topics(names))
    await asyncio.sleep(2)
    other = await site.another()
    [result] = await other.publish([Message(BODY, new_request_id(Lane.BATCH, 2), Lane.BATCH, pool="gone")])
    made_anew = asyncio.create_task(read(site.broker, result.ref))
    await asyncio.sleep(1)
    await site.write(place, result.ref, started(0), *deltas(0, "b"), Finished(0, "stop"))
    assert text_of(await made_anew) == "b"


async def test_who_left_before_a_request_began_anew_and_failed_is_told_both(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest records hold a beginning; but not what this reader was shown before."""
    monkeypatch.setattr(homes, "_MOST_RECORDS", 40)
    [result] = await site.broker.publish([Message(BODY, "theirs", Lane.BATCH)])
    place = LogPlace(Lane.BATCH, "", java_partition(b"theirs", 4))
    for _ in range(100):
        await site.broker.publish([Message(BODY, new_request_id(Lane.BATCH, place.partition), Lane.BATCH)])
    await site.write(place, result.ref, started(0), *deltas(0, "a", "b"))
    await busy(site, place)
    await site.write(place, result.ref, started(0), Failed(0, "engine_failed", "twice"))
    whole = await read(site.broker, result.ref)
    other = await site.another(reader_margin_ms=NEAR_MS)
    assert await read(other, result.ref, whole[2].cursor) == whole
