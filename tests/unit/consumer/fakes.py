"""A session with a real fold behind it and failures on demand, and an engine that a test speaks for."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from headrace.broker.blobs import BlobStore
from headrace.broker.contract import (
    Append,
    ConsumerEntry,
    DeadLetter,
    Done,
    LaneDepth,
    Opened,
    OpenOutcome,
    Release,
    Retry,
    Serves,
    Settlement,
)
from headrace.broker.errors import BrokerUnavailable, TooLarge
from headrace.broker.events import Delta, Event, Handed, Started
from headrace.broker.fold import Fold, fold
from headrace.broker.message import Delivery, Lane, Message, RequestRef
from headrace.consumer.drain import Drain
from headrace.consumer.engine_process import EngineDied
from headrace.consumer.prepare import Preparer
from headrace.consumer.settings import ConsumerSettings
from headrace.consumer.worker import Parts, Worker
from headrace.gpu_engine.api import (
    Abort,
    Add,
    EngineInfo,
    EngineRequest,
    FromEngine,
    Output,
    Ready,
    Stepped,
    ToEngine,
    TokenLogprobs,
)
from headrace.gpu_engine.text.sim import SimTokenizer

FINGERPRINT = "words-1"
NOW_MS = 1_700_000_000_000
QUEUE = "headrace.requests.standard"

T = TypeVar("T")


async def eventually(condition: Callable[[], bool], what: str = "it") -> None:
    """Waits for a condition that nobody announces; fails after some seconds."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{what} never happened")


def line(custom_id: str = "c", **body: object) -> bytes:
    """A chat line with the parameters `body`."""
    fields = {"messages": [{"role": "user", "content": "hello"}], **body}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": fields}
    ).encode()


def delivery(
    name: str = "r1",
    body: bytes | None = None,
    *,
    stream: bool = True,
    deadline_ms: int | None = None,
    lane: Lane = Lane.STANDARD,
    published_ms: int = NOW_MS - 5,
    position: str | None = None,
    record: str | None = None,
    **fields: Any,
) -> Delivery:
    """`fields`: further ones of its message."""
    asked = line() if body is None else body
    message = Message(asked, name, lane, stream=stream, deadline_ms=deadline_ms, **fields)
    place = f"{QUEUE}/{name}" if position is None else position
    ref = RequestRef(name, message.tenant)
    return Delivery(message, ref, place, record or place, published_ms, handle=name)


@dataclass
class Fault:
    """The next `times` calls raise BrokerUnavailable; `lands`: they take effect all the same."""

    lands: bool
    times: int = 1


