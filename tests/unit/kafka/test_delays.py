"""What becomes due in a delay topic."""

from __future__ import annotations

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
from tests.unit.kafka.rig_steps import forwarding, settled


async def test_what_cannot_be_understood_nor_sent_on_leaves_a_word_and_makes_room() -> None:
    async with Rig() as rig:
        keeping, delay = forwarding(rig, request(0, "large", b"x" * 2_000, deadline=b"soon"), request(1, "a"))
        await keeping._forward_due()
        await rig.settler.flushed(1)
        [letter] = [each for each in rig.transactions.emitted if each.topic == "x.dlq"]
        assert not letter.value
        assert dict(letter.headers).keys() == {"headrace-origin", "headrace-reason"}
        assert not delay.buffer


async def test_so_does_what_is_understood_and_cannot_be_sent_on() -> None:
    """Foreign clients may write more than we send: sending it would fail for ever."""
    async with Rig() as rig:
        rig.publisher.most_bytes = 1_000
        keeping, delay = forwarding(rig, request(0, "large", b"x" * 2_000), request(1, "a"))
        await keeping._forward_due()
        await rig.settler.flushed(1)
        assert [each.topic for each in rig.transactions.emitted] == ["x.dlq"]
        assert [dict(each.headers)["request-id"] for each in rig.publisher.sent] == [b"a"]
        assert not delay.buffer


async def test_of_a_letter_that_its_topic_does_not_take_the_head_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator may have made it smaller; those behind it complete it with themselves."""
    async with Rig() as rig:
        commit = rig.transactions.commit

        def of_smaller_letters(records: Sequence[Record], *rest: Any) -> Outcome:
            for record in records:
                if record.topic == "x.dlq" and record.value:
                    raise Untakeable(record, ke.MessageSizeTooLargeError())
            return commit(records, *rest)

        monkeypatch.setattr(rig.transactions, "commit", of_smaller_letters)
        keeping, delay = forwarding(rig, request(0, "bad", deadline=b"soon"), request(1, "a"))
        await keeping._forward_due()
        await settled(rig)
        await settled(rig)
        assert [(each.topic, each.value) for each in rig.transactions.emitted] == [("x.dlq", b"")]
        assert not delay.buffer


async def test_a_partition_that_takes_nothing_keeps_no_other_one_from_being_forwarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        keeping, stuck = forwarding(rig, request(0, "a"))
        partition, rhythm = TopicPartition(TOPICS.delayed[0], 1), Rhythm(5.0, time.monotonic())
        other = DelayTenure(TOPICS, partition, Names("x"), Committed(), rig.tenure.member, rhythm)
        other.fetched([request(0, "b")])
        keeping._holdings.delays[partition] = other
        send = rig.publisher.send

        async def without_leader(records: Sequence[Record]) -> list[Any]:
            if any(each.partition == 0 for each in records):
                raise BrokerUnavailable("nobody leads it")
            return await send(records)

        monkeypatch.setattr(rig.publisher, "send", without_leader)
        with pytest.raises(BrokerUnavailable):
            await keeping._forward_due()
        await rig.settler.flushed(1)
        assert [dict(each.headers)["request-id"] for each in rig.publisher.sent] == [b"b"]
        assert (len(stuck.buffer), len(other.buffer)) == (1, 0)
