"""What becomes due in a delay topic."""

from __future__ import annotations

from tests.unit.kafka.records import request
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import forwarding


async def test_what_cannot_be_understood_nor_sent_on_leaves_a_word_and_makes_room() -> None:
    async with Rig() as rig:
        keeping, delay = forwarding(rig, request(0, "large", b"x" * 2_000, deadline=b"soon"), request(1, "a"))
        await keeping._forward_due()
        await rig.settler.flushed(1)
        [letter] = [each for each in rig.transactions.emitted if each.topic == "x.dlq"]
        assert not letter.value
        assert dict(letter.headers).keys() == {"headrace-origin", "headrace-reason"}
        assert not delay.buffer
