"""A planted run on Redis, by XADD and HSET."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis

from tests.faults.planting import line_bytes

GROUP = "consumers"


@dataclass(slots=True)
class RedisField:
    """See `Field`."""

    redis: Redis
    url: str
    prefix: str

    def log(self, request_id: str, *events: bytes) -> None:
        for event in events:
            self.redis.xadd(f"{self.prefix}.events::{request_id}", {"event": event})
        index: Mapping[Any, Any] = {"state": "ended", "epoch": "2"}
        self.redis.hset(f"{self.prefix}.request::{request_id}", mapping=dict(index))

    def line(self, request_id: str, body: Mapping[str, object], topic: str = "results") -> None:
        fields: dict[Any, Any] = {"body": line_bytes(body), "request-id": request_id}
        self.redis.xadd(f"{self.prefix}.{topic}", fields)

    def letter(self, headers: Mapping[str, str], body: bytes) -> None:
        fields: dict[Any, Any] = {**headers, "body": body}
        self.redis.xadd(f"{self.prefix}.dlq", fields)

    def lease(self, request_id: str, settled: bool) -> None:
        """A delivery, taken by a consumer that is gone, and settled or not."""
        stream, group = f"{self.prefix}.requests.batch", f"{self.prefix}.{GROUP}"
        if not self.redis.exists(stream):
            self.redis.xgroup_create(stream, group, mkstream=True)
        entry = self.redis.xadd(stream, {"body": "{}", "request-id": request_id})
        self.redis.xreadgroup(group, "gone", {stream: ">"}, count=1)
        if settled:
            self.redis.xack(stream, group, entry)
            self.redis.xdel(stream, entry)

    def drop_lines(self) -> None:
        self.redis.delete(f"{self.prefix}.results")
