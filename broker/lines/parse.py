"""A message on a queue to the request that it holds, by its content type."""

from __future__ import annotations

from headrace.broker.lines.openai import parse_line
from headrace.broker.lines.protobuf import parse_protobuf
from headrace.broker.lines.refused import shown
from headrace.broker.lines.request import LineError, ParsedRequest
from headrace.broker.message import JSON, PROTOBUF, Message


def parse_message(message: Message) -> ParsedRequest | LineError:
    """Never raises. A content type that we do not know is `unreadable`, as are bytes that we cannot read."""
    match message.content_type.partition(";")[0].strip().lower():
        case "application/json":
            return parse_line(message.body, in_file=False)
        case "application/x-protobuf":
            return parse_protobuf(message.body)
    return LineError(
        "invalid_request",
        f"the content type must be {JSON} or {PROTOBUF}, not {shown(message.content_type)}",
        unreadable=True,
    )
