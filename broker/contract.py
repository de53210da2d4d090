"""The queue contract that all adapters keep (`tests/contract` holds each of them to it).

Publishers, readers and consumers meet only here:

    publisher ── publish ──► request queue ── pull ──► consumer ── open ── append… ── settle
    reader    ── watch ◄──── log of the request ◄──────────┘                            │
    reader    ── results ◄── result topic ◄─────────────────────────────────────────────┘

What every adapter promises:

1. A publish that returned is durable. The same id with the same body is one request (on Kafka: within its
   partition, that is, published to the same lane under the same hash).
2. A delivery that is not settled comes back, on this or another consumer, once its lease lapses. Leases
   are renewed by `heartbeat`, which the caller must call at least every quarter of the lease.
3. `open` fences before it reads: after it returned, no event of an older owner can become visible, and
   the fold that it returns is exactly what readers have been shown.
4. `append` and `settle` of a writer whose epoch was overtaken change nothing that a reader can see. `settle`
   answers `False`, `append` does so where the broker can tell (Kafka stores the events, void).
5. `settle` is atomic: result line and acknowledgement happen together or not at all. Where a writer dies
   after its terminal record and before them (possible on Kafka), the next delivery opens as ENDED and its
   `Done()` emits the line that the adapter keeps beside the terminal record. Each request gets exactly one
   visible terminal record and one result line, however often it is delivered.

Errors: what a broker refuses or cannot do is a `BrokerError` with a sentence (see `errors`); a delivery
that cannot be understood never reaches the caller, the adapter dead-letters it.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from headrace.broker.events import Event, Logged, Terminal
from headrace.broker.fold import Fold
from headrace.broker.message import DEFAULT_POOL, Delivery, Lane, Message, RequestRef

# ------------------------------------------------------------------------------------------ publishing


class Published(msgspec.Struct, frozen=True):
    """Receipt of a publish. `duplicate`: the request was known (same id, same body); nothing was added.
    Kafka cannot look up an id: the repeated message is added, and opens as a TWIN."""

    ref: RequestRef
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """The id is taken by a request with another body; nothing was published. (Kafka finds this at `open`.)"""

    ref: RequestRef


PublishResult: TypeAlias = Published | Conflict


class CancelResult(enum.Enum):
    """What became of a cancellation: marked, too late, or aimed at an id that the broker does not know.

    An unknown id is marked all the same (it may stand in a queue under an id that no index holds); the
    mark counts only for entries published before it.
    """

    MARKED = "marked"
    ENDED = "ended"
    UNKNOWN = "unknown"


# ------------------------------------------------------------------------------------------- consuming


class OpenOutcome(enum.Enum):
    """Why a delivery was, or was not, opened.

    RUN       this consumer owns the request under `epoch`: run it, from `state` on.
    ENDED     its terminal record stands already: settle with `Done()`.
    TWIN      another delivery of the same id and body runs it: settle with `Done()`.
    CONFLICT  the id belongs to a request with another body: settle with `DeadLetter`, nothing else.
    LOST      the lease is gone, somebody else has the delivery: forget it. (A Kafka consumer may not know
              yet, and get RUN under an epoch that is overtaken: promise 4.)
    """

    RUN = "run"
    ENDED = "ended"
    TWIN = "twin"
    CONFLICT = "conflict"
    LOST = "lost"


class Opened(msgspec.Struct, frozen=True):
    """Answer of `open`. `state` is the fold of the log up to the fence; `now_ms` the broker's unix time."""

    outcome: OpenOutcome
    epoch: int = 0
    state: Fold | None = None
    cancelled: bool = False
    now_ms: int = 0


class Append(msgspec.Struct, frozen=True):
    """Events to add to the log of a delivery that was opened with RUN. All carry `epoch`; none is terminal,
    since terminal records go through `settle`.

    `chunks`: lines for the delivery's reply topic, where it asks for a stream there. Redis emits them in
    the same step, so each once. Kafka emits them beside the transactions, at least once: a chunk says where
    in the answer it stands (see `lines.output.chunk_line`), and whoever took the request over says all so
    far again.
    """

    delivery: Delivery
    epoch: int
    events: Sequence[Event]
    chunks: Sequence[bytes] = ()


