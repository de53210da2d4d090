"""Messages between a consumer and its engine process, as MessagePack bytes."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.gpu_engine.api import FromEngine, ToEngine

_COMMANDS: Final = msgspec.msgpack.Decoder(ToEngine)
_MESSAGES: Final = msgspec.msgpack.Decoder(FromEngine)


def encode_message(message: ToEngine | FromEngine) -> bytes:
    """The bytes of one message, in either direction."""
    return msgspec.msgpack.encode(message)


def decode_command(data: bytes) -> ToEngine:
    """What the consumer told the engine. msgspec.DecodeError for bytes of another version."""
    return _COMMANDS.decode(data)


def decode_message(data: bytes) -> FromEngine:
    """What the engine told its consumer. msgspec.DecodeError for bytes of another version."""
    return _MESSAGES.decode(data)
