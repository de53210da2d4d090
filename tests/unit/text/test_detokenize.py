"""Joined pieces are the whole text, and no piece holds half a character."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from headrace.gpu_engine.text.detokenize import REPLACEMENT, Decoder, IncrementalDetokenizer
from headrace.gpu_engine.text.hf import is_local
from tests.unit.text.tokenizers_for_tests import PlainTokenizer, byte_level_tokenizer, sentencepiece_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()

# Latin, CJK, right-to-left, combining marks, emoji with joiners, and U+FFFD itself.
SCRIPTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("abc \n\u00e9\u6f22\u5b57\u3042\u0645\u0631\u05e9\u05dc\u0301\u0303\u200d\ufffd"),
        st.sampled_from("\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea"),
    ),
    max_size=30,
)
PROPERTY = settings(deadline=None, max_examples=150)


class Decoding:
    """A tokenizer whose decoding is counted, with `pieces` of its own."""

    def __init__(self, tokenizer: PlainTokenizer, pieces: dict[int, str] | None) -> None:
        self.pieces, self._tokenizer, self.calls = pieces, tokenizer, 0

    def decode(self, token_ids: Sequence[int]) -> str:
        self.calls += 1
        return self._tokenizer.decode(token_ids)


def pieces(tokenizer: Decoder, prompt: Sequence[int], chunks: Sequence[Sequence[int]]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [*(detokenizer.feed(chunk) for chunk in chunks), detokenizer.flush()]


def split(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5).map(sorted))
    return [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def one_by_one(ids: Sequence[int]) -> list[list[int]]:
    return [[token_id] for token_id in ids]


@PROPERTY
@given(prompt=SCRIPTS, text=SCRIPTS, data=st.data())
def test_joined_pieces_are_the_text_in_every_script_however_tokens_are_grouped(
    prompt: str, text: str, data: st.DataObject
) -> None:
    ids = BYTE_LEVEL.encode(text)
    assert "".join(pieces(BYTE_LEVEL, BYTE_LEVEL.encode(prompt), split(data, ids))) == text


@PROPERTY
@given(data=st.data())
def test_joined_pieces_equal_decode_for_any_token_ids_of_a_byte_level_tokenizer(data: st.DataObject) -> None:
    any_ids = st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=40)
    prompt, ids = data.draw(any_ids), data.draw(any_ids)
    assert "".join(pieces(BYTE_LEVEL, prompt, split(data, ids))) == BYTE_LEVEL.decode(ids)


@PROPERTY
@given(data=st.data())
def test_broken_bytes_come_out_as_decode_shows_them(data: st.DataObject) -> None:
    lead_and_tail_bytes = [BYTE_LEVEL.encode(c)[0] for c in "a"] + [
        BYTE_LEVEL.id_of(c) for c in "\u00f0\u0141\u013a\u0122\u00c3\u00a9\u00e2\u0124\u00bf\u00ff"
    ]
    ids = data.draw(st.lists(st.sampled_from(lead_and_tail_bytes), max_size=40))
    assert "".join(pieces(BYTE_LEVEL, [], one_by_one(ids))) == BYTE_LEVEL.decode(ids)


@PROPERTY
@given(text=SCRIPTS.filter(lambda text: REPLACEMENT not in text))
def test_no_piece_of_valid_text_holds_a_replacement_character(text: str) -> None:
    for tokenizer in (BYTE_LEVEL, SENTENCEPIECE):
        assert REPLACEMENT not in "".join(pieces(tokenizer, [], one_by_one(tokenizer.encode(text))))


@PROPERTY
@given(prompt=st.text("ab !\n\u00e9\u6f22\U0001f600", min_size=1, max_size=8), text=SCRIPTS)
def test_a_sentencepiece_answer_continues_the_prompt_with_its_leading_space(prompt: str, text: str) -> None:
    prompt_ids, ids = SENTENCEPIECE.encode(prompt), SENTENCEPIECE.encode(text)
    shown = "".join(pieces(SENTENCEPIECE, prompt_ids, one_by_one(ids)))
    assert SENTENCEPIECE.decode(prompt_ids) + shown == SENTENCEPIECE.decode([*prompt_ids, *ids])


def test_a_sentencepiece_answer_without_prompt_text_has_no_leading_space() -> None:
    bos = SENTENCEPIECE.id_of("<s>")
    ids = [SENTENCEPIECE.id_of("\u2581Hello"), SENTENCEPIECE.id_of("\u2581world")]
    assert pieces(SENTENCEPIECE, [bos], one_by_one(ids)) == ["Hello", " world", ""]


def test_spaces_of_indentation_are_kept_at_the_start_of_a_sentencepiece_answer() -> None:
    space = SENTENCEPIECE.id_of("\u2581")
    ids = [space, space, space, SENTENCEPIECE.id_of("a")]
    assert "".join(pieces(SENTENCEPIECE, [], one_by_one(ids))) == SENTENCEPIECE.decode(ids) == "  a"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_a_character_spread_over_tokens_comes_out_whole_with_its_last_byte(tokenizer: PlainTokenizer) -> None:
    ids = byte_ids(tokenizer, "a\U00010348".encode())
    assert pieces(tokenizer, [], one_by_one(ids)) == ["a", "", "", "", "\U00010348", ""]


@PROPERTY
@given(data=st.data())
def test_text_that_was_looked_up_is_the_text_that_would_have_been_decoded(data: st.DataObject) -> None:
    for tokenizer in (BYTE_LEVEL, SENTENCEPIECE):
        any_ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20)
        prompt, answers = data.draw(any_ids), data.draw(st.lists(any_ids, max_size=4))
        once = Decoding(tokenizer, {})
        for ids in answers:
            shared = pieces(once, prompt, one_by_one(ids))
            assert shared == pieces(Decoding(tokenizer, None), prompt, one_by_one(ids))


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_a_token_of_whole_characters_is_decoded_once(tokenizer: PlainTokenizer) -> None:
    prompt, ids = byte_ids(tokenizer, b"a!"), byte_ids(tokenizer, b"!a")
    once = Decoding(tokenizer, {})
    assert pieces(once, prompt, [ids]) == ["!a", ""]
    once.calls = 0
    detokenizer = IncrementalDetokenizer(once, prompt)
    anchoring = once.calls
    assert detokenizer.feed(ids * 10) == "!a" * 10
    assert once.calls == anchoring


def test_a_tokenizer_of_an_unknown_kind_is_asked_for_every_token() -> None:
    assert is_local(decoders.ByteLevel())
    assert not is_local(decoders.WordPiece())
    assert not is_local(decoders.Sequence([decoders.ByteLevel(), decoders.CTC()]))
    assert not is_local(None)


def test_a_partial_character_at_the_end_is_flushed_as_one_replacement_character() -> None:
    ids = byte_ids(BYTE_LEVEL, "ok\U00010348".encode()[:-1])
    assert pieces(BYTE_LEVEL, [], one_by_one(ids))[-2:] == ["", REPLACEMENT]


def test_text_before_a_partial_character_in_the_same_token_is_shown_at_once() -> None:
    class TwoPieces:
        pieces: dict[int, str] | None = None

        def decode(self, token_ids: Sequence[int]) -> str:
            data = b"".join({0: b"x \xf0\x9f", 1: b"\x98\x80y"}[token_id] for token_id in token_ids)
            return data.decode("utf-8", "replace")

    detokenizer = IncrementalDetokenizer(TwoPieces())
    assert [detokenizer.feed([0]), detokenizer.feed([1]), detokenizer.flush()] == ["x ", "\U0001f600y", ""]


def test_a_prompt_that_ends_mid_character_is_not_repeated() -> None:
    prompt = byte_ids(BYTE_LEVEL, "prompt \U00010348".encode()[:-1])
    assert "".join(pieces(BYTE_LEVEL, prompt, one_by_one(BYTE_LEVEL.encode("answer")))) == "answer"


def test_special_tokens_show_nothing_and_hide_nothing() -> None:
    end = BYTE_LEVEL.id_of("<|end|>")
    first, *rest = byte_ids(BYTE_LEVEL, "\U00010348".encode())
    assert "".join(pieces(BYTE_LEVEL, [], one_by_one([end, first, end, *rest, end]))) == "\U00010348"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
@pytest.mark.parametrize(
    "unit",
    [b"\xff", b"\xf0\x9f\x98", b"\xe2\x82", b"\x80", "\ufffd".encode(), b"a", "\u6f22".encode()],
    ids=["never valid", "cut emoji", "cut euro", "stray", "real U+FFFD", "ascii", "cjk"],
)
def test_the_tokens_decoded_per_step_stay_few_however_long_the_answer(
    tokenizer: PlainTokenizer, unit: bytes
) -> None:
    widest = 0

    class Counting:
        pieces: dict[int, str] | None = None

        def decode(self, token_ids: Sequence[int]) -> str:
            nonlocal widest
            widest = max(widest, len(token_ids))
            return tokenizer.decode(token_ids)

    detokenizer = IncrementalDetokenizer(Counting())
    end = tokenizer.id_of("<|end|>" if tokenizer is BYTE_LEVEL else "</s>")
    for token_id in byte_ids(tokenizer, b"a" + unit * 60):
        detokenizer.feed([token_id, end])
    assert widest <= 16


def test_an_answer_of_special_tokens_alone_keeps_no_growing_state() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert detokenizer.feed([BYTE_LEVEL.id_of("<|end|>")] * 1000) == ""
    assert len(detokenizer._pending) <= 16


def byte_ids(tokenizer: PlainTokenizer, data: bytes) -> list[int]:
    """One token per byte."""
    if tokenizer is SENTENCEPIECE:
        return [tokenizer.id_of(f"<0x{byte:02X}>") for byte in data]
    return [tokenizer.id_of(BYTE_TOKENS[byte]) for byte in data]


def _byte_tokens() -> dict[int, str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + n) for n, byte in enumerate(moved)}


BYTE_TOKENS = _byte_tokens()
