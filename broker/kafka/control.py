"""The compacted control topic: cancel marks, paused lanes, the registry, discarded dead letters.

    key                          value                                          ends by
    cancel/<tenant>/<id>         JSON: nothing in it yet                        its log's time, see `expired`
    paused/<pool>.<lane>         JSON: nothing in it yet                        `resume`
    consumer/<name>              JSON: what a consumer says of itself           its close, or silence
    discarded/<offset>           JSON: nothing in it yet                        `delete_records`

A record without value (a tombstone) ends what its key began, and compaction drops both. `Control` reads the
topic to its end once, then tails it: one follower for each connection, which all of its sessions share. The
time of an entry is the broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka.structs import TopicPartition

from headrace.broker.backoff import Backoff
from headrace.broker.contract import Serves
from headrace.broker.errors import BrokerError, BrokerUnavailable
from headrace.broker.kafka.clients import Clients, ConsumerRecord, ConsumerThread
from headrace.broker.kafka.clock import BrokerClock
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.places import log_key, parse_log_key
from headrace.broker.kafka.publisher import Publisher
from headrace.broker.message import Lane, RequestRef
from headrace.broker.names import Names

_POLL_MS = 250
_BEHIND = 10_000  # cancellations that one listener may have still to see
_SILENT_MS = 24 * 60 * 60 * 1000  # a consumer that was not heard of for so long is wiped from the registry
_READ_S = 15.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a consumer says of itself. `held`: deliveries by lane. `serves`: None until it was announced.
    `at_ms`: when it said so."""

    name: str
    pool: str
    lanes: tuple[Lane, ...]
    lease_ms: int
    held: Mapping[Lane, int]
    serves: Serves | None = None
    at_ms: int = 0


@dataclass(slots=True)
class ControlState:
    """What stands in the topic, once compacted. Pure: records in, state out."""

    marks: dict[str, int] = field(default_factory=dict)  # log key of a request → when it was cancelled
    paused: set[str] = field(default_factory=set)
    reports: dict[str, Report] = field(default_factory=dict)
    discarded: set[int] = field(default_factory=set)

    def read(self, key: str, value: bytes | None, at_ms: int) -> RequestRef | None:
        """Takes the next record; answers the request that it cancels, if it does. Unknown keys are those of
        newer versions, and of somebody else."""
        kind, _, name = key.partition("/")
        match kind:
            case "cancel":
                return self._read_mark(name, value, at_ms)
            case "paused":
                (self.paused.discard if value is None else self.paused.add)(name)
            case "consumer":
                report = None if value is None else decode_report(name, value, at_ms)
                self.reports.pop(name, None)
                if report is not None:
                    self.reports[name] = report
            case "discarded" if name.isascii() and name.isdigit():
                (self.discarded.discard if value is None else self.discarded.add)(int(name))
        return None

    def _read_mark(self, name: str, value: bytes | None, at_ms: int) -> RequestRef | None:
        self.marks.pop(name, None)  # the newest ones stand last
        if value is None:
            return None
        self.marks[name] = at_ms
        return parse_log_key(name)

    def expired(self, now_ms: int, log_ms: int, limit: int) -> list[str]:
        """Keys that nobody needs any more: marks of requests whose log's time is over, and consumers that
        vanished. Oldest first."""
        keys: list[str] = []
        for name, at_ms in self.marks.items():
            if len(keys) >= limit or now_ms - at_ms <= log_ms:
                break
            keys.append(f"cancel/{name}")
        silent = (n for n, r in self.reports.items() if now_ms - r.at_ms > max(_SILENT_MS, r.lease_ms))
        return (keys + [f"consumer/{name}" for name in silent])[:limit]


class Cancellations:
    """Those asked for from now on; an async iterator. It holds a bounded number: who does not read for long
    misses the oldest here, not their marks."""

    def __init__(self) -> None:
        self._refs: deque[RequestRef] = deque(maxlen=_BEHIND)
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, ref: RequestRef) -> None:
        self._refs.append(ref)
        self._ready.set()

    def close(self) -> None:
        self._closed = True
        self._ready.set()

    def __aiter__(self) -> AsyncIterator[RequestRef]:
        return self

    async def __anext__(self) -> RequestRef:
        while not self._refs:
            if self._closed:
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        return self._refs.popleft()


