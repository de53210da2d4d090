"""Waiting out a broker that is away."""

from __future__ import annotations

import logging

import pytest

from headrace.broker.errors import BrokerRefused, BrokerUnavailable
from headrace.consumer.backoff import Backoff, insist


async def test_a_call_is_repeated_until_the_broker_answers_and_the_outage_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    answers = iter([BrokerUnavailable("away")] * 5 + ["answer"])

    async def call() -> str:
        answer = next(answers)
        if isinstance(answer, BrokerUnavailable):
            raise answer
        return answer

    assert await insist(call, "the call", longest_s=0.001) == "answer"
    assert [record.message for record in caplog.records] == ["the call failed, will be repeated: away"]


async def test_what_waiting_does_not_cure_is_raised_at_once() -> None:
    async def call() -> None:
        raise BrokerRefused("no login")

    with pytest.raises(BrokerRefused):
        await insist(call, "the call")


def test_pauses_grow_from_the_first_to_the_longest_and_are_jittered() -> None:
    backoffs = [Backoff(0.1, 1.0) for _ in range(50)]
    for bound in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        pauses = [backoff.next_s() for backoff in backoffs]
        assert max(pauses) <= bound
        assert max(pauses) > bound / 2
        assert min(pauses) < bound / 2
