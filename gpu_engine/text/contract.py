"""What the rest of the system needs of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.gpu_engine.text.detokenize import Decoder
from headrace.gpu_engine.text.tools.formats import CallFormat


class TextError(Exception):
    """The input cannot be turned into tokens; the text says why. A user's mistake, not ours."""


class Tokenizer(Protocol):
    """`fingerprint` changes when ids would mean something else. `eos_ids` end an answer."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def pieces(self) -> dict[int, str] | None:
        """See `detokenize.Decoder`."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the special tokens that the model expects (bos)."""

    def encode_piece(self, text: str) -> list[int]:
        """Token ids of text within an answer: no special tokens are added. Raises TextError."""

    def to_json(self) -> str | None:
        """The tokenizer in the form of Hugging Face's `tokenizer.json`; None where it has no such form."""

    @property
    def call_format(self) -> CallFormat | None:
        """How the model calls tools; None where it knows none, or its way is not known here."""

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Token ids of a conversation under the model's chat template, up to where the assistant begins.
        `messages` and `tools` are those of the OpenAI API. Raises TextError where the template refuses or
        there is none, and for tools without a `call_format`."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out; bytes that are no character become U+FFFD."""

    @property
    def verbatim(self) -> Decoder:
        """The same for text in which special tokens show as they are written."""
