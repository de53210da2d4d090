"""Events to protobuf bytes and back: how they stand in a log."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from headrace.broker.errors import BrokerError
from headrace.broker.events import (
    Delta,
    Event,
    Failed,
    Fence,
    Finished,
    Handed,
    Moved,
    Started,
    Terminal,
    Timings,
    TokenLogprobs,
    Usage,
)
from headrace.v1 import events_pb2 as pb


def encode_event(event: Event, request_id: str = "") -> bytes:
    """Bytes of an `Event` message; `request_id` is needed where logs share a partition."""
    return _to_message(event, request_id).SerializeToString()


def decode_event(data: bytes) -> Event:
    """The event, or BrokerError for bytes that are none."""
    try:
        message = pb.Event.FromString(data)
    except DecodeError as error:
        raise BrokerError(
            "the log holds bytes that are no event; was it written by something else?"
        ) from error
    return _from_message(message)


def usage_message(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def timings_message(timings: Timings) -> pb.Timings:
    return pb.Timings(
        queued_ms=timings.queued_ms, first_token_ms=timings.first_token_ms, run_ms=timings.run_ms
    )


def logprobs_message(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        token=logprobs.token,
        logprob=logprobs.logprob,
        top_tokens=[token for token, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def _logprobs(message: pb.TokenLogprobs) -> TokenLogprobs:
    top = zip(message.top_tokens, message.top_logprobs, strict=False)
    return TokenLogprobs(message.token, message.logprob, tuple(top))


def _to_message(event: Event, request_id: str) -> pb.Event:
    """Fields are set in place: a message made apart and copied in costs twice as much."""
    message = pb.Event(request_id=request_id, epoch=event.epoch)
    match event:
        case Started():
            _write_started(message.started, event)
        case Delta():
            delta = message.delta
            delta.seq, delta.choice, delta.text = event.seq, event.choice, event.text
            delta.token_ids.extend(event.token_ids)
            for each in event.logprobs:
                delta.logprobs.append(logprobs_message(each))
            for each in event.prompt_logprobs:
                delta.prompt_logprobs.append(logprobs_message(each))
        case Finished():
            message.finished.reason = event.reason
            message.finished.reasons.extend(event.reasons)
            message.finished.embeddings.extend(event.embeddings)
            _write_figures(message.finished, event)
        case Failed():
            failed = message.failed
            failed.code, failed.message = event.code, event.message
            failed.status, failed.param = event.status, event.param
            _write_figures(failed, event)
        case Handed():
            message.handed.reason = event.reason
        case Moved():
            message.moved.pool, message.moved.log = event.pool, event.log
        case Fence():
            message.fence.SetInParent()
    return message


def _write_started(started: pb.EventStarted, event: Started) -> None:
    started.consumer, started.delivery, started.seed = event.consumer, event.delivery, event.seed
    started.body_hash, started.fingerprint = event.body_hash, event.fingerprint
    started.kept, started.at_ms = event.kept, event.at_ms
    started.deaths, started.lone_deaths, started.alone = event.deaths, event.lone_deaths, event.alone


def _write_figures(terminal: pb.EventFinished | pb.EventFailed, event: Terminal) -> None:
    usage, timings = terminal.usage, terminal.timings
    usage.SetInParent()
    usage.prompt_tokens = event.usage.prompt_tokens
    usage.completion_tokens = event.usage.completion_tokens
    usage.cached_tokens = event.usage.cached_tokens
    timings.SetInParent()
    timings.queued_ms, timings.run_ms = event.timings.queued_ms, event.timings.run_ms
    timings.first_token_ms = event.timings.first_token_ms


def _from_message(message: pb.Event) -> Event:
    epoch = message.epoch
    match message.WhichOneof("kind"):
        case "started":
            return _started(epoch, message.started)
        case "delta":
            d = message.delta
            logprobs, of_prompt = (tuple(map(_logprobs, each)) for each in (d.logprobs, d.prompt_logprobs))
            return Delta(epoch, d.seq, tuple(d.token_ids), d.text, d.choice, logprobs, of_prompt)
        case "finished":
            f = message.finished
            ends = tuple(f.reasons), tuple(f.embeddings)
            return Finished(epoch, f.reason, _usage(f.usage), _timings(f.timings), *ends)
        case "failed":
            x = message.failed
            return Failed(epoch, x.code, x.message, x.status, x.param, _usage(x.usage), _timings(x.timings))
        case "handed":
            return Handed(epoch, message.handed.reason)
        case "moved":
            return Moved(epoch, message.moved.pool, message.moved.log)
        case "fence":
            return Fence(epoch)
    raise BrokerError("the log holds an event of an unknown kind; it was written by a newer version")


def _started(epoch: int, started: pb.EventStarted) -> Started:
    return Started(
        epoch=epoch,
        consumer=started.consumer,
        delivery=started.delivery,
        seed=started.seed,
        body_hash=started.body_hash,
        fingerprint=started.fingerprint,
        kept=started.kept,
        at_ms=started.at_ms,
        deaths=started.deaths,
        lone_deaths=started.lone_deaths,
        alone=started.alone,
    )


def _usage(usage: pb.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


def _timings(timings: pb.Timings) -> Timings:
    return Timings(timings.queued_ms, timings.first_token_ms, timings.run_ms)
