"""The entries of a request's log.

`epoch` fences: events below the highest epoch seen so far are void. `seq` numbers the deltas of a
request from 0 and is never used again, not even after a restart. `fold` gives the log its meaning.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request. `cached_tokens`: prompt tokens taken from the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Durations in milliseconds: publish → first pull, last start → first token, last start → end."""

    queued_ms: int = 0
    first_token_ms: int = 0
    run_ms: int = 0


class Started(msgspec.Struct, frozen=True):
    """A consumer begins the request or takes it over.

    `kept` counts the tokens of earlier epochs that stay part of the answer: all of them (a resume), or 0
    (a restart: readers drop what they showed). `delivery` is the position of the delivery that runs the
    request; only its settlement emits the result line. An empty `fingerprint` says that the owner has not
    read the body yet: of the answer it says nothing, seed and fingerprint stay what they were, and all tokens
    are kept.

    `deaths`, `lone_deaths`: what the owner knew of the request's past when it began, see `Deaths`. `alone`:
    nothing else is in the engine with it (quarantine). A later `started` of the same owner tells that its
    engine died and that it goes on.
    """

    epoch: int
    consumer: str
    delivery: str
    seed: int
    body_hash: bytes
    fingerprint: str
    kept: int = 0
    at_ms: int = 0
    deaths: int = 0
    lone_deaths: int = 0
    alone: bool = False

    @property
    def is_mark(self) -> bool:
        """Whether its owner has yet to read the body. Readers are told nothing of it."""
        return not self.fingerprint


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural log of a token's probability, and (id, log probability) of the likeliest in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Delta(msgspec.Struct, frozen=True):
    """The next tokens of answer number `choice`. `token_ids` holds all sampled ids, also those whose text is
    still held back; `logprobs` has one for each of them, where the request asks for them; `prompt_logprobs`
    come once, with the first tokens of answer 0."""

    epoch: int
    seq: int
    token_ids: tuple[int, ...]
    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class Finished(msgspec.Struct, frozen=True):
    """Terminal: the answer is complete. `reason`: `stop` or `length`; of several answers `reasons` has all,
    and `reason` that of the first. `embeddings`: vectors of texts, as little-endian float32."""

    epoch: int
    reason: str
    usage: Usage = Usage()
    timings: Timings = Timings()
    reasons: tuple[str, ...] = ()
    embeddings: tuple[bytes, ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """Terminal: no answer, or only the part that the deltas hold.

    `status` is the HTTP class of the failure, or 0 where there is none (cancelled, expired, lost).
    """

    epoch: int
    code: str
    message: str
    status: int = 0
    param: str = ""
    usage: Usage = Usage()
    timings: Timings = Timings()


class Handed(msgspec.Struct, frozen=True):
    """The owner gave the request up in order (drain, retry, a planned move): its end was no death."""

    epoch: int
    reason: str = ""


class Moved(msgspec.Struct, frozen=True):
    """The request was passed to another pool before any token of it was made. `log`: where its log goes on
    (the adapter's own notation); empty where the log stays the same one (Redis)."""

    epoch: int
    pool: str
    log: str


class Fence(msgspec.Struct, frozen=True):
    """Raises the epoch without starting anything (Kafka: at every assignment of a partition)."""

    epoch: int


Terminal: TypeAlias = Finished | Failed
Event: TypeAlias = Started | Delta | Finished | Failed | Handed | Moved | Fence


class Logged(msgspec.Struct, frozen=True):
    """An event with its place in the log. `cursor` is opaque; pass it back to go on behind this event."""

    cursor: str
    event: Event
