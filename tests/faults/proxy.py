"""A TCP proxy that breaks connections on purpose: between a consumer or a gateway and its broker.

client ──request──► proxy ──request──► server
client ◄──  ✂   ─── proxy ◄──reply──── server      the write happened, its reply is lost
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias

_CHUNK = 1 << 16
Pair: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True, eq=False)
class _Connection:
    """`scissors`: bytes of replies that still pass before it is cut; None: all."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    scissors: int | None = None

    def abort(self) -> None:
        """At once, with what is still buffered lost, as a broken network does it."""
        for writer in (self.client, self.server):
            writer.transport.abort()


@dataclass(slots=True)
class Proxy:
    """Forwards a port of its own (`port` 0: any) to `target`. `lag_s`: bounds of a random
    delay for each chunk, different on each connection, so that what goes over several of them arrives in
    another order. `swallow`: takes bytes and forwards none, as a network that drops packets. `refuse`: new
    connections are cut at once."""

    target: tuple[str, int]
    rng: random.Random
    lag_s: tuple[float, float] = (0.0, 0.0)
    swallow: bool = False
    refuse: bool = False
    port: int = 0
    cuts: int = 0
    _server: asyncio.Server | None = None
    _connections: set[_Connection] = field(default_factory=set)

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Breaks all connections now."""
        for connection in list(self._connections):
            self._break(connection)

    def cut_replies(self, after: Callable[[], int]) -> None:
        """Breaks each present connection once `after()` further bytes of replies have passed on it."""
        for connection in self._connections:
            connection.scissors = after()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, server = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, server)
        if self.refuse:
            connection.abort()
            return
        self._connections.add(connection)
        requests = self._pump(reader, self._forward(connection))
        replies = self._pump(there, self._answer(connection))
        await asyncio.wait(
            {asyncio.ensure_future(requests), asyncio.ensure_future(replies)},
            return_when=asyncio.FIRST_COMPLETED,
        )
        connection.abort()
        self._connections.discard(connection)

    async def _pump(self, reader: asyncio.StreamReader, write: Callable[[bytes], Awaitable[None]]) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                if self.lag_s[1]:
                    await asyncio.sleep(self.rng.uniform(*self.lag_s))
                if not self.swallow:
                    await write(chunk)

    def _forward(self, connection: _Connection) -> Callable[[bytes], Awaitable[None]]:
        async def write(chunk: bytes) -> None:
            connection.server.write(chunk)
            await connection.server.drain()

        return write

    def _answer(self, connection: _Connection) -> Callable[[bytes], Awaitable[None]]:
        async def write(chunk: bytes) -> None:
            room = connection.scissors
            if room is None or len(chunk) <= room:
                connection.scissors = None if room is None else room - len(chunk)
                connection.client.write(chunk)
                await connection.client.drain()
                return
            connection.client.write(chunk[:room])
            with contextlib.suppress(OSError):
                await connection.client.drain()
            self._break(connection)

        return write

    def _break(self, connection: _Connection) -> None:
        self.cuts += 1
        connection.abort()
        self._connections.discard(connection)
