"""One run: real processes under load, faults, and then the checker's verdict.

stack up ──► load + faults ──► until all is settled ──► verdict ──► drain ──► verdict again
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.ids import new_request_id
from headrace.broker.message import Lane
from tests.faults.answers import expected_text
from tests.faults.brokers import Kafka, Valkey
from tests.faults.checker.check import check
from tests.faults.checker.judge import Rule, Violation
from tests.faults.checker.record import COMPLETE, Accepted, Rubbish, RunRecord, Shown, Transcript
from tests.faults.proxy import Proxy
from tests.faults.raw import Raw, completion_line, lay_down, publish, raw_publisher
from tests.faults.readers import Ask, Reader
from tests.faults.stack import Stack

SETTLE_S = 60.0
# While any of these is found, work is under way. The broker is read piece by piece, so much else may seem
# wrong then; what is found twice in the same way, without one of these, will not go away.
_UNFINISHED = {Rule.NO_END, Rule.NO_LINE, Rule.LEASE}
_LANES = tuple(Lane)
_LARGE = 3_000  # characters of a prompt that goes by the blob store


@dataclass
class Run:
    """What a scenario works with. `name`: stands in the ids that it makes. `step_s`: how long the engine
    takes for a token. `record`: of all runs on this stack. `breaks`: the broker goes away in it, so that a
    plain client's publish may stay without an answer. `large`: ids of requests whose body lies in the blob
    store; `store`: where plain clients put it, None: where consumers look."""

    name: str
    stack: Stack
    server: Valkey | Kafka
    prefix: str
    rng: random.Random
    lease_s: float
    step_s: float
    record: RunRecord
    proxy: Proxy | None = None
    rounds: int = 1
    breaks: bool = False
    readers: list[Reader] = field(default_factory=list)
    more_gateways: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    large: set[str] = field(default_factory=set)
    store: Path | None = None
    _raw: Raw | None = None
    _made: int = 0
    _before: tuple[int, int, list[Transcript]] = field(init=False)

    def __post_init__(self) -> None:
        self._before = len(self.stack.kills), len(self.record.accepted), list(self.record.transcripts)

    def kills(self) -> list[tuple[float, int]]:
        """Of this run: when which process was killed."""
        return self.stack.kills[self._before[0] :]

    @property
    def requests(self) -> int:
        """How many this run has published."""
        return len(self.record.accepted) - self._before[1]

    def transcripts(self) -> list[Transcript]:
        """What readers of this run were shown."""
        return [reader.transcript() for reader in self.readers if reader.shown]

    def gateways(self) -> Sequence[str]:
        return [self.stack.grpc, *self.more_gateways]

    # ----------------------------------------------------------------------------------------- load

    @contextlib.asynccontextmanager
    async def load(
        self,
        streams: int = 8,
        tokens: tuple[int, int] = (60, 200),
        lines: bool = True,
        large: float = 0.2,
    ) -> AsyncIterator[None]:
        """Keeps so many answers streaming, and publishes lines by plain clients, while the block runs; leaves
        it when all streams that were begun have ended. `large`: the share of bodies that lie in the store."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(streams):
                tasks.create_task(self._keep_reading(f"s{number}", tokens, large, over))
            if lines:
                tasks.create_task(self._keep_publishing(large, over))
            try:
                yield
            finally:
                over.set()

    async def _keep_reading(
        self, name: str, tokens: tuple[int, int], large: float, over: asyncio.Event
    ) -> None:
        rng = random.Random(f"{self.rng.random()} {name}")
        while not over.is_set():
            await self.read(
                tokens=rng.randint(*tokens),
                lane=rng.choice(_LANES),
                own_id=rng.random() < 0.5,
                large=rng.random() < large,
            )

    async def _keep_publishing(self, large: float, over: asyncio.Event) -> None:
        rng = random.Random(f"{self.rng.random()} lines")
        while not over.is_set():
            named, is_large = rng.random() < 0.7, rng.random() < large
            await self.publish(tokens=rng.randint(5, 60), named=named, large=is_large)
            await asyncio.sleep(rng.uniform(0.05, 0.4))

    async def read(
        self,
        tokens: int = 60,
        *,
        lane: Lane = Lane.BATCH,
        own_id: bool = False,
        large: bool = False,
        ends: tuple[str, ...] = COMPLETE,
        deadline_s: float | None = None,
        on_event: Callable[[Shown], None] | None = None,
        patience_s: float = 0.0,
    ) -> Reader:
        """Asks through a gateway and watches the answer to its end. `patience_s`: of a slow reader, before
        each event. `own_id`: an id of the client's, else one as our gateways make it."""
        self._made += 1
        prompt = _prompt(f"Story {self._made} of {self.rng.getrandbits(32)}", large=large)
        request_id = (
            f"own-{self.name}-{self._made}" if own_id else new_request_id(lane, self.rng.randrange(2))
        )
        if large:
            self.large.add(request_id)
        ask = Ask(request_id, prompt, tokens, self._made, lane, deadline_s)

        async def hear(event: Shown) -> None:
            if on_event is not None:
                on_event(event)
            if patience_s:
                await asyncio.sleep(patience_s)

        reader = Reader(ask, self.gateways, hear)
        self.readers.append(reader)
        answer = expected_text(prompt, tokens, self._made)
        place = len(self.record.accepted)
        self.record.accepted.append(Accepted(request_id, answer, ends, lane=lane, certain=False))
        await reader.read()
        if not reader.too_late:
            self.record.accepted[place] = Accepted(request_id, answer, ends, lane=lane)
        return reader

    async def publish(
        self,
        tokens: int = 20,
        *,
        lane: Lane = Lane.BATCH,
        named: bool = True,
        ends: tuple[str, ...] = COMPLETE,
        request_id: str | None = None,
        reply_to: str = "",
        stream: bool = False,
        large: bool = False,
        queue_timeout_s: float | None = None,
        deadly: str = "",
    ) -> Accepted:
        """A line from a client that knows nothing of us. One whose fate is unknown is sent again if it has a
        name, which is what names are for. `large`: its body goes into the store first. `deadly`: a word in it
        that nobody survives, so that nobody can tell its custom id either."""
        self._made += 1
        number = self._made
        custom_id = f"{self.name}-{number}"
        prompt = _prompt(f"{custom_id} {deadly}".strip(), large=large)
        body = completion_line(custom_id, prompt, tokens, number)
        name = request_id or (f"named-{custom_id}" if named or self.breaks else "")
        fields = {"request-id": name, "reply-to": reply_to, "stream": "true" if stream else ""}
        if queue_timeout_s is not None:
            fields["queue-timeout"] = str(round(queue_timeout_s * 1000))
        headers = {field: value for field, value in fields.items() if value}
        if large:
            headers |= lay_down(self.store or self.stack.store, body)
            body = b""
        position = await publish(self.raw, lane, body, headers)
        while position is None:
            assert name, "the broker went away in a scenario where it should not"
            await asyncio.sleep(0.1)
            position = await publish(self.raw, lane, body, headers)
        accepted = Accepted(
            *(name or position, expected_text(prompt, tokens, number), ends),
            custom_id="" if deadly else custom_id,
            lane=lane,
            body=body,
            topic=reply_to,
            streamed=stream and bool(reply_to),
        )
        self.record.accepted.append(accepted)
        if large:
            self.large.add(accepted.request_id)
        return accepted

    async def publish_rubbish(self, body: bytes, headers: Mapping[str, str], lane: Lane = Lane.BATCH) -> None:
        """Once, for sure: the checker wants as many letters as there were pieces."""
        position = await publish(self.raw, lane, body, headers)
        assert position is not None, "the broker went away in a scenario where it should not"
        self.record.rubbish.append(Rubbish(body))

    @property
    def raw(self) -> Raw:
        if self._raw is None:
            self._raw = raw_publisher(self.server.kind, self.server.url, self.prefix)
        return self._raw

    # -------------------------------------------------------------------------------------- verdict

    async def verdict(self, patience_s: float = SETTLE_S) -> list[Violation]:
        """What the checker finds once everything has been settled, or cannot be any more."""
        self.record.transcripts = [*self._before[2], *self.transcripts()]
        end, before = time.monotonic() + patience_s, list[Violation]()
        while True:
            found = await asyncio.to_thread(check, self.record, self.server.url, self.prefix)
            over = found == before and not any(violation.rule in _UNFINISHED for violation in found)
            if not found or over or time.monotonic() > end:
                return found
            before = found
            await asyncio.sleep(0.3)

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()


def _prompt(beginning: str, *, large: bool) -> str:
    return beginning.ljust(_LARGE, ".") if large else beginning
