"""What one owner knows of one partition, from its fence until it loses it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headrace.broker.contract import OpenOutcome
from headrace.broker.message import Delivery
from headrace.broker.names import Names
from tests.support.memory_codec import Decoded, Undecodable, decode_record, log_key, moves
from tests.support.memory_events import LogState, restore
from tests.support.memory_topics import Committed, Partition, PartitionId, parse_position


@dataclass(frozen=True, slots=True)
class Claim:
    """`Delivery.handle`: the record that carries the delivery, and the tenure under which it was taken."""

    partition: PartitionId
    offset: int
    tenure: int


def claim_of(delivery: Delivery) -> Claim:
    assert isinstance(delivery.handle, Claim), "a delivery of another adapter"
    return delivery.handle


@dataclass(slots=True)
class Entry:
    """One request as its owner knows it: the log restored at the fence, and what it wrote itself since."""

    log: LogState
    epoch: int = 0  # given by the last `open`; 0: not opened in this tenure
    runner: Claim | None = None  # the delivery that runs it here and now
    runner_hash: bytes = b""


@dataclass(slots=True)
class Tenure:
    """An owner's time with a partition.

    `epoch` is that of the partition's fence, `fenced` its offset; `top_epoch` the highest that this owner
    committed (a second `open` takes a new one for its request alone). `next` is the fetch position. A zombie
    has a tenure too: it cannot know that another one has begun.
    """

    partition: Partition
    epoch: int
    fenced: int
    committed: Committed
    top_epoch: int
    fenced_ms: int
    next: int
    returned: list[int] = field(default_factory=list)
    held: dict[int, Delivery] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    held_before: int = field(init=False)  # below this offset a former owner may have had it

    def __post_init__(self) -> None:
        self.held_before = self.partition.requests.end if self.epoch > 1 else 0

    def entry(self, key: str) -> Entry:
        """Restored at its first use; between our fence and that moment nobody could write."""
        if key not in self.entries:
            self.entries[key] = Entry(restore(self.partition.events, key, self.fenced + 1))
        return self.entries[key]

    def holds(self, delivery: Delivery) -> bool:
        claim = claim_of(delivery)
        return claim.tenure == self.epoch and claim.offset in self.held

    # ------------------------------------------------------------------------------------------ fetch

    def fetchable(self, names: Names) -> Iterator[tuple[int, Decoded | Undecodable]]:
        """Records to deliver: first those handed back, then what follows the fetch position."""
        waiting = [*sorted(self.returned), *range(self.next, self.partition.requests.end)]
        for offset in waiting:
            if not self.committed.finished(offset):
                record = self.partition.requests.at(offset)
                yield offset, decode_record(record, self.partition.id, offset, names)

    def take(self, offset: int, decoded: Decoded) -> Delivery:
        """The delivery of a record that is now held."""
        began = self.entry(log_key(decoded.ref)).log.fold.started is not None
        if offset in self.returned:
            self.returned.remove(offset)
        self.next = max(self.next, offset + 1)
        delivery = Delivery(
            message=decoded.message,
            ref=decoded.ref,
            position=decoded.position,
            record=f"{self.partition.id}/{offset}",
            published_ms=decoded.published_ms,
            handle=Claim(self.partition.id, offset, self.epoch),
            # Kafka counts no deliveries: log and delay topic tell for sure, the place of the record perhaps.
            redelivered=decoded.forwarded or began or offset < self.held_before,
        )
        self.held[offset] = delivery
        return delivery

    def give_back(self, offset: int) -> None:
        """Ends the hold, unfinished: whoever fetches next gets it, this owner or its successor."""
        del self.held[offset]
        self.returned.append(offset)

    # ------------------------------------------------------------------------------------------- open

    def judge(self, delivery: Delivery, names: Names) -> OpenOutcome:
        """What a delivery is, by the log and by what runs here: the rule for twins. What `moved_away` says
        comes before it."""
        entry = self.entry(log_key(delivery.ref))
        known_hash = self._known_hash(entry)
        if known_hash and known_hash != delivery.message.body_hash:
            return OpenOutcome.CONFLICT
        if entry.log.fold.ended:
            return OpenOutcome.ENDED
        if self._is_elsewhere(delivery):
            return OpenOutcome.TWIN
        if entry.runner is not None:
            return OpenOutcome.RUN if entry.runner == delivery.handle else OpenOutcome.TWIN
        started = entry.log.fold.started
        if started is None or started.delivery == delivery.position:
            return OpenOutcome.RUN
        return OpenOutcome.TWIN if self._comes_again(started.delivery, names) else OpenOutcome.RUN

    def moved_away(self, delivery: Delivery) -> bool:
        """Whether an owner of this very record died in the middle of handing it to another pool."""
        departure = self.entry(log_key(delivery.ref)).log.departure
        claim = claim_of(delivery)
        return departure is not None and departure.carrier == claim.offset and self._is_elsewhere(delivery)

    def _is_elsewhere(self, delivery: Delivery) -> bool:
        """Whether the request went to another pool, and this is not the record with which it came back."""
        departure = self.entry(log_key(delivery.ref)).log.departure
        claim = claim_of(delivery)
        return departure is not None and moves(self.partition.requests.at(claim.offset)) < departure.moves

    def start(self, delivery: Delivery, epoch: int) -> None:
        """From now on this delivery runs its request."""
        entry = self.entry(log_key(delivery.ref))
        claim = claim_of(delivery)
        entry.epoch, entry.runner, entry.runner_hash = epoch, claim, delivery.message.body_hash

    def finish(self, offset: int) -> Committed:
        """The commit that completes a record."""
        return replace(self.committed.finish(offset), epoch=self.top_epoch)

    def _known_hash(self, entry: Entry) -> bytes:
        if entry.runner is not None:
            return entry.runner_hash
        started, departure = entry.log.fold.started, entry.log.departure
        if started is not None:
            return started.body_hash
        return b"" if departure is None else departure.body_hash

    def _comes_again(self, position: str, names: Names) -> bool:
        """Whether the delivery that began the request is unfinished, so that it will be delivered again.

        If its record is finished and the log has no end, it went by way of a delay topic, or ended without
        a terminal record. Then the delivery at hand runs the request; the other one, when it comes, will be
        the twin.
        """
        place = parse_position(names, position)
        return place is not None and place[0] == self.partition.id and not self.committed.finished(place[1])
