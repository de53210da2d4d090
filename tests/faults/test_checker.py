"""The checker finds nothing in a sound run, and each planted fault under its own name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from headrace.broker.embedded.valkey import EmbeddedValkey
from tests.faults.checker.check import check
from tests.faults.checker.judge import Rule
from tests.faults.checker.record import Accepted, RunRecord, Shown, Transcript, read_record, write_record
from tests.faults.planting import (
    ANSWER,
    REPLY,
    WHOLE,
    WORDS,
    Field,
    Plot,
    answer_body,
    chunk_body,
    delta,
    failed,
    failure_body,
    finished,
    shown,
    started,
)
from tests.faults.planting_redis import RedisField


@pytest.fixture(scope="session")
def planted_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedValkey(tmp_path_factory.mktemp("planted")) as server:
        yield server.url


@pytest.fixture
def field(planted_valkey: str) -> Iterator[Field]:
    with Redis.from_url(planted_valkey) as redis:
        yield RedisField(redis, planted_valkey, f"t{uuid.uuid4().hex[:12]}")


def found(record: RunRecord, field: Field) -> set[Rule]:
    return {violation.rule for violation in check(record, field.url, field.prefix)}


def with_transcript(record: RunRecord, *events: Shown, left: bool = False) -> RunRecord:
    record.transcripts = [Transcript("whole", events, left=left)]
    return record


def test_a_sound_run_has_no_violation(field: Field) -> None:
    record = Plot(field).sound()
    assert check(record, field.url, field.prefix) == []


def test_a_record_survives_its_file(field: Field, tmp_path: Path) -> None:
    record = Plot(field).sound()
    write_record(record, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == record


# ------------------------------------------------------------------------------- faults in the broker

Spoil = Callable[[Plot, RunRecord], None]


def lose_all_lines(plot: Plot, record: RunRecord) -> None:
    plot.field.drop_lines()


def double_a_line(plot: Plot, record: RunRecord) -> None:
    plot.field.line("whole", answer_body("w"))


def change_a_line(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(1, 0, ANSWER), finished(1))
    plot.field.line("more", answer_body("m", ANSWER.replace("two", "six")))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def count_too_many_tokens_in_a_line(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(1, 0, ANSWER), finished(1))
    plot.field.line("more", answer_body("m", tokens=99))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def count_too_many_tokens_in_a_log(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(1, 0, ANSWER), finished(1, tokens=99))
    plot.field.line("more", answer_body("m"))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def stitch_two_texts(plot: Plot, record: RunRecord) -> None:
    text = "one TWO three "
    plot.field.log("more", started(1), delta(1, 0, "one "), delta(1, 1, text[4:]), finished(1))
    plot.field.line("more", answer_body("m", text))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def double_tokens_across_a_take_over(plot: Plot, record: RunRecord) -> None:
    """A new owner that read before it fenced: what came in between stands there twice."""
    events = started(1), delta(1, 0, "one "), started(2, 4), delta(2, 1, "one "), delta(2, 2, "two three ")
    plot.field.log("more", *events, finished(2, len(ANSWER) + 4))
    plot.field.line("more", answer_body("m", "one " + ANSWER))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def drop_a_delta(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(1, 0, "one "), delta(1, 2, "three "), finished(1, 4))
    plot.field.line("more", answer_body("m", "one "))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def end_twice(plot: Plot, record: RunRecord) -> None:
    plot.field.log("cut", finished(1))


def never_end(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(1, 0, ANSWER))
    record.accepted.append(Accepted("more", ANSWER))


def forget_a_request(plot: Plot, record: RunRecord) -> None:
    record.accepted.append(Accepted("more", ANSWER))


def fail_without_a_cause(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), failed(1, "internal_error"))
    plot.field.line("more", failure_body("m", "internal_error"))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def keep_a_lease(plot: Plot, record: RunRecord) -> None:
    plot.field.lease("whole", settled=False)


def double_a_letter(plot: Plot, record: RunRecord) -> None:
    plot.field.letter({"reason": "died thrice", "origin": "batch/7", "request-id": "dead"}, b"poison")


def bury_the_living(plot: Plot, record: RunRecord) -> None:
    plot.field.letter({"reason": "died thrice", "origin": "batch/1", "request-id": "whole"}, b"whole")


def lose_rubbish(plot: Plot, record: RunRecord) -> None:
    record.rubbish.append(msgspec.structs.replace(record.rubbish[0], body=b"other rubbish"))


def invent_a_request(plot: Plot, record: RunRecord) -> None:
    plot.field.log("nobody's", started(1), delta(1, 0, ANSWER), finished(1))


def invent_a_line(plot: Plot, record: RunRecord) -> None:
    plot.field.line("nobody's", answer_body("n"))


def lose_a_chunk(plot: Plot, record: RunRecord) -> None:
    """The newest epoch goes on behind a gap."""
    plot.chunk(3, 3, 99, "four ")


def stitch_chunks(plot: Plot, record: RunRecord) -> None:
    """A later owner takes up where its own text ends, not where its reader's does."""
    plot.chunk(3, 3, 4, WORDS[2])


