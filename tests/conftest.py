"""Fixtures that tests of all kinds share, and what holds for all property tests."""

from hypothesis import settings

from tests.support.kafka_server import kafka_cluster, kafka_url

__all__ = ["kafka_cluster", "kafka_url"]

# Two cores with other tests on them: how long an example takes says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
