"""Several ranks compute what one does. Here they are threads; `test_processes` has them as processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.build import EngineUnusable, build_engine
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.memory import machine
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.folder import read_folder_config
from headrace.gpu_engine.models.layers import Linear
from headrace.gpu_engine.models.shapes import count_weights
from headrace.gpu_engine.native.library import library
from headrace.gpu_engine.parallel.crew import Crew, RanksLost
from headrace.gpu_engine.parallel.decoder import SharedDecoder, Summed, VocabularyEmbedding
from headrace.gpu_engine.parallel.group import connect
from headrace.gpu_engine.parallel.load import open_model, share_of_cpus, share_of_threads
from headrace.gpu_engine.parallel.messages import Compute, Failed, Joined, Tokens, encode
from headrace.gpu_engine.parallel.rank import Rank
from headrace.gpu_engine.parallel.runner import ParallelRunner, Patience, lead
from headrace.gpu_engine.parallel.share import Share
from headrace.gpu_engine.parallel.worker import Pipe
from headrace.gpu_engine.runner import load_runner
from headrace.gpu_engine.sampling.head import SamplingHead
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan
from tests.support.drive import GREEDY, Sequences
from tests.support.ranks import ThreadWorker, lead_threads
from tests.support.step_engine import make_engine, run_all
from tests.support.tiny_models import TinyModel, tiny_model
from tests.unit.parallel.test_share import CONFIG

__all__ = ["tiny_model"]

torch.set_num_threads(1)


PLAN = StepPlan(1, [Chunk("a", [3, 4, 5], 0, [1], True, GREEDY)])


def config_of(folder: Path, size: int = 2, **fields: object) -> EngineConfig:
    values = {"model": str(folder), "num_kv_blocks": 96, "backend": "torch", "threads": 1}
    return EngineConfig.model_validate({**values, "tensor_parallel_size": size, **fields})


@contextmanager
def ranks(config: EngineConfig) -> Iterator[ParallelRunner]:
    runner = lead_threads(config)
    try:
        yield runner
    finally:
        runner.close()


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    draw = Random(0)
    return [[draw.randrange(2, 384) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize(
    ("name", "size"),
    [("llama", 4), ("qwen3", 2), ("gemma2", 2), ("qwen3-moe-mixed", 2)],
)
def test_ranks_bring_the_tokens_of_one(tiny_model: TinyModel, name: str, size: int) -> None:
    """Chunks and block tables are drawn anew for each. With four ranks, two keep the same KV head."""
    prompts = prompts_of([1, 36])
    expected = Sequences(load_runner(config_of(tiny_model(name), 1)), prompts, 5, seed=1).run(50)
    with ranks(config_of(tiny_model(name), size)) as runner:
        assert Sequences(runner, prompts, 5, seed=2).run(12) == expected


needs_kernels = pytest.mark.skipif(library() is None, reason="no compiler and no prebuilt kernels")


@needs_kernels
@pytest.mark.parametrize("name", ["llama-biased", "gemma3"])
def test_native_shares_bring_the_tokens_of_one(tiny_model: TinyModel, name: str) -> None:
    prompts = prompts_of([36])
    expected = Sequences(load_runner(config_of(tiny_model(name), 1)), prompts, 5, seed=1).run(50)
    with ranks(config_of(tiny_model(name), backend="native")) as runner:
        assert Sequences(runner, prompts, 5, seed=2).run(12) == expected


@needs_kernels
@pytest.mark.parametrize(("name", "form"), [("gemma2", "float32"), ("qwen3", "int8"), ("llama", "int4")])
def test_a_row_over_four_native_shares_is_the_same_bits_in_any_company(
    tiny_model: TinyModel, name: str, form: str
) -> None:
    """Its sums have four terms each, so their order shows."""
    [prompt, other] = prompts_of([24, 9])
    whole = [Chunk("a", prompt, 0, [1, 2], True, GREEDY)]
    begins = [Chunk("b", other[:1], 0, [5], True, GREEDY), Chunk("a", prompt[:7], 0, [3], False, GREEDY)]
    ends = [Chunk("b", other[1:], 1, [5], True, GREEDY), Chunk("a", prompt[7:], 7, [3, 4], True, GREEDY)]
    with ranks(config_of(tiny_model(name), 4, backend="native", weight_format=form)) as runner:
        rows = [hidden_of(runner, chunks) for chunks in (whole, begins, ends)]
    assert torch.equal(rows[0], torch.cat((rows[1][-7:], rows[2][-17:])))


def hidden_of(runner: ParallelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
    """The rows of a step, on rank 0."""
    kept: list[Any] = []
    compute = runner._runner.compute

    def keep(plan: StepPlan) -> Any:
        kept.append(compute(plan))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner._runner, "compute", keep)
        runner.launch(StepPlan(1, chunks))
    [(_, hidden)] = kept
    assert isinstance(hidden, torch.Tensor)
    return hidden


def test_swap_preemption_and_log_probabilities_work_over_ranks(tiny_model: TinyModel) -> None:
    random, prompts = Random(5), prompts_of([12, 30, 7, 21])
    seeded = SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True)
    fields = {"block_size": 8, "swap_space_bytes": 1 << 22, "enable_prefix_caching": False}
    config = config_of(tiny_model("qwen3"), **fields)

    def sometimes(step: int, running: Sequence[str]) -> Sequence[str]:
        return [name for name in running if random.random() < 0.4]

    with ranks(config) as runner:
        engine = make_engine(runner, config, 90, sometimes)
        answers, _ = run_all(engine, prompts, seeded)
        assert engine.stats.swaps_in > 3
        scores = score_prompt(engine, prompts[1])
    alone = make_engine(load_runner(config_of(tiny_model("qwen3"), 1, **fields)), config, 90)
    assert answers == run_all(alone, prompts, seeded)[0]
    assert scores == pytest.approx(score_prompt(alone, prompts[1]), abs=1e-4)


def test_a_step_in_which_any_rank_runs_out_of_memory_anywhere_can_be_taken_again(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the embedding, a layer's first or second sum, before one, in the head, in the sampler: calls are
    counted over both ranks, which take turns as they like."""
    places = [(VocabularyEmbedding, "__call__", 2), (Summed, "__call__", 6), (Linear, "__call__", 20)]
    with ranks(config_of(tiny_model("llama"))) as runner:
        expected = runner.launch(PLAN)
        for owner, method, times in [*places, (SamplingHead, "sample", 1)]:
            for nth in {1, times // 2, times} - {0}:
                with monkeypatch.context() as patch:
                    patch.setattr(owner, method, failing(getattr(owner, method), nth))
                    with pytest.raises(MemoryError):
                        runner.launch(PLAN)
                assert runner.launch(PLAN) == expected


def failing(work: Callable[..., Any], nth: int) -> Callable[..., Any]:
    """The same, but memory runs out at the end of the `nth` call."""
    calls = count(1)

    def in_little_memory(*args: object) -> Any:
        result = work(*args)
        if next(calls) == nth:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return result

    return in_little_memory


def score_prompt(engine: StepEngine, prompt: Sequence[int]) -> list[float]:
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0)
    assert engine.add(EngineRequest(id="scored", prompt_ids=list(prompt), params=params)) is None
    scores: list[float] = []
    while engine.has_work:
        scores += [one.logprob for output in engine.step() for one in output.prompt_logprobs]
    assert len(scores) == len(prompt) - 1
    return scores


