"""Suspects are tried alone, one by one, and their past goes with them from consumer to consumer."""

from __future__ import annotations

import asyncio

from headrace.broker.contract import DeadLetter, Release
from headrace.broker.events import Event, Failed, Finished, Started
from headrace.broker.fold import Deaths
from headrace.consumer.settings import ConsumerSettings
from tests.unit.consumer.fakes import FINGERPRINT, Rig, delivery, eventually, settings_for_tests


def settings(**changes: object) -> ConsumerSettings:
    watchdog = {"progress_s": 1000.0, "load_s": 1000.0, "max_deaths": 9, **changes}
    return settings_for_tests(watchdog=watchdog)


def past(rig: Rig, name: str, deaths: int, lone: int = 0, *, alone: bool = False) -> None:
    """The log of a request whose last owner was killed before it brought a token. `deaths`, `lone`: what that
    owner knew, its own death not included."""
    body_hash = delivery(name).message.body_hash
    log: list[Event] = [
        Started(1, "old", "d", 1, body_hash, FINGERPRINT, deaths=deaths, lone_deaths=lone, alone=alone)
    ]
    rig.session.logs[name], rig.session.epochs[name] = log, 1


async def test_a_death_is_in_the_log_of_each_victim_with_its_count() -> None:
    async with Rig(settings()) as rig:
        rig.publish(delivery("barren"), delivery("fruitful"))
        by_name = {request.id: request for request in [await rig.engine.get(1), await rig.engine.get(2)]}
        fruitful = list(by_name)[1]
        rig.engine.give(fruitful, 65)
        await rig.logged("A", "fruitful")
        rig.engine.die()
        await (await rig.next_engine(2)).get(2)
        await eventually(lambda: len(rig.session.starts("barren")) == 2)
        await eventually(lambda: len(rig.session.starts("fruitful")) == 2)
        assert rig.session.starts("barren")[1].deaths == 1
        assert (rig.session.starts("fruitful")[1].deaths, rig.session.starts("fruitful")[1].kept) == (0, 1)
        assert rig.session.fold("barren").deaths == Deaths(2, 0), "if this consumer is killed, too"
        assert {start.epoch for start in rig.session.starts("barren")} == {1}


async def test_one_that_two_consumers_died_with_is_tried_alone_and_the_log_knows_before_the_engine() -> None:
    async with Rig(settings()) as rig:
        past(rig, "suspect", deaths=1)
        gate = rig.session.hold("append")
        rig.publish(delivery("suspect"))
        await eventually(lambda: bool(rig.session.appends))
        await asyncio.sleep(0.005)
        assert not rig.engine.added
        gate.set()
        await rig.engine.get()
        [_, begun] = rig.session.starts("suspect")
        assert (begun.deaths, begun.lone_deaths, begun.alone) == (2, 0, True)
        assert rig.session.fold("suspect").deaths == Deaths(3, 1), "a consumer that dies now dies of it"


async def test_one_death_makes_no_suspect() -> None:
    async with Rig(settings()) as rig:
        past(rig, "a", deaths=0)
        rig.publish(delivery("a"), delivery("b"))
        await rig.engine.get(2)
        await eventually(lambda: len(rig.session.starts("a")) == 2)
        assert not rig.session.starts("a")[1].alone


async def test_neighbours_make_room_for_a_trial_and_go_on_with_their_tokens_after_it() -> None:
    async with Rig(settings(), obliging=False) as rig:
        rig.publish(delivery("neighbour"))
        neighbour = await rig.engine.get()
        rig.engine.give(neighbour.id, 65)
        await rig.logged("A", "neighbour")
        past(rig, "suspect", deaths=1)
        rig.publish(delivery("suspect"))
        await eventually(lambda: rig.engine.aborted == [neighbour.id])
        await eventually(lambda: rig.session.fold("suspect").deaths.lone == 1)
        await asyncio.sleep(0.005)
        assert len(rig.engine.added) == 1, "the engine has not said that the neighbour is out"
        rig.engine.give(neighbour.id, finish="abort")
        suspect = await rig.engine.get(2)
        rig.publish(delivery("later"))
        await eventually(lambda: rig.worker.in_flight == 3)
        await asyncio.sleep(0.005)
        assert len(rig.engine.added) == 2
        rig.engine.give(suspect.id, 66)
        again = await rig.engine.get(3)
        await rig.engine.get(4)
        assert again.output_ids == [65]
        assert rig.engine.aborted == [neighbour.id], "the one that was cleared stays in"
        assert rig.session.fold("suspect").deaths == Deaths(), "a token clears it"


