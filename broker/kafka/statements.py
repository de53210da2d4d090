"""A log stated anew: a fence of its request with the whole fold beside it. Nothing before is needed then."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from headrace.broker.events import Event, Fence, Handed, Started, TokenLogprobs
from headrace.broker.fold import Answer, Fold
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.wire import decode_event, encode_event

_STATE = "headrace-state"


def copy_of(fold: Fold) -> Fold:
    """One that goes on by itself; events are immutable."""
    return replace(
        fold,
        token_ids=list(fold.token_ids),
        pieces=list(fold.pieces),
        logprobs=list(fold.logprobs),
        prompt_logprobs=list(fold.prompt_logprobs),
        others={
            number: Answer(list(one.token_ids), list(one.pieces), list(one.logprobs))
            for number, one in fold.others.items()
        },
    )


def statement(topic: str, partition: int, key: str, fold: Fold) -> Record:
    """The record that states a fold anew."""
    record = encode_event_record(topic, partition, key, Fence(fold.epoch))
    record.headers.append((_STATE, encode_fold(fold)))
    return record


def stated_in(headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """What a record states, if it is a statement; see `decode_fold`."""
    return dict(headers).get(_STATE)


def encode_fold(fold: Fold) -> bytes:
    """All of a fold that has not ended, except its epoch."""
    said = {
        "next_seq": fold.next_seq,
        "tokens": fold.token_ids,
        "text": fold.text,
        "logprobs": msgspec.to_builtins(fold.logprobs),
        "prompt_logprobs": msgspec.to_builtins(fold.prompt_logprobs),
        "others": {number: _answer_fields(answer) for number, answer in fold.others.items()},
        "restarts": fold.restarts,
        "at_start": fold.tokens_at_start,
        "started": _event_text(fold.started),
        "handed": _event_text(fold.handed),
        "put_off": _event_text(fold.put_off),
    }
    return zlib.compress(json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass"), 1)


def decode_fold(data: bytes, epoch: int) -> Fold | None:
    """None for bytes that are no fold."""
    try:
        said = json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass"))
        started, handed = _event_of(said["started"]), _event_of(said["handed"])
        put_off = _event_of(said.get("put_off", ""))
        return Fold(
            epoch=epoch,
            next_seq=int(said["next_seq"]),
            started=started if isinstance(started, Started) else None,
            token_ids=[int(token) for token in said["tokens"]],
            pieces=[str(said["text"])],
            logprobs=msgspec.convert(said.get("logprobs", []), list[TokenLogprobs]),
            prompt_logprobs=msgspec.convert(said.get("prompt_logprobs", []), list[TokenLogprobs]),
            others={int(number): _answer_of(one) for number, one in dict(said.get("others", {})).items()},
            restarts=int(said["restarts"]),
            handed=handed if isinstance(handed, Handed) else None,
            put_off=put_off if isinstance(put_off, Handed) else None,
            tokens_at_start=int(said["at_start"]),
        )
    except (ValueError, TypeError, KeyError, zlib.error, msgspec.ValidationError):
        return None


def _answer_fields(answer: Answer) -> dict[str, object]:
    logprobs = msgspec.to_builtins(answer.logprobs)
    return {"tokens": answer.token_ids, "text": answer.text, "logprobs": logprobs}


def _answer_of(said: Mapping[str, Any]) -> Answer:
    logprobs = msgspec.convert(said["logprobs"], list[TokenLogprobs])
    return Answer([int(token) for token in said["tokens"]], [str(said["text"])], logprobs)


def _event_text(event: Event | None) -> str:
    return "" if event is None else base64.b64encode(encode_event(event)).decode()


def _event_of(text: str) -> Event | None:
    return decode_event(base64.b64decode(text)) if text else None
