"""Several consumers on one broker: planned restarts, shared backlogs, pools, and requests that kill them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest

from headrace.broker.contract import Broker
from headrace.broker.events import Failed, Started
from headrace.broker.message import Lane, Message, RequestRef
from headrace.consumer.settings import ConsumerSettings
from headrace.gpu_engine.api import FromEngine, Stepped
from tests.integration.consumer.house import (
    PATIENCE_S,
    House,
    Reader,
    eventually,
    expected_text,
    message,
    publish,
    registered,
    sim_settings,
    tokens_in_log,
)

pytestmark = pytest.mark.slow


@dataclass
class Meter:
    """Counts the tokens that the engines of some houses made."""

    tokens: int = 0

    def read(self, message: FromEngine) -> None:
        if isinstance(message, Stepped):
            self.tokens += sum(len(output.token_ids) for output in message.outputs)


async def test_a_planned_restart_loses_and_recomputes_no_token(broker: Broker) -> None:
    meter = Meter()
    first = await House.open(broker, sim_settings(grace_s=0), meter.read)
    refs = await publish(broker, [message(n, 150, stream=n % 2 == 0) for n in range(4)])
    readers = [asyncio.create_task(Reader.watch(broker, ref)) for ref in refs]
    for ref in refs:
        await tokens_in_log(broker, ref, 33)
    second = await House.open(broker, sim_settings(), meter.read)
    await first.stop()
    assert first.worker.counters.released == 4
    seen = await asyncio.gather(*readers)
    for number, reader in enumerate(seen):
        reader.check(number, 150)
    await second.stop()
    assert second.worker.counters.resumed == 4
    assert meter.tokens == 4 * 150


async def test_two_consumers_share_a_backlog_to_its_end(shared_broker: Broker) -> None:
    """A window would hold all of it. But neither of them holds much that the other could run, so two take
    about half the time of one."""
    broker = shared_broker
    houses = [await House.open(broker, sim_settings(step_ms=10)) for _ in range(2)]
    workers = [house.worker for house in houses]
    await registered(broker, 2)
    refs = await publish(broker, [message(n, 16, stream=False) for n in range(26)])
    await eventually(lambda: all(worker.in_flight for worker in workers), "work for both")
    held_back = 0
    while sum(worker.counters.finished for worker in workers) < len(refs):
        if any(worker.in_flight == 0 for worker in workers):
            held_back = max(held_back, *(worker.waiting for worker in workers))
        await asyncio.sleep(0.002)
    assert held_back <= 4
    await asyncio.gather(*(house.stop() for house in houses))


async def test_a_request_for_the_model_of_another_pool_is_answered_there(
    shared_broker: Broker, prefix: str
) -> None:
    broker = shared_broker
    small = await House.open(broker, sim_settings(model="small", prefix=prefix))
    large = await House.open(broker, sim_settings(model="large", prefix=prefix, pool="gpus"))
    await registered(broker, 2)
    line = json.loads(message(0, 12).body)
    line["body"]["model"] = "large"
    (ref,) = await publish(broker, [Message(json.dumps(line).encode(), "r0", Lane.BATCH, stream=True)])
    reader = await Reader.watch(broker, ref)
    reader.check(0, 12)
    await small.stop()
    await large.stop()
    assert (small.worker.counters.passed_on, large.worker.counters.finished) == (1, 1)


def never_answering(settings: ConsumerSettings) -> ConsumerSettings:
    """Its engine takes ten minutes for a first token: to a consumer that is killed, like a hang."""
    sim = settings.engine.sim.model_copy(update={"first_token_ms": 600_000.0})
    engine = settings.engine.model_copy(update={"sim": sim})
    return settings.model_copy(update={"engine": engine})


async def started(broker: Broker, ref: RequestRef, deaths: int, *, alone: bool) -> None:
    """Returns once the log says that the request was begun with this past."""
    async with asyncio.timeout(PATIENCE_S):
        async for logged in broker.watch(ref):
            event = logged.event
            if isinstance(event, Started) and (event.deaths, event.alone) == (deaths, alone):
                return


async def test_what_killed_its_consumers_before_its_first_token_is_tried_alone_and_then_convicted(
    broker: Broker,
) -> None:
    settings = never_answering(sim_settings(lease_ms=300))
    (ref,) = await publish(broker, [message(0, 8)])
    for deaths in range(5):
        house = await House.open(broker, settings)
        await started(broker, ref, deaths, alone=deaths >= 2)
        await house.kill()
    judge = await House.open(broker, settings)
    reader = await Reader.watch(broker, ref)
    assert isinstance(reader.fold.terminal, Failed)
    assert reader.fold.terminal.code == "poisoned"
    [letter] = await broker.dead_letters()
    assert "3 times with this request alone" in letter.reason
    await judge.stop()


async def test_innocents_in_flight_at_killed_consumers_are_tried_quickly_and_answered(broker: Broker) -> None:
    settings = sim_settings(lease_ms=300)
    refs = await publish(broker, [message(n, 20) for n in range(6)])
    readers = [asyncio.create_task(Reader.watch(broker, ref)) for ref in refs]
    for deaths in range(2):
        house = await House.open(broker, never_answering(settings))
        for ref in refs:
            await started(broker, ref, deaths, alone=False)
        await house.kill()
    last = await House.open(broker, settings)
    for number, reader in enumerate(await asyncio.gather(*readers)):
        reader.check(number, 20)
    await last.stop()


async def test_a_stream_on_a_reply_topic_is_put_together_by_its_rule(
    shared_broker: Broker, prefix: str
) -> None:
    broker, topic = shared_broker, f"{prefix}.reply.me"
    first = await House.open(broker, sim_settings(grace_s=0))
    body = message(0, 120).body
    (ref,) = await publish(broker, [Message(body, "r0", Lane.BATCH, stream=True, reply_to=topic)])
    await tokens_in_log(broker, ref, 20)
    second = await House.open(broker, sim_settings())
    await first.stop()
    text, highest, epochs = "", (0, -1), set[int]()
    async for result in broker.results(topic):
        fields = json.loads(result.line)
        if "object" not in fields:
            break
        epochs.add(fields["epoch"])
        if (fields["epoch"], fields["seq"]) > highest:
            highest = (fields["epoch"], fields["seq"])
            text = text[: fields["offset"]] + fields["choices"][0]["delta"]["content"]
    assert len(epochs) == 2
    assert text == expected_text(0, 120)
    assert fields["response"]["body"]["choices"][0]["message"]["content"] == text
    await second.stop()
