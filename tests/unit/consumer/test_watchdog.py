"""Engines that die, hang or never start; requests that kill them, and their innocent neighbours."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.contract import DeadLetter, Done, Release
from headrace.broker.events import Failed, Finished
from headrace.broker.fold import Deaths
from headrace.consumer.errors import EngineSick
from headrace.consumer.inflight import InFlight
from headrace.consumer.settings import WatchdogSettings
from headrace.consumer.suspicion import Suspicion
from headrace.consumer.watchdog import Health
from tests.unit.consumer.fakes import FakeEngine, Rig, delivery, eventually, settings_for_tests


def settings(**changes: object) -> dict[str, object]:
    return {"progress_s": 1000.0, "load_s": 1000.0, **changes}


def victim(*, barren: bool = True, lonely_deaths: int = 0) -> InFlight:
    flight = InFlight(delivery(), 0.0)
    flight.suspicion = Suspicion(Deaths(lonely_deaths, lonely_deaths), doubtful=False)
    if not barren:
        flight.suspicion.brought_token()
    return flight


# ----------------------------------------------------------------------------------------- the verdicts


def test_three_unexplained_deaths_in_a_minute_mean_a_sick_engine() -> None:
    health = Health(WatchdogSettings())
    for second in (0, 20, 40):
        assert not health.sick
        health.died(second, [victim(), victim()])
    assert health.sick


def test_three_deaths_far_apart_do_not() -> None:
    health = Health(WatchdogSettings())
    for second in (0, 40, 80, 120):
        health.died(second, [victim(), victim()])
    assert not health.sick


def test_a_finished_request_clears_the_engine() -> None:
    health = Health(WatchdogSettings())
    for second in range(10):
        health.died(second, [])
        health.finished()
    assert not health.sick


def test_a_request_alone_with_no_token_explains_a_death() -> None:
    health = Health(WatchdogSettings())
    for second, deaths in enumerate((1, 2)):
        assert health.died(second, [victim(lonely_deaths=deaths)]) == []
    guilty = victim(lonely_deaths=3)
    assert health.died(3, [guilty]) == [guilty]
    assert not health.sick


def test_a_request_alone_that_goes_on_between_deaths_explains_none_of_them() -> None:
    health = Health(WatchdogSettings())
    for second in range(3):
        assert health.died(second, [victim(barren=False)]) == []
    assert health.sick


def test_a_second_guilty_request_in_a_row_is_an_engine_that_is_sick() -> None:
    health = Health(WatchdogSettings())
    assert health.died(0, [victim(lonely_deaths=3)])
    assert health.died(1000, [victim(lonely_deaths=3)]) == []
    assert health.sick


def test_failed_starts_in_a_row_mean_a_sick_engine_however_long_they_take() -> None:
    health = Health(WatchdogSettings())
    health.failed_start()
    health.failed_start()
    health.started()
    for _ in range(3):
        assert not health.sick
        health.failed_start()
    assert health.sick


# ----------------------------------------------------------------------------------- an engine that dies


async def test_after_a_death_all_requests_go_on_with_the_tokens_received_so_far() -> None:
    async with Rig() as rig:
        rig.publish(delivery("a"), delivery("b"))
        await rig.engine.get(2)
        by_key = {request.id: request for request in rig.engine.added}
        first, other = by_key
        rig.engine.give(first, 65, 66)
        rig.engine.give(other, 67)
        rig.engine.die()
        engine = await rig.next_engine(2)
        await engine.get(2)
        assert sorted(request.output_ids for request in engine.added) == [[65, 66], [67]]
        assert {request.params.seed for request in engine.added} == {r.params.seed for r in by_key.values()}
        for request in engine.added:
            engine.give(request.id, 90, finish="stop")
        await rig.settled("a")
        await rig.settled("b")
        for name in ("a", "b"):
            kept = [started.kept for started in rig.session.starts(name)]
            assert kept in ([0, 1], [0, 2]), "readers notice nothing"
            assert rig.session.fold(name).restarts == 0
        assert {rig.session.fold(name).text for name in ("a", "b")} == {"ABZ", "CZ"}


async def test_what_a_dead_engine_had_said_still_counts() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        rig.engine.give(request.id, 66, finish="stop")
        rig.engine.die()
        assert isinstance(await rig.settled(), Done)
        assert rig.session.fold().text == "AB"
        assert not (await rig.next_engine(2)).added


async def test_outputs_for_an_earlier_placing_are_ignored() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        rig.engine.die()
        engine = await rig.next_engine(2)
        again = await engine.get()
        assert again.id != request.id
        engine.give(request.id, 81)
        engine.give(again.id, 66, finish="stop")
        await rig.settled()
        assert rig.session.fold().text == "AB"


async def test_an_engine_that_makes_no_step_with_work_is_killed() -> None:
    async with Rig(settings_for_tests(watchdog=settings(progress_s=0.04))) as rig:
        rig.publish(delivery())
        await rig.engine.get()
        engine = rig.engines[0]
        await eventually(lambda: engine.killed)
        await (await rig.next_engine(2)).get()


async def test_an_engine_without_work_may_be_silent() -> None:
    async with Rig(settings_for_tests(watchdog=settings(progress_s=0.01))) as rig:
        await asyncio.sleep(0.05)
        assert not rig.engine.killed


async def test_steps_without_outputs_are_progress() -> None:
    async with Rig(settings_for_tests(watchdog=settings(progress_s=0.2))) as rig:
        rig.publish(delivery())
        await rig.engine.get()
        for _ in range(40):
            rig.engine.step()
            await asyncio.sleep(0.01)
        assert not rig.engine.killed


async def test_an_engine_that_never_gets_ready_is_killed_and_after_three_the_worker_gives_up() -> None:
    rig = Rig(settings_for_tests(watchdog=settings(load_s=0.01)))
    rig.first_words = None
    async with rig:
        with pytest.raises(EngineSick):
            await asyncio.wait_for(rig.task, 5)
        assert [engine.killed for engine in rig.engines] == [True, True, True]


async def test_a_sick_engine_ends_the_worker_which_hands_its_requests_back() -> None:
    watchdog = settings(max_deaths=2, quarantine_after=100)
    async with Rig(settings_for_tests(watchdog=watchdog)) as rig:
        rig.publish(delivery("a"), delivery("b"))
        for number in (1, 2):
            engine = await rig.next_engine(number)
            await engine.get(2)
            engine.die()
        with pytest.raises(EngineSick):
            await asyncio.wait_for(rig.task, 5)
        assert rig.session.settled == {"a": Release(), "b": Release()}


# --------------------------------------------------------------------------------------------- poison


async def run_until_idle(rig: Rig, poison: str) -> None:
    """Plays the engines: each dies when it is given the poisonous request, and answers the others."""
    number = 1
    engine, seen = rig.engines[0], 0
    while rig.session.queue or rig.worker.in_flight:
        await asyncio.sleep(0.001)
        if len(rig.engines) > number:
            number, engine, seen = len(rig.engines), rig.engines[-1], 0
        requests = engine.added[seen:]
        seen += len(requests)
        if any(is_prompt(request.prompt_ids, poison) for request in requests):
            engine.die()
            continue
        for request in requests:
            if not request.output_ids:
                engine.give(request.id, 65)
            engine.give(request.id, 66, finish="stop")


def is_prompt(prompt_ids: list[int], name: str) -> bool:
    return name.encode() in bytes(token for token in prompt_ids if token < 256)


def asking(name: str) -> bytes:
    return b'{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{"prompt":"%s"}}' % (
        name.encode(),
        name.encode(),
    )


async def test_a_poisonous_request_is_dead_lettered_and_its_neighbours_are_answered() -> None:
    async with Rig(batch_size=8) as rig:
        names = ["one", "two", "poison", "three", "four"]
        rig.publish(*(delivery(name, body=asking(name)) for name in names))
        await asyncio.wait_for(run_until_idle(rig, "poison"), 10)
        letter = rig.session.settled["poison"]
        assert isinstance(letter, DeadLetter)
        assert isinstance(letter.terminal, Failed)
        assert letter.terminal.code == "poisoned"
        assert letter.line is not None
        for name in set(names) - {"poison"}:
            assert isinstance(rig.session.fold(name).terminal, Finished), name
            assert rig.session.fold(name).text == "AB"
        assert not rig.task.done()


async def test_a_poisonous_request_alone_is_dead_lettered_at_its_third_death() -> None:
    async with Rig() as rig:
        rig.publish(delivery("poison", body=asking("poison")))
        await asyncio.wait_for(run_until_idle(rig, "poison"), 10)
        assert isinstance(rig.session.settled["poison"], DeadLetter)
        assert [len(engine.added) for engine in rig.engines[:3]] == [1, 1, 1]


async def test_a_suspect_is_alone_in_the_engine_until_its_first_token() -> None:
    async with Rig(settings_for_tests(watchdog=settings(quarantine_after=1, max_deaths=9))) as rig:
        rig.publish(delivery("a"), delivery("b"))
        await rig.engine.get(2)
        rig.engine.die()
        engine = await rig.next_engine(2)
        first = await engine.get(1)
        rig.publish(delivery("c"))
        await eventually(lambda: rig.worker.in_flight == 3)
        await asyncio.sleep(0.01)
        assert len(engine.added) == 1
        engine.give(first.id, 65)
        second = await engine.get(2)
        assert engine.aborted == [first.id], "it made room for the next trial"
        engine.give(second.id, 66)
        await engine.get(4)
        assert sorted(request.output_ids for request in engine.added[2:]) == [[], [65]]
        assert engine.aborted == [first.id], "the last one cleared stays in"


async def test_a_suspect_that_is_cancelled_lets_the_others_in() -> None:
    async with Rig(settings_for_tests(watchdog=settings(quarantine_after=1, max_deaths=9))) as rig:
        rig.publish(delivery("a"))
        await rig.engine.get()
        rig.engine.die()
        engine: FakeEngine = await rig.next_engine(2)
        request = await engine.get()
        rig.publish(delivery("b"))
        rig.session.cancel("a")
        await eventually(lambda: engine.aborted == [request.id])
        await engine.get(2)


async def test_requests_that_are_cancelled_between_its_deaths_do_not_clear_an_engine() -> None:
    """Whoever waits for a sick engine gives up at last."""
    watchdog = {"max_deaths": 3, "quarantine_after": 100, "poison_deaths": 100}
    async with Rig(settings_for_tests(watchdog=watchdog), batch_size=8) as rig:
        rig.publish(delivery("a"), delivery("b"))
        for number in (1, 2, 3):
            engine = await rig.next_engine(number)
            await engine.get(2)
            rig.publish(delivery(f"c{number}"))
            await engine.get(3)
            rig.session.cancel(f"c{number}")
            await rig.settled(f"c{number}")
            engine.die()
        with pytest.raises(EngineSick):
            await asyncio.wait_for(rig.task, 10)
