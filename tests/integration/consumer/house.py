"""Workers with a real simulated engine each, requests whose answers are known, and readers that check."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.broker.contract import Broker, ConsumerSession, Published
from headrace.broker.events import Delta, Finished, Started
from headrace.broker.fold import Fold
from headrace.broker.message import Lane, Message, RequestRef
from headrace.consumer.drain import Drain
from headrace.consumer.engine_process import EngineHandle, EngineProcess
from headrace.consumer.prepare import Preparer, served_names
from headrace.consumer.settings import ConsumerSettings
from headrace.consumer.worker import Parts, Worker
from headrace.gpu_engine.api import EngineInfo, FromEngine, SamplingParams
from headrace.gpu_engine.config import EngineConfig, SimConfig
from headrace.gpu_engine.sim import expected_answer
from headrace.gpu_engine.text.sim import SimTokenizer

PATIENCE_S = 40.0


async def eventually(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"{what} never happened"
        await asyncio.sleep(0.005)


def prompt(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"tell me story {number}"}]


def message(number: int, tokens: int, *, stream: bool = True, adapter: str | None = None) -> Message:
    body = {"messages": prompt(number), "max_tokens": tokens, "temperature": 0, "model": adapter}
    line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return Message(json.dumps(line).encode(), f"r{number}", Lane.BATCH, stream=stream)


def expected_text(number: int, tokens: int, adapter: str | None = None) -> str:
    tokenizer = SimTokenizer()
    ids = tokenizer.encode_chat(prompt(number))
    return tokenizer.decode(expected_answer(ids, SamplingParams(temperature=0), tokens, adapter))


async def publish(broker: Broker, messages: Sequence[Message]) -> list[RequestRef]:
    published = await broker.publish(messages)
    assert all(isinstance(one, Published) for one in published)
    return [one.ref for one in published]


async def registered(broker: Broker, consumers: int) -> None:
    """Returns once the registry knows so many."""
    for _ in range(4000):
        if len(await broker.consumers()) >= consumers:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("they never registered")


@dataclass
class Reader:
    """What one who watches a request sees. `kept`: tokens kept at each valid start."""

    fold: Fold
    kept: list[int]

    @classmethod
    async def watch(cls, broker: Broker, ref: RequestRef) -> Reader:
        reader = cls(Fold(), [])
        await asyncio.wait_for(reader._follow(broker, ref), PATIENCE_S)
        return reader

    async def _follow(self, broker: Broker, ref: RequestRef) -> None:
        async for logged in broker.watch(ref):
            if self.fold.read(logged.event) and isinstance(logged.event, Started):
                self.kept.append(logged.event.kept)

    def check(self, number: int, tokens: int, adapter: str | None = None) -> None:
        """One unbroken answer, the expected one."""
        assert isinstance(self.fold.terminal, Finished), self.fold.terminal
        assert self.fold.terminal.usage.completion_tokens == tokens
        assert self.fold.restarts == 0
        assert self.fold.text == expected_text(number, tokens, adapter)


async def tokens_in_log(broker: Broker, ref: RequestRef, count: int) -> None:
    """Returns once the log holds so many tokens."""
    seen = 0
    async for logged in broker.watch(ref):
        if isinstance(logged.event, Delta):
            seen += len(logged.event.token_ids)
        if seen >= count:
            return


class Metered(EngineProcess):
    """An engine process whose words are listened to."""

    def __init__(self, config: EngineConfig, meter: Callable[[FromEngine], None]) -> None:
        super().__init__(config)
        self._meter = meter

    async def receive(self) -> FromEngine:
        message = await super().receive()
        self._meter(message)
        return message


class House:
    """One worker with its session and its engine process."""

    def __init__(
        self,
        broker: Broker,
        session: ConsumerSession,
        settings: ConsumerSettings,
        meter: Callable[[FromEngine], None] = lambda message: None,
    ) -> None:
        self._meter = meter
        self.drain = Drain(settings.grace_s)
        self.engines: list[EngineHandle] = []
        self._preparer: Preparer | None = None
        self._settings = settings
        self._session = session
        parts = Parts(session, broker, self._start_engine, self._prepare, self._on_ready)
        self.worker = Worker(parts, settings, self.drain)
        self.task = asyncio.create_task(self.worker.run())

    @classmethod
    async def open(
        cls,
        broker: Broker,
        settings: ConsumerSettings,
        meter: Callable[[FromEngine], None] = lambda message: None,
    ) -> House:
        """`meter` sees all that its engines say."""
        session = await broker.consume(settings.lanes, settings.lease_ms, pool=settings.pool)
        return cls(broker, session, settings, meter)

    def _start_engine(self) -> EngineHandle:
        return Metered(self._settings.engine, self._meter)

    async def _prepare(self, info: EngineInfo) -> Preparer:
        names = served_names(self._settings, info)
        self._preparer = Preparer(SimTokenizer(), names, adapters=info.adapters)
        return self._preparer

    def _on_ready(self, info: EngineInfo, engine: EngineHandle) -> None:
        self.engines.append(engine)

    async def kill(self) -> None:
        """Everything stops where it is; nothing is handed back, the session is not closed."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self._close_preparer()

    async def stop(self) -> None:
        """A drain, as by SIGTERM."""
        self.drain.request()
        await asyncio.wait_for(self.task, PATIENCE_S)
        await self._session.close()
        self._close_preparer()

    def _close_preparer(self) -> None:
        if self._preparer is not None:
            self._preparer.close()


def sim_settings(
    *, step_ms: float = 5, lease_ms: int = 1000, adapters: Sequence[str] = (), **changes: object
) -> ConsumerSettings:
    engine = EngineConfig(
        engine="sim",
        max_batch_size=4,
        sim=SimConfig(first_token_ms=5, step_ms=step_ms, tokens=16),
        lora_modules=dict.fromkeys(adapters, "nowhere"),
    )
    fields = {"broker": "test://", "engine": engine, "lease_ms": lease_ms, "grace_s": 10.0, **changes}
    return ConsumerSettings.model_validate(fields)
