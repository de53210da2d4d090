"""A transaction whose coordinator never answers keeps nobody waiting for ever; one that was refused leaves
nothing behind; one that lost a record is not committed."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import kafka.errors as ke
import pytest
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from headrace.broker.kafka import transactions
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.transactions import Outcome, Transactions, Untakeable

OFFSETS = {TopicPartition("requests", 0): OffsetAndMetadata(7, "", -1)}
LINE = Record("results", b"line")
MEMBERSHIP = ConsumerGroupMetadata("group", 1, "member", None)


class Answer:
    """What the client hands out for a step; `silent`: it never comes."""

    def __init__(self, silent: bool, error: Exception | None = None) -> None:
        self._there, self._error = threading.Event(), error
        if not silent:
            self._there.set()

    def wait(self, timeout_ms: float) -> bool:
        there = self._there.wait(timeout_ms / 1000)
        if there and self._error is not None:
            raise self._error
        return there


class Sent:
    """The future of a record, which tells its end at once."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def get(self, timeout: float) -> None:
        if self._error is not None:
            raise self._error


class Client:
    """A producer, its transaction manager and its sender in one. `silent`: the step that gets no answer."""

    silent = ""
    refused: Exception | None = None
    record_error: Exception | None = None
    send_error: Exception | None = None
    made: ClassVar[list[Client]] = []

    def __init__(self, **options: Any) -> None:
        self.steps, self.closed = list[str](), False
        self._transaction_manager = self._sender = self
        Client.made.append(self)

    def _step(self, name: str, error: Exception | None = None) -> Answer:
        self.steps.append(name)
        return Answer(silent=name == Client.silent, error=error)

    def init_transactions(self) -> None:
        self.steps.append("init")

    def begin_transaction(self) -> None:
        self.steps.append("begin")

    def send(self, topic: str, **record: Any) -> Sent:
        self.steps.append("send")
        if Client.send_error is not None:
            raise Client.send_error
        return Sent(Client.record_error)

    def send_offsets_to_transaction(self, offsets: object, membership: object) -> Answer:
        return self._step("offsets", Client.refused)

    def begin_commit(self) -> Answer:
        return self._step("commit")

    def begin_abort(self) -> Answer:
        return self._step("abort")

    def wakeup(self) -> None:
        pass

    def close(self, timeout: float) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "KafkaProducer", Client)
    Client.silent, Client.refused, Client.made = "", None, []
    Client.record_error = Client.send_error = None


def commit(transactions: Transactions, *records: Record) -> Outcome:
    return transactions.commit(records, OFFSETS, MEMBERSHIP)


def test_answers_that_come_commit() -> None:
    assert commit(Transactions({}, "me", answer_s=0.01)) is Outcome.COMMITTED
    assert [made.steps for made in Client.made] == [["init", "begin", "offsets", "commit"]]


@pytest.mark.parametrize(
    ("silent", "refused", "outcome"),
    [
        ("offsets", None, Outcome.ANEW),
        ("commit", None, Outcome.UNKNOWN),
        ("abort", ke.CommitFailedError(), Outcome.OUTDATED),
    ],
)
def test_a_step_without_an_answer_ends_its_producer_and_the_next_one_works(
    silent: str, refused: Exception | None, outcome: Outcome
) -> None:
    transactions = Transactions({}, "me", answer_s=0.01)
    Client.silent, Client.refused = silent, refused
    assert commit(transactions) is outcome
    assert [made.closed for made in Client.made] == [True]
    Client.silent, Client.refused = "", None
    assert commit(transactions) is Outcome.COMMITTED
    assert len(Client.made) == 2


def test_offsets_that_were_refused_die_with_their_producer() -> None:
    transactions = Transactions({}, "me", answer_s=0.01)
    Client.refused = ke.CommitFailedError()
    assert commit(transactions) is Outcome.OUTDATED
    Client.refused = None
    assert commit(transactions) is Outcome.COMMITTED
    assert [made.steps[1:] for made in Client.made] == [
        ["begin", "offsets", "abort"],
        ["begin", "offsets", "commit"],
    ]


def test_so_do_those_that_a_topic_closed_to_us_kept_from_being_sent() -> None:
    transactions = Transactions({}, "me", answer_s=0.01)
    Client.refused = ke.TopicAuthorizationFailedError({"reply"})
    with pytest.raises(ke.TopicAuthorizationFailedError):
        commit(transactions, LINE)
    Client.refused = None
    assert commit(transactions) is Outcome.COMMITTED
    assert [made.steps[-2:] for made in Client.made] == [["offsets", "abort"], ["offsets", "commit"]]
    assert Client.made[0].closed


def test_the_end_is_asked_for_behind_the_last_record() -> None:
    assert commit(Transactions({}, "me"), LINE, LINE) is Outcome.COMMITTED
    assert Client.made[0].steps == ["init", "begin", "send", "send", "offsets", "commit"]


@pytest.mark.parametrize("error", [ke.KafkaTimeoutError("its time is over"), ke.InvalidProducerEpochError()])
def test_a_record_that_the_client_gave_up_is_not_left_out(error: Exception) -> None:
    """kafka-python commits the others, and calls that a success."""
    transactions = Transactions({}, "me")
    Client.record_error = error
    assert commit(transactions, LINE) is Outcome.ANEW
    Client.record_error = None
    assert commit(transactions, LINE) is Outcome.COMMITTED
    assert [made.steps for made in Client.made] == [
        ["init", "begin", "send", "offsets"],
        ["init", "begin", "send", "offsets", "commit"],
    ]


def test_a_record_that_the_broker_never_takes_is_named() -> None:
    Client.record_error = ke.MessageSizeTooLargeError()
    with pytest.raises(Untakeable) as raised:
        commit(Transactions({}, "me"), LINE)
    assert raised.value.record is LINE
    assert Client.made[0].steps[-1] == "abort"


def test_a_user_who_may_not_write_there_hears_so() -> None:
    Client.record_error = ke.TopicAuthorizationFailedError({"results"})
    with pytest.raises(ke.TopicAuthorizationFailedError):
        commit(Transactions({}, "me"), LINE)
    assert Client.made[0].steps[-1] == "abort"


@pytest.mark.parametrize(
    "words", ["Partitioner did not assign a partition for topic x!", "Unrecognized partition 0 for topic x"]
)
def test_a_topic_that_the_client_has_lost_sight_of_is_not_for_ever(words: str) -> None:
    """Its metadata came from a node that has not heard of it: the line would be lost for that."""
    transactions = Transactions({}, "me")
    Client.send_error = ValueError(words)
    assert commit(transactions, LINE) is Outcome.ANEW
    Client.send_error = None
    assert commit(transactions, LINE) is Outcome.COMMITTED


def test_what_cannot_be_encoded_is_for_ever() -> None:
    Client.send_error = UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed")
    with pytest.raises(Untakeable):
        commit(Transactions({}, "me"), LINE)
