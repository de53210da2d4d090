"""All names of topics, streams and keys, in one place. `prefix` keeps several installations apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.broker.message import DEFAULT_POOL, Lane, RequestRef

REPLY_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
# A pool stands between dots, before its lane: `headrace.requests.<pool>.<lane>`.
POOL = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Names:
    """Builds the names under one prefix.

    `requests` holds the queue of a lane in a pool, `results` the output lines for outside readers,
    `dead_letters` what nobody could run, `control` cancellations. Kafka only: `events` (the logs beside
    `requests`, partition by partition), `delayed` (one topic for each length of delay, beside them, too); its
    `control` also holds the registry and the paused lanes. Redis only: `log`, `index` (hash: epoch, place,
    body hash, state), `feed`, `retries` (sorted set of a pool by due time) with `retry_messages` (hash: the
    parked messages of all pools), `released` (stream that tells of deliveries handed back), `registry`
    (hash: what each consumer says of itself), `paused` (set of request streams), `pools` (set: those that
    ever had consumers).
    """

    prefix: str = "headrace"

    @property
    def request_base(self) -> str:
        """What the names of all request queues begin with, up to a dot."""
        return f"{self.prefix}.requests"

    def requests(self, lane: Lane, pool: str = DEFAULT_POOL) -> str:
        return f"{self.request_base}.{_in_pool(lane, pool)}"

    def events(self, lane: Lane, pool: str = DEFAULT_POOL) -> str:
        return f"{self.prefix}.events.{_in_pool(lane, pool)}"

    @property
    def retry_base(self) -> str:
        """What all delay topics begin with."""
        return f"{self.prefix}.retry"

    def delayed(self, delay: str, lane: Lane, pool: str = DEFAULT_POOL) -> str:
        """`delay`: its length as text, `5s` for example."""
        return f"{self.retry_base}.{delay}.{_in_pool(lane, pool)}"

    @property
    def registry(self) -> str:
        return f"{self.prefix}.registry"

    @property
    def paused(self) -> str:
        return f"{self.prefix}.paused"

    @property
    def pools(self) -> str:
        return f"{self.prefix}.pools"

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

    def retries(self, pool: str = DEFAULT_POOL) -> str:
        key = f"{self.prefix}.retry.{pool}" if pool else f"{self.prefix}.retry"
        return key if key != self.retry_messages else f"{key}.due"  # a pool may be called `messages`

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

    @property
    def reply_rule(self) -> str:
        """What a reply topic must be, as the end of a sentence that refuses one."""
        return (
            f"it must begin with `{self._reply_base}`, go on with a name, and hold letters, digits, `.`, `_` "
            "and `-` only, 200 at most"
        )

    def reply_allowed(self, topic: str) -> bool:
        """Reply topics live under `<prefix>.reply.`: a publisher cannot aim results at other keys."""
        named = topic.startswith(self._reply_base) and topic != self._reply_base
        return named and REPLY_TOPIC.fullmatch(topic) is not None

    @property
    def _reply_base(self) -> str:
        return f"{self.prefix}.reply."


def _in_pool(lane: Lane, pool: str) -> str:
    return f"{pool}.{lane.value}" if pool else lane.value


def _escaped(tenant: str) -> str:
    """A colon ends the tenant in a key: tenant `a:b` with id `c` must not meet tenant `a` with id `b:c`."""
    return tenant.replace("%", "%25").replace(":", "%3A")
