"""The worker between a session and an engine: from a delivery to its settlement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from msgspec import structs

from headrace.broker.contract import DeadLetter, Done, Opened, OpenOutcome, Release, Retry
from headrace.broker.errors import BrokerError
from headrace.broker.events import Delta, Failed, Finished, Started
from headrace.broker.events import TokenLogprobs as LoggedScore
from headrace.broker.lines.request import ParsedRequest
from headrace.broker.message import Delivery, Lane, Message
from headrace.consumer.errors import ConsumerError, EngineUnusable
from headrace.consumer.prepare import Reading
from headrace.consumer.worker import LAST_WORDS_S, RELEASE_S
from headrace.gpu_engine.api import EngineError, Output, Ready, TokenLogprobs, Unusable
from tests.unit.consumer.fakes import (
    FINGERPRINT,
    NOW_MS,
    QUEUE,
    Rig,
    delivery,
    eventually,
    line,
    settings_for_tests,
)


def done(settlement: object) -> Done:
    assert isinstance(settlement, Done)
    return settlement


def result(settlement: object) -> dict[str, object]:
    assert isinstance(settlement, Done | DeadLetter)
    assert settlement.line is not None
    parsed = json.loads(settlement.line)
    assert isinstance(parsed, dict)
    return parsed


def failed(settlement: object) -> Failed:
    assert isinstance(settlement, Done | DeadLetter)
    assert isinstance(settlement.terminal, Failed)
    return settlement.terminal


# ------------------------------------------------------------------------------------- the straight way


async def test_a_request_is_started_streamed_finished_and_settled_with_its_line() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=line("mine", max_tokens=9)))
        request = await rig.engine.get()
        rig.engine.give(request.id, 72, cached=3)
        await rig.logged("H")
        rig.engine.give(request.id, 105, finish="length", cached=3)
        settlement = done(await rig.settled())
        log = rig.session.logs["r1"]
        assert [type(event) for event in log] == [Started, Delta, Delta, Finished]
        assert request.params.max_tokens == 9
        terminal = settlement.terminal
        assert isinstance(terminal, Finished)
        assert (terminal.reason, terminal.epoch) == ("length", 1)
        usage = terminal.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (
            len(request.prompt_ids),
            2,
            3,
        )
        fields = result(settlement)
        assert fields["custom_id"] == "mine"
        assert "Hi" in str(fields["response"])
        await rig.idle()
        assert rig.worker.counters.finished == 1


async def test_started_names_delivery_consumer_seed_and_fingerprint() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=line(seed=77)))
        request = await rig.engine.get()
        await eventually(lambda: bool(rig.session.starts()))
        (started,) = rig.session.starts()
        assert (started.delivery, started.consumer) == (f"{QUEUE}/r1", "consumer-1")
        assert (started.seed, started.kept, started.fingerprint) == (77, 0, FINGERPRINT)
        assert started.at_ms == NOW_MS
        assert request.params.seed == 77


async def test_a_request_without_seed_gets_one_that_the_log_knows() -> None:
    async with Rig() as rig:
        rig.publish(delivery("a"), delivery("b"))
        requests = [await rig.engine.get(1), await rig.engine.get(2)]
        await eventually(lambda: bool(rig.session.starts("a") and rig.session.starts("b")))
        seeds = {rig.session.starts("a")[0].seed, rig.session.starts("b")[0].seed}
        assert len(seeds) == 2
        assert {request.params.seed for request in requests} == seeds


async def test_lanes_become_priorities_of_the_engine() -> None:
    async with Rig() as rig:
        rig.publish(delivery("a", lane=Lane.BACKGROUND), delivery("b", lane=Lane.INTERACTIVE))
        await rig.engine.get(2)
        assert sorted(request.priority for request in rig.engine.added) == [0, 3]


async def test_the_window_is_filled_as_slots_free_not_batch_at_a_time() -> None:
    async with Rig(settings_for_tests(max_in_flight=3, window={"interactive_reserve": 0})) as rig:
        rig.publish(*(delivery(f"r{n}") for n in range(5)))
        await rig.engine.get(3)
        assert rig.worker.in_flight == 3
        assert len(rig.session.queue) == 2
        rig.engine.give(rig.engine.added[1].id, 65, finish="stop")
        await rig.engine.get(4)
        assert rig.session.pulls[-1] == 1
        assert rig.worker.in_flight == 3


async def test_appends_of_one_step_are_one_call() -> None:
    async with Rig() as rig:
        rig.publish(delivery("a"), delivery("b"))
        await rig.engine.get(2)
        await eventually(lambda: bool(rig.session.starts("a") and rig.session.starts("b")))
        before = len(rig.session.appends)
        rig.engine.step(*(Output(id=r.id, token_ids=[65], text="A") for r in rig.engine.added))
        await rig.logged("A", "a")
        await rig.logged("A", "b")
        assert [len(batch) for batch in rig.session.appends[before:]] == [2]


async def test_streamed_tokens_coalesce_while_an_append_is_under_way() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        await rig.logged("A")
        gate = rig.session.hold("append")
        for token in (66, 67, 68, 69):
            rig.engine.give(request.id, token)
        await asyncio.sleep(0.005)
        gate.set()
        await rig.logged("ABCDE")
        assert len(rig.session.deltas()) <= 3


async def test_tokens_that_nobody_streams_wait_for_a_checkpoint_but_the_end_waits_for_nothing() -> None:
    settings = settings_for_tests(publish={"checkpoint_tokens": 3, "checkpoint_s": 1000})
    async with Rig(settings) as rig:
        rig.publish(delivery(stream=False))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        await rig.logged("A")
        for token in (66, 67, 68):
            rig.engine.give(request.id, token)
        await rig.logged("ABCD")
        rig.engine.give(request.id, 69)
        rig.engine.give(request.id, 70, finish="stop")
        await rig.settled()
        assert [delta.text for delta in rig.session.deltas()] == ["A", "BCD", "EF"]


async def test_a_checkpoint_comes_by_time_too() -> None:
    settings = settings_for_tests(publish={"checkpoint_tokens": 100, "checkpoint_s": 0.01})
    async with Rig(settings) as rig:
        rig.publish(delivery(stream=False))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        await rig.logged("A")
        rig.engine.give(request.id, 66)
        await rig.logged("AB")


# --------------------------------------------------------------------------------- what cannot be run


async def test_an_invalid_request_fails_at_once_with_status_400_and_a_line() -> None:
    async with Rig() as rig:
        rig.publish(delivery(body=line("bad", max_tokens=0)))
        settlement = done(await rig.settled())
        assert failed(settlement).status == 400
        assert result(settlement)["custom_id"] == "bad"
        assert not rig.engine.added


@pytest.mark.parametrize("stream", [False, True])
async def test_a_result_that_the_broker_can_never_take_fails_and_its_neighbour_is_answered(
    stream: bool,
) -> None:
    async with Rig() as rig:
        rig.session.most_bytes = 1_000
        rig.publish(delivery("large", stream=stream), delivery("small", stream=stream))
        by_name = [(await rig.engine.get()).id, (await rig.engine.get(2)).id]
        for request_id, letters in zip(by_name, (800, 3), strict=True):
            for _ in range(letters):
                rig.engine.give(request_id, 65)
            rig.engine.give(request_id, 66, finish="length")
        failure = failed(await rig.settled("large"))
        assert (failure.code, failure.status) == ("result_too_large", 400)
        assert "ask for less in one request" in failure.message
        assert isinstance(done(await rig.settled("small")).terminal, Finished)
        assert rig.session.fold("large").ended
        await rig.idle()


async def test_an_unreadable_message_is_a_dead_letter_with_a_line_and_its_neighbour_runs() -> None:
    async with Rig() as rig:
        rig.publish(delivery("bad", body=b"{nonsense"), delivery("good"))
        settlement = await rig.settled("bad")
        assert isinstance(settlement, DeadLetter)
        assert failed(settlement).status == 400
        assert result(settlement)["custom_id"] is None
        await rig.engine.get()


async def test_a_model_that_is_not_served_is_named_together_with_those_that_are() -> None:
    async with Rig() as rig:
        rig.publish(delivery("other", body=line(model="gpt-9")), delivery("alias", body=line(model="alias")))
        failure = failed(await rig.settled("other"))
        assert failure.code == "model_not_found"
        assert "gpt-9" in failure.message
        assert "'words', 'alias'" in failure.message
        await rig.engine.get()


async def test_a_refusal_by_the_engine_is_a_failure_of_the_client() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        error = EngineError(code="context_length_exceeded", message="300 tokens, 200 fit", param="prompt_ids")
        rig.engine.step(Output(id=request.id, error=error))
        failure = failed(await rig.settled())
        assert (failure.code, failure.status) == ("context_length_exceeded", 400)
        assert failure.param in ("prompt", "messages"), "the user has given no token ids"


async def test_an_internal_error_of_the_engine_is_a_failure_of_the_server() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.step(Output(id=request.id, error=EngineError(code="internal_error", message="NaN")))
        assert failed(await rig.settled()).status == 500


@pytest.mark.parametrize("outcome", [OpenOutcome.TWIN, OpenOutcome.ENDED])
async def test_a_twin_and_an_ended_request_complete_silently(outcome: OpenOutcome) -> None:
    async with Rig() as rig:
        rig.session.outcomes["r1"] = outcome
        rig.publish(delivery())
        assert await rig.settled() == Done()
        assert not rig.session.logs["r1"]


async def test_a_conflicting_request_is_a_dead_letter_and_writes_into_no_log() -> None:
    async with Rig() as rig:
        rig.session.outcomes["r1"] = OpenOutcome.CONFLICT
        rig.publish(delivery())
        settlement = await rig.settled()
        assert isinstance(settlement, DeadLetter)
        assert settlement.terminal is None
        assert settlement.line is None


async def test_a_lost_delivery_is_forgotten() -> None:
    async with Rig() as rig:
        rig.session.outcomes["r1"] = OpenOutcome.LOST
        rig.publish(delivery())
        await eventually(lambda: rig.worker.counters.fenced == 1)
        assert not rig.session.settled


# -------------------------------------------------------------------------------------------- resuming


def interrupted(rig: Rig, *, fingerprint: str = FINGERPRINT, text: str = "AB") -> None:
    """The log of r1 as a killed owner left it."""
    message = delivery().message
    rig.session.logs["r1"] = [
        Started(1, "old", f"{QUEUE}/r1", 42, message.body_hash, fingerprint, at_ms=NOW_MS - 3),
        Delta(1, 0, (65, 66), text),
    ]
    rig.session.epochs["r1"] = 1


async def test_an_interrupted_answer_is_resumed_with_its_tokens_and_its_seed() -> None:
    async with Rig() as rig:
        interrupted(rig)
        rig.publish(delivery())
        request = await rig.engine.get()
        assert request.output_ids == [65, 66]
        assert request.params.seed == 42
        rig.engine.give(request.id, 67, finish="stop")
        settlement = done(await rig.settled())
        fold = rig.session.fold()
        assert (fold.text, fold.restarts, fold.token_ids) == ("ABC", 0, [65, 66, 67])
        assert rig.session.starts()[-1].kept == 2
        assert [delta.seq for delta in rig.session.deltas()] == [0, 1]
        assert "ABC" in str(result(settlement)["response"])
        assert settlement.terminal is not None
        assert settlement.terminal.usage.completion_tokens == 3
        await rig.idle()
        assert rig.worker.counters.resumed == 1


async def test_log_probabilities_of_an_answer_that_was_interrupted_stand_whole_in_its_line() -> None:
    async with Rig() as rig:
        interrupted(rig, text="A")
        rig.session.logs["r1"][1] = Delta(1, 0, (65,), "A", logprobs=(LoggedScore(65, -0.5, ((66, -0.25),)),))
        rig.publish(delivery(body=line(logprobs=True, top_logprobs=1)))
        rig.session.logs["r1"][0] = structs.replace(
            rig.session.starts()[0],
            body_hash=delivery(body=line(logprobs=True, top_logprobs=1)).message.body_hash,
        )
        request = await rig.engine.get()
        assert (request.params.logprobs, request.output_ids) == (1, [65])
        rig.engine.give(request.id, 67, finish="stop", logprobs=[TokenLogprobs(67, -1.0, [(67, -1.0)])])
        fields = result(done(await rig.settled()))
        assert rig.session.deltas()[-1].logprobs == (LoggedScore(67, -1.0, ((67, -1.0),)),)
        content = fields["response"]["body"]["choices"][0]["logprobs"]["content"]  # type: ignore[index]
        assert content == [
            {
                "token": "A",
                "logprob": -0.5,
                "bytes": [65],
                "top_logprobs": [{"token": "B", "logprob": -0.25, "bytes": [66]}],
            },
            {
                "token": "C",
                "logprob": -1.0,
                "bytes": [67],
                "top_logprobs": [{"token": "C", "logprob": -1.0, "bytes": [67]}],
            },
        ]


async def test_tokens_of_another_model_are_not_continued() -> None:
    async with Rig() as rig:
        interrupted(rig, fingerprint="other")
        rig.publish(delivery())
        request = await rig.engine.get()
        assert request.output_ids == []
        rig.engine.give(request.id, 90, finish="stop")
        await rig.settled()
        fold = rig.session.fold()
        assert (fold.text, fold.restarts) == ("Z", 1)
        assert [delta.seq for delta in rig.session.deltas()] == [0, 1]


async def test_the_end_of_a_text_that_stands_in_the_log_already_is_not_shown_twice() -> None:
    """The old owner wrote its last delta, held-back end included, and died before it settled."""
    async with Rig() as rig:
        interrupted(rig, text="AB and the end")
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.step(Output(id=request.id, text=" and the end", finish_reason="stop"))
        await rig.settled()
        assert rig.session.fold().text == "AB and the end"


# ------------------------------------------------------------------------------- cancelled and expired


async def test_a_request_that_was_cancelled_in_the_queue_is_not_run() -> None:
    async with Rig() as rig:
        rig.session.cancelled.add("r1")
        rig.publish(delivery(body=line("mine")))
        settlement = done(await rig.settled())
        assert (failed(settlement).code, failed(settlement).status) == ("cancelled", 0)
        assert result(settlement)["custom_id"] == "mine"
        assert not rig.engine.added


def hold_preparing(rig: Rig, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    read = rig.preparer.read

    async def slowly(message: Message, kept: Sequence[Sequence[int]] | None) -> Reading:
        await gate.wait()
        return await read(message, kept)

    monkeypatch.setattr(rig.preparer, "read", slowly)


@pytest.mark.parametrize("state", ["opening", "preparing"])
async def test_a_cancel_on_the_way_to_the_engine_ends_the_request(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig() as rig:
        gate = rig.session.hold("open")
        if state == "preparing":
            gate.set()
            gate = asyncio.Event()
            hold_preparing(rig, gate, monkeypatch)
        rig.publish(delivery())
        await eventually(lambda: rig.worker.in_flight == 1)
        await asyncio.sleep(0.005)
        rig.session.cancel("r1")
        await asyncio.sleep(0.005)
        gate.set()
        assert failed(await rig.settled()).code == "cancelled"
        assert not rig.engine.added


async def test_a_running_request_that_is_cancelled_is_aborted_and_keeps_its_text() -> None:
    async with Rig(obliging=False) as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        rig.session.cancel("r1")
        await eventually(lambda: rig.engine.aborted == [request.id])
        rig.engine.give(request.id, 66)
        rig.engine.step(Output(id=request.id, text="C", finish_reason="abort"))
        settlement = done(await rig.settled())
        assert failed(settlement).code == "cancelled"
        assert failed(settlement).usage.completion_tokens == 2
        assert rig.session.fold().text == "ABC"
        assert "ABC" in str(result(settlement)["error"])


async def test_a_request_that_finishes_before_its_cancel_arrives_is_an_answer() -> None:
    async with Rig(obliging=False) as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.session.cancel("r1")
        await eventually(lambda: rig.engine.aborted == [request.id])
        rig.engine.give(request.id, 65, finish="stop")
        assert isinstance(done(await rig.settled()).terminal, Finished)


async def test_a_cancel_while_the_answer_is_being_settled_changes_nothing() -> None:
    async with Rig() as rig:
        gate = rig.session.hold("settle")
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65, finish="stop")
        await eventually(lambda: rig.session.calls["settle"] > 0, "the settlement")
        rig.session.cancel("r1")
        await asyncio.sleep(0.005)
        gate.set()
        assert isinstance(done(await rig.settled()).terminal, Finished)


async def test_a_cancelled_request_ends_even_when_its_engine_dies() -> None:
    async with Rig(obliging=False) as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        rig.session.cancel("r1")
        await eventually(lambda: rig.engine.aborted == [request.id])
        rig.engine.die()
        assert failed(await rig.settled()).code == "cancelled"
        assert not (await rig.next_engine(2)).added


async def test_a_deadline_that_passed_in_the_queue_ends_the_request_with_what_there_is() -> None:
    async with Rig() as rig:
        interrupted(rig)
        rig.publish(delivery(deadline_ms=NOW_MS))
        settlement = done(await rig.settled())
        assert (failed(settlement).code, failed(settlement).status) == ("expired", 0)
        assert "AB" in str(result(settlement)["error"])
        assert not rig.engine.added


async def test_a_deadline_that_passes_while_running_aborts_and_keeps_the_text() -> None:
    async with Rig(obliging=False) as rig:
        rig.publish(delivery(deadline_ms=NOW_MS + 20))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        await eventually(lambda: rig.engine.aborted == [request.id])
        rig.engine.step(Output(id=request.id, finish_reason="abort"))
        assert failed(await rig.settled()).code == "expired"
        assert rig.session.fold().text == "A"


async def test_a_deadline_passes_while_the_request_waits_for_an_engine() -> None:
    async with Rig() as rig:
        rig.publish(delivery(deadline_ms=NOW_MS + 300))
        await rig.engine.get()
        rig.first_words = None
        rig.engine.die()
        assert failed(await rig.settled()).code == "expired"


# ------------------------------------------------------------------------------------ losing ownership


async def test_a_refused_append_drops_the_request_silently_and_frees_the_engine() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        await eventually(lambda: bool(rig.session.starts()))
        rig.session.take_over()
        rig.engine.give(request.id, 65)
        await eventually(lambda: rig.worker.counters.fenced == 1)
        assert rig.engine.aborted == [request.id]
        assert not rig.session.settled
        assert rig.session.fold().text == ""


async def test_a_refused_settle_is_forgotten() -> None:
    async with Rig() as rig:
        gate = rig.session.hold("settle")
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65, finish="stop")
        await eventually(lambda: rig.session.calls["settle"] > 0, "the settlement")
        rig.session.take_over()
        gate.set()
        await eventually(lambda: rig.worker.counters.fenced == 1)
        assert not rig.session.settled


async def test_a_lease_that_the_heartbeat_finds_lost_ends_the_request_here() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.session.lost = [rig.session.pulled["r1"]]
        await eventually(lambda: rig.worker.counters.fenced == 1)
        assert rig.engine.aborted == [request.id]


async def test_a_late_answer_for_a_lost_delivery_leaves_the_same_one_delivered_anew_alone() -> None:
    async with Rig() as rig:
        gate = rig.session.hold("append")
        rig.publish(delivery())
        await rig.engine.get()
        await eventually(lambda: bool(rig.session.appends), "an append under way")
        rig.first_words = None
        rig.engine.die()
        second = await rig.next_engine(2)
        rig.session.lost = [rig.session.pulled["r1"]]
        await eventually(lambda: not rig.session.lost, "the heartbeat")
        rig.publish(delivery())
        await eventually(lambda: rig.session.epochs["r1"] == 2, "the opening of the new delivery")
        await asyncio.sleep(0.01)  # it waits for an engine now
        gate.set()
        await eventually(lambda: rig.worker.counters.fenced == 1)
        await eventually(lambda: [start.epoch for start in rig.session.starts()] == [2], "its start")
        second.say(Ready(rig.info))
        await second.get()


async def test_a_heartbeat_that_crosses_with_the_settlement_does_not_call_it_lost() -> None:
    async with Rig() as rig:
        gate = rig.session.hold("settle")
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65, finish="stop")
        await eventually(lambda: rig.session.calls["settle"] > 0, "the settlement")
        rig.session.lost = [rig.session.pulled["r1"]]
        await eventually(lambda: not rig.session.lost, "the heartbeat")
        gate.set()
        await rig.settled()
        await rig.idle()
        assert (rig.worker.counters.finished, rig.worker.counters.fenced) == (1, 0)


async def test_a_delivery_that_comes_back_while_it_is_still_served_is_served_anew() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        first = await rig.engine.get()
        rig.engine.give(first.id, 65)
        await rig.logged("A")
        rig.publish(delivery())
        second = await rig.engine.get(2)
        assert rig.engine.aborted == [first.id]
        assert second.output_ids == [65]
        rig.engine.give(second.id, 66, finish="stop")
        await rig.settled()
        assert rig.session.fold().text == "AB"


# ---------------------------------------------------------------------------------- a broker that is away


@pytest.mark.parametrize("lands", [True, False])
async def test_an_append_of_unknown_fate_doubles_and_loses_nothing(lands: bool) -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        await rig.logged("A")
        rig.session.fail("append", lands=lands)
        rig.engine.give(request.id, 66)
        await eventually(lambda: rig.session.epochs["r1"] == 2)
        rig.engine.give(request.id, 67, finish="stop")
        settlement = done(await rig.settled())
        fold = rig.session.fold()
        assert (fold.text, fold.restarts, fold.token_ids) == ("ABC", 0, [65, 66, 67])
        assert settlement.terminal is not None
        assert settlement.terminal.epoch == 2
        assert len(rig.engine.added) == 1


@pytest.mark.parametrize("lands", [True, False])
async def test_a_settle_of_unknown_fate_is_repeated_behind_a_new_fence(lands: bool) -> None:
    async with Rig() as rig:
        rig.session.fail("settle", lands=lands)
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65, finish="stop")
        await rig.settled()
        await rig.idle()
        terminals = [event for event in rig.session.logs["r1"] if isinstance(event, Finished)]
        assert len(terminals) == 1
        assert rig.session.fold().text == "A"


async def test_a_short_answer_that_nobody_streams_goes_into_its_log_with_its_end_in_one_call() -> None:
    async with Rig() as rig:
        rig.publish(delivery(stream=False))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        rig.engine.give(request.id, 66, finish="stop")
        await rig.settled()
        assert rig.session.appends == []
        assert [type(event) for event in rig.session.logs["r1"]] == [Started, Delta, Finished]
        assert rig.session.fold().text == "AB"


async def test_the_end_waits_for_an_append_under_way_and_takes_the_rest_along() -> None:
    async with Rig() as rig:
        gate = rig.session.hold("append")
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        await eventually(lambda: rig.session.calls["append"] > 0, "an append")
        rig.engine.give(request.id, 66, finish="stop")
        await asyncio.sleep(0.01)
        assert rig.session.calls["settle"] == 0
        gate.set()
        await rig.settled()
        assert len(rig.session.appends) == 1
        assert rig.session.fold().text == "AB"


async def test_pulls_go_on_when_the_broker_comes_back() -> None:
    async with Rig() as rig:
        rig.session.fail("pull", lands=False, times=3)
        rig.publish(delivery())
        await rig.engine.get()


async def test_an_open_is_repeated_until_the_broker_answers() -> None:
    async with Rig() as rig:
        rig.session.fail("open", lands=True, times=2)
        rig.publish(delivery())
        await rig.engine.get()
        await eventually(lambda: bool(rig.session.starts()))
        assert rig.session.starts()[0].epoch == 3


# ------------------------------------------------------------------------------------------- stopping


async def test_a_drain_finishes_what_runs_and_pulls_nothing_more() -> None:
    async with Rig() as rig:
        rig.publish(delivery("a"))
        request = await rig.engine.get()
        rig.drain.request()
        await eventually(lambda: rig.session.pulls[-1:] != [] and rig.drain.requested)
        await asyncio.sleep(0.01)
        rig.publish(delivery("b"))
        beats = rig.session.heartbeats
        await eventually(lambda: rig.session.heartbeats > beats, "a heartbeat in the drain")
        rig.engine.give(request.id, 65, finish="stop")
        await asyncio.wait_for(rig.task, 5)
        assert isinstance(done(rig.session.settled["a"]).terminal, Finished)
        assert len(rig.session.queue) == 1
        assert rig.engine.closed


async def test_what_does_not_finish_within_the_grace_is_released_with_its_tokens_in_the_log() -> None:
    settings = settings_for_tests(
        grace_s=0.02, publish={"checkpoint_tokens": 100, "checkpoint_s": 1000}, max_in_flight=4
    )
    async with Rig(settings) as rig:
        rig.publish(delivery(stream=False))
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        await rig.logged("A")
        rig.engine.give(request.id, 66)
        rig.drain.request()
        await asyncio.wait_for(rig.task, 5)
        assert rig.session.settled == {"r1": Release()}
        assert rig.session.fold().text == "AB"
        assert rig.engine.aborted == [request.id]


async def test_a_second_signal_releases_at_once() -> None:
    async with Rig(settings_for_tests(grace_s=1000)) as rig:
        rig.publish(delivery("a"), delivery("b"))
        await rig.engine.get(2)
        rig.drain.request()
        rig.drain.request()
        await asyncio.wait_for(rig.task, 5)
        assert set(rig.session.settled.values()) == {Release()}


async def test_a_consumer_that_is_drained_while_its_engine_loads_stops() -> None:
    rig = Rig()
    rig.first_words = None
    async with rig:
        rig.drain.request()
        await asyncio.wait_for(rig.task, 5)
        assert not rig.session.pulls


async def test_a_heartbeat_that_dies_stops_the_worker_with_its_error_and_hands_back() -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        await rig.engine.get()
        rig.session.heartbeat_error = ValueError("broken heart")
        with pytest.raises(ValueError, match="broken heart"):
            await asyncio.wait_for(rig.task, 5)
        assert rig.session.settled == {"r1": Release()}


async def test_a_publisher_that_dies_stops_the_worker_and_still_hands_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        await rig.engine.get()
        await eventually(lambda: bool(rig.session.starts()))
        monkeypatch.setattr(rig.session, "append", None)
        rig.engine.give(rig.engine.added[0].id, 65)
        with pytest.raises(TypeError):
            await asyncio.wait_for(rig.task, 5)
        assert rig.session.settled == {"r1": Release()}


async def test_an_engine_that_cannot_be_used_ends_the_worker_with_its_sentence() -> None:
    rig = Rig()
    rig.first_words = Unusable("There is no model at /nowhere.")
    async with rig:
        with pytest.raises(EngineUnusable, match="no model at /nowhere"):
            await asyncio.wait_for(rig.task, 5)
        assert not rig.session.pulls
        assert issubclass(EngineUnusable, ConsumerError)


# -------------------------------------------------------------------------------- one request's own trouble


async def test_a_log_that_this_version_cannot_read_is_left_for_later_and_the_neighbour_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        opening = rig.session.open

        async def open_or_not(asked: Delivery) -> Opened:
            if asked.ref.request_id == "new":
                raise BrokerError("an event of an unknown kind")
            return await opening(asked)

        monkeypatch.setattr(rig.session, "open", open_or_not)
        rig.publish(delivery("new"), delivery("r1"))
        assert isinstance(await rig.settled("new"), Retry)
        await rig.engine.get()


async def test_a_request_that_trips_a_bug_of_ours_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:

        def broken(message: Message) -> ParsedRequest:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr("headrace.consumer.prepare.parse_message", broken)
        rig.publish(delivery())
        failure = failed(await rig.settled())
        assert (failure.code, failure.status) == ("internal_error", 500)
        assert not rig.task.done()


@pytest.mark.parametrize("ticks", range(8))
async def test_a_cancelled_worker_ends_even_under_a_stream_of_steps(ticks: int) -> None:
    async with Rig() as rig:
        rig.publish(delivery())
        request = await rig.engine.get()
        rig.engine.give(request.id, 65)
        for _ in range(ticks):
            await asyncio.sleep(0)
        rig.task.cancel()
        done, _ = await asyncio.wait({rig.task}, timeout=2)
        assert done


async def test_a_drain_with_an_engine_that_does_not_listen_is_over_before_it_is_killed() -> None:
    """`headrace up` waits 5 s beyond the grace."""
    async with Rig() as rig:
        await eventually(lambda: bool(rig.session.pulls))
        rig.drain.request()
        await rig.task
        assert LAST_WORDS_S + RELEASE_S + rig.engine.patience_s < 5
