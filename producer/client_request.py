"""What a caller of the client says, as an `InferenceRequest`, and what comes back, as one answer."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypedDict

import msgspec

from headrace.broker.bounds import LONGEST_KEPT_S
from headrace.broker.events import Usage
from headrace.broker.fold import Answer
from headrace.broker.ids import new_request_id
from headrace.broker.lines.openai import CHAT, COMPLETIONS
from headrace.broker.lines.protobuf import from_message, to_message
from headrace.broker.lines.request import LineError, ParsedRequest, Sampling
from headrace.broker.message import Lane
from headrace.producer.client_errors import InvalidRequest, RequestFailed
from headrace.v1 import events_pb2
from headrace.v1 import inference_pb2 as pb

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, object]]

# The service ends a request at its deadline and says so; the call waits a little longer to hear it.
DEADLINE_GRACE_S = 2.0
# Ids carry a place of their log. A client knows none, so it spreads its requests over all that there may be.
PLACES = 1 << 14
_LANES = {
    Lane.INTERACTIVE: pb.LANE_INTERACTIVE,
    Lane.STANDARD: pb.LANE_STANDARD,
    Lane.BATCH: pb.LANE_BATCH,
    Lane.BACKGROUND: pb.LANE_BACKGROUND,
}


class RequestOptions(TypedDict, total=False):
    """What a request may say besides its prompt.

    `sampling`: a `Sampling`, or its fields as a dict, such as `{"max_tokens": 5}`.
    `request_id`: the same id with the same content is the same request; one is made when there is none.
    `timeout_s`: bounds everything, queueing and retries included; the request expires with it.
    `queue_timeout_s`: how long it may wait for its start, where the lane's policy lets a request say so.
    """

    model: str
    sampling: Sampling | Mapping[str, object]
    lane: Lane
    custom_id: str
    request_id: str
    timeout_s: float
    queue_timeout_s: float


@dataclass(frozen=True, slots=True)
class Submitted:
    """`duplicate`: the service had this request already; nothing was added."""

    request_id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `finish_reason`: `stop` or `length`. Of several answers this is the first, which has
    the `others`; `usage` is that of all."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Usage
    others: tuple[Completion, ...] = ()


class Deadline:
    """A moment, `seconds` from now, after which nothing is tried any more; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def is_set(self) -> bool:
        return not math.isinf(self._at)

    @property
    def seconds_left(self) -> float:
        return self._at - time.monotonic()

    def call_timeout(self, longest: float = math.inf) -> float | None:
        """Timeout of one call: until the deadline, and a little longer to hear how the request ended."""
        timeout = min(longest, max(0.0, self.seconds_left) + DEADLINE_GRACE_S)
        return None if math.isinf(timeout) else timeout


def inference_request(prompt: Prompt, options: RequestOptions) -> pb.InferenceRequest:
    """The request to send, with its id; raises InvalidRequest for what every gateway would refuse, and for
    an option that does not exist: a misspelt limit must not become no limit."""
    if unknown := set(options) - RequestOptions.__optional_keys__:
        known = ", ".join(sorted(RequestOptions.__optional_keys__))
        raise InvalidRequest(f"there is no option {min(unknown)!r}; there are {known}")
    lane = _lane(options.get("lane", Lane.STANDARD))
    text, ids, messages = _input(prompt)
    request = ParsedRequest(
        endpoint=COMPLETIONS if messages is None else CHAT,
        custom_id=options.get("custom_id"),
        model=options.get("model"),
        messages=messages,
        prompt=text if ids is None else ids,
        sampling=_sampling(options.get("sampling", Sampling())),
    )
    message = _checked(request)
    message.request_id = checked_id(options.get("request_id")) or new_request_id(
        lane, secrets.randbelow(PLACES)
    )
    message.lane = _LANES[lane]
    if (timeout_s := options.get("timeout_s")) is not None:
        _check_time("timeout_s", timeout_s, low=-LONGEST_KEPT_S)  # one that is over is told as such
        message.deadline.FromMilliseconds(int((time.time() + timeout_s) * 1000))
    if (queue_timeout_s := options.get("queue_timeout_s")) is not None:
        _check_time("queue_timeout_s", queue_timeout_s, low=0)
        message.queue_timeout.FromMilliseconds(max(1, int(queue_timeout_s * 1000)))
    return message


