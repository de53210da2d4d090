"""Publishers that are no client of ours: plain XADD, plain Kafka records."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from kafka import KafkaProducer
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.faults.brokers import Kind


class Raw(Protocol):
    """`publish` returns where the message stands, which is its id if it names none; None where no answer came
    so that its fate is unknown."""

    def publish(self, lane: str, body: bytes, headers: Mapping[str, str]) -> str | None: ...

    def close(self) -> None: ...


class RawRedis:
    def __init__(self, url: str, prefix: str) -> None:
        # No hidden retry: a publish that is repeated unseen would be a request that nobody wrote down.
        self._redis: Any = Redis.from_url(url, socket_timeout=20, protocol=2, retry=Retry(NoBackoff(), 0))
        self._prefix = prefix

    def publish(self, lane: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        stream = f"{self._prefix}.requests.{lane}"
        try:
            entry = self._redis.xadd(stream, {"body": body, **headers})
        except (RedisError, OSError):
            return None
        return f"{stream}/{entry.decode()}"

    def close(self) -> None:
        self._redis.close()


class RawKafka:
    """The key decides the partition, by murmur2, as with any client of the Java family."""

    def __init__(self, url: str, prefix: str) -> None:
        servers = urlsplit(url).netloc.split(",")
        self._producer = KafkaProducer(bootstrap_servers=servers, acks="all", retry_backoff_ms=50)
        self._prefix = prefix

    def publish(self, lane: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        key = headers["request-id"].encode() if "request-id" in headers else None
        encoded = [(name, value.encode()) for name, value in headers.items()]
        topic = f"{self._prefix}.requests.{lane}"
        sent = self._producer.send(topic, body, key=key, headers=encoded)
        self._producer.flush()
        placed = sent.get(timeout=60)
        return f"{topic}/{placed.partition}/{placed.offset}"

    def close(self) -> None:
        self._producer.close()


def raw_publisher(kind: Kind, url: str, prefix: str) -> Raw:
    return RawKafka(url, prefix) if kind == "kafka" else RawRedis(url, prefix)


async def publish(raw: Raw, lane: str, body: bytes, headers: Mapping[str, str]) -> str | None:
    return await asyncio.to_thread(raw.publish, lane, body, headers)


def completion_line(custom_id: str, prompt: str, tokens: int, seed: int) -> bytes:
    """A line of an OpenAI batch file."""
    body = {"prompt": prompt, "max_tokens": tokens, "seed": seed, "ignore_eos": True}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line).encode()


def lay_down(store: Path, body: bytes) -> dict[str, str]:
    """Puts a body where consumers fetch it, as anybody can who knows the rule of its name; returns the
    headers of the message that goes without it. Raises OSError while the store is away."""
    digits = hashlib.sha256(b"application/json\0" + body).hexdigest()
    address = f"{digits[:2]}/{digits}"
    place = store / address
    place.parent.mkdir(exist_ok=True)
    whole = place.with_name(f"{digits}.new")
    whole.write_bytes(body)
    whole.rename(place)
    return {
        "headrace-claim": address,
        "headrace-claim-hash": digits,
        "headrace-claim-size": str(len(body)),
    }
