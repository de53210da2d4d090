"""Frames on a stream of bytes, as `multiprocessing` connections make them: four bytes of length, or four that
say -1 and eight of length."""

from __future__ import annotations

import struct

_SHORT, _LONG = struct.Struct("!i"), struct.Struct("!Q")
_LONGEST_SHORT = 0x7FFFFFFF


def header(length: int) -> bytes:
    """What stands before a frame of that many bytes."""
    return _SHORT.pack(length) if length <= _LONGEST_SHORT else _SHORT.pack(-1) + _LONG.pack(length)


class Frames:
    """Frames out of what was read, in whatever pieces it came."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def take(self) -> bytes | None:
        """The next whole frame, if it has arrived."""
        data = self._data
        if len(data) < _SHORT.size:
            return None
        [length], begin = _SHORT.unpack_from(data), _SHORT.size
        if length == -1:
            if len(data) < begin + _LONG.size:
                return None
            [length], begin = _LONG.unpack_from(data, begin), begin + _LONG.size
        if len(data) < begin + length:
            return None
        frame = bytes(data[begin : begin + length])
        del data[: begin + length]  # cheap at the front of a bytearray, however much is left
        return frame
