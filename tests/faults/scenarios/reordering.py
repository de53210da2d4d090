"""Deliveries come in another order than they were published, again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headrace.broker.connect import connect
from headrace.broker.contract import ConsumerSession, Done, OpenOutcome, Release, Retry, Settlement
from headrace.broker.message import Delivery, Lane
from tests.faults.checker.record import Accepted
from tests.faults.raw import publish
from tests.faults.run import Run
from tests.faults.scenarios.acts import until

_HANDED_BACK = 20  # deliveries at least, or nothing was proved
_LONGEST_MS = 800


async def deliveries_reordered(run: Run) -> None:
    """One that runs nothing is a consumer among the others: what it is given it holds for a while, and hands
    back in any order, opened or not, now or later. Meanwhile copies of all that was published come at any
    time. Each request has one end and one line all the same."""
    sent = list[Accepted]()
    async with run.load(streams=4, tokens=(5, 30)), _shuffler(run) as shuffler:
        await until(lambda: shuffler.handed_back > 0, "a first delivery that is handed back")
        for _ in range(15 * run.rounds):
            sent += [await run.publish(tokens=run.rng.choice((2, 30))) for _ in range(3)]
            for accepted in run.rng.sample(sent, min(len(sent), 4)):
                assert accepted.body is not None
                headers = {"request-id": accepted.request_id}
                await publish(run.raw, accepted.lane, accepted.body, headers)
            await asyncio.sleep(run.rng.uniform(0.1, 0.5))
    run.notes.append(f"{shuffler.handed_back} deliveries handed back in another order")
    assert shuffler.handed_back >= _HANDED_BACK, "what came in another order: next to nothing"


@contextlib.asynccontextmanager
async def _shuffler(run: Run) -> AsyncIterator[_Shuffler]:
    """At work while the block runs; what it holds in the end comes back as from any consumer that closes."""
    broker = await connect(run.server.url, prefix=run.prefix)
    session = await broker.consume(tuple(Lane), round(run.lease_s * 1000))
    shuffler = _Shuffler(run, session)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(shuffler.work())
            yield shuffler
            shuffler.over = True
    finally:
        await session.close()
        await broker.close()


class _Shuffler:
    def __init__(self, run: Run, session: ConsumerSession) -> None:
        self.over = False
        self.handed_back = 0
        self._run = run
        self._session = session
        self._held: list[Delivery] = []

    async def work(self) -> None:
        rng = self._run.rng
        while not self.over:
            self._held += await self._session.pull(rng.randint(1, 8), 100)
            for lost in await self._session.heartbeat():
                self._held = [delivery for delivery in self._held if delivery.position != lost.position]
            rng.shuffle(self._held)
            kept = rng.randint(0, 8)
            self._held, leaving = self._held[:kept], self._held[kept:]
            await asyncio.gather(*(self._hand_back(delivery) for delivery in leaving))

    async def _hand_back(self, delivery: Delivery) -> None:
        rng, epoch = self._run.rng, 0
        settlement: Settlement = rng.choice((Release(), Retry(rng.randint(0, _LONGEST_MS), "shuffled")))
        if rng.random() < 0.5:
            opened = await self._session.open(delivery)
            epoch = opened.epoch
            if opened.outcome is OpenOutcome.LOST:
                return
            if opened.outcome is not OpenOutcome.RUN:
                settlement = Done()
        self.handed_back += await self._session.settle(delivery, epoch, settlement)
