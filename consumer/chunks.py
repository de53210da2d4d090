"""The lines that a stream on a reply topic gets, beside the events that they tell of.

A request asks for them by `stream` and `reply_to`. `lines.output.chunk_line` says what a chunk is and how a
reader puts them together; here is decided which there are: one for each delta with text, and with the first
`started` of an owner, or of an epoch, one that says all so far again, from the beginning, be it nothing: what
was said before may be void. So a reader needs to know nothing of owners, engines and restarts, and no two
chunks of one answer and one (`epoch`, `seq`) are ever made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.events import Delta, Event, Started
from headrace.broker.lines.output import chunk_line
from headrace.broker.lines.tools import ToolCall
from headrace.consumer.inflight import InFlight
from headrace.consumer.outbox import Outbox
from headrace.consumer.tools import AnswerReader, calls_in


def chunks_of(flight: InFlight, events: Sequence[Event], *, model: str, created: int) -> list[bytes]:
    """Chunks for `events`, which the outbox of `flight` has just put on the wire. `model`: the name that
    clients see; `created`: unix time in seconds."""
    message = flight.delivery.message
    if not (message.stream and message.reply_to) or flight.parsed is None or flight.outbox is None:
        return []
    outbox = flight.outbox
    deltas = {event.choice: event for event in events if isinstance(event, Delta)}
    from_the_start = isinstance(events[0], Started) and not _goes_on(outbox)
    last_seq = outbox.next_seq - 1 + len(deltas)
    is_news = from_the_start and outbox.next_seq > 0  # also that an answer is empty: it may have begun anew
    chunks = []
    for choice in range(len(flight.answers)) if from_the_start else deltas:
        written, fresh = outbox.written.characters(choice), deltas[choice].text if choice in deltas else ""
        part = _part(flight, choice, written, fresh, from_the_start=from_the_start)
        if part.content or part.calls or is_news:
            chunk = chunk_line(
                flight.parsed,
                request_id=flight.request_id,
                model=model,
                created=created,
                epoch=outbox.epoch,
                seq=deltas[choice].seq if choice in deltas else last_seq,
                offset=part.offset,
                content=part.content,
                choice=choice,
                call_offset=part.call_offset,
                calls=part.calls,
            )
            chunks.append(chunk)
    return chunks


class _Part(NamedTuple):
    """Of an answer as a reader sees it: text and calls, with what stands before them."""

    offset: int
    content: str
    call_offset: int
    calls: Sequence[ToolCall]


def _part(flight: InFlight, choice: int, written: int, fresh: str, *, from_the_start: bool) -> _Part:
    """What `fresh` text behind `written` characters of an answer brings, or all up to there."""
    if flight.call_format is None and not from_the_start:
        return _Part(written, fresh, 0, ())  # without a look at all of a long answer
    if from_the_start:
        reader, fresh = _anew(flight, choice), flight.answers[choice].text[: written + len(fresh)]
    else:
        reader = _read_so_far(flight, choice, written)
    offset, call_offset = reader.num_shown, reader.num_calls
    seen = reader.read(fresh)  # a call is seen when it is whole
    return _Part(offset, seen.text, call_offset, calls_in(seen))


def _anew(flight: InFlight, choice: int) -> AnswerReader:
    assert flight.parsed is not None
    reader = flight.readers[choice] = AnswerReader(flight.parsed, flight.call_format)
    return reader


def _read_so_far(flight: InFlight, choice: int, written: int) -> AnswerReader:
    """Its reader, behind the `written` characters."""
    reader = flight.readers.get(choice)
    if reader is None or reader.num_read != written:
        reader = _anew(flight, choice)
        reader.read(flight.answers[choice].text[:written])
    return reader


def _goes_on(outbox: Outbox) -> bool:
    """Whether this owner has begun under this epoch: what it states now is that its engine died."""
    stated = outbox.stated
    return stated is not None and stated.epoch == outbox.epoch and not stated.is_mark
