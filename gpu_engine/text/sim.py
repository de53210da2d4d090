"""The simulated engine's tokenizer: one token per byte, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.gpu_engine.text.chat import check_text, plain_messages
from headrace.gpu_engine.text.contract import TextError
from headrace.gpu_engine.text.tools.formats import CallFormat

EOS = 256
_MESSAGE = 257
_CONTENT = 258


class SimTokenizer:
    """Ids 0 … 255 are the bytes of UTF-8 text, 256 ends an answer or a message, 257 begins a message and 258
    its content. Reversible: `decode(encode(text)) == text`. A user's text can never make a special token."""

    fingerprint = "sim-bytes-1"
    eos_ids = frozenset({EOS})
    vocab_size = 259
    call_format: CallFormat | None = None

    def __init__(self) -> None:
        self.pieces: dict[int, str] | None = {}

    def encode(self, text: str) -> list[int]:
        """The text's bytes; TextError for lone surrogates."""
        return list(check_text(text).encode())

    def encode_piece(self, text: str) -> list[int]:
        """The same: there are no special tokens to add."""
        return self.encode(text)

    def to_json(self) -> str | None:
        """It has no such form."""
        return None

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Each message as 257 role 258 content 256, then the beginning of the assistant's."""
        if tools:
            raise TextError("The simulated engine calls no tools; leave them out.")
        ids: list[int] = []
        for message in plain_messages(messages):
            ids += [_MESSAGE, *self.encode(str(message["role"]))]
            ids += [_CONTENT, *self.encode(str(message["content"])), EOS]
        return [*ids, _MESSAGE, *b"assistant", _CONTENT]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the bytes; special tokens are left out, broken characters become U+FFFD."""
        return bytes([token_id for token_id in token_ids if 0 <= token_id < EOS]).decode("utf-8", "replace")

    @property
    def verbatim(self) -> SimTokenizer:
        """The same: its special tokens are not written anyhow."""
        return self
