"""A sound run written by hand, and raw writes that spoil it: what the checker must and must not find.

Nothing of headrace runs here. `Plot` knows the run; a `Field` writes it to a broker, with plain commands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.faults.checker.events import encode
from tests.faults.checker.record import Accepted, Rubbish, RunRecord, Shown, Transcript

ANSWER = "one two three "
WORDS = ("one ", "two ", "three ")
REPLY = "reply.mine"


class Field(Protocol):
    """Where a run is planted."""

    url: str
    prefix: str

    def log(self, request_id: str, *events: bytes) -> None: ...

    def line(self, request_id: str, body: Mapping[str, object], topic: str = "results") -> None: ...

    def letter(self, headers: Mapping[str, str], body: bytes) -> None: ...

    def lease(self, request_id: str, settled: bool) -> None: ...

    def drop_lines(self) -> None: ...


def started(epoch: int, kept: int = 0) -> bytes:
    return encode(epoch=epoch, started={"consumer": f"c{epoch}", "kept": kept})


def delta(epoch: int, seq: int, text: str) -> bytes:
    return encode(epoch=epoch, delta={"seq": seq, "text": text, "token_ids": list(text.encode())})


def finished(epoch: int, tokens: int = len(ANSWER)) -> bytes:
    return encode(epoch=epoch, finished={"reason": "length", "usage": {"completion_tokens": tokens}})


def failed(epoch: int, code: str, tokens: int = 0) -> bytes:
    return encode(epoch=epoch, failed={"code": code, "usage": {"completion_tokens": tokens}})


def answer_body(custom_id: str, text: str = ANSWER, tokens: int | None = None) -> dict[str, object]:
    """A result line of the OpenAI form."""
    count = len(text) if tokens is None else tokens
    body = {"choices": [{"text": text, "finish_reason": "length"}], "usage": {"completion_tokens": count}}
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


def chunk_body(custom_id: str, epoch: int, seq: int, offset: int, text: str) -> dict[str, object]:
    """A part of a streamed answer."""
    place = {"custom_id": custom_id, "epoch": epoch, "seq": seq, "offset": offset}
    return {"object": "text_completion", "choices": [{"text": text, "finish_reason": None}], **place}


def failure_body(custom_id: str, code: str) -> dict[str, object]:
    return {"custom_id": custom_id, "response": None, "error": {"code": code, "message": "because"}}


def shown(epoch: int, seq: int, text: str) -> Shown:
    return Shown("delta", epoch, seq, token_ids=tuple(text.encode()), text=text)


@dataclass(frozen=True, slots=True)
class Plot:
    """Four requests: `whole` was taken over in the middle, `dead` is poison, `cut` was cancelled, `told` was
    streamed on a reply topic by two owners; and a message that is none. `sound` plants all of them as they
    should be."""

    field: Field

    def sound(self) -> RunRecord:
        self.whole()
        self.dead()
        self.cut()
        self.told()
        self.field.letter({"reason": "no JSON", "origin": "somewhere/1"}, b"rubbish")
        return RunRecord(
            accepted=[
                Accepted("whole", ANSWER, custom_id="w"),
                Accepted("dead", ANSWER, ("poison",), custom_id="d", body=b"poison"),
                Accepted("cut", ANSWER, ("cancelled", "length"), custom_id="c"),
                Accepted("told", ANSWER, custom_id="t", topic=f"{self.field.prefix}.{REPLY}", streamed=True),
            ],
            rubbish=[Rubbish(b"rubbish", "JSON")],
            transcripts=[Transcript("whole", WHOLE)],
        )

    def whole(self) -> None:
        events = [started(1), delta(1, 0, WORDS[0]), started(2, 4), delta(1, 1, "XX "), delta(2, 1, WORDS[1])]
        self.field.log("whole", *events, delta(2, 1, WORDS[1]), delta(2, 2, WORDS[2]), finished(2))
        self.field.line("whole", answer_body("w"))
        self.field.lease("whole", settled=True)

    def dead(self) -> None:
        self.field.log("dead", started(1), started(2), failed(2, "poison"))
        self.field.line("dead", failure_body("d", "poison"))
        self.field.letter({"reason": "died thrice", "origin": "batch/7", "request-id": "dead"}, b"poison")
        self.field.lease("dead", settled=True)

    def cut(self) -> None:
        self.field.log("cut", started(1), delta(1, 0, WORDS[0]), failed(1, "cancelled", len(WORDS[0])))
        self.field.line("cut", failure_body("c", "cancelled"))
        self.field.lease("cut", settled=True)

    def told(self) -> None:
        """The first owner says a word that its log does not hold, and repeats itself, late."""
        events = [started(1), delta(1, 0, WORDS[0]), started(2, 4), delta(1, 1, WORDS[1])]
        self.field.log("told", *events, delta(2, 1, WORDS[1]), delta(2, 2, WORDS[2]), finished(2))
        for epoch, seq, offset, text in CHUNKS:
            self.chunk(epoch, seq, offset, text)
        self.field.line("told", answer_body("t"), REPLY)
        self.field.lease("told", settled=True)

    def chunk(self, epoch: int, seq: int, offset: int, text: str, topic: str = REPLY) -> None:
        self.field.line("told", chunk_body("t", epoch, seq, offset, text), topic)


CHUNKS = (
    (1, 0, 0, WORDS[0]),
    (1, 1, 4, WORDS[1]),
    (2, 1, 4, WORDS[1]),
    (1, 1, 4, WORDS[1]),
    (2, 1, 4, WORDS[1]),
    (2, 2, 8, WORDS[2]),
)
WHOLE = (
    Shown("started", 1),
    shown(1, 0, WORDS[0]),
    Shown("started", 2, kept=4),
    shown(2, 1, WORDS[1]),
    shown(2, 2, WORDS[2]),
    Shown("finished", 2, reason="length"),
)


def line_bytes(body: Mapping[str, object]) -> bytes:
    return json.dumps(body).encode()
