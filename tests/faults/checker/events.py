"""Events of a log, decoded by the published contract, which is compiled here and now."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

PROTOS = Path(__file__).parents[3] / "protos"
CONTRACT = "headrace/v1/events.proto"


class NoEvent(Exception):
    """Bytes in a log that the contract does not know."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One entry of a log. `reason`: a finish reason, or a failure's code. `completion_tokens`: its usage."""

    kind: str
    epoch: int
    request_id: str = ""
    seq: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    kept: int = 0
    consumer: str = ""
    reason: str = ""
    completion_tokens: int = 0
    log: str = ""


def decode(data: bytes) -> LogEvent:
    """Raises NoEvent for bytes that are none."""
    message = _new_message()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise NoEvent(repr(data[:40])) from error
    kind = message.WhichOneof("kind")
    if kind is None:
        raise NoEvent(f"an event without a kind: {data[:40]!r}")
    body = getattr(message, kind)
    fields = {name: _plain(getattr(body, name)) for name in _COPIED.get(kind, ())}
    if kind in ("finished", "failed"):
        fields["reason"] = body.reason if kind == "finished" else body.code
        fields["completion_tokens"] = body.usage.completion_tokens
    return LogEvent(kind=kind, epoch=message.epoch, request_id=message.request_id, **fields)


_COPIED = {"started": ("kept", "consumer"), "delta": ("seq", "token_ids", "text"), "moved": ("log",)}


def encode(**fields: Any) -> bytes:
    """Bytes of an event, for planted runs: `encode(epoch=1, delta={"seq": 0, "text": "a"})`."""
    return bytes(_new_message(**fields).SerializeToString())


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int) else tuple(value)


def _new_message(**fields: Any) -> Any:
    return _message_class()(**fields)


@functools.cache
def _message_class() -> Callable[..., Any]:
    pool = descriptor_pool.DescriptorPool()
    for file in _compiled().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("headrace.v1.Event"))


def _compiled() -> descriptor_pb2.FileDescriptorSet:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "contract.pb"
        compiler = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--descriptor_set_out={out}"]
        subprocess.run([*compiler, CONTRACT], check=True)
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
