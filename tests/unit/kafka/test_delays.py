"""What becomes due in a delay topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import kafka.errors as ke
import pytest
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.delays import DelayTenure
from headrace.broker.kafka.rhythm import Rhythm
from headrace.broker.kafka.transactions import Outcome, Untakeable
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS, request
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import forwarded, forwarding, settled, until


async def test_what_cannot_be_understood_nor_sent_on_leaves_a_word_and_makes_room() -> None:
    async with Rig() as rig:
        keeping, delay = forwarding(rig, request(0, "large", b"x" * 2_000, deadline=b"soon"), request(1, "a"))
        await forwarded(keeping)
        [letter] = [each for each in rig.transactions.emitted if each.topic == "x.dlq"]
        assert not letter.value
        assert dict(letter.headers).keys() == {"headrace-origin", "headrace-reason"}
        assert not delay.buffer


async def test_so_does_what_is_understood_and_cannot_be_sent_on() -> None:
    """Foreign clients may write more than we send: sending it would fail for ever."""
    async with Rig() as rig:
        rig.publisher.most_bytes = 1_000
        keeping, delay = forwarding(rig, request(0, "large", b"x" * 2_000), request(1, "a"))
        await forwarded(keeping)
        assert [each.topic for each in rig.transactions.emitted] == ["x.dlq"]
        assert [dict(each.headers)["request-id"] for each in rig.publisher.sent] == [b"a"]
        assert not delay.buffer


async def test_of_a_letter_that_its_topic_does_not_take_the_head_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator may have made it smaller; those behind it complete it with themselves."""
    async with Rig() as rig:
        take_heads_only(rig, monkeypatch)
        keeping, delay = forwarding(rig, request(0, "bad", deadline=b"soon"), request(1, "a"))
        await forwarded(keeping)
        assert [(each.topic, each.value) for each in rig.transactions.emitted] == [("x.dlq", b"")]
        assert not delay.buffer


async def test_one_that_stands_last_is_left_likewise_and_stops_no_forwarding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be looked at again while its head is on the way, and be gone a moment later."""
    async with Rig() as rig:
        take_heads_only(rig, monkeypatch)
        keeping, delay = forwarding(rig, request(0, "a"), request(1, "bad", deadline=b"soon"))
        task = asyncio.create_task(keeping._forward_delays())
        await until(lambda: not delay.buffer)
        await settled(rig)
        assert not task.done(), task
        delay.fetched([request(2, "b")])
        await until(lambda: not delay.buffer)
        assert [dict(each.headers)["request-id"] for each in rig.publisher.sent] == [b"a", b"b"]
        task.cancel()


async def test_a_partition_that_takes_nothing_keeps_no_other_one_from_being_forwarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That nobody leads it is known after half a minute: until then others become due, again and again."""
    async with Rig() as rig:
        keeping, stuck = forwarding(rig, request(0, "a"))
        partition, rhythm = TopicPartition(TOPICS.delayed[0], 1), Rhythm(5.0, time.monotonic())
        other = DelayTenure(TOPICS, partition, Names("x"), Committed(), rig.tenure.member, rhythm)
        keeping._holdings.delays[partition] = other
        send, known = rig.publisher.send, asyncio.Event()

        async def without_leader(records: Sequence[Record]) -> list[Any]:
            if any(each.partition == 0 for each in records):
                await known.wait()
                raise BrokerUnavailable("nobody leads it")
            return await send(records)

        monkeypatch.setattr(rig.publisher, "send", without_leader)
        task = asyncio.create_task(keeping._forward_delays())
        for number in range(3):
            other.fetched([request(number, f"b{number}")])
            await until(lambda: not other.buffer)
        assert len(stuck.buffer) == 1
        known.set()
        await until(lambda: not stuck.busy)
        monkeypatch.setattr(rig.publisher, "send", send)
        await until(lambda: not stuck.buffer)
        task.cancel()


def take_heads_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of the dead letters takes no more."""
    commit = rig.transactions.commit

    def of_smaller_letters(records: Sequence[Record], *rest: Any) -> Outcome:
        for record in records:
            if record.topic == "x.dlq" and record.value:
                raise Untakeable(record, ke.MessageSizeTooLargeError())
        return commit(records, *rest)

    monkeypatch.setattr(rig.transactions, "commit", of_smaller_letters)