def test_kv_memory_is_that_of_all_ranks_together(tiny_model: TinyModel) -> None:
    """3 layers, keys and values, 2 heads of 16 floats, 16 tokens a block: shared by two ranks, and kept twice
    by four."""
    block_bytes = 3 * 2 * 2 * 16 * 4 * 16
    fields = {
        "num_kv_blocks": None,
        "kv_cache_bytes": 100 * block_bytes,
        "swap_space_bytes": 10 * block_bytes,
    }
    for size, blocks, slots in ((1, 100, 10), (2, 100, 10), (4, 50, 5)):
        config = config_of(tiny_model("llama"), size, **fields)
        with ranks(config) as runner:
            assert (runner.num_blocks, runner.num_host_slots) == (blocks, slots)


@needs_kernels
def test_weights_must_fit_in_the_format_that_they_are_kept_in(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fields = tiny_model("llama"), {"num_kv_blocks": 8}
    too_little = 4 * count_weights(read_folder_config(folder)) - 1
    monkeypatch.setattr(machine, "machine_memory", lambda: too_little)
    with pytest.raises(ModelError, match="The weights of"):
        lead_threads(config_of(folder, **fields))
    with ranks(config_of(folder, backend="native", weight_format="int8", **fields)) as runner:
        assert list(runner.launch(PLAN).sampled) == ["a"]


def test_threads_and_cpus_are_divided_among_the_ranks(tmp_path: Path) -> None:
    assert [share_of_threads(config_of(tmp_path, size, threads=8)) for size in (1, 2, 3, 16)] == [8, 4, 2, 1]
    cpus = {9, 1, 4, 6, 7}
    shares = [list(share_of_cpus(cpus, Share(CONFIG, rank, 2))) for rank in range(2)]
    assert shares == [[1, 4], [6, 7]]
    assert share_of_cpus({3}, Share(CONFIG, 1, 2)) == {3}


def test_sums_are_the_same_bits_on_all_ranks_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    terms = [torch.tensor([1e8, 1.0, 0.1]), torch.tensor([-1e8, 1e-8, 0.2]), torch.tensor([1.0, -1.0, 0.3])]

    def exchange(rank: int) -> tuple[torch.Tensor, Sequence[torch.Tensor], torch.Tensor]:
        group = connect("cpu", str(tmp_path / "ranks"), rank, 3, patience_s=20, connect_s=20)
        given = group.hand_out(terms[rank].clone())
        return group.sum(terms[rank]), group.collect(terms[rank]), given

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(exchange, range(3)))
    for rank, (total, collected, given) in enumerate(results):
        assert torch.equal(total, terms[0] + terms[1] + terms[2])
        assert torch.equal(given, terms[0])
        assert [list(one) for one in collected] == ([list(term) for term in terms] if rank == 0 else [])


