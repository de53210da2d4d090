"""Each stage alone: what counts as seen, what is ruled out, and what transformers makes of the same."""

import json
import math

import msgspec
import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from headrace.gpu_engine.api import EngineRequest, SamplingParams, TokenLogprobs
from headrace.gpu_engine.sampling.bans import BadWords, MinTokens
from headrace.gpu_engine.sampling.controls import Controls, Stage
from headrace.gpu_engine.sampling.controls_maker import ControlsMaker
from headrace.gpu_engine.sampling.filters import Row
from headrace.gpu_engine.sampling.known import KnownTokens
from headrace.gpu_engine.sampling.logprobs import Scores
from headrace.gpu_engine.sampling.penalties import LogitBias, OccurrencePenalties, RepetitionPenalty
from headrace.gpu_engine.sampling.prompt_scores import PromptScores
from headrace.gpu_engine.sampling.shape import NOT_FINITE, NOTHING_LEFT, ShapedSampler
from tests.unit.engine.fakes import EOS, VOCAB, LetterTokenizer

GREEDY = SamplingParams(temperature=0)


def row_of(*values: float) -> Row:
    return np.array(values, np.float32)


def random_row(seed: int, size: int = 50) -> Row:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3


def forbidden(logits: Row) -> list[int]:
    return np.flatnonzero(np.isneginf(logits)).tolist()


# ------------------------------------------------------------------------------------------- penalties


def test_the_repetition_penalty_is_that_of_transformers_over_prompt_and_output() -> None:
    known = KnownTokens([3, 7, 7, 1], num_prompt=2)
    ours = random_row(1)
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[3, 7, 7, 1]]), torch.tensor(ours)[None])
    RepetitionPenalty(1.7, known)(ours)
    assert ours.tolist() == theirs[0].tolist()


def test_frequency_counts_each_occurrence_and_presence_one_in_the_output_alone() -> None:
    logits = row_of(1, 1, 1, 1)
    OccurrencePenalties(0.5, 0.25, KnownTokens([0, 0, 1, 2, 2, 2], num_prompt=2))(logits)
    assert logits.tolist() == [1, 1 - 0.75, 1 - 1.75, 1]


def test_a_penalty_counts_tokens_as_they_come_as_if_it_had_known_them_from_the_start() -> None:
    tokens = [5, 6]
    known = KnownTokens(tokens, num_prompt=1)
    gradual: list[Stage] = [RepetitionPenalty(1.3, known), OccurrencePenalties(0.7, -0.2, known)]
    for token in (9, 6, 9, 9, 5):
        tokens.append(token)
        anew: list[Stage] = [RepetitionPenalty(1.3, known), OccurrencePenalties(0.7, -0.2, known)]
        for one, other in zip(gradual, anew, strict=True):
            first, second = random_row(token), random_row(token)
            one(first)
            other(second)
            assert first.tolist() == second.tolist()


@pytest.mark.parametrize("penalty", [1e-30, 1e-45, 1e-60])
def test_a_penalty_near_zero_leaves_a_row_that_can_be_drawn_from(penalty: float) -> None:
    stage = RepetitionPenalty(penalty, KnownTokens([3, 7], num_prompt=2))
    logits = row_of(0, 1, 2, 9e9, -1, 0, 0, 0)
    (choice,) = ShapedSampler().sample(logits[None], [Controls(stages=(stage,))], [GREEDY], [1])
    assert (choice.token, choice.failure) == (3, None)


def test_a_bias_is_added_to_its_tokens() -> None:
    logits = row_of(0, 1, 2)
    LogitBias({0: 3.0, 2: -100.0})(logits)
    assert logits.tolist() == [3, 1, -98]


# ---------------------------------------------------------------------------------------------- bans


def test_a_bad_word_of_one_token_is_never_drawn_and_a_longer_one_is_never_completed() -> None:
    tokens = [8, 1]
    stage = BadWords([[4], [1, 2, 3], [2, 5]], KnownTokens(tokens, num_prompt=1))
    seen = []
    for token in (2, 1, 2, 9):
        logits = random_row(0, 10)
        stage(logits)
        seen.append(forbidden(logits))
        tokens.append(token)
    assert seen == [[4], [3, 4, 5], [4], [3, 4, 5]]


def test_a_bad_word_that_begins_in_the_prompt_is_not_held_against_the_answer() -> None:
    logits = random_row(0, 10)
    BadWords([[1, 2]], KnownTokens([1], num_prompt=1))(logits)
    assert forbidden(logits) == []


def test_nothing_that_ends_an_answer_comes_before_min_tokens() -> None:
    tokens = [1]
    stage = MinTokens(2, {3, 7}, KnownTokens(tokens, num_prompt=1))
    seen = []
    for token in (5, 5, 5):
        logits = random_row(0, 10)
        stage(logits)
        seen.append(forbidden(logits))
        tokens.append(token)
    assert seen == [[3, 7], [3, 7], []]


# ------------------------------------------------------------------------------------------ logprobs


