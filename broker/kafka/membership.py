"""How a session is a member of its group: one consumer at a time, with the settings that its leases need."""

from __future__ import annotations

from collections.abc import Sequence

from kafka import KafkaConsumer

from headrace.broker.kafka.assignor import LaneAssignor
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.owner_thread import OwnerOptions
from headrace.broker.kafka.topics import LaneTopics, group_of

# A fetch of all partitions of four lanes and their delays takes milliseconds of CPU, also when nothing comes.
# What comes ends it at once; only a partition that is resumed meanwhile waits for its end.
_FETCH_MS = 200
_MOST_REBALANCE_MS = 10_000


def owner_options(at: Connection, topics: Sequence[LaneTopics], pool: str, lease_ms: int) -> OwnerOptions:
    """For the owner thread of a session that takes from these lanes."""

    def make() -> KafkaConsumer:
        return _new_member(at, pool, lease_ms)

    names = [name for lane in topics for name in (lane.requests, *lane.delayed)]
    return OwnerOptions(make, names, at.clients.servers, lease_ms / 1000, release_s(lease_ms))


def release_s(lease_ms: int) -> float:
    """How long partitions that are revoked may be kept, to finish what is under way for them."""
    return min(5.0, lease_ms / 2000)


def _new_member(at: Connection, pool: str, lease_ms: int) -> KafkaConsumer:
    """The lease is the session in the group. A rebalance is heard of by heartbeat, so there are more of them
    than the lease alone would need."""
    assignor = LaneAssignor()
    consumer = KafkaConsumer(
        **at.clients.consumer_options(
            group_id=group_of(at.names, pool),
            group_instance_id=at.settings.group_instance_id,
            partition_assignment_strategy=[assignor],
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            session_timeout_ms=lease_ms,
            heartbeat_interval_ms=max(20, min(lease_ms // 10, 1_000)),
            max_poll_interval_ms=max(_MOST_REBALANCE_MS, 2 * lease_ms),
            fetch_max_wait_ms=_FETCH_MS,
            fetch_max_bytes=4 << 20,
            max_partition_fetch_bytes=256 << 10,
        )
    )
    assignor.membership = consumer.group_metadata
    return consumer
