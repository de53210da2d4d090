"""What can never be served is refused at once, with the numbers."""

from __future__ import annotations

from math import inf, nan

import msgspec
import pytest

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.scheduling.limits import Limits
from tests.unit.engine.fakes import Bench, expected_tokens, request


def limits(*, num_blocks: int = 11, **config: int) -> Limits:
    """KV memory of 40 tokens in blocks of 4 unless told otherwise."""
    return Limits.of(
        EngineConfig.model_validate(config),
        num_blocks=num_blocks,
        block_size=4,
        max_context=1_000,
        vocab_size=32,
    )


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    error = limits().check(request("r", 40))
    assert error is not None
    assert error.code == "context_length_exceeded"
    assert error.param == "prompt_ids"
    assert "40 tokens" in error.message
    assert "11 KV blocks of 4" in error.message
    assert "the engine has 10" in error.message
    assert limits().check(request("r", 39)) is None


def test_a_prompt_above_max_input_length_is_refused_with_the_numbers() -> None:
    error = limits(max_input_length=10).check(request("r", 11))
    assert error is not None
    assert "11 tokens, more than max_input_length, 10" in error.message
    assert limits(max_input_length=10).check(request("r", 10)) is None


def test_a_prompt_that_leaves_no_room_for_output_is_refused_with_the_numbers() -> None:
    error = limits(max_total_tokens=20).check(request("r", 20))
    assert error is not None
    assert "20 tokens" in error.message
    assert "max_total_tokens, 20" in error.message
    assert limits(max_total_tokens=20).check(request("r", 19)) is None


def test_max_total_tokens_is_capped_by_the_models_context_and_by_kv_memory() -> None:
    assert limits().max_total_tokens == 40
    assert limits(max_total_tokens=30).max_total_tokens == 30
    assert limits(num_blocks=1_001).max_total_tokens == 1_000
    assert limits(num_blocks=1_001, max_total_tokens=2_000).max_total_tokens == 1_000


def test_output_above_max_total_tokens_is_cut_to_what_fits() -> None:
    assert limits(max_total_tokens=20).max_output_tokens(15, 100) == 5
    assert limits(max_total_tokens=20).max_output_tokens(15, 3) == 3
    assert limits(max_total_tokens=20).max_output_tokens(15, None) == 5


def test_an_empty_prompt_is_refused() -> None:
    error = limits().check(request("r", []))
    assert error is not None
    assert error.param == "prompt_ids"
    assert "empty" in error.message


@pytest.mark.parametrize("token", [-1, 32, 1 << 70])
@pytest.mark.parametrize("name", ["prompt_ids", "output_ids"])
def test_a_token_outside_the_vocabulary_is_refused_with_its_place(token: int, name: str) -> None:
    one = msgspec.structs.replace(request("r", [1, 2, 3]), **{name: [1, 2, token]})
    error = limits().check(one)
    assert error is not None
    assert error.param == name
    assert f"{token} at place 2" in error.message


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(max_tokens=0), "max_tokens"),
        (SamplingParams(max_tokens=-1), "max_tokens"),
        (SamplingParams(temperature=-0.1), "temperature"),
        (SamplingParams(temperature=nan), "temperature"),
        (SamplingParams(temperature=inf), "temperature"),
        (SamplingParams(top_p=0), "top_p"),
        (SamplingParams(top_p=1.1), "top_p"),
        (SamplingParams(top_p=nan), "top_p"),
        (SamplingParams(top_k=-1), "top_k"),
        (SamplingParams(min_p=-0.1), "min_p"),
        (SamplingParams(min_p=1.1), "min_p"),
        (SamplingParams(min_p=nan), "min_p"),
        (SamplingParams(seed=1 << 64), "seed"),
        (SamplingParams(seed=-(1 << 63) - 1), "seed"),
        (SamplingParams(stop=("a", "")), "stop"),
        (SamplingParams(stop=("a",) * 17), "stop"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(params: SamplingParams, name: str) -> None:
    error = limits().check(EngineRequest(id="r", prompt_ids=[1], params=params))
    assert error is not None
    assert (error.code, error.param) == ("invalid_request", name)
    assert name in error.message or name == "stop"


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=1, temperature=0, top_p=1, top_k=0, min_p=0, seed=-5),
        SamplingParams(temperature=5, top_p=1e-9, top_k=1 << 20, min_p=1, seed=(1 << 64) - 1),
        SamplingParams(stop=("a",) * 16),
    ],
)
def test_parameters_at_the_ends_of_their_ranges_are_accepted(params: SamplingParams) -> None:
    assert limits().check(EngineRequest(id="r", prompt_ids=[1], params=params)) is None


def test_a_refused_request_gets_no_output_and_the_queue_moves_on() -> None:
    bench = Bench(num_blocks=11, block_size=4)
    assert bench.engine.add(request("giant", 40)) is not None
    assert not bench.engine.has_work
    bench.add(request("small", 4))
    assert list(bench.run()) == ["small"]


def test_a_lone_request_that_needs_exactly_all_blocks_runs() -> None:
    bench = Bench(num_blocks=11, block_size=4, watermark=0.5)
    one = request("r", 39, 1)
    bench.add(one)
    assert bench.run()["r"].token_ids == expected_tokens(one, 40)


def test_a_lone_request_without_a_limit_runs_until_memory_is_full_and_ends_by_length() -> None:
    bench = Bench(num_blocks=11, block_size=4)
    bench.add(request("r", 10, None))
    answer = bench.run()["r"]
    assert len(answer.token_ids) == 30
    assert answer.last is not None
    assert answer.last.finish_reason == "length"


def test_max_tokens_of_one_is_done_with_the_prompt() -> None:
    bench = Bench(max_batch_tokens=16)
    bench.add(request("r", 10, 1))
    outputs = bench.step()
    assert [len(output.token_ids) for output in outputs] == [1]
    assert outputs[0].finish_reason == "length"