def test_log_probabilities_are_the_log_softmax_and_the_likeliest_stand_first() -> None:
    logits = random_row(2)
    expected = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)
    told = Scores(logits, 4).of(11)
    best = expected.topk(4)
    assert told.token == 11
    assert told.logprob == pytest.approx(float(expected[11]), abs=1e-6)
    assert [token for token, _ in told.top] == best.indices.tolist()
    assert [value for _, value in told.top] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_equally_likely_tokens_are_told_in_the_order_of_their_ids_and_never_too_many() -> None:
    assert [token for token, _ in Scores(np.zeros(9, np.float32), 3).of(0).top] == [0, 1, 2]
    assert len(Scores(np.zeros(2, np.float32), 5).of(0).top) == 2
    assert Scores(np.zeros(2, np.float32), 0).of(1) == TokenLogprobs(1, math.log(0.5))


def test_huge_logits_do_not_overflow_a_log_probability() -> None:
    assert Scores(row_of(3e38, -3e38), 0).of(0).logprob == 0


def test_log_probabilities_are_taken_before_whatever_shapes_the_row() -> None:
    logits = random_row(3)
    controls = Controls(stages=(LogitBias({5: 100.0}),), num_logprobs=2)
    (choice,) = ShapedSampler().sample(logits[None], [controls], [GREEDY], [1])
    assert choice.token == 5
    assert choice.logprobs == Scores(logits, 2).of(5)


def test_a_prompt_is_scored_once_however_it_is_cut_and_whatever_is_computed_again() -> None:
    prompt = [4, 1, 0, 3, 2]
    logits = np.stack([random_row(place, 6) for place in range(5)])
    scores = PromptScores(prompt, 1)
    for start, length in [(0, 2), (0, 3), (3, 1), (4, 1)]:
        wanted = scores.wanted(start, length)
        scores.add(logits[wanted.start : wanted.stop])
    told = scores.take(5)
    assert told == [Scores(logits[place], 1).of(prompt[place + 1]) for place in range(4)]
    assert scores.take(6) is None
    assert scores.take(5) == told, "of a step that is taken again"


# ------------------------------------------------------------------------------------- all in one row


def make(params: SamplingParams, prompt: list[int], output: list[int]) -> Controls | None:
    request = EngineRequest(id="r", prompt_ids=prompt, params=params)
    return ControlsMaker(LetterTokenizer(), VOCAB).make(request, [*prompt, *output])


def test_a_request_that_asks_for_nothing_has_no_controls() -> None:
    assert make(SamplingParams(temperature=0.3, top_k=5, stop=("x",), seed=1), [1], []) is None


@pytest.mark.parametrize(
    "asked",
    [
        {"presence_penalty": 1},
        {"frequency_penalty": 1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {1: 1.0}},
        {"bad_words": ("a",)},
        {"min_tokens": 1},
        {"logprobs": 0},
        {"prompt_logprobs": 0},
    ],
)
def test_each_parameter_alone_makes_controls(asked: dict[str, object]) -> None:
    assert make(msgspec.structs.replace(GREEDY, **asked), [1], []) is not None


def test_a_row_that_is_not_finite_fails_alone_and_rows_without_controls_are_not_touched() -> None:
    rows = np.stack([random_row(1), random_row(2)])
    rows[0, 7] = np.nan
    before = rows.copy()
    controls = [Controls(stages=(LogitBias({5: 100.0}),))] * 2
    broken, sound = ShapedSampler().sample(rows, controls, [GREEDY] * 2, [1, 1])
    assert broken.failure == NOT_FINITE
    assert sound.token == 5
    np.testing.assert_array_equal(rows, before)


def test_a_row_in_which_everything_is_forbidden_says_so() -> None:
    stage = BadWords([[token] for token in range(50)], KnownTokens([0], 1))
    (choice,) = ShapedSampler().sample(random_row(1)[None], [Controls(stages=(stage,))], [GREEDY], [1])
    assert choice.failure == NOTHING_LEFT


@pytest.mark.parametrize("heat", [0.0, 1e-300, 1.0, 1e300])
def test_a_forbidden_token_is_never_drawn_at_any_temperature(heat: float) -> None:
    stage = BadWords([[token] for token in range(50) if token != 31], KnownTokens([0], 1))
    params = SamplingParams(temperature=heat, seed=3, top_k=7, top_p=0.9)
    (choice,) = ShapedSampler().sample(random_row(1)[None], [Controls(stages=(stage,))], [params], [1])
    assert choice.token == 31


class WiderTokenizer(LetterTokenizer):
    """Knows tokens that the model has no logits for."""

    eos_ids = frozenset({EOS, VOCAB + 5})

    def encode_piece(self, text: str) -> list[int]:
        return [token if token < 29 else VOCAB + 1 for token in super().encode_piece(text)]


@pytest.mark.parametrize("params", [SamplingParams(min_tokens=2), SamplingParams(bad_words=("c", "~", "a~"))])
def test_tokens_that_no_row_has_a_logit_for_are_forbidden_anyway(params: SamplingParams) -> None:
    request = EngineRequest(id="r", prompt_ids=[1], params=params)
    controls = ControlsMaker(WiderTokenizer(), VOCAB).make(request, [1])
    assert controls is not None
    logits = random_row(1, VOCAB)
    for stage in controls.stages:
        stage(logits)
    assert forbidden(logits) == ([EOS] if params.min_tokens else [2])


def test_letters_and_the_end_token_of_the_test_tokenizer_are_what_grammars_see() -> None:
    source = LetterTokenizer().to_json()
    assert source is not None
    assert json.loads(source)["added_tokens"][0]["id"] == EOS
