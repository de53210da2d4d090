"""What a reader's own topic does not take, while others append to their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker.contract import Append
from headrace.broker.errors import BrokerError, BrokerRefused
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.failures import too_large
from tests.unit.kafka.records import request
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import begin, done, started


@pytest.mark.parametrize("error", [too_large(), BrokerRefused("not allowed")])
async def test_it_is_no_failure_of_a_neighbour_that_ends_in_the_same_moment(
    monkeypatch: pytest.MonkeyPatch, error: BrokerError
) -> None:
    """TooLarge would make its answer a failed one, BrokerRefused end its consumer."""
    async with Rig() as rig:
        streamed = request(0, "mine", reply_to=b"x.reply.mine", stream=b"true")
        mine, other = rig.take(streamed, request(1, "other"))
        epochs = [await begin(rig, delivery) for delivery in (mine, other)]
        refuse(rig, monkeypatch, error)
        chunk = Append(mine, epochs[0], [started(mine, epochs[0])], [b"1"])
        told, settled = await asyncio.gather(
            rig.session.append([chunk]),
            rig.session.settle(other, epochs[1], done(epochs[1])),
            return_exceptions=True,
        )
        assert isinstance(told, BrokerError)
        assert settled is True
        assert rig.lines() == [b"line"]


def refuse(rig: Rig, monkeypatch: pytest.MonkeyPatch, error: BrokerError) -> None:
    """The reply topics take nothing, as their owner set them."""
    send = rig.publisher.send

    async def sent(records: Sequence[Record]) -> list[Any]:
        if any(record.topic.startswith("x.reply.") for record in records):
            raise error
        return await send(records)

    monkeypatch.setattr(rig.publisher, "send", sent)
