"""Which requests of a partition ended lately: by that a late twin is known, to this owner and to the next.

    ─ told ── 512 records and more ── told ─────────────── fence, now ──
       ▲ a restore begins here at the latest

Now and then a fence that is repeated carries all that is known: digests of keys and of bodies. The next owner
reads from the last but one of them on, since what ended while the last one was on its way stands before it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")

# Ended requests that are remembered; and records after which they are told anew.
REMEMBERED = 2_048
TOLD_AFTER = 512
_HEADER = "headrace-ended"
_KEY, _HASH = 8, 8  # bytes of a digest of a key, and of the hash of a body, in what is told


class Ended:
    def __init__(self) -> None:
        self._here: OrderedDict[str, bytes] = OrderedDict()  # key → hash of the body
        self._before: dict[bytes, bytes] = {}  # as told: digest of the key → front part of that hash
        self._told: deque[int] = deque(maxlen=2)  # offsets of the last fences that told

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, key: str) -> bool:
        return self.hash_of(key) is not None

    def hash_of(self, key: str) -> bytes | None:
        """What is known of the hash of its body: all, or the front part. None: it did not end lately."""
        known = self._here.get(key)
        return self._before.get(digest_of(key)) if known is None else known

    def remember(self, key: str, body_hash: bytes) -> None:
        remember(self._here, key, body_hash)

    def header(self, end: int, ending: Mapping[str, bytes]) -> tuple[str, bytes] | None:
        """For a fence at the end of the partition; None where all was told not long ago. `ending`: those that
        have ended and are not remembered yet, since their records are not finished."""
        if self._told and end - self._told[-1] < TOLD_AFTER:
            return None
        here = {digest_of(key): body_hash[:_HASH] for key, body_hash in {**self._here, **ending}.items()}
        before = [(key, body_hash) for key, body_hash in self._before.items() if key not in here]
        known = [*before, *here.items()][-REMEMBERED:]
        self._before = {key: body_hash for key, body_hash in known if key not in here}
        return _HEADER, b"".join(key + body_hash.ljust(_HASH, b"\0") for key, body_hash in known)

    def told(self, offset: int) -> None:
        """A fence with that header was acknowledged."""
        self._told.append(offset)

    def read(self, headers: Sequence[tuple[str, bytes]], offset: int) -> None:
        """Those of a fence in force, as of a restore."""
        told = dict(headers).get(_HEADER)
        if told is not None:
            size = _KEY + _HASH
            parts = [told[at : at + size] for at in range(0, len(told) - size + 1, size)]
            self._before |= {part[:_KEY]: part[_KEY:].rstrip(b"\0") for part in parts}
            self.told(offset)

    @property
    def restore(self) -> int | None:
        """From where all of it can be read again; None while that was not told twice."""
        return self._told[0] if len(self._told) == 2 else None


def remember(known: OrderedDict[K, T], key: K, value: T) -> None:
    """As the latest; the oldest ones are forgotten."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > REMEMBERED:
        known.popitem(last=False)


def digest_of(key: str) -> bytes:
    """How a key is told."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_KEY).digest()
