"""The registry: who is there, and what it serves."""

from __future__ import annotations

from headrace.broker.contract import ConsumerEntry, Serves
from headrace.broker.message import DEFAULT_POOL, Lane
from tests.contract.case import LANES, Case
from tests.contract.steps import eventually

SMALL, LARGE = Serves(("llama-8b", "small"), 32), Serves(("llama-70b",), 8)


async def entries(case: Case) -> dict[str, ConsumerEntry]:
    return {entry.name: entry for entry in await case.broker.consumers()}


async def test_who_announced_itself_is_listed_with_all_it_said(case: Case) -> None:
    first, second = await case.consume(), await case.consume([Lane.BATCH], pool="large")
    await case.consume()  # says nothing
    await first.announce(SMALL)
    await second.announce(LARGE)

    async def both() -> bool:
        return len(await entries(case)) == 2

    await eventually(case, both)
    found = await entries(case)
    one, two = found[first.name], found[second.name]
    assert (one.pool, set(one.lanes), one.serves) == (DEFAULT_POOL, set(LANES), SMALL)
    assert (two.pool, two.lanes, two.serves) == ("large", (Lane.BATCH,), LARGE)
    assert all(0 <= entry.idle_ms <= case.lease_ms for entry in (one, two))


async def test_a_later_word_replaces_the_earlier_one(case: Case) -> None:
    session = await case.consume()
    await session.announce(SMALL)
    await session.announce(LARGE)

    async def replaced() -> bool:
        return [entry.serves for entry in await case.broker.consumers()] == [LARGE]

    await eventually(case, replaced)


async def test_heartbeats_keep_an_entry_and_silence_ends_it(case: Case) -> None:
    alive, silent = await case.consume(), await case.consume()
    for session in (alive, silent):
        await session.announce(SMALL)
    await case.lapse(silent)
    other = await case.connect()

    async def only_one() -> bool:
        names = [entry.name for entry in await other.consumers()]
        assert alive.name in names
        return names == [alive.name]

    await eventually(case, only_one)


async def test_who_wakes_is_listed_again(case: Case) -> None:
    session = await case.consume()
    await session.announce(SMALL)
    await case.lapse(session)

    async def gone() -> bool:
        return await entries(case) == {}

    await eventually(case, gone)
    case.thaw(session)
    await session.heartbeat()

    async def back() -> bool:
        return list(await entries(case)) == [session.name]

    await eventually(case, back)


async def test_a_session_that_closes_is_gone_at_once(case: Case) -> None:
    first, second = await case.consume(), await case.consume()
    for session in (first, second):
        await session.announce(SMALL)
    await case.leave(first)

    async def gone() -> bool:
        return list(await entries(case)) == [second.name]

    await eventually(case, gone)