class Done(msgspec.Struct, frozen=True):
    """Acknowledge. With `terminal`: append it first and emit `line` (bytes of one output line) as result.

    `events`, only with `terminal`: what its log lacks so far, put before it, so that a short request costs
    one call. Redis appends all in the same step; Kafka in one go, of which a crash may leave a front part.
    """

    terminal: Terminal | None = None
    line: bytes | None = None
    events: Sequence[Event] = ()


class Retry(msgspec.Struct, frozen=True):
    """Deliver again after `delay_ms`, by the broker's clock, under the same position, id and log. (Kafka: its
    delay topics have set lengths; it takes the shortest that is long enough, or the longest there is.)"""

    delay_ms: int
    reason: str


class Release(msgspec.Struct, frozen=True):
    """Hand the delivery back now, so that another consumer takes it over without waiting for the lease: at
    once, or (Kafka, where partitions have one owner) as soon as this session closes. Until then the same
    session may pull it again."""

    reason: str = "handed back"


class DeadLetter(msgspec.Struct, frozen=True):
    """Move the untouched message to the dead letters. With `terminal`: end the log and emit `line` too."""

    reason: str
    terminal: Terminal | None = None
    line: bytes | None = None


class PassOn(msgspec.Struct, frozen=True):
    """Hand the message on to another pool, under the same position, id and lane; its log says so (`moved`)
    and goes on there. Only before any token of it was made."""

    pool: str


Settlement: TypeAlias = Done | Retry | Release | DeadLetter | PassOn


@dataclass(frozen=True, slots=True)
class Serves:
    """What a consumer says of itself: names of its models, the preferred one first, and how many requests it
    runs at a time."""

    models: tuple[str, ...]
    slots: int


class ConsumerSession(Protocol):
    """One consumer process's right to take requests, made by `Broker.consume`. One `pull` at a time; all
    other calls may overlap with it and with one another, but those of one delivery come in order."""

    @property
    def name(self) -> str:
        """Unique per process start."""

    @property
    def lease_ms(self) -> int: ...

    async def pull(self, limit: int, wait_ms: int, *, reserved: int = 0) -> list[Delivery]:
        """Up to `limit` deliveries, lapsed ones of dead consumers included, by order of lanes (`lanes`), none
        from lanes that are paused; waits up to `wait_ms` when there are none. The last `reserved` of `limit`
        are for the interactive lane. Never returns a delivery that this session holds."""

    async def announce(self, serves: Serves) -> None:
        """Enters this consumer into the registry, or changes what stands there. `heartbeat` keeps the entry
        alive, `close` removes it."""

    async def heartbeat(self) -> list[Delivery]:
        """Renews the leases of all held deliveries; returns those that were lost (forget them): the very
        objects, since the same delivery may have been pulled anew since."""

    async def open(self, delivery: Delivery) -> Opened:
        """Fences, then reads; see `OpenOutcome`. Opening again raises the epoch of this request again."""

    async def append(self, batch: Sequence[Append]) -> list[bool]:
        """Appends in one round trip; per item whether it is in the log (see promise 4). All events of an item
        or none."""

    async def settle(self, delivery: Delivery, epoch: int, settlement: Settlement) -> bool:
        """Ends the hold on a delivery. `epoch` is that of `open`, 0 for outcomes that opened nothing. Release
        and Retry of an opened delivery append `handed`. False: refused, somebody else owns it now; forget
        it."""

    def cancellations(self) -> AsyncIterator[RequestRef]:
        """Requests whose cancellation was asked for from now on, whoever holds them."""

    async def close(self) -> None:
        """Gives up the session. Deliveries still held come back when their lease lapses, or sooner."""


# --------------------------------------------------------------------------------- reading, looking on


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One entry of a result topic. `cursor`: pass it back to go on behind it."""

    cursor: str
    line: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message nobody could or should run: its bytes as they came, why, and where it came from. `origin` is
    the position where it stood; `headers` are its own, those that the adapter understands included."""

    position: str
    origin: str
    reason: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """How many deliveries of a lane wait, and whether it is paused."""

    waiting: int
    paused: bool = False


