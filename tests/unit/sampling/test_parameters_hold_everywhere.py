"""Whatever a request sets, its tokens are those it would get alone: in any batch, after preemptions, prefix
hits and a resume."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import EngineRequest, Grammar, SamplingParams
from headrace.gpu_engine.sampling.logprobs import Scores
from tests.unit.engine.fakes import EOS, VOCAB, Bench
from tests.unit.sampling.logit_runner import LogitRunner, logits_after
from tests.unit.sampling.naive import naive_answer


def random_params(random: Random) -> SamplingParams:
    """Each parameter is set about every third time."""

    def maybe(values: list[float]) -> float | None:
        return random.choice(values) if random.random() < 0.35 else None

    most = random.choice([1, 2, 5, 9, 17])
    chosen: dict[str, object] = {
        "presence_penalty": maybe([-2.0, 0.5, 2.0]),
        "frequency_penalty": maybe([-1.0, 0.3, 2.0]),
        "repetition_penalty": maybe([0.5, 1.2, 5.0]),
        "top_k": maybe([1, 4]),
        "top_p": maybe([0.3, 0.9]),
        "min_p": maybe([0.05]),
        "logprobs": maybe([0, 3]),
        "logit_bias": random.choice([None, {3: 5.0, 9: -100.0}, {EOS: 2.5}]),
        "stop_token_ids": random.choice([None, (4, 7), (EOS,)]),
    }
    if random.random() < 0.3:
        chosen["grammar"] = Grammar(kind="regex", source="[a-f]{1,3}[d-k]{0,6}[a-z]{2,4}")
        chosen["stop_token_ids"] = None
    else:
        chosen["ignore_eos"] = random.random() < 0.3
        chosen["min_tokens"] = random.choice([0, 1, most])
        chosen["bad_words"] = random.choice([None, ("a", "bc", "aab"), ("e",)])
    given = {name: value for name, value in chosen.items() if value is not None}
    heat = random.choice([0.0, 1.0, 1.7])
    return SamplingParams(max_tokens=most, temperature=heat, seed=random.randrange(5), **given)  # type: ignore[arg-type]


def random_request(random: Random, number: int) -> EngineRequest:
    shared = [token % VOCAB for token in range(random.choice([0, 4, 9]))]
    own = [random.randrange(VOCAB) for _ in range(random.randint(1, 6))]
    return EngineRequest(id=f"r{number}", prompt_ids=shared + own, params=random_params(random))


def interrupted(request: EngineRequest, answer: list[int], random: Random) -> EngineRequest:
    """The same request as another engine would get it, cut off somewhere in its answer."""
    return msgspec.structs.replace(request, output_ids=answer[: random.randint(0, len(answer) - 1)])


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    preempted=st.sampled_from([0.0, 0.3, 1.0]),
    blocks=st.integers(9, 40),
    max_batch_tokens=st.integers(1, 30),
    random=st.randoms(use_true_random=False),
)
def test_a_request_gets_the_tokens_of_the_naive_loop_whatever_goes_on_around_it(
    preempted: float, blocks: int, max_batch_tokens: int, random: Random
) -> None:
    random = Random(random.getrandbits(32))
    bench = Bench(
        num_blocks=blocks,
        max_batch_tokens=max_batch_tokens,
        preempt_hook=lambda step, running: [one for one in running if random.random() < preempted],
        runner=LogitRunner,
    )
    requests = [random_request(random, number) for number in range(6)]
    expected = {one.id: naive_answer(one) for one in requests}
    added = [interrupted(one, expected[one.id], random) for one in requests]
    for one in added:
        bench.add(one)
    answers = bench.run()
    for one in added:
        answer = answers[one.id]
        assert answer.last is not None
        assert answer.last.error is None
        assert [*one.output_ids, *answer.token_ids] == expected[one.id], one.params
        told = [] if one.params.logprobs is None else answer.token_ids
        assert [each.token for each in answer.logprobs] == told


@pytest.mark.parametrize("preempted", [0.0, 0.5])
@pytest.mark.parametrize("max_batch_tokens", [2, 5, 64])
def test_a_prompt_is_told_once_and_whole_whatever_the_cache_knows_and_whoever_is_preempted(
    max_batch_tokens: int, preempted: float
) -> None:
    random = Random(1)
    bench = Bench(
        num_blocks=40,
        max_batch_tokens=max_batch_tokens,
        preempt_hook=lambda step, running: [one for one in running if random.random() < preempted],
        runner=LogitRunner,
    )
    prompt = list(range(11))
    for number, params in enumerate(
        [
            SamplingParams(seed=1, max_tokens=4),
            SamplingParams(seed=1, max_tokens=4, prompt_logprobs=1, logprobs=0),
            SamplingParams(seed=1, max_tokens=4, prompt_logprobs=0),
        ]
    ):
        bench.add(EngineRequest(id=str(number), prompt_ids=prompt, params=params))
        bench.run()
    answers = bench.run()
    assert [len(answers[name].prompt_logprobs) for name in "012"] == [0, 10, 10]
    assert [len(answers[name].logprobs) for name in "012"] == [0, 4, 0]
    told = answers["1"].prompt_logprobs
    assert [score.token for score in told] == prompt[1:]
    assert told == [
        Scores(np.array(logits_after(prompt[:i]), np.float32), 1).of(prompt[i]) for i in range(1, 11)
    ]
