"""Request ids of our own making: time-sortable, and carrying the place of their log.

`req_` + 26 characters of Crockford base 32 over 130 bits: 48 bits unix milliseconds, 4 bits lane,
14 bits place (Kafka: the partition; Redis: unused), 64 bits random.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from headrace.broker.message import Lane

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
PREFIX = "req_"
_LENGTH = 26
_LANES = tuple(Lane)


@dataclass(frozen=True, slots=True)
class Place:
    """What an id of ours says: when and for which lane it was made, and where its log lies."""

    at_ms: int
    lane: Lane
    place: int


def new_request_id(lane: Lane, place: int = 0, now_ms: int | None = None) -> str:
    """Makes an id. `place` must fit 14 bits."""
    at = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    assert 0 <= place < 1 << 14, place
    value = ((at << 4 | _LANES.index(lane)) << 14 | place) << 64 | secrets.randbits(64)
    return PREFIX + "".join(ALPHABET[value >> 5 * i & 31] for i in reversed(range(_LENGTH)))


def read_request_id(request_id: str) -> Place | None:
    """What the id says, or None for an id of somebody else's making."""
    digits = request_id.removeprefix(PREFIX)
    if len(digits) != _LENGTH or digits == request_id or not set(digits) <= set(ALPHABET):
        return None
    value = 0
    for digit in digits:
        value = value << 5 | ALPHABET.index(digit)
    value >>= 64
    place, value = value & (1 << 14) - 1, value >> 14
    lane, at = value & 15, value >> 4
    return Place(at, _LANES[lane], place) if lane < len(_LANES) else None
