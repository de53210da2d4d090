"""Reads the evidence from Kafka with a plain consumer and an admin client, partition by partition."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from tests.faults.checker.events import LogEvent, NoEvent, decode
from tests.faults.checker.evidence import Evidence, Key, Letter, read_line

_POLL_MS = 500
_PATIENCE_S = 30.0
_QUIET_POLLS = 20  # without a record, before an end that is not reached is taken for a failure


def gather_kafka(url: str, prefix: str = "headrace") -> Evidence:
    """All that stands in the topics of the prefix; results as a `read_committed` reader gets them."""
    servers = urlsplit(url).netloc.rpartition("@")[2].split(",")
    admin = KafkaAdminClient(bootstrap_servers=servers)
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=None, isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        return _Look(consumer, admin, prefix).gather()
    finally:
        consumer.close()
        admin.close()


@dataclass(frozen=True, slots=True)
class _Record:
    """What a record says, its headers as text."""

    place: str
    key: str
    value: bytes
    headers: Mapping[str, str]
    of_partition: bool


class _Look:
    def __init__(self, consumer: Any, admin: Any, prefix: str) -> None:
        self._consumer, self._admin, self._prefix = consumer, admin, prefix
        self._evidence = Evidence()

    def gather(self) -> Evidence:
        topics = sorted(self._consumer.topics())
        self._read_logs(self._partitions(topics, r"events\..+"))
        self._read_lines(self._partitions(topics, r"(results|reply\..+)"))
        self._read_letters(self._partitions(topics, r"dlq"))
        self._read_queues(self._partitions(topics, r"(requests|retry)\..+"))
        return self._evidence

    def _partitions(self, topics: Sequence[str], pattern: str) -> list[TopicPartition]:
        wanted = re.compile(re.escape(f"{self._prefix}.") + pattern)
        return [
            TopicPartition(topic, number)
            for topic in topics
            if wanted.fullmatch(topic)
            for number in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]

    def _records(self, partition: TopicPartition, start: int = 0) -> Iterator[_Record]:
        """From `start` to the last record that is visible now."""
        self._consumer.assign([partition])
        first = self._consumer.beginning_offsets([partition])[partition]
        end = self._consumer.end_offsets([partition])[partition]
        self._consumer.seek(partition, max(start, first))
        quiet = 0
        while self._consumer.position(partition) < end:
            page = self._consumer.poll(timeout_ms=_POLL_MS).get(partition, [])
            quiet = 0 if page else quiet + 1
            if quiet > _QUIET_POLLS:
                at = self._consumer.position(partition)
                self._evidence.broken.append(f"{partition}: cannot be read from {at} on, it ends at {end}")
                return
            yield from map(_record, page)

    # ------------------------------------------------------------------------------------- the logs

    def _read_logs(self, partitions: Sequence[TopicPartition]) -> None:
        """A request's log is what its partition holds of it and, between, the fences of all. One that was
        passed to another pool goes on in another partition, where epochs begin anew."""
        homes: dict[Key, dict[TopicPartition, list[LogEvent]]] = defaultdict(dict)
        for partition in partitions:
            for key, events in self._logs_of(partition).items():
                homes[key][partition] = events
        for key, logs in homes.items():
            self._evidence.logs[key] = self._joined(key, logs)

    def _logs_of(self, partition: TopicPartition) -> dict[Key, list[LogEvent]]:
        logs: dict[Key, list[LogEvent]] = {}
        fences: list[LogEvent] = []
        for record in self._records(partition):
            try:
                event = decode(record.value)
            except NoEvent as error:
                self._evidence.broken.append(f"{record.place}: {error!r}")
                continue
            if event.kind == "fence" and record.of_partition:
                fences.append(event)
                for log in logs.values():
                    log.append(event)
            else:
                logs.setdefault(_key(record.key), list(fences)).append(event)
        return logs

    def _joined(self, key: Key, logs: dict[TopicPartition, list[LogEvent]]) -> list[LogEvent]:
        """The log that counts, of several: all others must end with `moved`, without a token. Epochs begin
        anew in each, so they are never read as one."""
        last = [log for log in logs.values() if not any(event.kind == "moved" for event in log)]
        if len(last) != 1 and len(logs) > 1:
            places = ", ".join(f"{place.topic}/{place.partition}" for place in logs)
            self._evidence.broken.append(f"{key.request_id} has logs in {places}, and one end was due")
        for log in logs.values():
            if log not in last and any(event.kind == "delta" for event in log):
                self._evidence.broken.append(f"{key.request_id} was passed on after its first token")
        return last[0] if last else next(iter(logs.values()))

    # ------------------------------------------------------------------------------- results, letters

    def _read_lines(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            topic = "" if partition.topic == f"{self._prefix}.results" else partition.topic
            for record in self._records(partition):
                try:
                    self._evidence.lines.append(read_line(topic, record.headers, record.value))
                except ValueError as error:
                    self._evidence.broken.append(f"{record.place}: {error}")

    def _read_letters(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            for record in self._records(partition):
                headers = record.headers
                origin = headers.get("headrace-origin", "")
                request = Key(headers.get("tenant", ""), headers.get("request-id") or origin)
                reason = headers.get("headrace-reason", "")
                self._evidence.letters.append(Letter(request, origin, reason, record.value))

    # -------------------------------------------------------------------------------------- the queues

    def _read_queues(self, partitions: Sequence[TopicPartition]) -> None:
        """A settled delivery lies below the committed offset; what lies above it will be delivered again."""
        group = f"{self._prefix}.consumers"
        offsets: Any = patiently(lambda: self._admin.list_group_offsets({group: None}))
        committed = offsets.get(group) or {}
        for partition in partitions:
            known = committed.get(partition)
            base = 0 if known is None else max(0, known.offset)
            # By the records, not by the end: marks of transactions take offsets, too.
            for record in self._records(partition, base):
                self._evidence.leases.append(f"{record.place} is not settled: committed up to {base}")


def patiently(ask: Callable[[], Any]) -> Any:
    """Asks again while a broker that has just started says that it will know in a moment."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except KafkaError as error:
            if not error.retriable or time.monotonic() > end:
                raise
        time.sleep(0.1)


def _record(raw: Any) -> _Record:
    headers = {name: (value or b"").decode(errors="replace") for name, value in raw.headers}
    place = f"{raw.topic}/{raw.partition}/{raw.offset}"
    key = (raw.key or b"").decode(errors="replace")
    return _Record(place, key, raw.value or b"", headers, raw.key is None)


def _key(text: str) -> Key:
    """Keys are `tenant/request id`; a slash in a tenant is escaped, in an id it is not."""
    tenant, _, request_id = text.partition("/")
    return Key(tenant.replace("%2F", "/").replace("%25", "%"), request_id)
