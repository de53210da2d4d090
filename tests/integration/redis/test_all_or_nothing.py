"""A script that breaks off is not undone: what it is given is looked at before its first write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from headrace.broker.connect import connect
from headrace.broker.contract import Append, Broker, DeadLetter, Retry
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.errors import BrokerError
from headrace.broker.events import Delta, Failed
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.settings import Retention
from tests.integration.redis.steps import BODY, LANES, LONG_MS, Run, run

# What a server's integers do not hold; PEXPIRE adds the time of day to it.
BEYOND_MS = (10**21, (1 << 63) - 1, 10**15 + 1)


@pytest.fixture
def retention() -> Retention:
    return Retention()


@pytest.fixture
async def broker(valkey: EmbeddedValkey, names: Names, retention: Retention) -> AsyncIterator[Broker]:
    made = await connect(valkey.url, prefix=names.prefix, retention=retention)
    yield made
    await made.close()


def spoil(retention: Retention, ms: int) -> None:
    """What the settings refuse, the scripts are given all the same from now on."""
    for name in ("log_ms", "reply_ms", "results_ms"):
        object.__setattr__(retention, name, ms)


async def started(broker: Broker, names: Names) -> Run:
    reply_to = f"{names.prefix}.reply.mine"
    await broker.publish([Message(BODY, "r", Lane.BATCH, reply_to=reply_to, stream=True)])
    owner = await run(await broker.consume(LANES, LONG_MS))
    assert await owner.start()
    return owner


async def everything(client: Redis, names: Names) -> dict[bytes, bytes]:
    """All keys with their contents and their ends."""
    keys = [key async for key in client.scan_iter(f"{names.prefix}*")]
    return {key: (await client.dump(key) or b"") + str(await client.ttl(key)).encode() for key in keys}


async def finish(owner: Run) -> object:
    return await owner.finish()


async def dead_letter(owner: Run) -> object:
    failed = Failed(owner.epoch, "poisoned", "it kills")
    return await owner.session.settle(owner.delivery, owner.epoch, DeadLetter("poison", failed, b"line"))


async def retry(owner: Run) -> object:
    return await owner.session.settle(owner.delivery, owner.epoch, Retry(10**21, "later"))


async def append(owner: Run) -> object:
    events = [Delta(owner.epoch, 0, (1,), "a")]
    return await owner.session.append([Append(owner.delivery, owner.epoch, events, [b"chunk"])])


@pytest.mark.parametrize("ms", BEYOND_MS)
@pytest.mark.parametrize("step", [finish, dead_letter, retry, append], ids=lambda step: step.__name__)
async def test_a_time_that_the_server_refuses_changes_nothing(
    broker: Broker,
    client: Redis,
    names: Names,
    retention: Retention,
    step: Callable[[Run], Awaitable[object]],
    ms: int,
) -> None:
    owner = await started(broker, names)
    spoil(retention, ms)
    before = await everything(client, names)
    with pytest.raises(BrokerError, match="no time in ms"):
        await step(owner)
    assert await everything(client, names) == before


async def test_so_it_is_for_the_mark_of_an_unknown_request(
    broker: Broker, client: Redis, names: Names, retention: Retention
) -> None:
    spoil(retention, BEYOND_MS[0])
    with pytest.raises(BrokerError, match="no time in ms"):
        await broker.cancel(RequestRef("unknown"))
    assert await everything(client, names) == {}


async def test_what_was_refused_can_still_be_settled(
    broker: Broker, client: Redis, names: Names, retention: Retention
) -> None:
    owner = await started(broker, names)
    kept = retention.log_ms
    spoil(retention, BEYOND_MS[0])
    with pytest.raises(BrokerError, match="no time in ms"):
        await owner.finish()
    spoil(retention, kept)
    assert await owner.finish()
    assert await client.xlen(f"{names.prefix}.reply.mine") == 1
