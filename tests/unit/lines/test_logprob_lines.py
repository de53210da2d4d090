"""Log probabilities in result lines, field by field as in the OpenAI API."""

from headrace.broker.events import TokenLogprobs
from headrace.broker.lines.logprobs import Prompt, chat_logprobs, prompt_logprobs, text_logprobs

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
            {"\ufffd": -0.5},
            {"Hé": -0.3, " you": -9.0},
        ],
        "text_offset": [0, 2, 3],
    }


def test_where_none_were_asked_for_there_is_null() -> None:
    assert chat_logprobs([], spell) is None
    assert text_logprobs([], spell) is None


def test_of_an_echoed_prompt_the_scores_stand_before_the_answers_and_the_first_token_has_none() -> None:
    prompt = Prompt([2, 1, 3], [SCORES[0], SCORES[1]])
    told = text_logprobs(SCORES[2:], spell, prompt, 1)
    assert told == {
        "tokens": [" you", "H\u00e9", "\ufffd", " you"],
        "token_logprobs": [None, -0.1, -0.5, -9.0],
        "top_logprobs": [None, {"H\u00e9": -0.1}, {"\ufffd": -0.5}, {"H\u00e9": -0.3, " you": -9.0}],
        "text_offset": [0, 4, 6, 7],
    }


def test_a_prompts_own_are_told_by_id_with_the_rank_where_it_is_known() -> None:
    told = prompt_logprobs(Prompt([2, 3, 2], [SCORES[1], SCORES[2]]), 1, spell)
    assert told == [
        None,
        {
            "3": {"logprob": -0.5, "rank": None, "decoded_token": "\ufffd"},
            "4": {"logprob": -0.2, "rank": 1, "decoded_token": "\ufffd"},
        },
        {
            "2": {"logprob": -9.0, "rank": None, "decoded_token": " you"},
            "1": {"logprob": -0.3, "rank": 1, "decoded_token": "H\u00e9"},
        },
    ]
