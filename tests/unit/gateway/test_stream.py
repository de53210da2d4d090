"""The log as a reader sees it, from every place it may attach to."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.events import (
    Delta,
    Event,
    Failed,
    Fence,
    Finished,
    Logged,
    Started,
    TokenLogprobs,
    Usage,
)
from headrace.broker.fold import fold
from headrace.producer.gateway.stream import StreamView, stream_events
from headrace.v1 import inference_pb2 as pb


def started(epoch: int, kept: int = 0, body_hash: bytes = b"") -> Started:
    return Started(epoch, f"consumer-{epoch}", "queue/1", 0, body_hash, fingerprint="f", kept=kept)


def mark(epoch: int, kept: int = 0) -> Started:
    """What an owner writes before it reads the body, where somebody had the request before."""
    return Started(epoch, f"consumer-{epoch}", "queue/1", 0, b"", fingerprint="", kept=kept)


def delta(epoch: int, seq: int, text: str) -> Delta:
    return Delta(epoch, seq, (seq,), text)


def logged(events: list[Event]) -> list[Logged]:
    return [Logged(f"c{number}", event) for number, event in enumerate(events, 1)]


def stream(log: list[Logged], cursor: str = "") -> list[pb.StreamEvent]:
    view = StreamView("req_1", cursor)
    return [event for entry in log for event in view.read(entry)]


def kinds(events: list[pb.StreamEvent]) -> list[str | None]:
    return [event.WhichOneof("kind") for event in events]


def shown(events: list[pb.StreamEvent], text: str = "") -> str:
    """What stands on a reader's screen."""
    for event in events:
        if event.HasField("restarted"):
            text = ""
        text += event.delta.text
    return text


PLAIN = logged([started(1), delta(1, 0, "He"), delta(1, 1, "llo"), Finished(1, "stop", Usage(3, 2))])


def test_an_answer_streams_as_started_deltas_finished() -> None:
    events = stream(PLAIN)
    assert kinds(events) == ["started", "delta", "delta", "finished"]
    assert [event.cursor for event in events] == ["c1", "c2", "c3", "c4"]
    assert [event.seq for event in events] == [0, 0, 1, 2]
    assert {event.epoch for event in events} == {1}
    assert events[-1].finished.usage.completion_tokens == 2


def test_several_answers_and_vectors_are_told_with_their_numbers_and_ends() -> None:
    score = TokenLogprobs(5, -0.5, ((6, -0.25),))
    log = logged(
        [
            started(1),
            Delta(1, 0, (1,), "a", prompt_logprobs=(score,)),
            Delta(1, 1, (2,), "b", choice=3),
            Finished(1, "stop", reasons=("stop", "length"), embeddings=(b"1234",)),
        ]
    )
    _, first, second, last = stream(log)
    assert [(one.delta.choice, one.delta.text) for one in (first, second)] == [(0, "a"), (3, "b")]
    [told] = first.delta.prompt_logprobs
    assert (told.token, told.logprob, [*told.top_tokens], [*told.top_logprobs]) == (5, -0.5, [6], [-0.25])
    assert ([*last.finished.reasons], [*last.finished.embeddings]) == (["stop", "length"], [b"1234"])


def test_a_failure_carries_code_status_and_parameter() -> None:
    log = logged([started(1), Failed(1, "context_length_exceeded", "too long", 400, "prompt", Usage(9, 0))])
    failed = stream(log)[-1].failed
    assert (failed.code, failed.status, failed.param) == ("context_length_exceeded", 400, "prompt")
    assert failed.usage.prompt_tokens == 9


def test_events_of_an_overtaken_owner_are_never_shown() -> None:
    log = logged(
        [
            started(1),
            delta(1, 0, "He"),
            started(2, kept=1),
            delta(1, 1, "XXX"),
            Finished(1, "stop"),
            delta(2, 1, "llo"),
            Finished(2, "stop"),
        ]
    )
    events = stream(log)
    assert kinds(events) == ["started", "delta", "started", "delta", "finished"]
    assert events[2].started.kept == 1
    assert shown(events) == "Hello"


def test_a_fence_is_not_shown_and_a_duplicate_append_neither() -> None:
    log = logged([started(1), Fence(1), delta(1, 0, "Hello"), delta(1, 0, "Hello"), Finished(1, "stop")])
    assert kinds(stream(log)) == ["started", "delta", "finished"]


def test_a_take_over_is_one_started_also_where_its_owner_marks_it_first() -> None:
    log: list[Event] = [
        started(1),
        delta(1, 0, "He"),
        mark(2, kept=1),
        started(2, kept=1),
        delta(2, 1, "llo"),
    ]
    events = stream(logged([*log, Finished(2, "stop")]))
    assert kinds(events) == ["started", "delta", "started", "delta", "finished"]
    assert (events[2].started.consumer, events[2].started.kept, events[2].epoch) == ("consumer-2", 1, 2)
    assert kinds(stream(logged(log), cursor="c2")) == ["started", "delta"]
    assert kinds(stream(logged(log), cursor="c3")) == ["started", "delta"]


