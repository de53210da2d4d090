"""What a test of the contract asks of an adapter besides the contract itself: time, raw publishing, facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from headrace.broker.contract import Broker, ConsumerSession
from headrace.broker.message import DEFAULT_POOL, Delivery, Lane
from headrace.broker.names import Names

# Sessions of tests take these; the last lane is kept free for the sentinels of `steps.read_results`.
LANES = (Lane.INTERACTIVE, Lane.STANDARD, Lane.BATCH)


class Case(ABC):
    """One adapter under test, with a prefix of its own.

    Every session made by `consume` sends heartbeats as time passes, until it is frozen: then it does what
    its test tells it, but shows no sign of life.
    """

    # Facts in which adapters differ, and which the contract leaves open.
    finds_duplicates_at_publish: bool  # or only when the second delivery is opened
    refuses_late_appends: bool  # or stores them as void events
    leases_single_deliveries: bool  # or whole partitions: a release needs the session to close
    emits_chunks_once: bool  # or at least once, an overtaken owner's too
    control_delay_ms: int = 0  # until all sessions have heard that a lane is paused

    def __init__(self, broker: Broker, names: Names, lease_ms: int) -> None:
        self.broker = broker
        self.names = names
        self.lease_ms = lease_ms
        self.lost: list[Delivery] = []
        self._alive: list[ConsumerSession] = []
        self._sessions: list[ConsumerSession] = []
        self._brokers: list[Broker] = [broker]

    # ------------------------------------------------------------------------- what adapters provide

    @abstractmethod
    async def another_connection(self) -> Broker:
        """As of another process."""

    @abstractmethod
    async def publish_raw(self, lane: Lane, fields: Mapping[str, bytes]) -> None:
        """Puts an entry on a lane as a foreign client would; `body` may be missing among the fields."""

    @abstractmethod
    async def sleep(self, ms: int) -> None:
        """Lets the broker's clock move on."""

    # --------------------------------------------------------------------------------------- sessions

    async def connect(self) -> Broker:
        broker = await self.another_connection()
        self._brokers.append(broker)
        return broker

    async def consume(self, lanes: Sequence[Lane] = LANES, *, pool: str = DEFAULT_POOL) -> ConsumerSession:
        session = await self.broker.consume(lanes, self.lease_ms, pool=pool)
        self._alive.append(session)
        self._sessions.append(session)
        return session

    async def consumers(self, count: int) -> list[ConsumerSession]:
        """Sessions that have all joined and know it, so that nothing moves between them any more."""
        sessions = [await self.consume() for _ in range(count)]
        for _ in range(2):
            for session in sessions:
                assert await session.pull(1, 0) == []
        return sessions

    async def leave(self, *sessions: ConsumerSession) -> None:
        """Closes sessions before the test ends."""
        self.freeze(*sessions)
        for session in sessions:
            self._sessions.remove(session)
            await session.close()

    def freeze(self, *sessions: ConsumerSession) -> None:
        """No heartbeats any more."""
        self._alive = [s for s in self._alive if s not in sessions]

    def thaw(self, *sessions: ConsumerSession) -> None:
        self._alive.extend(sessions)

    async def pass_time(self, ms: int) -> None:
        """Time passes; who is alive sends heartbeats."""
        while ms > 0:
            await self.sleep(min(ms, self.lease_ms // 4))
            ms -= self.lease_ms // 4
            for session in self._alive:
                self.lost += await session.heartbeat()

    async def hear_of_loss(self) -> int:
        """Waits until heartbeats told of lost deliveries; how many."""
        for _ in range(40):
            if self.lost:
                return len(self.lost)
            await self.pass_time(self.lease_ms // 4)
        raise AssertionError("nothing was lost")

    async def pause(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        """Pauses a lane, and waits until all sessions know."""
        await self.broker.pause(lane, pool)
        if self.control_delay_ms:
            await self.pass_time(self.control_delay_ms)

    async def lapse(self, *sessions: ConsumerSession) -> None:
        """Freezes sessions until their leases are over."""
        self.freeze(*sessions)
        await self.pass_time(self.lease_ms * 3 // 2)

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()
        for broker in self._brokers:
            await broker.close()
