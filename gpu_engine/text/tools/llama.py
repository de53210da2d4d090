"""Calls as Llama 3 models write them: an answer that is nothing but objects, with `;` between them.

    {"name": "weather", "parameters": {"city": "Oslo"}}

Some put the mark `<|python_tag|>` first. An object that comes behind text is text. Source: the chat templates
of Llama 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.gpu_engine.text.tools.calls import CallReader, Item
from headrace.gpu_engine.text.tools.spans import Span, end_of_value, skip_space

TAG, BETWEEN = "<|python_tag|>", ";"


class LlamaScanner:
    """`offered`: names of the tools."""

    def __init__(self, offered: Collection[str]) -> None:
        self._reader = CallReader(offered)
        self._prefix = TAG  # what may stand before the next call
        self._is_text = False

    def next(self, rest: str, *, ended: bool) -> tuple[Item, str] | None:
        if self._is_text:
            return rest, ""
        start = skip_space(rest, 0)
        if rest.startswith(self._prefix, start):
            start = skip_space(rest, start + len(self._prefix))
        elif not ended and self._prefix.startswith(rest[start:]):
            return None
        elif self._prefix == BETWEEN:
            return self._text(rest)
        end = end_of_value(rest, start)
        if isinstance(end, Span):
            return None if end is Span.UNFINISHED and not ended else self._text(rest)
        call = self._reader.call(rest[start:end])
        if call is None:
            return self._text(rest)
        self._prefix = BETWEEN
        return call, rest[end:]

    def _text(self, rest: str) -> tuple[Item, str]:
        """From here on it is."""
        self._is_text = True
        return rest, ""
