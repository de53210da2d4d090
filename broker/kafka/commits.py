"""What a group commits for a request partition: an offset and, in its metadata, what no offset can say.

            base          next
             ▼             ▼
    ─ done ──○ ● ● ○ ● ○ ●   (not fetched yet)          ○ unfinished   ● finished, or no record at all
             └─ bitmap ──┘

Requests end in any order, Kafka commits a prefix. `Progress` keeps which of the records that were taken are
unfinished; the prefix is contiguous over the records seen, since offsets have holes. What is finished beyond
it travels as a bitmap, tied to its base: metadata that does not decode or names another base (somebody reset
the group's offsets by hand) is ignored, and what it held is executed once more.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

# How far beyond its base an owner takes records: as a bitmap 2,048 bytes, in base64 2,732 characters.
WINDOW = 16_384
# The brokers' `offset.metadata.max.bytes`, as it is by default.
MOST_METADATA = 4_096
LONGEST_TRANSACTIONAL_ID = 256
_VERSION = "h1"


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit as it was read back.

    All records below `base` are finished, and those in `beyond`. `epoch` fences the events partition; whoever
    may commit may raise it, and nobody else. `restore`: offset in the events partition from which the logs of
    all unfinished requests can be read. `transactional_id`: under which the owner settled, so that its
    successor can abort what it left open.
    """

    base: int = 0
    beyond: frozenset[int] = frozenset()
    epoch: int = 0
    restore: int = 0
    transactional_id: str = ""

    def finished(self, offset: int) -> bool:
        return offset < self.base or offset in self.beyond

    def unfinished(self, end: int) -> int:
        """How many records below `end` are not finished (holes between them count as records)."""
        return max(0, end - self.base) - sum(offset < end for offset in self.beyond)


class Progress:
    """Which records of a partition are taken, and which of those are finished.

    `next`: all below it were seen. Each method is one step of the owner; `metadata` is what to commit then.
    """

    def __init__(self, committed: Committed) -> None:
        self.next = committed.base
        self._unfinished: set[int] = set()
        self._in_order: deque[int] = deque()  # holds finished ones, too, until they come to its head
        self._finished_before = set(committed.beyond)  # of former owners, not come past yet

    @property
    def base(self) -> int:
        while self._in_order and self._in_order[0] not in self._unfinished:
            self._in_order.popleft()
        return self._in_order[0] if self._in_order else self.next

    @property
    def room(self) -> bool:
        """Whether the next record may be taken: its bit must fit."""
        return self.next < self.base + WINDOW

    def see(self, offset: int) -> bool:
        """Notes that the record at `offset` came, in the order of offsets. False: it is finished already."""
        assert offset >= self.next, (offset, self.next)
        self.next = offset + 1
        if offset in self._finished_before:
            self._finished_before.remove(offset)
            return False
        self._unfinished.add(offset)
        self._in_order.append(offset)
        return True

    def finish(self, offset: int) -> None:
        """Once its transaction is committed."""
        self._unfinished.discard(offset)

    def finished(self, offset: int) -> bool:
        """Whether a record need not be run: a hole, or one that nobody has seen, does not matter."""
        if offset < self.next:
            return offset not in self._unfinished
        return offset in self._finished_before

    def committed(self, also: Iterable[int] = ()) -> Committed:
        """As of now, with the records `also` finished: what their transaction commits. Without epoch."""
        unfinished = self._unfinished.difference(also)
        base = min(unfinished, default=self.next) if also else self.base
        seen = {offset for offset in range(base, self.next) if offset not in unfinished}
        return Committed(base, frozenset(seen | {o for o in self._finished_before if o >= base}))


def encode_metadata(committed: Committed) -> str:
    """Metadata for the commit of `committed.base`; decodes to the same where all beyond is in the window."""
    assert len(committed.transactional_id) <= LONGEST_TRANSACTIONAL_ID
    fields = (_VERSION, committed.base, committed.epoch, committed.restore, committed.transactional_id)
    return ";".join([*map(str, fields), _encode_bits(committed)])


def decode_metadata(offset: int, metadata: str | None) -> Committed:
    """What stands in a group for a partition; only the offset counts where the metadata is not for it."""
    try:
        version, base, epoch, restore, transactional_id, bits = (metadata or "").split(";")
        if version != _VERSION or int(base) != offset or int(epoch) < 0 or int(restore) < 0:
            return Committed(offset)
        beyond = _decode_bits(offset, bits)
    except (ValueError, binascii.Error, zlib.error):
        return Committed(offset)
    return Committed(offset, beyond, int(epoch), int(restore), transactional_id)


def _encode_bits(committed: Committed) -> str:
    """Bit `i` stands for `base + i`. Packed where that is shorter: `z` before it tells."""
    bits = bytearray(WINDOW // 8)
    for offset in committed.beyond:
        place = offset - committed.base
        if 0 <= place < WINDOW:
            bits[place >> 3] |= 1 << (place & 7)
    plain = bytes(bits).rstrip(b"\0")
    packed = zlib.compress(plain, 1, -15) if len(plain) > 32 else plain
    if len(packed) < len(plain):
        return "z" + base64.urlsafe_b64encode(packed).decode()
    return "p" + base64.urlsafe_b64encode(plain).decode()


def _decode_bits(base: int, text: str) -> frozenset[int]:
    bits = base64.b64decode(text[1:], altchars=b"-_", validate=True)
    if text[:1] == "z":
        unpacking = zlib.decompressobj(-15)
        bits = unpacking.decompress(bits, WINDOW // 8)
        if not unpacking.eof:
            raise ValueError("more bits than a window holds")
    elif text[:1] != "p" or len(bits) > WINDOW // 8:
        raise ValueError("no bitmap of ours")
    return frozenset(base + i for i in range(len(bits) * 8) if bits[i >> 3] >> (i & 7) & 1)
