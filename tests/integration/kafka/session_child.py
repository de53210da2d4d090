"""A consumer in a process of its own, to be killed and frozen: `python -m … URL PREFIX MODE LEASE_MS`.

It takes one delivery, says "a", prints `holding`, and goes on by its mode:

- `dies`: settles, but hangs in its transaction before the commit, and prints `in transaction`;
- `freezes`: waits for a line on its input (it is frozen meanwhile), goes on, and prints what came of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from kafka.producer.transaction_manager import TransactionManager

from headrace.broker.connect import connect
from headrace.broker.contract import ConsumerSession, Done
from headrace.broker.events import Finished
from headrace.broker.message import Delivery, Lane
from tests.contract.steps import Writer
from tests.integration.kafka.sessions import OPTIONS


def hang(manager: TransactionManager) -> None:
    say("in transaction")
    time.sleep(600)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def beat(session: ConsumerSession, lost: list[Delivery]) -> None:
    while True:
        lost += await session.heartbeat()
        await asyncio.sleep(session.lease_ms / 4000)


async def main(url: str, prefix: str, mode: str, lease_ms: int) -> None:
    broker = await connect(url, prefix=prefix, options=OPTIONS)
    session = await broker.consume([Lane.STANDARD], lease_ms)
    lost: list[Delivery] = []
    beating = asyncio.create_task(beat(session, lost))
    (delivery,) = await session.pull(1, 30_000)
    writer = await Writer.open(session, delivery)
    await writer.start()
    await writer.say("a")
    if mode == "dies":
        TransactionManager.begin_commit = hang
    say("holding")
    if mode == "freezes":
        beating.cancel()  # it shows no more sign of life, so that it does not join again
        await asyncio.to_thread(sys.stdin.readline)
    written = await writer.say("X")
    done = Done(Finished(writer.epoch, "stop"), b"of the dead")
    settled = await session.settle(delivery, writer.epoch, done)
    lost += await session.heartbeat()
    say(json.dumps({"written": written, "settled": settled, "lost": [d.ref.request_id for d in lost]}))
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
