"""What is refused before it costs anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from headrace.broker.lines.request import LineError, ParsedRequest, Sampling
from headrace.consumer.prepare import CHARACTERS_PER_TOKEN, Prepared, Preparer
from headrace.gpu_engine.text.sim import SimTokenizer

LONGEST = 2
MOST = LONGEST * CHARACTERS_PER_TOKEN


class CountingTokenizer(SimTokenizer):
    """Knows whether it was asked."""

    asked = 0

    def encode(self, text: str) -> list[int]:
        self.asked += 1
        return super().encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        self.asked += 1
        return super().encode_chat(messages)


@pytest.fixture
def tokenizer() -> CountingTokenizer:
    return CountingTokenizer()


@pytest.fixture
def preparer(tokenizer: CountingTokenizer) -> Iterator[Preparer]:
    preparer = Preparer(tokenizer, ["words"], max_input_length=LONGEST)
    yield preparer
    preparer.close()


def chat(*contents: object) -> ParsedRequest:
    messages = [{"role": "user", "content": content} for content in contents]
    return ParsedRequest("/v1/chat/completions", "c", None, messages, None, Sampling())


def completion(prompt: str | list[int]) -> ParsedRequest:
    return ParsedRequest("/v1/completions", "c", None, None, prompt, Sampling())


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (completion("x" * (MOST + 1)), "prompt"),
        (chat("x" * (MOST // 2), "y" * (MOST // 2)), "messages"),
        (chat([{"type": "text", "text": "x" * MOST}]), "messages"),
    ],
)
async def test_a_text_that_cannot_fit_is_refused_without_tokenising_it(
    preparer: Preparer, tokenizer: CountingTokenizer, request_: ParsedRequest, param: str
) -> None:
    refused = await preparer.tokenise(request_, [])
    assert isinstance(refused, LineError)
    assert (refused.code, refused.param) == ("context_length_exceeded", param)
    assert f"more than {LONGEST} tokens" in refused.message
    assert tokenizer.asked == 0


@pytest.mark.parametrize("request_", [completion("x" * MOST), completion([1] * (MOST + 1)), chat("hello")])
async def test_what_may_fit_is_left_for_the_engine_to_judge(
    preparer: Preparer, request_: ParsedRequest
) -> None:
    assert isinstance(await preparer.tokenise(request_, []), Prepared)
