"""The settler: transactions one after the other, each item committed once, refused or failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import kafka.errors as ke
import pytest
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka import settle
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.commits import Committed, decode_metadata
from headrace.broker.kafka.items import Item
from headrace.broker.kafka.settle import Settler, SettlerParts
from headrace.broker.kafka.transactions import Outcome, Untakeable

MEMBER = "member"


@dataclass(eq=False)
class Holder:
    """A partition that is held."""

    number: int = 0
    member: str = MEMBER
    gone: bool = False
    done: set[int] = field(default_factory=set)
    epoch: int = 1

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition("requests", self.number)

    def commit(self, also: Sequence[int] = ()) -> Committed:
        return Committed(0, frozenset(self.done | set(also)), self.epoch)

    def finish(self, offsets: Sequence[int]) -> None:
        assert not self.done & set(offsets), "finished twice"
        self.done |= set(offsets)


@dataclass
class Cluster:
    """What the transactions of a test end with, in turn; committed where nothing is said."""

    outcomes: list[Outcome | Exception] = field(default_factory=list)
    lands: bool = False  # what has an unknown outcome was committed all the same
    sent: list[list[bytes | None]] = field(default_factory=list)
    held: dict[TopicPartition, Committed] = field(default_factory=dict)
    membership: Any = field(default_factory=lambda: SimpleNamespace(member_id=MEMBER))
    fatal: list[BrokerRefused] = field(default_factory=list)
    published: list[Record] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def commit(self, records: Sequence[Record], offsets: Any, membership: Any) -> Outcome:
        self.before()
        self.sent.append([record.value for record in records])
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome.COMMITTED
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is Outcome.COMMITTED or (outcome is Outcome.UNKNOWN and self.lands):
            self.held |= {p: decode_metadata(o.offset, o.metadata) for p, o in offsets.items()}
        return outcome

    def ready(self) -> None: ...

    def discard(self) -> None: ...

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        return {partition: self.held[partition] for partition in partitions if partition in self.held}

    async def publish(self, records: Sequence[Record]) -> None:
        self.published += records

    async def again(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: "it was deleted" for topic in topics if topic == "deleted"}


@asynccontextmanager
async def settler_of(cluster: Cluster, exactly_once: bool = True) -> AsyncIterator[Settler]:
    transactions: Any = cluster
    made = Settler(
        SettlerParts(
            transactions=transactions,
            transactional_id="tx",
            servers="kafka://x",
            membership=lambda: cluster.membership,
            committed=cluster.committed,
            publish=cluster.publish,
            fatal=cluster.fatal.append,
            topics_again=cluster.again,
            exactly_once=exactly_once,
        )
    )
    made.start()
    try:
        yield made
    finally:
        await made.close()


def item(holder: Holder, offset: int | None, *lines: bytes) -> Item:
    return Item(holder, offset, [Record("results", line) for line in lines])


async def test_what_comes_while_a_transaction_is_under_way_shares_the_next_one() -> None:
    cluster, holder = Cluster(), Holder()
    async with settler_of(cluster) as settler:
        first = asyncio.create_task(settler.add(item(holder, 0, b"0")))
        await asyncio.sleep(0)
        later = [asyncio.create_task(settler.add(item(holder, n, b"%d" % n))) for n in (1, 2, 3)]
        assert await asyncio.gather(first, *later) == [True] * 4
    assert cluster.sent[0] == [b"0"]
    assert sorted(line for lines in cluster.sent[1:] for line in lines if line) == [b"1", b"2", b"3"]
    assert len(cluster.sent) <= 3
    assert holder.done == {0, 1, 2, 3}


async def test_the_name_under_which_it_settles_stands_beside_the_offsets() -> None:
    cluster, holder = Cluster(), Holder()
    async with settler_of(cluster) as settler:
        await settler.add(item(holder, 0))
    assert cluster.held[holder.partition].transactional_id == "tx"


async def test_a_rebalance_that_goes_by_only_means_to_try_again() -> None:
    cluster, holder = Cluster([Outcome.OUTDATED, Outcome.ANEW]), Holder()
    async with settler_of(cluster) as settler:
        assert await settler.add(item(holder, 0, b"line"))
    assert cluster.sent == [[b"line"]] * 3


async def test_what_is_not_held_any_more_is_refused_and_its_neighbours_are_not() -> None:
    cluster, gone, held = Cluster([Outcome.OUTDATED]), Holder(0), Holder(1)

    def lose() -> None:
        gone.gone = True

    cluster.before = lose
    async with settler_of(cluster) as settler:
        both = [asyncio.create_task(settler.add(item(h, 0, b"%d" % h.number))) for h in (gone, held)]
        assert await asyncio.gather(*both) == [False, True]
    assert cluster.sent[-1] == [b"1"]
    assert gone.partition not in cluster.held


async def test_nothing_is_committed_under_another_membership_than_that_of_its_tenure() -> None:
    """A loop that hung may find a new membership before it hears that the old one is lost."""
    cluster, holder = Cluster(), Holder(member="former")
    async with settler_of(cluster) as settler:
        adding = asyncio.create_task(settler.add(item(holder, 0, b"line")))
        await asyncio.sleep(0.05)
        assert not adding.done()
        holder.gone = True
        assert not await adding
    assert cluster.sent == []


async def test_it_waits_while_it_is_on_its_way_back_into_the_group() -> None:
    cluster, holder = Cluster(membership=None), Holder()
    async with settler_of(cluster) as settler:
        adding = asyncio.create_task(settler.add(item(holder, 0)))
        await asyncio.sleep(0.03)
        assert not adding.done()
        cluster.membership = SimpleNamespace(member_id=MEMBER)
        assert await adding


@pytest.mark.parametrize("lands", [True, False], ids=["it was committed", "it was not"])
async def test_after_an_unknown_fate_the_committed_offsets_tell_what_happened(lands: bool) -> None:
    cluster, holder = Cluster([Outcome.UNKNOWN], lands=lands), Holder()
    async with settler_of(cluster) as settler:
        assert await settler.add(item(holder, 0, b"line"))
    assert cluster.sent == [[b"line"]] * (1 if lands else 2)
    assert holder.done == {0}


async def test_a_higher_epoch_is_committed_without_finishing_anything() -> None:
    cluster, holder = Cluster([Outcome.UNKNOWN]), Holder()
    async with settler_of(cluster) as settler:
        await settler.add(item(holder, None))
        holder.epoch = 2
        assert await settler.add(item(holder, None))
    assert (cluster.held[holder.partition].epoch, holder.done) == (2, set())


async def test_a_line_that_no_topic_takes_fails_alone() -> None:
    cluster, holder = Cluster(), Holder()
    large, small = item(holder, 0, b"large"), item(holder, 1, b"small")
    cluster.outcomes = [Untakeable(large.records[0], ke.MessageSizeTooLargeError())]
    async with settler_of(cluster) as settler:
        both = [asyncio.create_task(settler.add(one)) for one in (large, small)]
        failed, settled = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(failed, BrokerError)
    assert not isinstance(failed, BrokerRefused | BrokerUnavailable)
    assert settled is True
    assert holder.done == {1}


async def test_a_twin_that_took_our_place_ends_the_session() -> None:
    cluster, holder = Cluster([ke.FencedInstanceIdError()]), Holder()
    async with settler_of(cluster) as settler:
        with pytest.raises(BrokerRefused, match="group_instance_id"):
            await settler.add(item(holder, 0))
    assert len(cluster.fatal) == 1


async def test_a_static_member_that_lost_its_place_to_itself_is_no_twin() -> None:
    """It was thrown out in the middle of a slow transaction, and is back before that one ends."""
    cluster, holder = Cluster([ke.FencedInstanceIdError()]), Holder()

    def come_back() -> None:
        cluster.membership, holder.gone = SimpleNamespace(member_id="member, anew"), True

    cluster.before = come_back
    async with settler_of(cluster) as settler:
        assert not await settler.add(item(holder, 0))
        assert await settler.add(item(Holder(member="member, anew"), 0))
    assert not cluster.fatal


async def test_who_asks_again_after_losing_patience_gets_the_answer_to_the_first_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settle, "_PATIENCE_S", 0.03)
    cluster, holder = Cluster(membership=None), Holder()
    async with settler_of(cluster) as settler:
        with pytest.raises(BrokerUnavailable):
            await settler.add(item(holder, 0, b"line"))
        again = asyncio.create_task(settler.add(item(holder, 0, b"line")))
        await asyncio.sleep(0)
        cluster.membership = SimpleNamespace(member_id=MEMBER)
        assert await again
    assert cluster.sent == [[b"line"]]


async def test_at_least_once_the_lines_go_before_their_transaction() -> None:
    cluster, holder = Cluster([Outcome.OUTDATED]), Holder()
    async with settler_of(cluster, exactly_once=False) as settler:
        assert await settler.add(item(holder, 0, b"line"))
    assert [record.value for record in cluster.published] == [b"line"]
    assert cluster.sent == [[], []]


async def test_at_least_once_nothing_is_emitted_for_what_went_before_its_turn() -> None:
    cluster, went = Cluster(), Holder()
    async with settler_of(cluster, exactly_once=False) as settler:
        settled = asyncio.create_task(settler.add(item(went, 0, b"line")))
        await asyncio.sleep(0)
        went.gone = True
        assert not await settled
    assert cluster.published == [], "its new owner emits that line"


async def test_flushing_waits_for_what_is_under_way_and_not_for_ever() -> None:
    cluster, holder = Cluster(membership=None), Holder()
    async with settler_of(cluster) as settler:
        settler.put(item(holder, 0))
        await settler.flushed(0.02)
        assert holder.done == set()
        cluster.membership = SimpleNamespace(member_id=MEMBER)
        await settler.flushed(5)
        assert holder.done == {0}


# S
async def test_a_partition_that_went_meanwhile_does_not_make_a_transaction_that_landed_a_failed_one() -> None:
    went, held = Holder(0), Holder(1)
    cluster = Cluster([Outcome.OUTDATED, Outcome.UNKNOWN], lands=True)
    committed = cluster.committed

    async def taken_over(partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        went.gone = True  # and its new owner has raised the epoch
        cluster.held[went.partition] = Committed(0, frozenset({0}), 2)
        return await committed(partitions)

    cluster.committed = taken_over  # type: ignore[method-assign]
    async with settler_of(cluster) as settler:
        both = [asyncio.create_task(settler.add(item(h, 0, b"%d" % h.number))) for h in (went, held)]
        await asyncio.gather(*both)
    assert cluster.sent[1] == [b"0", b"1"]
    assert len(cluster.sent) == 2, "the line of a record that was completed is sent again"


async def test_what_went_is_not_confirmed_by_what_stood_there_before() -> None:
    """A transaction that was aborted, of unknown fate; what is left of it would have changed nothing."""
    went, held = Holder(0), Holder(1)
    cluster = Cluster([Outcome.COMMITTED, Outcome.OUTDATED, Outcome.UNKNOWN])

    def lose() -> None:
        went.gone = len(cluster.sent) == 2

    cluster.before = lose
    async with settler_of(cluster) as settler:
        assert await settler.add(item(held, None))
        both = [asyncio.create_task(settler.add(item(h, None))) for h in (went, held)]
        assert await asyncio.gather(*both) == [False, True]


async def test_a_topic_that_cannot_be_had_any_more_holds_up_no_one_else() -> None:
    cluster, holder = Cluster(), Holder()

    def missing() -> None:
        """As kafka-python's producer does without metadata of a topic."""
        cluster.outcomes = [Outcome.ANEW] if settler.under_way(holder, 1) else []

    cluster.before = missing
    async with settler_of(cluster) as settler:
        lost = Item(holder, 1, [Record("deleted", b"lost")])
        answers = await asyncio.wait_for(
            asyncio.gather(settler.add(lost), settler.add(item(holder, 2, b"kept")), return_exceptions=True),
            5,
        )
        assert isinstance(answers[0], BrokerError)
        assert answers[1] is True
