"""Who gets which partitions: cooperative and sticky, and each topic spread evenly by itself.

kafka-python's assignor evens out the sum over all topics. A consumer that joins would then be given whole
lanes, in the order of their names, and a backlog in one lane would stay with one consumer. Here each topic is
dealt out alone; what does not divide goes to another member for each topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kafka.errors as ke
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment


class MembershipLost(ke.KafkaError):  # type: ignore[misc]  # kafka-python has no type hints
    """Raised out of `poll`: discard the consumer."""


@dataclass(frozen=True, slots=True)
class _OneTopic:
    """The cluster, as far as the inherited algorithm looks at it, with one topic only."""

    topic: str
    partitions: set[int] | None

    def topics(self) -> set[str]:
        return {self.topic}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        assert topic == self.topic
        return self.partitions


@dataclass(frozen=True, slots=True)
class _Subscription:
    """What the inherited algorithm reads of a member's subscription."""

    topics: Sequence[str]
    owned_partitions: Sequence[Any]
    generation_id: int


@dataclass(slots=True)
class _Member:
    """One member, under a name that decides ties: the smallest comes first."""

    member_id: str
    metadata: _Subscription


class LaneAssignor(CooperativeStickyAssignor):  # type: ignore[misc]  # kafka-python has no type hints
    """One instance for each consumer: it remembers what its own member holds.

    A member that was thrown out in the middle of a rebalance would be joined to the group again by
    kafka-python, without a word, still claiming what it held: two owners at once. So with a `membership` (the
    consumer's `group_metadata`) it claims nothing that was assigned to another membership, but raises
    `MembershipLost`.
    """

    name = "headrace-lanes"

    def __init__(self) -> None:
        super().__init__()
        self.membership: Callable[[], Any] | None = None
        self._assigned_to = ""

    def on_assignment(self, assignment: Any, generation: Any) -> None:
        super().on_assignment(assignment, generation)
        if self.membership is not None:
            self._assigned_to = self.membership().member_id

    def metadata(self, topics: Sequence[str]) -> Any:
        if self.member_assignment and self.membership is not None:
            now = self.membership()
            if now.generation_id < 0 or now.member_id != self._assigned_to:
                raise MembershipLost("this consumer was thrown out of its group")
        return super().metadata(topics)

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, Any]:
        ids = sorted(member.member_id for member in members)
        topics = sorted({topic for member in members for topic in member.metadata.topics})
        held: dict[str, list[tuple[str, list[int]]]] = defaultdict(list)
        for turn, topic in enumerate(topics):
            aliases = {f"{(place - turn) % len(ids):06}": member_id for place, member_id in enumerate(ids)}
            alone = _OneTopic(topic, cluster.partitions_for_topic(topic))
            dealt = super().assign(alone, self._only(topic, members, aliases))
            for alias, assignment in dealt.items():
                held[aliases[alias]] += [
                    (name, sorted(parts)) for name, parts in assignment.assigned_partitions
                ]
        return {
            member_id: ConsumerProtocolAssignment(self.version, held[member_id], b"") for member_id in ids
        }

    def _only(self, topic: str, members: Sequence[Any], aliases: dict[str, str]) -> list[_Member]:
        """The members that want the topic, as if there were no other one."""
        by_id = {member.member_id: member.metadata for member in members}
        found = []
        for alias, member_id in sorted(aliases.items()):
            metadata = by_id[member_id]
            if topic in metadata.topics:
                owned = [part for part in metadata.owned_partitions or () if part.topic == topic]
                generation = getattr(metadata, "generation_id", None)
                subscription = _Subscription([topic], owned, -1 if generation is None else generation)
                found.append(_Member(alias, subscription))
        return found
