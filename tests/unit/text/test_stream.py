"""Tokens in, showable text out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.text.contract import Tokenizer
from headrace.gpu_engine.text.stream import TextStream, open_text
from tests.unit.text.test_detokenize import BYTE_LEVEL, SENTENCEPIECE, byte_ids, one_by_one
from tests.unit.text.test_stop import expected

LETTERS = st.text("ab\u00e9\u6f22\U0001f600", max_size=30)
STOPS = st.lists(st.text("ab\u00e9\u6f22\U0001f600", min_size=1, max_size=3), max_size=3)


@settings(deadline=None, max_examples=150)
@given(text=LETTERS, stops=STOPS, data=st.data())
def test_text_ends_before_the_stop_string_across_tokens_chunks_and_utf8_pieces(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    tokenizer = data.draw(st.sampled_from([BYTE_LEVEL, SENTENCEPIECE]))
    ids = byte_ids(tokenizer, text.encode())
    cut = data.draw(st.integers(0, len(ids)))
    stream = TextStream(tokenizer, tokenizer.encode("b a"), stops)
    shown = [stream.feed(ids[:cut]), stream.feed(ids[cut:]), stream.flush()]
    assert ("".join(shown), stream.stopped) == expected(text, stops)


def test_a_stop_string_is_not_formed_with_the_tail_of_the_prompt() -> None:
    stream = TextStream(BYTE_LEVEL, BYTE_LEVEL.encode("the e"), ["end"])
    assert stream.feed(BYTE_LEVEL.encode("nd of it")) == "nd of it"
    assert not stream.stopped


def test_an_interrupted_answer_replayed_in_one_go_continues_without_a_seam() -> None:
    text = "na\u00efve \U0001f600 caf\u00e9 STO not STOP \u6f22\u5b57"
    ids = byte_ids(BYTE_LEVEL, text.encode())
    for cut in range(len(ids)):
        first, second = TextStream(BYTE_LEVEL, [], ["STOP"]), TextStream(BYTE_LEVEL, [], ["STOP"])
        shown = "".join([first.feed([token_id]) for token_id in ids[:cut]])
        assert second.feed(ids[:cut]) == shown
        assert (
            "".join([shown, *(second.feed([i]) for i in ids[cut:]), second.flush()]) == text.split("STOP")[0]
        )


def test_held_back_text_is_flushed_when_the_answer_ends_by_length() -> None:
    stream = TextStream(BYTE_LEVEL, [], ["stop"])
    shown = [stream.feed(chunk) for chunk in one_by_one(byte_ids(BYTE_LEVEL, b"a sto"))]
    assert ("".join(shown), stream.flush()) == ("a ", "sto")


def test_held_back_text_and_a_partial_character_are_flushed_in_order() -> None:
    stream = TextStream(BYTE_LEVEL, [], ["stop"])
    shown = stream.feed(byte_ids(BYTE_LEVEL, b"a sto" + "\u20ac".encode()[:2]))
    assert (shown, stream.flush()) == ("a ", "sto\ufffd")


def test_nothing_is_shown_after_a_stop_string() -> None:
    stream = TextStream(BYTE_LEVEL, [], ["stop"])
    assert stream.feed(BYTE_LEVEL.encode("a stop b")) == "a "
    assert (stream.stopped, stream.feed(BYTE_LEVEL.encode("c")), stream.flush()) == (True, "", "")


def test_special_tokens_show_in_the_text_where_they_are_asked_for(smollm: Tokenizer) -> None:
    prompt = smollm.encode("<|im_start|>user\nHi<|im_end|>")
    answer = smollm.encode("One<|im_end|>\n<|im_start|>two")
    for skip, shown in [
        (True, "user\nHi" + "One\ntwo"),
        (False, "<|im_start|>user\nHi<|im_end|>" + "One<|im_end|>\n<|im_start|>two"),
    ]:
        params = SamplingParams(skip_special_tokens=skip, echo=True)
        stream = open_text(smollm, prompt, params)
        pieces = [stream.feed([token]) for token in answer]
        assert "".join([*pieces, stream.flush()]) == shown


def test_a_special_token_that_ends_an_answer_is_no_text_of_it_even_then(smollm: Tokenizer) -> None:
    stream = open_text(smollm, [], SamplingParams(skip_special_tokens=False))
    tokens = smollm.encode("One<|im_end|>")
    assert stream.feed(tokens, ended=True) + stream.flush() == "One"