# ------------------------------------------------------------------------------------------- what goes wrong


def joining(then: Callable[[Pipe], int]) -> Callable[[Pipe], int]:
    """A worker that joins, and then does something else than it should."""

    def main(connection: Pipe) -> int:
        connection.recv_bytes()
        connection.send_bytes(encode(Joined()))
        return then(connection)

    return main


def test_a_rank_that_fails_while_it_loads_is_named_with_its_reason(tiny_model: TinyModel) -> None:
    def fail(connection: Pipe) -> int:
        connection.send_bytes(encode(Failed("KeyError: 'x'")))
        return 1

    config = config_of(tiny_model("llama"))
    worker = ThreadWorker(joining(fail))
    with pytest.raises(RanksLost, match=r"Rank 1 of the model's 2 failed \(KeyError: 'x'\), and the engine"):
        lead(config, open_model(config), [worker], Patience(start_s=0.2, verdict_s=0.1))
    assert worker.killed


def test_a_rank_that_ends_while_it_starts_is_named_with_its_exit_code(tiny_model: TinyModel) -> None:
    config = config_of(tiny_model("llama"))
    with pytest.raises(RanksLost, match="Rank 1 of the model's 2 ended with exit code 7"):
        lead(config, open_model(config), [ThreadWorker(lambda connection: 7)])


def test_what_the_user_can_help_is_said_in_his_words(tiny_model: TinyModel) -> None:
    """As where only the worker's file system lacks the model."""
    config = config_of(tiny_model("llama"))
    sentence = "There is no model at x; give a folder."

    def refuse(connection: Pipe) -> int:
        connection.send_bytes(encode(Failed(sentence, by_user=True)))
        return 1

    with pytest.raises(ModelError, match=sentence):
        lead(config, open_model(config), [ThreadWorker(refuse)])


def test_a_rank_that_hangs_in_a_step_ends_the_engine_with_a_sentence(tiny_model: TinyModel) -> None:
    config = config_of(tiny_model("llama"))
    awake = threading.Event()

    def hang(connection: Pipe) -> int:
        rank = Rank.join(connection, connection.recv_bytes())
        awake.wait(20)
        return 0 if rank else 1

    runner = lead(config, open_model(config), [ThreadWorker(hang)], Patience(step_s=0.2, verdict_s=0.1))
    with pytest.raises(RanksLost, match="Rank 1 or higher of the model's 2 does not answer"):
        runner.launch(PLAN)
    awake.set()
    with pytest.raises(RanksLost):
        runner.launch(PLAN)


def test_a_rank_that_no_longer_listens_ends_the_engine_even_where_the_pipe_is_full() -> None:
    awake = threading.Event()
    worker = ThreadWorker(lambda connection: int(not awake.wait(20)))
    crew = Crew([worker], send_s=0.1, verdict_s=0.1)
    with pytest.raises(RanksLost, match="does not answer"):
        crew.tell(Compute(1, [Tokens([7] * (1 << 21), 0, [1])]))
    awake.set()


def test_what_fails_on_the_first_rank_ends_the_others(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_model("llama"))
    worker = ThreadWorker()
    runner = lead(config, open_model(config), [worker])

    def fail(*args: object) -> None:
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr(SharedDecoder, "forward", fail)
    with pytest.raises(RanksLost, match=r"Rank 0 of the model's 2 failed \(RuntimeError: a shape is wrong\)"):
        runner.launch(PLAN)
    assert worker.killed


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"lora_modules": {"a": "b"}}, "LoRA adapters cannot be shared by 2 ranks"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size 3 does not divide the 4 query heads"),
    ],
)
def test_what_ranks_cannot_do_is_refused_by_name(
    tiny_model: TinyModel, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        open_model(config_of(tiny_model("llama"), **fields))


def test_what_only_the_native_kernels_can_do_is_refused_where_they_cannot_serve(
    tiny_model: TinyModel,
) -> None:
    config = config_of(tiny_model("qwen3-moe-mixed"), backend="native")
    with pytest.raises(ModelError, match="native kernels do not share experts"):
        lead_threads(config)
    with pytest.raises(ModelError, match="weight_format int8 needs the native kernels, which the other"):
        lead_threads(config_of(tiny_model("llama"), weight_format="int8"))


def test_a_model_that_transformers_computes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "stablelm"}')
    with pytest.raises(ModelError, match="type 'stablelm' is computed by transformers and cannot be shared"):
        open_model(config_of(tmp_path))


def test_the_simulated_engine_is_refused() -> None:
    with pytest.raises(EngineUnusable, match="simulated engine has no layers to share"):
        build_engine(EngineConfig(engine="sim", tensor_parallel_size=2))
