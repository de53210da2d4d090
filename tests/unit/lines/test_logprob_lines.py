"""Log probabilities in result lines, field by field as in the OpenAI API."""

from headrace.broker.events import TokenLogprobs
from headrace.broker.lines.logprobs import chat_logprobs, text_logprobs

TEXTS = {1: "Hé", 2: " you", 3: "\ufffd", 4: "\ufffd", 5: ""}
SCORES = [
    TokenLogprobs(1, -0.1, ((1, -0.1), (2, -3.0))),
    TokenLogprobs(3, -0.5, ((4, -0.2), (3, -0.5))),
    TokenLogprobs(2, -9.0, ((1, -0.3),)),
]


def spell(token: int) -> str:
    return TEXTS[token]


def test_a_chat_tells_each_token_with_its_bytes_and_the_likeliest_beside_it() -> None:
    told = chat_logprobs(SCORES[:1], spell)
    hello = {"token": "Hé", "logprob": -0.1, "bytes": [72, 195, 169]}
    you = {"token": " you", "logprob": -3.0, "bytes": [32, 121, 111, 117]}
    assert told == {"content": [{**hello, "top_logprobs": [hello, you]}], "refusal": None}


def test_half_a_character_has_no_bytes() -> None:
    told = chat_logprobs(SCORES[1:2], spell)
    assert told is not None
    assert "'bytes': None" in str(told["content"])


def test_a_completion_tells_columns_and_the_chosen_token_is_always_among_the_likeliest() -> None:
    assert text_logprobs(SCORES, spell) == {
        "tokens": ["Hé", "\ufffd", " you"],
        "token_logprobs": [-0.1, -0.5, -9.0],
        "top_logprobs": [
            {"Hé": -0.1, " you": -3.0},
            {"\ufffd": -0.2},
            {"Hé": -0.3, " you": -9.0},
        ],
        "text_offset": [0, 2, 3],
    }


def test_where_none_were_asked_for_there_is_null() -> None:
    assert chat_logprobs([], spell) is None
    assert text_logprobs([], spell) is None