def cut_the_last_chunk(plot: Plot, record: RunRecord) -> None:
    plot.chunk(3, 3, 8, "thr")


def send_a_chunk_elsewhere(plot: Plot, record: RunRecord) -> None:
    plot.chunk(3, 3, 14, "", "results")


def send_a_line_to_all(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(1, 0, ANSWER), finished(1))
    plot.field.line("more", answer_body("m"))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m", topic=f"{plot.field.prefix}.{REPLY}"))


def stream_nothing(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(1, 0, ANSWER), finished(1))
    plot.field.line("more", answer_body("m"))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m", streamed=True))


def stream_unasked(plot: Plot, record: RunRecord) -> None:
    plot.field.line("whole", chunk_body("w", 1, 0, 0, WORDS[0]))


def write_unannounced(plot: Plot, record: RunRecord) -> None:
    plot.field.log("more", started(1), delta(2, 0, ANSWER), finished(2))
    plot.field.line("more", answer_body("m"))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))


def write_no_event(plot: Plot, record: RunRecord) -> None:
    plot.field.log("whole", b"\xff\xff")


FAULTS: list[tuple[Spoil, set[Rule]]] = [
    (lose_all_lines, {Rule.NO_LINE, Rule.WRONG_COUNT}),
    (double_a_line, {Rule.SECOND_LINE, Rule.WRONG_COUNT}),
    (change_a_line, {Rule.WRONG_LINE}),
    (count_too_many_tokens_in_a_line, {Rule.WRONG_LINE}),
    (count_too_many_tokens_in_a_log, {Rule.WRONG_COUNT}),
    (stitch_two_texts, {Rule.OTHER_TEXT}),
    (double_tokens_across_a_take_over, {Rule.OTHER_TEXT}),
    (drop_a_delta, {Rule.OTHER_TEXT}),
    (end_twice, {Rule.SECOND_END}),
    (never_end, {Rule.NO_END, Rule.NO_LINE, Rule.WRONG_COUNT, Rule.BROKEN}),
    (forget_a_request, {Rule.NO_END, Rule.NO_LINE, Rule.WRONG_COUNT}),
    (fail_without_a_cause, {Rule.WRONG_END}),
    (keep_a_lease, {Rule.LEASE}),
    (double_a_letter, {Rule.LETTER}),
    (bury_the_living, {Rule.LETTER}),
    (lose_rubbish, {Rule.LETTER}),
    (invent_a_request, {Rule.STRANGER}),
    (invent_a_line, {Rule.STRANGER}),
    (lose_a_chunk, {Rule.CHUNKS}),
    (stitch_chunks, {Rule.CHUNKS}),
    (cut_the_last_chunk, {Rule.CHUNKS}),
    (send_a_chunk_elsewhere, {Rule.CHUNKS}),
    (send_a_line_to_all, {Rule.WRONG_LINE}),
    (stream_nothing, {Rule.CHUNKS}),
    (stream_unasked, {Rule.CHUNKS}),
    (write_unannounced, {Rule.BROKEN}),
    (write_no_event, {Rule.BROKEN}),
]


