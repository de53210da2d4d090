"""The assignor: each topic evenly, nothing to two members, nothing moved without need, moves in two steps."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.structs import TopicPartition

from headrace.broker.kafka.assignor import LaneAssignor


@dataclass
class Cluster:
    counts: dict[str, int]

    def topics(self) -> set[str]:
        return set(self.counts)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.counts[topic])) if topic in self.counts else None


@dataclass
class Member:
    """What a leader knows of one member, and the assignor of that member itself."""

    member_id: str
    topics: list[str]
    held: list[TopicPartition] = field(default_factory=list)
    metadata: Any = None


def rebalance(cluster: Cluster, members: list[Member]) -> None:
    """One round, as the leader and each member see it."""
    for member in members:
        own = LaneAssignor()
        own.member_assignment = list(member.held)
        member.metadata = ConsumerProtocolSubscription.decode(own.metadata(member.topics).encode())
    dealt = LaneAssignor().assign(cluster, members)
    before = {part: m.member_id for m in members for part in m.held}
    for member in members:
        got = dealt[member.member_id].partitions()
        assert all(before.get(part, member.member_id) == member.member_id for part in got), (
            "not let go of yet"
        )
        member.held = got


def settle(cluster: Cluster, members: list[Member]) -> None:
    """Rounds until nothing moves any more: two, and one to see it."""
    for _ in range(3):
        rebalance(cluster, members)
    held = [part for member in members for part in member.held]
    assert len(held) == len(set(held))


def spread(members: list[Member], topic: str) -> list[int]:
    return sorted(sum(part.topic == topic for part in member.held) for member in members)


@pytest.mark.parametrize("seed", range(6))
def test_whoever_joins_and_leaves_each_topic_stays_evenly_spread_and_whole(seed: int) -> None:
    chosen = random.Random(seed)
    cluster = Cluster({f"t{i}": chosen.randrange(1, 9) for i in range(6)})
    members: list[Member] = []
    for step in range(8):
        if members and chosen.random() < 0.4:
            members.remove(chosen.choice(members))
        if not members or chosen.random() < 0.7:
            members.append(Member(f"m{step}-{chosen.random()}", list(cluster.counts)))
        settle(cluster, members)
        for topic, count in cluster.counts.items():
            shares = spread(members, topic)
            assert sum(shares) == count
            assert shares[-1] - shares[0] <= 1


def test_a_member_that_joins_takes_its_half_of_each_topic_and_the_rest_stays_where_it_is() -> None:
    cluster = Cluster({"a": 8, "b": 8, "c": 8})
    first, second = Member("1", ["a", "b", "c"]), Member("2", ["a", "b", "c"])
    settle(cluster, [first])
    before = set(first.held)
    settle(cluster, [first, second])
    assert set(first.held) <= before
    assert all(spread([first, second], topic) == [4, 4] for topic in "abc")


def test_what_does_not_divide_goes_to_another_member_for_each_topic() -> None:
    cluster = Cluster({f"t{i}": 1 for i in range(6)})
    members = [Member(str(i), list(cluster.counts)) for i in range(3)]
    settle(cluster, members)
    assert Counter(len(member.held) for member in members) == {2: 3}


def test_a_member_gets_no_topic_that_it_did_not_ask_for() -> None:
    cluster = Cluster({"a": 4, "b": 4})
    members = [Member("1", ["a"]), Member("2", ["a", "b"])]
    settle(cluster, members)
    assert {part.topic for part in members[0].held} == {"a"}
    assert spread(members, "a") == [2, 2]
    assert spread(members, "b") == [0, 4]


def test_a_topic_that_does_not_exist_disturbs_nobody() -> None:
    members = [Member("1", ["a", "gone"])]
    settle(Cluster({"a": 2}), members)
    assert spread(members, "a") == [2]
