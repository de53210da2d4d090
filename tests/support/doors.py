"""The ways into and out of a broker that any client has, with nothing of ours between."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import kafka.errors as ke
import redis
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from tests.support.outside_clients import PATIENCE_S

DAY_MS = 86_400_000
MOST_BYTES = 64 << 20  # that the clients themselves let through


@dataclass(frozen=True)
class Letter:
    reason: str
    body: bytes


class Door(Protocol):
    """A broker as an outside client has it."""

    prefix: str

    def publish(self, lane: str, body: bytes | None, fields: Mapping[bytes, bytes]) -> None:
        """Returns once the broker has it, behind all that was published before."""

    def publish_from_another_time(self, lane: str, body: bytes, shift_ms: int, timeout_s: int) -> None:
        """The same from a machine whose clock is wrong by so much, as far as a client has a say in that.
        `timeout_s`: how long it may wait, where the client has none."""

    def refuses(self, lane: str, body: bytes) -> bool:
        """Whether the broker itself does not take it; else it lies there."""

    def lines(self, topic: str) -> list[dict[str, Any]]:
        """All lines of a result topic."""

    def letters(self) -> list[Letter]: ...


class RedisDoor:
    def __init__(self, url: str, prefix: str) -> None:
        self._redis: Any = redis.Redis.from_url(url)  # typed as if it might be the asynchronous one
        self.prefix = prefix

    def publish(self, lane: str, body: bytes | None, fields: Mapping[bytes, bytes]) -> None:
        rest = {} if body is None else {b"body": body}
        self._redis.xadd(f"{self.prefix}.requests.{lane}", {**fields, **rest})

    def publish_from_another_time(self, lane: str, body: bytes, shift_ms: int, timeout_s: int) -> None:
        """An id says when; the server refuses one that is older than the last. So it says for how long the
        request has waited, too."""
        seconds, micros = self._redis.time()
        at = f"{seconds * 1000 + micros // 1000 + shift_ms}-0"
        with suppress(redis.ResponseError):
            self._redis.xadd(f"{self.prefix}.requests.{lane}", {b"body": body}, id=at)
            return
        self.publish(lane, body, {})

    def refuses(self, lane: str, body: bytes) -> bool:
        self.publish(lane, body, {})
        return False

    def lines(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(entry[b"body"]) for entry in self._entries(topic)]

    def letters(self) -> list[Letter]:
        entries = self._entries(f"{self.prefix}.dlq")
        return [Letter(entry[b"reason"].decode(), entry.get(b"body", b"")) for entry in entries]

    def left(self, lane: str) -> int:
        """Entries that lie in the stream of a lane."""
        return len(self._entries(f"{self.prefix}.requests.{lane}"))

    def _entries(self, stream: str) -> list[dict[bytes, bytes]]:
        return [entry for _, entry in self._redis.xrange(stream)]

    def close(self) -> None:
        self._redis.close()


class KafkaDoor:
    def __init__(self, url: str, prefix: str) -> None:
        self._servers, self.prefix = url.removeprefix("kafka://").split(","), prefix
        self._producer = KafkaProducer(
            bootstrap_servers=self._servers,
            max_request_size=MOST_BYTES,
            max_block_ms=2_000,
            enable_idempotence=False,
            allow_auto_create_topics=False,
        )

    def publish(self, lane: str, body: bytes | None, fields: Mapping[bytes, bytes]) -> None:
        """All with one key: one partition."""
        headers = [(name.decode(), value) for name, value in fields.items()]
        self._send(lane, value=body, headers=headers)

    def publish_from_another_time(self, lane: str, body: bytes, shift_ms: int, timeout_s: int) -> None:
        headers = [("queue-timeout", f"{timeout_s * 1000}".encode())]
        self._send(lane, value=body, headers=headers, timestamp_ms=round(time.time() * 1000) + shift_ms)

    def refuses(self, lane: str, body: bytes) -> bool:
        try:
            self._send(lane, value=body)
        except (ke.KafkaError, ValueError):
            return True
        return False

    def lines(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(record.value) for record in self._records(topic)]

    def letters(self) -> list[Letter]:
        return [
            Letter(dict(record.headers)["headrace-reason"].decode(), record.value or b"")
            for record in self._records(f"{self.prefix}.dlq")
        ]

    def _send(self, lane: str, **record: Any) -> None:
        topic = f"{self.prefix}.requests.{lane}"
        self._producer.send(topic, key=b"together", **record).get(timeout=PATIENCE_S)

    def _records(self, topic: str) -> list[Any]:
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers, isolation_level="read_committed", enable_auto_commit=False
        )
        try:
            place, records = TopicPartition(topic, 0), list[Any]()
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            end = consumer.end_offsets([place])[place]
            while consumer.position(place) < end:
                records += consumer.poll(timeout_ms=500).get(place, [])
            return records
        finally:
            consumer.close(autocommit=False)

    def close(self) -> None:
        self._producer.close(timeout=1)


@contextmanager
def door(url: str, prefix: str) -> Iterator[RedisDoor | KafkaDoor]:
    made = KafkaDoor(url, prefix) if url.startswith("kafka") else RedisDoor(url, prefix)
    try:
        yield made
    finally:
        made.close()
