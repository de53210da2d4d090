"""Which fence of a partition is in force at an offset, however long ago it was said.

Owners repeat theirs, so readers that start from a time see it. But all owners may have died before that, and
one that had been overtaken may wake, repeat its own, lower one and take a request that came meanwhile.
"""

from __future__ import annotations

from kafka.structs import TopicPartition

from headrace.broker.kafka.history import History
from headrace.broker.kafka.rings import Entry, entry_of, in_force

_LOOK_BACK, _WIDER = 2_000, 8  # records looked at, and how many times as many where none is a fence


async def fence_below(history: History, partition: TopicPartition, offset: int) -> Entry | None:
    """The one in force by the last ones below the offset."""
    first, _ = (await history.bounds([partition]))[partition]
    fence, low, width = None, offset, _LOOK_BACK
    while fence is None and low > first:
        span = (max(first, low - width), low)
        for record in await history.all({partition: span}, lambda record: record.key is None):
            fence = in_force(fence, entry_of(record))
        low, width = span[0], _WIDER * width
    return fence
