"""Builds the script calls: which keys and arguments each takes. No I/O.

The dictionary of each call stands at the head of its file in `scripts/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.contract import Append, DeadLetter, Done, PassOn, Release, Retry, Settlement
from headrace.broker.events import Event, Handed, Moved, Terminal
from headrace.broker.lanes import Share
from headrace.broker.message import Delivery, Lane, Message, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.codec import Entry, chunk_fields, encode, result_fields
from headrace.broker.redis_streams.feeds import feed_number
from headrace.broker.redis_streams.link import Value
from headrace.broker.redis_streams.scripts import Call
from headrace.broker.redis_streams.settings import Retention
from headrace.broker.wire import encode_event

PAGE = 512  # entries of a log that are read at a time
RELEASED = "released"  # holds what was handed back, until a sweep takes it


def entry_of(delivery: Delivery) -> Entry:
    """Where a delivery of this adapter stands."""
    assert isinstance(delivery.handle, Entry), "a delivery of another adapter"
    return delivery.handle


@dataclass(frozen=True, slots=True)
class Look:
    """What one pull asks: `shares`, of `limit` deliveries with `reserved` for the interactive lane; how old a
    lease is lapsed; the last release seen; where each lane's sweep goes on ('' for none), and, where one
    does, the places that the session holds."""

    shares: Sequence[Share]
    limit: int
    reserved: int
    lease_ms: int
    release: str
    cursors: Sequence[str]
    held: Sequence[str]


class BrokerCalls:
    """Calls of publishers and readers."""

    def __init__(self, names: Names, retention: Retention) -> None:
        self._names, self._retention = names, retention

    def publish(self, message: Message) -> Call:
        names = self._names
        ref = RequestRef(message.request_id or "", message.tenant)
        stream = names.requests(message.lane, message.pool)
        keys = [stream, names.index(ref), names.retry_messages, names.pools]
        known = int(message.request_id is not None)
        return Call("publish", keys, [message.body_hash, known, message.pool, *encode(message, names)])

    def replay(self, letter_id: str, message: Message) -> Call:
        """Publishes `message`, which has an id, in the place of a dead letter."""
        names = self._names
        ref = RequestRef(message.request_id or "", message.tenant)
        stream = names.requests(message.lane, message.pool)
        keys = [names.dead_letters, stream, names.index(ref), names.pools]
        return Call("replay", keys, [letter_id, message.body_hash, message.pool, *encode(message, names)])

    def cancel(self, ref: RequestRef) -> Call:
        keys = [self._names.index(ref), self._names.control]
        kept = self._retention
        return Call("cancel", keys, [ref.tenant, ref.request_id, kept.control_length, kept.log_ms])

    def stats(self, lanes: Sequence[Lane], pool: str) -> Call:
        names = self._names
        streams = [names.requests(lane, pool) for lane in lanes]
        keys = [names.retries(pool), names.dead_letters, names.paused, *streams]
        return Call("stats", keys, [names.group, RELEASED])

    def consumers(self) -> Call:
        return Call("consumers", [self._names.registry], [])


class SessionCalls:
    """Calls of one consumer, which serves `lanes` of `pool`."""

    def __init__(
        self, names: Names, retention: Retention, consumer: str, lanes: Sequence[Lane], pool: str
    ) -> None:
        self._names, self._retention, self._consumer = names, retention, consumer
        self._lanes, self._pool = tuple(lanes), pool
        self._streams = [names.requests(lane, pool) for lane in lanes]

    def pull(self, look: Look) -> Call:
        names = self._names
        keys = [names.retries(self._pool), names.retry_messages, names.released, names.paused, *self._streams]
        arguments: list[Value] = [names.group, self._consumer, look.lease_ms, look.release, len(look.shares)]
        for share in look.shares:
            bound = look.limit if share.lane is Lane.INTERACTIVE else look.limit - look.reserved
            arguments += [self._lanes.index(share.lane) + 1, share.at_most, bound]
        return Call("pull", keys, [*arguments, *look.cursors, *look.held])

    def heartbeat(self, entries: Sequence[Entry], says: bytes) -> Call:
        """`says`: what the registry shall hold of this consumer; empty for nothing."""
        names = self._names
        streams = [entry.stream for entry in entries]
        keys = [names.retries(self._pool), names.retry_messages, names.registry, *streams]
        ids = [entry.entry_id for entry in entries]
        return Call("heartbeat", keys, [names.group, self._consumer, says, *ids])

    def announce(self, says: bytes) -> Call:
        return Call("announce", [self._names.registry], [self._consumer, says])

    def open(self, delivery: Delivery) -> Call:
        names, entry, ref = self._names, entry_of(delivery), delivery.ref
        keys = [entry.stream, names.index(ref), names.log(ref), names.retry_messages]
        place = [names.group, self._consumer, entry.entry_id]
        body_hash = delivery.message.body_hash
        return Call("open", keys, [*place, delivery.position, body_hash, delivery.published_ms, PAGE])

    def append(self, batch: Sequence[Append]) -> Call:
        """Answers in the order of the batch."""
        kept, keys = self._retention, list[str]()
        arguments: list[Value] = [self._names.group, self._consumer, kept.feed_length, kept.reply_ms]
        for item in batch:
            delivery, message = item.delivery, item.delivery.message
            keys += [*self._log_keys(delivery), message.reply_to or ""]
            chunks = item.chunks if message.stream and message.reply_to is not None else ()
            fields = chunk_fields(delivery.ref, message.headers) if chunks else ()
            events = [encode_event(event) for event in item.events]
            arguments += [entry_of(delivery).entry_id, item.epoch]
            arguments += [len(events), *events, len(fields), *fields, len(chunks), *chunks]
        return Call("append", keys, arguments)

    def settle(self, delivery: Delivery, epoch: int, settlement: Settlement) -> Call:
        names, keys = self._names, self._log_keys(delivery)
        right = self._right(delivery, epoch)
        topics = [delivery.message.reply_to or names.results, names.results]
        match settlement:
            case Done(terminal, line, events):
                conclusion = self._conclusion(delivery, terminal, line, events)
                return Call("finish", [*keys, *topics], [*right, *conclusion])
            case DeadLetter(reason, terminal, line):
                origin: list[Value] = [reason.encode(errors="replace"), delivery.position]
                conclusion = self._conclusion(delivery, terminal, line)
                keys += [*topics, names.dead_letters]
                return Call("dead_letter", keys, [*right, *origin, *conclusion])
            case Retry(delay_ms, reason):
                keys += [names.retries(self._pool), names.retry_messages]
                right += self._handed(epoch, reason)
                return Call("retry", keys, [*right, delivery.position, max(0, delay_ms)])
            case Release(reason):
                return Call(
                    "release", [*keys, names.released], [*right, *self._handed(epoch, reason), RELEASED]
                )
            case PassOn(pool):
                keys += [names.requests(delivery.message.lane, pool), names.pools]
                handed = encode_event(Handed(epoch, f"passed on to pool {pool!r}"))
                moved = encode_event(Moved(epoch, pool, log=""))
                place: list[Value] = [delivery.position, pool, handed, moved, self._retention.feed_length]
                return Call("pass_on", keys, [*right, *place])

    def refuse(self, entry: Entry, reason: str) -> Call:
        """Dead-letters an entry that is no message; it has neither index nor log."""
        names = self._names
        nothing: list[Value] = ["", 0, 0, "", 0, 0]
        keys = [entry.stream, names.index(RequestRef("")), "", "", "", "", names.dead_letters]
        right: list[Value] = [names.group, self._consumer, entry.entry_id, 0]
        return Call("dead_letter", keys, [*right, reason.encode(errors="replace"), entry.place, *nothing])

    def forget_consumers(self, name: str, silent_ms: int) -> Call:
        return Call("forget_consumers", self._streams, [self._names.group, name, silent_ms])

    def _right(self, delivery: Delivery, epoch: int) -> list[Value]:
        return [self._names.group, self._consumer, entry_of(delivery).entry_id, epoch]

    def _log_keys(self, delivery: Delivery) -> list[str]:
        names, ref = self._names, delivery.ref
        log = names.log(ref)
        return [entry_of(delivery).stream, names.index(ref), log, names.feed(feed_number(log))]

    def _handed(self, epoch: int, reason: str) -> list[Value]:
        """For what was opened: its owner gives it up in order."""
        return [encode_event(Handed(epoch, reason)) if epoch else b"", self._retention.feed_length]

    def _conclusion(
        self, delivery: Delivery, terminal: Terminal | None, line: bytes | None, events: Sequence[Event] = ()
    ) -> list[Value]:
        kept, message = self._retention, delivery.message
        kind, keep_ms, fields = "", 0, list[bytes]()
        if line is not None:
            kind, keep_ms = ("reply", kept.reply_ms) if message.reply_to else ("results", kept.results_ms)
            fields = result_fields(delivery.ref, line, message.headers)
        event = encode_event(terminal) if terminal is not None else b""
        before = [encode_event(each) for each in events]
        return [event, kept.log_ms, kept.feed_length, kind, keep_ms, len(fields), *fields, *before]
