"""A broker whose logs the test writes itself, entry by entry."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

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
from headrace.broker.errors import BrokerUnavailable, TooLarge, UnknownCursor
from headrace.broker.events import Event, Failed, Finished, Logged
from headrace.broker.message import DEFAULT_POOL, Lane, Message, RequestRef


@dataclass
class Log:
    """`left` is set when a watcher has gone."""

    entries: list[Logged] = field(default_factory=list)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    left: asyncio.Event = field(default_factory=asyncio.Event)


class FakeBroker:
    """`away` makes every call fail; `publish_gate` holds publishes until it is set, `depths_gate` answers
    of `depths`. `waiting`: depth of the
    lanes by pool; `largest`: bytes of the largest body that is taken; `registered`: the consumers that there
    are; `places`: who asked for a place."""

    def __init__(self) -> None:
        self.away = False
        self.largest = 1 << 30
        self.messages: dict[RequestRef, Message] = {}
        self.logs: dict[RequestRef, Log] = {}
        self.cancelled: list[RequestRef] = []
        self.cancel_seen = asyncio.Event()
        self.publish_gate = asyncio.Event()
        self.publish_gate.set()
        self.publish_seen = asyncio.Event()
        self.depths_gate = asyncio.Event()
        self.depths_gate.set()
        self.reads = 0
        self.waiting: dict[str, dict[Lane, int]] = {}
        self.registered: list[ConsumerEntry] = []
        self.places: list[tuple[Lane, str]] = []
        self.asked: Counter[str] = Counter()

    # ------------------------------------------------------------------------------- what tests do

    async def write(self, request_id: str, *events: Event) -> None:
        log = self.log(RequestRef(request_id))
        async with log.grown:
            for event in events:
                log.entries.append(Logged(f"c{len(log.entries) + 1}", event))
            log.grown.notify_all()

    def log(self, ref: RequestRef) -> Log:
        return self.logs.setdefault(ref, Log())

    # ----------------------------------------------------------------------------------- the contract

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        self._check()
        self.publish_seen.set()
        await self.publish_gate.wait()
        if any(len(message.body) > self.largest for message in messages):
            raise TooLarge("a message is larger than the topic takes")
        return [self._publish(message) for message in messages]

    def _publish(self, message: Message) -> PublishResult:
        assert message.request_id is not None
        ref = RequestRef(message.request_id, message.tenant)
        known = self.messages.setdefault(ref, message)
        if known.body_hash != message.body_hash:
            return Conflict(ref)
        return Published(ref, duplicate=known is not message)

    async def cancel(self, ref: RequestRef) -> CancelResult:
        self._check()
        self.cancelled.append(ref)
        self.cancel_seen.set()
        if ref not in self.messages:
            return CancelResult.UNKNOWN
        ended = any(isinstance(logged.event, Finished | Failed) for logged in self.log(ref).entries)
        return CancelResult.ENDED if ended else CancelResult.MARKED

    async def watch(self, ref: RequestRef, cursor: str = "") -> AsyncIterator[Logged]:
        self._check()
        log = self.log(ref)
        if cursor and cursor not in {logged.cursor for logged in log.entries}:
            raise UnknownCursor(f"the cursor {cursor!r} names no place in the log of {ref.request_id!r}")
        try:
            for position in itertools.count():
                async with log.grown:
                    while len(log.entries) <= position and not self.away:
                        await log.grown.wait()
                self._check()
                logged = log.entries[position]
                self.reads += 1
                yield logged
                if isinstance(logged.event, Finished | Failed):
                    return
        finally:
            log.left.set()

    async def ping(self) -> None:
        self._check()

    async def known(self, ref: RequestRef) -> bool:
        self._check()
        return ref in self.messages or ref in self.logs

    def _check(self) -> None:
        if self.away:
            raise BrokerUnavailable("the broker is away; is it running?")

    def results(self, topic: str | None = None, cursor: str = "") -> AsyncIterator[ResultLine]:
        raise NotImplementedError

    async def trim_results(self, topic: str, cursor: str) -> None:
        raise NotImplementedError

    async def dead_letters(self, limit: int = 100) -> list[DeadLettered]:
        raise NotImplementedError

    def place(self, lane: Lane, pool: str = DEFAULT_POOL) -> int:
        self.places.append((lane, pool))
        return 5

    async def stats(self, pool: str = DEFAULT_POOL) -> QueueStats:
        raise NotImplementedError

    async def depths(self, pool: str = DEFAULT_POOL) -> dict[Lane, LaneDepth]:
        self._check()
        self.asked["depths"] += 1
        depths = self.waiting.get(pool, {}).copy()
        await self.depths_gate.wait()
        return {lane: LaneDepth(depths.get(lane, 0)) for lane in Lane}

    async def consumers(self) -> list[ConsumerEntry]:
        self._check()
        self.asked["consumers"] += 1
        return self.registered

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
