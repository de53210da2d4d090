"""What a search for a request looks at, and what it makes of the records that it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kafka.structs import TopicPartition

from headrace.broker.events import Event, Started
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import POSITION
from headrace.broker.kafka.history import Bounds, Wanted
from headrace.broker.kafka.places import LogPlace, log_key, parse_position
from headrace.broker.kafka.rings import entry_of, event_of
from headrace.broker.message import RequestRef
from headrace.broker.names import Names


def wanted(ref: RequestRef, until_ms: int | None) -> Wanted:
    """Records and events of a request."""
    key, request_id = log_key(ref).encode(), ref.request_id.encode(errors="replace")
    tenant = ref.tenant.encode(errors="replace")

    def is_wanted(record: ConsumerRecord) -> bool:
        if until_ms is not None and record.timestamp > until_ms:
            return False
        if record.key == key:
            return True
        headers = dict(record.headers)
        return headers.get("request-id") == request_id and headers.get("tenant", b"") == tenant

    return is_wanted


def first_of_each(is_wanted: Wanted, few: int) -> Wanted:
    """Of each partition only the first few records that are wanted."""
    seen: Counter[TopicPartition] = Counter()

    def first(record: ConsumerRecord) -> bool:
        partition = partition_of(record)
        if seen[partition] >= few or not is_wanted(record):
            return False
        seen[partition] += 1
        return True

    return first


def partition_of(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def age(record: ConsumerRecord) -> tuple[int, bool]:
    """What is passed on may bear the same time as what it is a copy of."""
    return record.timestamp, POSITION in dict(record.headers)


def events_of(of_log: Iterable[ConsumerRecord]) -> list[Event]:
    return [event for record in of_log if (event := event_of(entry_of(record))) is not None]


def copy_of(first: ConsumerRecord, requests: TopicPartition) -> int | None:
    """The offset of a record that was published, and not forwarded."""
    published = partition_of(first) == requests and POSITION not in dict(first.headers)
    return int(first.offset) if published else None


def copy_named(events: Iterable[Event], place: LogPlace, names: Names) -> int | None:
    """The offset of the record, published at this place, that runs by what a log says."""
    for event in events:
        if isinstance(event, Started) and (named := parse_position(names, event.delivery)) is not None:
            return named.offset if named.place == place else None
    return None


def newest(bounds: Bounds, most: int) -> Bounds:
    """The last records, not more than `most` of all partitions together."""
    share = most // max(1, len(bounds))
    return {p: (max(start, end - share), end) for p, (start, end) in bounds.items()}


def oldest(bounds: Bounds, most: int) -> Bounds:
    """The same of the first ones."""
    share = most // max(1, len(bounds))
    return {p: (start, min(end, start + share)) for p, (start, end) in bounds.items()}
