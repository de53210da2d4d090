"""The in-memory log with one rule of the protocol broken. Each must be caught by the chaos test, or that
test proves nothing about the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pytest
from msgspec import structs

from headrace.broker.contract import DeadLetter, Done
from headrace.broker.events import Event, Fence
from headrace.broker.message import Delivery
from tests.contract.chaos import Odds
from tests.support import memory_member
from tests.support.memory_cluster import MemoryCluster
from tests.support.memory_codec import due_ms, log_key, moved_record
from tests.support.memory_events import event_record
from tests.support.memory_group import Fencing, Group
from tests.support.memory_member import MemoryMember
from tests.support.memory_settling import Settling
from tests.support.memory_tenure import Tenure
from tests.support.memory_topics import Partition, PartitionId, Record

Break: TypeAlias = Callable[[pytest.MonkeyPatch], None]


async def _restore(
    member: MemoryMember, partition: Partition, *, raise_epoch: bool = True, late_fence: bool = False
) -> None:
    """`MemoryMember._restore` in short, with its mistakes to choose."""
    cluster, now = member._cluster, member._now()
    cluster.abort_open(partition.id)
    epoch = max(1, partition.committed.epoch + raise_epoch)
    committed, read = replace(partition.committed, epoch=epoch), partition.events.end - 1
    await cluster.hop()
    if member._commit(partition, committed):
        await cluster.hop()
        fence = cluster.append(partition.events, event_record(None, Fence(epoch), now))
        read = read if late_fence else fence
        member.tenures[partition.id] = Tenure(
            partition, epoch, read, committed, epoch, now, next=committed.base
        )


def reads_before_the_fence(patch: pytest.MonkeyPatch) -> None:
    async def restore(member: MemoryMember, partition: Partition) -> None:
        await _restore(member, partition, late_fence=True)

    patch.setattr(MemoryMember, "_restore", restore)


def keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    async def restore(member: MemoryMember, partition: Partition) -> None:
        await _restore(member, partition, raise_epoch=False)

    patch.setattr(MemoryMember, "_restore", restore)


def settles_unfenced(patch: pytest.MonkeyPatch) -> None:
    def accept(group: Group, member_id: str, generation: int) -> Fencing:
        return Fencing.ACCEPTED

    patch.setattr(Group, "fencing", accept)


def reads_unstable_offsets(patch: pytest.MonkeyPatch) -> None:
    """The open transaction of a dead owner is left alone until the next one of that partition."""

    def leave(cluster: MemoryCluster, partition: PartitionId) -> None: ...

    patch.setattr(MemoryCluster, "abort_open", leave)


def lets_twins_emit(patch: pytest.MonkeyPatch) -> None:
    def records(settling: Settling, tenure: Tenure, delivery: Delivery) -> list[tuple[str, Record]]:
        closing = tenure.entry(log_key(delivery.ref)).log.closing
        if closing is None or closing.line is None:
            return []
        headers = {"request-id": delivery.ref.request_id.encode()}
        topic = delivery.message.reply_to or settling._cluster.names.results
        return [(topic, Record(closing.line, 0, None, headers))]

    patch.setattr(Settling, "closing_records", records)


def forgets_the_line_of_a_dead_owner(patch: pytest.MonkeyPatch) -> None:
    def without_closing(key: str | None, event: Event, at_ms: int, _: object = None) -> Record:
        return event_record(key, event, at_ms)

    patch.setattr(memory_member, "event_record", without_closing)


def completes_a_delay_before_it_forwards(patch: pytest.MonkeyPatch) -> None:
    async def forward(member: MemoryMember, tenure: Tenure) -> None:
        partition = tenure.partition
        for offset, record in list(partition.delayed()):
            if due_ms(record) <= member._now():
                member._commit_delays(partition, partition.delays_committed.finish(offset))
                await member._cluster.hop()
                member._cluster.append(partition.requests, replace(record, at_ms=member._now()))

    patch.setattr(MemoryMember, "_forward_due", forward)


def hands_back_without_a_word(patch: pytest.MonkeyPatch) -> None:
    def say_nothing(
        settling: Settling, tenure: Tenure, delivery: Delivery, epoch: int, reason: str
    ) -> None: ...

    patch.setattr(Settling, "_hand_back", say_nothing)


def passes_on_what_it_may_own_no_more(patch: pytest.MonkeyPatch) -> None:
    def believe(member: MemoryMember, tenure: Tenure) -> bool:
        return True

    patch.setattr(MemoryMember, "confirm", believe)


def leaves_a_move_half_done(patch: pytest.MonkeyPatch) -> None:
    """The log has moved, the record has not: its successor takes it for one that came back."""

    def never(tenure: Tenure, delivery: Delivery) -> bool:
        return False

    patch.setattr(Tenure, "_is_elsewhere", never)


def completes_a_move_before_it_publishes(patch: pytest.MonkeyPatch) -> None:
    complete = Settling._complete

    async def complete_move(settling: Settling, tenure: Tenure, delivery: Delivery) -> bool:
        log, here = tenure.entry(log_key(delivery.ref)).log, tenure.partition
        assert log.departure is not None
        assert log.fold.moved is not None
        settled = await complete(settling, tenure, delivery)
        await settling._cluster.hop()
        there = PartitionId(here.id.lane, here.id.number, log.fold.moved.pool)
        settling._cluster.open_pool(there.pool)
        record = here.requests.at(log.departure.carrier)
        moved = moved_record(record, delivery.position, delivery.published_ms, log.departure.moves)
        settling._cluster.append(settling._cluster.partitions[there].requests, moved)
        return settled

    patch.setattr(Settling, "complete_move", complete_move)


def forgets_what_comes_with_the_end(patch: pytest.MonkeyPatch) -> None:
    conclude = Settling._conclude

    async def without_events(
        settling: Settling, tenure: Tenure, delivery: Delivery, settlement: Done | DeadLetter
    ) -> bool:
        bare = structs.replace(settlement, events=()) if isinstance(settlement, Done) else settlement
        return await conclude(settling, tenure, delivery, bare)

    patch.setattr(Settling, "_conclude", without_events)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule, and the odds under which it shows soonest."""

    apply: Break
    odds: Odds = field(default_factory=Odds)


MUTANTS: Mapping[str, Mutant] = {
    mutant.apply.__name__: mutant
    for mutant in (
        Mutant(reads_before_the_fence),
        Mutant(keeps_the_epoch),
        Mutant(settles_unfenced),
        Mutant(reads_unstable_offsets),
        Mutant(lets_twins_emit),
        Mutant(forgets_the_line_of_a_dead_owner),
        Mutant(completes_a_delay_before_it_forwards, Odds(give_up=0.5, pass_on=0, kill=0.3)),
        Mutant(hands_back_without_a_word),
        Mutant(passes_on_what_it_may_own_no_more, Odds(pass_on=0.8, give_up=0, freeze=0.1)),
        Mutant(leaves_a_move_half_done, Odds(pass_on=0.7, kill=0.3)),
        Mutant(forgets_what_comes_with_the_end),
        Mutant(completes_a_move_before_it_publishes, Odds(pass_on=0.8, give_up=0, kill=0.3)),
    )
}
