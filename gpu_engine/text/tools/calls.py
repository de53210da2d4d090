"""Calls of tools in an answer: found in its text as it grows, in whatever pieces that comes.

    text    Let me see. <tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>
            └─ shown ─┘└──────────────── held back until it is known to be a call ────────────────┘

What is only like a call (JSON that is none, a name that was not offered, a call cut short by the answer's
end) is text, and is shown as it stands. What has been decided is never taken back, and the whole depends on
the text alone, not on how it was cut: so whoever reads the log of an answer, from wherever and however often,
finds the same text and the same calls in it.

The line breaks and spaces with which models set off their calls are shown only if text follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec


class ToolCall(NamedTuple):
    """`arguments`: a JSON object, as the model wrote it."""

    name: str
    arguments: str


Item: TypeAlias = str | ToolCall
"""Text to show, or a call."""


class Scanner(Protocol):
    """One format of calls, reading one answer."""

    def next(self, rest: str, *, ended: bool) -> tuple[Item, str] | None:
        """The first item of `rest`, and what is left behind it; None: only more text can tell. `rest` is not
        empty and begins where the item before ended. `ended`: it is all there is, so there is an answer."""


class Reply(NamedTuple):
    """An answer as a reader sees it."""

    text: str
    calls: tuple[ToolCall, ...]


class CallParser:
    """Takes the text of one answer, piece by piece. `most`: calls beyond these are left out (None: none
    is)."""

    def __init__(self, scanner: Scanner, most: int | None = None) -> None:
        self._scanner = scanner
        self._most = most
        self._rest = ""
        self._blank = ""  # spaces that are shown if text follows them
        self._calls = 0
        self._behind_call = False

    def feed(self, text: str) -> list[Item]:
        """What this piece made certain."""
        self._rest += text
        return list(self._decided(ended=False))

    def end(self) -> list[Item]:
        """What was held back, when the answer has ended."""
        items = list(self._decided(ended=True))
        if self._blank and not self._behind_call:
            items.append(self._blank)
        self._blank = ""
        return items

    def _decided(self, *, ended: bool) -> Iterator[Item]:
        while self._rest and (found := self._scanner.next(self._rest, ended=ended)) is not None:
            item, self._rest = found
            if isinstance(item, str):
                yield from self._text(item)
            else:
                yield from self._call(item)

    def _text(self, text: str) -> Iterator[str]:
        shown = (self._blank + text).rstrip()
        if shown:
            self._behind_call = False
            yield shown
        self._blank = (self._blank + text)[len(shown) :]

    def _call(self, call: ToolCall) -> Iterator[ToolCall]:
        self._behind_call = True
        self._calls += 1
        if self._most is None or self._calls <= self._most:
            yield call


def read_reply(scanner: Scanner, text: str, *, most: int | None = None, ended: bool = True) -> Reply:
    """The answer `text`; of one that has not `ended`, what is certain of it: a later reading begins with
    it."""
    parser = CallParser(scanner, most)
    return reply_of(parser.feed(text) + (parser.end() if ended else []))


def reply_of(items: Sequence[Item]) -> Reply:
    """Items of one answer, in their order."""
    shown = "".join(item for item in items if isinstance(item, str))
    return Reply(shown, tuple(item for item in items if isinstance(item, ToolCall)))


class CallReader:
    """From JSON to calls. `offered`: the names there are."""

    def __init__(self, offered: Collection[str]) -> None:
        self._offered = offered

    def call(self, source: str) -> ToolCall | None:
        """The call that an object is, if it is one."""
        try:
            return self._checked(_ONE.decode(source))
        except _NO_CALL:
            return None

    def calls(self, source: str) -> list[ToolCall] | None:
        """The calls that an array holds, if it holds calls and nothing else."""
        try:
            calls = [self._checked(found) for found in _MANY.decode(source)]
        except _NO_CALL:
            return None
        whole = [call for call in calls if call is not None]
        return whole if whole and len(whole) == len(calls) else None

    def _checked(self, found: _Found) -> ToolCall | None:
        arguments = (bytes(found.arguments) or bytes(found.parameters)).decode()
        is_call = found.name in self._offered and arguments.startswith("{")
        return ToolCall(found.name, arguments) if is_call else None


class _Found(msgspec.Struct):
    """The field is called `arguments` in some formats and `parameters` in others, and models mix them up."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_ONE = msgspec.json.Decoder(_Found)
_MANY = msgspec.json.Decoder(list[_Found])
_NO_CALL = (msgspec.DecodeError, UnicodeError, RecursionError)
