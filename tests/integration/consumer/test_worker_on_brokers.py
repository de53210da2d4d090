"""The consumer on real brokers with a real engine process: what is killed, and what readers see of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from headrace.broker.contract import Broker
from headrace.broker.events import Failed
from tests.integration.consumer.house import (
    House,
    Reader,
    message,
    publish,
    sim_settings,
    tokens_in_log,
)
from tests.support.frozen import freeze

pytestmark = pytest.mark.slow


async def test_requests_are_answered_and_each_has_one_result_line(broker: Broker) -> None:
    house = await House.open(broker, sim_settings(step_ms=1))
    refs = await publish(broker, [message(n, 20, stream=n % 2 == 0) for n in range(12)])
    for number, reader in enumerate(await asyncio.gather(*(Reader.watch(broker, ref) for ref in refs))):
        reader.check(number, 20)
        assert reader.kept == [0]
    await house.stop()
    lines = [await anext(results) for results in [broker.results()] for _ in refs]
    assert {json.loads(line.line)["custom_id"] for line in lines} == {f"c{n}" for n in range(12)}
    assert house.worker.counters.finished == 12
    stats = await broker.stats()
    assert not stats.leases
    assert all(lane.waiting == lane.leased == 0 for lane in stats.lanes.values())


async def test_an_engine_that_is_killed_in_mid_answer_leaves_the_streams_unbroken(broker: Broker) -> None:
    house = await House.open(broker, sim_settings())
    refs = await publish(broker, [message(n, 60) for n in range(3)])
    readers = [asyncio.create_task(Reader.watch(broker, ref)) for ref in refs]
    for ref in refs:
        await tokens_in_log(broker, ref, 10)
    os.kill(house.engines[0].pid, signal.SIGKILL)
    for number, reader in enumerate(await asyncio.gather(*readers)):
        reader.check(number, 60)
        assert reader.kept[0] == 0
        assert reader.kept[1] > 0, "the log says that the engine died, and readers notice nothing"
    assert len(house.engines) == 2
    await house.stop()


async def test_a_hung_engine_is_killed_and_its_requests_go_on(broker: Broker) -> None:
    house = await House.open(broker, sim_settings(watchdog={"progress_s": 0.5}))
    (ref,) = await publish(broker, [message(0, 60)])
    reader = asyncio.create_task(Reader.watch(broker, ref))
    await tokens_in_log(broker, ref, 10)
    freeze(house.engines[0].pid)
    (await reader).check(0, 60)
    assert len(house.engines) == 2
    await house.stop()


async def test_when_a_worker_is_killed_another_resumes_its_answers(broker: Broker) -> None:
    first = await House.open(broker, sim_settings(lease_ms=400))
    refs = await publish(broker, [message(n, 150) for n in range(4)])
    readers = [asyncio.create_task(Reader.watch(broker, ref)) for ref in refs]
    for ref in refs:
        await tokens_in_log(broker, ref, 10)
    second = await House.open(broker, sim_settings(lease_ms=400))
    await first.kill()
    seen = await asyncio.gather(*readers)
    for number, reader in enumerate(seen):
        reader.check(number, 150)
    assert all(reader.kept[-1] >= 10 for reader in seen), [reader.kept for reader in seen]
    await second.stop()  # a reader sees the end a moment before the consumer counts it
    assert second.worker.counters.resumed == 4


async def test_a_drained_worker_hands_over_and_the_next_resumes_from_its_last_token(broker: Broker) -> None:
    first = await House.open(broker, sim_settings(grace_s=0, lease_ms=60_000))
    (ref,) = await publish(broker, [message(0, 150, stream=False)])
    reader = asyncio.create_task(Reader.watch(broker, ref))
    await tokens_in_log(broker, ref, 33)
    await first.stop()
    assert first.worker.counters.released == 1
    second = await House.open(broker, sim_settings())
    seen = await reader
    seen.check(0, 150)
    assert seen.kept[-1] >= 33
    await second.stop()


async def test_a_cancelled_answer_ends_with_what_there_is(broker: Broker) -> None:
    house = await House.open(broker, sim_settings())
    (ref,) = await publish(broker, [message(0, 1000)])
    reader = asyncio.create_task(Reader.watch(broker, ref))
    await tokens_in_log(broker, ref, 10)
    await broker.cancel(ref)
    fold = (await reader).fold
    assert isinstance(fold.terminal, Failed)
    assert fold.terminal.code == "cancelled"
    assert fold.terminal.usage.completion_tokens == len(fold.token_ids) >= 10
    await house.stop()
