"""A reader that leaves ends its own request, and nobody else's that bears the same id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from headrace.broker.contract import Broker, CancelResult, Published
from headrace.broker.events import Event, Fence, Logged, Started
from headrace.broker.message import Lane, Message, RequestRef
from headrace.producer.gateway.disconnects import Disconnects
from headrace.producer.gateway.status import Refusal
from headrace.v1 import inference_pb2 as pb

OURS = Message(b"ours", "r1", Lane.INTERACTIVE)
THEIRS = Message(b"theirs", "r1", Lane.INTERACTIVE)
UNNAMED = Message(b"ours", None, Lane.INTERACTIVE)


class OneLog:
    """A broker whose only log stays as it is."""

    def __init__(self, *events: Event, found_after_s: float = 0.0) -> None:
        self.events, self.cancelled, self.open = events, list[RequestRef](), 0
        self.found_after_s = found_after_s

    async def watch(self, ref: RequestRef) -> AsyncIterator[Logged]:
        self.open += 1
        try:
            await asyncio.sleep(self.found_after_s)
            for number, event in enumerate(self.events):
                yield Logged(str(number), event)
            await asyncio.Event().wait()
        finally:
            self.open -= 1

    async def cancel(self, ref: RequestRef) -> CancelResult:
        self.cancelled.append(ref)
        return CancelResult.MARKED


async def leave(broker: OneLog, message: Message) -> None:
    publishing: asyncio.Future[Published | Refusal] = asyncio.get_running_loop().create_future()
    publishing.set_result(Published(RequestRef("r1")))
    disconnects = Disconnects(cast(Broker, broker), lambda: 0)
    disconnects.left(pb.GenerateRequest(), message, publishing)
    await disconnects.finished()
    assert broker.open == 0


def started(message: Message) -> Started:
    return Started(1, "consumer-1", "queue/1", 0, message.body_hash, fingerprint="f")


MARK = Started(1, "consumer-1", "queue/1", 0, b"", fingerprint="")


@pytest.mark.parametrize("events", [[], [started(OURS)], [Fence(1), MARK, started(OURS)]])
async def test_its_own_request_is_cancelled(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.producer.gateway.disconnects._LOOK_S", 0.01)
    broker = OneLog(*events)
    await leave(broker, OURS)
    assert broker.cancelled == [RequestRef("r1")]


async def test_a_request_with_another_body_that_has_the_id_already_runs_on() -> None:
    broker = OneLog(MARK, started(THEIRS))
    await leave(broker, OURS)
    assert broker.cancelled == []


async def test_a_log_that_a_search_finds_after_a_while_is_waited_for() -> None:
    """On Kafka, of a request that runs since long: 50,000 records take 2.5 s on a small machine."""
    broker = OneLog(started(THEIRS), found_after_s=1.0)
    await leave(broker, OURS)
    assert broker.cancelled == []


async def test_an_id_that_a_gateway_made_is_nobody_elses() -> None:
    broker = OneLog(started(THEIRS))
    await leave(broker, UNNAMED)
    assert broker.cancelled == [RequestRef("r1")]
