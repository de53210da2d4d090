"""What was fetched of a partition and waits to be taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from headrace.broker.kafka.clients import ConsumerRecord


class Buffer:
    """Records in the order of their offsets, each once. `next`: the offset to fetch from; what stands below
    `start` was finished before. `num_bytes`: what all of them keep in memory, about."""

    def __init__(self, start: int) -> None:
        self.next, self.num_bytes = start, 0
        self._records: deque[ConsumerRecord] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return iter(self._records)

    @property
    def first(self) -> ConsumerRecord:
        return self._records[0]

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        """Records of the partition, in order; what came before comes no more."""
        for record in records:
            if record.offset >= self.next:
                self.next = record.offset + 1
                self._records.append(record)
                self.num_bytes += _size_of(record)

    def drop(self) -> None:
        """The first one."""
        self.num_bytes -= _size_of(self._records.popleft())


def _size_of(record: ConsumerRecord) -> int:
    return 200 + len(record.value or b"") + len(record.key or b"")
