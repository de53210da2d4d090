"""What a stack says while it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.embedded import kafka
from headrace.broker.embedded.apache_kafka.jars import jars_folder
from headrace.broker.embedded.kafka import EmbeddedKafka, EmbeddedUnusable
from headrace.cli.stack import Stack, StackOptions
from headrace.gpu_engine.config import EngineConfig


async def test_that_kafka_is_fetched_is_said_the_first_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: EmbeddedKafka) -> None:
        raise EmbeddedUnusable("no further than here")

    monkeypatch.setattr(EmbeddedKafka, "start", start)
    monkeypatch.setattr(kafka, "default_cache", lambda: tmp_path / "cache")
    said: list[str] = []
    options = StackOptions(tmp_path, EngineConfig(engine="sim"), broker="kafka")
    for _ in range(2):
        with pytest.raises(EmbeddedUnusable):
            await Stack(options, lambda name, line: said.append(f"{name}: {line}")).start()
        jars_folder(tmp_path / "cache").mkdir(parents=True, exist_ok=True)
    first, later = said
    assert first == "broker: starting Kafka; this first time it is fetched (43 MB)"
    assert later == "broker: starting Kafka"