@pytest.mark.parametrize(("spoil", "rules"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_a_planted_fault_is_found_under_its_name(field: Field, spoil: Spoil, rules: set[Rule]) -> None:
    plot = Plot(field)
    record = plot.sound()
    spoil(plot, record)
    assert found(record, field) - {Rule.BROKEN} == rules - {Rule.BROKEN}
    if Rule.BROKEN in rules and len(rules) == 1:
        assert found(record, field) == rules


# --------------------------------------------------------------------------- faults in what was shown

SHOWN_FAULTS: dict[str, list[Shown]] = {
    "a token twice": [*WHOLE[:2], *WHOLE[1:]],
    "a token missing": [*WHOLE[:3], *WHOLE[4:]],
    "a void token": [*WHOLE[:3], shown(1, 1, "XX "), *WHOLE[4:]],
    "a token that nobody wrote": [*WHOLE[:3], shown(2, 1, "XX "), *WHOLE[4:]],
    "an older writer": [*WHOLE[:4], msgspec.structs.replace(WHOLE[4], epoch=1), *WHOLE[5:]],
    "no end": list(WHOLE[:-1]),
    "another end": [*WHOLE[:-1], Shown("failed", 2, reason="cancelled")],
    "two ends": [*WHOLE, WHOLE[-1]],
    "something behind the end": [*WHOLE, shown(2, 3, "four ")],
    "a take-over with another count": [*WHOLE[:2], Shown("started", 2, kept=3), *WHOLE[3:]],
}


@pytest.mark.parametrize("name", SHOWN_FAULTS)
def test_what_a_reader_should_not_have_seen_is_found(field: Field, name: str) -> None:
    record = with_transcript(Plot(field).sound(), *SHOWN_FAULTS[name])
    assert found(record, field) == {Rule.SHOWN}


def test_a_reader_that_left_is_judged_by_what_it_saw(field: Field) -> None:
    record = with_transcript(Plot(field).sound(), *WHOLE[:4], left=True)
    assert found(record, field) == set()
    record = with_transcript(record, *WHOLE[:3], shown(1, 1, "XX "), left=True)
    assert found(record, field) == {Rule.SHOWN}


# ---------------------------------------------------------------------------------- unknown fates


def test_a_publish_without_an_answer_may_have_happened_or_not_but_not_by_half(field: Field) -> None:
    record = Plot(field).sound()
    record.accepted.append(Accepted("maybe", ANSWER, certain=False))
    assert found(record, field) == set()
    field.line("maybe", answer_body(""))
    assert Rule.NO_END in found(record, field)


def test_a_restart_tells_readers_to_drop_what_they_show(field: Field) -> None:
    """The one way in which an answer may begin anew: told, and with the whole text once more."""
    record = Plot(field).sound()
    events = started(1), delta(1, 0, "one "), started(2, 0), delta(2, 1, ANSWER)
    field.log("again", *events, finished(2))
    field.line("again", answer_body(""))
    told = Shown("started", 1), shown(1, 0, "one "), Shown("restarted", 2), Shown("started", 2)
    rest = shown(2, 1, ANSWER), Shown("finished", 2, reason="length")
    record.accepted.append(Accepted("again", ANSWER))
    record.transcripts = [Transcript("again", (*told, *rest))]
    assert found(record, field) == set()
    record.transcripts = [Transcript("again", (*told[:2], *told[3:], *rest))]
    assert found(record, field) == {Rule.SHOWN}
