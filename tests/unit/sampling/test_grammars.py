"""An answer under a grammar follows it, whatever the model would rather say; a wrong grammar is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.gpu_engine.api import EngineError, EngineRequest, Grammar, SamplingParams
from headrace.gpu_engine.sampling.controls import Controls
from headrace.gpu_engine.sampling.guide import GrammarError, GuideMaker, Masks
from headrace.gpu_engine.sampling.known import KnownTokens
from headrace.gpu_engine.sampling.shape import ShapedSampler
from tests.unit.engine.fakes import EOS, Bench, request
from tests.unit.sampling.logit_runner import LogitRunner
from tests.unit.text.tokenizers_for_tests import byte_level_backend

BACKEND = byte_level_backend()
VOCAB = BACKEND.get_vocab_size() + 39  # padded, as output layers are
END = int(BACKEND.token_to_id("<|end|>") or 0)
MAKER = GuideMaker(BACKEND.to_str(), VOCAB, [END])
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHOICE = Grammar(kind="choice", choices=("yes", "no", 'may "be"\n', "漢é"))
REGEX = Grammar(kind="regex", source=r"[0-9]{3}-[a-f]{2,9}(é|漢)")
LARK = Grammar(kind="lark", source='start: "(" start ")" | WORD\nWORD: /[a-c]{1,4}/')


def schema(value: object) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(value))


def answer_under(grammar: Grammar, seed: int, known: Sequence[int] = (), max_tokens: int = 400) -> list[int]:
    """Of a model that says anything, at random, from `known` on; without the end token."""
    tokens = list(known)
    guide = MAKER.make(grammar, KnownTokens(tokens, 0))
    params = SamplingParams(seed=seed, temperature=0.7)
    logits = np.random.default_rng(seed)
    sampler = ShapedSampler()
    while len(tokens) < max_tokens:
        row = logits.normal(size=(1, VOCAB)).astype(np.float32) * 2
        (choice,) = sampler.sample(row, [Controls(guide=guide)], [params], [len(tokens)])
        assert choice.failure is None
        if choice.token == END:
            return tokens
        tokens.append(choice.token)
    raise AssertionError(f"no end after {max_tokens} tokens: {text_of(tokens)}")


def text_of(tokens: Sequence[int]) -> str:
    return str(BACKEND.decode(list(tokens), skip_special_tokens=False))


# --------------------------------------------------------------------------------- what it lets through


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_under_a_schema_is_valid_json_of_that_schema(seed: int) -> None:
    value = json.loads(text_of(answer_under(schema(SCHEMA), seed)))
    assert set(value) == {"name", "age", "tags"}
    assert len(value["name"]) <= 8
    assert 0 <= value["age"] <= 120
    assert set(value["tags"]) <= {"a", "b"}


def test_an_answer_under_a_regular_expression_matches_it_as_a_whole() -> None:
    for seed in range(6):
        assert re.fullmatch(REGEX.source, text_of(answer_under(REGEX, seed)))


def test_an_answer_under_a_choice_is_one_of_the_choices_and_all_can_come() -> None:
    assert {text_of(answer_under(CHOICE, seed)) for seed in range(12)} == {*CHOICE.choices}


def test_an_answer_under_a_lark_grammar_is_of_its_language() -> None:
    for seed in range(6):
        assert re.fullmatch(r"\(*[a-c]{1,4}\)*", text := text_of(answer_under(LARK, seed)))
        assert text.count("(") == text.count(")")


def test_a_choice_of_ten_thousand_is_not_too_much() -> None:
    grammar = Grammar(kind="json_schema", source=json.dumps({"enum": [f"label {i}" for i in range(10_000)]}))
    assert json.loads(text_of(answer_under(grammar, 1))).startswith("label ")


@pytest.mark.parametrize("count", [2_500, 30_000])
def test_thousands_of_choices_are_not_too_many(count: int) -> None:
    grammar = Grammar(kind="choice", choices=tuple(f"c{i}" for i in range(count)))
    assert text_of(answer_under(grammar, 1)) in grammar.choices


def test_a_choice_that_begins_another_may_end_there_or_go_on() -> None:
    grammar = Grammar(kind="choice", choices=("a", "ab", "abab"))
    assert {text_of(answer_under(grammar, seed)) for seed in range(12)} == {*grammar.choices}


def test_rows_whose_guides_have_all_failed_have_masks_too() -> None:
    tokens: list[int] = []
    guide = MAKER.make(Grammar(kind="regex", source="ab"), KnownTokens(tokens, 0))
    tokens += BACKEND.encode("x").ids
    assert Masks().compute([guide], VOCAB).all()
    assert guide.failure is not None


def test_the_end_token_comes_only_where_the_grammar_may_end_and_then_nothing_else() -> None:
    tokens: list[int] = []
    guide = MAKER.make(Grammar(kind="regex", source="ab?"), KnownTokens(tokens, 0))
    sampler = ShapedSampler()
    may_follow = []
    for letter in "ab ":
        mask = sampler._compute_masks([Controls(guide=guide)], VOCAB)[0]
        may_follow.append({int(token) for token in np.flatnonzero(mask)})
        tokens += BACKEND.encode(letter).ids
    a, b = (BACKEND.encode(letter).ids[0] for letter in "ab")
    assert [a in may_follow[0], END in may_follow[0]] == [True, False]
    assert may_follow[1] == {b, END}
    assert may_follow[2] == {END}


# ------------------------------------------------------------------------- what is known of the answer


@pytest.mark.parametrize("grammar", [schema(SCHEMA), REGEX, LARK, CHOICE], ids=lambda one: one.kind)
def test_a_guide_made_anew_from_half_an_answer_goes_on_where_the_first_one_stood(grammar: Grammar) -> None:
    whole = answer_under(grammar, 3)
    for cut in (1, len(whole) // 2, len(whole)):
        tokens = list(whole[:cut])
        anew = MAKER.make(grammar, KnownTokens(tokens, 0))
        gradual_tokens: list[int] = []
        gradual = MAKER.make(grammar, KnownTokens(gradual_tokens, 0))
        for token in tokens:
            gradual_tokens.append(token)
            gradual.catch_up()
        masks = ShapedSampler()._compute_masks([Controls(guide=anew), Controls(guide=gradual)], VOCAB)
        np.testing.assert_array_equal(masks[0], masks[1])


def test_masks_of_many_rows_are_those_of_each_alone() -> None:
    grammars = [schema(SCHEMA), REGEX, CHOICE, LARK] * 4
    controls = [Controls(guide=MAKER.make(grammar, KnownTokens([], 0))) for grammar in grammars]
    together = ShapedSampler()._compute_masks(controls, VOCAB)
    for i, own in enumerate(controls):
        np.testing.assert_array_equal(together[i], ShapedSampler()._compute_masks([own], VOCAB)[0])


def test_tokens_that_no_grammar_lets_through_fail_their_row_with_a_sentence_and_no_other() -> None:
    tokens: list[int] = []
    lost = Controls(guide=MAKER.make(REGEX, KnownTokens(tokens, 0)))
    sound = Controls(guide=MAKER.make(REGEX, KnownTokens([], 0)))
    tokens += BACKEND.encode("x").ids
    row = np.zeros((2, VOCAB), np.float32)
    greedy = SamplingParams(temperature=0)
    first, second = ShapedSampler().sample(row, [lost, sound], [greedy] * 2, [1, 1])
    assert first.failure is not None
    assert "under its grammar" in first.failure
    assert second.failure is None


# ------------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar(kind="regex", source="(abc"), "unclosed group"),
        (Grammar(kind="lark", source="start: unheard_of"), "unheard_of"),
        (Grammar(kind="lark", source='begin: "a"'), "start"),
        (schema({"type": "cheese"}), "cheese"),
        (schema({"type": "object", "not": {}}), "not"),
        (Grammar(kind="json_schema", source="{"), "no valid JSON"),
        (Grammar(kind="json_schema", source='{"type": "object"}}, {"json_schema": {}'), "no valid JSON"),
        (Grammar(kind="json_schema", source="[1]"), "schema"),
        (schema({"$ref": "https://example.com/schema"}), "example.com"),
    ],
)
def test_a_grammar_that_cannot_be_read_is_refused_in_the_words_of_its_parser(
    grammar: Grammar, words: str
) -> None:
    with pytest.raises(GrammarError) as refusal:
        MAKER.make(grammar, KnownTokens([], 0))
    assert words in str(refusal.value)
    assert "<" not in str(refusal.value).replace("<end>", "")
    assert len(str(refusal.value)) < 1000


def ask(
    bench: Bench, grammar: Grammar, output_ids: Sequence[int] = (), **params: object
) -> EngineError | None:
    one = request("r", 3, ignore_eos=False, output_ids=output_ids)
    return bench.engine.add(
        msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, grammar=grammar, **params))
    )


def test_an_engine_refuses_a_wrong_grammar_when_the_request_comes_in() -> None:
    bench = Bench()
    error = ask(bench, Grammar(kind="regex", source="(abc"))
    assert error is not None
    assert (error.code, error.param) == ("invalid_request", "grammar")
    assert "unclosed group" in error.message
    assert not bench.engine.has_work


def test_an_answer_so_far_that_breaks_its_grammar_is_refused() -> None:
    error = ask(Bench(), Grammar(kind="regex", source="[a-c]+"), output_ids=[0, 9])
    assert error is not None
    assert error.param == "grammar"


@pytest.mark.parametrize("asked", [{"ignore_eos": True}, {"min_tokens": 2}, {"bad_words": ("a",)}])
def test_what_would_work_against_a_grammar_is_refused_by_name(asked: dict[str, Any]) -> None:
    error = ask(Bench(), Grammar(kind="regex", source="[a-c]+"), **asked)
    assert error is not None
    assert error.param == next(iter(asked))
    assert "cannot be combined with a grammar" in error.message


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="choice"),
        Grammar(kind="choice", choices=("a", "")),
        Grammar(kind="regex", source=" "),
        Grammar(kind="json_schema", source="x" * (1 << 21)),
    ],
)
def test_an_empty_or_endless_grammar_is_refused(grammar: Grammar) -> None:
    error = ask(Bench(), grammar)
    assert error is not None
    assert error.param == "grammar"


def test_an_answer_that_had_come_to_its_end_under_its_grammar_only_lacks_its_last_output() -> None:
    bench = Bench(runner=LogitRunner)
    assert ask(bench, Grammar(kind="regex", source="ab"), output_ids=[0, 1, EOS]) is None
    (output,) = bench.engine.step()
    assert output.finish_reason == "stop"


def test_an_engine_ends_a_complete_answer_by_its_end_token() -> None:
    bench = Bench(runner=LogitRunner)
    one = EngineRequest(
        id="r", prompt_ids=[1], params=SamplingParams(seed=1, grammar=Grammar(kind="regex", source="ab"))
    )
    bench.add(one)
    answer = bench.run()["r"]
    assert answer.text == "ab"
    assert answer.token_ids == [0, 1, EOS]
    assert answer.last is not None
    assert answer.last.finish_reason == "stop"
