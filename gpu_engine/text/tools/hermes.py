"""Calls as Hermes and Qwen models write them: each as an object between two marks, anywhere in the text.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Source: NousResearch, Hermes-Function-Calling; the chat templates of Qwen 2.5 and 3. An answer that ends
before the closing mark, with a whole object, is a call too.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.gpu_engine.text.tools.calls import CallReader, Item
from headrace.gpu_engine.text.tools.spans import Span, end_of_value, held_back, skip_space

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesScanner:
    """`offered`: names of the tools."""

    def __init__(self, offered: Collection[str]) -> None:
        self._reader = CallReader(offered)

    def next(self, rest: str, *, ended: bool) -> tuple[Item, str] | None:
        at = rest.find(OPEN)
        if at == 0:
            return self._call(rest, ended=ended)
        if at < 0:
            at = len(rest) - (0 if ended else held_back(rest, OPEN))
        return (rest[:at], rest[at:]) if at else None

    def _call(self, rest: str, *, ended: bool) -> tuple[Item, str] | None:
        no_call = OPEN, rest[len(OPEN) :]
        start = skip_space(rest, len(OPEN))
        end = end_of_value(rest, start)
        if isinstance(end, Span):
            return None if end is Span.UNFINISHED and not ended else no_call
        tail = rest[skip_space(rest, end) :]
        closed = tail.startswith(CLOSE)
        if not closed and not ended and CLOSE.startswith(tail):
            return None
        call = self._reader.call(rest[start:end]) if closed or not tail else None
        return no_call if call is None else (call, tail.removeprefix(CLOSE))
