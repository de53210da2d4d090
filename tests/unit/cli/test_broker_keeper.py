"""An embedded broker is kept alive, whatever becomes of its starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from headrace.broker.embedded.folder import EmbeddedUnusable
from headrace.cli import broker_keeper
from headrace.cli.broker_keeper import BrokerKeeper
from headrace.cli.processes import Patience

HASTY = Patience(first_delay_s=0.001, longest_delay_s=0.002)


class FakeServer:
    """`failures`: why the next starts fail. `hangs`: a start that goes on until it is stopped."""

    url = "redis://nowhere"

    def __init__(self) -> None:
        self.alive = False
        self.starts = 0
        self.failures: list[Exception] = []
        self.hangs = False
        self._stopped = threading.Event()

    def start(self) -> None:
        self.starts += 1
        self.alive = True
        if self.hangs:
            assert self._stopped.wait(30)
            raise EmbeddedUnusable("it was stopped")
        if self.failures:
            self.alive = False
            raise self.failures.pop(0)

    def stop(self) -> None:
        self.alive = False
        self._stopped.set()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_keeper, "POLL_S", 0.001)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
async def keeper(server: FakeServer, said: list[str]) -> AsyncIterator[BrokerKeeper]:
    keeper = BrokerKeeper(server, said.append, HASTY)
    yield keeper
    await keeper.stop()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if holds():
                return
            await asyncio.sleep(0.001)


async def test_one_that_dies_is_started_again(
    keeper: BrokerKeeper, server: FakeServer, said: list[str]
) -> None:
    await keeper.start()
    server.alive = False
    await until(lambda: server.alive)
    assert (server.starts, said) == (2, ["died; starting it again"])


async def test_one_that_dies_while_it_is_started_again_is_started_once_more(
    keeper: BrokerKeeper, server: FakeServer, said: list[str]
) -> None:
    await keeper.start()
    server.failures = [EmbeddedUnusable("killed"), EmbeddedUnusable("the disk is full"), OSError("odd")]
    server.alive = False
    await until(lambda: server.starts == 5)
    assert said == [f"{why}; starting it again" for why in ("died", "killed", "the disk is full", "odd")]
    server.alive = False
    await until(lambda: server.starts == 6)
    assert said[-1] == "died; starting it again"


def test_its_pauses_grow_and_end_at_a_few_seconds() -> None:
    pauses = [broker_keeper.PATIENCE.delay_s(deaths) for deaths in (1, 4, 20)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.2
    assert 1 < pauses[-1] <= 5


async def test_its_first_start_may_fail_for_good(
    keeper: BrokerKeeper, server: FakeServer, said: list[str]
) -> None:
    server.failures = [EmbeddedUnusable("the port is taken")]
    with pytest.raises(EmbeddedUnusable, match="the port is taken"):
        await keeper.start()
    await asyncio.sleep(0.01)
    assert (server.starts, said) == (1, [])


async def test_a_stop_ends_one_that_is_starting_again_and_its_keeping(
    keeper: BrokerKeeper, server: FakeServer
) -> None:
    await keeper.start()
    server.hangs = True
    server.alive = False
    await until(lambda: server.starts == 2)
    async with asyncio.timeout(10):
        await keeper.stop()
        await keeper.stop()
    assert not server.alive
    await asyncio.sleep(0.01)
    assert server.starts == 2
