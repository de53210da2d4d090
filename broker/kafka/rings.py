"""The newest events of one partition, complete from a floor on, and the fence in force below it."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from headrace.broker.errors import BrokerError
from headrace.broker.events import Event, Fence
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.wire import decode_event

_OVERHEAD = 200  # bytes that an entry takes besides its record


@dataclass(frozen=True, slots=True)
class Entry:
    """An event as it stands in its partition. `key`: None for a fence of the whole partition."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes

    @property
    def size(self) -> int:
        return len(self.value) + _OVERHEAD


def entry_of(record: ConsumerRecord) -> Entry:
    return Entry(record.offset, record.timestamp, record.key, record.value or b"")


def in_force(known: Entry | None, entry: Entry) -> Entry | None:
    """Which of two fences says the epoch in force, the later one if they say the same. An owner that was
    overtaken while it was frozen repeats its own fence when it wakes, below the one that is in force. Not
    everything without a key is a fence."""
    event = event_of(entry)
    if not isinstance(event, Fence):
        return known
    before = None if known is None else event_of(known)
    return known if before is not None and before.epoch > event.epoch else entry


def event_of(entry: Entry) -> Event | None:
    """None for bytes of somebody else, which end nobody's log, and for what a whole partition cannot say."""
    try:
        event = decode_event(entry.value)
    except BrokerError:
        return None
    return event if entry.key is not None or isinstance(event, Fence) else None


class Ring:
    """The newest entries of one partition: all of [floor, next), and `fence`, the one in force below.
    `floor_ms`: nothing below was stamped later, by the broker's clock; unknown before the first entry, since
    ours may be wrong."""

    def __init__(self, floor: int, most_bytes: int, fence: Entry | None = None) -> None:
        self.floor, self.next = floor, floor
        self.floor_ms = float("inf")
        self.fence = fence
        self._most = most_bytes
        self._entries: deque[Entry] = deque()
        self._by_key: defaultdict[bytes | None, deque[Entry]] = defaultdict(deque)
        self._bytes = 0

    def put(self, entry: Entry) -> None:
        """The next entry of the partition."""
        if not self._entries:
            self.floor_ms = entry.at_ms
        self._entries.append(entry)
        self._by_key[entry.key].append(entry)
        self._bytes += entry.size
        self.next = entry.offset + 1
        while self._bytes > self._most and len(self._entries) > 1:
            self._drop()

    def is_anew(self, entry: Entry) -> bool:
        """Whether the partition was deleted and made again, and so counts from its beginning: what comes is
        younger than all that is here, and stands below it."""
        return entry.offset < self.next and (not self._entries or entry.at_ms > self._entries[-1].at_ms)

    def anew(self, floor: int) -> Ring:
        """An empty one, for what stands there now."""
        return Ring(floor, self._most)

    def holds(self, key: bytes) -> bool:
        return key in self._by_key

    def first_ms(self, key: bytes) -> int:
        """When the first entry that it holds was stamped."""
        return self._by_key[key][0].at_ms

    def take(self, key: bytes, start: int) -> list[Entry]:
        """Entries of a request, and fences, from offset `start` on, which must not lie below the floor."""
        assert start >= self.floor, (start, self.floor)
        found = [e for own in (key, None) if own in self._by_key for e in _from(self._by_key[own], start)]
        return sorted(found, key=lambda entry: entry.offset)

    def _drop(self) -> None:
        entry = self._entries.popleft()
        own = self._by_key[entry.key]
        own.popleft()
        if not own:
            del self._by_key[entry.key]
        if entry.key is None:
            self.fence = in_force(self.fence, entry)
        self._bytes -= entry.size
        self.floor, self.floor_ms = entry.offset + 1, entry.at_ms


def _from(entries: deque[Entry], start: int) -> list[Entry]:
    """Those from offset `start` on, looked for from the newest: that is where watchers are."""
    found = []
    for entry in reversed(entries):
        if entry.offset < start:
            break
        found.append(entry)
    return found
