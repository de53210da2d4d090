"""What the brokers hold after a run, whichever broker it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.faults.checker.events import LogEvent


class Key(NamedTuple):
    """A request, as its log is named."""

    tenant: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a result topic. `text`: the answer, or the part of it that a failure's line holds;
    `reason`: finish reason or code of the failure. `chunk`: it is a part of a streamed answer, no end."""

    topic: str
    key: Key
    custom_id: str
    text: str
    reason: str
    complete: bool
    completion_tokens: int | None
    chunk: Chunk | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a piece of a streamed answer stands: `text[:offset] + content` is the text behind it."""

    epoch: int
    seq: int
    offset: int
    content: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `key`: of the request that its headers, or else its origin, name."""

    key: Key
    origin: str
    reason: str
    body: bytes


@dataclass(slots=True)
class Evidence:
    """`leases`: deliveries that are neither settled nor anybody's, a sentence each. `remains`: whatever else
    should be gone or does not fit together. `broken`: entries that cannot be read."""

    logs: dict[Key, list[LogEvent]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)
    remains: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def read_line(topic: str, headers: Mapping[str, str], body: bytes) -> Line:
    """A result line as the OpenAI batch API describes it. Raises ValueError for one that is none."""
    fields = json.loads(body)
    try:
        return _line(topic, Key(headers.get("tenant", ""), headers["request-id"]), fields)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"no result line ({error!r}): {body[:200]!r}") from error


def _line(topic: str, key: Key, fields: dict[str, Any]) -> Line:
    if "object" in fields:
        return _chunk(topic, key, fields)
    response = fields.get("response")
    body = response["body"] if response else {}
    if "choices" in body:
        [choice] = body["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        tokens = body["usage"]["completion_tokens"]
        return Line(topic, key, _id(fields), text, choice["finish_reason"], True, tokens)
    error = body["error"] if response else fields["error"]
    usage = error.get("usage") or {}
    tokens = usage.get("completion_tokens")
    return Line(topic, key, _id(fields), error.get("partial") or "", error["code"], False, tokens)


def _chunk(topic: str, key: Key, fields: dict[str, Any]) -> Line:
    [choice] = fields["choices"]
    content = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    chunk = Chunk(fields["epoch"], fields["seq"], fields["offset"], content)
    return Line(topic, key, _id(fields), content, "", False, None, chunk)


def _id(fields: dict[str, Any]) -> str:
    return fields.get("custom_id") or ""