class FakeSession:
    """`ConsumerSession` over logs in a dict. A test owns its time and its failures."""

    name = "consumer-1"
    lease_ms = 40

    def __init__(self) -> None:
        self.queue: list[Delivery] = []
        self.logs: dict[str, list[Event]] = {}
        self.epochs: dict[str, int] = {}
        self.outcomes: dict[str, OpenOutcome] = {}
        self.cancelled: set[str] = set()
        self.lost: list[Delivery] = []
        self.pulled: dict[str, Delivery] = {}  # the latest of each name
        self.settled: dict[str, Settlement] = {}
        self.appends: list[list[Append]] = []
        self.calls = Counter[str]()  # that were begun
        self._started: list[str] = []
        self.pulls: list[int] = []
        self.reserves: list[int] = []
        self.waits: list[int] = []
        self.announced: list[Serves] = []
        self.heartbeats = 0
        self.faults: dict[str, Fault] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.heartbeat_error: Exception | None = None
        self.most_bytes: int | None = None  # of a settlement's line
        self.now_ms = NOW_MS
        self._cancellations: asyncio.Queue[RequestRef] = asyncio.Queue()

    # ------------------------------------------------------------------------------- what tests say

    def fail(self, call: str, *, lands: bool, times: int = 1) -> None:
        self.faults[call] = Fault(lands, times)

    def hold(self, call: str) -> asyncio.Event:
        """The call waits until the returned event is set."""
        self.gates[call] = asyncio.Event()
        return self.gates[call]

    def cancel(self, name: str) -> None:
        self.cancelled.add(name)
        self._cancellations.put_nowait(RequestRef(name))

    def fold(self, name: str = "r1") -> Fold:
        return fold(self.logs.get(name, []))

    def deltas(self, name: str = "r1") -> list[Delta]:
        return [event for event in self.logs.get(name, []) if isinstance(event, Delta)]

    def starts(self, name: str = "r1") -> list[Started]:
        return [event for event in self.logs.get(name, []) if isinstance(event, Started)]

    @property
    def begun(self) -> list[str]:
        """Names of requests in the order of their first `started`."""
        return list(dict.fromkeys(self._started))

    def take_over(self, name: str = "r1") -> None:
        """Another consumer fences the request."""
        self.epochs[name] = self.epochs.get(name, 0) + 1
        self.outcomes[name] = OpenOutcome.LOST

    # -------------------------------------------------------------------------------- the contract

    async def pull(self, limit: int, wait_ms: int, *, reserved: int = 0) -> list[Delivery]:
        """First in, first out, but for what is reserved."""
        self.pulls.append(limit)
        self.reserves.append(reserved)
        self.waits.append(wait_ms)
        await self._meet("pull", lambda: None)
        if not self.queue:
            await asyncio.sleep(min(wait_ms, 2) / 1000)
        taken: list[Delivery] = []
        for one in list(self.queue):
            room = limit if one.message.lane is Lane.INTERACTIVE else limit - reserved
            if len(taken) < room:
                taken.append(one)
                self.queue.remove(one)
                self.pulled[one.ref.request_id] = one
        return taken

    async def announce(self, serves: Serves) -> None:
        await self._meet("announce", lambda: self.announced.append(serves))

    async def heartbeat(self) -> list[Delivery]:
        self.heartbeats += 1
        if self.heartbeat_error is not None:
            raise self.heartbeat_error
        lost, self.lost = self.lost, []
        return lost

    async def open(self, delivery: Delivery) -> Opened:
        return await self._meet("open", lambda: self._open(delivery.ref.request_id))

    def _open(self, name: str) -> Opened:
        log = self.logs.setdefault(name, [])
        outcome = self.outcomes.get(name, OpenOutcome.RUN)
        if fold(log).ended:
            outcome = OpenOutcome.ENDED
        if outcome is not OpenOutcome.RUN:
            return Opened(outcome, now_ms=self.now_ms)
        self.epochs[name] = self.epochs.get(name, 0) + 1
        return Opened(outcome, self.epochs[name], fold(log), name in self.cancelled, self.now_ms)

    async def append(self, batch: Sequence[Append]) -> list[bool]:
        self.appends.append(list(batch))
        return await self._meet("append", lambda: [self._append(item) for item in batch])

    def _append(self, item: Append) -> bool:
        name = item.delivery.ref.request_id
        if item.epoch < self.epochs.get(name, 0) or fold(self.logs[name]).ended:
            return False
        self._write(name, item.events)
        return True

    def _write(self, name: str, events: Sequence[Event]) -> None:
        self.logs[name].extend(events)
        self._started += [name for event in events if isinstance(event, Started)]

    async def settle(self, delivery: Delivery, epoch: int, settlement: Settlement) -> bool:
        return await self._meet("settle", lambda: self._settle(delivery.ref.request_id, epoch, settlement))

    def _settle(self, name: str, epoch: int, settlement: Settlement) -> bool:
        if epoch < self.epochs.get(name, 0) and epoch != 0:
            return False
        line = getattr(settlement, "line", None) or b""
        if self.most_bytes is not None and len(line) > self.most_bytes:
            raise TooLarge("a message is larger than the topic takes")
        terminal = settlement.terminal if isinstance(settlement, Done | DeadLetter) else None
        if terminal is not None:
            before = settlement.events if isinstance(settlement, Done) else ()
            assert all(event.epoch == epoch for event in (*before, terminal))
            self.logs.setdefault(name, [])
            self._write(name, [*before, terminal])
        if isinstance(settlement, Release | Retry) and epoch:
            self.logs.setdefault(name, []).append(Handed(epoch, settlement.reason))
        if name in self.settled and terminal is None and not isinstance(settlement, Release):
            return True  # a repeated acknowledgement
        self.settled[name] = settlement
        return True

    async def cancellations(self) -> AsyncIterator[RequestRef]:
        while True:
            yield await self._cancellations.get()

    async def close(self) -> None: ...

    async def _meet(self, call: str, effect: Callable[[], T]) -> T:
        """Passes the gate of the call, then has its effect, unless a fault was ordered."""
        self.calls[call] += 1
        if gate := self.gates.get(call):
            await gate.wait()
        await asyncio.sleep(0)
        fault = self.faults.get(call)
        if fault is None or not fault.times:
            return effect()
        fault.times -= 1
        if fault.lands:
            effect()
        raise BrokerUnavailable(f"the broker went away during {call}")


class FakeRegistry:
    """The other consumers and the backlog, as a test has them."""

    def __init__(self) -> None:
        self.entries: list[ConsumerEntry] = []
        self.lanes: dict[Lane, LaneDepth] = {}
        self.away = False

    def enter(self, pool: str, *models: str) -> None:
        self.entries.append(ConsumerEntry(f"c-{pool}", pool, tuple(Lane), Serves(models, 4), 0))

    async def consumers(self) -> list[ConsumerEntry]:
        if self.away:
            raise BrokerUnavailable("the registry is away")
        return list(self.entries)

    async def depths(self, pool: str = "") -> dict[Lane, LaneDepth]:
        if self.away:
            raise BrokerUnavailable("the registry is away")
        return dict(self.lanes)


