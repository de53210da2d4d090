"""Reads records whose header names are not UTF-8.

kafka-python takes such a record for a corrupt batch and never gets past it: one record of a careless
publisher would stop every consumer of its partition for good. Here the odd bytes of a name become U+FFFD, so
that the record reaches the codec, which refuses it for that. Batches that hold no such record are read by
kafka-python's own code alone.
"""

from __future__ import annotations

from typing import Any, SupportsIndex, overload

from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch

REPLACEMENT = "\ufffd"


def tolerate_odd_headers() -> None:
    """From now on, for all consumers of this process. kafka-python offers no other place for it."""
    memory_records.DefaultRecordBatch = _TolerantBatch


class _TolerantBatch(DefaultRecordBatch):  # type: ignore[misc]  # kafka-python has no type hints
    _pos: int
    _buffer: bytearray

    def _read_msg(self) -> Any:
        position, buffer = self._pos, self._buffer
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            self._pos, self._buffer = position, _Tolerant(buffer)
            try:
                return super()._read_msg()
            finally:
                self._buffer = buffer


class _Tolerant(bytearray):
    """Its slices decode whatever they hold."""

    @overload
    def __getitem__(self, at: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> bytearray: ...
    def __getitem__(self, at: SupportsIndex | slice, /) -> int | bytearray:
        return _Name(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)


class _Name(bytearray):
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return super().decode(encoding, "replace")
