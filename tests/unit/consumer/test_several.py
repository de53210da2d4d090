"""Requests with more than one result: several answers, vectors of several texts, and a prompt's scores."""

from __future__ import annotations

import json
import threading
from struct import pack
from typing import Any

import pytest
from msgspec import structs

from headrace.broker.contract import Done
from headrace.broker.events import Delta, Failed, Finished, Started
from headrace.broker.events import TokenLogprobs as LoggedScore
from headrace.consumer import settling
from headrace.consumer.results import result_line
from headrace.gpu_engine.api import EmbedParams, EngineError, Output, TokenLogprobs
from tests.unit.consumer.fakes import FINGERPRINT, NOW_MS, QUEUE, Rig, delivery, eventually, line


def result(settlement: object) -> dict[str, Any]:
    assert isinstance(settlement, Done)
    assert settlement.line is not None
    fields: dict[str, Any] = json.loads(settlement.line)
    return fields


def body_of(settlement: object) -> dict[str, Any]:
    body: dict[str, Any] = result(settlement)["response"]["body"]
    return body


def output(key: str, index: int, text: str, finish: str | None = None) -> Output:
    return Output(id=key, index=index, token_ids=[*text.encode()], text=text, finish_reason=finish)


def interrupted(rig: Rig, body: bytes, *deltas: Delta) -> None:
    """The log of r1 as a killed owner left it."""
    begun = Started(
        1, "old", f"{QUEUE}/r1", 42, delivery(body=body).message.body_hash, FINGERPRINT, at_ms=NOW_MS
    )
    rig.session.logs["r1"] = [begun, *deltas]
    rig.session.epochs["r1"] = 1


async def test_several_answers_are_choices_of_one_line_and_each_has_deltas_of_its_own() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=line(n=2)))
        request = await rig.engine.get()
        assert (request.params.n, request.other_outputs) == (2, [])
        rig.engine.step(output(request.id, 0, "A"), output(request.id, 1, "x"))
        await rig.logged("A")
        rig.engine.step(output(request.id, 1, "yz", "length"))
        rig.engine.step(output(request.id, 0, "B", "stop"))
        settlement = await rig.settled()
        fold = rig.session.fold()
        assert {number: answer.text for number, answer in fold.answers.items()} == {0: "AB", 1: "xyz"}
        assert isinstance(fold.terminal, Finished)
        assert (fold.terminal.reason, fold.terminal.reasons) == ("stop", ("stop", "length"))
        body = body_of(settlement)
        assert [
            (one["index"], one["message"]["content"], one["finish_reason"]) for one in body["choices"]
        ] == [
            (0, "AB", "stop"),
            (1, "xyz", "length"),
        ]
        assert body["usage"]["completion_tokens"] == 5


async def test_interrupted_answers_go_on_each_from_its_own_tokens() -> None:
    async with Rig() as rig:
        body = line(n=3)
        interrupted(rig, body, Delta(1, 0, (65,), "A"), Delta(1, 1, (120, 121), "xy", 2))
        rig.publish(delivery(body=body))
        request = await rig.engine.get()
        assert (request.output_ids, request.other_outputs, request.params.seed) == (
            [65],
            [[], [120, 121]],
            42,
        )
        for index in (2, 0, 1):
            rig.engine.step(output(request.id, index, "!", "stop"))
        choices = body_of(await rig.settled())["choices"]
        assert [one["message"]["content"] for one in choices] == ["A!", "!", "xy!"]
        assert (rig.session.fold().restarts, rig.session.starts()[-1].kept) == (0, 3)


async def test_an_answer_that_ended_before_the_engine_died_is_not_told_twice() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=line(n=2)))
        request = await rig.engine.get()
        first, second = output(request.id, 0, "A and its end", "stop"), output(request.id, 1, "x")
        rig.engine.step(first, second)
        await rig.logged("A and its end")
        rig.engine.die()
        engine = await rig.next_engine(2)
        again = await engine.get()
        assert [len(again.output_ids), *map(len, again.other_outputs)] == [13, 1]
        engine.step(
            Output(id=again.id, text=" its end", finish_reason="stop"), output(again.id, 1, "y", "stop")
        )
        choices = body_of(await rig.settled())["choices"]
        assert [one["message"]["content"] for one in choices] == ["A and its end", "xy"]
        assert {number: one.text for number, one in rig.session.fold().answers.items()} == {
            0: "A and its end",
            1: "xy",
        }


