"""The engine's child process, seen from its consumer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from headrace.consumer.engine_process import EngineDied, EngineProcess
from headrace.gpu_engine.api import (
    Abort,
    Add,
    EngineRequest,
    Ready,
    SamplingParams,
    Stepped,
    Unusable,
)
from headrace.gpu_engine.config import EngineConfig, SimConfig
from headrace.gpu_engine.sim import expected_answer
from tests.support.frozen import freeze

pytestmark = pytest.mark.slow

PROMPT = [104, 105]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    config = EngineConfig(engine="sim", sim=SimConfig(first_token_ms=1, step_ms=1))
    process = EngineProcess(config)
    assert isinstance(await process.receive(), Ready)
    yield process
    await process.close()


async def until_dead(engine: EngineProcess) -> None:
    """Receives all that it said; it was killed."""

    async def receive_all() -> None:
        while True:
            await engine.receive()

    with pytest.raises(EngineDied) as death:
        await receive_all()
    assert death.value.exit_code == -signal.SIGKILL


async def test_a_request_goes_in_and_its_tokens_come_out(engine: EngineProcess) -> None:
    engine.send(Add(EngineRequest(id="a", prompt_ids=PROMPT, params=GREEDY)))
    tokens: list[int] = []
    while len(tokens) < 8:
        message = await engine.receive()
        assert isinstance(message, Stepped)
        tokens += [token for output in message.outputs for token in output.token_ids]
    assert tokens == expected_answer(PROMPT, GREEDY, 8)


async def test_a_death_is_told_behind_the_last_message_and_again_and_again(engine: EngineProcess) -> None:
    engine.send(Add(EngineRequest(id="a", prompt_ids=PROMPT, params=GREEDY)))
    while not (isinstance(message := await engine.receive(), Stepped) and message.outputs):
        pass
    os.kill(engine.pid, signal.SIGKILL)
    await until_dead(engine)
    with pytest.raises(EngineDied):
        await engine.receive()
    engine.send(Abort("a"))  # goes nowhere, and does not fail


async def test_sending_to_a_stopped_engine_does_not_block_the_event_loop(engine: EngineProcess) -> None:
    freeze(engine.pid)
    big = EngineRequest(id="big", prompt_ids=[1] * 1_000_000, params=GREEDY)
    async with asyncio.timeout(5):
        for _ in range(4):  # far more than a pipe holds
            engine.send(Add(big))
            await asyncio.sleep(0)
    engine.kill()
    await until_dead(engine)


async def test_a_consumer_that_does_not_listen_stops_the_engine_and_fills_no_memory() -> None:
    config = EngineConfig(engine="sim", sim=SimConfig(first_token_ms=0, step_ms=0))
    engine = EngineProcess(config)
    assert isinstance(await engine.receive(), Ready)
    endless = SamplingParams(temperature=0, max_tokens=16_000, ignore_eos=True)
    engine.send(Add(EngineRequest(id="a", prompt_ids=PROMPT, params=endless)))
    await asyncio.sleep(0.5)
    assert engine.backlog <= 65
    async with asyncio.timeout(4):
        await engine.close(patience_s=1000)


async def test_a_stopped_engine_is_killed_when_it_does_not_close(engine: EngineProcess) -> None:
    freeze(engine.pid)
    await engine.close(patience_s=0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(engine.pid, 0)


async def test_an_engine_that_cannot_start_says_why() -> None:
    engine = EngineProcess(EngineConfig(model="/nowhere/at-all"))
    message = await engine.receive()
    assert isinstance(message, Unusable)
    assert "/nowhere/at-all" in message.message
    await engine.close()
