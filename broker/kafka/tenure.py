"""What one owner knows of one request partition, from its fence until it loses it.

Pure: no thread, no clock, no network. `KafkaSession` drives it from the event loop alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from headrace.broker.contract import OpenOutcome
from headrace.broker.kafka.buffer import Buffer
from headrace.broker.kafka.claims import Claim, Run, claim_of
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import Decoded, Undecodable, decode_record
from headrace.broker.kafka.commits import Committed, Progress
from headrace.broker.kafka.departures import moves_of
from headrace.broker.kafka.epochs import Log, PartitionLogs
from headrace.broker.kafka.places import LogPlace, Position, log_key, parse_position
from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.message import Delivery
from headrace.broker.names import Names

FENCE_EVERY_MS = 5_000
_ENOUGH = 100  # fetched records, for whoever looks whether there are any
# How far beyond what it had finished a former owner may have held deliveries: windows are mostly smaller.
HELD_AHEAD = 1_024
STATE_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that is no message."""

    record: ConsumerRecord
    reason: str


@dataclass(eq=False, slots=True)
class Tenure:
    """An owner's time with a partition.

    `epoch` is that of the partition's fence; `top_epoch` the highest that this owner committed (a second
    `open` takes a new one for its request alone). `known_end`: how far requests are known to stand. `member`:
    the membership under which it was assigned. `leaving`: nothing more begins. `gone`: it is over.
    `most_bytes`: of a record that is taken. `fenced_ms`: see `steady_ms`.
    A zombie has a tenure too: it cannot know that another one has begun.
    """

    topics: LaneTopics
    number: int
    names: Names
    epoch: int
    committed: Committed
    logs: PartitionLogs
    known_end: int
    member: str
    fenced_ms: int = 0
    top_epoch: int = 0
    leaving: bool = False
    gone: bool = False
    most_bytes: int | None = None
    held: dict[int, Delivery] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    progress: Progress = field(init=False)
    buffer: Buffer = field(init=False)
    returned: dict[int, ConsumerRecord] = field(default_factory=dict)
    _held_before: int = field(init=False)  # below this offset a former owner may have had it
    _known_head: tuple[ConsumerRecord, Decoded | Undecodable] | None = None

    def __post_init__(self) -> None:
        self.top_epoch = max(self.top_epoch, self.epoch)
        self.progress = Progress(self.committed)
        self.buffer = Buffer(self.committed.base)
        ahead = max(self.committed.beyond, default=self.committed.base) + HELD_AHEAD
        self._held_before = min(ahead, self.known_end) if self.epoch > 1 else 0

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topics.requests, self.number)

    @property
    def place(self) -> LogPlace:
        return LogPlace(self.topics.lane, self.topics.pool, self.number)

    # ------------------------------------------------------------------------------------------ fetching

    def fetched(self, records: Iterable[ConsumerRecord]) -> None:
        """Records of the partition, in the order of their offsets."""
        self.buffer.add(records)

    @property
    def behind(self) -> bool:
        """Whether there is more than what was fetched, as far as we know, and it is on its way."""
        return len(self.buffer) < _ENOUGH and self.buffer.next < self.known_end

    def oldest_ms(self) -> int | None:
        """Time of the record that comes next; None where no delivery can be taken."""
        record = self._head()
        if record is None or isinstance(self._decoded_head(record), Undecodable):
            return None
        return int(record.timestamp)

    def take_bad(self) -> list[Bad]:
        """Takes those at the head that are no messages; the caller buries them."""
        taken: list[Bad] = []
        while (record := self._head()) is not None:
            decoded = self._decoded_head(record)
            if not isinstance(decoded, Undecodable):
                break
            taken.append(Bad(record, decoded.reason))
            self._drop(record)
        return taken

    def take(self) -> Delivery:
        """Takes the delivery that comes next (see `oldest_ms`); it is held from now on."""
        record = self._head()
        assert record is not None
        decoded = self._decoded_head(record)
        assert isinstance(decoded, Decoded)
        self._drop(record)
        key = log_key(decoded.ref)
        log = self.logs.logs.get(key)
        began = key in self.logs.ended or (log is not None and log.fold.started is not None)
        delivery = Delivery(
            message=decoded.message,
            ref=decoded.ref,
            position=decoded.position,
            record=self.position(record.offset),
            published_ms=decoded.published_ms,
            handle=Claim(self, record, decoded),
            # Kafka counts no deliveries: log and delay topic tell for sure, the place of the record perhaps.
            redelivered=decoded.forwarded or began or record.offset < self._held_before,
        )
        self.held[record.offset] = delivery
        return delivery

    def give_back(self, claim: Claim) -> None:
        """Ends the hold, unfinished: whoever fetches next gets it, this owner or its successor."""
        del self.held[claim.offset]
        self.returned[claim.offset] = claim.record

    def blocking(self) -> Delivery | None:
        """The delivery that keeps all others from going ahead: its record is the base, and the window beyond
        it is full. None where there is none, or where it is just ending."""
        delivery = None if self.progress.room else self.held.get(self.progress.base)
        if delivery is None or claim_of(delivery).settling or self.log(delivery).fold.ended:
            return None
        # The end that its log may hold, or the move that it does, names this very record as its carrier.
        if self.in_doubt(log_key(delivery.ref)) or self.moved_away(delivery):
            return None
        return delivery

    def holds(self, delivery: Delivery) -> bool:
        claim = claim_of(delivery)
        return not self.gone and self.held.get(claim.offset) is delivery

    def _head(self) -> ConsumerRecord | None:
        if self.returned:
            return self.returned[min(self.returned)]
        while self.buffer and self.progress.room:
            record = self.buffer.first
            if not self.progress.finished(record.offset):
                return record
            self.buffer.drop()
            self.progress.see(record.offset)
        return None

    def _decoded_head(self, record: ConsumerRecord) -> Decoded | Undecodable:
        if self._known_head is None or self._known_head[0] is not record:
            self._known_head = record, decode_record(record, self.place, self.names, self.most_bytes)
        return self._known_head[1]

    def _drop(self, record: ConsumerRecord) -> None:
        """The head, from where it waits."""
        if self.returned.pop(record.offset, None) is None:
            self.buffer.drop()
            self.progress.see(record.offset)

    # ----------------------------------------------------------------------------------------- the log

    def log(self, delivery: Delivery) -> Log:
        return self.logs.log(log_key(delivery.ref))

    def run_of(self, delivery: Delivery) -> Run | None:
        return self.runs.get(log_key(delivery.ref))

    def runs_it(self, delivery: Delivery, epoch: int) -> bool:
        """Whether this delivery runs its request, under that epoch."""
        run = self.run_of(delivery)
        return run is not None and run.claim is delivery.handle and run.epoch == epoch

    def judge(self, delivery: Delivery) -> OpenOutcome:
        """What a delivery is, by the log and by what runs here: the rule for twins. What `moved_away` says
        comes before it."""
        key = log_key(delivery.ref)
        log, run = self.logs.logs.get(key), self.runs.get(key)
        known = self._known_hash(key, log, run)
        if known and not delivery.message.body_hash.startswith(known):
            return OpenOutcome.CONFLICT
        if key in self.logs.ended or (log is not None and log.fold.ended):
            return OpenOutcome.ENDED
        if self._is_elsewhere(delivery):
            return OpenOutcome.TWIN
        if run is not None and run.claim is not None and self._may_run(key, run.claim):
            return OpenOutcome.RUN if run.claim is delivery.handle else OpenOutcome.TWIN
        started = None if log is None else log.fold.started
        if started is None or started.delivery == delivery.position:
            return OpenOutcome.RUN
        return OpenOutcome.TWIN if self._comes_again(started.delivery) else OpenOutcome.RUN

    def moved_away(self, delivery: Delivery) -> bool:
        """Whether an owner of this very record died in the middle of handing it to another pool."""
        # Of a departure that lies further back the copy has been here again: the record is a twin of it.
        log = self.logs.logs.get(log_key(delivery.ref))
        departure = None if log is None else log.departure
        claim = claim_of(delivery)
        return departure is not None and departure.carrier == claim.offset and self._is_elsewhere(delivery)

    def _is_elsewhere(self, delivery: Delivery) -> bool:
        """Whether the request went to another pool, and this is not the record with which it came back."""
        return self._has_left(log_key(delivery.ref), claim_of(delivery))

    def _may_run(self, key: str, claim: Claim) -> bool:
        """Whether a request that this record runs is still in its hands."""
        return not self._has_left(key, claim) and not self.progress.finished(claim.offset)

    def _has_left(self, key: str, claim: Claim) -> bool:
        departure = self.logs.departure(key)
        return departure is not None and moves_of(claim.record) < departure.moves

    def start(self, delivery: Delivery, epoch: int) -> None:
        """From now on this delivery runs its request."""
        claim = claim_of(delivery)
        self.runs[log_key(delivery.ref)] = Run(epoch, claim, delivery.message.body_hash)

    def doubt(self, key: str, since: int) -> None:
        """The fate of an append is unknown: only the log tells, once it is fenced anew. `since`: below that
        offset it cannot stand."""
        run = self.runs.get(key)
        if run is not None:
            run.doubtful = True
            self.logs.keep(key, since)

    def in_doubt(self, key: str) -> bool:
        """Whether its log may hold more than we know."""
        run = self.runs.get(key)
        return run is not None and run.doubtful

    def end_run(self, delivery: Delivery) -> None:
        """Nobody runs the request any more. Its epoch is kept: opened again, it needs a new one."""
        run = self.run_of(delivery)
        if run is not None and run.claim is delivery.handle:
            run.claim = None

    def settled(self, delivery: Delivery) -> None:
        """The record is finished, and that is committed: nobody holds it or runs its request any more, though
        its caller gave up waiting, and whoever took it again meanwhile."""
        offset, run = claim_of(delivery).offset, self.run_of(delivery)
        self.held.pop(offset, None)
        self.returned.pop(offset, None)
        if run is not None and run.claim is not None and run.claim.offset == offset:
            run.claim = None
        self._tidy(log_key(delivery.ref))

    def tidy(self) -> None:
        """After a restore: of those that are over, only what twins must know is kept."""
        for key in list(self.logs.logs):
            self._tidy(key)

    def _tidy(self, key: str) -> None:
        log = self.logs.logs.get(key)
        if log is None:
            return
        beside = log.state.closing if log.fold.ended else log.departure
        over = log.fold.ended or log.departure is not None
        if over and (beside is None or self.progress.finished(beside.carrier)):
            self.logs.forget(key)
            if key in self.runs and self.runs[key].claim is None:  # or it has come back, and runs
                del self.runs[key]
        else:
            self.logs.drop_unused(key)

    def commit(self, also: Iterable[int] = ()) -> Committed:
        """What to commit, with the records `also` finished."""
        done = self.progress.committed(also)
        return Committed(done.base, done.beyond, self.top_epoch, self.logs.restore_offset())

    def finish(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.progress.finish(offset)

    def position(self, offset: int) -> str:
        return Position(self.place, offset).text(self.names)

    def _known_hash(self, key: str, log: Log | None, run: Run | None) -> bytes:
        if run is not None and run.claim is not None:
            return run.body_hash
        if (ended := self.logs.ended.hash_of(key)) is not None:
            return ended
        started, departure = None if log is None else log.fold.started, self.logs.departure(key)
        if started is not None:
            return started.body_hash
        return b"" if departure is None else departure.body_hash

    def _comes_again(self, position: str) -> bool:
        """Whether the delivery that began the request is unfinished, so that it will be delivered again.

        If its record is finished and the log has no end, it went by way of a delay topic, or ended without a
        terminal record. Then the delivery at hand runs the request; the other one, when it comes, will be the
        twin.
        """
        where = parse_position(self.names, position)
        return where is not None and where.place == self.place and not self.progress.finished(where.offset)
