"""A body that kills its reader: each death is in the log before it happens, in the end nobody reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from headrace.broker.blobs import BlobStore, address_of
from headrace.broker.contract import DeadLetter, Done, Retry
from headrace.broker.events import Delta, Event, Handed, Started
from headrace.broker.fold import Deaths
from headrace.broker.message import Claim, Delivery, Message
from headrace.consumer.prepare import Reading
from headrace.consumer.reading_room import ReadingRoom
from headrace.consumer.turn import Turn
from tests.unit.consumer.fakes import FINGERPRINT, Rig, delivery, eventually, line


def again(name: str = "r1", **fields: object) -> Delivery:
    """A delivery that somebody had before."""
    return structs.replace(delivery(name, line(name)), redelivered=True, **fields)


def opened_before(rig: Rig, name: str = "r1", *log: Event) -> None:
    """By one owner, which left this log."""
    rig.session.logs[name], rig.session.epochs[name] = list(log), 1


def mark(deaths: int, lone: int = 0, *, alone: bool = False, fingerprint: str = "") -> Started:
    """What an owner of epoch 1 left that died after it."""
    body_hash = again().message.body_hash
    return Started(*(1, "old", "d", 0, body_hash, fingerprint), deaths=deaths, lone_deaths=lone, alone=alone)


class Reader:
    """Stands between a rig and its preparer: says who is read, and lets no one out until it may."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside: list[str] = []
        self.may_leave = asyncio.Event()
        self._read = rig.preparer.read
        monkeypatch.setattr(rig.preparer, "read", self._held)

    async def _held(self, message: Message, kept: Sequence[Sequence[int]] | None) -> Reading:
        assert message.request_id is not None
        self.inside.append(message.request_id)
        await self.may_leave.wait()
        self.inside.remove(message.request_id)
        return await self._read(message, kept)


# ------------------------------------------------------------------------------------- who leaves a mark


async def test_one_that_an_owner_vanished_with_is_marked_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        reader = Reader(rig, monkeypatch)
        opened_before(rig)
        gate = rig.session.hold("append")
        rig.publish(again())
        await eventually(lambda: bool(rig.session.appends))
        assert not reader.inside
        gate.set()
        await eventually(lambda: reader.inside == ["r1"])
        [start] = rig.session.starts()
        assert (start.fingerprint, start.alone, start.deaths) == ("", False, 0)
        assert rig.session.fold().deaths == Deaths(1), "if it dies of it now"
        reader.may_leave.set()
        await rig.engine.get()
        await eventually(lambda: len(rig.session.starts()) == 2)
        assert rig.session.starts()[1].fingerprint == FINGERPRINT
        assert rig.session.fold().deaths == Deaths(1), "one owner, one death"


