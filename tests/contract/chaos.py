"""Consumers that crash, freeze and wake while publishers repeat themselves and cancel, and lanes are paused.

`Chaos` runs over the contract alone, so over any adapter. Each consumer is a task that pulls, opens, writes
token after token and settles; now and then it passes a request on to the other pool. It may be killed at any
instruction; or it stops its heartbeats and goes on later as if nothing had happened (freeze). At last a
healthy consumer of each pool finishes what is left.

The expected answer of a request is a function of its id and the number of tokens that stand before: who
makes token n has to know all tokens before it, or the text shows it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.broker.contract import (
    Append,
    ConsumerSession,
    DeadLetter,
    Done,
    OpenOutcome,
    PassOn,
    Release,
    Retry,
    Settlement,
)
from headrace.broker.events import Delta, Failed, Finished, Started
from headrace.broker.fold import Fold
from headrace.broker.message import DEFAULT_POOL, Delivery, Lane, Message, RequestRef
from tests.contract.case import LANES, Case
from tests.contract.chaos_lines import Chunk, End, read_lines
from tests.contract.steps import read_results, shown

TOKENS = 6
CANCELLED = "cancelled"
POOLS = (DEFAULT_POOL, "large")


@dataclass(frozen=True, slots=True)
class Odds:
    """Chances: `freeze` and `give_up` per step of a consumer, `pass_on` per request that it opens, the others
    per breath of the whole."""

    freeze: float = 0.03
    give_up: float = 0.1
    pass_on: float = 0.15
    kill: float = 0.08
    cancel: float = 0.015
    again: float = 0.03
    pause: float = 0.02
    resume: float = 0.2


ROUGH = Odds(again=0.2, give_up=0.2, pass_on=0.2, cancel=0.03)
CALM = Odds(freeze=0, give_up=0, pass_on=0, kill=0, cancel=0, again=0, pause=0)


def token(ref: RequestRef, before: str) -> str:
    """The next token of an answer: it depends on all that stands before it."""
    digest = hashlib.sha256(f"{ref.request_id}|{before}".encode()).hexdigest()
    return digest[:2] + "."


def answer(ref: RequestRef) -> str:
    text = ""
    for _ in range(TOKENS):
        text += token(ref, text)
    return text


@dataclass(slots=True)
class Consumer:
    """One process. `nap` lets others run, and is where it may freeze."""

    chaos: Chaos
    session: ConsumerSession
    pool: str
    frozen: bool = False

    async def run(self) -> None:
        while not self.chaos.over:
            deliveries = await self.session.pull(2, 0)
            await asyncio.gather(*(self.serve(delivery) for delivery in deliveries))
            await self.nap()

    async def nap(self) -> None:
        chaos = self.chaos
        if not self.frozen and chaos.random.random() < chaos.odds.freeze:
            self.frozen = True  # for good: it goes on writing, and shows no sign of life
            chaos.case.freeze(self.session)
            for _ in range(chaos.random.randrange(1, 40)):
                await chaos.breathe()
        await chaos.breathe()

    async def serve(self, delivery: Delivery) -> None:
        await self.nap()
        opened = await self.session.open(delivery)
        await self.nap()
        match opened.outcome:
            case OpenOutcome.RUN:
                assert opened.state is not None
                deaths, possible = opened.state.deaths.all, self.chaos.unfinished[delivery.ref]
                assert deaths <= possible, "an owner that handed it on counts as dead"
                await self.write(delivery, opened.epoch, opened.state, opened.cancelled)
            case OpenOutcome.ENDED | OpenOutcome.TWIN:
                await self.session.settle(delivery, 0, Done())
            case OpenOutcome.CONFLICT:
                await self.session.settle(delivery, 0, DeadLetter("another body"))
            case OpenOutcome.LOST:
                pass

    async def write(self, delivery: Delivery, epoch: int, state: Fold, cancelled: bool) -> None:
        """Writes the rest of an answer; drops the request when a write is refused."""
        kept, text = len(state.token_ids), state.text
        self.chaos.resumed += kept > 0
        if not kept and self.chaos.random.random() < self.chaos.odds.pass_on:
            await self.session.settle(delivery, epoch, self.pass_on())
            return
        position, body, deaths = delivery.position, delivery.message.body_hash, state.deaths
        started = Started(
            epoch,
            self.session.name,
            position,
            1,
            body,
            "model",
            kept,
            deaths=deaths.all,
            lone_deaths=deaths.lone,
        )
        self.chaos.unfinished[delivery.ref] += 1
        so_far = Chunk(self.pool, epoch, 0, text)
        if not await self.append(delivery, epoch, started, so_far):
            return
        seq = state.next_seq
        for index in range(kept, TOKENS if not cancelled else kept):
            await self.nap()
            if self.chaos.random.random() < self.chaos.odds.give_up:
                settlement = self.give_up() if index else self.random_end()
                if await self.session.settle(delivery, epoch, settlement) and not self.frozen:
                    self.chaos.unfinished[delivery.ref] -= 1
                return
            piece = token(delivery.ref, text)
            if index == TOKENS - 1 and self.chaos.random.random() < 0.5:
                await self.end(delivery, epoch, [Delta(epoch, seq, (index,), piece)])
                return
            chunk = Chunk(self.pool, epoch, len(text), piece)
            if not await self.append(delivery, epoch, Delta(epoch, seq, (index,), piece), chunk):
                return
            seq, text = seq + 1, text + piece
        await self.nap()
        await self.end(delivery, epoch, [], cancelled=cancelled)

    async def end(
        self, delivery: Delivery, epoch: int, last: Sequence[Delta], *, cancelled: bool = False
    ) -> None:
        """`last`: what goes into the log together with the end."""
        terminal = Failed(epoch, CANCELLED, "") if cancelled else Finished(epoch, "stop")
        line = End(delivery.ref.request_id, self.pool, "".join(delta.text for delta in last)).line()
        await self.session.settle(delivery, epoch, Done(terminal, line, last))

    async def append(self, delivery: Delivery, epoch: int, event: Started | Delta, chunk: Chunk) -> bool:
        (appended,) = await self.session.append([Append(delivery, epoch, [event], [chunk.line()])])
        return appended

    def random_end(self) -> Settlement:
        """Of an owner that made no token yet."""
        return self.pass_on() if self.chaos.random.random() < 0.3 else self.give_up()

    def pass_on(self) -> PassOn:
        return PassOn(POOLS[1 - POOLS.index(self.pool)])

    def give_up(self) -> Settlement:
        delay = self.chaos.random.randrange(1, self.chaos.case.lease_ms // 4)
        return Retry(delay, "chaos") if self.chaos.random.random() < 0.5 else Release()


@dataclass(slots=True)
class Chaos:
    """One run. `step_ms` is how much time passes in a breath of the whole."""

    case: Case
    seed: int
    requests: int = 8
    consumers: int = 3
    rounds: int = 150
    step_ms: int = 0
    odds: Odds = field(default_factory=Odds)
    over: bool = False
    resumed: int = 0  # times that an answer went on from tokens found in its log
    random: random.Random = field(init=False)
    refs: list[RequestRef] = field(default_factory=list)
    unfinished: Counter[RequestRef] = field(default_factory=Counter)  # owners that began, and did not hand on
    paused: list[tuple[Lane, str]] = field(default_factory=list)
    tasks: dict[asyncio.Task[None], Consumer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    async def breathe(self) -> None:
        """Lets others run for a moment."""
        for _ in range(self.random.randrange(1, 4)):
            await asyncio.sleep(0)

    async def run(self) -> None:
        for _ in range(self.rounds):
            await self.disturb()
            await self.case.pass_time(self.step_ms)
            await self.breathe()
            self.check_tasks()
        await self.finish()
        await self.check()

    async def disturb(self) -> None:
        if len(self.refs) < self.requests and self.random.random() < 0.3:
            await self.publish(RequestRef(f"{self.seed}-{len(self.refs)}"))
        if self.refs and self.random.random() < self.odds.again:
            await self.publish(self.random.choice(self.refs))
        if self.refs and self.random.random() < self.odds.cancel:
            await self.case.broker.cancel(self.random.choice(self.refs))
        await self.disturb_lanes()
        if len(self.tasks) < self.consumers:
            await self.start_consumer(self.scarcest_pool())
        if self.random.random() < self.odds.kill:
            await self.kill(self.random.choice(list(self.tasks)))

    async def disturb_lanes(self) -> None:
        if self.random.random() < self.odds.pause:
            self.paused.append((self.random.choice(LANES), self.random.choice(POOLS)))
            await self.case.broker.pause(*self.paused[-1])
        if self.paused and self.random.random() < self.odds.resume:
            await self.case.broker.resume(*self.paused.pop())

    def scarcest_pool(self) -> str:
        served = Counter(consumer.pool for consumer in self.tasks.values())
        return min(POOLS, key=lambda pool: served[pool])

    async def kill(self, task: asyncio.Task[None]) -> None:
        """Ends a consumer wherever it stands, without a word to the broker."""
        consumer = self.tasks.pop(task)
        self.case.freeze(consumer.session)
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)

    async def publish(self, ref: RequestRef) -> None:
        lane = LANES[sum(ref.request_id.encode()) % len(LANES)]
        message = Message(b"body", ref.request_id, lane, reply_to=self.reply_topic, stream=True)
        await self.case.broker.publish([message])
        if ref not in self.refs:
            self.refs.append(ref)

    @property
    def reply_topic(self) -> str:
        return f"{self.case.names.prefix}.reply.chaos"

    async def start_consumer(self, pool: str) -> None:
        consumer = Consumer(self, await self.case.consume(pool=pool), pool)
        self.tasks[asyncio.create_task(consumer.run())] = consumer

    def check_tasks(self) -> None:
        """A consumer that failed fails the test."""
        for task in [task for task in self.tasks if task.done()]:
            del self.tasks[task]
            task.result()

    async def finish(self) -> None:
        """At last healthy consumers; the frozen ones still wake."""
        self.odds = CALM
        while self.paused:
            await self.case.broker.resume(*self.paused.pop())
        while len(self.refs) < self.requests:
            await self.publish(RequestRef(f"{self.seed}-{len(self.refs)}"))
        for pool in POOLS:
            await self.start_consumer(pool)
        for _ in range(2_000):
            await self.case.pass_time(max(self.step_ms, self.case.lease_ms // 8))
            await self.breathe()
            self.check_tasks()
            if await self.is_idle():
                break
        self.over = True
        await asyncio.gather(*self.tasks)

    async def is_idle(self) -> bool:
        for pool in POOLS:
            stats = await self.case.broker.stats(pool)
            busy = any(lane.waiting or lane.leased for lane in stats.lanes.values())
            if busy or stats.leases or stats.retrying:
                return False
        return len(self.refs) == self.requests

    async def shown(self, ref: RequestRef) -> Fold:
        """All is done, so a log without an end will never have one."""
        reading = asyncio.ensure_future(shown(self.case.broker, ref))
        await asyncio.wait({reading}, timeout=2)
        assert reading.done() or not reading.cancel(), f"the log of {ref} has no end"
        return await reading

    async def check(self) -> None:
        assert await self.is_idle(), [await self.case.broker.stats(pool) for pool in POOLS]
        streams = read_lines(await read_results(self.case, self.reply_topic))
        assert Counter(end.request_id for stream in streams.values() for end in stream.ends) == Counter(
            ref.request_id for ref in self.refs
        ), "one line for each request"
        for ref in self.refs:
            state = await self.shown(ref)
            stream = streams[ref.request_id]
            assert stream.text == state.text, "the reply topic tells the same as the log"
            assert not self.case.emits_chunks_once or stream.is_exact
            if isinstance(state.terminal, Finished):
                assert state.text == answer(ref)
            else:
                assert isinstance(state.terminal, Failed)
                assert state.terminal.code == CANCELLED
                assert answer(ref).startswith(state.text)
            assert state.restarts == 0
        assert await self.case.broker.dead_letters() == []
