"""The live end of the events partitions that anybody watches, read once for all of them.

    one consumer, assigned ── poll ──► ring of partition 1 ──► watchers of its requests
                                  └──► ring of partition 2 ──► …

Each watcher has its own place and takes from the ring what is its own; a slow one that fell below the floor
reads on in the topic itself (`history`), as one does that starts earlier than the ring. So memory is bounded
by the rings, and nobody waits for anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence

from kafka.structs import TopicPartition

from headrace.broker.backoff import Backoff
from headrace.broker.errors import BrokerError, BrokerUnavailable
from headrace.broker.kafka.clients import Clients, ConsumerRecord, ConsumerThread
from headrace.broker.kafka.clock import BrokerClock
from headrace.broker.kafka.fences import fence_below
from headrace.broker.kafka.history import History
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rings import Entry, Ring, entry_of, in_force
from headrace.broker.names import Names

_POLL_MS = 100
_IDLE_S = 60.0  # a partition that nobody watches is read for so long: the next stream may live there


class Listener:
    """Who waits for entries of one request. `first`: the offset of the first that came since `clear`."""

    def __init__(self, key: bytes, ready: asyncio.Event | None = None) -> None:
        self.key = key
        self.ready = ready or asyncio.Event()
        self.first: int | None = None

    def clear(self) -> None:
        self.ready.clear()
        self.first = None

    def tell(self, offset: int) -> None:
        self.first = offset if self.first is None else self.first
        self.ready.set()


class Tail:
    """One partition that is being read."""

    def __init__(self, place: LogPlace, ring: Ring) -> None:
        self.place, self.ring = place, ring
        self.watchers = 0
        self.idle_since = time.monotonic()
        self._listeners: defaultdict[bytes, list[Listener]] = defaultdict(list)

    def put(self, entry: Entry) -> None:
        self.ring.put(entry)
        told = [entry.key] if entry.key is not None else list(self._listeners)
        for listener in [one for key in told for one in self._listeners.get(key, ())]:
            listener.tell(entry.offset)

    def listen(self, key: bytes, ready: asyncio.Event | None = None) -> Listener:
        """Tells of entries of this request, and of fences. `ready`: an event that several may share."""
        listener = Listener(key, ready)
        self._listeners[key].append(listener)
        return listener

    def unlisten(self, listener: Listener) -> None:
        self._listeners[listener.key].remove(listener)
        if not self._listeners[listener.key]:
            del self._listeners[listener.key]

    def wake_all(self) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.ready.set()


class Tails:
    """All tails of one connection. Its consumer and its task live while there is something to read."""

    def __init__(self, clients: Clients, history: History, clock: BrokerClock, names: Names) -> None:
        self._clients, self._history, self._clock, self._names = clients, history, clock, names
        self._tails: dict[LogPlace, Tail] = {}
        self._reading: dict[TopicPartition, Tail] = {}
        self._thread: ConsumerThread | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = False
        self._failure: BrokerError | None = None
        self._closed = False
        self._attaching = asyncio.Lock()

    def read_now(self) -> set[LogPlace]:
        """Places that are being read."""
        return set(self._tails)

    async def attach(self, places: Sequence[LogPlace]) -> list[Tail]:
        """Tails that are being read; call `detach` when done. Raises BrokerError where they cannot be. What
        ended the reading ended the watchers of that time: who comes now tries anew. Who finds all that he
        needs waits for nobody else: a first look at a partition may take long."""
        if self._failure is None and all(place in self._tails for place in places):
            return self._watched(places)
        async with self._attaching:
            await self._recover()
            there = [tail for place in places if (tail := self._tails.get(place)) is not None]
            for tail in there:
                tail.watchers += 1  # or it may be let go of meanwhile
            try:
                new = [place for place in dict.fromkeys(places) if place not in self._tails]
                if new:
                    rings = await self._begin(new)
                    self._tails |= {place: Tail(place, rings[place]) for place in new}
                    self._start()
            finally:
                for tail in there:
                    tail.watchers -= 1
            return self._watched(places)

    def _watched(self, places: Sequence[LogPlace]) -> list[Tail]:
        tails = [self._tails[place] for place in places]
        for tail in tails:
            tail.watchers += 1
        return tails

    def detach(self, tail: Tail) -> None:
        tail.watchers -= 1
        tail.idle_since = time.monotonic()

    def check(self) -> None:
        """Raises what ended the reading."""
        if self._failure is not None:
            raise self._failure

    async def _recover(self) -> None:
        if self._closed:
            self.check()
        if self._failure is not None:
            thread, self._thread, self._failure = self._thread, None, None
            if thread is not None:  # it may stand anywhere
                with contextlib.suppress(BrokerError):
                    await thread.close()
            self._start()

    async def close(self) -> None:
        """Watchers that are still there end with BrokerUnavailable."""
        self._closed = True
        self._failure = BrokerUnavailable(f"the connection to {self._clients.servers} was closed")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for tail in self._tails.values():
            tail.wake_all()
        if self._thread is not None:
            await self._thread.close()

    # --------------------------------------------------------------------------------------- reading

    async def _begin(self, places: Sequence[LogPlace]) -> dict[LogPlace, Ring]:
        """From the end on, with the fence in force there."""
        partitions = {place: self._partition(place) for place in places}
        settings = self._clients.settings
        since_ms = self._clock.now_ms() - settings.reader_margin_ms
        bounds = await self._history.bounds(partitions.values(), since_ms)
        fences = await self._history.all(bounds, lambda record: record.key is None)
        before = [fence_below(self._history, partition, start) for partition, (start, _) in bounds.items()]
        known = dict(zip(bounds, await asyncio.gather(*before), strict=True))
        for record in fences:
            partition = TopicPartition(record.topic, record.partition)
            known[partition] = in_force(known[partition], entry_of(record))
        return {
            place: Ring(bounds[partition][1], settings.ring_bytes, known[partition])
            for place, partition in partitions.items()
        }

    def _start(self) -> None:
        self._changed = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="headrace tails")
            self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = error if isinstance(error, BrokerError) else BrokerError(str(error))
            for tail in self._tails.values():
                tail.wake_all()

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                if self._thread is None:
                    self._thread = await self._clients.consumer(auto_offset_reset="earliest")
                    self._changed = True
                await self._assign(self._thread)
                records = await self._thread.poll(_POLL_MS)
            except BrokerUnavailable:
                await backoff.wait()
                continue
            backoff.reset()
            for record in records:
                self._deliver(record)

    async def _assign(self, thread: ConsumerThread) -> None:
        """Takes up what came, and now and then lets go of what nobody watches."""
        now = time.monotonic()
        gone = [p for p, t in self._tails.items() if not t.watchers and now - t.idle_since > _IDLE_S]
        for place in gone:
            del self._tails[place]
        if self._changed or gone:
            self._changed = False
            self._reading = {self._partition(place): tail for place, tail in self._tails.items()}
            await thread.assign({partition: tail.ring.next for partition, tail in self._reading.items()})

    def _deliver(self, record: ConsumerRecord) -> None:
        tail = self._reading.get(TopicPartition(record.topic, record.partition))
        if tail is None:
            return
        entry = entry_of(record)
        if tail.ring.is_anew(entry):
            tail.ring = tail.ring.anew(entry.offset)
        if entry.offset >= tail.ring.next:
            tail.put(entry)

    def _partition(self, place: LogPlace) -> TopicPartition:
        return TopicPartition(self._names.events(place.lane, place.pool), place.partition)
