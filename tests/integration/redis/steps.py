"""The steps that tests of the adapter are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from headrace.broker.contract import Append, Broker, ConsumerSession, Done, Opened, OpenOutcome
from headrace.broker.events import Delta, Event, Finished, Started
from headrace.broker.fold import Fold, fold
from headrace.broker.message import Delivery, Lane, Message, RequestRef

BODY = b'{"custom_id": "a"}'
LANES = (Lane.INTERACTIVE, Lane.BATCH)
LONG_MS, SHORT_MS = 60_000, 250
PATIENCE_S = 10.0


async def publish(broker: Broker, *ids: str, lane: Lane = Lane.BATCH) -> list[RequestRef]:
    results = await broker.publish([Message(BODY, request_id, lane) for request_id in ids])
    return [result.ref for result in results]


@dataclass(slots=True)
class Run:
    """A delivery that is being run."""

    session: ConsumerSession
    delivery: Delivery
    epoch: int
    state: Fold

    async def append(self, *events: Event) -> bool:
        (written,) = await self.session.append([Append(self.delivery, self.epoch, events)])
        return written

    async def start(self) -> bool:
        kept = len(self.state.token_ids)
        return await self.append(
            Started(self.epoch, self.session.name, self.delivery.position, 1, b"", "model", kept)
        )

    async def say(self, seq: int, text: str) -> bool:
        return await self.append(Delta(self.epoch, seq, (seq,), text))

    async def finish(self, line: bytes = b"line") -> bool:
        return await self.session.settle(self.delivery, self.epoch, Done(Finished(self.epoch, "stop"), line))


async def take(session: ConsumerSession, wait_ms: int = 5_000) -> Delivery:
    """Exactly one delivery."""
    (delivery,) = await session.pull(1, wait_ms)
    return delivery


async def run(session: ConsumerSession, delivery: Delivery | None = None) -> Run:
    """Takes a delivery (or that one), and opens it."""
    taken = delivery or await take(session)
    opened: Opened = await session.open(taken)
    assert opened.outcome is OpenOutcome.RUN, opened
    assert opened.state is not None
    return Run(session, taken, opened.epoch, opened.state)


async def shown(broker: Broker, ref: RequestRef) -> Fold:
    """What a reader shows of a request that ends."""
    async with asyncio.timeout(PATIENCE_S):
        return fold([logged.event async for logged in broker.watch(ref)])


async def lines(broker: Broker, count: int, topic: str | None = None) -> Sequence[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        async for result in broker.results(topic):
            found.append(result.line)
            if len(found) == count:
                break
    return found


async def xadd(client: Redis, stream: str, fields: Mapping[str, str | bytes] | Mapping[bytes, bytes]) -> str:
    """Adds an entry as any client would; returns its id."""
    flat = [part for pair in fields.items() for part in pair]
    entry_id: bytes = await _raw(client, "XADD", stream, "*", *flat)
    return entry_id.decode()


async def entries(client: Redis, stream: str) -> list[dict[bytes, bytes]]:
    """Fields of all entries of a stream."""
    found: list[tuple[bytes, dict[bytes, bytes]]] = await _raw(client, "XRANGE", stream, "-", "+")
    return [fields for _, fields in found]


async def _raw(client: Redis, *command: str | bytes) -> Any:
    execute: Callable[..., Awaitable[Any]] = client.execute_command  # untyped there
    return await execute(*command)
