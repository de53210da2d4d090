"""A planted run on Kafka, by plain records and commits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.faults.checker.kafka_source import patiently
from tests.faults.planting import REPLY, line_bytes

TOPICS = ("requests.batch", "events.batch", "results", "dlq", REPLY)


class KafkaField:
    """See `Field`. One partition for all: so the logs of the requests stand among one another."""

    def __init__(self, admin: KafkaAdminClient, producer: KafkaProducer, url: str, prefix: str) -> None:
        self._admin, self._producer = admin, producer
        self.url, self.prefix = url, prefix
        self._requests = itertools.count(1)

    def _send(
        self, topic: str, key: str | None, value: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        encoded = [(name, text.encode()) for name, text in (headers or {}).items()]
        name = f"{self.prefix}.{topic}"
        self._producer.send(name, value, key=None if key is None else key.encode(), headers=encoded)
        self._producer.flush()

    def log(self, request_id: str, *events: bytes) -> None:
        for event in events:
            self._send("events.batch", f"/{request_id}", event)

    def fence(self, event: bytes) -> None:
        """Of the whole partition: it has no key."""
        self._send("events.batch", None, event)

    def line(self, request_id: str, body: Mapping[str, object], topic: str = "results") -> None:
        self._send(topic, request_id, line_bytes(body), {"request-id": request_id})

    def letter(self, headers: Mapping[str, str], body: bytes) -> None:
        internal = {"reason": "headrace-reason", "origin": "headrace-origin"}
        self._send("dlq", None, body, {internal.get(name, name): text for name, text in headers.items()})

    def lease(self, request_id: str, settled: bool) -> None:
        """A request, and the group's offset behind it or before it."""
        self._send("requests.batch", request_id, b"{}", {"request-id": request_id})
        end = next(self._requests)
        place = TopicPartition(f"{self.prefix}.requests.batch", 0)
        offset = OffsetAndMetadata(end if settled else end - 1, "", -1)
        group = f"{self.prefix}.consumers"
        patiently(lambda: self._admin.alter_group_offsets(group, {place: offset}))

    def drop_lines(self) -> None:
        self._admin.delete_records({TopicPartition(f"{self.prefix}.results", 0): -1})


@contextmanager
def kafka_field(url: str, prefix: str) -> Iterator[KafkaField]:
    """With topics of its own, made as an administrator makes them."""
    servers = urlsplit(url).netloc.split(",")
    admin, producer = KafkaAdminClient(bootstrap_servers=servers), KafkaProducer(bootstrap_servers=servers)
    try:
        shape = {"num_partitions": 1, "replication_factor": 1}
        admin.create_topics({f"{prefix}.{topic}": shape for topic in TOPICS})
        yield KafkaField(admin, producer, url, prefix)
    finally:
        producer.close()
        admin.close()