@dataclass(frozen=True, slots=True)
class LaneStats:
    """`waiting`: not delivered yet; `leased`: with a consumer; `oldest_ms`: age of the oldest waiting;
    `paused`: nobody takes from it until it is resumed."""

    waiting: int
    leased: int
    oldest_ms: int
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds how many deliveries of a lane, and how long ago it last showed a sign of life."""

    lane: Lane
    consumer: str
    held: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    lanes: dict[Lane, LaneStats]
    leases: list[Lease]
    retrying: int
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Stray:
    """A queue with `entries` that no consumer takes from: its name ends in no lane, or names a pool that
    never had consumers. Publishers that are no clients of ours can write where they like."""

    queue: str
    entries: int


@dataclass(frozen=True, slots=True)
class ConsumerEntry:
    """One consumer in the registry. `idle_ms`: since its last sign of life; one that is silent for longer
    than its lease is left out."""

    name: str
    pool: str
    lanes: tuple[Lane, ...]
    serves: Serves
    idle_ms: int


class Broker(Protocol):
    """A connection to the queue, for publishers and readers, and the maker of consumer sessions."""

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Publishes in one round trip; returns once all are durable. A message without id gets its
        position as id."""

    def place(self, lane: Lane, pool: str = DEFAULT_POOL) -> int:
        """A place for the log of a new request of this process (see `ids`): one that it reads anyway."""

    async def cancel(self, ref: RequestRef) -> CancelResult: ...

    def watch(self, ref: RequestRef, cursor: str = "") -> AsyncIterator[Logged]:
        """The log of a request from its beginning, void events included (feed all of them to a `Fold`),
        then what is appended, until the first terminal event has been yielded. With `cursor`, the events up
        to it are yielded all the same: the caller folds them silently. Buffers are bounded; a reader that is
        slow re-reads the log instead. An unknown cursor raises `UnknownCursor`, and so does a log whose time
        is over before it was read to its end."""

    async def ping(self) -> None:
        """Returns once the broker has answered anything; raises BrokerError where it does not. May be asked
        every second."""

    async def known(self, ref: RequestRef) -> bool:
        """Whether the broker holds an index or a log of this request."""

    def results(self, topic: str | None = None, cursor: str = "") -> AsyncIterator[ResultLine]:
        """Lines of a result topic (None: the default one), from its start or behind `cursor`, for ever."""

    async def trim_results(self, topic: str, cursor: str) -> None:
        """Drops the lines of a reply topic up to and including `cursor`: its only reader has stored them."""

    async def dead_letters(self, limit: int = 100) -> list[DeadLettered]:
        """The latest ones, oldest first."""

    def each_dead_letter(self) -> AsyncGenerator[DeadLettered, None]:
        """All that are there now, oldest first, read page by page: however many there are, few are held.
        What is discarded meanwhile may still come, or not. Close it where it is not read to its end."""

    async def dead_letter(self, position: str) -> DeadLettered | None: ...

    async def replay(self, position: str) -> RequestRef | None:
        """Puts a dead letter on its lane again, as a new request: its log has ended. The id is new, the
        header `replay-of` names the old one; the letter is then discarded. None: there is no such letter."""

    async def discard(self, positions: Sequence[str]) -> int:
        """Removes dead letters; returns how many there were."""

    async def stats(self, pool: str = DEFAULT_POOL) -> QueueStats: ...

    async def depths(self, pool: str = DEFAULT_POOL) -> dict[Lane, LaneDepth]:
        """The part of `stats` that is cheap: for who asks again and again."""

    async def pools(self) -> list[str]:
        """Pools that have, or had, consumers or requests; the default one is always among them."""

    async def strays(self) -> list[Stray]:
        """Queues of our prefix that nobody reads, by name, as far as they can be found without much ado."""

    async def pause(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        """No consumer takes from this lane any more; what runs goes on. Durable, until `resume`."""

    async def resume(self, lane: Lane, pool: str = DEFAULT_POOL) -> None: ...

    async def consumers(self) -> list[ConsumerEntry]:
        """The registry, of all pools."""

    async def consume(
        self, lanes: Sequence[Lane], lease_ms: int, *, pool: str = DEFAULT_POOL
    ) -> ConsumerSession: ...

    async def close(self) -> None: ...
