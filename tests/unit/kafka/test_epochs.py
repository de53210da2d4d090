"""Logs in one partition: from the restore offset on they read as from their beginning, whoever wrote."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.events import (
    Delta,
    Event,
    Failed,
    Fence,
    Finished,
    Handed,
    Moved,
    Started,
    TokenLogprobs,
)
from headrace.broker.fold import Fold, fold
from headrace.broker.kafka import ended
from headrace.broker.kafka.departures import Departure
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.event_records import Closing, encode_event_record
from headrace.broker.kafka.statements import copy_of, decode_fold, encode_fold, statement

PROPERTY = settings(deadline=None, max_examples=50)


def started(epoch: int, kept: int = 0, delivery: str = "t/0/0") -> Started:
    return Started(epoch, "c", delivery, 7, b"hash", "model", kept)


@dataclass
class Partition:
    """An events partition: appends, and what can be read from any offset."""

    records: list[Any] = field(default_factory=list)

    def append(self, key: str | None, event: Event, closing: Closing | None = None) -> int:
        return self.store(encode_event_record("events", 0, key, event, closing))

    def store(self, record: Any) -> int:
        offset = len(self.records)
        stored = SimpleNamespace(offset=offset, key=record.key, value=record.value, headers=record.headers)
        self.records.append(stored)
        return offset

    def read(self, start: int = 0) -> PartitionLogs:
        logs = PartitionLogs(start)
        for record in self.records[start:]:
            logs.read(record)
        return logs


@dataclass
class Owner:
    """Writes deltas under its epoch, as if nobody had overtaken it; keeps its logs as a session does."""

    partition: Partition
    epoch: int
    logs: PartitionLogs

    @classmethod
    def take_over(cls, partition: Partition, restore: int, epoch: int) -> Owner:
        logs = partition.read(restore)
        logs.fence(epoch, partition.append(None, Fence(epoch)))
        return cls(partition, epoch, logs)

    def append(self, key: str, event: Event) -> None:
        self.logs.append(key, event, self.partition.append(key, event))

    def repeat_fence(self) -> int:
        """Its offset."""
        record, told = encode_event_record("events", 0, None, Fence(self.epoch)), self.logs.told()
        record.headers.extend(told)
        offset = self.partition.store(record)
        self.logs.fence(self.epoch, offset)
        if told:
            self.logs.ended.told(offset)
        return offset

    def step(self, chosen: random.Random, keys: list[str]) -> None:
        key = chosen.choice(keys)
        fold = self.logs.log(key).fold
        if key in self.logs.ended or fold.ended:
            self.logs.forget(key)
            return
        if fold.started is None or fold.started.epoch != self.epoch:
            self.append(key, started(self.epoch, len(fold.token_ids)))
            return
        match chosen.randrange(6):
            case 0:
                self.append(key, Finished(self.epoch, "stop"))
            case 1:
                record = statement("events", 0, key, fold)
                self.logs.stated(key, self.partition.store(record), 0)
            case 2:
                self.repeat_fence()
            case _:
                seq = fold.next_seq
                self.append(key, Delta(self.epoch, seq, (self.epoch, seq), f"{self.epoch}.{seq} "))


def shown(fold: Fold) -> tuple[object, ...]:
    answer = (fold.token_ids, fold.text, fold.logprobs)
    return (*answer, fold.next_seq, fold.restarts, fold.started, fold.terminal, fold.deaths)


@PROPERTY
@given(st.integers(0, 2**32))
def test_a_restore_from_the_restore_offset_knows_all_that_is_unfinished(seed: int) -> None:
    chosen, partition = random.Random(seed), Partition()
    owner, zombies, keys = Owner.take_over(partition, 0, 1), list[Owner](), ["a", "b", "c"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ended, "TOLD_AFTER", chosen.choice([0, 3, 1000]))
        for step in range(60):
            if chosen.random() < 0.08:
                zombies.append(owner)
                owner = Owner.take_over(partition, owner.logs.restore_offset(), owner.epoch + 1)
            owner.step(chosen, keys)
            if zombies and chosen.random() < 0.4:
                chosen.choice(zombies).step(chosen, keys)
            if chosen.random() < 0.1:
                keys.append(f"k{step}")
            if chosen.random() < 0.7:
                continue
            whole, restored = partition.read(), partition.read(owner.logs.restore_offset())
            for key, log in whole.logs.items():
                if log.fold.ended:
                    assert key in restored.ended or restored.log(key).fold.ended, key
                else:
                    assert shown(restored.log(key).fold) == shown(log.fold), key
                    assert shown(owner.logs.log(key).fold) == shown(log.fold), key
            assert restored.epoch == whole.epoch == owner.epoch


def test_what_has_ended_does_not_hold_the_restore_offset_back() -> None:
    partition = Partition()
    owner = Owner.take_over(partition, 0, 1)
    for i in range(ended.TOLD_AFTER // 2 + 10):
        owner.append(f"r{i}", started(1))
        owner.append(f"r{i}", Finished(1, "stop"))
        owner.logs.forget(f"r{i}")
    assert owner.logs.restore_offset() == 0, "nobody was told of them"
    told = []
    for turn in "stu":
        told.append(owner.repeat_fence())
        assert owner.logs.told() == []
        for i in range(ended.TOLD_AFTER):
            owner.append(f"{turn}{i}", started(1))
            owner.append(f"{turn}{i}", Finished(1, "stop"))
            owner.logs.forget(f"{turn}{i}")
    assert owner.logs.restore_offset() == told[-2]
    read = partition.read(told[-2])
    assert read.ended.hash_of("s0") == b"hash"
    assert read.ended.hash_of("v0") is None


def test_a_request_that_runs_for_long_is_overdue_until_it_is_stated_anew() -> None:
    partition = Partition()
    owner = Owner.take_over(partition, 0, 1)
    offset = partition.append("r", started(1))
    owner.logs.append("r", started(1), offset, now_ms=1_000)
    assert owner.logs.overdue(before_ms=1_000) == []
    assert owner.logs.overdue(before_ms=1_001) == ["r"]
    owner.logs.stated("r", partition.store(statement("e", 0, "r", owner.logs.log("r").fold)), 2_000)
    assert owner.logs.overdue(before_ms=1_001) == []
    owner.append("r", Finished(1, "stop"))
    assert owner.logs.overdue(before_ms=9_999) == []


def test_readers_see_nothing_of_a_statement() -> None:
    fold = Fold()
    for event in (started(3), Delta(3, 0, (1,), "a")):
        fold.read(event)
    before = shown(fold)
    record = statement("events", 0, "r", fold)
    restated = Partition()
    restated.store(record)
    assert restated.read().logs["r"].fold.epoch == 3
    fold.read(Fence(3))
    assert shown(fold) == before


def test_a_statement_of_an_overtaken_owner_is_void() -> None:
    partition = Partition()
    zombie = Owner.take_over(partition, 0, 1)
    zombie.append("r", started(1))
    zombie.append("r", Delta(1, 0, (1,), "a"))
    owner = Owner.take_over(partition, 0, 2)
    owner.append("r", started(2, kept=1))
    zombie.append("r", Delta(1, 1, (2,), "X"))
    partition.store(statement("events", 0, "r", zombie.logs.log("r").fold))
    assert partition.read().logs["r"].fold.text == "a"


def test_a_statement_that_arrives_late_takes_nothing_back() -> None:
    partition = Partition()
    owner = Owner.take_over(partition, 0, 1)
    owner.append("r", started(1))
    record = statement("events", 0, "r", owner.logs.log("r").fold)
    owner.append("r", Delta(1, 0, (1,), "a"))
    partition.store(record)
    assert partition.read().logs["r"].fold.text == "a"


@PROPERTY
@given(st.lists(st.integers(0, 2**31), max_size=20), st.text(max_size=30), st.integers(0, 99), st.booleans())
def test_a_fold_is_stated_and_read_back_whole(tokens: list[int], text: str, seq: int, handed: bool) -> None:
    fold = Fold(
        epoch=5,
        next_seq=seq,
        started=started(4),
        token_ids=tokens,
        pieces=[text],
        logprobs=[TokenLogprobs(token, -token / 3, ((token, -0.1), (1, -2.5))) for token in tokens],
        restarts=2,
        handed=Handed(4, "drain") if handed else None,
        tokens_at_start=min(1, len(tokens)),
    )
    read = decode_fold(encode_fold(fold), 5)
    assert read is not None
    assert (shown(read), read.handed, read.epoch) == (shown(fold), fold.handed, 5)


@pytest.mark.parametrize("data", [b"", b"rubbish", encode_fold(Fold())[:-3]])
def test_a_statement_that_does_not_decode_is_passed_over(data: bytes) -> None:
    assert decode_fold(data, 1) is None


def test_a_record_that_is_no_event_ends_nobodys_log() -> None:
    partition = Partition()
    owner = Owner.take_over(partition, 0, 1)
    owner.append("r", started(1))
    rubbish = SimpleNamespace(key=b"r", value=b"\xff\xff", headers=[])
    partition.store(rubbish)
    owner.append("r", Delta(1, 0, (1,), "a"))
    assert partition.read().logs["r"].fold.text == "a"


def test_an_ended_request_is_remembered_by_the_hash_of_its_body_for_a_while() -> None:
    logs = PartitionLogs(epoch=1)
    for i in range(ended.REMEMBERED + 5):
        logs.append(f"r{i}", started(1), 2 * i)
        logs.append(f"r{i}", Failed(1, "x", "y"), 2 * i + 1)
        logs.forget(f"r{i}")
    assert (len(logs.logs), len(logs.ended)) == (0, ended.REMEMBERED)
    assert logs.ended.hash_of(f"r{ended.REMEMBERED}") == b"hash"
    assert "r0" not in logs.ended


def test_a_request_that_moved_is_known_to_be_elsewhere_and_may_come_back() -> None:
    partition = Partition()
    Owner.take_over(partition, 0, 3)
    departure = Departure(9, 1, b"hash")
    record = encode_event_record("events", 0, "r", Moved(3, "other", "other.batch/0"))
    record.headers.append(departure.header())
    partition.store(record)
    logs = partition.read()
    assert logs.departure("r") == departure
    logs.forget("r")
    assert "r" not in logs.logs
    assert logs.departure("r") == departure
    logs.append("r", started(2), 50)
    assert logs.log("r").fold.started is None, "epochs of this place go on: an older owner's are void"
    logs.append("r", started(3), 51)
    assert logs.log("r").fold.started is not None


def test_a_statement_tells_all_answers_and_the_prompts_log_probabilities() -> None:
    score = TokenLogprobs(5, -1.5, ((6, -0.25),))
    state = fold(
        [
            Started(3, "c", "d", 1, b"h", "f"),
            Delta(3, 0, (1,), "é", prompt_logprobs=(score,)),
            Delta(3, 1, (2, 3), "two", choice=1, logprobs=(score, score)),
        ]
    )
    assert decode_fold(encode_fold(state), 3) == state
    copy = copy_of(state)
    copy.read(Delta(3, 2, (4,), "!", choice=1))
    assert state.others[1].token_ids == [2, 3]
