"""Builds the script calls: which keys and arguments each takes. No I/O.

The dictionary of each call stands at the head of its file in `scripts/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.contract import Append, DeadLetter, Done, Release, Retry, Settlement
from headrace.broker.events import Terminal
from headrace.broker.message import Delivery, Lane, Message, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.codec import Entry, encode, result_fields
from headrace.broker.redis_streams.feeds import feed_number
from headrace.broker.redis_streams.link import Value
from headrace.broker.redis_streams.scripts import Call
from headrace.broker.redis_streams.settings import Retention
from headrace.broker.wire import encode_event

RELEASED = "released"  # holds what was handed back, until a sweep takes it


def entry_of(delivery: Delivery) -> Entry:
    """Where a delivery of this adapter stands."""
    assert isinstance(delivery.handle, Entry), "a delivery of another adapter"
    return delivery.handle


@dataclass(frozen=True, slots=True)
class Look:
    """What one pull asks: how many, how old a lease is lapsed, the last release seen, where each lane's sweep
    goes on ('' for none), and, where one does, the places that the session holds."""

    limit: int
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
        keys = [names.requests(message.lane), names.index(ref), names.retry]
        known = int(message.request_id is not None)
        return Call("publish", keys, [message.body_hash, known, *encode(message, names)])

    def cancel(self, ref: RequestRef) -> Call:
        keys = [self._names.index(ref), self._names.control]
        kept = self._retention
        return Call("cancel", keys, [ref.tenant, ref.request_id, kept.control_length, kept.log_ms])

    def stats(self, lanes: Sequence[Lane]) -> Call:
        names = self._names
        keys = [names.retry, names.dead_letters, *map(names.requests, lanes)]
        return Call("stats", keys, [names.group, RELEASED])


class SessionCalls:
    """Calls of one consumer."""

    def __init__(self, names: Names, retention: Retention, consumer: str) -> None:
        self._names, self._retention, self._consumer = names, retention, consumer

    def pull(self, lanes: Sequence[Lane], look: Look) -> Call:
        names = self._names
        keys = [names.retry, names.retry_messages, names.released, *map(names.requests, lanes)]
        arguments: list[Value] = [names.group, self._consumer, look.limit, look.lease_ms, look.release]
        return Call("pull", keys, [*arguments, *look.cursors, *look.held])

    def heartbeat(self, entries: Sequence[Entry]) -> Call:
        names = self._names
        keys = [names.retry, names.retry_messages, *(entry.stream for entry in entries)]
        return Call("heartbeat", keys, [names.group, self._consumer, *(entry.entry_id for entry in entries)])

    def open(self, delivery: Delivery) -> Call:
        names, entry, ref = self._names, entry_of(delivery), delivery.ref
        keys = [entry.stream, names.index(ref), names.log(ref), names.retry]
        place = [names.group, self._consumer, entry.entry_id]
        body_hash = delivery.message.body_hash
        return Call("open", keys, [*place, delivery.position, body_hash, delivery.published_ms])

    def append(self, item: Append) -> Call:
        entry, log = entry_of(item.delivery), self._names.log(item.delivery.ref)
        keys = [entry.stream, self._names.index(item.delivery.ref), log, self._feed(log)]
        events = [encode_event(event) for event in item.events]
        right = self._right(item.delivery, item.epoch)
        return Call("append", keys, [*right, self._retention.feed_length, *events])

    def settle(self, delivery: Delivery, epoch: int, settlement: Settlement) -> Call:
        names, keys = self._names, self._log_keys(delivery)
        right = self._right(delivery, epoch)
        stream, index = keys[0], keys[1]
        match settlement:
            case Done(terminal, line):
                return Call("finish", keys, [*right, *self._conclusion(delivery, terminal, line)])
            case DeadLetter(reason, terminal, line):
                origin: list[Value] = [reason.encode(errors="replace"), delivery.position]
                conclusion = self._conclusion(delivery, terminal, line)
                return Call("dead_letter", [*keys, names.dead_letters], [*right, *origin, *conclusion])
            case Retry(delay_ms):
                parked = [names.retry, names.retry_messages]
                return Call("retry", [stream, index, *parked], [*right, delivery.position, max(0, delay_ms)])
            case Release():
                return Call("release", [stream, index, names.released], [*right, RELEASED])

    def refuse(self, entry: Entry, reason: str) -> Call:
        """Dead-letters an entry that is no message; it has neither index nor log."""
        names = self._names
        nothing: list[Value] = ["", 0, 0, "", 0, 0]
        keys = [entry.stream, names.index(RequestRef("")), "", "", "", "", names.dead_letters]
        right: list[Value] = [names.group, self._consumer, entry.entry_id, 0]
        return Call("dead_letter", keys, [*right, reason.encode(errors="replace"), entry.place, *nothing])

    def forget_consumers(self, lanes: Sequence[Lane], name: str, silent_ms: int) -> Call:
        names = self._names
        return Call("forget_consumers", [*map(names.requests, lanes)], [names.group, name, silent_ms])

    def _right(self, delivery: Delivery, epoch: int) -> list[Value]:
        return [self._names.group, self._consumer, entry_of(delivery).entry_id, epoch]

    def _log_keys(self, delivery: Delivery) -> list[str]:
        names, ref = self._names, delivery.ref
        log = names.log(ref)
        topic = delivery.message.reply_to or names.results
        return [entry_of(delivery).stream, names.index(ref), log, self._feed(log), topic, names.results]

    def _conclusion(self, delivery: Delivery, terminal: Terminal | None, line: bytes | None) -> list[Value]:
        kept, message = self._retention, delivery.message
        kind, keep_ms, fields = "", 0, list[bytes]()
        if line is not None:
            kind, keep_ms = ("reply", kept.reply_ms) if message.reply_to else ("results", kept.results_ms)
            fields = result_fields(delivery.ref, line, message.headers)
        event = encode_event(terminal) if terminal is not None else b""
        return [event, kept.log_ms, kept.feed_length, kind, keep_ms, len(fields), *fields]

    def _feed(self, log: str) -> str:
        return self._names.feed(feed_number(log))
