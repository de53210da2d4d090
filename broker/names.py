"""All names of topics, streams and keys, in one place. `prefix` keeps several installations apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.broker.message import Lane, RequestRef

REPLY_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class Names:
    """Builds the names under one prefix.

    `requests` holds the queue of a lane, `results` the output lines for outside readers, `dead_letters`
    what nobody could run, `control` cancellations and the registry. Redis only: `log`, `index` (hash:
    epoch, place, body hash, state), `feed`, `retry` (sorted set by due time) with `retry_messages` (hash:
    the parked messages), `released` (stream that tells of deliveries handed back).
    """

    prefix: str = "headrace"

    def requests(self, lane: Lane) -> str:
        return f"{self.prefix}.requests.{lane.value}"

    @property
    def results(self) -> str:
        return f"{self.prefix}.results"

    @property
    def dead_letters(self) -> str:
        return f"{self.prefix}.dlq"

    @property
    def control(self) -> str:
        return f"{self.prefix}.control"

    @property
    def group(self) -> str:
        return f"{self.prefix}.consumers"

    @property
    def retry(self) -> str:
        return f"{self.prefix}.retry"

    @property
    def retry_messages(self) -> str:
        return f"{self.prefix}.retry.messages"

    @property
    def released(self) -> str:
        return f"{self.prefix}.released"

    def log(self, ref: RequestRef) -> str:
        return f"{self.prefix}.events:{_escaped(ref.tenant)}:{ref.request_id}"

    def index(self, ref: RequestRef) -> str:
        return f"{self.prefix}.request:{_escaped(ref.tenant)}:{ref.request_id}"

    def feed(self, number: int) -> str:
        return f"{self.prefix}.feed.{number}"

    def reply_allowed(self, topic: str) -> bool:
        """Reply topics live under `<prefix>.reply.`: a publisher cannot aim results at other keys."""
        return topic.startswith(f"{self.prefix}.reply.") and REPLY_TOPIC.fullmatch(topic) is not None


def _escaped(tenant: str) -> str:
    """A colon ends the tenant in a key: tenant `a:b` with id `c` must not meet tenant `a` with id `b:c`."""
    return tenant.replace("%", "%25").replace(":", "%3A")
