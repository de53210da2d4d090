"""What an owner knows of the logs in one events partition: epochs, folds, and from where to read them again.

    offset   R ───────────── fence ─────── since(a) ──── since(b) ─────────────── end
             └ restore: the last fence in force before the first log that is still needed

`PartitionLogs` takes the records of a restore, and then what the owner appends itself. It keeps folds of the
requests that are unfinished, and only the hash of the body of those that ended lately, by which a twin is
known. A restore begins at a fence, so that whoever reads from there knows the epoch in force: a log that
began behind it may hold events of an owner that was overtaken before.

A request that runs for long would pin R, so its owner states it anew: a fence of its own epoch, which changes
nothing for readers, with the fold beside it. A restore that finds such a statement needs nothing before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.broker.events import Event, Fence, Moved, Started
from headrace.broker.fold import Fold
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.departures import Departed, Departure, departure_of
from headrace.broker.kafka.ended import Ended
from headrace.broker.kafka.event_records import Closing, LogState, decode_event_record
from headrace.broker.kafka.statements import decode_fold, stated_in

Beside: TypeAlias = Closing | Departure | None


@dataclass(slots=True)
class Log:
    """The log of one request. `since`: offset from which it can be read (its first event, or a statement);
    None while it has none. `stated_ms`: when that was written, see `steady_ms`. `departure`: beside the last
    `moved` that counts."""

    state: LogState
    since: int | None = None
    stated_ms: int = 0
    departure: Departure | None = None

    @property
    def fold(self) -> Fold:
        return self.state.fold

    @property
    def body_hash(self) -> bytes:
        return b"" if self.fold.started is None else self.fold.started.body_hash


@dataclass(slots=True)
class PartitionLogs:
    """`epoch`: of the partition, by its fences. `highest`: of any event, valid or not."""

    restore: int = 0
    epoch: int = 0
    highest: int = 0
    logs: dict[str, Log] = field(default_factory=dict)
    ended: Ended = field(default_factory=Ended)
    departed: Departed = field(default_factory=Departed)
    _fences: deque[int] = field(default_factory=deque)  # offsets of those in force, ascending
    end: int = 0
    writing: list[int] = field(default_factory=list)  # below which nothing stands of each append under way

    # ------------------------------------------------------------------------------------------- reading

    def read(self, record: ConsumerRecord, now_ms: int = 0) -> None:
        """Takes the next record of the partition, as of a restore."""
        self.end = record.offset + 1
        entry = decode_event_record(record)
        if entry is None:
            return
        self.highest = max(self.highest, entry.event.epoch)
        if entry.key is None:
            if entry.event.epoch >= self.epoch:
                self.ended.read(record.headers, entry.offset)
                self.departed.read(record.headers)
            self.fence(entry.event.epoch, entry.offset)
            return
        stated = stated_in(record.headers)
        if stated is not None:
            self._restate(entry.key, entry.event, stated, entry.offset, now_ms)
        else:
            beside = entry.closing or departure_of(record)
            self.append(entry.key, entry.event, entry.offset, beside, now_ms)

    def fence(self, epoch: int, offset: int) -> None:
        """A fence of the whole partition."""
        self.end = max(self.end, offset + 1)
        if epoch < self.epoch:
            return
        self._fences.append(offset)
        if epoch > self.epoch:
            self.epoch = epoch
            self.highest = max(self.highest, epoch)
            for log in self.logs.values():
                log.fold.read(Fence(epoch))

    def append(self, key: str, event: Event, offset: int, beside: Beside = None, now_ms: int = 0) -> None:
        """An event of one request, read or acknowledged. A void one leaves no trace."""
        self.end = max(self.end, offset + 1)
        log = self.log(key)
        if log.fold.ended or event.epoch < log.fold.epoch:
            self.drop_unused(key)
            return
        if log.departure is not None and isinstance(event, Started):  # it has come back, and begins anew
            self.forget(key)
            log = self.log(key)
        log.state.read(event, beside if isinstance(beside, Closing) else None)
        if log.since is None:
            log.since, log.stated_ms = offset, now_ms
        if isinstance(event, Moved):
            log.departure = beside if isinstance(beside, Departure) else None
            log.fold.read(Fence(self.epoch))  # should it come back, it goes on under the epochs of this place

    def log(self, key: str) -> Log:
        """A log, empty where there was none: then it begins under the epoch in force."""
        log = self.logs.get(key)
        if log is None:
            log = self.logs[key] = Log(LogState(Fold(epoch=self.epoch)))
        return log

    def replace(self, key: str, log: Log) -> None:
        """With what was read again."""
        self.logs[key] = log

    # ------------------------------------------------------------------------------------------- the end

    def forget(self, key: str) -> None:
        """A request whose end, or whose move, is over: only a twin needs to know of it from now on."""
        log = self.logs.pop(key, None)
        if log is not None and log.fold.ended:
            self.ended.remember(key, log.body_hash)
        elif log is not None and log.departure is not None:
            self.departed.remember(key, log.departure)

    def told(self) -> list[tuple[str, bytes]]:
        """Headers for a fence, by which the next owner knows late twins; none where it was told not long
        ago."""
        ending = {key: log.body_hash for key, log in self.logs.items() if log.fold.ended}
        going = {key: log.departure for key, log in self.logs.items() if log.departure is not None}
        ended = self.ended.header(self.end, ending)
        return [] if ended is None else [ended, self.departed.header(going)]

    def departure(self, key: str) -> Departure | None:
        """Whether and how the request went to another pool."""
        log = self.logs.get(key)
        return log.departure if log is not None and log.departure is not None else self.departed.get(key)

    def keep(self, key: str, since: int) -> None:
        """It may begin at that offset."""
        log = self.log(key)
        if log.since is None:
            log.since = since

    def drop_unused(self, key: str) -> None:
        """A log that never had an event need not be kept."""
        log = self.logs.get(key)
        if log is not None and log.since is None:
            del self.logs[key]

    # ----------------------------------------------------------------------------------------- restoring

    def restore_offset(self) -> int:
        """From where a successor must read. It only rises."""
        needed = [log.since for log in self.logs.values() if log.since is not None] + self.writing
        needed.append(self.restore if self.ended.restore is None else self.ended.restore)
        first = min(needed)
        while len(self._fences) > 1 and self._fences[1] <= first:
            self._fences.popleft()
        if self._fences and self._fences[0] <= first:
            self.restore = max(self.restore, self._fences[0])
        return self.restore

    def overdue(self, before_ms: int) -> list[str]:
        """Requests whose log was last stated before that time, and has to be stated anew."""
        return [
            key
            for key, log in self.logs.items()
            if log.since is not None
            and log.stated_ms < before_ms
            and not log.fold.ended
            and log.departure is None
        ]

    def stated(self, key: str, offset: int, now_ms: int) -> None:
        """A statement of ours was acknowledged."""
        log = self.logs.get(key)
        if log is not None:
            log.since, log.stated_ms = offset, now_ms

    def _restate(self, key: str, event: Event, stated: bytes, offset: int, now_ms: int) -> None:
        log = self.log(key)
        if event.epoch < log.fold.epoch or log.fold.ended:
            return
        fold = decode_fold(stated, event.epoch)
        # One that was sent again by the client, late, knows less than what stands before it.
        if fold is not None and fold.next_seq >= log.fold.next_seq:
            log.state.fold, log.since, log.stated_ms = fold, offset, now_ms
