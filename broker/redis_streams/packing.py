"""Commands to the bytes of the protocol (RESP: arrays of bulk strings), many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import hiredis

Command: TypeAlias = Sequence[bytes | str | int]


def pack(commands: Iterable[Command]) -> bytes:
    """The bytes of all commands, one behind the other."""
    pack_command: Callable[[Any], bytes] = hiredis.pack_command  # its stub knows tuples of one value only
    return b"".join([pack_command(tuple(command)) for command in commands])


def pack_one(command: Command) -> bytes:
    """The same in Python, one command."""
    parts = [b"*%d\r\n" % len(command)]
    for value in command:
        data = value if isinstance(value, bytes) else str(value).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
