"""The checker reads Kafka as it reads Redis, and knows what is Kafka's own: fences, holes, transactions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from kafka import KafkaProducer

from tests.faults.brokers import Kafka
from tests.faults.checker.check import check
from tests.faults.checker.events import encode
from tests.faults.checker.judge import Rule
from tests.faults.checker.record import Accepted, Shown, Transcript
from tests.faults.planting import (
    ANSWER,
    Plot,
    answer_body,
    delta,
    finished,
    line_bytes,
    shown,
    started,
)
from tests.faults.planting_kafka import KafkaField, kafka_field
from tests.faults.test_checker import FAULTS, Spoil

ON_KAFKA = {
    "lose_all_lines",
    "double_a_line",
    "stitch_two_texts",
    "count_too_many_tokens_in_a_log",
    "end_twice",
    "never_end",
    "keep_a_lease",
    "double_a_letter",
    "invent_a_line",
    "lose_a_chunk",
    "stitch_chunks",
}
CHOSEN = [(spoil, rules - {Rule.BROKEN}) for spoil, rules in FAULTS if spoil.__name__ in ON_KAFKA]

pytestmark = pytest.mark.slow


@pytest.fixture
def field(kafka_server: Kafka) -> Iterator[KafkaField]:
    with kafka_field(kafka_server.url, f"t{uuid.uuid4().hex[:12]}") as made:
        yield made


def test_a_sound_run_has_no_violation(field: KafkaField) -> None:
    assert check(Plot(field).sound(), field.url, field.prefix) == []


@pytest.mark.parametrize(("spoil", "rules"), CHOSEN, ids=[spoil.__name__ for spoil, _ in CHOSEN])
def test_a_planted_fault_is_found_under_its_name(field: KafkaField, spoil: Spoil, rules: set[Rule]) -> None:
    plot = Plot(field)
    record = plot.sound()
    spoil(plot, record)
    found = {violation.rule for violation in check(record, field.url, field.prefix)}
    assert found - {Rule.BROKEN} == rules


def test_a_fence_of_the_partition_makes_void_what_an_older_owner_still_says(field: KafkaField) -> None:
    record = Plot(field).sound()
    field.log("more", started(3), delta(3, 0, "one "))
    field.fence(encode(epoch=4, fence={}))
    field.log("more", delta(3, 1, "XX "), finished(3, 7), started(4, 4), delta(4, 1, ANSWER[4:]), finished(4))
    field.line("more", answer_body("m"))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))
    assert check(record, field.url, field.prefix) == []
    events = Shown("started", 3), shown(3, 0, "one "), shown(3, 1, "XX ")
    record.transcripts = [Transcript("more", events, left=True)]
    assert {violation.rule for violation in check(record, field.url, field.prefix)} == {Rule.SHOWN}


def test_a_line_of_an_aborted_transaction_is_no_line(field: KafkaField) -> None:
    record = Plot(field).sound()
    servers = urlsplit(field.url).netloc.split(",")
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=field.prefix, retry_backoff_ms=5)
    producer.init_transactions()
    for commit in (False, True):
        producer.begin_transaction()
        headers = [("request-id", b"whole" if not commit else b"more")]
        producer.send(
            f"{field.prefix}.results", line_bytes(answer_body("m" if commit else "w")), headers=headers
        )
        if commit:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    producer.close()
    field.log("more", started(3), delta(3, 0, ANSWER), finished(3))
    record.accepted.append(Accepted("more", ANSWER, custom_id="m"))
    assert check(record, field.url, field.prefix) == []
