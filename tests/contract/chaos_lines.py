"""What stands on the reply topic of the chaos: chunks and ends, and what a reader makes of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from headrace.broker.contract import ResultLine


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer. `offset`: characters before it."""

    pool: str
    epoch: int
    offset: int
    text: str

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class End:
    """The result line. `pool`: where the request ended; `tail`: what came with the end, in no chunk."""

    request_id: str
    pool: str
    tail: str = ""

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(slots=True)
class Stream:
    """The lines of one request."""

    chunks: list[Chunk] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)

    @property
    def text(self) -> str:
        """By the rule for readers: a chunk counts unless a higher epoch was seen, and replaces what stands
        behind its offset. Epochs of another pool do not compare; there, no token was made."""
        text, highest = "", 0
        for chunk in self.chunks:
            if chunk.pool == self.ends[0].pool and chunk.epoch >= highest:
                text, highest = text[: chunk.offset] + chunk.text, chunk.epoch
        return text + self.ends[0].tail

    @property
    def is_exact(self) -> bool:
        """Whether each chunk came once, in order, and from its owner only."""
        places = [(chunk.epoch, chunk.offset, bool(chunk.text)) for chunk in self.chunks]
        return places == sorted(set(places))


def read_lines(lines: Sequence[ResultLine]) -> defaultdict[str, Stream]:
    """By request id."""
    streams = defaultdict[str, Stream](Stream)
    for result in lines:
        stream = streams[result.headers["request-id"]]
        if result.headers.get("headrace-kind") == "chunk":
            stream.chunks.append(Chunk(**json.loads(result.line)))
        else:
            stream.ends.append(End(**json.loads(result.line)))
    return streams
