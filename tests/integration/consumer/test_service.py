"""The consumer as a process: its ready file, its signals, its exit status, and a broker that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.consumer.errors import EngineUnusable
from headrace.consumer.service import run_consumer
from headrace.consumer.settings import ConsumerSettings
from tests.integration.consumer.house import (
    PATIENCE_S,
    House,
    Reader,
    eventually,
    message,
    publish,
    sim_settings,
    tokens_in_log,
)

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, logging, sys
from headrace.consumer.service import run_consumer
from headrace.consumer.settings import ConsumerSettings
logging.basicConfig(level=logging.INFO)
sys.exit(asyncio.run(run_consumer(ConsumerSettings.model_validate_json(sys.argv[1]))))
"""


@pytest.fixture
async def redis(valkey: EmbeddedValkey, request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    broker = await connect(valkey.url, prefix=request.node.name[:40])
    yield broker
    await broker.close()


def settings(valkey: EmbeddedValkey, name: str, ready_file: Path) -> ConsumerSettings:
    fields = {"broker": valkey.url, "prefix": name[:40], "ready_file": ready_file, "model": "sim-model"}
    return sim_settings().model_copy(update=fields)


def pids(ready_file: Path) -> dict[str, object]:
    content = json.loads(ready_file.read_text())
    assert isinstance(content, dict)
    return content


async def test_a_consumer_process_serves_survives_its_engine_and_drains_on_sigterm(
    redis: Broker, valkey: EmbeddedValkey, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ready_file = tmp_path / "ready.json"
    asked = settings(valkey, request.node.name, ready_file).model_dump_json()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, asked)
    await eventually(ready_file.exists, "the ready file")
    first = pids(ready_file)
    assert first["consumer"] == process.pid
    assert first["model"] == "sim-model"

    (ref,) = await publish(redis, [message(0, 200)])
    reader = asyncio.create_task(Reader.watch(redis, ref))
    await tokens_in_log(redis, ref, 5)
    os.kill(int(str(first["engine"])), signal.SIGKILL)
    await eventually(lambda: pids(ready_file)["engine"] != first["engine"], "a new engine")
    process.terminate()
    (await reader).check(0, 200)
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(pids_or(first, ready_file)["engine"])), 0)


def pids_or(first: dict[str, object], ready_file: Path) -> dict[str, object]:
    return pids(ready_file) if ready_file.exists() else first


async def test_a_model_that_is_not_there_is_one_sentence(valkey: EmbeddedValkey) -> None:
    asked = ConsumerSettings.model_validate({"broker": valkey.url, "engine": {"model": "/nowhere/at-all"}})
    with pytest.raises(EngineUnusable, match="/nowhere/at-all"):
        await run_consumer(asked)


async def test_a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", port=0)
    server.start()
    broker = await connect(server.url)
    house = await House.open(broker, sim_settings(lease_ms=5000))
    refs = await publish(broker, [message(n, 300, stream=n % 2 == 0) for n in range(3)])
    readers = [asyncio.create_task(Reader.watch(broker, ref)) for ref in refs]
    for ref in refs:
        await tokens_in_log(broker, ref, 10)
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.sleep(0.3)
    server.start()
    for number, reader in enumerate(await asyncio.gather(*readers)):
        reader.check(number, 300)
    await house.stop()
    await broker.close()
    server.stop()
