"""A transaction whose coordinator never answers keeps nobody waiting for ever; one that was refused leaves
nothing behind."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import kafka.errors as ke
import pytest
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from headrace.broker.kafka import transactions
from headrace.broker.kafka.transactions import Outcome, Transactions

OFFSETS = {TopicPartition("requests", 0): OffsetAndMetadata(7, "", -1)}
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


class Client:
    """A producer, its transaction manager and its sender in one. `silent`: the step that gets no answer."""

    silent = ""
    refused = False
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

    def send_offsets_to_transaction(self, offsets: object, membership: object) -> Answer:
        return self._step("offsets", ke.CommitFailedError() if Client.refused else None)

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
    Client.silent, Client.refused, Client.made = "", False, []


def commit(transactions: Transactions) -> Outcome:
    return transactions.commit([], OFFSETS, MEMBERSHIP)


def test_answers_that_come_commit() -> None:
    assert commit(Transactions({}, "me", answer_s=0.01)) is Outcome.COMMITTED
    assert [made.steps for made in Client.made] == [["init", "begin", "offsets", "commit"]]


@pytest.mark.parametrize(
    ("silent", "refused", "outcome"),
    [
        ("offsets", False, Outcome.ANEW),
        ("commit", False, Outcome.UNKNOWN),
        ("abort", True, Outcome.OUTDATED),
    ],
)
def test_a_step_without_an_answer_ends_its_producer_and_the_next_one_works(
    silent: str, refused: bool, outcome: Outcome
) -> None:
    transactions = Transactions({}, "me", answer_s=0.01)
    Client.silent, Client.refused = silent, refused
    assert commit(transactions) is outcome
    assert [made.closed for made in Client.made] == [True]
    Client.silent, Client.refused = "", False
    assert commit(transactions) is Outcome.COMMITTED
    assert len(Client.made) == 2


def test_offsets_that_were_refused_die_with_their_producer() -> None:
    transactions = Transactions({}, "me", answer_s=0.01)
    Client.refused = True
    assert commit(transactions) is Outcome.OUTDATED
    Client.refused = False
    assert commit(transactions) is Outcome.COMMITTED
    assert [made.steps[1:] for made in Client.made] == [
        ["begin", "offsets", "abort"],
        ["begin", "offsets", "commit"],
    ]
