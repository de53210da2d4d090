"""Calls as Mistral models write them: one array behind a mark, which may stand behind text.

    [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]

Source: the chat templates of Mistral 7B Instruct v0.3 and Mistral Nemo. (Later ones have `[ARGS]` between
name and arguments; they are not of this format.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from headrace.gpu_engine.text.tools.calls import CallReader, Item, ToolCall
from headrace.gpu_engine.text.tools.spans import Span, end_of_value, held_back, skip_space

MARK = "[TOOL_CALLS]"


class MistralScanner:
    """`offered`: names of the tools."""

    def __init__(self, offered: Collection[str]) -> None:
        self._reader = CallReader(offered)
        self._found: deque[ToolCall] = deque()  # of the array that ends at `_behind`
        self._behind = 0

    def next(self, rest: str, *, ended: bool) -> tuple[Item, str] | None:
        at = rest.find(MARK)
        if at == 0:
            return self._calls(rest, ended=ended)
        if at < 0:
            at = len(rest) - (0 if ended else held_back(rest, MARK))
        return (rest[:at], rest[at:]) if at else None

    def _calls(self, rest: str, *, ended: bool) -> tuple[Item, str] | None:
        """The mark goes with the last call of its array."""
        if not self._found:
            no_call = MARK, rest[len(MARK) :]
            start = skip_space(rest, len(MARK))
            end = end_of_value(rest, start)
            if isinstance(end, Span):
                return None if end is Span.UNFINISHED and not ended else no_call
            calls = self._reader.calls(rest[start:end])
            if calls is None:
                return no_call
            self._found.extend(calls)
            self._behind = end
        call = self._found.popleft()
        return call, rest if self._found else rest[self._behind :]