@pytest.mark.parametrize("why", ["first", "fresh", "handed"])
async def test_one_that_nobody_can_have_died_of_is_read_at_once(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig() as rig:
        reader = Reader(rig, monkeypatch)
        if why == "handed":
            opened_before(rig, "r1", Handed(1, "retry 1: away"))
        rig.publish(delivery() if why == "first" else again())
        await eventually(lambda: bool(reader.inside))
        assert not rig.session.appends


async def test_a_mark_keeps_the_answer_and_what_is_known_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        reader = Reader(rig, monkeypatch)
        seeded = structs.replace(mark(0, fingerprint=FINGERPRINT), seed=77)
        opened_before(rig, "r1", seeded, Delta(1, 0, (65, 66), "AB"))
        rig.publish(again())
        await eventually(lambda: bool(reader.inside))
        state = rig.session.fold()
        assert (state.text, state.restarts) == ("AB", 0)
        assert state.started is not None
        assert (state.started.seed, state.started.fingerprint) == (77, FINGERPRINT)
        reader.may_leave.set()
        request = await rig.engine.get()
        assert (request.output_ids, request.params.seed) == ([65, 66], 77)


async def test_a_body_that_cannot_be_had_is_put_off_without_a_mark(tmp_path: Path) -> None:
    """Else each retry would look like a beginning, and none would wait longer than the first."""
    async with Rig(store=BlobStore(str(tmp_path / "not mounted"))) as rig:
        opened_before(rig)
        one = again()
        body_hash = one.message.body_hash
        claim = Claim(address_of(body_hash), body_hash, len(one.message.body))
        rig.publish(structs.replace(one, message=structs.replace(one.message, body=b"", claim=claim)))
        assert isinstance(await rig.settled(), Retry)
        assert not rig.session.starts()


# ------------------------------------------------------------------------------------ suspects, convicts


async def test_a_suspect_is_read_alone_and_the_log_says_so_as_long_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig(batch_size=8) as rig:
        reader = Reader(rig, monkeypatch)
        rig.publish(delivery("before"))
        await eventually(lambda: reader.inside == ["before"])
        opened_before(rig, "r1", mark(1))
        rig.publish(again())
        await eventually(lambda: rig.worker.in_flight == 2)
        rig.publish(delivery("behind"))
        await asyncio.sleep(0.01)
        assert reader.inside == ["before"], "the suspect waits until all are out, the others behind it"
        assert not any(start.alone for start in rig.session.starts())
        reader.may_leave.set()
        await eventually(lambda: any(start.alone for start in rig.session.starts()))
        await eventually(lambda: "behind" in rig.session.begun)
        alone, *later = [start for start in rig.session.starts() if start.epoch == 2]
        assert (alone.deaths, alone.lone_deaths, alone.alone, alone.fingerprint) == (2, 0, True, "")
        assert not later[0].alone


@pytest.mark.parametrize("lone", [2, 3])
async def test_one_that_enough_readers_died_of_alone_is_buried_unread(
    lone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig() as rig:
        reader = Reader(rig, monkeypatch)
        opened_before(rig, "r1", mark(lone + 1, lone, alone=True))
        rig.publish(again())
        settlement = await rig.settled()
        assert isinstance(settlement, DeadLetter)
        assert f"{lone + 1} consumers died while they read this request alone" in settlement.reason
        assert not reader.inside


async def test_a_cancel_does_not_make_a_deadly_body_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        reader = Reader(rig, monkeypatch)
        opened_before(rig, "r1", mark(1))
        rig.session.cancelled.add("r1")
        rig.publish(again())
        await rig.settled()
        assert not reader.inside


async def test_one_that_is_over_is_read_for_its_line_behind_a_mark() -> None:
    async with Rig() as rig:
        opened_before(rig)
        rig.session.cancelled.add("r1")
        rig.publish(again())
        settlement = await rig.settled()
        assert isinstance(settlement, Done)
        assert settlement.line is not None
        assert json.loads(settlement.line)["custom_id"] == "r1"
        assert [start.fingerprint for start in rig.session.starts()] == [""]


async def test_a_suspect_that_waits_for_its_turn_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        reader = Reader(rig, monkeypatch)
        for name in ("r1", "r2"):
            opened_before(rig, name, mark(1))
            rig.publish(structs.replace(again(name), position=f"q/{name}"))
        await eventually(lambda: len(reader.inside) == 1 and rig.worker.in_flight == 2)
        [waiting] = {"r1", "r2"} - set(reader.inside)
        rig.session.cancel(waiting)
        await rig.settled(waiting)


async def test_nobody_is_on_trial_in_the_engine_while_a_suspect_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the death of the reader would count as one of its own."""
    async with Rig() as rig:
        opened_before(rig, "tried", mark(1, fingerprint=FINGERPRINT))
        rig.publish(structs.replace(delivery("tried", line("tried")), redelivered=False))
        tried = await rig.engine.get()
        assert rig.session.starts("tried")[-1].alone
        reader = Reader(rig, monkeypatch)
        opened_before(rig, "r1", mark(1))
        rig.publish(again())
        await eventually(lambda: rig.worker.in_flight == 2)
        await asyncio.sleep(0.01)
        assert not reader.inside
        rig.engine.give(tried.id, 65)
        await eventually(lambda: reader.inside == ["r1"])
        assert rig.session.starts("r1")[-1].alone


# ------------------------------------------------------------------------------------------- the room


async def test_a_room_is_free_again_whatever_happens_in_it() -> None:
    freed: list[None] = []
    room = ReadingRoom(Turn(), lambda: freed.append(None))

    async def broken() -> None:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            await room.together(broken)
        with pytest.raises(ValueError):
            async with room.alone(lambda: False):
                raise ValueError
    assert len(freed) == 2
