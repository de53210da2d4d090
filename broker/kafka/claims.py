"""What a delivery stands for here, and what becomes of its request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import Decoded
from headrace.broker.message import Delivery

if TYPE_CHECKING:
    from headrace.broker.kafka.tenure import Tenure


@dataclass(eq=False, slots=True)
class Claim:
    """`Delivery.handle`: the record that carries the delivery, and the tenure under which it was taken.
    `settling`: its end is under way."""

    tenure: Tenure
    record: ConsumerRecord
    decoded: Decoded
    settling: bool = False

    @property
    def offset(self) -> int:
        return int(self.record.offset)


@dataclass(slots=True)
class Run:
    """A request as it was opened here and now. `doubtful`: the fate of an append is unknown, so that only the
    log tells what stands in it."""

    epoch: int
    claim: Claim | None
    body_hash: bytes
    doubtful: bool = False


def claim_of(delivery: Delivery) -> Claim:
    claim = delivery.handle
    assert isinstance(claim, Claim), "a delivery of another adapter"
    return claim
