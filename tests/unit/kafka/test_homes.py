"""How much a search for a log reads, with a history that has much to read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.events import Delta, Event, Failed, Finished, Moved, Started
from headrace.broker.kafka import homes
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.homes import Home, Homes
from headrace.broker.kafka.places import LogPlace, log_key
from headrace.broker.message import Lane, RequestRef
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS

REF, PLACE, NAMES = RequestRef("theirs"), LogPlace(Lane.STANDARD, "", 0), Names("x")
COPY, MUCH = 7, 10_000_000
LOG_MS = 1_000_000
OWN = Started(1, "me", f"{TOPICS.requests}/0/{COPY}", 7, b"hash", "model")


class LongHistory:
    """One lane whose events are many, with those of one request at their end."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.looked_at = self.wide_now = self.most_wide = 0
        key = log_key(REF)
        encoded = [encode_event_record(TOPICS.events, 0, key, event) for event in events]
        self._records = [
            SimpleNamespace(
                topic=TOPICS.events, partition=0, offset=MUCH - 100 + i, timestamp=5_000 + i, headers=[],
                key=key.encode(), value=record.value,
            )
            for i, record in enumerate(encoded)
        ]  # fmt: skip

    async def bounds(self, partitions: Any, since_ms: int | None = None) -> Any:
        return {p: (0, MUCH if p.topic == TOPICS.events else COPY + 1) for p in partitions}

    async def all(self, spans: Any, wanted: Any) -> list[Any]:
        width = sum(end - start for start, end in spans.values())
        self.looked_at += width
        self.wide_now += width > homes._MOST_RECORDS
        self.most_wide = max(self.most_wide, self.wide_now)
        await asyncio.sleep(0)
        self.wide_now -= width > homes._MOST_RECORDS
        return [
            record
            for record in self._records
            for (p, (start, end)) in spans.items()
            if (p.topic, p.partition) == (record.topic, record.partition) and start <= record.offset < end
            if wanted(record)
        ]


def homes_in(history: Any, clock: Any = None) -> Homes:
    """`clock`: shows the broker's time as `ms`."""
    clock = clock or SimpleNamespace(ms=5_000)

    async def existing() -> Any:
        return [TOPICS]

    topics: Any = SimpleNamespace(existing=existing)
    return Homes(topics, history, NAMES, 60_000, LOG_MS, lambda: int(clock.ms))


@pytest.mark.parametrize(
    "events",
    [
        [OWN],
        [Failed(1, "expired", "too late")],
        [OWN, Failed(1, "invalid", "no such parameter")],
        [OWN, Finished(1, "stop")],
        [OWN, Moved(1, "gpu", "gpu.standard/0")],
        [OWN, Delta(1, 0, (1,), "a")],
    ],
)
async def test_a_log_that_may_have_begun_where_it_was_found_is_not_looked_for_in_all_its_partition(
    events: list[Event],
) -> None:
    for search in ("find", "earliest"):
        history = LongHistory(events)
        searched = homes_in(history)
        found = (
            await searched.find(REF)
            if search == "find"
            else await searched.earliest(REF, Home(PLACE, 4_000, copy=COPY))
        )
        assert found is not None
        assert found.place == PLACE
        assert history.looked_at <= homes._MOST_RECORDS


async def test_a_log_that_lacks_its_beginning_is_followed_back_to_it() -> None:
    history = LongHistory([OWN, Delta(1, 3, (1,), "a")])
    await homes_in(history).find(REF)
    assert history.looked_at > MUCH


async def test_searches_of_whole_partitions_leave_room_for_who_begins_to_read() -> None:
    history = LongHistory([OWN, Delta(1, 3, (1,), "a")])
    searched = homes_in(history)
    await asyncio.gather(*(searched.earliest(REF, Home(PLACE, 4_000)) for _ in range(8)))
    assert history.most_wide == 1


@pytest.mark.parametrize("comes_back", [False, True])
async def test_an_id_that_comes_back_after_the_time_of_its_log_is_a_new_request(comes_back: bool) -> None:
    searched = homes_in(LongHistory([]))
    searched.published(REF, PLACE, 1, 5_000)
    first = await searched.find(REF)
    assert first is not None
    searched.ended(REF, first)
    again_ms, elsewhere = 5_000 + LOG_MS + comes_back, LogPlace(Lane.STANDARD, "gpu", 0)
    searched.published(REF, elsewhere, 3, again_ms)
    found = await searched.find(REF)
    assert found == (Home(elsewhere, again_ms, copy=3) if comes_back else Home(PLACE, 5_000, True, copy=1))


@pytest.mark.parametrize("over", [False, True])
async def test_a_log_that_ended_is_looked_for_anew_when_its_time_is_over(over: bool) -> None:
    """Somebody else may have published a new request under its id: to cancel that is to cancel something."""
    clock = SimpleNamespace(ms=5_000)
    searched = homes_in(LongHistory([OWN, Finished(1, "stop")]), clock)
    home = await searched.find(REF)
    assert home is not None
    searched.ended(REF, home)
    clock.ms = 5_000 + LOG_MS + over
    found = await searched.find(REF)
    assert found is not None
    assert found.ended is not over
