"""Incremental detokenising: token ids in, text out as soon as it is certain.

Decoding the whole answer for every token would cost the square of its length. Decoding each token alone
would be wrong twice over: a character may be spread over several tokens, and a sentencepiece tokenizer
drops the space of whatever comes first. So each step decodes the few *pending* tokens behind an *anchor*,
a token or two of earlier text that make the tokenizer see a continuation:

    prompt: … "assistant" "\\n"       output: "Hi" " " F0 9F 98 80 "!"
                          └anchor                    └pending┘

Most tokens are whole characters, and most tokenizers give such a token the same text wherever it follows
text: then it is decoded once, and looked up ever after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# A UTF-8 character that lacks its end has at most three bytes. Tokenizers show them as one replacement
# character (byte-level BPE) or as one each (sentencepiece byte tokens): never more than this many are open.
_OPEN_AT_MOST = 3

# How far from its end the prompt is searched for an anchor, in tokens.
_ANCHOR_SEARCH = 16

# Tokens without text that are kept while nothing was shown yet: one of them may be a leading space.
_SILENT_AT_MOST = 16


class Decoder(Protocol):
    """The part of a tokenizer that detokenising needs.

    `pieces`: what tokens of whole characters add to any text that is not empty, as far as it is known by now;
    detokenisers add to it. None where a token's text depends on its neighbours.
    """

    @property
    def pieces(self) -> dict[int, str] | None: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class IncrementalDetokenizer:
    """Text of one answer, token by token; O(1) amortised per token.

    All pieces joined, with `flush()` last, are `decode(output_ids)` exactly for byte-level tokenizers, and
    what `decode(prompt_ids + output_ids)` adds to the prompt's text for those that treat the first token
    differently. A piece never ends in half a character or in a U+FFFD that further tokens could complete. A
    character that the prompt left unfinished is the prompt's: it is neither completed nor repeated.

    Where a tokenizer turns valid bytes into U+FFFD because invalid ones follow (sentencepiece byte tokens
    do), the valid ones that were shown stay: text is never taken back.
    """

    __slots__ = ("_anchor", "_anchor_text", "_decoder", "_pending", "_pieces", "_shown")

    def __init__(self, decoder: Decoder, prompt_ids: Sequence[int] = ()) -> None:
        self._decoder = decoder
        self._pieces = decoder.pieces
        self._anchor, self._anchor_text = _find_anchor(decoder, prompt_ids)
        self._pending: list[int] = []
        self._shown = 0  # characters of the pending tokens' text that were given out

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens made certain; may be empty."""
        if len(token_ids) == 1:  # nearly always
            return self._feed_one(token_ids[0])
        return "".join([self._feed_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """What was held back: an unfinished character comes out as U+FFFD."""
        rest = self._text(self._pending)[self._shown :] if self._pending else ""
        self._pending, self._shown = [], 0
        return rest

    def _feed_one(self, token_id: int) -> str:
        if self._pieces is None or self._pending or not self._anchor:
            return self._decode_one(token_id)
        piece = self._pieces.get(token_id)
        return self._decode_one(token_id) if piece is None else piece

    def _decode_one(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._text(self._pending)
        open_characters = _count_open(text)
        certain = len(text) - open_characters
        piece = text[self._shown : certain]
        if open_characters or not text:
            self._shown = max(self._shown, certain)
            self._shorten(text, certain)
        else:
            self._settle(text)
        return piece

    def _settle(self, text: str) -> None:
        """All that is pending is whole."""
        if not self._anchor:
            self._anchor, self._anchor_text = self._pending, text
        elif len(self._pending) == 1 and self._pieces is not None:
            self._pieces[self._pending[0]] = text
        self._pending, self._shown = [], 0

    def _shorten(self, text: str, certain: int) -> None:
        """Keeps the pending tokens few, however long a model goes on with broken or silent ones."""
        if not self._text(self._pending[-1:]) and (self._anchor or len(self._pending) > _SILENT_AT_MOST):
            self._pending.pop()
        for count in range(1, len(self._pending) if certain else 0):
            head = self._text(self._pending[:count])
            if len(head) > certain:
                return
            if head and head + self._text(self._pending[count:]) == text:
                del self._pending[:count]
                self._shown -= len(head)
                return

    def _text(self, token_ids: Sequence[int]) -> str:
        if not self._anchor:
            return self._decoder.decode(token_ids)
        text = self._decoder.decode([*self._anchor, *token_ids])
        if text.startswith(self._anchor_text):
            return text[len(self._anchor_text) :]
        return self._decoder.decode(token_ids)  # broken bytes spoiled an anchor of byte tokens


def _count_open(text: str) -> int:
    """Replacement characters at the end of `text` that further bytes might still turn into a character."""
    trailing = len(text) - len(text.rstrip(REPLACEMENT))
    return min(trailing, _OPEN_AT_MOST)


def _find_anchor(decoder: Decoder, prompt_ids: Sequence[int]) -> tuple[list[int], str]:
    """The shortest run of tokens near the prompt's end that is text of whole characters, and that text."""
    tail = list(prompt_ids[-_ANCHOR_SEARCH:])
    for end in range(len(tail), max(len(tail) - _OPEN_AT_MOST, 0) - 1, -1):
        for start in range(end - 1, -1, -1):
            text = decoder.decode(tail[start:end])
            if text and REPLACEMENT not in text:
                return tail[start:end], text
    return [], ""
