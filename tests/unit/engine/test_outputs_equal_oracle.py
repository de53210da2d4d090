"""Whatever the scheduler does meanwhile, a request's output is the one it would have alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import EngineRequest
from headrace.gpu_engine.scheduling.scheduler import PreemptHook
from headrace.gpu_engine.text.stream import TextStream
from tests.unit.engine.fakes import (
    EOS,
    VOCAB,
    Answer,
    Bench,
    HashRunner,
    LetterTokenizer,
    Model,
    RepeatingRunner,
    expected_tokens,
    request,
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a request alone would bring: `shown` was visible before it was resumed."""

    token_ids: list[int]
    text: str
    reason: str


def expect(one: EngineRequest, max_total_tokens: int, model: Model) -> Expected:
    text = TextStream(LetterTokenizer(), one.prompt_ids, one.params.stop)
    tokens = expected_tokens(one, max_total_tokens, model)
    old = len(one.output_ids)
    by_eos = tokens[-1:] == [EOS] and not one.params.ignore_eos
    text.feed(one.output_ids)
    shown = ""
    count = old
    while not text.stopped and count < len(tokens):
        count += 1
        is_end = by_eos and count == len(tokens)
        shown += text.feed([] if is_end else [tokens[count - 1]])
    reason = "stop" if text.stopped or by_eos else "length"
    return Expected(tokens[old:count], shown + text.flush(), reason)


def random_request(random: Random, number: int, max_total_tokens: int) -> EngineRequest:
    """Prompts often begin alike; some requests are resumed, some have stop strings."""
    longest = min(max_total_tokens - 1, 24)
    shared = [token % VOCAB for token in range(random.randint(0, longest - 1))]
    own = [random.randrange(VOCAB) for _ in range(random.randint(1, longest - len(shared)))]
    letters = "abcdefghijklmnopqrstuvwxyz{|}~"
    return request(
        f"r{number}",
        shared + own,
        random.choice([None, 1, 2, 3, 5, 8, 13, 21]),
        output_ids=[random.randrange(EOS) for _ in range(random.choice([0, 0, 0, 1, 4]))],
        priority=random.randint(0, 3),
        deadline_ms=random.choice([None, random.randrange(100)]),
        ignore_eos=random.random() < 0.5,
        seed=random.randint(0, 3),
        stop=[random.choice(letters) + random.choice(letters) for _ in range(random.choice([0, 0, 1, 9]))],
    )


def hook_that_preempts(share: float, random: Random) -> PreemptHook | None:
    def preempt(step: int, running: Sequence[str]) -> Iterable[str]:
        return [name for name in running if random.random() < share]

    return preempt if share else None


def drafting(tokens: int) -> dict[str, Any]:
    """Settings under which each step drafts as much as it may."""
    if not tokens:
        return {}
    return {
        "speculative_method": "ngram",
        "num_speculative_tokens": tokens,
        "prompt_lookup_min": 1,
        "adaptive_speculation": False,
    }


def check(one: EngineRequest, answer: Answer, max_total_tokens: int, aborted: set[str], model: Model) -> None:
    expected = expect(one, max_total_tokens, model)
    assert answer.last is not None
    if answer.last.finish_reason == "abort":
        assert one.id in aborted
        assert answer.token_ids == expected.token_ids[: len(answer.token_ids)]
        assert expected.text.startswith(answer.text) or one.params.stop
    else:
        assert answer.token_ids == expected.token_ids
        assert answer.text == expected.text
        assert answer.last.finish_reason == expected.reason


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    block_size=st.integers(1, 7),
    blocks=st.integers(2, 50),
    max_batch_size=st.integers(1, 8),
    max_batch_tokens=st.integers(1, 40),
    prefix_caching=st.booleans(),
    watermark=st.sampled_from([0.0, 0.1, 0.5]),
    expected_output=st.sampled_from([0.0, 128.0]),
    preempted=st.sampled_from([0.0, 0.3, 1.0]),
    host_slots=st.sampled_from([0, 5, 50]),
    chunking=st.booleans(),
    policy=st.sampled_from(["continuous", "continuous", "static", "dynamic"]),
    drafted=st.sampled_from([0, 1, 3, 8]),
    runner=st.sampled_from([HashRunner, RepeatingRunner]),
    num_requests=st.integers(1, 12),
    random=st.randoms(use_true_random=False),
)
def test_any_workload_gives_what_each_request_gives_alone(
    block_size: int,
    blocks: int,
    max_batch_size: int,
    max_batch_tokens: int,
    prefix_caching: bool,
    watermark: float,
    expected_output: float,
    preempted: float,
    host_slots: int,
    chunking: bool,
    policy: str,
    drafted: int,
    runner: type[HashRunner],
    num_requests: int,
    random: Random,
) -> None:
    random = Random(random.getrandbits(32))
    total = max(2, blocks * block_size)
    bench = Bench(
        num_blocks=-(-total // block_size) + 1,
        block_size=block_size,
        max_batch_size=max_batch_size,
        max_batch_tokens=max_batch_tokens,
        prefix_caching=prefix_caching,
        watermark=watermark,
        enable_peak_admission=random.random() < 0.7,
        expected_output=expected_output,
        preempt_hook=hook_that_preempts(preempted, random),
        num_host_slots=host_slots,
        enable_chunked_prefill=chunking,
        batching_policy=policy,
        max_wait_ms=0,
        runner=runner,
        **drafting(drafted),
    )
    total = bench.engine.info.max_total_tokens
    to_come = [random_request(random, number, total) for number in range(num_requests)]
    requests = list(to_come)
    aborted: set[str] = set()

    def meanwhile(step: int) -> None:
        if to_come and random.random() < 0.8:
            bench.add(to_come.pop())
        if bench.answers and random.random() < 0.03:
            name = random.choice(sorted(bench.answers))
            aborted.add(name)
            bench.engine.abort(name)
            bench.engine.check_invariants()

    while to_come:
        meanwhile(0)
        bench.run(1 + random.randrange(4), meanwhile, must_end=False)
    bench.run(2_000, meanwhile)
    for one in requests:
        check(one, bench.answers[one.id], total, aborted, runner.model)
    assert all(plan.num_tokens <= max_batch_tokens for plan in bench.runner.plans) or not chunking


@pytest.mark.parametrize("prompt", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("output", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 16])
def test_lengths_around_block_borders_give_the_reference_for_every_chunk_size(
    prompt: int, output: int, chunk: int
) -> None:
    bench = Bench(block_size=4, max_batch_tokens=chunk)
    one, other = request("one", prompt, output), request("other", prompt, output)
    bench.add(one)
    bench.add(other)
    answers = bench.run()
    assert answers["one"].token_ids == expected_tokens(one, 1_000)
    assert answers["other"].token_ids == expected_tokens(other, 1_000)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_forced_preemption_at_every_step_changes_no_output(prefix_caching: bool) -> None:
    bench = Bench(prefix_caching=prefix_caching, preempt_hook=lambda step, running: running)
    requests = [request(f"r{number}", 5 + number, 12) for number in range(6)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    assert bench.engine.preemptions >= 6 * 11
    for one in requests:
        assert answers[one.id].token_ids == expected_tokens(one, 1_000)