def test_a_mark_alone_is_not_shown_and_voids_what_its_forerunner_still_writes() -> None:
    log = logged(
        [started(1), delta(1, 0, "He"), mark(2, kept=1), delta(1, 1, "XXX"), Failed(2, "lost", "lost")]
    )
    assert kinds(stream(log)) == ["started", "delta", "failed"]


def test_a_restart_behind_a_mark_is_told_once() -> None:
    log = logged([started(1), delta(1, 0, "Here"), mark(2, kept=1), started(2, kept=0), delta(2, 1, "Hi")])
    events = stream(log)
    assert kinds(events) == ["started", "delta", "restarted", "started", "delta"]
    assert shown(events) == "Hi"


RESTARTED = logged(
    [
        started(1),
        delta(1, 0, "He"),
        delta(1, 1, "re"),
        started(2, kept=0),
        delta(2, 2, "Hi"),
        Finished(2, "stop"),
    ]
)


def test_a_restart_tells_readers_to_drop_what_they_showed_and_then_starts() -> None:
    events = stream(RESTARTED)
    assert kinds(events) == ["started", "delta", "delta", "restarted", "started", "delta", "finished"]
    assert shown(events) == "Hi"


def test_a_reader_whose_cursor_lies_before_the_restart_is_told_of_it() -> None:
    events = stream(RESTARTED, cursor="c3")
    assert kinds(events) == ["restarted", "started", "delta", "finished"]
    assert shown(events, text="Here") == "Hi"


def test_a_reader_whose_cursor_lies_behind_the_restart_is_not_told_again() -> None:
    assert kinds(stream(RESTARTED, cursor="c4")) == ["delta", "finished"]


def test_a_reader_cut_off_between_restarted_and_started_gets_both_again() -> None:
    restarted = stream(RESTARTED)[3]
    assert kinds([restarted]) == ["restarted"]
    assert kinds(stream(RESTARTED, restarted.cursor))[:2] == ["restarted", "started"]


def test_a_reader_attached_behind_the_end_gets_nothing() -> None:
    assert stream(PLAIN, cursor="c4") == []


def test_the_accepted_event_leads_back_to_the_beginning() -> None:
    event = StreamView("req_1").accepted(duplicate=True)
    assert event.accepted.duplicate
    assert event.cursor == ""
    assert stream(PLAIN, event.cursor) == stream(PLAIN)


OWNER = st.integers(1, 4)
ANY_EVENT = st.one_of(
    st.builds(started, OWNER, st.integers(0, 4)),
    st.builds(mark, OWNER, st.integers(0, 4)),
    st.builds(delta, OWNER, st.integers(0, 5), st.sampled_from(["a", "bc", ""])),
    st.builds(Fence, OWNER),
    st.builds(lambda epoch: Finished(epoch, "stop"), OWNER),
    st.builds(lambda epoch: Failed(epoch, "cancelled", "cancelled"), OWNER),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ANY_EVENT, max_size=25))
def test_any_reader_shows_the_fold_wherever_it_attaches(events: list[Event]) -> None:
    log = logged(events)
    whole = stream(log)
    assert shown(whole) == fold(events).text
    for seen in range(len(whole) + 1):
        before = whole[:seen]
        cursor = before[-1].cursor if before else ""
        after = stream(log, cursor)
        assert shown(after, text=shown(before)) == shown(whole)
        assert kinds(after)[-1:] in ([], kinds(whole)[-1:])


@settings(max_examples=100, deadline=None)
@given(st.lists(ANY_EVENT, max_size=25))
def test_what_follows_a_cursor_is_what_an_unbroken_reader_saw_there(events: list[Event]) -> None:
    log = logged(events)
    whole = stream(log)
    for seen, event in enumerate(whole, 1):
        if not event.HasField("restarted"):
            assert stream(log, event.cursor) == whole[seen:]


async def test_nothing_is_shown_of_a_log_that_answers_another_body() -> None:
    async def log() -> AsyncIterator[Logged]:
        for entry in logged([started(1, body_hash=b"theirs"), delta(1, 0, "He")]):
            yield entry
        raise AssertionError("nobody reads on")

    view = StreamView("req_1", body_hash=b"mine")
    assert [event async for event in stream_events(log(), view)] == []
    assert view.foreign


def test_a_log_that_answers_the_readers_own_body_is_shown() -> None:
    view = StreamView("req_1", body_hash=b"mine")
    [entry] = logged([started(1, body_hash=b"mine")])
    assert kinds(view.read(entry)) == ["started"]
    assert not view.foreign
