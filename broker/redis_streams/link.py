"""Connections to the server: raw replies, no hidden retry, and errors that carry a sentence.

Replies come as the server sent them (bytes, ints, lists). redis-py retries ten times by default, which
turns a blocking read into a minute of silence and repeats writes whose fate is unknown; here a call that
failed has failed, and the caller decides. The time limit is our own, too: with a `socket_timeout`, redis-py
sends through `asyncio.wait_for`, which before Python 3.12 can swallow the cancellation of the caller.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import redis.exceptions
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.redis_streams.address import address_of, client_for
from headrace.broker.redis_streams.packing import pack

Value: TypeAlias = bytes | str | int
Reply: TypeAlias = Any  # the protocol's own: bytes, int, None, or a list of these
Command: TypeAlias = Sequence[Value]

BLOCK_MS = 5_000
_CALL_TIMEOUT_S = 10.0
_BLOCKING_TIMEOUT_S = BLOCK_MS / 1000 + 5.0
_CONNECT_TIMEOUT_S = 5.0
_MOST_CALLS = 32  # at a time; more wait, and the server writes what comes together in one fsync
_MOST_READERS = 10_000
# The server answers, but for now does not take writes: full disk, failover, no good replicas. One that turns
# into a replica breaks off all blocking reads (UNBLOCKED).
_PASSING = {"NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "UNBLOCKED"}
_IN_SCRIPT = re.compile(r"^Error running script .*?: -", re.DOTALL)


class ServerError(BrokerRefused):
    """The server refused a command. `unknown_script`, `no_group`: it lacks what can be made;
    `group_exists`: it has what was to be made."""

    def __init__(self, text: str, *, unknown_script: bool = False) -> None:
        super().__init__(f"the Redis server refused a command: {text}")
        self.unknown_script = unknown_script
        self.no_group = "NOGROUP" in text
        self.group_exists = text.startswith("BUSYGROUP")


class Link:
    """A pool of connections to one server. `blocking`: for reads that wait up to `BLOCK_MS`."""

    def __init__(self, url: str, *, blocking: bool = False) -> None:
        self.address = address_of(url)
        self._room = asyncio.Semaphore(_MOST_READERS if blocking else _MOST_CALLS)
        self._closed = False
        self._timeout_s = _BLOCKING_TIMEOUT_S if blocking else _CALL_TIMEOUT_S
        self._client = client_for(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            max_connections=_MOST_READERS,  # never reached; redis-py would raise rather than wait
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
        )
        self._client.response_callbacks.clear()
        self._connect: Callable[[], Awaitable[AbstractConnection]] = (
            self._client.connection_pool.get_connection
        )

    async def call(self, *command: Value) -> Reply:
        """One command and its raw reply. Raises BrokerUnavailable, or ServerError for a refusal."""
        with self._translated():
            async with self._room, asyncio.timeout(self._timeout_s):
                [reply] = await self._exchange([command])
        if isinstance(reply, Exception):
            raise self._translate(reply) from reply
        return reply

    async def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Commands in one round trip; one that was not done leaves its BrokerError in its place: a server
        that is full refuses some of them."""
        if not commands:
            return []
        with self._translated():
            async with self._room, asyncio.timeout(self._timeout_s):
                replies = await self._exchange(commands)
        return [self._told(reply) for reply in replies]

    async def transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """Like `pipeline`, but nothing of other clients comes between, and all of it is run or nothing. What
        passes is raised; a refused command leaves its ServerError in its place."""
        if not commands:
            return []
        with self._translated():
            async with self._room, asyncio.timeout(self._timeout_s), self._client.pipeline() as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                replies = await pipe.execute(raise_on_error=False)
            return [self._checked(reply) for reply in replies]

    async def close(self) -> None:
        """Ends it for good: calls that wait break off, later ones raise BrokerRefused."""
        self._closed = True
        await self._client.aclose()

    async def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """All commands out, then all replies in, on one connection of the pool. redis-py's own pipeline does
        the same at twice the price: it is made for transactions, retries and typed replies."""
        connection = await self._connect()
        try:
            await connection.send_packed_command(pack(commands), check_health=False)
            return [await _read(connection) for _ in commands]
        except BaseException:
            await connection.disconnect(nowait=True)  # replies may still be under way
            raise
        finally:
            await self._client.connection_pool.release(connection)

    def _told(self, reply: Reply) -> Reply:
        return self._translate(reply) if isinstance(reply, Exception) else reply

    def _checked(self, reply: Reply) -> Reply:
        told = self._told(reply)
        if isinstance(told, BrokerError) and not isinstance(told, ServerError):
            raise told from reply
        return told

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if self._closed:  # redis-py would connect again
            raise BrokerRefused(f"the connection to {self.address} was closed by this process")
        try:
            yield
        except (RedisError, OSError) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> BrokerError:
        text = str(error)
        if isinstance(error, AuthenticationError):
            return BrokerRefused(f"{self.address} refused the login: {text}; check user and password")
        if isinstance(error, BusyLoadingError):
            return BrokerUnavailable(f"{self.address} is still loading its data")
        if isinstance(error, ReadOnlyError | MasterDownError):
            return BrokerUnavailable(f"{self.address} takes no writes at the moment: {text}")
        if isinstance(error, TimeoutError | redis.exceptions.TimeoutError):
            return BrokerUnavailable(f"{self.address} did not answer in time; is it overloaded or frozen?")
        if isinstance(error, redis.exceptions.ConnectionError | OSError):
            return BrokerUnavailable(f"cannot reach {self.address} ({text}); is it running?")
        if isinstance(error, NoScriptError):
            return ServerError(text, unknown_script=True)
        if isinstance(error, OutOfMemoryError):
            return self._out_of_memory()
        if isinstance(error, ResponseError):
            return self._translate_refusal(text)
        return BrokerRefused(f"{self.address} answered something unexpected: {text}")

    def _translate_refusal(self, text: str) -> BrokerError:
        """Before version 7 an error inside of a script is wrapped in words."""
        code = _IN_SCRIPT.sub("", text).split(" ", 1)[0]
        if code == "OOM":
            return self._out_of_memory()
        if code == "MISCONF":
            return BrokerUnavailable(f"{self.address} cannot write to its disk; free some space: {text}")
        if code in _PASSING:
            return BrokerUnavailable(f"{self.address} takes no commands at the moment: {text}")
        return ServerError(text)

    def _out_of_memory(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.address} is out of memory; raise maxmemory or drain the queue")


async def _read(connection: AbstractConnection) -> Reply:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
