from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.redis_streams.bundle import Bundle
from headrace.broker.redis_streams.link import Command, Link, Reply, ServerError


class ScriptedLink(Link):
    """Answers each command with its own words, once it may."""

    def __init__(self) -> None:
        self.round_trips: list[list[Command]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure: Exception | None = None

    async def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        self.round_trips.append(list(commands))
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [ServerError("no") if command[0] == "BAD" else tuple(command) for command in commands]


@pytest.fixture
async def link() -> ScriptedLink:
    return ScriptedLink()


async def test_callers_of_one_turn_share_a_round_trip_and_get_their_own_replies(link: ScriptedLink) -> None:
    bundle = Bundle(link)
    replies = await asyncio.gather(*(bundle.call("GET", number) for number in range(5)))
    assert replies == [("GET", number) for number in range(5)]
    assert len(link.round_trips) == 1


async def test_commands_of_one_caller_stay_together_and_in_order(link: ScriptedLink) -> None:
    bundle = Bundle(link)
    both = await asyncio.gather(bundle.pipeline([("A", 1), ("A", 2)]), bundle.pipeline([("B", 1), ("B", 2)]))
    assert list(both) == [[("A", 1), ("A", 2)], [("B", 1), ("B", 2)]]
    assert link.round_trips == [[("A", 1), ("A", 2), ("B", 1), ("B", 2)]]


async def test_a_refusal_is_told_to_its_caller_alone(link: ScriptedLink) -> None:
    bundle = Bundle(link)
    refused, fine = await asyncio.gather(bundle.call("BAD"), bundle.call("GET"), return_exceptions=True)
    assert isinstance(refused, ServerError)
    assert fine == ("GET",)


async def test_a_lost_connection_is_told_to_all_on_board(link: ScriptedLink) -> None:
    bundle, link.failure = Bundle(link), BrokerUnavailable("away")
    outcomes = await asyncio.gather(*(bundle.call("GET") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, BrokerUnavailable) for outcome in outcomes)
    link.failure = None
    assert await bundle.call("GET") == ("GET",)


async def test_what_comes_while_two_are_under_way_goes_together_in_the_next(link: ScriptedLink) -> None:
    bundle = Bundle(link)
    link.may_answer.clear()
    calls = []
    for number in range(6):
        calls.append(asyncio.create_task(bundle.call("GET", number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [len(trip) for trip in link.round_trips] == [1, 1]
    link.may_answer.set()
    assert await asyncio.gather(*calls) == [("GET", number) for number in range(6)]
    assert [len(trip) for trip in link.round_trips] == [1, 1, 4]


async def test_a_caller_that_is_cancelled_leaves_the_others_alone(link: ScriptedLink) -> None:
    bundle = Bundle(link)
    link.may_answer.clear()
    gone, stays = asyncio.create_task(bundle.call("GONE")), asyncio.create_task(bundle.call("STAYS"))
    await asyncio.sleep(0.001)
    gone.cancel()
    link.may_answer.set()
    assert await stays == ("STAYS",)
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_round_trip_has_a_bound(link: ScriptedLink) -> None:
    bundle = Bundle(link)
    await asyncio.gather(*(bundle.call("GET", number) for number in range(600)))
    assert max(map(len, link.round_trips)) <= 256
