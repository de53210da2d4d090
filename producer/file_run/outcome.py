"""What a result line says, as far as a run needs to know it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.producer.file_run.identity import read_result_id


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failed`: an error line."""

    run: str
    line: int
    failed: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    usage: _Usage | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None
    error: _Error | None = None


class _Response(msgspec.Struct):
    status_code: int
    body: _Body


class _ResultLine(msgspec.Struct):
    id: str
    response: _Response | None
    error: _Error | None


_DECODER = msgspec.json.Decoder(_ResultLine)


def read_outcome(raw: bytes) -> Outcome | None:
    """The outcome, or None for a line that no run has written."""
    try:
        line = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    named = read_result_id(line.id)
    if named is None:
        return None
    failed = line.response is None or line.response.status_code >= 400
    usage = _spent(line)
    return Outcome(*named, failed, usage.prompt_tokens, usage.completion_tokens)


def _spent(line: _ResultLine) -> _Usage:
    """Tokens of an answer, or those that a failure has cost."""
    body = line.response.body if line.response else _Body(error=line.error)
    return body.usage or (body.error and body.error.usage) or _Usage()
