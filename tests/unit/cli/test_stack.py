"""What a stack says while it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.embedded import kafka
from headrace.broker.embedded.apache_kafka.jars import jars_folder
from headrace.broker.embedded.kafka import EmbeddedKafka, EmbeddedUnusable
from headrace.broker.errors import BrokerRefused, BrokerUnavailable
from headrace.cli import stack
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


class Started(Exception):
    """The broker was found fit for use."""


class FakeBroker:
    async def close(self) -> None:
        raise Started


async def start(monkeypatch: pytest.MonkeyPatch, folder: Path, broker: str, *answers: Exception) -> list[str]:
    """Starts a stack whose broker gives these answers first; returns what it said until it was used."""
    given, said = list(answers), list[str]()

    async def connect(url: str, **_: object) -> FakeBroker:
        if given:
            raise given.pop(0)
        return FakeBroker()

    monkeypatch.setattr(stack, "connect", connect)
    monkeypatch.setattr(stack, "ASK_AGAIN_S", 0.001)
    monkeypatch.setattr(EmbeddedKafka, "start", lambda _: None)
    monkeypatch.setattr(EmbeddedKafka, "alive", True)
    options = StackOptions(folder, EngineConfig(engine="sim"), broker=broker)
    begun = Stack(options, lambda name, line: said.append(f"{name}: {line}"))
    try:
        with pytest.raises(Started):
            await begun.start()
    finally:
        await begun.kill()
    return said


async def test_a_broker_of_our_own_that_is_slow_to_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = BrokerUnavailable("it did not answer in time")
    said = await start(monkeypatch, tmp_path, "kafka", slow, slow)
    assert said[1:] == ["broker: it did not answer in time; asking it again"] * 2


@pytest.mark.parametrize(
    ("broker", "answer"),
    [("kafka", BrokerRefused("wrong topics")), ("kafka://elsewhere:9092", BrokerUnavailable("not there"))],
)
async def test_a_broker_that_refuses_or_that_somebody_else_runs_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: str, answer: Exception
) -> None:
    with pytest.raises(type(answer)):
        await start(monkeypatch, tmp_path, broker, answer)
