"""The simulated engine's tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.text.contract import TextError
from headrace.gpu_engine.text.load import load_tokenizer
from headrace.gpu_engine.text.sim import EOS, SimTokenizer
from headrace.gpu_engine.text.stream import TextStream

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None)
@given(text=TEXT, prompt=TEXT)
def test_text_survives_the_way_to_tokens_and_back_whole_and_in_pieces(text: str, prompt: str) -> None:
    tokenizer = SimTokenizer()
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer, tokenizer.encode(prompt))
    assert "".join([*(stream.feed([token_id]) for token_id in ids), stream.flush()]) == text
    assert tokenizer.decode([*ids, EOS]) == text


def test_conversations_that_differ_have_prompts_that_differ() -> None:
    tokenizer = SimTokenizer()
    one = tokenizer.encode_chat([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    two = tokenizer.encode_chat([{"role": "user", "content": "a\nuser\nb"}])
    assert one != two
    assert tokenizer.decode(one) == "userauserbassistant"


def test_every_id_lies_within_the_vocabulary() -> None:
    ids = SimTokenizer().encode_chat([{"role": "user", "content": "\U0001f600"}])
    assert max([*ids, *SimTokenizer.eos_ids]) < SimTokenizer.vocab_size


def test_the_simulated_engine_needs_no_model() -> None:
    assert isinstance(load_tokenizer("", engine="sim"), SimTokenizer)


def test_a_lone_surrogate_is_an_error_that_says_where() -> None:
    with pytest.raises(TextError, match=r"U\+D800\) at character 2"):
        SimTokenizer().encode("ab\ud800")


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    tokenizer = SimTokenizer()
    assert tokenizer.encode_chat([{"role": "user", "content": parts}]) == tokenizer.encode_chat(
        [{"role": "user", "content": "a\nb"}]
    )


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "conversation is empty"),
        (["hi"], "Message 0 is no object"),
        ([{"content": "x"}], "Message 0 has no `role`"),
        ([{"role": 3, "content": "x"}], "Message 0 has no `role`"),
        ([{"role": "user"}], "`content` of message 0"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": []}], "`content` of message 1"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "part that is no text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "part that is no text"),
        ([{"role": "user", "content": "\udfff"}], "lone surrogate"),
        ([{"role": "\udfff", "content": ""}], "lone surrogate"),
    ],
)
def test_messages_that_make_no_conversation_are_refused_with_a_sentence(
    messages: list[dict[str, object]], sentence: str
) -> None:
    with pytest.raises(TextError, match=sentence):
        SimTokenizer().encode_chat(messages)