class FakeEngine:
    """`EngineHandle` whose words a test chooses. `obliging`: it answers an abort by itself."""

    obliging = True

    def __init__(self, pid: int, info: EngineInfo) -> None:
        self.pid = pid
        self.info = info
        self.sent: list[ToEngine] = []
        self.killed = False
        self.closed = False
        self.patience_s = 0.0  # of whoever closed it
        self._steps = itertools.count(1)
        self._messages: asyncio.Queue[FromEngine | None] = asyncio.Queue()
        self._dead = False

    # ------------------------------------------------------------------------------- what tests say

    def say(self, message: FromEngine) -> None:
        self._messages.put_nowait(message)

    def step(self, *outputs: Output) -> None:
        self.say(Stepped(next(self._steps), list(outputs)))

    def give(
        self,
        key: str,
        *token_ids: int,
        text: str | None = None,
        finish: str | None = None,
        cached: int = 0,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        """One step that brings tokens of one request; text None: the bytes that the tokens are."""
        self.step(
            Output(
                id=key,
                token_ids=list(token_ids),
                text=bytes(token_ids).decode() if text is None else text,
                finish_reason=finish,
                cached_tokens=cached,
                logprobs=list(logprobs),
            )
        )

    def die(self) -> None:
        self._messages.put_nowait(None)

    @property
    def added(self) -> list[EngineRequest]:
        return [message.request for message in self.sent if isinstance(message, Add)]

    @property
    def aborted(self) -> list[str]:
        return [message.id for message in self.sent if isinstance(message, Abort)]

    async def get(self, count: int = 1) -> EngineRequest:
        """The `count`-th request that was added, once it was."""
        await eventually(lambda: len(self.added) >= count, f"addition {count}")
        return self.added[count - 1]

    # -------------------------------------------------------------------------------- the contract

    def send(self, message: ToEngine) -> None:
        self.sent.append(message)
        if isinstance(message, Abort) and self.obliging:
            self.give(message.id, finish="abort")

    async def receive(self) -> FromEngine:
        message = None if self._dead else await self._messages.get()
        if message is None:
            self._dead = True
            raise EngineDied(-9)
        return message

    def kill(self) -> None:
        self.killed = True
        self.die()

    async def close(self, patience_s: float = 5.0) -> None:
        self.closed, self.patience_s = True, patience_s


class Rig:
    """A worker between a fake session and fake engines; runs while the context is open."""

    def __init__(
        self,
        settings: ConsumerSettings | None = None,
        *,
        batch_size: int = 4,
        obliging: bool = True,
        store: BlobStore | None = None,
        adapters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.session = FakeSession()
        self.registry = FakeRegistry()
        self.settings = settings or settings_for_tests()
        self.drain = Drain(self.settings.grace_s)
        self.info = EngineInfo(
            model="words",
            fingerprint=FINGERPRINT,
            max_batch_size=batch_size,
            max_input_length=100,
            max_total_tokens=200,
            kv_tokens=1000,
            adapters=dict(adapters),
        )
        self.first_words: FromEngine | None = Ready(self.info)  # of the engines to come; None: they load
        self.engines: list[FakeEngine] = []
        self.obliging = obliging  # engines answer aborts by themselves
        self.preparer = Preparer(SimTokenizer(), ["words", "alias", *adapters], store, adapters=adapters)
        parts = Parts(self.session, self.registry, self._start_engine, self._prepare)
        self.worker = Worker(parts, self.settings, self.drain)

    def _start_engine(self) -> FakeEngine:
        engine = FakeEngine(len(self.engines) + 1, self.info)
        engine.obliging = self.obliging
        if self.first_words is not None:
            engine.say(self.first_words)
        self.engines.append(engine)
        return engine

    async def _prepare(self, info: EngineInfo) -> Preparer:
        return self.preparer

    async def __aenter__(self) -> Rig:
        self.task = asyncio.create_task(self.worker.run())
        await eventually(lambda: bool(self.engines), "the first engine")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.preparer.close()

    @property
    def engine(self) -> FakeEngine:
        """The latest one."""
        return self.engines[-1]

    async def next_engine(self, count: int) -> FakeEngine:
        await eventually(lambda: len(self.engines) >= count, f"engine {count}")
        return self.engines[count - 1]

    def publish(self, *deliveries: Delivery) -> None:
        self.session.queue.extend(deliveries)

    async def settled(self, name: str = "r1") -> Settlement:
        await eventually(lambda: name in self.session.settled, f"the settlement of {name}")
        return self.session.settled[name]

    async def idle(self) -> None:
        await eventually(lambda: self.worker.in_flight == 0, "an idle worker")

    async def logged(self, text: str, name: str = "r1") -> None:
        await eventually(lambda: self.session.fold(name).text == text, f"{text!r} in the log")


def settings_for_tests(**changes: object) -> ConsumerSettings:
    return ConsumerSettings.model_validate({"broker": "fake://", "grace_s": 5.0, **changes})
