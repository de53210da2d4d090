"""Partitions that nobody holds, although the group is at rest.

A partition moves in two rounds: its owner lets go of it and joins once more, then it is dealt to another one.
A dynamic member that ends between them leaves its group, which deals anew. A static one comes back to what it
was dealt last, without what it let go of, and for that Kafka deals nothing: nobody would hold the partition,
until somebody else comes or goes. So static members look, and join once more where they find one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerError
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.topic_maker import TopicMaker
from headrace.broker.kafka.topics import LaneTopics

logger = logging.getLogger(__name__)

_LOOK_S = 2.0
_AT_REST = "Stable"


class Orphans:
    """`join_again`: has the group deal anew. What is found twice in a row is no move that is under way."""

    def __init__(
        self, clients: Clients, group: str, lanes: Sequence[LaneTopics], join_again: Callable[[], None]
    ) -> None:
        self._clients, self._group, self._join_again = clients, group, join_again
        self._wanted = frozenset(_partitions(lanes))
        self._found: frozenset[TopicPartition] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="headrace kafka orphans")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except BrokerError as error:
                logger.debug("partitions without an owner are looked for later: %s", error)

    async def _look(self) -> None:
        described = await self._clients.admin(lambda admin: admin.describe_groups([self._group]))
        found = self._wanted - held_in(described[self._group], self._wanted)
        if found & self._found:
            found = await self._existing(found)
        if found & self._found:
            logger.warning("nobody holds %s: joining the group once more", sorted(found))
            self._join_again()
            found = frozenset()
        self._found = found

    async def _existing(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Without those of topics that somebody deleted, as those of former delays: they are dealt to nobody,
        however often one joins."""
        there = await TopicMaker(self._clients).there(sorted({each.topic for each in partitions}))
        return frozenset(each for each in partitions if each.partition < there.get(each.topic, 0))


def held_in(group: Mapping[str, Any], wanted: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
    """What its members hold. Of a group that is being dealt nobody can tell: all that is wanted, then."""
    if group["group_state"] != _AT_REST:
        return wanted
    return frozenset(
        TopicPartition(part["topic"], number)
        for member in group["members"]
        for part in (member["member_assignment"] or {}).get("assigned_partitions", ())
        for number in part["partitions"]
    )


def _partitions(lanes: Sequence[LaneTopics]) -> Iterable[TopicPartition]:
    for lane in lanes:
        for topic in (lane.requests, *lane.delayed):
            yield from (TopicPartition(topic, number) for number in range(lane.partitions))
