"""The checker's one call."""

from __future__ import annotations

from tests.faults.checker.evidence import Evidence
from tests.faults.checker.judge import Violation, judge
from tests.faults.checker.kafka_source import gather_kafka
from tests.faults.checker.record import RunRecord
from tests.faults.checker.redis_source import gather_redis


def gather(url: str, prefix: str = "headrace") -> Evidence:
    """What stands on the broker at `url` now."""
    return (gather_kafka if url.startswith("kafka:") else gather_redis)(url, prefix)


def check(record: RunRecord, url: str, prefix: str = "headrace") -> list[Violation]:
    """Reads the broker and judges."""
    return judge(record, gather(url, prefix))
