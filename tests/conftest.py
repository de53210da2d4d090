"""Fixtures that tests of all kinds share."""

from tests.support.kafka_server import kafka_cluster, kafka_url

__all__ = ["kafka_cluster", "kafka_url"]
