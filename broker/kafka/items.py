"""What is settled: records that are completed, with what their completion emits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kafka.structs import TopicPartition

from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.commits import Committed


class Settled(Protocol):
    """What holds a partition whose records are to be completed: a tenure of requests, or of delays."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def gone(self) -> bool: ...

    @property
    def member(self) -> str:
        """The membership under which it was assigned; no other one may commit for it."""

    def commit(self, also: Sequence[int] = ()) -> Committed:
        """What to commit, with the records `also` finished."""

    def finish(self, offsets: Sequence[int]) -> None:
        """They are, and that is committed."""


@dataclass(eq=False, slots=True)
class Item:
    """Records to emit, and the offset that they complete; None completes nothing, but commits what stands (a
    higher epoch). `done` answers whether it was committed; it raises for what can never be."""

    tenure: Settled
    offset: int | None
    records: Sequence[Record]
    done: asyncio.Future[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()


def by_tenure(batch: Sequence[Item]) -> dict[Settled, list[Item]]:
    items: dict[Settled, list[Item]] = {}
    for item in batch:
        items.setdefault(item.tenure, []).append(item)
    return items
