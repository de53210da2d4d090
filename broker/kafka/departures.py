"""What stands beside `moved`, so that whoever owns the partition can complete the move to another pool.

An owner can die between the event and the publish to the other pool: readers have gone there, so its
successor must hand over the very record (`carrier`). Any other record of the request that moved less often
than the event says is a twin of one that is elsewhere; one that moved as often has come back.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import MOVES

_DEPARTURE = "headrace-departure"


@dataclass(frozen=True, slots=True)
class Departure:
    """`carrier`: offset of the record that goes. `moves`: how often it has moved then."""

    carrier: int
    moves: int
    body_hash: bytes

    def header(self) -> tuple[str, bytes]:
        return _DEPARTURE, f"{self.carrier};{self.moves};{self.body_hash.hex()}".encode()


def departure_of(record: ConsumerRecord) -> Departure | None:
    """That of a record of an events partition."""
    try:
        carrier, moves, body_hash = dict(record.headers)[_DEPARTURE].decode().split(";")
        return Departure(int(carrier), int(moves), bytes.fromhex(body_hash))
    except (KeyError, ValueError):
        return None


def moves_of(record: ConsumerRecord) -> int:
    """How often the request of this record has moved to another pool."""
    value = dict(record.headers).get(MOVES) or b"0"
    return int(value) if value.isdigit() and len(value) <= 6 else 0


def moved_header(departure: Departure) -> tuple[str, bytes]:
    """For the record that goes."""
    return MOVES, b"%d" % departure.moves
