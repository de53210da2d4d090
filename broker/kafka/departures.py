"""What stands beside `moved`, so that whoever owns the partition can complete the move to another pool.

An owner can die between the event and the publish to the other pool: readers have gone there, so its
successor must hand over the very record (`carrier`). Any other record of the request that moved less often
than the event says is a twin of one that is elsewhere; one that moved as often has come back.

That is remembered beyond the move, and told to the next owner together with what ended (see `ended`).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import MOVES
from headrace.broker.kafka.ended import REMEMBERED, digest_of, remember

_DEPARTURE, _DEPARTED = "headrace-departure", "headrace-departed"
_TOLD = struct.Struct(">8sI8s")  # digest of the key, how often it moved, front part of the hash of its body


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


class Departed:
    """Requests that went to another pool lately. Those that were told have no carrier: their move is over."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Departure] = OrderedDict()  # by digests of keys

    def remember(self, key: str, departure: Departure) -> None:
        remember(self._known, digest_of(key), departure)

    def get(self, key: str) -> Departure | None:
        return self._known.get(digest_of(key)) if self._known else None

    def header(self, going: Mapping[str, Departure]) -> tuple[str, bytes]:
        """For a fence that tells. `going`: those whose move is not over yet."""
        known = {**self._known, **{digest_of(key): departure for key, departure in going.items()}}
        told = list(known.items())[-REMEMBERED:]
        return _DEPARTED, b"".join(_TOLD.pack(key, one.moves, one.body_hash[:8]) for key, one in told)

    def read(self, headers: Sequence[tuple[str, bytes]]) -> None:
        """Those of a fence in force, as of a restore."""
        told = dict(headers).get(_DEPARTED) or b""
        for key, moves, body_hash in _TOLD.iter_unpack(told[: len(told) // _TOLD.size * _TOLD.size]):
            remember(self._known, key, Departure(-1, moves, body_hash.rstrip(b"\0")))