async def test_a_cancel_ends_all_answers_with_what_they_have() -> None:
    async with Rig(obliging=False) as rig:
        rig.publish(delivery(body=line(n=2)))
        request = await rig.engine.get()
        rig.engine.step(output(request.id, 0, "A"))
        rig.session.cancel("r1")
        await eventually(lambda: rig.engine.aborted == [request.id])
        rig.engine.step(output(request.id, 0, "B", "abort"), output(request.id, 1, "x", "abort"))
        settlement = await rig.settled()
        assert isinstance(settlement, Done)
        assert isinstance(settlement.terminal, Failed)
        assert settlement.terminal.code == "cancelled"
        assert settlement.terminal.usage.completion_tokens == 3
        assert {number: one.text for number, one in rig.session.fold().answers.items()} == {0: "AB", 1: "x"}


async def test_an_answer_that_fails_fails_the_request_and_the_others_are_stopped() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=line(n=2)))
        request = await rig.engine.get()
        broken = EngineError(code="internal_error", message="NaN")
        rig.engine.step(output(request.id, 0, "A"), output(request.id, 1, "x"))
        rig.engine.step(Output(id=request.id, index=1, error=broken))
        settlement = await rig.settled()
        assert isinstance(settlement, Done)
        assert isinstance(settlement.terminal, Failed)
        assert settlement.terminal.code == "internal_error"
        assert rig.engine.aborted == [request.id]
        await rig.idle()


async def test_several_answers_that_are_refused_leave_nothing_to_stop() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=line(n=2)))
        request = await rig.engine.get()
        rig.engine.step(Output(id=request.id, error=EngineError(code="invalid_request", message="no")))
        await rig.settled()
        assert rig.engine.aborted == []


async def test_the_best_of_several_answers_begin_anew_after_a_death() -> None:
    """They come at once at the end, so a log has some of them only where their owner died in that moment."""
    async with Rig() as rig:
        body = line(n=1, best_of=3)
        interrupted(rig, body, Delta(1, 0, (65,), "A"))
        rig.publish(delivery(body=body))
        request = await rig.engine.get()
        assert (request.output_ids, request.params.best_of, request.params.seed) == ([], 3, 42)
        rig.engine.step(output(request.id, 0, "A", "stop"))
        await rig.settled()
        fold = rig.session.fold()
        assert (fold.text, fold.restarts) == ("A", 1)


async def test_a_prompts_log_probabilities_stand_in_log_and_line_and_are_asked_for_once() -> None:
    async with Rig() as rig:
        fields = {"prompt": "ab", "prompt_logprobs": 1, "echo": True, "logprobs": 0}
        body = json.dumps(fields).encode()
        rig.publish(delivery(body=body))
        request = await rig.engine.get()
        assert request.params.prompt_logprobs == 1
        score = TokenLogprobs(98, -0.5, [(99, -0.25)])
        told = Output(
            id=request.id,
            token_ids=[65],
            text="abA",
            logprobs=[TokenLogprobs(65, -1.0)],
            prompt_logprobs=[score],
        )
        rig.engine.step(told)
        await rig.logged("abA")
        assert rig.session.fold().prompt_logprobs == [LoggedScore(98, -0.5, ((99, -0.25),))]
        rig.engine.die()
        engine = await rig.next_engine(2)
        again = await engine.get()
        assert (again.params.prompt_logprobs, again.output_ids) == (None, [65])
        engine.step(structs.replace(output(again.id, 0, "B", "stop"), logprobs=[TokenLogprobs(66, -2.0)]))
        [choice] = body_of(await rig.settled())["choices"]
        assert choice["logprobs"]["tokens"] == ["a", "b", "A", "B"]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -1.0, -2.0]
        assert choice["prompt_logprobs"] == [
            None,
            {
                "98": {"logprob": -0.5, "rank": None, "decoded_token": "b"},
                "99": {"logprob": -0.25, "rank": 1, "decoded_token": "c"},
            },
        ]


