"""Records as kafka-python hands them out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.message import Lane

TOPICS = LaneTopics(
    Lane.STANDARD, "", "x.requests.standard", "x.events.standard", ("x.retry.5s.standard",), 1
)


def request(offset: int, request_id: str | None = None, body: bytes = b"body", **headers: bytes) -> Any:
    """A record of partition 0 of a lane. Underscores in names of headers stand for hyphens."""
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    if request_id is not None:
        found["request-id"] = request_id.encode()
    return SimpleNamespace(
        topic=TOPICS.requests,
        partition=0,
        offset=offset,
        timestamp=1_000 + offset,
        key=None,
        value=body,
        headers=list(found.items()),
    )
