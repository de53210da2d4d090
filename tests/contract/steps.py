"""The steps that tests of the contract are made of: take, open, write, read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.broker.contract import (
    Append,
    Broker,
    ConsumerSession,
    DeadLetter,
    Done,
    Opened,
    OpenOutcome,
    Published,
    ResultLine,
)
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Delta, Event, Finished, Logged, Started
from headrace.broker.fold import Fold, fold
from headrace.broker.message import Delivery, Lane, Message, RequestRef
from tests.contract.case import Case

PATIENCE_S = 10
BODY = b'{"body": {"prompt": "Hello"}}'
SENTINEL = b"the last line"


async def publish(broker: Broker, *messages: Message) -> list[RequestRef]:
    """Publishes what must be taken."""
    results = await broker.publish(messages)
    assert all(isinstance(result, Published) for result in results)
    return [result.ref for result in results]


async def publish_one(broker: Broker, request_id: str = "r", body: bytes = BODY) -> RequestRef:
    return (await publish(broker, Message(body, request_id)))[0]


# ---------------------------------------------------------------------------------------------- consuming


async def take_all(
    case: Case, sessions: Sequence[ConsumerSession], count: int
) -> list[tuple[ConsumerSession, Delivery]]:
    """Pulls with several sessions until `count` deliveries came; who gets which is the broker's choice."""
    taken: list[tuple[ConsumerSession, Delivery]] = []
    for _ in range(64):
        for session in sessions:
            pulled = await session.pull(count - len(taken), 0) if len(taken) < count else []
            taken += [(session, delivery) for delivery in pulled]
        if len(taken) == count:
            return taken
        await case.pass_time(case.lease_ms // 8)
    raise AssertionError(f"{count} deliveries were expected, {len(taken)} came: {taken}")


async def take(case: Case, *sessions: ConsumerSession) -> tuple[ConsumerSession, Delivery]:
    """One delivery, by whichever session gets it."""
    return (await take_all(case, sessions, 1))[0]


async def nothing_comes(case: Case, *sessions: ConsumerSession, within_ms: int) -> None:
    """No session gets anything while so much time passes."""
    step = max(1, case.lease_ms // 8)
    for _ in range(-(-within_ms // step)):
        for session in sessions:
            assert await session.pull(10, 0) == []
        await case.pass_time(step)


async def eventually(case: Case, holds: Callable[[], Awaitable[bool]]) -> None:
    """Waits until something holds of what readers hear of with a delay."""
    for _ in range(64):
        if await holds():
            return
        await case.pass_time(case.lease_ms // 8)
    raise AssertionError("it never came true")


@dataclass(slots=True)
class Writer:
    """A consumer that runs one delivery; keeps the fold of the log as it knows it."""

    session: ConsumerSession
    delivery: Delivery
    epoch: int
    fold: Fold

    @classmethod
    async def open(cls, session: ConsumerSession, delivery: Delivery) -> Writer:
        opened = await session.open(delivery)
        assert opened.outcome is OpenOutcome.RUN, opened
        assert opened.state is not None
        return cls(session, delivery, opened.epoch, opened.state)

    async def append(self, *events: Event, chunks: Sequence[bytes] = ()) -> bool:
        (appended,) = await self.session.append([Append(self.delivery, self.epoch, events, chunks)])
        if appended:
            for event in events:
                self.fold.read(event)
        return appended

    async def start(self, kept: int | None = None) -> bool:
        """`started`, keeping all tokens unless told otherwise."""
        tokens = len(self.fold.token_ids) if kept is None else kept
        return await self.append(self.started(tokens))

    def started(self, kept: int = 0, *, alone: bool = False) -> Started:
        """Carries on what the log says of earlier deaths."""
        deaths = self.fold.deaths
        return Started(
            epoch=self.epoch,
            consumer=self.session.name,
            delivery=self.delivery.position,
            seed=7,
            body_hash=self.delivery.message.body_hash,
            fingerprint="model",
            kept=kept,
            deaths=deaths.all,
            lone_deaths=deaths.lone,
            alone=alone,
        )

    async def say(self, *texts: str, chunks: Sequence[bytes] = ()) -> bool:
        """One delta, of one token, for each text."""
        first = self.fold.next_seq
        deltas = (Delta(self.epoch, first + i, (ord(text[0]),), text) for i, text in enumerate(texts))
        return await self.append(*deltas, chunks=chunks)

    async def say_at_last(self, text: str, chunks: Sequence[bytes]) -> bool:
        """Likewise, as a consumer does where the fate of an append is unknown: opens again, and goes on."""
        while True:
            try:
                return await self.say(text, chunks=chunks)
            except BrokerUnavailable:
                opened = await self.session.open(self.delivery)
                assert opened.state is not None
                self.epoch, self.fold = opened.epoch, opened.state
                await self.start()

    async def finish(self, line: bytes | None = b"line") -> bool:
        return await self.session.settle(self.delivery, self.epoch, Done(Finished(self.epoch, "stop"), line))


async def start_writer(case: Case, *sessions: ConsumerSession) -> Writer:
    """Takes a delivery, opens it, and writes `started`."""
    session, delivery = await take(case, *sessions)
    writer = await Writer.open(session, delivery)
    assert await writer.start()
    return writer


async def settle_unopened(session: ConsumerSession, delivery: Delivery, opened: Opened) -> bool:
    """What a consumer does with a delivery that it may not run."""
    if opened.outcome is OpenOutcome.CONFLICT:
        return await session.settle(delivery, 0, DeadLetter("the id has another body"))
    assert opened.outcome in (OpenOutcome.ENDED, OpenOutcome.TWIN), opened
    return await session.settle(delivery, 0, Done())


# ------------------------------------------------------------------------------------------------ reading


async def read_until(
    log: AsyncIterator[Logged], enough: Callable[[Fold], bool] = lambda state: state.ended
) -> list[Logged]:
    """Entries of a watched log until their fold satisfies `enough`."""
    state, entries = Fold(), []
    async with asyncio.timeout(PATIENCE_S):
        async for entry in log:
            entries.append(entry)
            state.read(entry.event)
            if enough(state):
                break
    if isinstance(log, AsyncGenerator):
        await log.aclose()
    return entries


async def read_log(broker: Broker, ref: RequestRef) -> list[Logged]:
    """The whole log of a request that ends."""
    return await read_until(broker.watch(ref))


async def shown(broker: Broker, ref: RequestRef) -> Fold:
    """What a reader shows of a request once it has ended."""
    return fold(entry.event for entry in await read_log(broker, ref))


async def read_results(case: Case, topic: str | None = None) -> list[ResultLine]:
    """All lines of a result topic so far: a request run after them, in a lane of its own, marks the end."""
    await publish(case.broker, Message(SENTINEL, lane=Lane.BACKGROUND, reply_to=topic))
    session = await case.consume([Lane.BACKGROUND])
    writer = await start_writer(case, session)
    assert writer.delivery.message.body == SENTINEL, "the lane `background` is kept free for sentinels"
    assert await writer.finish(SENTINEL)
    await case.leave(session)
    lines: list[ResultLine] = []
    async with asyncio.timeout(PATIENCE_S):
        async for result in case.broker.results(topic):
            if result.line == SENTINEL and result.headers["request-id"] == writer.delivery.ref.request_id:
                return lines
            lines.append(result)
    raise AssertionError("a result topic has no end")