class Control:
    """Follows the topic, and writes to it. Its topic must exist (`Topics.shared`) before the first call."""

    def __init__(self, clients: Clients, publisher: Publisher, clock: BrokerClock, names: Names) -> None:
        self._clients, self._publisher, self._clock = clients, publisher, clock
        self._topic = names.control
        self._partition = TopicPartition(names.control, 0)
        self._state = ControlState()
        self._listeners: list[Cancellations] = []
        self._next = 0
        self._moved = asyncio.Condition()
        self._starting = asyncio.Lock()
        self._thread: ConsumerThread | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: BrokerError | None = None

    # --------------------------------------------------------------------------------------- reading

    async def read_to_end(self) -> ControlState:
        """The state with all that was acknowledged before this call. Do not change it."""
        await self._started()
        end = (await self._clients.end_offsets([self._partition]))[self._partition]
        try:
            async with asyncio.timeout(_READ_S), self._moved:
                await self._moved.wait_for(lambda: self._next >= end or self._failure is not None)
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self._clients.servers} does not let us read {self._topic}") from error
        if self._failure is not None:
            raise self._failure
        return self._state

    @property
    def state(self) -> ControlState:
        """As far as it was read; new records show within moments. Do not change it."""
        return self._state

    async def changed(self) -> None:
        """Returns once something new was read."""
        seen = self._next
        async with self._moved:
            await self._moved.wait_for(lambda: self._next != seen)

    def cancellations(self) -> Cancellations:
        """From now on. The follower must run: call `read_to_end` before. Close it when nobody reads it."""
        listener = Cancellations()
        self._listeners = [old for old in self._listeners if not old._closed] + [listener]
        return listener

    def marked_ms(self, ref: RequestRef) -> int | None:
        """When the request's cancellation was asked for. It counts for what was published before."""
        return self._state.marks.get(log_key(ref))

    def is_paused(self, lane: Lane, pool: str) -> bool:
        return _lane_name(lane, pool) in self._state.paused

    # --------------------------------------------------------------------------------------- writing

    async def mark(self, ref: RequestRef) -> None:
        """Cancels; and clears away a few marks that are out of date, so that their number stays bounded by
        those who make them."""
        expired = self._state.expired(self._clock.now_ms(), self._clients.settings.log_ms, limit=4)
        await self._write([(f"cancel/{log_key(ref)}", b"{}"), *((key, None) for key in expired)])

    async def pause(self, lane: Lane, pool: str) -> None:
        await self._write([(f"paused/{_lane_name(lane, pool)}", b"{}")])

    async def resume(self, lane: Lane, pool: str) -> None:
        await self._write([(f"paused/{_lane_name(lane, pool)}", None)])

    async def report(self, report: Report) -> None:
        await self._write([(f"consumer/{report.name}", encode_report(report))])

    async def withdraw(self, consumer: str) -> None:
        """The end of a consumer in the registry."""
        await self._write([(f"consumer/{consumer}", None)])

    async def discard(self, offsets: Sequence[int]) -> None:
        """These dead letters count as removed."""
        await self._write([(f"discarded/{offset}", b"{}") for offset in offsets])

    async def forget_discarded(self, offsets: Sequence[int]) -> None:
        """These are really gone."""
        await self._write([(f"discarded/{offset}", None) for offset in offsets])

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._thread is not None:
            await self._thread.close()

    async def _write(self, entries: Sequence[tuple[str, bytes | None]]) -> None:
        await self._publisher.send(
            [Record(self._topic, value, key.encode(), partition=0) for key, value in entries]
        )

    # -------------------------------------------------------------------------------------- following

    async def _started(self) -> None:
        async with self._starting:
            if self._thread is None:
                thread = await self._clients.consumer(
                    auto_offset_reset="earliest", fetch_max_wait_ms=_POLL_MS
                )
                await thread.assign({self._partition: 0})
                self._thread = thread
            if self._task is None or self._task.done():
                self._failure = None
                self._task = asyncio.create_task(self._follow(self._thread), name="headrace control")

    async def _follow(self, thread: ConsumerThread) -> None:
        backoff = Backoff()
        while True:
            try:
                records, position = await thread.poll_from(self._partition, _POLL_MS)
            except BrokerUnavailable:
                await backoff.wait()
                continue
            except BrokerError as error:
                self._failure = error
                async with self._moved:
                    self._moved.notify_all()
                return
            backoff.reset()
            for record in records:
                self._read(record)
            if position != self._next:
                async with self._moved:
                    self._next = position
                    self._moved.notify_all()

    def _read(self, record: ConsumerRecord) -> None:
        with contextlib.suppress(UnicodeDecodeError):  # a key of somebody else
            cancelled = self._state.read((record.key or b"").decode(), record.value, record.timestamp)
            if cancelled is not None:
                for listener in self._listeners:
                    listener.put(cancelled)


def _lane_name(lane: Lane, pool: str) -> str:
    return f"{pool}.{lane.value}"


def encode_report(report: Report) -> bytes:
    said = {
        "pool": report.pool,
        "lanes": list(report.lanes),
        "lease_ms": report.lease_ms,
        "held": {lane.value: count for lane, count in report.held.items()},
    }
    if report.serves is not None:
        said |= {"models": list(report.serves.models), "slots": report.serves.slots}
    return json.dumps(said).encode()


def decode_report(name: str, value: bytes, at_ms: int) -> Report | None:
    """None for what is no report: the registry must not fall over somebody's bytes."""
    try:
        said = json.loads(value)
        lanes = tuple(Lane(lane) for lane in said["lanes"])
        held = {Lane(lane): int(count) for lane, count in said["held"].items()}
        report = Report(name, str(said["pool"]), lanes, int(said["lease_ms"]), held, None, at_ms)
        if "slots" in said:
            report = replace(report, serves=Serves(tuple(map(str, said["models"])), int(said["slots"])))
        return report
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
