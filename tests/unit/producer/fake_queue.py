"""A broker with a consumer inside that answers each request once, in an order of the test's choosing.

It outlives the runs over it, as a real queue outlives a killed process.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from headrace.broker.blobs import BlobStore, check_out
from headrace.broker.contract import (
    CancelResult,
    Conflict,
    ConsumerEntry,
    ConsumerSession,
    DeadLettered,
    LaneDepth,
    Published,
    PublishResult,
    QueueStats,
    ResultLine,
    Stray,
)
from headrace.broker.errors import BrokerUnavailable, TooLarge
from headrace.broker.events import Failed, Finished, Logged, Usage
from headrace.broker.lines.output import Choice, failure_line, result_id, success_line
from headrace.broker.lines.parse import parse_message
from headrace.broker.lines.request import ParsedRequest
from headrace.broker.message import DEFAULT_POOL, Lane, Message, RequestRef

USAGE = Usage(prompt_tokens=3, completion_tokens=2)


class FakeQueue:
    """What tests set and see.

    `blobs`: where its consumer finds bodies.
    `patient`: a reader of results waits for a broker that is away, as that of Redis does, and is not told.
    `tells_duplicates`: whether a publish says that its request is known (Kafka's does not). `largest`: bytes
    of the largest body that is taken. `pinged`: somebody called `ping`; `looked_up`: calls of `known`.
    `answering`: whether the consumer works. `away`: every call fails. `outages`: calls yet to fail.
    `publishes`: messages published, duplicates included. `most_waiting`: the most requests that were ever
    unanswered at once. The prompt `fail` fails.
    """

    def __init__(self, seed: int = 0) -> None:
        self.answering = True
        self.away = False
        self.patient = False
        self.tells_duplicates = True
        self.largest = 1 << 30
        self.looked_up = 0
        self.pinged = asyncio.Event()
        self.blobs: BlobStore | None = None
        self.outages = 0
        self.messages: dict[str, Message] = {}
        self.publishes = 0
        self.waiting: list[str] = []
        self.most_waiting = 0
        self.runs: Counter[str] = Counter()
        self.topics: dict[str, list[tuple[int, bytes]]] = {}
        self._written = 0
        self._random = random.Random(seed)
        self._changed = asyncio.Condition()

    # ------------------------------------------------------------------------------------- the consumer

    async def consume_for_ever(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self.waiting and self.answering)
            await asyncio.sleep(0)
            for _ in range(self._random.randint(1, 4)):
                await self.answer_one()

    async def answer_one(self) -> None:
        if self.waiting:
            request_id = self.waiting.pop(self._random.randrange(len(self.waiting)))
            self.runs[request_id] += 1
            message = await check_out(self.messages[request_id], self.blobs)
            await self.deliver(message.reply_to or "", self.answer(message))

    async def deliver(self, topic: str, line: bytes) -> None:
        async with self._changed:
            self._written += 1
            self.topics.setdefault(topic, []).append((self._written, line))
            self._changed.notify_all()

    def answer(self, message: Message) -> bytes:
        request, request_id = parse_message(message), message.request_id
        assert isinstance(request, ParsedRequest)
        assert request_id is not None
        names: dict[str, Any] = {"result_id": result_id(request_id), "request_id": request_id}
        if request.prompt == "fail":
            return failure_line(
                request.custom_id, failed=Failed(1, "internal_error", "oops", 500, usage=USAGE), **names
            )
        text = f"{request.prompt}\u2028!"
        return success_line(
            request, model="m", choices=[Choice(text, "stop")], usage=USAGE, created=1, **names
        )

    async def published(self, count: int) -> None:
        """Waits until so many requests have been published."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= count)

    async def delivered(self, count: int) -> None:
        """Waits until so many more results have been written."""
        enough = self._written + count
        async with self._changed:
            await self._changed.wait_for(lambda: self._written >= enough)

    async def set_answering(self, answering: bool) -> None:
        async with self._changed:
            self.answering = answering
            self._changed.notify_all()

    # ------------------------------------------------------------------------------------- the contract

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        self._check()
        if any(len(message.body) > self.largest for message in messages):
            raise TooLarge("a message is larger than the topic takes")
        async with self._changed:
            results = [self._publish(message) for message in messages]
            self.most_waiting = max(self.most_waiting, len(self.waiting))
            self._changed.notify_all()
        await asyncio.sleep(0)
        return results

    def _publish(self, message: Message) -> PublishResult:
        assert message.request_id is not None
        self.publishes += 1
        ref = RequestRef(message.request_id)
        known = self.messages.setdefault(message.request_id, message)
        if known.body_hash != message.body_hash:
            return Conflict(ref)
        if known is message:
            self.waiting.append(message.request_id)
        return Published(ref, duplicate=known is not message and self.tells_duplicates)

    async def watch(self, ref: RequestRef, cursor: str = "") -> AsyncIterator[Logged]:
        self._check()
        async with self._changed:
            await self._changed.wait_for(lambda: self.runs[ref.request_id] > 0)
        yield Logged("c1", Finished(1, "stop"))

    async def ping(self) -> None:
        self.pinged.set()
        self._check()

    async def known(self, ref: RequestRef) -> bool:
        self.looked_up += 1
        self._check()
        return ref.request_id in self.messages

    async def results(self, topic: str | None = None, cursor: str = "") -> AsyncIterator[ResultLine]:
        at = int(cursor or 0)
        lines = self.topics.setdefault(topic or "", [])
        while True:
            async with self._changed:
                while (self.patient or not self.away) and not (new := _behind(lines, at)):
                    await self._changed.wait()
            if not self.patient:
                self._check()
            at, line = new[0]
            yield ResultLine(str(at), line, {})

    async def trim_results(self, topic: str, cursor: str) -> None:
        self._check()
        self.topics[topic][:] = [
            (number, line) for number, line in self.topics[topic] if number > int(cursor)
        ]

    async def leave(self) -> None:
        async with self._changed:
            self.away = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self.outages:
            self.outages -= 1
            raise BrokerUnavailable("the broker hiccups")
        if self.away:
            raise BrokerUnavailable("the broker does not answer")

    async def cancel(self, ref: RequestRef) -> CancelResult:
        raise NotImplementedError

    async def dead_letters(self, limit: int = 100) -> list[DeadLettered]:
        raise NotImplementedError

    def place(self, lane: Lane, pool: str = DEFAULT_POOL) -> int:
        return 0

    async def stats(self, pool: str = DEFAULT_POOL) -> QueueStats:
        raise NotImplementedError

    async def depths(self, pool: str = DEFAULT_POOL) -> dict[Lane, LaneDepth]:
        raise NotImplementedError

    async def consumers(self) -> list[ConsumerEntry]:
        raise NotImplementedError

    async def consume(
        self, lanes: Sequence[Lane], lease_ms: int, *, pool: str = DEFAULT_POOL
    ) -> ConsumerSession:
        raise NotImplementedError

    def each_dead_letter(self) -> AsyncGenerator[DeadLettered, None]:
        raise NotImplementedError

    async def dead_letter(self, position: str) -> DeadLettered | None:
        raise NotImplementedError

    async def replay(self, position: str) -> RequestRef | None:
        raise NotImplementedError

    async def discard(self, positions: Sequence[str]) -> int:
        raise NotImplementedError

    async def pools(self) -> list[str]:
        raise NotImplementedError

    async def strays(self) -> list[Stray]:
        raise NotImplementedError

    async def pause(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        raise NotImplementedError

    async def resume(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""


def _behind(lines: list[tuple[int, bytes]], at: int) -> list[tuple[int, bytes]]:
    return [(number, line) for number, line in lines if number > at]
