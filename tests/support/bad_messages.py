"""Bad messages that an outside client may send to either broker, and what must become of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.outside_clients import chat_line


@dataclass(frozen=True)
class Case:
    """One bad message. Its name is its custom id, or stands in its body.

    `letter`: what the reason of its dead letter says; None: there is none. `status` and `code`: of its result
    line; None: there is none. `expired` has a code and no status, as in the OpenAI batch API.
    """

    name: str
    body: bytes | None
    fields: Mapping[bytes, bytes] = field(default_factory=dict)
    letter: str | None = None
    status: int | None = None
    code: str | None = None


def good(name: str) -> bytes:
    return chat_line(name, max_tokens=3).encode()


def with_model(name: str, model: str) -> bytes:
    line = json.loads(good(name))
    line["body"]["model"] = model
    return json.dumps(line).encode()


def unreadable(name: str, body: bytes, letter: str) -> Case:
    return Case(name, body, {}, letter, 400, "invalid_json_line")


def bad_field(name: str, field_name: str, value: bytes, letter: str) -> Case:
    return Case(name, good(name), {field_name.encode(): value}, letter)


def cases(prefix: str) -> list[Case]:
    """Those that are the same on both brokers."""
    return [
        unreadable("bytes-that-are-no-text", b"\xff\xfe bytes-that-are-no-text", "not valid UTF-8"),
        unreadable("text-that-is-no-json", b"text-that-is-no-json", "not valid JSON"),
        unreadable("no-object", b'["no-object"]', "must be a JSON object"),
        bad_field("reply-topic-of-others", "reply-to", b"elsewhere.reply.mine", "it must begin with"),
        bad_field(
            "reply-topic-is-a-lane", "reply-to", f"{prefix}.requests.batch".encode(), "must begin with"
        ),
        bad_field("reply-topic-is-odd", "reply-to", f"{prefix}.reply.a b/\u00fc".encode(), "letters, digits"),
        bad_field("reply-topic-is-nothing", "reply-to", f"{prefix}.reply.".encode(), "go on with a name"),
        Case(
            *("content-of-another-type", good("content-of-another-type"), {b"content-type": b"text/csv"}),
            *("the content type must be", 400, "invalid_request"),
        ),
        bad_field("value-is-no-text", "traceparent", b"\xfe\xff", "not UTF-8"),
        bad_field("deadline-is-no-number", "deadline", b"tomorrow", "tomorrow"),
        bad_field("stream-is-no-flag", "stream", b"maybe", "maybe"),
        bad_field("id-is-too-long", "request-id", b"x" * 5_000, "1 to 512"),
        Case("deadline-has-passed", good("deadline-has-passed"), {b"deadline": b"1000"}, code="expired"),
        Case("model-of-nobody", with_model("model-of-nobody", "gpt-9"), status=404, code="model_not_found"),
    ]


def twins() -> list[tuple[bytes, bytes]]:
    """Request id and body: the same twice, and another body that is not like it."""
    return [(b"twin", good("twin")), (b"twin", good("twin")), (b"twin", good("not-like-its-twin"))]
