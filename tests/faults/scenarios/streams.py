"""Answers streamed on a reply topic: chunks for a reader that knows nothing of epochs and logs."""

from __future__ import annotations

import asyncio

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.events import Delta, Started
from headrace.broker.message import RequestRef
from tests.faults.run import Run
from tests.faults.scenarios.acts import until
from tests.faults.stack import pid_of

_STREAMS = 4  # in a reply topic, among one another


async def streamed_replies(run: Run) -> None:
    """Consumers die in mid-answer; what the next one says takes up where the chunks of the dead one end."""
    broker = await connect(run.server.url, prefix=run.prefix)
    taken_over = 0
    try:
        async with run.load(streams=3, lines=False):
            for number in range(2 * run.rounds):
                await until(lambda: len(run.stack.pids("consumer")) == 2, "both consumers", 60)
                topic = f"{run.prefix}.reply.r{number}"
                struck, *_ = [
                    await run.publish(tokens=400 + 20 * n, reply_to=topic, stream=True)
                    for n in range(_STREAMS)
                ]
                taken_over += await _watch_and_strike(run, broker, struck.request_id) > 1
    finally:
        await broker.close()
    assert taken_over, "nobody took an answer over: the kills proved nothing"


async def _watch_and_strike(run: Run, broker: Broker, request_id: str) -> int:
    """Kills who answers once a few pieces are out; returns how many have started it in the end."""
    starts, pieces, struck = list[Started](), 0, False
    async with asyncio.timeout(60):
        async for logged in broker.watch(RequestRef(request_id)):
            match logged.event:
                case Started() as started:
                    starts.append(started)
                case Delta():
                    pieces += 1
            owner = pid_of(starts[-1].consumer) if starts else None
            if owner is not None and pieces > 1 and not struck:
                run.stack.kill(owner)
                struck = True
    return len(starts)
