"""Where partitions begin and end, while some of them have no leader."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kafka.errors as ke
import pytest
from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.kafka import clients
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.failures import translated
from headrace.broker.kafka.settings import KafkaSettings

PARTITION = TopicPartition("made just now", 0)


class Cluster(Clients):
    """Its admin client fails so many times first."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__(KafkaSettings(("here",)))
        self._error, self.times = error, times

    async def admin(self, call: Callable[[Any], Any]) -> Any:
        return call(self)

    def list_partition_offsets(self, specs: Any, isolation_level: str) -> Any:
        with translated("kafka://here"):
            if self.times:
                self.times -= 1
                raise self._error
        return {partition: SimpleNamespace(offset=7) for partition in specs}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(clients, "_LEADER_S", 0.05)


async def test_a_partition_without_a_leader_is_waited_for() -> None:
    cluster = Cluster(ke.UnknownBrokerIdError(-1), times=3)
    assert await cluster.offsets([PARTITION], OffsetSpec.LATEST) == {PARTITION: 7}


@pytest.mark.parametrize("error", [ke.UnknownBrokerIdError(-1), ke.KafkaTimeoutError("away")])
async def test_but_not_for_ever_and_a_cluster_that_is_away_is_not(error: Exception) -> None:
    cluster = Cluster(error, times=10_000)
    with pytest.raises(BrokerUnavailable):
        await cluster.offsets([PARTITION], OffsetSpec.LATEST)
    assert (cluster.times == 9_999) == isinstance(error, ke.KafkaTimeoutError)
