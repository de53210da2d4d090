"""Reads the log of one request among all, and follows it from pool to pool."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.broker.events import Event, Logged, Moved
from headrace.broker.fold import Fold
from headrace.broker.message import RequestRef
from tests.support.memory_cluster import MemoryCluster
from tests.support.memory_codec import log_key
from tests.support.memory_events import read_events
from tests.support.memory_topics import Partition, PartitionId


class LogReader:
    """Begins in the partition where the request was first published."""

    def __init__(self, cluster: MemoryCluster, ref: RequestRef, home: Partition) -> None:
        self.fold = Fold()
        self._cluster, self._key, self._at = cluster, log_key(ref), home
        self._offsets: dict[PartitionId, int] = {}
        self._began = False
        self._fence: Logged | None = None

    def read_on(self) -> Iterator[Logged]:
        """What came since the last time; take all of it."""
        while not self.fold.ended:
            at = self._at
            for offset, event, _ in read_events(at.events, self._key, self._offset(at), at.events.end):
                self._offsets[at.id] = offset + 1
                yield from self._entry(at, offset, event)
                if self.fold.ended or self._at is not at:
                    break
            else:
                return

    def _entry(self, at: Partition, offset: int, event: Event) -> Iterator[Logged]:
        logged = Logged(f"{at.id.pool}/{at.id.lane.value}/{at.id.number}/{offset}", event)
        if at.events.at(offset).key is None and not self._began:
            self._fence = logged  # of all fences before the request began here, the last one says it all
            return
        ready = [logged] if self._fence is None else [self._fence, logged]
        self._began, self._fence = True, None
        for entry in ready:
            counts = self.fold.read(entry.event)
            yield entry
        if counts and isinstance(event, Moved):
            self._follow(event)

    def _follow(self, moved: Moved) -> None:
        """What stands in the old place from here on is for nobody, until the request comes back."""
        number = int(moved.log.rpartition("/")[2])
        self._cluster.open_pool(moved.pool)
        self._at = self._cluster.partitions[PartitionId(self._at.id.lane, number, moved.pool)]
        self._began = False

    def _offset(self, at: Partition) -> int:
        return self._offsets.get(at.id, 0)
