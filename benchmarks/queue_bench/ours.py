"""Our own processes under measurement, started as a user starts them, and a client of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.queue_bench.noop_run import Contestant
from benchmarks.shared.processes import cpu_seconds, family, held, last_words, running, wait_until
from benchmarks.shared.report import CannotRun
from headrace.broker.connect import connect
from headrace.broker.contract import Broker, ResultLine
from headrace.broker.errors import BrokerError
from headrace.broker.ids import new_request_id
from headrace.broker.message import Lane, Message

REPLY_TOPIC = "headrace.reply.bench"
_PATIENCE_S = 20.0
ROOT = Path(__file__).resolve().parent.parent.parent
SIM = ("--engine", "sim")
NO_OP = (*SIM, "--sim-step-ms", "0", "--sim-first-token-ms", "0", "--max-batch-size", "256")


@dataclass(frozen=True, slots=True)
class Service:
    """One process of ours that is up; `told` is what it wrote about itself."""

    process: subprocess.Popen[str]
    told: dict[str, Any]

    @property
    def pids(self) -> list[int]:
        return family(self.process.pid)


@contextlib.contextmanager
def service(kind: str, arguments: Sequence[str], url: str, work: Path) -> Iterator[Service]:
    """`headrace consumer` or `headrace gateway`; returns once it serves."""
    log = _unused(work / f"{kind}.log")
    ready = log.with_suffix(".json")
    argv = [sys.executable, "-m", "headrace.cli.main", kind, *arguments, "--ready-file", str(ready)]
    with _ready(argv, url, log, ready) as found:
        yield found


@contextlib.contextmanager
def stamping_consumer(step_ms: float, lease_ms: int, url: str, work: Path) -> Iterator[Service]:
    """A consumer whose tokens tell when they were made, see `stamping`."""
    log = _unused(work / "stamping.log")
    ready = log.with_suffix(".json")
    module = "benchmarks.queue_bench.stamping"
    argv = [sys.executable, "-m", module, str(step_ms), str(lease_ms), str(ready)]
    with _ready(argv, url, log, ready) as found:
        yield found


@contextlib.contextmanager
def _ready(argv: Sequence[str], url: str, log: Path, ready: Path) -> Iterator[Service]:
    with running(argv, log, env={"HEADRACE_BROKER": url}, cwd=ROOT) as process:
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: ready.exists() or process.poll() is not None, "it came up", 120)
        if not ready.exists():
            raise CannotRun(f"our {log.stem} did not come up: {last_words(log)}")
        yield Service(process, json.loads(ready.read_text()))


def completion(
    number: int, place: int, *, tokens: int = 1, prompt: str = "no-op", lane: Lane = Lane.BATCH
) -> Message:
    """One request of the file format, whose result line names `number`. `place`: see `Broker.place`."""
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
    data = json.dumps(line).encode()
    return Message(data, request_id=new_request_id(lane, place), lane=lane, reply_to=REPLY_TOPIC)


async def connected(url: str) -> Broker:
    """Raises CannotRun where the adapter is not there yet."""
    try:
        return await connect(url)
    except BrokerError as error:
        raise CannotRun(error) from error


class OurContestant(Contestant):
    """Publishes OpenAI batch lines, as any client may, and reads the lines of a reply topic."""

    def __init__(self, runner: asyncio.Runner, broker: Broker, consumer: Service, *, tokens: int = 1) -> None:
        self._runner, self._broker, self._consumer = runner, broker, consumer
        self._tokens, self._published, self._cursor = tokens, 0, ""

    def publish(self, count: int) -> float:
        began = time.perf_counter()
        self._published = count
        self._runner.run(self._publish(count))
        return time.perf_counter() - began

    def collect(self) -> float:
        began = time.perf_counter()
        self._runner.run(self._collect())
        return time.perf_counter() - began

    def cpu(self) -> float:
        return cpu_seconds(self._consumer.pids)

    def held(self) -> contextlib.AbstractContextManager[None]:
        return held(self._consumer.pids)

    async def _publish(self, count: int) -> None:
        for start in range(0, count, 512):
            numbers, place = range(start, min(count, start + 512)), self._broker.place
            await self._broker.publish(
                [completion(n, place(Lane.BATCH), tokens=self._tokens) for n in numbers]
            )

    async def _collect(self) -> None:
        waiting = set(range(self._published))
        async with contextlib.aclosing(self._results()) as lines:
            while waiting:
                line = await self._next(lines)
                answer = json.loads(line.line)
                waiting.remove(int(answer["custom_id"]))
                assert answer["response"]["status_code"] == 200, answer
                self._cursor = line.cursor

    async def _next(self, lines: AsyncGenerator[ResultLine]) -> ResultLine:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await anext(lines)
        except TimeoutError:
            state = "runs" if self._consumer.process.poll() is None else "has ended"
            raise CannotRun(f"no result for {_PATIENCE_S:.0f} s, and our consumer {state}") from None

    def _results(self) -> AsyncGenerator[ResultLine]:
        lines = self._broker.results(REPLY_TOPIC, self._cursor)
        assert isinstance(lines, AsyncGenerator)  # so are those of all adapters
        return lines


def _unused(path: Path) -> Path:
    number = 2
    while path.exists():
        path = path.with_stem(f"{path.stem.partition('~')[0]}~{number}")
        number += 1
    return path