async def test_vectors_stand_in_the_line_and_in_the_terminal_record_by_the_place_of_their_texts() -> None:
    async with Rig() as rig:
        body = json.dumps({"input": ["a", "bcd"], "dimensions": 2}).encode()
        rig.publish(delivery(body=body))
        request = await rig.engine.get()
        assert (request.prompt_ids, request.embed) == (
            [97],
            EmbedParams(dimensions=2, others=[[98, 99, 100]]),
        )
        second = Output(id=request.id, index=1, embedding=[0.5, 0.25], finish_reason="stop", cached_tokens=2)
        first = Output(id=request.id, embedding=[1.0, 0.0], finish_reason="stop")
        rig.engine.step(second)
        rig.engine.step(first)
        settlement = await rig.settled()
        assert isinstance(settlement, Done)
        assert isinstance(settlement.terminal, Finished)
        assert settlement.terminal.embeddings == (pack("<2f", 1, 0), pack("<2f", 0.5, 0.25))
        usage = settlement.terminal.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (4, 0, 2)
        assert body_of(settlement) == {
            "object": "list",
            "data": [
                {"object": "embedding", "index": 0, "embedding": [1.0, 0.0]},
                {"object": "embedding", "index": 1, "embedding": [0.5, 0.25]},
            ],
            "model": "words",
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
        }


async def test_a_text_that_cannot_be_embedded_is_refused_by_its_place() -> None:
    async with Rig() as rig:
        for number, (param, told) in enumerate([("input[1]", "input[1]"), ("prompt_ids", "input")], start=1):
            rig.publish(delivery(f"r{number}", body=json.dumps({"input": ["a", "b"]}).encode()))
            request = await rig.engine.get(number)
            error = EngineError(code="context_length_exceeded", message="too long", param=param)
            rig.engine.step(Output(id=request.id, error=error))
            settlement = await rig.settled(f"r{number}")
            assert result(settlement)["response"]["body"]["error"]["param"] == told


@pytest.mark.parametrize(("asked", "off_the_loop"), [({}, False), ({"logprobs": True}, True)])
async def test_a_line_of_numbers_is_made_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], off_the_loop: bool
) -> None:
    threads: list[threading.Thread] = []

    def made(*args: Any, **more: Any) -> bytes:
        threads.append(threading.current_thread())
        return result_line(*args, **more)

    monkeypatch.setattr(settling, "result_line", made)
    async with Rig() as rig:
        rig.publish(delivery(body=line(**asked)))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65, finish="stop")
        assert body_of(await rig.settled())["choices"]
    [thread] = threads
    assert (thread is not threading.current_thread()) == off_the_loop


async def test_the_token_that_ended_an_answer_is_no_text_of_it_for_whoever_takes_it_over() -> None:
    async with Rig() as rig:
        body = line(n=2, stop_token_ids=[66])
        interrupted(rig, body, Delta(1, 0, (65, 66), "A"), Delta(1, 1, (120,), "x", 1))
        rig.publish(delivery(body=body))
        request = await rig.engine.get()
        assert (request.output_ids, request.other_outputs) == ([65, 66], [[120]])
        rig.engine.step(Output(id=request.id, finish_reason="stop"), output(request.id, 1, "y", "stop"))
        choices = body_of(await rig.settled())["choices"]
        assert [one["message"]["content"] for one in choices] == ["A", "xy"]
        assert {number: one.text for number, one in rig.session.fold().answers.items()} == {0: "A", 1: "xy"}


async def test_an_answer_that_fails_behind_an_end_told_again_leaves_no_other_in_the_engine() -> None:
    """No token came since the engine died, but it was not refused: answer 2 is there, and would go on."""
    async with Rig() as rig:
        rig.publish(delivery(body=line(n=3)))
        request = await rig.engine.get()
        rig.engine.step(output(request.id, 0, "A", "stop"), output(request.id, 1, "x"))
        await eventually(lambda: rig.session.fold().num_tokens == 2)
        rig.engine.die()
        engine = await rig.next_engine(2)
        again = await engine.get()
        broken = EngineError(code="internal_error", message="NaN")
        engine.step(Output(id=again.id, finish_reason="stop"), Output(id=again.id, index=1, error=broken))
        await rig.settled()
        assert engine.aborted == [again.id]


async def test_a_text_that_fails_leaves_no_other_in_the_engine() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=json.dumps({"input": ["a", "b", "c"]}).encode()))
        request = await rig.engine.get()
        broken = EngineError(code="internal_error", message="NaN")
        rig.engine.step(Output(id=request.id, index=1, error=broken))
        await rig.settled()
        assert rig.engine.aborted == [request.id]
