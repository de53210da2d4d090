"""Requests with several results on real brokers: answers of which a worker died, and vectors."""

from __future__ import annotations

import asyncio
import json
from struct import unpack

import pytest

from headrace.broker.contract import Broker
from headrace.broker.events import Finished
from headrace.broker.message import Lane, Message
from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.embedding.sim import expected_embedding
from headrace.gpu_engine.sampling.noise import derive_seed
from headrace.gpu_engine.sim import expected_answer
from headrace.gpu_engine.text.sim import SimTokenizer
from tests.integration.consumer.house import House, Reader, publish, sim_settings, tokens_in_log

pytestmark = pytest.mark.slow


async def test_when_a_worker_is_killed_another_resumes_every_answer(broker: Broker) -> None:
    body = {"prompt": "tell me", "n": 3, "seed": 5, "max_tokens": 80}
    first = await House.open(broker, sim_settings(lease_ms=400))
    refs = await publish(broker, [Message(json.dumps(body).encode(), "r1", Lane.BATCH, stream=True)])
    reader = asyncio.create_task(Reader.watch(broker, refs[0]))
    await tokens_in_log(broker, refs[0], 30)
    second = await House.open(broker, sim_settings(lease_ms=400))
    await first.kill()
    seen = await reader
    await second.stop()
    assert seen.kept[-1] >= 30
    assert seen.fold.restarts == 0
    assert isinstance(seen.fold.terminal, Finished)
    assert seen.fold.terminal.reasons == ("length",) * 3
    line = json.loads((await anext(broker.results())).line)
    for index, choice in enumerate(line["response"]["body"]["choices"]):
        params = SamplingParams(seed=derive_seed(5, index))
        expected = expected_answer(SimTokenizer().encode("tell me"), params, 80)
        assert seen.fold.answers[index].token_ids == expected
        assert choice["text"] == seen.fold.answers[index].text == SimTokenizer().decode(expected)


async def test_vectors_come_as_a_result_line_and_with_the_end_of_the_log(broker: Broker) -> None:
    house = await House.open(broker, sim_settings(step_ms=1))
    line = {"custom_id": "mine", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["a", "bc"]}}
    [ref] = await publish(broker, [Message(json.dumps(line).encode(), "r1", Lane.BATCH)])
    terminal = (await Reader.watch(broker, ref)).fold.terminal
    await house.stop()
    assert isinstance(terminal, Finished)
    expected = [expected_embedding([97]), expected_embedding([98, 99])]
    assert [[*unpack("<16f", vector)] for vector in terminal.embeddings] == expected
    told = json.loads((await anext(broker.results())).line)
    assert told["custom_id"] == "mine"
    assert [one["embedding"] for one in told["response"]["body"]["data"]] == [
        pytest.approx(vector, rel=1e-7) for vector in expected
    ]
