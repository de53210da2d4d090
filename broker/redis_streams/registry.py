"""What the registry holds of a consumer. The scripts put the time of its last sign of life before it."""

from __future__ import annotations

import msgspec

from headrace.broker.contract import ConsumerEntry, Serves
from headrace.broker.message import Lane


class _Said(msgspec.Struct):
    pool: str
    lanes: tuple[Lane, ...]
    models: tuple[str, ...]
    slots: int


def describe(lease_ms: int, pool: str, lanes: tuple[Lane, ...], serves: Serves) -> bytes:
    """Lease in ms, a blank, and JSON: see `scripts/consumers.lua`."""
    said = _Said(pool, lanes, serves.models, serves.slots)
    return b"%d %s" % (lease_ms, msgspec.json.encode(said))


def read_entry(name: bytes, idle_ms: int, said: bytes) -> ConsumerEntry | None:
    """None for what was written by something else."""
    try:
        it = msgspec.json.decode(said, type=_Said)
    except msgspec.MsgspecError:
        return None
    serves = Serves(it.models, it.slots)
    return ConsumerEntry(name.decode(errors="replace"), it.pool, it.lanes, serves, idle_ms)
