"""What a consumer knows of the others."""

from __future__ import annotations

import pytest

from headrace.broker.contract import LaneDepth
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.message import Lane
from headrace.consumer.neighbours import FRESH_S, Neighbours
from tests.unit.consumer.fakes import FakeRegistry


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def neighbours(registry: FakeRegistry, clock: Clock | None = None) -> Neighbours:
    return Neighbours(registry, "ours", (Lane.BATCH, Lane.STANDARD), clock or Clock())


async def test_a_model_is_looked_for_in_other_pools_and_among_peers() -> None:
    registry = FakeRegistry()
    registry.enter("ours", "a", "shared")
    registry.enter("theirs", "b", "shared")
    looked = neighbours(registry)
    assert await looked.pool_for("b") == "theirs"
    assert await looked.pool_for("shared") == "theirs"
    assert await looked.pool_for("a") is None
    assert await looked.peer_serves("a")
    assert not await looked.peer_serves("b")
    assert await looked.served() == ["a", "b"]


async def test_what_is_known_is_kept_for_a_moment() -> None:
    registry, clock = FakeRegistry(), Clock()
    looked = neighbours(registry, clock)
    assert await looked.pool_for("b") is None
    registry.enter("theirs", "b")
    assert await looked.pool_for("b") is None
    clock.now += FRESH_S
    assert await looked.pool_for("b") == "theirs"


async def test_a_registry_that_is_away_is_told() -> None:
    registry = FakeRegistry()
    registry.away = True
    with pytest.raises(BrokerUnavailable):
        await neighbours(registry).pool_for("b")


async def test_the_room_is_a_part_of_our_share_of_the_backlog_and_shrinks_as_we_pull() -> None:
    registry = FakeRegistry()
    registry.lanes = {
        Lane.BATCH: LaneDepth(70),
        Lane.STANDARD: LaneDepth(30),
        Lane.INTERACTIVE: LaneDepth(1000),  # not one of our lanes
    }
    registry.enter("ours", "a")
    registry.enter("ours", "a")
    registry.enter("theirs", "b")
    looked = neighbours(registry)
    assert looked.room == 0
    await looked.look()
    assert looked.room == 100 // 4
    looked.pulled(10, of=10)
    assert looked.room == 80 // 4
    looked.pulled(3, of=10)
    assert looked.room == 0, "the queue is empty"


async def test_paused_lanes_are_no_backlog() -> None:
    registry = FakeRegistry()
    registry.lanes = {Lane.BATCH: LaneDepth(70, paused=True), Lane.STANDARD: LaneDepth(30)}
    looked = neighbours(registry)
    await looked.look()
    assert looked.paused == {Lane.BATCH}
    assert looked.room == 15


async def test_a_broker_that_does_not_answer_leaves_no_room() -> None:
    registry = FakeRegistry()
    registry.lanes = {Lane.BATCH: LaneDepth(70)}
    looked = neighbours(registry)
    await looked.look()
    assert looked.room
    registry.away = True
    await looked.look()
    assert looked.room == 0
