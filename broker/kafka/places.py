"""Where a request stands: positions of records, keys of logs, and which partition a key belongs to."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from kafka.partitioner.default import murmur2

from headrace.broker.errors import BrokerError
from headrace.broker.kafka.settings import Delay, parse_delay
from headrace.broker.message import DEFAULT_POOL, Lane, RequestRef
from headrace.broker.names import POOL, Names

_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, order=True)
class LogPlace:
    """One index of a lane in a pool: where requests and, beside them, their events stand."""

    lane: Lane
    pool: str
    partition: int

    @property
    def text(self) -> str:
        """As it stands in cursors and in `moved`: `pool.lane/partition`, without pool in the default one."""
        lane = f"{self.pool}.{self.lane.value}" if self.pool else self.lane.value
        return f"{lane}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Position:
    """A record of a request topic."""

    place: LogPlace
    offset: int

    def text(self, names: Names) -> str:
        """`topic/partition/offset`, as in `Delivery.position`."""
        topic = names.requests(self.place.lane, self.place.pool)
        return f"{topic}/{self.place.partition}/{self.offset}"


def lane_of(names: Names, topic: str) -> tuple[Lane, str] | None:
    """Lane and pool of a request topic; None for any other topic."""
    start = f"{names.request_base}."
    return _lane(topic.removeprefix(start)) if topic.startswith(start) else None


def delay_of(names: Names, topic: str) -> tuple[Delay, Lane, str] | None:
    """Length, lane and pool of a delay topic; None for any other topic."""
    length, _, rest = topic.removeprefix(f"{names.retry_base}.").partition(".")
    lane = _lane(rest) if topic.startswith(f"{names.retry_base}.") else None
    try:
        return None if lane is None else (parse_delay(length), *lane)
    except BrokerError:
        return None


def parse_position(names: Names, text: str) -> Position | None:
    """The record that a position names, or None for another text (an id of somebody's own)."""
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.partition("/")
    lane = lane_of(names, topic)
    if lane is None or not (_NUMBER.fullmatch(partition) and _NUMBER.fullmatch(offset)):
        return None
    return Position(LogPlace(*lane, int(partition)), int(offset))


def parse_place(text: str) -> LogPlace | None:
    """The inverse of `LogPlace.text`."""
    name, _, partition = text.partition("/")
    lane = _lane(name)
    return LogPlace(*lane, int(partition)) if lane and _NUMBER.fullmatch(partition) else None


def parse_cursor(text: str) -> tuple[LogPlace, int] | None:
    """Place and offset of an event."""
    where, _, offset = text.rpartition("/")
    place = parse_place(where)
    return (place, int(offset)) if place is not None and _NUMBER.fullmatch(offset) else None


def log_key(ref: RequestRef) -> str:
    """Key of a request's events. A slash ends the tenant: tenant `a/b` with id `c` must not meet tenant `a`
    with id `b/c`."""
    tenant = ref.tenant.replace("%", "%25").replace("/", "%2F")
    return f"{tenant}/{ref.request_id}"


def parse_log_key(key: str) -> RequestRef:
    tenant, _, request_id = key.partition("/")
    return RequestRef(request_id, tenant.replace("%2F", "/").replace("%25", "%"))


def java_partition(key: bytes, count: int) -> int:
    """Where Java's clients and kafka-python put a key: murmur2."""
    return int(murmur2(key) & 0x7FFFFFFF) % count


def librdkafka_partition(key: bytes, count: int) -> int:
    """Where librdkafka and with it kcat put a key: CRC32."""
    return zlib.crc32(key) % count


def _lane(text: str) -> tuple[Lane, str] | None:
    pool, _, lane = text.rpartition(".")
    if lane not in tuple(Lane) or not (pool == DEFAULT_POOL or POOL.fullmatch(pool)):
        return None
    return Lane(lane), pool