async def test_others_come_in_once_the_log_knows_that_a_suspect_is_cleared() -> None:
    async with Rig(settings()) as rig:
        past(rig, "suspect", deaths=1)
        rig.publish(delivery("suspect", stream=False))
        suspect = await rig.engine.get()
        rig.publish(delivery("other"))
        await eventually(lambda: bool(rig.session.starts("other")))
        gate = rig.session.hold("append")
        rig.engine.give(suspect.id, 65)
        await asyncio.sleep(0.005)
        assert len(rig.engine.added) == 1
        gate.set()
        await rig.engine.get(2)


async def test_suspects_are_tried_one_after_the_other() -> None:
    async with Rig(settings()) as rig:
        for name in ("a", "b", "c"):
            past(rig, name, deaths=1)
        rig.publish(*(delivery(name) for name in ("a", "b", "c")))
        for trial in (1, 2, 3):
            suspect = await rig.engine.get(trial)
            await asyncio.sleep(0.002)
            assert len(rig.engine.added) == trial
            rig.engine.give(suspect.id, 65)
        await rig.engine.get(5)
        assert sorted(request.output_ids for request in rig.engine.added[3:]) == [[65], [65]]


async def test_a_third_death_alone_is_proof_whoever_saw_the_others() -> None:
    async with Rig(settings()) as rig:
        past(rig, "poison", deaths=3, lone=2)
        rig.publish(delivery("poison"))
        await rig.engine.get()
        rig.engine.die()
        await rig.settled("poison")
        letter = rig.session.settled["poison"]
        assert isinstance(letter, DeadLetter)
        assert "3 times with this request alone" in letter.reason
        assert "5 times in a row" in letter.reason


async def test_one_that_is_proved_guilty_by_its_log_never_gets_into_the_engine() -> None:
    """Its third consumer was killed as a whole, with it alone in the engine."""
    async with Rig(settings()) as rig:
        past(rig, "poison", deaths=4, lone=2, alone=True)
        rig.publish(delivery("poison"), delivery("good"))
        letter = await rig.settled("poison")
        assert isinstance(letter, DeadLetter)
        assert isinstance(letter.terminal, Failed)
        assert letter.terminal.code == "poisoned"
        assert b'"custom_id":"c"' in (letter.line or b"")
        request = await rig.engine.get()
        rig.engine.give(request.id, 65, finish="stop")
        await rig.settled("good")
        assert len(rig.engine.added) == 1


async def test_an_innocent_one_with_a_bad_past_is_answered() -> None:
    async with Rig(settings()) as rig:
        past(rig, "unlucky", deaths=7, lone=2)
        rig.publish(delivery("unlucky"))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        rig.engine.give(request.id, 66, finish="stop")
        await rig.settled("unlucky")
        assert isinstance(rig.session.fold("unlucky").terminal, Finished)


async def test_a_suspect_that_is_handed_back_keeps_its_past_and_is_blamed_for_no_more() -> None:
    async with Rig(settings()) as rig:
        past(rig, "suspect", deaths=1)
        rig.publish(delivery("suspect"))
        await rig.engine.get()
        rig.drain.request()
        rig.drain.request()
        await asyncio.wait_for(rig.task, 5)
        assert isinstance(rig.session.settled["suspect"], Release)
        assert rig.session.fold("suspect").deaths == Deaths(2, 0)


async def test_an_engine_that_dies_while_a_trial_is_prepared_is_no_death_of_the_suspect() -> None:
    async with Rig(settings(), obliging=False) as rig:
        rig.publish(delivery("neighbour"))
        neighbour = await rig.engine.get()
        past(rig, "suspect", deaths=1)
        rig.publish(delivery("suspect"))
        await eventually(lambda: rig.engine.aborted == [neighbour.id])
        await eventually(lambda: len(rig.session.starts("suspect")) == 2)
        rig.first_words = None
        rig.engine.die()
        await eventually(lambda: len(rig.session.starts("suspect")) == 3)
        last = rig.session.starts("suspect")[-1]
        assert (last.deaths, last.lone_deaths, last.alone) == (2, 0, False)


async def test_the_token_that_clears_a_suspect_does_not_wait_for_a_checkpoint() -> None:
    patient = settings_for_tests(
        publish={"checkpoint_s": 1000}, watchdog={"quarantine_after": 1, "max_deaths": 9}
    )
    async with Rig(patient) as rig:
        rig.publish(delivery(stream=False), delivery("other", stream=False))
        first = await rig.engine.get(1)
        await rig.engine.get(2)
        rig.engine.give(first.id, 65)
        await rig.logged("A")
        rig.engine.give(first.id, 66)
        await (await rig.next_engine(1)).get(2)
        rig.engine.die()
        engine = await rig.next_engine(2)
        trial = await engine.get(1)
        engine.give(trial.id, 67)
        await engine.get(2)
        assert rig.session.fold().text == "AB", "stated together with the death"
        assert rig.session.fold("other").text == "C"
