"""Loads the Lua scripts beside this file and calls them by name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from headrace.broker.errors import BrokerError
from headrace.broker.redis_streams.bundle import Bundle
from headrace.broker.redis_streams.link import Link, Reply, ServerError, Value

_FOLDER = Path(__file__).parent / "scripts"


class Call(msgspec.Struct, frozen=True):
    """One call of a script; `arguments` are ARGV. The dictionary of both stands at the head of its file."""

    script: str
    keys: Sequence[str]
    arguments: Sequence[Value]


class Scripts:
    """All scripts, called by hash. A server that restarted has forgotten them: they are loaded again then,
    which is safe, since a call by an unknown hash has done nothing."""

    def __init__(self, link: Link | Bundle) -> None:
        self._link = link

    @cached_property
    def _sources(self) -> dict[str, str]:
        common = (_FOLDER / "common.lua").read_text()
        files = (path for path in _FOLDER.glob("*.lua") if path.stem != "common")
        return {path.stem: common + "\n" + path.read_text() for path in files}

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {name: hashlib.sha1(text.encode()).hexdigest() for name, text in self._sources.items()}  # noqa: S324 (the protocol names scripts so)

    async def run(self, call: Call) -> Reply:
        """Runs one script and returns its raw reply."""
        try:
            return await self._link.call(*self._command(call))
        except ServerError as error:
            if not error.unknown_script:
                raise
        await self._load()
        return await self._link.call(*self._command(call))

    async def run_all(self, calls: Sequence[Call]) -> list[Reply]:
        """Runs scripts in one round trip, as one transaction: either all of them run, in order, or none."""
        commands = [self._command(call) for call in calls]
        replies = await self._link.transaction(commands)
        if any(_unknown(reply) for reply in replies):
            await self._load()
            replies = await self._link.transaction(commands)
        return _all_well(replies)

    async def run_each(self, calls: Sequence[Call]) -> list[Reply]:
        """Runs scripts in one round trip, in order; each is a step of its own."""
        commands = [self._command(call) for call in calls]
        replies = await self._link.pipeline(commands)
        unknown = [number for number, reply in enumerate(replies) if _unknown(reply)]
        if unknown:
            await self._load()
            again = await self._link.pipeline([commands[number] for number in unknown])
            replies = list(replies)
            for number, reply in zip(unknown, again, strict=True):
                replies[number] = reply
        return _all_well(replies)

    def _command(self, call: Call) -> Sequence[Value]:
        return ("EVALSHA", self._hashes[call.script], len(call.keys), *call.keys, *call.arguments)

    async def _load(self) -> None:
        _all_well(await self._link.pipeline([("SCRIPT", "LOAD", text) for text in self._sources.values()]))


def _unknown(reply: Reply) -> bool:
    return isinstance(reply, ServerError) and reply.unknown_script


def _all_well(replies: Sequence[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, BrokerError):
            raise reply
    return list(replies)