def checked_id(request_id: object) -> str:
    """'' for None; raises InvalidRequest for what is no id at all."""
    if request_id is None or isinstance(request_id, str):
        return request_id or ""
    raise InvalidRequest(f"a request id is a text, not {type(request_id).__name__}")


async def collect(events: AsyncIterator[pb.StreamEvent]) -> Completion:
    """The whole answer that a stream of events makes."""
    answers: dict[int, Answer] = {}
    async for event in events:
        match event.WhichOneof("kind"):
            case "delta":
                answer = answers.setdefault(event.delta.choice, Answer())
                answer.pieces.append(event.delta.text)
                answer.token_ids.extend(event.delta.token_ids)
            case "restarted":
                answers.clear()
            case "finished":
                return _completion(event.request_id, event.finished, answers)
            case "failed":
                raise _failure(event.failed, answers.get(0, Answer()).text)
    raise AssertionError("a stream ends with a terminal event, or raises")


def _completion(request_id: str, ended: pb.StreamFinished, answers: Mapping[int, Answer]) -> Completion:
    usage, reasons = _usage(ended.usage), list(ended.reasons) or [ended.reason]
    known = [answers.get(index, Answer()) for index in range(len(reasons))]
    first, *others = [
        Completion(request_id, answer.text, tuple(answer.token_ids), reason, usage)
        for answer, reason in zip(known, reasons, strict=True)
    ]
    return replace(first, others=tuple(others))


def _input(prompt: object) -> tuple[str | None, list[int] | None, list[Mapping[str, object]] | None]:
    """The prompt as one of the three that it may be. Nothing of it is left out: what is none is refused."""
    if isinstance(prompt, str):
        return prompt, None, None
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray | memoryview):
        messages = [each for each in prompt if isinstance(each, Mapping)]
        if messages and len(messages) == len(prompt):
            return None, None, messages
        ids = [each for each in prompt if type(each) is int]
        if len(ids) == len(prompt):
            return None, ids, None
    raise InvalidRequest(
        "a prompt is a text, a list of messages such as {'role': 'user', 'content': 'Hello'}, or a list of "
        f"token ids; this is {_kind(prompt)}"
    )


def _kind(prompt: object) -> str:
    """What somebody gave as a prompt, in a few words."""
    name = type(prompt).__name__
    if isinstance(prompt, list | tuple):
        return f"a {name} of {', '.join(sorted({type(each).__name__ for each in prompt}))}"
    return f"of the type {name}"


def _sampling(given: object) -> Sampling:
    if isinstance(given, Sampling):
        return given
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise InvalidRequest(f"sampling takes a Sampling or a dict such as {{'max_tokens': 5}}, not {kind}")
    if unknown := set(given) - set(Sampling.__struct_fields__):
        known = ", ".join(sorted(Sampling.__struct_fields__))
        raise InvalidRequest(f"there is no sampling parameter {min(map(repr, unknown))}; there are {known}")
    stop = given.get("stop")
    fields = {**given, "stop": (stop,)} if isinstance(stop, str) else dict(given)
    try:
        return msgspec.convert(fields, Sampling)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"sampling makes no sense: {error}") from error


def _lane(given: object) -> Lane:
    try:
        return Lane(str(given))
    except ValueError as error:
        raise InvalidRequest(f"{str(given)[:40]!r} is no lane; use one of {', '.join(Lane)}") from error


def _check_time(name: str, seconds: object, *, low: float) -> None:
    """Raises InvalidRequest for what is no number of seconds above `low`, nor of ten years at most."""
    if not (isinstance(seconds, int | float) and low < seconds <= LONGEST_KEPT_S):
        above = "above 0 and " if low == 0 else ""
        raise InvalidRequest(
            f"{name} must be a number of seconds {above}up to {LONGEST_KEPT_S}, not {seconds!r:.40}"
        )


def _checked(request: ParsedRequest) -> pb.InferenceRequest:
    try:
        message = to_message(request)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidRequest(f"the request cannot be sent: {error}") from error
    checked = from_message(message)
    if isinstance(checked, LineError):
        raise InvalidRequest(checked.message)
    return message


def _failure(failed: pb.StreamFailed, partial: str) -> RequestFailed:
    return RequestFailed(failed.code, failed.message, failed.status, partial, _usage(failed.usage))


def _usage(usage: events_pb2.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
