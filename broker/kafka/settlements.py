"""How an owner ends its hold on a delivery: events first, then one transaction.

What a successor must know to complete it stands beside the events: see `Closing` and `Departure`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import structs

from headrace.broker.contract import DeadLetter, Done, PassOn, Release, Retry, Settlement
from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.events import Event, Handed, Moved, Terminal
from headrace.broker.kafka.appender import Appender, Entry
from headrace.broker.kafka.claims import Claim, claim_of
from headrace.broker.kafka.codec import (
    Record,
    dead_letter_record,
    delayed_headers,
    forwarded_headers,
    letter_head,
    result_record,
    size_of,
)
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.departures import Departure, moved_header, moves_of
from headrace.broker.kafka.epochs import Beside
from headrace.broker.kafka.event_records import Closing
from headrace.broker.kafka.failures import too_large
from headrace.broker.kafka.items import Item
from headrace.broker.kafka.places import LogPlace, log_key
from headrace.broker.kafka.settle import Settler
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.message import Delivery, Message

logger = logging.getLogger(__name__)


class Settlements:
    """The settlements of one session. False means that another one owns the partition now."""

    def __init__(self, connection: Connection, appender: Appender, settler: Settler) -> None:
        self._at, self._appender, self._settler = connection, appender, settler

    async def settle(self, tenure: Tenure, delivery: Delivery, epoch: int, settlement: Settlement) -> bool:
        """What was begun goes on, whatever is asked for then: a settlement that its caller gave up waiting
        for, a move that stands in the log."""
        if (settled := await self.under_way(tenure, delivery)) is not None:
            return settled
        if tenure.moved_away(delivery):
            return await self.complete_move(tenure, delivery)
        if not isinstance(settlement, Release) and _doubts(tenure, delivery):
            raise BrokerUnavailable(f"the log of {delivery.ref.request_id} is in doubt; open it again")
        log = tenure.logs.logs.get(log_key(delivery.ref))
        if isinstance(settlement, Retry | PassOn) and log is not None and log.fold.ended:
            settlement = Done()  # its line goes with this very record
        match settlement:
            case Done() | DeadLetter():
                return await self._conclude(tenure, delivery, settlement)
            case Release(reason):
                await self.hand_back(tenure, delivery, epoch, reason)
                if tenure.holds(delivery):
                    tenure.give_back(claim_of(delivery))
                return True
            case Retry(delay_ms, reason):
                await self.hand_back(tenure, delivery, epoch, reason)
                return await self._complete(tenure, delivery, [self._delayed(delivery, delay_ms, reason)])
            case PassOn(pool):
                return await self._pass_on(tenure, delivery, epoch, pool)

    async def under_way(self, tenure: Tenure, delivery: Delivery) -> bool | None:
        """Waits for the settlement of its record that was begun before, and answers as that one does. None:
        there is none, or what it was to emit can never be."""
        return await self._under_way(tenure, claim_of(delivery))

    async def runner_under_way(self, tenure: Tenure, delivery: Delivery) -> None:
        """Waits likewise for the settlement of the one that runs its request: if that is put off, this may be
        the very copy, which came back before the answer of the transaction that sent it."""
        run = tenure.run_of(delivery)
        if run is not None and run.claim is not None:
            await self._under_way(tenure, run.claim)

    async def _under_way(self, tenure: Tenure, claim: Claim) -> bool | None:
        if tenure.progress.finished(claim.offset):  # who waited for it hears of that in a moment
            return True
        begun = self._settler.under_way(tenure, claim.offset)
        if begun is None:
            return None
        try:
            return await self._settler.add(begun)
        except (BrokerUnavailable, BrokerRefused):
            raise
        except BrokerError:
            return None

    async def append(self, tenure: Tenure, key: str, events: Sequence[tuple[Event, Beside]]) -> None:
        """Appends to the log of a request. When it raises, nobody knows what stands there: the request has
        to be opened again."""
        await self._appender.append([Entry(tenure, key, event, beside) for event, beside in events])

    async def hand_back(self, tenure: Tenure, delivery: Delivery, epoch: int, reason: str) -> None:
        if epoch:
            await self.append(tenure, log_key(delivery.ref), [(Handed(epoch, reason), None)])

    # ------------------------------------------------------------------------------------------ the end

    async def _conclude(self, tenure: Tenure, delivery: Delivery, settlement: Done | DeadLetter) -> bool:
        if settlement.terminal is not None:
            await self._append_terminal(tenure, delivery, settlement.terminal, settlement)
        records = await self._records(tenure, delivery, settlement)
        return await self._emit(tenure, delivery, settlement, records)

    async def _emit(
        self, tenure: Tenure, delivery: Delivery, settlement: Done | DeadLetter, records: Sequence[Record]
    ) -> bool:
        try:
            return await self._complete(tenure, delivery, records)
        except (BrokerUnavailable, BrokerRefused):
            raise
        except BrokerError as error:
            others = await self._records(tenure, delivery, settlement)
            if [each.topic for each in others] != [each.topic for each in records]:
                return await self._emit(tenure, delivery, settlement, others)  # its topic was closed to us
            # Its end stands in the log: a line that its topic does not take must not hold it up.
            logger.error("what tells of the end of %s is lost: %s", delivery.ref.request_id, error)
            letters = [letter_head(each) for each in records if each.topic == self._at.names.dead_letters]
            return await self._complete(tenure, delivery, letters)

    async def _records(
        self, tenure: Tenure, delivery: Delivery, settlement: Done | DeadLetter
    ) -> list[Record]:
        records = await self._closing_records(tenure, delivery)
        if isinstance(settlement, DeadLetter) and settlement.terminal is None:
            records.append(self._letter(delivery, settlement.reason))
        return records

    async def _append_terminal(
        self, tenure: Tenure, delivery: Delivery, terminal: Terminal, settlement: Done | DeadLetter
    ) -> None:
        """The terminal record, behind the events that come before it, and with all that its transaction will
        emit beside it (see `Closing`). Raises BrokerUnavailable where it counts for nothing: a record whose
        request has no end must not be completed."""
        if tenure.log(delivery).fold.ended:
            return
        if settlement.line is not None:
            line = result_record(delivery.message, delivery.ref, settlement.line, self._at.names)
            if size_of(line) > self._at.settings.max_sent_bytes:
                raise too_large()  # while something else can still be said
        dead_letter = settlement.reason if isinstance(settlement, DeadLetter) else None
        closing = Closing(claim_of(delivery).offset, settlement.line, dead_letter)
        before = settlement.events if isinstance(settlement, Done) else ()
        events = [*((event, None) for event in before), (terminal, closing)]
        await self.append(tenure, log_key(delivery.ref), events)
        if not tenure.log(delivery).fold.ended:
            tenure.doubt(log_key(delivery.ref), tenure.logs.end)
            raise BrokerUnavailable(
                f"the end of {delivery.ref.request_id} stands below a higher fence; open it again"
            )

    async def _closing_records(self, tenure: Tenure, delivery: Delivery) -> list[Record]:
        """What completing this very record emits. Nothing for a twin, whoever ended the request."""
        log = tenure.logs.logs.get(log_key(delivery.ref))
        closing = None if log is None else log.state.closing
        if closing is None or closing.carrier != claim_of(delivery).offset:
            return []
        records = []
        if closing.line is not None:
            message = await self._answerable(delivery)
            records.append(result_record(message, delivery.ref, closing.line, self._at.names))
        if closing.dead_letter is not None:
            records.append(self._letter(delivery, closing.dead_letter))
        return records

    async def _answerable(self, delivery: Delivery) -> Message:
        """The message, without a reply topic that the cluster does not let us make or write to: the request
        has ended and is not held up, and its line goes to the results of all, so that it is not lost."""
        message = delivery.message
        if message.reply_to is None:
            return message
        try:
            await self._at.topics.reply_to(message.reply_to)
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            logger.warning("the line of %s goes to the results of all: %s", delivery.ref.request_id, error)
            return structs.replace(message, reply_to=None)
        return message

    def _letter(self, delivery: Delivery, reason: str) -> Record:
        return dead_letter_record(claim_of(delivery).record, delivery.position, reason, self._at.names)

    # --------------------------------------------------------------------------------------- elsewhere

    def _delayed(self, delivery: Delivery, delay_ms: int, reason: str) -> Record:
        """For the shortest delay that is long enough, or the longest there is."""
        claim, delay = claim_of(delivery), self._at.settings.delay_for(delay_ms)
        topics = claim.tenure.topics
        due_ms = self._at.clock.now_ms() + delay.ms
        return Record(
            self._at.names.delayed(delay.name, topics.lane, topics.pool),
            claim.record.value,
            claim.record.key,
            delayed_headers(claim.record, claim.decoded, due_ms, reason),
            claim.tenure.number,
        )

    async def _pass_on(self, tenure: Tenure, delivery: Delivery, epoch: int, pool: str) -> bool:
        """Says so in the log, makes sure that it counts, and only then hands the record over: a copy that a
        zombie sent would be run there while its successor runs the request here."""
        assert epoch > 0, "its log says that it was passed on: open it first"
        lane, claim = tenure.topics.lane, claim_of(delivery)
        topics = await self._at.topics.lane(lane, pool)
        departure = Departure(claim.offset, moves_of(claim.record) + 1, delivery.message.body_hash)
        copy = _moved(claim, departure, topics)
        if size_of(copy) > self._at.settings.max_sent_bytes:  # what stands in the log cannot be taken back
            raise too_large()
        log = LogPlace(lane, pool, tenure.number % topics.partitions).text
        handed, moved = Handed(epoch, f"passed on to pool {pool!r}"), Moved(epoch, pool, log)
        await self.append(tenure, log_key(delivery.ref), [(handed, None), (moved, departure)])
        if not tenure.moved_away(delivery):
            tenure.doubt(log_key(delivery.ref), tenure.logs.end)
            raise BrokerUnavailable(f"{delivery.ref.request_id} did not move: open it again")
        return await self.complete_move(tenure, delivery)

    async def hand_on(self, tenure: Tenure, delivery: Delivery) -> None:
        """Ends the hold on a request that runs for so long that all others wait for it: its record goes to
        its lane again, at the same index, and is completed here. Whoever takes the copy resumes it."""
        claim, run = claim_of(delivery), tenure.run_of(delivery)
        epoch = run.epoch if run is not None and run.claim is claim else 0
        del tenure.held[claim.offset]
        tenure.end_run(delivery)
        headers = forwarded_headers(claim.record, claim.decoded)
        copy = Record(tenure.topics.requests, claim.record.value, claim.record.key, headers, tenure.number)
        try:
            await self.hand_back(tenure, delivery, epoch, "handed on: it ran for long")
            if not await self.confirm(tenure):
                return  # its owner of today may have finished it, long ago
            await self._at.publisher.send([copy])
            await self._complete(tenure, delivery)
        except BrokerError:
            tenure.returned[claim.offset] = claim.record
            raise

    async def confirm(self, tenure: Tenure) -> bool:
        """Whether the partition is still ours, and so all that we appended before is no zombie's: who takes
        it over must be assigned it first, and fence then."""
        return await self._settler.add(Item(tenure, None, []))

    async def complete_move(self, tenure: Tenure, delivery: Delivery) -> bool:
        """Once it is sure that the log says so for everybody: an acknowledged publish, then the offset. Who
        dies between them leaves a twin there."""
        if not await self.confirm(tenure):
            return False
        if not tenure.moved_away(delivery):  # meanwhile its copy has come back
            return await self._complete(tenure, delivery)
        log, claim = tenure.log(delivery), claim_of(delivery)
        assert log.departure is not None
        assert log.fold.moved is not None
        topics = await self._at.topics.lane(tenure.topics.lane, log.fold.moved.pool)
        await self._at.publisher.send([_moved(claim, log.departure, topics)])
        return await self._complete(tenure, delivery)

    async def _complete(self, tenure: Tenure, delivery: Delivery, records: Sequence[Record] = ()) -> bool:
        item = Item(tenure, claim_of(delivery).offset, records)
        # By then its caller may have given up waiting.
        item.done.add_done_callback(lambda done: tenure.settled(delivery) if _is_true(done) else None)
        return await self._settler.add(item)


def _moved(claim: Claim, departure: Departure, topics: LaneTopics) -> Record:
    """The record as it goes to another pool."""
    name, value = moved_header(departure)
    headers = [h for h in forwarded_headers(claim.record, claim.decoded) if h[0] != name]
    number = claim.tenure.number % topics.partitions
    return Record(topics.requests, claim.record.value, claim.record.key, [*headers, (name, value)], number)


def _doubts(tenure: Tenure, delivery: Delivery) -> bool:
    """Whether only its log can tell what an append of this delivery came to."""
    run = tenure.run_of(delivery)
    return run is not None and run.doubtful and run.claim is delivery.handle


def _is_true(done: asyncio.Future[bool]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result()
