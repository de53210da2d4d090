"""Tokenizers of real models, through transformers: Hugging Face folders and GGUF files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headrace.gpu_engine.models.errors import ModelError, one_line
from headrace.gpu_engine.text.chat import check_text, plain_messages
from headrace.gpu_engine.text.contract import TextError
from headrace.gpu_engine.text.detokenize import Decoder
from headrace.gpu_engine.text.tools.formats import CallFormat, detect_format, knows_tools

TURN_ENDS: Final = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""With what models of our families end a turn; llama.cpp knows them by these names, too."""


class HfTokenizer:
    """A transformers tokenizer behind our contract.

    Encoding and decoding go to the Rust tokenizer directly: transformers' own call sets truncation on the
    shared object each time, which fails when two threads encode at once.

    Special tokens written out in a prompt (`<|im_end|>`) become those tokens, in raw prompts and in chat
    messages alike, as in transformers and vLLM: the template is rendered first, then the whole text is
    encoded. A service that keeps a system prompt from strangers must filter their text itself.

    `call_format`: how the model calls tools, where its template tells it of tools; None: as the template
    shows.
    """

    def __init__(
        self,
        tokenizer: Any,
        extra_eos_ids: frozenset[int] = frozenset(),
        call_format: CallFormat | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        template = _templates(tokenizer)
        self.call_format = (call_format or detect_format(template)) if knows_tools(template) else None
        marks = self.call_format.marks if self.call_format is not None else ()
        self._backend = as_text(tokenizer.backend_tokenizer, marks)
        self._backend.no_truncation()  # what tokenizer.json asks for was meant for training
        self._backend.no_padding()
        own = tokenizer.eos_token_id
        self._eos_ids = extra_eos_ids | (frozenset() if own is None else frozenset({int(own)}))
        self._fingerprint = self._compute_fingerprint()
        self.pieces: dict[int, str] | None = {} if is_local(self._backend.decoder) else None
        self._verbatim = Verbatim(self._backend)

    @property
    def fingerprint(self) -> str:
        """BLAKE2b over the whole tokenizer, its chat template and its end tokens."""
        return self._fingerprint

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    @property
    def vocab_size(self) -> int:
        """Ids that mean something; a model's output layer may be padded beyond them."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with bos where the model expects it. Raises TextError."""
        return list(self._backend.encode(check_text(text), add_special_tokens=True).ids)

    def encode_piece(self, text: str) -> list[int]:
        """Ids of text alone. Raises TextError."""
        return list(self._backend.encode(check_text(text), add_special_tokens=False).ids)

    def to_json(self) -> str | None:
        """As Hugging Face's tokenizer.json."""
        return str(self._backend.to_str())

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Ids of a conversation up to where the assistant begins. Raises TextError."""
        if tools and self.call_format is None:
            raise TextError(
                "Tools cannot be used: the model's chat template knows none, or shows no form of calls that "
                "is known here; leave them out, or let the engine's tool_call_format name the form."
            )
        plain = plain_messages(messages)
        self._check_calls(plain)
        text = self._render(plain, list(tools) or None)
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens and without transformers' tidying of spaces, which would change text
        that was shown; U+FFFD for bytes that are no character. Ids without meaning show nothing."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    @property
    def verbatim(self) -> Decoder:
        """For text in which special tokens show."""
        return self._verbatim

    def _check_calls(self, messages: Sequence[Mapping[str, object]]) -> None:
        """A template that knows nothing of calls would leave them out in silence."""
        index = next((index for index, message in enumerate(messages) if message.get("tool_calls")), None)
        if index is not None and "tool_calls" not in str(self._tokenizer.chat_template):
            raise TextError(
                f"Message {index} has `tool_calls`, which the model's chat template would leave out; write "
                "them into its `content`, or use a model that calls tools."
            )

    def _render(self, messages: list[dict[str, object]], tools: list[Mapping[str, object]] | None) -> str:
        if self._tokenizer.chat_template is None:
            raise TextError("The model has no chat template; send a text prompt instead of messages.")
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            # A template is the model's own program: it fails on what it did not foresee as programs do.
            raise TextError(f"The model's chat template refuses these messages: {error}") from error
        return check_text(str(rendered))

    def _compute_fingerprint(self) -> str:
        digest = hashlib.blake2b(self._backend.to_str().encode(), digest_size=16)
        digest.update(json.dumps([self._tokenizer.chat_template, sorted(self._eos_ids)]).encode())
        return digest.hexdigest()


class Verbatim:
    """Decodes special tokens as they are written."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.pieces: dict[int, str] | None = {} if is_local(backend.decoder) else None

    def decode(self, token_ids: Sequence[int]) -> str:
        """As `HfTokenizer.decode`, with special tokens."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))


def is_local(decoder: Any) -> bool:
    """Whether a token of whole characters has the same text wherever it follows text: true of byte-level
    decoders, and of sentencepiece's, which look at bytes and at the very beginning only."""
    known = json.loads(decoder.__getstate__()) if decoder is not None else {}
    kinds = [part["type"] for part in known.get("decoders", [known]) if part]
    return bool(kinds) and set(kinds) <= {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip"}


def as_text(backend: Any, marks: Sequence[str]) -> Any:
    """The tokenizer, with `marks` among its special tokens made tokens of text: decoding shows them, and a
    grammar that spells one out lets its token follow."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    if special.isdisjoint(marks):
        return backend
    known = json.loads(backend.to_str())
    for token in known["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in marks
    return Tokenizer.from_str(json.dumps(known))


def _templates(tokenizer: Any) -> str:
    """All of them: some models have one for each purpose."""
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""


def load_hf_tokenizer(path: Path, call_format: CallFormat | None = None) -> HfTokenizer:
    """The tokenizer in a folder or a GGUF file. Raises ModelError."""
    try:
        tokenizer = _load_gguf(path) if path.is_file() else _load_folder(path)
    except Exception as error:
        # transformers and tokenizers raise whatever a broken file leads them to, bare Exception included.
        raise ModelError(
            f"The tokenizer of {path} cannot be read ({one_line(error)}); check that its files are complete."
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(f"The tokenizer of {path} has no fast form; save it with a tokenizer.json first.")
    eos_ids = _read_eos_ids(path) if path.is_dir() else _find_turn_ends(tokenizer)
    return HfTokenizer(tokenizer, eos_ids, call_format)


def _load_folder(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)


def _load_gguf(file: Path) -> Any:
    # Not AutoTokenizer: it gives the same tokenizer, but parses the file's whole metadata first to find out.
    return PreTrainedTokenizerFast.from_pretrained(
        str(file.parent), gguf_file=file.name, local_files_only=True
    )


def _read_eos_ids(folder: Path) -> frozenset[int]:
    """End tokens that generation_config.json or config.json name beside the tokenizer's own: chat models
    often end a turn and a text with different ones. Raises ModelError."""
    files = (folder / name for name in ("generation_config.json", "config.json"))
    return frozenset(chain.from_iterable(_eos_ids_in(file) for file in files if file.is_file()))


def _find_turn_ends(tokenizer: Any) -> frozenset[int]:
    """A GGUF file names one end token, often that of a text: nobody tells of the one that ends a turn."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return frozenset(i for i, token in added.items() if token.special and token.content in TURN_ENDS)


def _eos_ids_in(file: Path) -> Sequence[int]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_EndTokens).ids
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{file} is wrong ({one_line(error)}); check it against the model's own.") from error


class _EndTokens(msgspec.Struct):
    eos_token_id: int | list[int] | None = None

    @property
    def ids(self) -> list[int]:
        if isinstance(self.eos_token_id, list):
            return self.eos_token_id
        return [] if self.eos_token_id is None else [self.eos_token_id]
