"""The runner computes what transformers computes, however the work is cut up."""

import json
import random
from pathlib import Path

import pytest
import torch

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.attention.reference import ReferenceAttention
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.native.decoder import NativeDecoder
from headrace.gpu_engine.runner import ModelRunner, load_runner
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan
from tests.support.drive import GREEDY, Sequences
from tests.support.reference_answers import Comparison, answer_greedily
from tests.support.tiny_models import CONFIGS, TinyModel, load_reference

torch.set_num_threads(1)

CHUNKS = [(3, 16), (50, 8), (200, 1)]
"""Sizes of the largest chunk and of a block."""


def runner_of(folder: Path, **config: object) -> ModelRunner:
    values: dict[str, object] = {"model": str(folder), "num_kv_blocks": 96, "attention": "reference"}
    return load_runner(EngineConfig.model_validate(values | config))


def prompts_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(2, 384) for _ in range(length)] for length in lengths]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_equal_transformers_for_any_chunks_and_block_tables(
    tiny_model: TinyModel, name: str
) -> None:
    folder, tokens = tiny_model(name), 16
    prompts = prompts_of([1, 2, 15, 16, 17, 31, 32, 33, 70, 100])
    answers = answer_greedily(load_reference(folder), prompts, tokens)
    comparison = Comparison()
    for largest_chunk, block_size in CHUNKS:
        runner = runner_of(folder, block_size=block_size, num_kv_blocks=1 + 1024 // block_size)
        ours = Sequences(runner, prompts, tokens, seed=largest_chunk).run(largest_chunk)
        for prompt, token_ids in zip(prompts, ours, strict=True):
            comparison.compare(f"{len(prompt)} by {largest_chunk}", token_ids, answers[tuple(prompt)])
    assert comparison.tokens == len(CHUNKS) * len(prompts) * tokens or comparison.ties or comparison.wrong
    comparison.check()


def test_what_earlier_requests_left_in_the_cache_never_reaches_a_result(tiny_model: TinyModel) -> None:
    """Every block, the null block too, is full of NaN before the run."""
    prompts = prompts_of([5, 40, 17])
    clean = Sequences(runner_of(tiny_model("llama")), prompts, 8, seed=1).run(9)
    runner = runner_of(tiny_model("llama"))
    cache = runner._attention
    assert isinstance(cache, ReferenceAttention)
    cache.keys[:, :-1] = torch.nan
    cache.values[:, :-1] = torch.nan
    assert Sequences(runner, prompts, 8, seed=2).run(9) == clean


def test_logits_after_a_prefix_hit_equal_cold_ones(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request leaves two blocks; the second brings the same prompt and computes its end alone."""
    runner = runner_of(tiny_model("qwen3"))
    seen: list[torch.Tensor] = []
    decoder = runner._model
    assert isinstance(decoder, Decoder)
    head = decoder.head

    def watch(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(head(hidden))
        return seen[-1]

    monkeypatch.setattr(decoder, "head", watch)
    prompt = prompts_of([40])[0]
    runner.launch(StepPlan(1, [Chunk("cold", prompt, 0, [3, 9, 4], True, GREEDY)]))
    runner.launch(StepPlan(2, [Chunk("hit", prompt[32:], 32, [3, 9, 7], True, GREEDY)]))
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("attention", ["reference", "cpu", "auto"])
def test_a_request_that_is_not_finite_fails_alone_whether_it_samples_or_not(
    tiny_model: TinyModel, attention: str
) -> None:
    """A chunk that does not sample fails too, before its blocks could be shared."""
    runner = runner_of(tiny_model("qwen2"), attention=attention)
    alone = runner.launch(StepPlan(1, [Chunk("good", [3, 4, 5], 0, [1], True, GREEDY)]))
    decoder = runner._model
    assert isinstance(decoder, Decoder | NativeDecoder)
    decoder.embeddings[9] = torch.nan
    chunks = [
        Chunk("decode", [9], 0, [4], True, GREEDY),
        Chunk("good", [3, 4, 5], 0, [1], True, GREEDY),
        Chunk("prefill", [9, 4, 6], 0, [3], False, GREEDY),
    ]
    result = runner.launch(StepPlan(2, chunks))
    assert result.sampled == alone.sampled
    assert result.failed.keys() == {"decode", "prefill"}


def test_a_seeded_answer_is_the_same_alone_and_in_a_batch(tiny_model: TinyModel) -> None:
    params = SamplingParams(temperature=1.2, top_p=0.95, seed=1234)
    prompts = prompts_of([10, 33, 20])
    runner = runner_of(tiny_model("qwen3"))
    together = Sequences(runner, prompts, 12, seed=5).run(6, params)
    for prompt, expected in zip(prompts, together, strict=True):
        assert Sequences(runner, [prompt], 12, seed=6).run(50, params) == [expected]


def test_an_empty_plan_gives_an_empty_result(tiny_model: TinyModel) -> None:
    result = runner_of(tiny_model("llama")).launch(StepPlan(3, []))
    assert (result.step, result.sampled, result.failed) == (3, {}, {})


def test_the_runner_says_what_the_engine_needs_to_know(tiny_model: TinyModel) -> None:
    folder = tiny_model("llama")
    runner = runner_of(folder, block_size=8)
    assert (runner.vocab_size, runner.max_context, runner.block_size, runner.num_blocks) == (384, 512, 8, 96)
    assert runner.model_name == folder.name


def test_kv_memory_is_divided_into_as_many_blocks_as_fit(tiny_model: TinyModel) -> None:
    # 3 layers, keys and values, 2 heads of 16 floats, 16 tokens a block
    block_bytes = 3 * 2 * 2 * 16 * 4 * 16
    runner = runner_of(tiny_model("llama"), num_kv_blocks=None, kv_cache_bytes=100 * block_bytes + 17)
    assert runner.num_blocks == 100


def test_no_more_blocks_are_made_than_a_full_batch_could_fill(tiny_model: TinyModel) -> None:
    runner = runner_of(tiny_model("llama"), num_kv_blocks=None, max_batch_size=2, max_total_tokens=100)
    assert runner.num_blocks == 1 + 2 * 7


def test_memory_for_less_than_one_usable_block_is_refused_with_the_numbers(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 16}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 8, "intermediate_size": 8}))
    with pytest.raises(ModelError, match="kv_cache_bytes 1048576 holds fewer than 2 KV blocks of 2097152 b"):
        runner_of(tmp_path, load_format="dummy", num_kv_blocks=None, kv_cache_bytes=1 << 20, block_size=256)


def test_kv_memory_that_no_request_fits_into_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(ModelError, match=r"2 KV blocks of 1 tokens.*too few for any request"):
        runner_of(tiny_model("llama"), num_kv_blocks=2, block_size=1)
    assert runner_of(tiny_model("llama"), num_kv_blocks=3, block_size=1).num_blocks == 3


@pytest.mark.parametrize("blocks", [10**8, 10**15, 10**19])
def test_kv_memory_that_the_machine_does_not_have_is_refused(tiny_model: TinyModel, blocks: int) -> None:
    """Linux would give it and kill the process later, when the blocks are written."""
    with pytest.raises(ModelError, match=f"{blocks} KV blocks take [0-9]+ MiB, and this machine has"):
        runner_of(tiny_model("llama"), num_kv_blocks=blocks)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_answers_are_close_to_exact_ones(tiny_model: TinyModel, dtype: str) -> None:
    prompts = prompts_of([20])
    exact = Sequences(runner_of(tiny_model("llama")), prompts, 1, seed=1).run(50)
    half = Sequences(runner_of(tiny_model("llama"), dtype=dtype), prompts, 1, seed=1).run(50)
    assert half == exact
