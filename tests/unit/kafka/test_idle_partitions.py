"""What a partition costs its next owner where nothing happens for long, or very much stands there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kafka.structs import TopicPartition

from headrace.broker.kafka import appender, group_reader, housekeeping
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.ended import TOLD_AFTER
from headrace.broker.kafka.group_reader import Bounds
from headrace.broker.kafka.housekeeping import Housekeeping
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import settled, until


async def test_what_was_repeated_for_days_is_not_read_again_by_the_next_owner(monkeypatch: Any) -> None:
    monkeypatch.setattr(housekeeping, "_TICK_S", 0)
    monkeypatch.setattr(appender, "FENCE_EVERY_MS", 0)
    async with Rig() as rig:
        tenures = {rig.tenure.partition: rig.tenure}
        holdings: Any = SimpleNamespace(tenures=tenures, delays={}, changed=rig.changed, tick=lambda: None)
        at: Any = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 1_000))
        keeping = Housekeeping(at, holdings, rig.appender, rig.settlements, rig.settler)
        keeping.start()
        await until(lambda: len(rig.publisher.events) > 4 * TOLD_AFTER)
        await keeping.close()
        await settled(rig)
        left = rig.transactions.held.get(rig.tenure.partition, Committed())
        assert len(rig.publisher.events) - left.restore < 3 * TOLD_AFTER
        assert (left.base, left.epoch) == (0, rig.tenure.epoch)


def test_a_long_restore_takes_as_long_as_it_goes_on(monkeypatch: Any) -> None:
    partition, records = TopicPartition("x.events.standard", 0), 10
    now_s = 0.0
    monkeypatch.setattr(group_reader, "time", SimpleNamespace(monotonic=lambda: now_s))

    class Slow:
        """A consumer that brings one record after the other."""

        at = 0

        def poll(self, **_: object) -> Any:
            nonlocal now_s
            now_s += group_reader._READ_S / 2
            self.at += 1
            return {partition: [SimpleNamespace(offset=self.at - 1)]}

        def position(self, _: TopicPartition) -> int:
            return self.at

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    consumer: Any = Slow()
    read = group_reader._read(consumer, {partition: Bounds(0, records)})
    assert len(read[partition]) == records
